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
# DeepSeek fine-tuned smaller models, among them one of 32 and one of 70 billion weights, on what its RL-trained model R1 wrote, and they are said to reason without significant degradation **[D]**. If that holds, finding how to reason and using it can be separated: the search is paid for once **[I]**.
# The survey we use does not say how many solutions were copied, how they were chosen, or what RL on the small models would have given for the same operations **[U]**; DeepSeek's own report, which we have not used, may.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# A solution with all its steps, from which a policy is to learn, is called a **trace**.
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
from course.figures.learning import curves
from course.tasks import arithmetic as sums

# %% [markdown]
# ## Sums in steps, a bad habit, and two checkers
#
# A prompt is a sum, a solution writes every intermediate total. All policies begin by imitating a solver with a habit: where much is to be added it mostly adds one too few. So the habit is in the *likeliest* solution too, and a policy that imitates well does worse, not better, when it takes the likeliest token each time. Once its total is wrong, the solver
# sometimes corrects it in silence: then the answer can be right although at least two steps are wrong.
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
# The able student and the teacher read less here than in the recorded seeds below: the notebook is to run in two minutes.
recipe = case.Recipe(teacher=2, teacher_rl=1, students={"weak": 1, "able": 2}, rl=2, asked=16) if FAST else case.Recipe(teacher=600, students={"weak": 400, "able": 900})
watched = {}


def watch(steps, *, total, desc):
    """A bar, and the records for a figure."""
    watched[desc] = []
    for step in tqdm(steps, total=total, desc=desc):
        watched[desc].append(step)
        yield step


begun, teacher, students = case.prepared(SEED, recipe, watch=watch)
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
# which there is no teacher; and **reading the solver on**, in which nothing is chosen and nothing is new.
#
# What is equal is the number of operations of drawing and of forward and backward passes, by level 6's formulas for solutions of full length. Not counted are checking, the frozen reference's pass (the KL has weight 0 here, so nobody needs it), and what teacher and students have cost before. A teacher's trace takes more
# operations to draw than the student's own, so fewer are left for learning from it. The learning rates, one for RL and one for fine-tuning, are the middle ones of three each that were looked at on the seed that is run here. So this table illustrates; the five seeds below are the evidence.
#
# **Predict before you run:** which arm is best for the weak student, and which for the able one?

# %%
prediction = ""

# %% tags=["experiment"]
READ, RL, OWN, TAUGHT, RL_STEPS, OWN_STEPS, TAUGHT_STEPS = case.ARMS
after = {}
for start, student in students.items():
    for name in (READ, RL, OWN, TAUGHT):
        policy, kept = case.learned(student, teacher, case.ARMS[name], SEED, recipe, watch=watch, name=f"{start}: {name}")
        after[start, name] = case.quality(policy, SEED), kept


def row(start, name):
    found, kept = after[start, name]
    passes = "" if not kept else f"{case.clone_steps((teacher if name == TAUGHT else students[start]).config, recipe) * case.ROWS / kept:.0f}"
    return f"| {start} | {name} | {'' if kept is None else kept} | {passes} | {found.answer:.0%} | {found.steps:.0%} | {found.greedy:.0%} |"


dearer = sampling_flops(case.TEACHER, *case.LENGTHS) / sampling_flops(case.STUDENT, *case.LENGTHS)
say(
    f"{case.rl_flops(recipe.rl) / 1e9:.0f} billion operations each: {recipe.rl} steps of RL with {case.GROUPS} problems and {case.CONFIG.group_size} solutions to each, or {case.clone_steps(None, recipe)} steps of reading on, "
    f"or {case.clone_steps(case.STUDENT, recipe)} on its own traces, or {case.clone_steps(case.TEACHER, recipe)} on the teacher's; one of those takes {dearer:.1f} times as many operations to draw. For either kind {recipe.asked} problems were answered {case.TRIES} times. "
    f"Reading on goes over the same {case.WRITTEN} solutions of the solver again.\n\n"
    "| student | learns from | traces kept | times each was read, mean | right answer | every step right | greedy |\n|---|---|---|---|---|---|---|\n"
    + "\n".join(
        "\n".join([f"| {start} | nothing yet | | | {b.answer:.0%} | {b.steps:.0%} | {b.greedy:.0%} |", *(row(start, name) for name in (READ, RL, OWN, TAUGHT))])
        for start, b in ((start, before[f"{start} student"]) for start in students)
    )
    + f"\n\nYou predicted: {prediction or 'nothing'}."
)

