# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Case · Codex-1, small
#
# A policy that works on repositories: it edits, runs the tests, and submits. Codex-1 (OpenAI, 2025) is an o3 trained further by RL on real tasks of software engineering **[D]**.
# Tests make a reward that nobody has to judge, and they leave open what was asked for: whoever may edit the tests can make them pass. Here one trainer makes five policies from one
# clone, and only the reward differs. A miniature, no reproduction.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will see** what a policy becomes when the tests that count are its own, what a price on the hack does when it is below and above what the tests pay, what hidden tests do
# without any price, and what the terms for instruction and report add. **You need** the lab of this level. There is nothing to hand in.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %%
import copy
import json
from pathlib import Path

from tqdm.auto import tqdm

from course.cases import codex1 as case
from course.envs.repository import FILES, demonstrate
from course.envs.sandbox import Sandbox
from course.evidence.intervals import bootstrap_mean
from course.feedback.code_rewards import WEIGHTS
from course.figures import say, style
from course.figures.learning import curves
from course.training.loopholes import cloned_policy, held_out, training_tasks

sandbox = Sandbox(warm=1)

# %% [markdown]
# ## The system, as published, and what stands for it here
#
# | Codex-1 | here |
# |---|---|
# | an o3 trained further by RL on real coding tasks in many environments **[D]** | a clone of a scripted expert, trained further by GRPO on one kind of task |
# | it reads a repository, edits files, runs commands and tests, and goes on until they pass, in an isolated sandbox **[D]** | seven small files; `read`, `edit`, `test`, `submit`; programs run in a sandbox without network |
# | results that go against the user's instructions are penalised **[D]** | a term for having submitted what was asked for |
# | which tests, judges and weights make up the reward **[U]** | tests, instruction, quality of the report, price of a hack, price of an action: a decomposition that is useful **[I]**, and no disclosed formula |
# | number of repositories and tasks, optimiser, contamination controls **[U]** | all constants stand in the code |
#
# In a world with **own tests** the files with the tests can be edited, and the reward runs them as they are in the end. With **hidden tests** those edits are denied, and other
# cases count. Some tasks can't be solved from what is visible, since the constant is said nowhere, and some have a stale test that a right program fails. Honest work earns less there.

# %%
example = next(task for task in training_tasks(50, SEED) if task.hidden["kind"] == "plain")
files = "\n".join(f"| `{name}` | `{example.hidden['files'][name]}` |" for name in FILES)
actions = "\n".join(f"1. `{text}`" for text in demonstrate(example, SEED))
weights = ", ".join(f"{name} {value:g}" for name, value in WEIGHTS.items())
say(f"**Asked:** `{example.prompt}`\n\n| file | text |\n|---|---|\n{files}\n\n**The expert:**\n\n{actions}\n\n**Weights of the terms:** {weights}.")

# %% [markdown]
# ## One clone, five rewards
#
# The five: **own tests**, with all terms but a hack at no cost; the same with a **price** on each protected file that was changed, once below and once above what passed tests earn; **hidden tests alone**, without the
# terms for instruction, report and hacks; and **hidden tests, all terms**. Each action costs a little in all five.
#
# **Predict before you run:** (1) Which policy's reward counts the most tasks as solved, and which policy truly solves most? (2) Where a hack costs less than passed tests earn: does the policy still hack? (3) Does
# the policy that is paid for hidden tests alone report truly what its tests showed?

# %%
prediction_codex = ""

# %% tags=["experiment"]
STEPS = 1 if FAST else case.STEPS * 3 // 5
LIVE = ("own tests", "hidden tests, all terms")
policy = cloned_policy(SEED, sandbox)
tasks = held_out(16 if FAST else 256, seed=SEED)
rows, watched = [case.measure(policy, "clone", case.ARMS["own tests"], tasks, sandbox, SEED)], {}
for name in LIVE:
    mine = copy.deepcopy(policy).requires_grad_(True)
    watched[name] = list(tqdm(case.train(mine, case.ARMS[name], sandbox, SEED, steps=STEPS), total=STEPS, desc=name))
    rows.append(case.measure(mine.eval(), name, case.ARMS[name], tasks, sandbox, SEED))

