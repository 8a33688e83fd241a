# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Case · Playhouse, small
#
# People watched an agent act in a house and pressed a key when it got nearer to what it had been told, another when it got further away. From such marks DeepMind's interactive agents
# (Abramson et al., 2022) learned a utility, and from the utility's changes a reward **[D]**. Here the house is a floor of four by four, and the watcher is a program whose delay and errors we set. A miniature, no reproduction.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will see** what reinforcement learning on a learned utility adds to cloning, what late or wrong marks do to it, what swapped instructions are for, and what actors that are behind
# cost with V-trace and without. **You need** the lab of this level. There is nothing to hand in.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %%
import copy
import json
from itertools import pairwise
from pathlib import Path

from tqdm.auto import tqdm

from course.cases import playhouse as case
from course.envs.grid import Room, grid_tasks, setter_left
from course.evidence.intervals import bootstrap_mean
from course.figures import say, style
from course.figures.learning import curves

# %% [markdown]
# ## The system, as published, and what stands for it here
#
# | Playhouse agents | here |
# |---|---|
# | a setter gives an instruction in a 3D house, a solver carries it out **[D]** | a setter moves a thing, says `go red ball`; the policy says `north`, `east`, .., `done` |
# | 5.1 million marks, positive or negative, on 364,690 episodes of five minutes **[D]** | a program presses on half of the actions that change the gold progress, a twentieth of them wrongly |
# | intertemporal Bradley-Terry: a mark says which of two prefixes is better **[D]** | the same loss, level 1's `intertemporal_loss` |
# | the utility starts from the cloned agent; cloning and contrastive losses stay, with equal weights **[D]** | from the clone's weights, with the cloning loss; no contrastive loss |
# | with probability 0.33 the instruction is swapped, and what was progress becomes a negative **[D]** | the same |
# | reward is the change of the utility from one prefix to the next **[D]** | the same, `potential_rewards` of level 5 |
# | cloning plus a distributed learner of the IMPALA kind, with V-trace **[D]** | `impala`: actors' weights are behind by a number of updates that we set |
# | learning starts after a replay of the setter's recorded history **[D]** | the same, checked step by step |
# | how long after the change people pressed, and how often they erred **[U]** | set: that is what a laboratory is for |
# | what limits the success that remains, perception or the utility **[U]** | nothing has to be perceived: every thing is seen with its bearing |

# %%
task = next(t for t in grid_tasks(40, SEED, pool="held_out") if t.horizon == 4)
room = Room.from_json(task.hidden["room"])
demonstration = case.demonstrated([task], SEED).records[0]
lines = "\n".join(f"| `{step.text}` | `{step.observation}` |" for step in demonstration.steps)
setter = ", ".join(f"`{tool}`" for tool, _ in task.hidden["setter"])
say(f"**The setter did:** {setter}, and said `{task.prompt}`. The policy reads (`e2n1` is two steps to the east and one to the north of it, `here` its own place): `{case.TOKENIZER.decode(demonstration.tokens[: demonstration.action_spans[0][0] - 2])}`\n\n| an expert does | and sees |\n|---|---|\n{lines}")

# %% [markdown]
# **The setter is replayed.** Before the policy acts, the setter's recorded actions are taken again in the same world, and each observation is compared with the recorded one: a history that does not
# replay is refused. The policy reads it in the user's turn and has no loss there. What cannot be replayed is a conversation: this setter answers no question **[D]**.

# %%
tasks = grid_tasks(32 if FAST else case.HELD_OUT, 0, pool="held_out")
moved = sum(setter_left(t).things != Room.from_json(t.hidden["room"]).things for t in tasks)
batch = case.demonstrated(tasks, SEED).batch
first = (batch.turn == 0).int().argmax(1)
before = sum(int(row[:start].sum()) for row, start in zip(batch.action_mask, first))
say(f"In {moved} of {len(tasks)} held-out rooms a thing stands elsewhere when the policy begins than when the setter did. Of the {int(first.sum())} tokens before the policies' first actions, {before} carry loss.")

# %% [markdown]
# ## One seed, live
#
# Clone, marks, utility, IMPALA: the same code as the measurement below, with a shorter clone and fewer updates.
#
# **Predict before you run:** (1) The clone imitates an expert that takes the wrong thing in a tenth of the episodes. Can learning from marks by a watcher that errs make it better than the expert? (2) The
# watcher presses two steps late: what becomes of the policy? (3) The utility never sees a swapped instruction: how does an episode that carried out `go red ball` look to it under `go blue box`?

# %%
prediction_playhouse = ""

# %% tags=["experiment"]
shown = case.demonstrations(SEED, 100 if FAST else 2000)
policy = case.cloned_policy(SEED, shown.batch, steps=(2, 2) if FAST else (200, 70))
# A clone of two steps does nothing that could be marked: the fast run looks at the expert in its place.
play = (lambda policy, tasks, **_: case.demonstrated(tasks, SEED)) if FAST else case.play
held = play(policy, tasks)
watched_tasks = grid_tasks(60 if FAST else case.WATCHED, SEED, pool="marks")
episodes = play(policy, watched_tasks, seed=SEED)
marked = case.watched(episodes, watched_tasks, case.Watcher(), SEED)
count = 2 if FAST else case.UTILITY_STEPS
for head, fitted in tqdm(case.utility_of(policy, marked, shown.batch, SEED, steps=count), total=count, desc="utility"):
    pass
