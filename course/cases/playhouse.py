"""Playhouse in small: marks inside episodes, a utility of prefixes, its differences as reward, and IMPALA from a clone.

One seed decides the demonstrations, the marks, the utility and the learner. A miniature on a grid, no reproduction.
"""

import copy
from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, Iterator, Mapping, Sequence

from jaxtyping import Float
from torch import Tensor
import torch

from course.credit.potential import potential_rewards
from course.credit.vtrace import vtrace
from course.envs.grid import Goal, demonstrate, grade, grid_tasks, grid_tokenizer, grid_world, remaining, rooms_of
from course.envs.kernel import World
from course.feedback.intertemporal import Mark, MarkedEpisode, annotate
from course.language.serializer import CompactSerializer
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.models.policy import Policy
from course.models.score import evaluating
from course.objectives.preference import intertemporal_loss
from course.objectives.supervised import sft_loss
from course.rollout.episodes import EpisodeBatch, Episodes, collect_episodes, scripted_episodes
from course.rollout.record import Record
from course.tasks.agent import AgentTask
from course.tasks.records import Batch, Ids
from course.training.agents import clone
from course.training.impala import ImpalaConfig, ImpalaStep, impala, state_positions, uncorrected
from course.training.learner import Learner, step_seed
from course.training.utility import UtilityStep, fit_utility

TOKENIZER, SERIALIZER, WORLD = grid_tokenizer(), CompactSerializer(), grid_world()
MAX_ACTION_TOKENS = 2  # a word and the end token
DEMONSTRATIONS = 3000
OPENING_STEPS, OPENING_LR, OPENING_BATCH = 240, 5e-3, 128
CLONE_STEPS, CLONE_LR, CLONE_BATCH = 160, 2.5e-3, 64
WATCHED = 600  # the clone's own episodes that somebody marks
UTILITY_STEPS, UTILITY_LR, UTILITY_BATCH = 200, 2e-3, 32
EPISODES, UPDATES, LR = 64, 50, 1e-3  # episodes per update
CONFIG = ImpalaConfig(lag=2, gamma=0.9, value_weight=0.1, clone_weight=0.3)
SWAP = 0.33
HELD_OUT = 256


@dataclass(frozen=True)
class Watcher:
    """Who marks: how many steps late, how often with the wrong key, and how often at all."""

    latency: int = 0
    flip: float = 0.05
    rate: float = 0.5


def blank_policy(seed: int, width: int = 32) -> Policy:
    config = DecoderConfig(
        vocab_size=TOKENIZER.vocab_size, layers=2, width=width, heads=2, max_length=128, rope_theta=100.0, tied=False
    )  # fmt: skip
    return Policy(Decoder(config, seed), TOKENIZER, SERIALIZER)


def demonstrations(seed: int, count: int = DEMONSTRATIONS) -> Episodes:
    return demonstrated(grid_tasks(count, seed, pool="demonstrations"), seed)


def demonstrated(tasks: Sequence[AgentTask], seed: int) -> Episodes:
    return scripted_episodes(
        [demonstrate(task, seed) for task in tasks], WORLD, tasks, tokenizer=TOKENIZER, serializer=SERIALIZER, grader=grade,
        environment_seeds=[seed] * len(tasks),
    )  # fmt: skip


def openings(shown: EpisodeBatch) -> Batch:
    """Each episode up to its first action."""
    first = shown.turn == 0
    column = torch.arange(first.shape[1])
    until = column <= torch.where(first, column, 0).amax(1, keepdim=True)
    width = int(first.any(0).nonzero().max()) + 1
    return Batch(shown.tokens[:, :width], until[:, :width], first[:, :width])


