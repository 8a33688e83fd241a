"""The agent of level 4: cloned from an expert with a habit, then trained on what its episodes really came to.

The expert adds where it should subtract, most of the time, so the clone's most likely action is wrong there too: sharpening it would
not help. A second, smaller run learns when a tool is worth its price. All numbers that a run needs are the constants below.
"""

import copy
import math
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Iterator, Sequence

from torch import Tensor

from course.credit.groups import group_relative_advantages
from course.envs.evidence import Evidence
from course.envs.kernel import State, World
from course.envs.three_tools import demonstrate, submitted, three_tools, three_tools_tasks, three_tools_tokenizer
from course.feedback.verifiers import ALPHA, verify_answer
from course.language.serializer import CompactSerializer
from course.language.stamp import digest
from course.models.decoder import Decoder, DecoderConfig
from course.models.policy import Policy
from course.objectives.aggregation import aggregate
from course.rollout.collect import Sampling
from course.rollout.episodes import Episodes, collect_episodes, scripted_episodes
from course.tasks.agent import AgentTask
from course.training.agents import action_report, clone, episode_collector, episode_reward, faulty_step, tasks_by_step
from course.training.grpo import GrpoConfig, GrpoStep, grpo
from course.training.learner import Learner

# Demonstrated tasks have one or two operands, since copying one value is the first thing to learn; online and held-out tasks have
# two. Many small batches of many different episodes: RL can only sharpen and shift what the clone is able to do.
SHOWN_HORIZONS, HORIZONS = (2, 4, 4), (4,)
DEMONSTRATIONS, CLONE_STEPS, CLONE_LR, CLONE_BATCH = 3000, 1200, 3e-3, 32
GROUPS, GROUP_SIZE, STEPS, LR = 32, 8, 24, 7e-4
MAX_ACTION_TOKENS, MAX_ACTIONS = 6, 5
PRICES = (0, 1, 3, 5, 8)
PRICE_DEMONSTRATIONS, PRICE_CLONE_STEPS, PRICE_STEPS, PRICE_LR = 2000, 600, 32, 5e-4
HELD_OUT, ATTEMPTS = 256, 16  # tasks on shelves that no training has seen; tries at each of a quarter of them for best-of-N
TOKENIZER, SERIALIZER = three_tools_tokenizer(), CompactSerializer()
SAMPLING = Sampling(MAX_ACTION_TOKENS, (TOKENIZER.end_id,), TOKENIZER.pad_id)
CONFIG = GrpoConfig(GROUP_SIZE, beta=0.0, how="token")

Tasks = Callable[[int, int], list[AgentTask]]  # (count, seed) -> tasks


def blank_policy(seed: int) -> Policy:
    # Episodes are short, so the slow rotations of the usual base (10 000) would tell no two positions apart.
    config = DecoderConfig(vocab_size=TOKENIZER.vocab_size, layers=2, width=64, heads=4, max_length=96, rope_theta=100.0)
    return Policy(Decoder(config, seed), TOKENIZER, SERIALIZER)


def task_world(**switches: Any) -> World:
    """The world of the three tools with an expert's calls and one to spare; switches as in three_tools."""
    return three_tools(max_actions=MAX_ACTIONS, **switches)


def grade(state: State) -> Evidence:
    """The verifier's word on what was submitted: 10 or 0."""
    return verify_answer(state.task, submitted(state))


def grade_net(state: State) -> Evidence:
    """The same, less what the calls have cost in units of reward. The decision is still about the answer alone."""
    said = grade(state)
    net = None if said.reward is None else said.reward - state.spent["price"]
    return Evidence(f"{said.verifier} less price", said.version, said.parsed, said.decision, net, said.reason)


def lookups(count: int, seed: int) -> list[AgentTask]:
    """Training tasks: values from a shelf, and what is calculated from them."""
    return three_tools_tasks(count, seed, pool="online", horizons=HORIZONS)


