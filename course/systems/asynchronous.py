"""Learner and actors side by side: nobody waits for the slowest episode, and the learner lives with samples that are a little old.

Synchronous: start the groups of a step, wait for all of them, learn, publish. Asynchronous: so many groups are always being played;
the learner takes a batch as soon as one of the sampled law's proportions is there, corrects for its age, and publishes; groups that
have become too old are dropped whole and counted. A straggler holds up nobody but itself.
"""

import copy
import heapq
import math
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Iterator, Literal, Mapping, Sequence, get_args

import torch

from course.accounting.budget import Cost
from course.credit.groups import group_relative_advantages
from course.envs.three_tools import three_tools_tasks
from course.models.policy import Policy
from course.models.score import frozen_score
from course.objectives.aggregation import aggregate
from course.rollout.episodes import Episodes, plays_of
from course.rollout.record import Record
from course.systems.batching import Waiting, balanced_batch
from course.systems.engine import Engine, InProcess, Played, Shard, Workload, seconds_of, tool_workload
from course.systems.processes import Processes
from course.systems.staleness import Aged, staleness_report, truncated_importance_weights, within_staleness
from course.tasks.agent import AgentTask
from course.training.grpo import GrpoConfig, grpo_update
from course.training.learner import Learner
from course.training.tool_agent import cloned_policy, evaluate, held_out

Mode = Literal["synchronous", "asynchronous"]


@dataclass(frozen=True)
class Schedule:
    """quotas: groups of each stratum in a batch, in the proportions in which tasks are asked for. ahead: groups that are being played
    at any time while the learner works; as many as workers keep all of them busy.

    limit: the most updates that a group may be behind when it is trained on. cap: of the importance weight for that age.
    """

    quotas: Mapping[str, int]
    ahead: int
    limit: int = 4
    cap: float | int = 2.0

    def __post_init__(self) -> None:
        if not self.quotas or min(self.quotas.values()) < 1:
            raise ValueError(f"quotas must ask for at least 1 group of each stratum; got {dict(self.quotas)}")
        if self.ahead < 1 or self.limit < 0 or not self.cap > 0:
            raise ValueError(
                f"ahead must be at least 1, limit at least 0, cap positive; got {self.ahead}, {self.limit}, {self.cap}"
            )


@dataclass(frozen=True)
class Group(Waiting):
    """A task's episodes, all of one policy: first_version is the update that had made it. Times in seconds since the start."""

    records: tuple[Record, ...]
    first_version: int


@dataclass(frozen=True)
class Learned:
    """One update. waited: seconds in which the learner had nothing to do; worked: seconds of the update and of publishing.

    lags: updates behind, by group. sample_share: effective sample size of the importance weights, as a share of the tokens.
    dropped: groups that had become too old since the update before. numbers: of the groups that were trained on.
    """

    step: int
    waited: float
    worked: float
    reward: float
    lags: tuple[int, ...]
    sample_share: float
    ratio_quantiles: Mapping[str, float]
    dropped: int
    numbers: tuple[int, ...]
    latencies: tuple[float, ...]  # seconds from sampling to completion, by group
    cost: Mapping[str, int | float]