# %% tags=["experiment"]
rewards = {"teacher": watched["RL on the teacher"], **{f"{start} student": watched[f"{start}: {RL}"] for start in students}}
LAST = min(10, recipe.rl)


def level(name, part):
    """Mean reward of the first or the last steps."""
    return sum(step.reward for step in part(rewards[name])) / len(part(rewards[name]))


ends = {name: (level(name, lambda steps: steps[:LAST]), level(name, lambda steps: steps[-LAST:])) for name in rewards}
curves(
    {name: ([step.step for step in steps], [step.reward for step in steps]) for name, steps in rewards.items()},
    title=f"RL on answers: the able student's go from {ends['able student'][0]:.0%} to {ends['able student'][1]:.0%} right, the weak one's from {ends['weak student'][0]:.0%} to {ends['weak student'][1]:.0%}",
    x="RL step", y=f"right answers among {case.GROUPS * case.CONFIG.group_size} (share)",
)  # fmt: skip

# %% [markdown]
# **How to read it.** Reading on helps the weak student a little, which had not finished learning to add, and leaves the able one where the solver's habit holds it. RL makes more frequent what is rewarded among the things a policy already does **[I]**, and a right answer can be reached by right steps or by two wrong ones: look which of
# the two grew in the weak student here. The answer checker cannot tell them apart in its own traces either; the teacher's contain fewer lucky ones. The next section tests that.
#
# ## Five seeds, and the other checker
#
# Measured beforehand with the same code, with more reading for the teacher and the able student, on other seeds than the one on which rates were looked at, and with three arms more, in which every *step* is checked: RL, the student's own traces, and the teacher's. The teacher had its RL on checked answers in every arm; only the choice among its traces changes.
#
# **Predict before you look:** what is worth more to the able student, the teacher's traces with checked answers, or its own with checked steps?

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
    2, height=4.6,
    title=f"A weak student with {mean('weak', None):.0%} right solutions gets to {mean('weak', OWN):.0%} by its own traces and to {mean('weak', TAUGHT):.0%} by a teacher's if answers are checked; if steps are, to about {mean('weak', OWN_STEPS):.0%} by either",
)  # fmt: skip
LINES = (None, *case.ARMS)
COLOURS = {None: style.GREY, "answer": style.BLUE, "steps": style.ORANGE}
teacher_steps = sum(seed["teacher"]["steps"] for seed in recorded) / len(recorded)
for panel, start in zip(panels, ("weak", "able")):
    for place, name in enumerate(LINES):
        check = None if name is None else case.ARMS[name].check
        label = {None: "nothing checked", "answer": "answers checked", "steps": "steps checked"}[check] if place in (0, 2, 5) else None
        panel.barh(place, mean(start, name), height=0.62, color=COLOURS[check], alpha=0.55, label=label)
        panel.plot(share(start, name), [place + 0.12] * len(recorded), "o", color=style.INK, markersize=3.5, label="sampled, each seed" if place == 0 else None)
        panel.plot(share(start, name, "greedy"), [place - 0.12] * len(recorded), "D", color="white", markeredgecolor=style.INK, markersize=4, label="greedy, each seed" if place == 0 else None)
    panel.axvline(teacher_steps, color=style.INK, linestyle=":", linewidth=1, label="the teacher, sampled")
    panel.set_yticks(range(len(LINES)), ["before", *case.ARMS] if start == "weak" else [])
    panel.invert_yaxis()
    panel.set_xlim(0, 1)
    panel.xaxis.set_major_formatter("{x:.0%}")
    style.label(panel, x="solutions with every step right (bars: mean, sampled)", y="", title=f"{start} student")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=8)
figure

