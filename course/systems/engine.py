"""One interface for whoever plays episodes: in this process, in others, on a cluster. The engine decides when and where, never what.

A collection is cut into shards of fixed shape: play i is row i mod rows of shard i div rows, and a shard is decoded in a batch of rows
by columns that the workload states. So the order of every sum is stated too, and each engine gives the same bits.
"""

import os
import random
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import torch

from course.envs import kernel
from course.envs.kernel import State, Transition, World
from course.models.policy import Policy
from course.rollout.episodes import KEY, Grader, Play, play_episodes
from course.rollout.record import Record
from course.rollout.replay import Recipe
from course.rollout.write_ahead import log_path, play_logged
from course.training.tool_agent import MAX_ACTION_TOKENS, grade, task_world

PATIENCE = 30  # workers that die in a row without getting on, after which a person should look


class WrongRecord(ValueError):
    """A record that is not of the episode that was asked for: without a stamp, of another policy, task, seed or batch."""


class LostWorker(RuntimeError):
    """A worker, or an actor, that keeps dying."""


@dataclass(frozen=True)
class Setting:
    """What an episode needs besides policy and play. step may wait, as a slow tool does; it must not answer by the clock."""

    world: World
    grader: Grader
    max_action_tokens: int
    step: Callable[[State, str], Transition] = kernel.step
    key: bytes = field(default=KEY, repr=False)