unit = case.unit_of(head, episodes)
live = case.grounding(head, held, tasks, unit)
gains = [b > a for record, task in zip(held.records, tasks) for a, b in pairwise(case.progress(record, task)) if a != b]

# %% tags=["experiment"]
ACTIONS = 4
done = [i for i, record in enumerate(held.records) if record.evidence.decision == "right" and len(record.steps) == ACTIONS]
views = {"its own instruction": lambda i: case.marked(held.records[i], ()), "one about another thing there": lambda i: case.under_another(held.records[i], tasks[i])}
paths = {name: sum(case.prefixes(head, view(i)) for i in done) / len(done) / unit for name, view in views.items()}
curves(
    {name: (range(ACTIONS + 1), (path - path[0]).tolist()) for name, path in paths.items()},
    title=f"The end of a success has the lower utility under another instruction in {live.lowered:.0%} of the episodes",
    x=f"actions so far, {len(done)} successes of {ACTIONS} actions", y="mean utility since the beginning, in units",
)  # fmt: skip

# %% tags=["experiment"]
UPDATES = 1 if FAST else 24
trained = copy.deepcopy(policy).requires_grad_(True)
steps = list(tqdm(case.train(trained, head, unit, shown.batch, SEED, updates=UPDATES), total=UPDATES, desc="IMPALA"))
after = case.success(play(trained.eval(), tasks))
say(
    f"The clone carries out **{case.success(held):.0%}** of the held-out instructions, after {UPDATES} updates **{after:.0%}**; the expert {case.success(case.demonstrated(tasks, SEED)):.0%}. "
    f"{sum(len(e.marks) for e in marked)} marks on {len(marked)} episodes; the utility goes the right way on {live.agreement:.0%} of the actions that change the gold progress. "
    f"Of these {sum(gains) / len(gains):.0%} are gains: so often a utility would be right that always rises.{' (Run in short: the expert stands for the clone.)' if FAST else ''}"
)

# %% [markdown]
# ## Several seeds
#
# Measured beforehand with the same code and more of everything. Each seed has its own demonstrations, clone, marks, utilities and learners; the held-out tasks are the same.

# %% tags=["experiment"]
runs = json.loads(Path("case_playhouse.json").read_text())["outcomes"]
NAMES = {
    "expert": "the expert",
    "clone": "cloning alone",
    "usual": "cloning and RL",
    "two steps late": "RL, marks two steps late",
    "no swaps": "RL, no swapped instructions",
}


def mean(values):
    return bootstrap_mean([float(v) for v in values], level=0.95, seed=0)


def interval(values, form=".0%"):
    found = mean(values)
    return f"{found.mean:{form}} ({found.low:{form}} to {found.high:{form}})"


won = {name: mean([run["success"][name] for run in runs]) for name in NAMES}
figure, (panel,) = style.canvas(1, title=f"On the usual marks the policy does {won['usual'].mean:.0%}, on late ones {won['two steps late'].mean:.0%}")
panel.barh(range(len(NAMES)), [w.mean for w in won.values()], height=0.6, color=[style.GREY if n in ("expert", "clone") else style.BLUE for n in NAMES])
for run in runs:
    panel.plot([run["success"][name] for name in NAMES], range(len(NAMES)), "o", color=style.INK, markersize=3)
panel.set_yticks(range(len(NAMES)), list(NAMES.values()))
panel.invert_yaxis()
style.label(panel, x=f"held-out instructions carried out, mean; dots: {len(runs)} seeds", y="")
figure

# %% tags=["experiment"]
table = "\n".join(
    f"| {label} | {interval([run['success'][name] for run in runs])} | {interval([run['success'][name] / run['success']['expert'] for run in runs])} |"
    for name, label in NAMES.items()
)
say(f"| policy | success (95 % over seeds) | of the expert's success |\n|---|---|---|\n{table}")

# %% [markdown]
# **Two numbers that are easily confused.** The published agent succeeds in 89 %, which is 93 % of the human rate **[D]**. So people succeeded in about 0.89 / 0.93 = 96 %, and "93 %" is no success rate. The two
# columns above are these two numbers. Here the second could exceed 100 %: this expert misreads on purpose, and the
# marks were about the instruction, not about the expert.

# %% [markdown]
# ## What the marks have to be, and what the swaps do
#
# A *unit* is the root mean square change of the utility per action. *Agreement*: on held-out episodes of the clone, how often the utility changes the way the gold progress does; hold it against the share of gains above, which knows nothing. *Under the other instruction*: the gain of successful episodes, read under an instruction about another
# thing of the same room. *Lowered*: how often their end has the lower utility there.