# %% tags=["experiment"]
def gap(start, one, other, what):
    found = bootstrap_mean([a - b for a, b in zip(share(start, one, what), share(start, other, what))], level=0.95, seed=0)
    return f"{found.mean:+.0%} [{found.low:+.0%}, {found.high:+.0%}]"


def lucky(answers, steps):
    """Of the right answers, those that stand on a wrong step."""
    return 1 - sum(steps) / sum(answers)


GROUPED = {
    "same checker, other author": ((TAUGHT, OWN), (TAUGHT_STEPS, OWN_STEPS)),
    "same author, other checker": ((OWN_STEPS, OWN), (TAUGHT_STEPS, TAUGHT)),
    "better checker or teacher": ((OWN_STEPS, TAUGHT),),
    "RL against traces": ((RL, OWN), (RL, TAUGHT), (RL_STEPS, OWN_STEPS), (RL_STEPS, TAUGHT_STEPS)),
}
full = case.Recipe()
arm = case.rl_flops(full.rl)
reading = {name: training_flops(config, sum(case.LENGTHS)) * case.ROWS * steps / arm for name, config, steps in (("teacher", case.TEACHER, full.teacher), *((name, case.STUDENT, steps) for name, steps in full.students.items()))}
of_teacher = {what: [seed["teacher"][what] for seed in recorded] for what in ("answer", "steps")}
say(
    "| | student | arm | against | every step right, sampled | greedy |\n|---|---|---|---|---|---|\n"
    + "\n".join(f"| {group} | {start} | {one} | {other} | {gap(start, one, other, 'steps')} | {gap(start, one, other, 'greedy')} |" for group, pairs in GROUPED.items() for one, other in pairs for start in ("weak", "able"))
    + f"\n\nDifferences with 95 % intervals over {len(recorded)} seeds, which are somewhat too narrow for so few; {2 * sum(map(len, GROUPED.values()))} rows are shown, so one or two may be off by chance.\n\n"
    + f"Of right answers, {lucky(share('weak', None, 'answer'), share('weak', None)):.0%} stand on a wrong step for the weak student before it learns, {lucky(share('able', None, 'answer'), share('able', None)):.0%} for the able one, {lucky(of_teacher['answer'], of_teacher['steps']):.0%} for the teacher. "
    + f"The teacher has every step right in {teacher_steps:.0%} of its sampled solutions; before its RL in {sum(seed['before']['teacher']['steps'] for seed in recorded) / len(recorded):.0%}, the able student in {mean('able', None):.0%}.\n\n"
    + f"What came before, in operations of one arm: {reading['weak']:.1f} for the weak student, {reading['able']:.1f} for the able one, {reading['teacher']:.0f} and {case.rl_flops(full.teacher_rl, case.TEACHER) / arm:.1f} for the teacher's reading and its RL. You predicted: {prediction_steps or 'nothing'}."
)

# %% [markdown]
# **What it says.** With answers checked, the teacher's traces are worth more to either student than its own. What is better about the teacher is its RL: before, it was no better than the able student, which a teacher of its own size could have been too. That fewer of its right answers are lucky is probably why its traces help **[I]**.
# With steps checked, who wrote the traces makes no difference that five seeds would show, although the teacher gave several times as many. And a better checker on the student's *own* traces is worth more, as the students sample, than the teacher with the answer checker. A sentence such as "fine-tuned on verified traces", without more, says neither what was checked
# nor what the same choice among the student's own traces would have given.
#
# RL is not simply behind. The able student, with answers checked, gains as much by RL as from the teacher, and more than from its own traces. For the weak student RL on answers is a matter of luck: see how far its seeds lie apart.
#
# **What this cannot show:** what a large model gains. Here the teacher and the students know the same words and were shown the same solver; a real teacher can have skills that no choice among the student's own samples brings out **[I]**. The step checker is a program that is never wrong, which exists for sums and hardly for prose.
# A policy that has only become surer scores better as it samples: the greedy column takes that part away, and some differences with it. Operations are equal, data are not: where few traces were kept, each was read many times. The weak student is one that stopped reading early, and a teacher for one student would cost more than all arms together.
# That RL is behind where it is says something about this reward, these rates and this number of steps.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
