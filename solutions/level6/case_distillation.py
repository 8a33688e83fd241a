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
# A large model is trained by RL until it reasons; smaller ones are then fine-tuned on what it wrote. DeepSeek did so with R1: dense models, among them one of 32 and one of 70 billion weights, are said to reason without significant degradation, and so finding how to reason is separated from using it **[D]**.
# Our source does not say how many solutions were copied, how they were chosen, or what RL on the small models would have given for the same operations **[U]**.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# A solution with all its steps, written to be copied, is called a **trace**.
#
# **You will see** a student learn from a teacher, from itself and by RL, each for the same number of operations; which of these a weak student can use; and how much depends on what the checker looks at.
# **You need** levels 3 and 6. There is nothing to hand in. A miniature, no reproduction.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %%
import json
from pathlib import Path

from tqdm.auto import tqdm

from course.accounting.costs import sampling_flops, training_flops
from course.cases import distillation as case
from course.evidence.intervals import bootstrap_mean
from course.figures import say, style
from course.tasks import arithmetic as sums

# %% [markdown]
# ## Sums in steps, a bad habit, and two checkers
#
# A prompt is a sum, a solution writes every intermediate total. All policies begin by imitating a solver with a habit: where much is to be added it mostly adds one too few. So the habit is in the *likeliest* solution too, and taking the likeliest token each time does not help. Once its total is wrong, the solver
# sometimes corrects it in silence: then the answer is right, and two steps are wrong.
#
# A trace can be **verified** in two ways. The **answer checker** compares the last total. The **step checker** reads every step; for sums that is as easy, for a proof in words it is not.

# %% tags=["experiment"]
shown = sums.responses(case.problems(1000, "shown"), case.SOLVER, 0)
said = case.checked(shown)
odd = next(i for i, one in enumerate(said) if one.outcome and not one.valid)
say(
    f"The solver adds one too few in {case.SOLVER.slip:.0%} of the steps in which {case.LARGE} or more is due.\n\n"
    f"Right answer, wrong steps: `{sums.text(shown.prompt(odd))}` `{sums.text(shown.response(odd))}`\n\n"
    f"Of its solutions {sum(one.outcome for one in said) / len(said):.0%} have the right answer, {sum(one.valid for one in said) / len(said):.0%} right steps throughout. "
    f"{len(case.TRAINING)} problems are for training, {len(case.HELD_OUT)} are held out, none of them a training problem in another order."
)

# %% [markdown]
# ## A teacher and two students
#
# The teacher reads the solver's solutions and is then trained by GRPO with a reward of 1 for a right answer. The students are smaller. They differ in one thing only: for how long they have read the solver.
#
# Three shares of the solutions to held-out problems are measured: right answers and right steps as the policy samples, and right steps of the likeliest solution (*greedy*).

# %% tags=["experiment"]
recipe = case.Recipe(teacher=2, teacher_rl=1, students={"weak": 1, "able": 2}, rl=2, asked=16) if FAST else case.Recipe()
begun, teacher, students = case.prepared(SEED, recipe, watch=tqdm)
policies = {"teacher before RL": begun, "teacher": teacher, **{f"{name} student": policy for name, policy in students.items()}}
before = {name: case.quality(policy, SEED) for name, policy in policies.items()}
say(
    "| policy | weights | right answer | every step right | greedy |\n|---|---|---|---|---|\n"
    + "\n".join(
        f"| {name} | {sum(p.numel() for p in policies[name].parameters()):,} | {found.answer:.0%} | {found.steps:.0%} | {found.greedy:.0%} |" for name, found in before.items()
    )
    + f"\n\nThe students have read {' and '.join(f'{steps} batches of {case.ROWS} solutions ({name})' for name, steps in recipe.students.items())}."
)