def learn(
    learner: Learner,
    engine: Engine,
    ask: Callable[[int], AgentTask],
    stratum: Callable[[AgentTask], str],
    *,
    mode: Mode,
    steps: int,
    schedule: Schedule,
    config: GrpoConfig,
    seed: int,
    temperature: float = 1.0,
    seen: Callable[[Sequence[Record]], None] = lambda records: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Learned]:
    """`steps` updates of learner["actor"] on groups that the engine plays; ask(n) is the task of group n.

        A <- min(exp(log pi_prox - log mu), cap) * A        pi_prox: the learner's policy when the update begins; mu: the sampler's

    and then GRPO's clipped loss around pi_prox: the correction for age once, and the trust region around the present policy.
    seen: is shown the records of each group as soon as it is done, dropped later or not: what was sampled is stored. clock: in
    seconds; a VirtualWorkers brings its own.
    Reduces to: synchronous GRPO on the same groups for mode "synchronous", whose weights are 1 up to rounding and whose lags are 0;
    that mode is a function of its seeds. What the asynchronous one trains on depends on who finished when.
    Raises: ValueError if a shard has not the rows of a group, for a mode that is none of Mode, or a task of a stratum without a quota:
    no batch would ever have it; what the engine raises. Groups that were shown to `seen` are not lost.
    Source: IMPALA's decoupled actors; truncated importance weights with a proximal policy (decoupled PPO).
    """
    size = config.group_size
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}; got {mode!r}")
    if engine.workload.rows != size:
        raise ValueError(f"rows of the workload must be those of a group, {size}; got {engine.workload.rows}")
    versions = {engine.publish(learner["actor"], temperature): learner.step}
    began = clock()
    asked, playing, sampled, dropped = 0, 0, {}, 0
    queue: list[Group] = []
    wanted = sum(schedule.quotas.values())

    def start() -> None:
        nonlocal asked, playing
        task = ask(asked)
        kind = stratum(task)
        if kind not in schedule.quotas:
            raise ValueError(f"stratum must give one of the quotas' strata, {', '.join(schedule.quotas)}; got {kind!r}")
        engine.start(Shard(asked, dict(enumerate(plays_of([task], size, seed, asked * size)))))
        sampled[asked] = (kind, clock() - began)
        asked, playing = asked + 1, playing + 1

    for step in range(learner.step, learner.step + steps):
        waiting = clock()
        places = None
        if mode == "synchronous":
            for _ in range(wanted):
                start()
        while places is None:
            while mode == "asynchronous" and playing < schedule.ahead:
                start()
            for shard, records in engine.finished(None if playing else 0):
                rows = tuple(records[row] for row in sorted(records))
                seen(rows)
                kind, at = sampled.pop(shard.number)
                version = versions[rows[0].versions.policy]
                queue.append(Group(shard.number, kind, at, clock() - began, rows, version))
                playing -= 1
            fresh = within_staleness(queue, step, schedule.limit)
            dropped, queue = dropped + len(queue) - len(fresh), fresh
            if mode == "synchronous":
                places = None if playing else range(len(queue))
            else:
                places = balanced_batch(queue, schedule.quotas)
        while mode == "asynchronous" and playing < schedule.ahead:
            start()
        worked = clock()
        # In the order of their numbers: then a synchronous update does not depend on who finished first.
        taken = sorted((queue[place] for place in places), key=lambda group: group.number)
        chosen = set(places)
        queue = [group for place, group in enumerate(queue) if place not in chosen]
        found = _update(learner, taken, step, config, schedule.cap, seed)
        learner.step = step + 1
        versions[engine.publish(learner["actor"], temperature)] = learner.step
        now = clock()
        yield Learned(
            step=step, waited=worked - waiting, worked=now - worked, dropped=dropped, numbers=tuple(group.number for group in taken),
            latencies=tuple(group.completed_at - group.sampled_at for group in taken), **found,
        )  # fmt: skip
        dropped = 0
    if mode == "asynchronous":
        engine.abandon()