def noted(count: int, seed: int) -> list[AgentTask]:
    """Training tasks about one value with a note of it, right or wrong, and a price for looking."""
    return three_tools_tasks(count, seed, pool="online", notes=True, prices=PRICES)


def held_out(count: int = HELD_OUT, seed: int = 0, *, notes: bool = False, horizons: Sequence[int] = HORIZONS) -> list[AgentTask]:
    """Tasks on the calibration pool's shelves: later ones than any in training."""
    options = {"notes": True, "prices": PRICES} if notes else {"horizons": horizons}
    return three_tools_tasks(count, seed, pool="calibration", **options)


def demonstrations(seed: int, *, notes: bool = False) -> Episodes:
    """The expert's episodes on the bootstrap pool, habit and slips included."""
    options = {"notes": True, "prices": PRICES} if notes else {"horizons": SHOWN_HORIZONS}
    count = PRICE_DEMONSTRATIONS if notes else DEMONSTRATIONS
    tasks, world = three_tools_tasks(count, seed, pool="bootstrap", **options), task_world()
    return scripted_episodes(
        [demonstrate(task, world, seed) for task in tasks], world, tasks, tokenizer=TOKENIZER, serializer=SERIALIZER,
        grader=grade, environment_seeds=[seed] * count,
    )  # fmt: skip


def cloned_policy(seed: int, *, notes: bool = False, shown: Episodes | None = None, steps: int | None = None) -> Policy:
    """A fresh policy after supervised fine-tuning on the expert's actions. shown: its demonstrations, if they are there already.

    steps: another number of them than this agent's own.
    """
    policy = blank_policy(seed)
    if steps is None:
        steps = PRICE_CLONE_STEPS if notes else CLONE_STEPS
    for _ in clone(
        policy, shown or demonstrations(seed, notes=notes), steps=steps, lr=CLONE_LR, batch_size=CLONE_BATCH, seed=seed
    ):
        pass
    return policy.eval()


def standardised(rewards: Tensor, group_id: Tensor) -> Tensor:
    return group_relative_advantages(rewards, group_id, scale="std")


def centred(rewards: Tensor, group_id: Tensor) -> Tensor:
    """In units of reward: a choice between two prices must not weigh as much as one between right and wrong."""
    return group_relative_advantages(rewards, group_id, scale="none")


def online(
    policy: Policy, seed: int, *, steps: int = STEPS, tasks: Tasks = lookups, world: World | None = None,
    grader: Callable[[State], Evidence] = grade, advantages: Callable[[Tensor, Tensor], Tensor] = standardised, groups: int = GROUPS,
    learner: Learner | None = None, **options: Any,
) -> Iterator[GrpoStep]:  # fmt: skip
    """Train the policy itself with GRPO on its own episodes; the caller looks, plots or stops between steps.

    options: those of episode_collector, for instance seen=store.append. The reference only measures the KL: its price is 0.
    """
    reference = copy.deepcopy(policy).requires_grad_(False)
    return grpo(
        learner or Learner({"actor": policy}, lr=LR), reference, episode_reward, tasks_by_step(tasks, groups, seed),
        advantages=advantages, aggregate=aggregate, config=CONFIG, sampling=SAMPLING,
        steps=steps, seed=seed, collect=episode_collector(world or task_world(), grader, **options),
    )  # fmt: skip


def online_priced(policy: Policy, seed: int, *, steps: int = PRICE_STEPS, **options: Any) -> Iterator[GrpoStep]:
    """The same where looking has a price that is part of the reward; options are those of online()."""
    learner = Learner({"actor": policy}, lr=PRICE_LR)
    options = {"tasks": noted, "grader": grade_net, "advantages": centred, "learner": learner, **options}
    return online(policy, seed, steps=steps, **options)