def cloned_policy(seed: int, shown: EpisodeBatch, *, steps: tuple[int, int] = (OPENING_STEPS, CLONE_STEPS)) -> Policy:
    """A clone: first of first actions alone, then of whole episodes.

    Which thing an instruction means is what takes long to learn. In short rows it costs a fourth, and nothing else is there to see.
    """
    policy = blank_policy(seed)
    for batch, count, lr, rows in (
        (openings(shown), steps[0], OPENING_LR, OPENING_BATCH),
        (shown, steps[1], CLONE_LR, CLONE_BATCH),
    ):
        for _ in clone(policy, batch, steps=count, lr=lr, batch_size=rows, seed=seed):
            pass
    return policy.eval()


def play(policy: Policy, tasks: Sequence[AgentTask], *, seed: int = 777, world: World = WORLD, **options: Any) -> Episodes:
    """One episode of each task, sampled at temperature 1."""
    return collect_episodes(policy, world, tasks, grader=grade, seed=seed, max_action_tokens=MAX_ACTION_TOKENS, **options)


def success(episodes: Episodes) -> float:
    return float(episodes.batch.reward.mean())


# ---------------------------------------------------------------- marks


def progress(record: Record, task: AgentTask, instruction: str | None = None) -> list[int]:
    """Gold progress before, between and after an episode's actions, under its own instruction or another one."""
    goal = Goal.parse(instruction or task.prompt)
    rooms = rooms_of(task, [step.tool if step.outcome == "executed" else None for step in record.steps])
    return [-remaining(room, goal) for room in rooms]


def instruction_ids(instruction: str) -> Ids:
    return (TOKENIZER.bos_id, *TOKENIZER.encode(instruction))


def restate(episode: MarkedEpisode, instruction: Ids) -> tuple[Ids, ...]:
    """The steps under another instruction: every observation repeats it, so it changes there too."""
    old, new = episode.instruction[1:], instruction[1:]
    return tuple(_replaced(step, old, new) for step in episode.steps)


def _replaced(ids: Ids, old: Ids, new: Ids) -> Ids:
    out, at = [], 0
    while at < len(ids):
        found = ids[at : at + len(old)] == old
        out += new if found else ids[at : at + 1]
        at += len(old) if found else 1
    return tuple(out)


def marked(record: Record, marks: tuple[Mark, ...]) -> MarkedEpisode:
    """An episode as its watcher saw it: step 0 is what was there before the first action, step k what action k led to.

    A step ends where the next action is decided, the last one at the last token.
    """
    instruction = instruction_ids(record.task["prompt"])
    starts = [start for start, _ in record.action_spans]
    ends = [*starts[1:], len(record.tokens)]
    steps = (record.tokens[len(instruction) : starts[0]], *(record.tokens[a:b] for a, b in zip(starts, ends)))
    return MarkedEpisode(instruction, steps, marks)


def watched(episodes: Episodes, tasks: Sequence[AgentTask], watcher: Watcher, seed: int) -> list[MarkedEpisode]:
    """The episodes that got a mark at all."""
    found = []
    for number, (record, task) in enumerate(zip(episodes.records, tasks)):
        marks = annotate(
            progress(record, task), seed=step_seed(seed, number), latency=watcher.latency, flip=watcher.flip, rate=watcher.rate
        )
        found += [marked(record, marks)] if marks else []
    return found


# ---------------------------------------------------------------- the utility