# %% [markdown]
# ## The same operations, four ways
#
# **RL on the student**: it answers a few problems several times, each right answer is rewarded, it takes a step; and so on. **The teacher's traces**: the teacher answers many problems, what has a right answer is kept, and the student is fine-tuned on that. Two controls: **its own traces**, chosen in the same way, in
# which there is no teacher; and **reading the solver on**, in which nothing is chosen at all.
#
# What is equal is the number of operations of drawing and of forward and backward passes, by level 6's formulas for solutions of full length. Not counted are checking, the frozen reference's pass (its price is zero here), and what teacher and students have cost before. A teacher's trace takes more operations
# to draw than the student's own, so fewer are left for learning from it. Learning rates were chosen on this seed, one for RL and one for fine-tuning, from three each; they are the same for both students.
#
# **Predict before you run:** which arm is best for the weak student, and which for the able one?

# %%
prediction = ""

# %% tags=["experiment"]
READ, RL, OWN, TAUGHT, RL_STEPS, OWN_STEPS, TAUGHT_STEPS = case.ARMS
after = {}
for start, student in students.items():
    for name in (READ, RL, OWN, TAUGHT):
        policy, kept = case.learned(student, teacher, case.ARMS[name], SEED, recipe, watch=tqdm, name=f"{start}: {name}")
        after[start, name] = case.quality(policy, SEED), kept


def row(start, name):
    found, kept = after[start, name]
    passes = "" if not kept else f"{case.clone_steps((teacher if name == TAUGHT else students[start]).config, recipe) * case.ROWS / kept:.0f}"
    return f"| {start} | {name} | {'' if kept is None else kept} | {passes} | {found.answer:.0%} | {found.steps:.0%} | {found.greedy:.0%} |"


dearer = sampling_flops(case.TEACHER, *case.LENGTHS) / sampling_flops(case.STUDENT, *case.LENGTHS)
say(
    f"{case.rl_flops(recipe.rl) / 1e9:.0f} billion operations each: {recipe.rl} steps of RL with {case.GROUPS} problems and {case.CONFIG.group_size} solutions to each, or {case.clone_steps(None, recipe)} steps of reading on, "
    f"or {case.clone_steps(case.STUDENT, recipe)} on its own traces, or {case.clone_steps(case.TEACHER, recipe)} on the teacher's, of which each takes {dearer:.1f} times the operations to draw. {recipe.asked} problems were answered {case.TRIES} times for them.\n\n"
    "| student | learns from | traces kept | read how often | right answer | every step right | greedy |\n|---|---|---|---|---|---|---|\n"
    + "\n".join(
        "\n".join([f"| {start} | nothing yet | | | {b.answer:.0%} | {b.steps:.0%} | {b.greedy:.0%} |", *(row(start, name) for name in (READ, RL, OWN, TAUGHT))])
        for start, b in ((start, before[f"{start} student"]) for start in students)
    )
    + f"\n\nYou predicted: {prediction or 'nothing'}."
)

# %% [markdown]
# **How to read it.** Reading on teaches the habit better, and the habit is what is wrong. RL makes more frequent what is rewarded among the things a policy already does **[I]**: compare, for the weak student, its right answers with its right steps before and after. A teacher's trace shows steps that the weak student hardly ever draws.
#
# ## Five seeds, and the other checker
#
# Measured beforehand with the same code, on seeds that chose nothing, with three arms more, in which every *step* is checked: RL, the student's own traces, and the teacher's.
#
# **Predict before you look:** what is worth more to the able student, a larger policy's traces with checked answers, or its own with checked steps?

# %%
prediction_steps = ""

# %% tags=["experiment"]
recorded = json.loads(Path("case_distillation.json").read_text())["outcomes"]


def share(start, name, what="steps"):
    """Of one student in one arm, seed by seed; name None: before."""
    if name is None:
        return [seed["before"][start][what] for seed in recorded]
    return [line["after"][what] for seed in recorded for line in seed["arms"] if (line["start"], line["arm"]) == (start, name)]