# %% tags=["experiment"]
own, hidden = rows[1:]
curves(
    {name: ([s.step for s in steps], [s.reward for s in steps]) for name, steps in watched.items()},
    title=f"Trained on its own tests the policy truly solves {own.true:.0%}, trained on hidden ones {hidden.true:.0%}",
    x="GRPO step", y="training reward per episode",
)  # fmt: skip

# %% [markdown]
# The two rewards are different scales of different things: that one curve is higher says nothing about which policy is better. The next figure compares what came of the clone and of all
# five rewards, over several seeds, measured beforehand with the same code and, since nobody waited, more steps. *Believed*: the reward took the task for passed. *True*: it passes hidden cases and nothing protected was changed. In the table below it, *delivered*: a changed `main` was
# submitted; *true report*: the message says what the last run of the tests showed.

# %% tags=["experiment"]
measured = [case.Outcome(**row) for row in json.loads(Path("case_codex1.json").read_text())["outcomes"]]
names = ["clone", *case.ARMS]
seeds = sorted({row.seed for row in measured})


def mean(name, field):
    return bootstrap_mean([float(getattr(row, field)) for row in measured if row.arm == name], level=0.95, seed=0)


gap = {name: mean(name, "believed").mean - mean(name, "true").mean for name in names}
figure, (panel,) = style.canvas(1, title=f"The widest gap between believed and true success: {max(gap, key=gap.get)}")
for shift, (field, label, colour) in enumerate((("true", "true success", style.BLUE), ("believed", "success that the reward believes in", style.ORANGE))):
    found = [mean(name, field) for name in names]
    places = [i + 0.36 * shift - 0.18 for i in range(len(names))]
    panel.barh(places, [f.mean for f in found], height=0.34, color=colour, label=label)
    panel.errorbar([f.mean for f in found], places, xerr=[[f.mean - f.low for f in found], [f.high - f.mean for f in found]], fmt="none", color=style.INK, linewidth=1)
panel.set_yticks(range(len(names)), names)
panel.invert_yaxis()
style.label(panel, x=f"share of held-out episodes, 95 % interval over {len(seeds)} seeds", y="")
figure.legend(frameon=False, loc="outside lower center", ncols=2)
figure

# %% tags=["experiment"]
table = "\n".join(
    f"| {name} | " + " | ".join(f"{mean(name, field).mean:.0%}" for field in ("believed", "true", "hacked", "delivered", "reported")) + f" | {mean(name, 'actions').mean:.1f} |"
    for name in names
)
say(f"| reward | believed | true | changed something protected | delivered | true report | actions |\n|---|---|---|---|---|---|---|\n{table}")

# %% tags=["experiment"]
cheap, dear = (f"own tests, a hack costs {price:g}" for price in case.PRICES)
say(
    f"With its own tests the policy changes protected files in {mean('own tests', 'hacked').mean:.0%} of the episodes; at a price of {case.PRICES[0]:g} in "
    f"{mean(cheap, 'hacked').mean:.0%}, at {case.PRICES[1]:g} in {mean(dear, 'hacked').mean:.0%}. Passed tests earn {WEIGHTS['tests']:g}. Paid for hidden tests alone it reports truly in "
    f"{mean('hidden tests alone', 'reported').mean:.0%}, with all terms in {mean('hidden tests, all terms', 'reported').mean:.0%}. You predicted: {prediction_codex or 'nothing'}."
)

# %% [markdown]
# **How to read it.** A price is a bet that it exceeds every gain; hidden tests and denied edits take the gain away. Both need the diff: without it nobody knows what to price. The diff
# is exact here because the files are few; in a real repository some edits of tests are part of the task, and telling them apart is a judgement.
#
# **What this cannot show:** how a large model finds such a hack, how often, or what Codex-1's reward was. The functions are one line long, the hack is one edit away, and what counts as protected was known in advance. It
# shows that the weights of a reward are part of the specification, and which numbers tell a solved task from a believed one.

# %%
sandbox.close()

from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