def utility_of(
    policy: Policy, marks: Sequence[MarkedEpisode], shown: Batch, seed: int, *, swap: float = SWAP, steps: int = UTILITY_STEPS
) -> Iterator[tuple[ScalarHead, UtilityStep]]:
    """The utility while it is fitted; it starts from the clone's own weights."""
    head = ScalarHead(copy.deepcopy(policy.model).requires_grad_(True), seed)

    def cloning(logits: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        return sft_loss(logits, tokens, mask, normalize="token")

    for step in fit_utility(
        head, marks, shown, loss=intertemporal_loss, clone_loss=cloning, steps=steps, lr=UTILITY_LR, batch_size=UTILITY_BATCH,
        seed=seed, pad_id=TOKENIZER.pad_id, swap=swap, restate=restate,
    ):  # fmt: skip
        yield head, step


def utilities(head: ScalarHead, episodes: Episodes) -> Float[Tensor, "batch states"]:
    """U before, between and after the actions; behind the last one it repeats."""
    with evaluating(head):
        values = head(episodes.batch.tokens, episodes.batch.attention_mask)
    return values.gather(1, state_positions(episodes)[0])


def potential_reward(head: ScalarHead, unit: float = 1.0) -> Callable[[Episodes], Float[Tensor, "batch actions"]]:
    """reward= for impala(): what each action changed in the utility. Undiscounted, so an episode's sum is (U(end) - U(start)) / unit."""
    return lambda episodes: potential_rewards(utilities(head, episodes), gamma=1.0) / unit


def unit_of(head: ScalarHead, episodes: Episodes) -> float:
    """The root mean square change of the utility per action: marks say which way it goes, and leave its scale to chance."""
    change = potential_rewards(utilities(head, episodes), gamma=1.0)[state_positions(episodes)[1]]
    return float(change.square().mean().sqrt())


def train(
    policy: Policy, head: ScalarHead, unit: float, shown: Batch, seed: int, *, updates: int = UPDATES, config: ImpalaConfig = CONFIG,
    credit: Callable[..., tuple[Tensor, Tensor]] = vtrace, lr: float = LR,
) -> Iterator[ImpalaStep]:  # fmt: skip
    """IMPALA on the utility's differences, with cloning beside it. The policy itself is trained: give it a copy of the clone."""
    learner = Learner({"actor": policy, "value": ScalarHead(policy.model, seed)}, lr=lr)

    def collect(actor: Policy, step: int) -> Episodes:
        tasks = grid_tasks(EPISODES, step_seed(seed, step), pool="online")
        return play(actor, tasks, seed=seed, first_episode=step * EPISODES)

    return impala(
        learner,
        collect,
        potential_reward(head, unit),
        config=config,
        steps=updates,
        seed=seed,
        credit=credit,
        demonstrations=shown,
    )


# ---------------------------------------------------------------- what is measured


@dataclass(frozen=True)
class Grounding:
    """How a utility fits gold on episodes it was not fitted to.

    agreement: share of the actions with a gold change whose utility changes the same way. own, swapped: U(end) - U(start) of
    successful episodes, in units, under their instruction and under one about another thing in the room. lowered: share of them
    whose end has the lower utility under the other instruction.
    """

    agreement: float
    own: float
    swapped: float
    lowered: float
    successes: int


def grounding(head: ScalarHead, episodes: Episodes, tasks: Sequence[AgentTask], unit: float) -> Grounding:
    u, exists = utilities(head, episodes), state_positions(episodes)[1]
    gold = [progress(record, task) for record, task in zip(episodes.records, tasks)]
    change, agree = potential_rewards(u, gamma=1.0), []
    for row, steps in enumerate(gold):
        agree += [(float(change[row, k]) > 0) == (b > a) for k, (a, b) in enumerate(zip(steps, steps[1:])) if a != b]
    done = [i for i, record in enumerate(episodes.records) if record.evidence.decision == "right"]
    others = [under_another(episodes.records[i], tasks[i]) for i in done]
    turned = [prefixes(head, other) for other in others]
    own = [float(u[i, int(exists[i].sum())] - u[i, 0]) / unit for i in done]
    ends = [float(u[i, int(exists[i].sum())]) for i in done]
    return Grounding(
        agreement=_mean(agree),
        own=_mean(own),
        swapped=_mean([float(t[-1] - t[0]) / unit for t in turned]),
        lowered=_mean([float(t[-1]) < end for t, end in zip(turned, ends)]),
        successes=len(done),
    )


def prefixes(head: ScalarHead, episode: MarkedEpisode) -> Float[Tensor, "states"]:
    """The utility of each prefix of one episode."""
    tokens = torch.tensor([episode.instruction + tuple(t for step in episode.steps for t in step)])
    with evaluating(head):
        return head(tokens, torch.ones_like(tokens, dtype=torch.bool))[0, list(episode.step_ends)]


def under_another(record: Record, task: AgentTask) -> MarkedEpisode:
    """The episode under an instruction about the next thing of the room that isn't the target."""
    names = [thing.name for thing in rooms_of(task, ())[0].things]
    name = names[(names.index(Goal.parse(task.prompt).target) + 1) % len(names)]
    episode, instruction = marked(record, ()), instruction_ids(f"go {name}")
    return MarkedEpisode(instruction, restate(episode, instruction), (), swapped=True)


WATCHERS = {
    "usual": Watcher(),
    "two steps late": Watcher(latency=2),
    "a quarter wrong": Watcher(flip=0.25),
}
TRAINED = ("usual", "two steps late", "no swaps")  # the utilities that a policy is trained on
LAGGED = 24  # updates that the stale actors are behind


@dataclass(frozen=True)
class PlayhouseRun:
    """One seed. success: share of held-out tasks done by the expert, the clone and each trained policy, sampled at temperature 1.

    Trained policies go by the watcher whose marks made their utility, and "no swaps". marks: how many marks that was. curves: success
    of the training episodes, update by update. lagged: what the learner of actors LAGGED updates behind came to with V-trace and
    without, and the effective sample size and upper ratios of its later three quarters.
    """

    seed: int
    success: Mapping[str, float]
    marks: Mapping[str, int]
    utilities: Mapping[str, Grounding]
    curves: Mapping[str, Sequence[float]]
    lagged: Mapping[str, Mapping[str, float]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def recorded_run(seed: int, *, updates: int = UPDATES) -> PlayhouseRun:
    """Clone, marks, utilities by watcher and without swaps, IMPALA from each, and stale actors with and without V-trace."""
    shown, tasks = demonstrations(seed), grid_tasks(HELD_OUT, 0, pool="held_out")
    policy = cloned_policy(seed, shown.batch)
    held = play(policy, tasks)
    found = {"expert": success(demonstrated(tasks, seed)), "clone": success(held)}
    watched_tasks = grid_tasks(WATCHED, seed, pool="marks")
    episodes = play(policy, watched_tasks, seed=seed)
    marks, fits, curves, lagged = {}, {}, {}, {}
    arms = {name: (watcher, SWAP) for name, watcher in WATCHERS.items()} | {"no swaps": (WATCHERS["usual"], 0.0)}
    for name, (watcher, swap) in arms.items():
        seen = watched(episodes, watched_tasks, watcher, seed)
        marks[name] = sum(len(episode.marks) for episode in seen)
        *_, (head, _) = utility_of(policy, seen, shown.batch, seed, swap=swap)
        unit = unit_of(head, episodes)
        fits[name] = grounding(head, held, tasks, unit)
        if name not in TRAINED:
            continue
        mine = copy.deepcopy(policy).requires_grad_(True)
        curves[name] = [step.success for step in train(mine, head, unit, shown.batch, seed, updates=updates)]
        found[name] = success(play(mine.eval(), tasks))
        if name == "usual":
            for correction, credit in (("V-trace", vtrace), ("none", uncorrected)):
                stale, config = copy.deepcopy(policy).requires_grad_(True), replace(CONFIG, lag=LAGGED)
                steps = list(train(stale, head, unit, shown.batch, seed, updates=updates, config=config, credit=credit))
                curves[f"stale, {correction}"] = [step.success for step in steps]
                lagged[correction] = {
                    "success": success(play(stale.eval(), tasks)),
                    "effective": _mean([step.effective for step in steps[updates // 4 :]]),
                    "ratio_high": _mean([step.ratio_high for step in steps[updates // 4 :]]),
                }
    return PlayhouseRun(seed, found, marks, fits, curves, lagged)


def _mean(values: Sequence) -> float:
    return sum(map(float, values)) / len(values)