@dataclass(frozen=True)
class Workload:
    """make: gives the Setting in any process. rows, columns: the shape of a shard's first pass; columns above the longest prompt."""

    make: Recipe
    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 2:
            raise ValueError(f"rows must be at least 1 and columns at least 2; got {self.rows} and {self.columns}")

    def setting(self) -> Setting:
        made = self.make.made()
        if not isinstance(made, Setting):
            raise ValueError(f"make must give a Setting; {self.make.make} gave {type(made).__name__}")
        return made

    def shards(self, plays: Sequence[Play]) -> list["Shard"]:
        starts = range(0, len(plays), self.rows)
        return [Shard(i // self.rows, dict(enumerate(plays[i : i + self.rows]))) for i in starts]


@dataclass(frozen=True)
class Shard:
    """What one worker plays at a time. plays by row; a row may be missing where its record is there already."""

    number: int
    plays: Mapping[int, Play]


@dataclass(frozen=True)
class Law:
    """A published policy: its stamp, which names the temperature too, and what a worker needs to make it again."""

    stamp: str
    temperature: float
    parts: Any = field(repr=False)


Played = tuple[Shard, dict[int, Record]]


class Engine:
    """publish a policy, start shards, take what has finished. A shard is played by the policy that was published last.

    logs: folder of write-ahead logs, which must exist; a shard that a worker died over is gone on with. None keeps none: then it is
    played again from its seeds. Remove logs with write_ahead.forget once the records are stored.
    """

    def __init__(self, workload: Workload, logs: str | os.PathLike | None = None):
        if logs is not None and not Path(logs).is_dir():
            raise ValueError(f"logs must be a folder that exists, or None; got {logs}")
        self.workload, self.logs, self.law = workload, None if logs is None else Path(logs), None

    def publish(self, policy: Policy, temperature: float = 1.0) -> str:
        """From now on shards are played by a copy of this policy at this temperature; returns its stamp."""
        self.law = Law(policy.stamp(temperature), temperature, self._parts(policy))
        return self.law.stamp

    def start(self, shard: Shard) -> None:
        """Queue a shard under the published policy."""
        raise NotImplementedError

    def finished(self, timeout: float | int | None = None) -> list[Played]:
        """Shards that are done, at least one unless `timeout` seconds pass first or none was started. Each is given out once.

        Raises: what a worker raised, LostWorker or WrongRecord. The shard is then back in the queue: mend that and call again.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Forget all shards that were started and not given out."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop all workers."""

    def collect(
        self,
        plays: Sequence[Play],
        *,
        known: Mapping[int, Record] = {},
        seen: Callable[[Sequence[Record]], None] = lambda records: None,
    ) -> list[Record]:
        """A record of each play, in their order, by the published policy.

        known: records by number of play that are there already; these plays are not made again, and the rest of their shards is
        played in its own rows. seen: is shown the records of each shard as soon as it is done, to store them.
        Raises: as finished, after abandoning the rest. What `seen` was shown counts: collect again with it as known.
        """
        found = {number: accepted(known[number], plays[number], number % self.workload.rows, self) for number in known}
        waiting = 0
        for shard in self.workload.shards(plays):
            left = {row: play for row, play in shard.plays.items() if shard.number * self.workload.rows + row not in known}
            if left:
                self.start(Shard(shard.number, left))
                waiting += 1
        try:
            while waiting:
                for shard, records in self.finished():
                    seen([records[row] for row in sorted(records)])
                    found |= {shard.number * self.workload.rows + row: record for row, record in records.items()}
                    waiting -= 1
        except BaseException:
            self.abandon()
            raise
        return [found[number] for number in range(len(plays))]

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self, policy: Policy) -> Any:
        raise NotImplementedError


class InProcess(Engine):
    """One shard after another, here. The engine that the others are compared with."""

    def __init__(self, workload: Workload, logs: str | os.PathLike | None = None):
        super().__init__(workload, logs)
        self._setting, self._queue = workload.setting(), deque()

    def start(self, shard: Shard) -> None:
        self._queue.append((_published(self), shard))

    def finished(self, timeout: float | int | None = None) -> list[Played]:
        if not self._queue:
            return []
        law, shard = self._queue[0]
        records = play_shard(law.parts, law.temperature, self._setting, self.workload, self.logs, shard)
        self._queue.popleft()
        return [(shard, records)]

    def abandon(self) -> None:
        self._queue.clear()

    def _parts(self, policy: Policy) -> Policy:
        spec, weights = policy.to_spec()
        return Policy.from_spec(spec, weights)  # a copy: the learner goes on while shards are played


class Pool(Engine):
    """What engines with workers elsewhere share: a queue, and patience with workers that die. Policies need a Decoder of the course."""

    def __init__(self, workload: Workload, logs: str | os.PathLike | None = None):
        super().__init__(workload, logs)
        self.replaced = 0  # workers that died
        self._queue: deque[tuple[Law, Shard]] = deque()
        # By shard (None: before one was given): workers that died over it in a row without coming on, and how much was logged then.
        self._deaths: dict[int | None, tuple[int, int]] = {}

    def start(self, shard: Shard) -> None:
        self._queue.append((_published(self), shard))
        self._assign()

    def abandon(self) -> None:
        self._queue.clear()
        self._deaths.clear()

    def _parts(self, policy: Policy) -> Any:
        spec, weights = policy.to_spec()
        return spec, {name: weight.cpu().numpy().copy() for name, weight in weights.items()}

    def _assign(self) -> None:
        """Give queued shards to idle workers."""
        raise NotImplementedError

    def _heard(self, said: "Said", law: Law, shard: Shard) -> Played:
        """The records of a worker's answer. Raises what it raised, or WrongRecord; the shard is back in the queue then."""
        kind, what = said
        try:
            if kind == "error":
                raise what
            if set(what) != set(shard.plays):
                raise WrongRecord(f"a worker must give a record of each row {sorted(shard.plays)}; got {sorted(what)}")
            records = {row: accepted(what[row], play, row, self, law) for row, play in shard.plays.items()}
        except Exception:
            self._queue.appendleft((law, shard))
            raise
        self._deaths.clear()
        return shard, records

    def _died(self, task: tuple[Law, Shard] | None, how: str) -> LostWorker | None:
        """A worker is gone: its shard goes to the front of the queue. The error to raise if that happens again and again."""
        self.replaced += 1
        if task is not None:
            self._queue.appendleft(task)
        lost, logged = (None, 0) if task is None else (task[1].number, self._logged(task[1]))
        deaths, before = self._deaths.get(lost, (0, 0))
        deaths = 1 if logged > before else deaths + 1
        self._deaths[lost] = deaths, logged
        if deaths <= PATIENCE:
            return None
        self._deaths.clear()
        over = "before it was given a shard" if lost is None else f"over shard {lost}"
        return LostWorker(
            f"a worker must live long enough to get on; {deaths} in a row died {over} ({how}): nothing is lost, look for what kills "
            f"them (memory?) and go on"
        )

    def _logged(self, shard: Shard) -> int:
        """Bytes in the logs of a shard."""
        paths = [] if self.logs is None else [log_path(self.logs, play) for play in shard.plays.values()]
        return sum(path.stat().st_size for path in paths if path.exists())


Said = tuple[str, Any]  # "records" with plain records by row, or "error" with an exception


class Player:
    """The worker's side: plays shards, and makes a policy only when the law changes."""

    def __init__(self, workload: Workload, logs: Path | None):
        self.workload, self.logs, self.setting = workload, logs, workload.setting()
        self._stamp, self._policy = "", None

    def play(self, law: Law, shard: Shard) -> Said:
        try:
            if self._stamp != law.stamp:
                self._stamp, self._policy = "", None
                self._policy = policy_of(law)
                self._stamp = law.stamp
            records = play_shard(self._policy, law.temperature, self.setting, self.workload, self.logs, shard)
            return "records", {row: record.to_json() for row, record in records.items()}
        except Exception as error:
            return "error", _sendable(error)


def policy_of(law: Law) -> Policy:
    """The policy of a law, made from its parts. Raises WrongRecord if its stamp is another: it would sign episodes with a wrong name."""
    spec, weights = law.parts
    policy = Policy.from_spec(spec, {name: torch.from_numpy(weight.copy()) for name, weight in weights.items()})
    if (stamp := policy.stamp(law.temperature)) != law.stamp:
        raise WrongRecord(
            f"policy must have the stamp it was published under, {law.stamp[:12]}; it has {stamp[:12]}: publish again"
        )
    return policy


def _sendable(error: Exception) -> Exception:
    """The error without what can't travel; of its own kind where that can be made from its text."""
    try:
        return type(error)(*error.args)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def play_shard(
    policy: Policy, temperature: float, setting: Setting, workload: Workload, logs: Path | None, shard: Shard
) -> dict[int, Record]:
    """The records of a shard by row: the one place where an engine's episodes come from."""
    options = {
        "grader": setting.grader, "max_action_tokens": setting.max_action_tokens, "temperature": temperature, "key": setting.key,
        "step": setting.step, "rows": workload.rows, "columns": workload.columns,
    }  # fmt: skip
    if logs is None:
        return play_episodes(policy, setting.world, shard.plays, **options)[0]
    return play_logged(policy, setting.world, shard.plays, folder=logs, **options)


def accepted(made: Any, play: Play, row: int, engine: Engine, law: Law | None = None) -> Record:
    """The record, if it is of this play, row and policy; made may be plain data from another process.

    Raises: WrongRecord that names what differs. It is not stored, and the play can be made again.
    """
    law, shape = law or _published(engine), engine.workload
    try:
        record = made if isinstance(made, Record) else Record.from_json(made)
    except ValueError as error:
        raise WrongRecord(f"a worker must give whole records; {error}") from None
    layout = record.layout
    expected = {
        "policy": law.stamp, "task": play.task.digest(), "environment_seed": play.environment_seed,
        "sampling_seed": play.sampling_seed, "noise_episode": play.noise_episode, "batch": (shape.rows, row, shape.columns),
    }  # fmt: skip
    found = {
        "policy": record.versions.policy, "task": record.task_digest, "environment_seed": record.environment_seed,
        "sampling_seed": record.sampling_seed, "noise_episode": record.noise_episode,
        "batch": (layout.rows, layout.row, layout.columns),
    }  # fmt: skip
    wrong = [
        f"{name} must be {str(expected[name])[:16]}, got {str(found[name])[:16]}"
        for name in expected
        if expected[name] != found[name]
    ]
    if wrong:
        raise WrongRecord(f"record {record.episode[:12]}: {'; '.join(wrong)}: it was not stored, make its play again")
    return record


def _published(engine: Engine) -> Law:
    if engine.law is None:
        raise ValueError("a policy must be published before a shard is started; none was")
    return engine.law


# ---------------------------------------------------------------- the three tools as a workload


def tool_setting(wait: float | int = 0, tail: float | int = 1.5, longest: float | int = 1.0) -> Setting:
    """The three tools of training.tool_agent, whose look and calc may take their time: see slow_step."""
    step = slow_step(wait, tail, longest) if wait else kernel.step
    return Setting(task_world(), grade, MAX_ACTION_TOKENS, step)


def tool_workload(rows: int = 8, columns: int = 16, **waiting: float | int) -> Workload:
    """columns hold the prompts of tool_agent's online and held-out tasks. waiting: arguments of tool_setting."""
    return Workload(Recipe(f"{__name__}:tool_setting", waiting), rows, columns)


def slow_step(wait: float | int, tail: float | int, longest: float | int) -> Callable[[State, str], Transition]:
    """step= of tools that answer as ever, but late, by seconds_of."""
    seconds_of(wait, tail, longest, 0, 0)

    def step(state: State, text: str) -> Transition:
        time.sleep(seconds_of(wait, tail, longest, state.seed, state.step))
        return kernel.step(state, text)

    return step


def seconds_of(wait: float | int, tail: float | int, longest: float | int, environment_seed: int, number: int) -> float | int:
    """How long an action takes: number `number` of the episode with this seed of the environment. A replay waits as long.

    seconds = min(longest, wait * u^(-1/tail)),   u uniform in (0, 1]: a Pareto law with shape `tail`
    """
    if wait < 0 or tail <= 0 or longest < wait:
        raise ValueError(f"wait must be at least 0, tail positive and longest at least wait; got {wait}, {tail} and {longest}")
    u = 1.0 - random.Random(f"wait {environment_seed} {number}").random()
    return min(longest, wait * u ** (-1 / tail))
