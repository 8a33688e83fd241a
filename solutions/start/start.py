# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Start here
#
# This course follows **one training round of a language-model agent**, stage by stage. A **policy** is the language model that acts: it
# chooses each next token. One round samples tasks, lets the policy act on them (*rollout*), asks what that was worth (*feedback*), decides
# which choices deserve it (*credit*), changes the policy (*update*), and writes down what it all cost (*accounting*). In each level you
# implement the mathematics of a stage, train a real (small) policy with your own functions, and find out what can go wrong. Everything runs on a laptop without a GPU and
# without a network.

# %%
from course.figures.overview import round_map

round_map()

# %% [markdown]
# | level | stage of the round | you implement | hours |
# |---|---|---|---|
# | **[0 Probability and masks](../level0/lab.ipynb)** | rollout: what did the policy choose, and how likely was it | log-probabilities, KL, attention and action masks, the SFT loss | 5 |
# | **[1 Preference modelling](../level1/lab.ipynb)** | feedback: from choices to a number | reward-model losses, splits, calibration, queries, DPO | 6 |
# | **[2 Bandit RLHF](../level2/lab.ipynb)** | credit and update | returns, GAE, PPO, GRPO; hacking a reward and noticing it | 9 |
# | **[3 Selection versus optimisation](../level3/lab.ipynb)** | search at equal compute | best-of-N, pass@k, consensus, proof search | 5 |
# | **[4 Tool environments](../level4/lab.ipynb)** | rollout over several turns | actions, authorisation, replay, RL with tools | 9 |
# | **[5 Multi-source rewards and attacks](../level5/lab.ipynb)** | feedback under attack | reward vectors, gates, rules, diffs, canaries, citations; what a policy exploits and how it is closed | 8 |
# | **[6 Distributed long-horizon systems](../level6/lab.ipynb)** | the round as a system | V-trace, staleness, fair batches, stamps, gates, ledgers, budgets; which cause it was | 9 |
# | **[7 Reading frontier reports adversarially](../level7/lab.ipynb)** | accounting for claims | numbers with their conditions, what words say, lore, evidence tables, an audit of a report and of your own run | 5 |
#
# Beside a lab lie **cases**, systems of the field rebuilt in small from the package's own parts, to read and run:
# [InstructGPT](../level2/case_instructgpt.ipynb), [Google's RLAIF](../level2/case_rlaif.ipynb) (level 2),
# [AlphaProof](../level3/case_alphaproof.ipynb) (3), [WebGPT](../level4/case_webgpt.ipynb) (4),
# [Codex-1](../level5/case_codex1.ipynb), [Constitutional AI](../level5/case_constitutional.ipynb) (5), [Playhouse](../level6/case_playhouse.ipynb), [LoRA](../level6/case_lora.ipynb),
# [Distillation](../level6/case_distillation.ipynb) (6).

# %% [markdown]
# ## Where you stand
#
# Read from your notebooks on disk, as they were last saved. Run this cell again after you have worked and **saved**.

# %%
import json
from pathlib import Path

from autograder import progress
from course.figures import say


def executes_in(level):
    """Seconds of a level's whole notebooks, experiments included, where they were measured."""
    path = Path("..", f"level{level}", "measured.json")
    found = json.loads(path.read_text("utf-8")).get("notebooks", {}) if path.exists() else {}
    return ", ".join(f"{name.removeprefix('case_')} {row['seconds']} s" for name, row in sorted(found.items(), key=lambda x: x[0] != "lab"))


def passed(rows):
    right = [row for row in rows if row.state == "right"]
    return f"{len(right)} of {len(rows)}", f"{sum(row.points for row in right):g} of {sum(row.points for row in rows):g}"


def table(columns, rows):
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in (columns, ["---"] * len(columns), *rows))


rows = progress.standings(Path(".."))
levels = sorted({row.level for row in rows})
exercises, points = passed(rows)
say(
    table(
        ("level", "exercises right", "points", "executes in"),
        [(level, *passed([row for row in rows if row.level == level]), executes_in(level)) for level in levels],
    )
    + f"\n\n**{exercises} exercises pass their visible checks**, worth {points} points if their hidden checks pass too.\n\n"
    "<details><summary>Exercise by exercise</summary>\n\n"
    + table(("level", "exercise", "points", "state"), [(row.level, f"{row.title} (`{row.function}`)", f"{row.points:g}", row.state) for row in rows])
    + "\n\n</details>"
)

# %% [markdown]
# ## How to work
#
# 1. Open `level0/lab.ipynb` from the file browser on the left. Work from top to bottom; later exercises use your earlier functions.
# 2. Where it says *decide* or *predict*, write something down first: only then can the result surprise you.
# 3. Replace `raise NotImplementedError()` by your answer, run the cell, run the check under it. The check compares with values computed
#    independently, in double precision, and tests gradients too.
# 4. Stuck for more than ten minutes? Open the first hint. Only then the second.
# 5. **Restart the kernel and run all cells** before you hand in: what only works in your kernel's memory does not work in the grader's.
#
# **What others have built.** A statement about a laboratory's system carries a mark: **[D]** disclosed in a source, **[I]** inferred
# by us, **[U]** unknown. Level 7 is about these marks.
#
# **What is graded.** Only your answer cells and any cells you add. You may add cells, move cells, print, plot. The check cells are not taken
# from your file; the grader runs its own, with other numbers and some further cases, in another process. Points are given per check.
#
# **Using an AI assistant.** Ask it to explain, to question you, to review a test you wrote. If it writes the answer, your points look the
# same, but the later levels build on what you would have learned by writing it.

# %% [markdown]
# ## When something fails
#
# | what you see | what to do |
# |---|---|
# | `NotImplementedError` | the answer cell still holds the stub, or you did not run it after editing |
# | *not counted: first the function's value must be right* | fix the check marked WRONG; the ones that wait follow by themselves |
# | *something on the way was detached* | you used `.item()`, `.detach()`, `.numpy()` or built a new tensor from numbers; gradients must flow |
# | *expected shape … got shape …* | look at `keepdim`, and at the shapes in the docstring |
# | *may not use … here* | the card bans that library call: writing it is the exercise |
# | a check is right alone and wrong after "Run all" | you overwrote a name; use other names in cells you add |
# | a cell hangs | interrupt the kernel (■); checks have a time limit only when they are graded |
# | a notebook will not open | `make lab` again: it restores missing files and never overwrites yours. Rename a broken file first |
# | something with the machine | `course doctor` in a terminal says what was found and what each lack means |