def _update(
    learner: Learner, groups: Sequence[Group], version: int, config: GrpoConfig, cap: float | int, seed: int
) -> dict[str, Any]:
    """One GRPO update on these groups, and what Learned says of it."""
    policy: Policy = learner["actor"]
    records = tuple(record for group in groups for record in group.records)
    episodes = Episodes(records, torch.arange(len(groups)).repeat_interleave(config.group_size), policy.tokenizer.pad_id)
    batch, actions = episodes.batch, episodes.batch.action_mask[:, 1:]
    advantage = group_relative_advantages(batch.reward, episodes.group_id, scale="std")[:, None].expand_as(
        episodes.samples.logprobs
    )
    behaviour = episodes.samples.logprobs
    proximal = torch.where(actions, frozen_score(policy, batch.tokens, batch.attention_mask, episodes.samples.temperature), 0.0)
    ratio = proximal - behaviour
    weights = truncated_importance_weights(ratio, actions, cap)
    aged = [
        Aged(group.first_version, group.first_version, tuple(row[mask].tolist()), (True,) * int(mask.sum()))
        for group, rows, masks in zip(groups, ratio.split(config.group_size), actions.split(config.group_size))
        for row, mask in zip(rows, masks)
    ]
    report = staleness_report(aged, version)
    grpo_update(
        learner, batch, torch.arange(len(batch)), proximal, proximal, advantage * weights, aggregate, config,
        episodes.samples.temperature, learner.randomness(seed),
    )  # fmt: skip
    spent = sum((record.cost for record in records), Cost(episodes=len(records), sampled_tokens=episodes.tokens))
    return {
        "reward": float(batch.reward.mean()), "lags": tuple(version - group.first_version for group in groups),
        "sample_share": report.effective_sample_size / int(actions.sum()), "ratio_quantiles": dict(report.ratio_quantiles),
        "cost": spent.to_json(),
    }  # fmt: skip


# ---------------------------------------------------------------- both modes on the three tools with slow tools


class VirtualWorkers(InProcess):
    """Workers that play at once and wait on a clock of their own: a schedule without the waiting, and a function of its seeds.

    seconds(record): how long an episode takes; a worker plays the episodes of a shard in turn. learning: seconds from one published
    policy to the next that the learner works. What a shard finishes with was sampled by the policy of its start, as on real workers.
    """

    def __init__(
        self, workload: Workload, *, workers: int, seconds: Callable[[Record], float | int], learning: float | int = 0.0
    ):
        super().__init__(workload)
        self.workers, self.seconds, self.learning, self.now = workers, seconds, learning, 0.0
        self._free, self._playing, self._started = [0.0] * workers, [], 0

    def clock(self) -> float:
        return self.now

    def publish(self, policy: Policy, temperature: float = 1.0) -> str:
        self.now += self.learning
        return super().publish(policy, temperature)

    def start(self, shard: Shard) -> None:
        super().start(shard)
        ((_, records),) = super().finished()
        end = max(self.now, heapq.heappop(self._free)) + sum(self.seconds(record) for record in records.values())
        heapq.heappush(self._free, end)
        self._started += 1
        heapq.heappush(self._playing, (end, self._started, shard, records))

    def finished(self, timeout: float | int | None = None) -> list[Played]:
        until = math.inf if timeout is None else self.now + timeout
        if not self._playing or self._playing[0][0] > until:
            self.now = self.now if timeout is None else until
            return []
        end, _, shard, records = heapq.heappop(self._playing)
        self.now = max(self.now, end)
        return [(shard, records)]

    def abandon(self) -> None:
        self._free, self._playing = [self.now] * self.workers, []


@dataclass(frozen=True)
class Comparison:
    """A run of one mode: its updates, and success on held-out tasks behind the last one."""

    mode: Mode
    seed: int
    updates: tuple[Learned, ...]
    success: float

    @property
    def idle(self) -> float:
        """Seconds in which the learner waited, all updates together."""
        return sum(update.waited for update in self.updates)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "idle": self.idle}


HORIZONS = (2, 4)
QUOTAS = {"2": 4, "4": 4}
GROUP_SIZE, WORKERS = 4, 8
WAITS = {
    "wait": 0.002,
    "tail": 0.9,
    "longest": 2.0,
}  # seconds: a group of episodes takes 0.4 on the average, the slowest of eight 1.2


def mixed(number: int, seed: int) -> AgentTask:
    """Task `number` of a run: one and two operands in turn, which is the law that QUOTAS asks for."""
    horizon = HORIZONS[number % len(HORIZONS)]
    return three_tools_tasks(1, seed * 1_000_003 + number, pool="online", horizons=(horizon,))[0]