def mean(start, name, what="steps"):
    return sum(share(start, name, what)) / len(recorded)


figure, panels = style.canvas(
    2, height=4.4,
    title=f"Answers checked, a weak student gets to {mean('weak', TAUGHT):.0%} from a teacher and to {mean('weak', OWN):.0%} from itself; steps checked, to {mean('weak', TAUGHT_STEPS):.0%} and {mean('weak', OWN_STEPS):.0%}",
)  # fmt: skip
LINES = (None, *case.ARMS)
for panel, start in zip(panels, ("weak", "able")):
    for place, name in enumerate(LINES):
        check = None if name is None else case.ARMS[name].check
        panel.barh(place, mean(start, name), height=0.62, color={None: style.GREY, "answer": style.BLUE, "steps": style.ORANGE}[check])
        panel.plot(share(start, name), [place] * len(recorded), "o", color=style.INK, markersize=3, label="sampled, each seed" if name is None else None)
        panel.plot(mean(start, name, "greedy"), place, "D", color="white", markeredgecolor=style.INK, markersize=6, label="greedy, mean" if name is None else None)
    panel.set_yticks(range(len(LINES)), ["before", *case.ARMS] if start == "weak" else [])
    panel.invert_yaxis()
    panel.set_xlim(0, 1)
    style.label(panel, x="share of solutions with every step right", y="", title=f"{start} student")
panels[0].legend(loc="upper right", frameon=False, fontsize=8)
figure

# %% tags=["experiment"]
def against(start, one, other):
    gap = bootstrap_mean([a - b for a, b in zip(share(start, one), share(start, other))], level=0.95, seed=0)
    return f"| {start} | {one} | {other} | {gap.mean:+.0%} [{gap.low:+.0%}, {gap.high:+.0%}] |"


SAME_CHECK = ((TAUGHT, OWN), (TAUGHT, RL), (TAUGHT_STEPS, OWN_STEPS), (TAUGHT_STEPS, RL_STEPS))
SAME_AUTHOR = ((OWN_STEPS, OWN), (TAUGHT_STEPS, TAUGHT), (RL_STEPS, RL))
ACROSS = ((OWN_STEPS, TAUGHT),)
full = case.Recipe()
reading = training_flops(case.TEACHER, sum(case.LENGTHS)) * case.ROWS * full.teacher
arm = case.rl_flops(full.rl)
say(
    "| student | arm | against | difference in solutions with every step right, sampled (95 % over seeds) |\n|---|---|---|---|\n"
    + "\n".join(against(start, *pair) for start in ("weak", "able") for pair in (*SAME_CHECK, *SAME_AUTHOR, *ACROSS))
    + f"\n\nThe teacher has every step right in {sum(seed['teacher']['steps'] for seed in recorded) / len(recorded):.0%}. Its reading took {reading / arm:.0f} times the operations of one arm, its RL {case.rl_flops(full.teacher_rl, case.TEACHER) / arm:.1f} times. "
    + f"You predicted: {prediction_steps or 'nothing'}."
)

# %% [markdown]
# **What it says.** Rows with the same checker compare authors, rows with the same author compare checkers. With answers checked a larger author helps, and the weak student most: its own right answers rest on wrong steps more often than the teacher's. A better checker on the student's *own* traces is worth more than the larger
# author, to either student; and once steps are checked, who wrote them makes no difference that five seeds would show. "Fine-tuned on verified traces of our RL model" says neither what was checked nor what the same choice among the student's own traces would have given.
#
# **What this cannot show:** what a large model gains. Here the teacher and the students know the same words and were shown the same solver; a real teacher can have skills that no choice among the student's own samples brings out **[I]**. The step checker is a program that is never wrong, which exists for sums and hardly for prose.
# Operations are equal, data are not: where few traces were kept, each was read many times. And RL has only so many steps here: that it is behind is a statement about this reward, these rates and this number of steps. Look at the greedy column, in which it often is not.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