# %% tags=["experiment"]
def row(name, label):
    found = [run["utilities"][name] for run in runs]
    cells = [interval([f["agreement"] for f in found]), *(interval([f[k] for f in found], ".1f") for k in ("own", "swapped")), interval([f["lowered"] for f in found])]
    return f"| {label} | " + " | ".join(cells) + " |"


rows = "\n".join(row(name, label) for name, label in (("usual", "usual marks"), ("a quarter wrong", "a quarter wrong"), ("two steps late", "two steps late"), ("no swaps", "usual marks, no swaps")))
say(f"| utility | agreement | gain, own instruction | gain, the other instruction | lowered |\n|---|---|---|---|---|\n{rows}")

# %% tags=["experiment"]
def lead(one, other):
    return interval([a - b for a, b in zip(one, other)], "+.2f")


def fit(name, key):
    return [run["utilities"][name][key] for run in runs]


def done_by(name):
    return [run["success"][name] for run in runs]


say(
    f"With swaps less without, per seed: gain under the other instruction **{lead(fit('usual', 'swapped'), fit('no swaps', 'swapped'))}**, agreement {lead(fit('usual', 'agreement'), fit('no swaps', 'agreement'))}, "
    f"success of the trained policy {lead(done_by('usual'), done_by('no swaps'))}. Late marks less the usual: agreement {lead(fit('two steps late', 'agreement'), fit('usual', 'agreement'))}, "
    f"success {lead(done_by('two steps late'), done_by('usual'))}; late marks less cloning alone {lead(done_by('two steps late'), done_by('clone'))}. The usual marks less the expert: {lead(done_by('usual'), done_by('expert'))}."
)

# %% [markdown]
# Wrong keys are noise: they cost marks, and their majority still points the right way. Lateness is bias: each press is about another step than the one it is taken for, and no number of marks removes it. Whoever
# collects marks must know the delay, and compare prefixes that lie further apart than it. 
#
# Swaps make the utility mean the instruction: without them an episode that carried out something else loses less by it, or even gains. They also take room from the other marks. Whether the policy is
# better for it is another question, and the interval above is the answer for this floor, where the marks on the clone's own wrong ends tell the instructions apart already. In a house with thousands of instructions,
# and marks on few of the wrong ones, the swaps have more to do **[I]**.

# %% [markdown]
# ## Actors that are behind

# %% tags=["experiment"]
def by_fives(key):
    """Mean success over seeds and five updates: a single one has 64 episodes."""
    per_update = [sum(values) / len(values) for values in zip(*(run["curves"][key] for run in runs))]
    return [sum(per_update[i : i + 5]) / 5 for i in range(0, len(per_update), 5)]


stale = {
    f"{case.CONFIG.lag} updates behind, V-trace": by_fives("usual"),
    f"{case.LAGGED} behind, V-trace": by_fives("stale, V-trace"),
    f"{case.LAGGED} behind, no correction": by_fives("stale, none"),
}
final = {name: mean([run["lagged"][name]["success"] for run in runs]) for name in ("V-trace", "none")}
curves(
    {name: (range(5, 5 * len(points) + 1, 5), points) for name, points in stale.items()},
    title=f"Actors {case.LAGGED} updates behind in training; at the end, held out: {final['V-trace'].mean:.0%} with V-trace, {final['none'].mean:.0%} without",
    x="update", y=f"success in training, mean of {len(runs)} seeds",
)  # fmt: skip

# %% tags=["experiment"]
lines = "\n".join(
    f"| {name} | {interval([run['lagged'][name]['success'] for run in runs])} | {interval([run['lagged'][name]['effective'] for run in runs])} | {interval([run['lagged'][name]['ratio_high'] for run in runs], '.2f')} |"
    for name in ("V-trace", "none")
)
say(
    f"| correction | held-out success | effective sample size | 95 % quantile of the ratios |\n|---|---|---|---|\n{lines}\n\n"
    f"V-trace less none, per seed: {lead(*([run['lagged'][name]['success'] for run in runs] for name in ('V-trace', 'none')))}. "
    f"Success of the clone was {won['clone'].mean:.0%}. You predicted: {prediction_playhouse or 'nothing'}."
)

# %% [markdown]
# **How to read it.** A difference of a utility pays every step without anybody labelling every step, and it can pay no more than the utility knows: what the marks get wrong, the policy learns. The seeds are few: compare
# the differences per seed; one whose interval holds 0 decides nothing, and with so few seeds an interval is too narrow rather than too wide. What is played at update $n$ is the policy of as many updates before as
# the actors are behind; until there is one, that is the clone, so the lines of the two learners begin together. The lab's study of lag on tables has more lags, and fewer seeds.
#
# **What this cannot show:** whether people's marks are late by a constant, whether 5 million of them repair what a thousand cannot, or what a utility from pixels responds to by mistake. Every thing is seen here, an
# instruction names it in so many words, and a right end is known to the program. It shows which of the parts carry the result when everything else is held still.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