@dataclass(frozen=True)
class Evaluation:
    """Shares of held-out tasks. by_horizon: success among the tasks of each horizon. calls: actions per task, by tool."""

    success: float
    by_horizon: dict[int, float]
    valid: float  # share of actions that the grammar could read
    calls: dict[str, float]
    tasks: int


def evaluate(
    policy: Policy, tasks: Sequence[AgentTask], *, temperature: float, seed: int = 777, world: World | None = None
) -> Evaluation:
    """One episode of each task at this temperature; 0 takes the most likely token each time."""
    return evaluation_of(attempts(policy, tasks, temperature=temperature, seed=seed, world=world))


def attempts(
    policy: Policy, tasks: Sequence[AgentTask], *, temperature: float = 1.0, seed: int = 777, world: World | None = None,
    grader: Callable[[State], Evidence] = grade, group_size: int = 1, **options: Any,
) -> Episodes:  # fmt: skip
    """group_size episodes of each task, in a row. options: those of collect_episodes()."""
    return collect_episodes(
        policy, world or task_world(), tasks, grader=grader, seed=seed, max_action_tokens=MAX_ACTION_TOKENS,
        temperature=temperature, group_size=group_size, **options,
    )  # fmt: skip


def evaluation_of(episodes: Episodes) -> Evaluation:
    """What a collection of episodes came to, abstentions left out."""
    records = episodes.judged().records
    right = [record.evidence.decision == "right" for record in records]
    horizons = sorted({record.task["horizon"] for record in records})
    steps = [step for record in records for step in record.steps]
    tools = sorted({step.tool or "unreadable" for step in steps})
    return Evaluation(
        success=sum(right) / len(right),
        by_horizon={h: _mean([r for r, record in zip(right, records) if record.task["horizon"] == h]) for h in horizons},
        valid=_mean([step.arguments is not None for step in steps]),
        calls={tool: sum((step.tool or "unreadable") == tool for step in steps) / len(records) for tool in tools},
        tasks=len(records),
    )


def lookups_by_price(episodes: Episodes) -> dict[str, dict[int, float]]:
    """Looks per task for each kind of note and each price. Looking pays where the price is below what a wrong note costs."""
    found: dict[str, dict[int, list[int]]] = {}
    for record in episodes.records:
        words = record.task["prompt"].split(" ")
        kind, price = words[1], int(words[words.index("price") + 1])
        found.setdefault(kind, {}).setdefault(price, []).append(sum(step.tool == "look" for step in record.steps))
    return {kind: {price: _mean(found[kind][price]) for price in sorted(found[kind])} for kind in sorted(found)}


# ---------------------------------------------------------------- one seed of the evidence


@dataclass(frozen=True)
class Point:
    """Held-out success while learning. step 0 is the clone."""

    step: int
    greedy: float
    sampled: float
    reward: float | None  # of the step's own episodes, over alpha
    sampled_tokens: int  # by all steps so far