def virtual_workers(learning: float | int = 0.1, *, rows: int = GROUP_SIZE, workers: int = WORKERS) -> VirtualWorkers:
    """Workers that wait by WAITS on a virtual clock, with groups of `rows` episodes and updates that take `learning` seconds."""

    def seconds(record: Record) -> float:
        return sum(seconds_of(**WAITS, environment_seed=record.environment_seed, number=k) for k in range(len(record.steps)))

    return VirtualWorkers(tool_workload(rows=rows), workers=workers, seconds=seconds, learning=learning)


def real_workers() -> Processes:
    """WORKERS as processes whose tools really wait by WAITS; they mostly wait, so that two cores carry eight."""
    return Processes(tool_workload(rows=GROUP_SIZE, **WAITS), workers=WORKERS)


def compared(
    policy: Policy, engine: Engine, seed: int, *, mode: Mode, steps: int = 10, lr: float = 5e-4, held: int = 128,
    schedule: Schedule = Schedule(QUOTAS, ahead=WORKERS),
) -> Comparison:  # fmt: skip
    """Train a copy of the policy in one mode, on engines of virtual_workers() or real_workers(), and look at `held` held-out tasks."""
    learner = Learner({"actor": copy.deepcopy(policy)}, lr=lr)
    updates = tuple(
        learn(
            learner,
            engine,
            lambda number: mixed(number, seed),
            lambda task: str(task.horizon),
            mode=mode,
            steps=steps,
            schedule=schedule,
            config=GrpoConfig(engine.workload.rows, beta=0.0, how="token"),
            seed=seed,
            clock=engine.clock if isinstance(engine, VirtualWorkers) else time.perf_counter,
        )  # fmt: skip
    )
    success = evaluate(learner["actor"], held_out(held, horizons=HORIZONS), temperature=1.0).success
    return Comparison(mode, seed, updates, success)


# ---------------------------------------------------------------- one seed of the evidence

MODES: tuple[Mode, ...] = get_args(Mode)
CLONE_STEPS, STEPS, LR, LEARNING, HELD_OUT = 500, 24, 4e-4, 0.5, 512
ROWS = 8
SCHEDULE = Schedule({"2": 8, "4": 8}, ahead=16)  # as many workers as groups in a batch, and batches large enough to learn


@dataclass(frozen=True)
class BothModes:
    """One clone and its two descendants, with equally many updates. success: on the same held-out tasks, sampled at temperature 1.

    By mode: idle and worked are seconds of the virtual clock, all updates together; mean_lag: updates behind, over trained groups;
    dropped: groups too old to be trained on.
    """

    seed: int
    clone: float
    success: dict[Mode, float]
    idle: dict[Mode, float]
    worked: dict[Mode, float]
    mean_lag: dict[Mode, float]
    dropped: dict[Mode, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def recorded_run(seed: int) -> BothModes:
    """Clone an expert with a habit, and train a copy of it in each mode on workers of a virtual clock."""
    policy = cloned_policy(seed, steps=CLONE_STEPS)
    runs = {
        mode: compared(
            policy,
            virtual_workers(LEARNING, rows=ROWS, workers=SCHEDULE.ahead),
            seed,
            mode=mode,
            steps=STEPS,
            lr=LR,
            held=HELD_OUT,
            schedule=SCHEDULE,
        )  # fmt: skip
        for mode in MODES
    }
    updates = {mode: run.updates for mode, run in runs.items()}
    lags = {mode: [lag for update in found for lag in update.lags] for mode, found in updates.items()}
    return BothModes(
        seed=seed,
        clone=evaluate(policy, held_out(HELD_OUT, horizons=HORIZONS), temperature=1.0).success,
        success={mode: run.success for mode, run in runs.items()},
        idle={mode: run.idle for mode, run in runs.items()},
        worked={mode: sum(update.worked for update in found) for mode, found in updates.items()},
        mean_lag={mode: sum(found) / len(found) for mode, found in lags.items()},
        dropped={mode: sum(update.dropped for update in found) for mode, found in updates.items()},
    )
