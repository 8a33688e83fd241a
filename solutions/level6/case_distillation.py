# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Case · Distillation of reasoning, small
#
# A large model finds out by RL how to reason; smaller ones are then fine-tuned on what it wrote. DeepSeek-R1's authors did this with dense models of 32 and 70 billion weights, which are said to keep most of the reasoning **[D]**. Finding is separated from using: the costly search is done
# once, and its result is copied by supervised fine-tuning. How many traces, chosen how, and what RL on the small model would have given for the same operations, our source does not say **[U]**.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will see** a student learn from a teacher, from itself and by RL, each for the same number of operations; which of them a weak student can use; and what the word "verified" hides.
# **You need** levels 3 and 6. There is nothing to hand in. A miniature, no reproduction.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %%
import json
from pathlib import Path

from tqdm.auto import tqdm

from course.accounting.costs import training_flops
from course.cases import distillation as case
from course.evidence.intervals import bootstrap_mean
from course.figures import say, style
from course.tasks import arithmetic as sums

# %% [markdown]
# ## Sums in steps, and two checkers
#
# Level 3's task. A prompt is a sum of four numbers; a solution writes every intermediate total. All policies begin by imitating a solver that slips in a quarter of its steps, and that sometimes slips back: then two steps are wrong and the answer is right.
#
# So a solution can be checked in two ways. The **answer checker** compares the last total. The **step checker** reads every step, which for sums is as easy, and for a proof in words is not.

# %% tags=["experiment"]
shown = sums.responses(case.problems(400, "shown"), sums.SLOPPY, 0)
said = case.checked(shown)
odd = next(i for i, one in enumerate(said) if one.outcome and not one.valid)
say(
    f"Right answer, wrong steps: `{sums.text(shown.prompt(odd))}` `{sums.text(shown.response(odd))}`\n\n"
    f"Of {len(said)} solutions of the solver {sum(one.outcome for one in said) / len(said):.0%} have the right answer, {sum(one.valid for one in said) / len(said):.0%} have right steps throughout."
)

# %% [markdown]
# ## A teacher and two students
#
# The teacher has a width of 64. It reads the solver's solutions and is then trained by GRPO with a reward of 1 for a right answer. The students have a width of 32. They differ in one thing only: for how long they have read the solver. All numbers below are about 256 problems that nobody was trained on, with two
# sampled solutions each.

# %% tags=["experiment"]
TEACHER_STEPS, TEACHER_RL = (2, 1) if FAST else (case.TEACHER_STEPS, case.TEACHER_RL)
STARTS = {name: 2 for name in case.STARTS} if FAST else case.STARTS
begun = case.beginner(case.TEACHER, steps=TEACHER_STEPS, lr=case.TEACHER_LR, seed=SEED)
teacher, loop = case.reinforced(begun, "answer", steps=TEACHER_RL, seed=SEED)
for _ in tqdm(loop, total=TEACHER_RL, desc="RL on the teacher"):
    pass
students = {name: case.beginner(case.STUDENT, steps=steps, lr=case.START_LR, seed=SEED) for name, steps in STARTS.items()}
policies = {"teacher before RL": begun, "teacher": teacher, **{f"{name} student": policy for name, policy in students.items()}}
measured = {name: case.quality(policy, SEED) for name, policy in policies.items()}
say(
    "| policy | weights | right answer | every step right |\n|---|---|---|---|\n"
    + "\n".join(f"| {name} | {sum(p.numel() for p in policies[name].parameters()):,} | {found.answer:.0%} | {found.steps:.0%} |" for name, found in measured.items())
)

# %% [markdown]
# ## The same operations, three ways
#
# **RL on the student**: it draws eight solutions to each of 16 problems, each right one is rewarded, it takes a step; and so on. **The teacher's traces**: the teacher answers 1024 problems twice, what has a right answer is kept, and the student is fine-tuned on that. **Its own traces**: the same, but the student wrote
# them. This last arm is the control that tells apart what the *teacher* contributes and what *choosing* does.
#
# Operations are counted, not time: drawing, and forward and backward passes, by level 6's formulas, checking for free. The teacher's solutions are four times as dear as the student's, so fewer steps are left for learning from them. What the teacher's own training cost is not in it: it is paid once, for all students.
#
# **Predict before you run:** which arm is best for the weak student, and which for the able one?

# %%
prediction = ""

# %% tags=["experiment"]
RL_STEPS = 1 if FAST else case.RL_STEPS
LIVE = ("RL, answers checked", "teacher's traces, answers checked", "own traces, answers checked")
after, kept = {}, {}
for start, student in students.items():
    for name in LIVE:
        arm = case.ARMS[name]
        if arm.source == "RL":
            policy, loop = case.reinforced(student, arm.check, steps=RL_STEPS, seed=SEED)
            for _ in tqdm(loop, total=RL_STEPS, desc=f"{start}: {name}"):
                pass
        else:
            source = teacher if arm.source == "teacher" else student
            policy, kept[start, name] = case.distilled(student, source, arm.check, steps=2 if FAST else case.clone_steps(source.config), seed=SEED)
        after[start, name] = case.quality(policy.eval(), SEED)