@dataclass(frozen=True)
class AgentRun:
    """Everything is about the same held-out tasks. Evaluations by name: blank (before any training), clone and trained, greedy and
    sampled, and without tools.

    tasks: digest of the digests of these tasks, in order: a number that was measured elsewhere can't pass for one of these.

    best_of: chance that at least one of n sampled tries is right, for the clone and the trained policy: what a selector could gain.
    valid_under_errors: share of readable actions by tool where a tenth of the texts is damaged on the way.
    """

    seed: int
    tasks: str
    expert: float
    evaluations: dict[str, Evaluation]
    curve: tuple[Point, ...]
    best_of: dict[str, dict[int, float]]
    kl_by_tool: dict[str, float]
    valid_under_errors: dict[str, dict[str, float]]
    seconds: dict[str, float]  # of a processor, and no part of any comparison

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def recorded_run(seed: int, *, every: int = 8) -> AgentRun:
    """Clone, train, and measure on the way and at the end."""
    tasks, began = held_out(), time.process_time()
    shown = demonstrations(seed)
    policy = cloned_policy(seed, shown=shown)
    seconds = {"clone": time.process_time() - began}
    original = copy.deepcopy(policy)
    found = {
        "blank sampled": evaluate(blank_policy(seed), tasks, temperature=1.0),
        "clone greedy": evaluate(policy, tasks, temperature=0),
        "clone sampled": evaluate(policy, tasks, temperature=1.0),
    }
    curve = [Point(0, found["clone greedy"].success, found["clone sampled"].success, None, 0)]
    spent, tokens, began = 0.0, 0, time.process_time()
    for record in online(policy, seed):
        tokens += record.sampled
        if (record.step + 1) % every == 0 or record.step + 1 == STEPS:
            spent -= time.process_time()
            now = [evaluate(policy, tasks, temperature=temperature).success for temperature in (0, 1.0)]
            curve.append(Point(record.step + 1, *now, record.reward / ALPHA, tokens))
            spent += time.process_time()
    seconds["online"] = time.process_time() - began - spent
    found |= {
        "trained greedy": evaluate(policy, tasks, temperature=0),
        "trained sampled": evaluate(policy, tasks, temperature=1.0),
    }
    bare = task_world(with_tools=False)
    both = {"clone": original, "trained": policy}
    for name, one in both.items():
        found[f"{name} greedy without tools"] = evaluate(one, tasks, temperature=0, world=bare)
    noisy = {name: attempts(one, tasks, step=faulty_step(0.1, seed)) for name, one in both.items()}
    return AgentRun(
        seed=seed,
        tasks=digest([task.digest() for task in tasks]),
        expert=sum(record.evidence.decision == "right" for record in shown.records) / len(shown),
        evaluations=found,
        curve=tuple(curve),
        best_of={name: best_of(one, tasks[: HELD_OUT // 4]) for name, one in both.items()},
        kl_by_tool={tool: row.kl for tool, row in action_report(attempts(policy, tasks), original).items()},
        valid_under_errors={
            name: {tool: row.valid for tool, row in action_report(episodes).items()} for name, episodes in noisy.items()
        },
        seconds=seconds,
    )


def best_of(policy: Policy, tasks: Sequence[AgentTask]) -> dict[int, float]:
    """Chance that one of n tries succeeds, from ATTEMPTS tries at each task: 1 - C(wrong, n) / C(ATTEMPTS, n), averaged over tasks."""
    records = attempts(policy, tasks, group_size=ATTEMPTS).records
    wrong = [
        sum(record.evidence.decision != "right" for record in records[i : i + ATTEMPTS]) for i in range(0, len(records), ATTEMPTS)
    ]
    sizes = [n for n in (1, 2, 4, 8, 16) if n <= ATTEMPTS]
    return {n: _mean([1 - math.comb(w, n) / math.comb(ATTEMPTS, n) for w in wrong]) for n in sizes}


@dataclass(frozen=True)
class PriceRun:
    """Looks per task by kind of note and price, before and after training, and the mean reward less price."""

    seed: int
    before: dict[str, dict[int, float]]
    after: dict[str, dict[int, float]]
    net: tuple[float, float]  # before, after
    success: tuple[float, float]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def recorded_price_run(seed: int) -> PriceRun:
    """Clone the expert who has only a hunch when to look, then train on reward less price."""
    tasks, began = held_out(notes=True), time.process_time()
    policy = cloned_policy(seed, notes=True)
    before = attempts(policy, tasks, grader=grade_net)
    for _ in online_priced(policy, seed):
        pass
    after = attempts(policy, tasks, grader=grade_net)
    return PriceRun(
        seed=seed,
        before=lookups_by_price(before),
        after=lookups_by_price(after),
        net=tuple(float(e.batch.reward.mean()) for e in (before, after)),
        success=tuple(evaluation_of(e).success for e in (before, after)),
        seconds=time.process_time() - began,
    )


def _mean(values: Sequence) -> float:
    return sum(values) / len(values)