say(
    f"{case.rl_flops(case.RL_STEPS) / 1e9:.0f} thousand million operations for each: {case.RL_STEPS} steps of RL, or {case.clone_steps(case.TEACHER)} steps of fine-tuning on the teacher's traces, or {case.clone_steps(case.STUDENT)} on its own.\n\n"
    "| student | learns from | traces kept | right answer | every step right |\n|---|---|---|---|---|\n"
    + "\n".join(
        (f"| {start} | nothing yet | | {measured[f'{start} student'].answer:.0%} | {measured[f'{start} student'].steps:.0%} |\n" if name == LIVE[0] else "")
        + f"| {start} | {name} | {kept.get((start, name), '')} | {found.answer:.0%} | {found.steps:.0%} |"
        for (start, name), found in after.items()
    )
    + f"\n\nYou predicted: {prediction or 'nothing'}."
)

# %% [markdown]
# **How to read it.** RL can only make more frequent what a policy already does now and then. The weak student's right answers mostly stand on wrong steps, and a reward for the answer makes these steps more frequent. What the teacher wrote shows it steps that it would hardly have drawn itself.
# The able student gets better in every arm.
#
# ## Five seeds, and the other checker
#
# Measured beforehand with the same code, on seeds that chose nothing, with two arms more: RL and the student's own traces with every *step* checked. Nobody is needed for these but a better checker.
#
# **Predict before you look:** what is worth more to the able student, a larger policy's traces with checked answers, or its own with checked steps?

# %%
prediction_steps = ""

# %% tags=["experiment"]
found = json.loads(Path("case_distillation.json").read_text())["outcomes"]


def steps_right(start, name):
    """Share of solutions with every step right, seed by seed; name None: before."""
    if name is None:
        return [seed["before"][start]["steps"] for seed in found]
    return [row["after"]["steps"] for seed in found for row in seed["arms"] if (row["start"], row["arm"]) == (start, name)]


ROWS = (None, *case.ARMS)
mean = {(start, name): sum(steps_right(start, name)) / len(found) for start in case.STARTS for name in ROWS}
RL, TAUGHT, OWN, RL_CHECKED, OWN_CHECKED = case.ARMS
figure, panels = style.canvas(
    2, height=4.0,
    title=f"A weak student learns from a teacher ({mean['weak', TAUGHT]:.0%} right) and not by RL ({mean['weak', RL]:.0%}); an able one learns as well from itself, if steps are checked ({mean['able', OWN_CHECKED]:.0%} against {mean['able', TAUGHT]:.0%})",
)  # fmt: skip
for panel, start in zip(panels, case.STARTS):
    for place, name in enumerate(ROWS):
        colour = style.GREY if name is None else style.ORANGE if case.ARMS[name].check == "steps" else style.BLUE
        panel.barh(place, mean[start, name], height=0.6, color=colour)
        panel.plot(steps_right(start, name), [place] * len(found), "o", color=style.INK, markersize=3)
    panel.set_yticks(range(len(ROWS)), ["before", *case.ARMS] if start == "weak" else [])
    panel.invert_yaxis()
    panel.set_xlim(0, 1)
    style.label(panel, x="share of solutions with every step right", y="", title=f"{start} student")
figure

# %% tags=["experiment"]
def against(start, one, other):
    gap = bootstrap_mean([a - b for a, b in zip(steps_right(start, one), steps_right(start, other))], level=0.95, seed=0)
    return f"| {start} | {one} | {other} | {gap.mean:+.0%} [{gap.low:+.0%}, {gap.high:+.0%}] |"


taught = sum(seed["teacher"]["steps"] for seed in found) / len(found)
cost = training_flops(case.TEACHER, 2 * case.TERMS + 1 + case.SAMPLING.max_new_tokens) * case.ROWS * case.TEACHER_STEPS + case.rl_flops(case.TEACHER_RL, case.TEACHER)
say(
    "| student | arm | against | difference in solutions with every step right, 95 % over seeds |\n|---|---|---|---|\n"
    + "\n".join(against(start, one, other) for start in case.STARTS for one, other in ((TAUGHT, RL), (TAUGHT, OWN), (OWN_CHECKED, TAUGHT), (RL_CHECKED, RL)))
    + f"\n\nThe teacher itself has every step right in {taught:.0%}. Its own training took {cost / case.rl_flops(case.RL_STEPS):.0f} times the operations of one arm: with one student that is most of the bill. You predicted: {prediction_steps or 'nothing'}."
)

# %% [markdown]
# **What it says.** The two questions "who wrote the traces?" and "what was checked?" have separate answers, and a report that says "fine-tuned on verified traces of our RL model" gives neither the second nor the control. A teacher is worth most to a student that cannot draw a right solution itself. Where it can, the choice among its own
# solutions does as much, if the checker is good enough.
#
# **What this cannot show:** what a large model gains. Here the teacher and the students know the same words and were shown the same solver; a real teacher has skills that no choice among the student's own samples brings out **[I]**. The step checker is a program that is never wrong, which exists for sums and hardly for prose.
# Operations are equal, data are not: the teacher's arm keeps more traces than the student's. One learning rate for each kind of training was looked at on seed 0, for both students together; the weak student got no better by RL at any that we tried. "No RL for weak students" is a statement about these steps and this reward, not about RL.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
