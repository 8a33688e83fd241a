"""A cluster as discrete events: workers whose tools are slow now and then, and a learner that takes batches of what they finish.

One rule says how far the workers may run ahead: with a limit of 0 it is the synchronous run. Episodes are drawn from a law, or they
are what one real worker was measured to do; then the simulation says what more of them would.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Sequence

import numpy as np

from course.rollout.episodes import Play
from course.rollout.record import Record
from course.systems.engine import Engine
from course.systems.latency import Tail, tails


@dataclass(frozen=True)
class Stratum:
    """A kind of task. share: of the tasks. Each of its turns computes for `compute` seconds and then waits for a tool:

        min(longest, wait * u^(-1 / tail)),   u uniform in (0, 1]

    a Pareto law, cut off where a tool times out; its mean is infinite for tail <= 1 without that.
    """

    share: float | int
    turns: int
    compute: float | int
    wait: float | int
    tail: float | int
    longest: float | int

    def __post_init__(self) -> None:
        if (
            not self.share > 0
            or self.turns < 1
            or self.compute < 0
            or self.wait < 0
            or self.longest < self.wait
            or not self.tail > 0
        ):
            raise ValueError(
                f"share and tail must be above 0, turns at least 1, compute and wait not negative, longest at least wait; got {self}"
            )


@dataclass(frozen=True)
class Jobs:
    """Episodes in the order in which they are begun: what each computes and waits for, in seconds, and its kind of task."""

    names: tuple[str, ...]
    stratum: np.ndarray  # [N], a place in names
    compute: np.ndarray  # [N]
    wait: np.ndarray  # [N]
    turns: np.ndarray  # [N]

    def __post_init__(self) -> None:
        parts = {name: getattr(self, name) for name in ("stratum", "compute", "wait", "turns")}
        if len({part.shape for part in parts.values()}) > 1 or self.stratum.ndim != 1:
            raise ValueError(
                f"stratum, compute, wait and turns must have one length; got {', '.join(str(p.shape) for p in parts.values())}"
            )
        for name, low in (("stratum", 0), ("compute", 0), ("wait", 0), ("turns", 1)):
            if not (np.isfinite(parts[name]).all() and (parts[name] >= low).all()):
                raise ValueError(f"{name} must be finite and at least {low}; got {parts[name].min()}")
        if len(self) and self.stratum.max() >= len(self.names):
            raise ValueError(f"stratum must be places in names, {len(self.names)} of them; got {self.stratum.max()}")

    def __len__(self) -> int:
        return len(self.stratum)


@dataclass(frozen=True)
class Learning:
    """The learner takes `batch` episodes, needs `update` seconds and publishes. An episode older than `limit` updates is dropped.

    Workers may have begun (version + 1 + limit) * batch episodes: more would be too old when their turn comes. So 0 is synchronous:
    all of a batch are of the newest version, and the learner waits for the last of them.
    """

    batch: int
    update: float | int
    limit: int

    def __post_init__(self) -> None:
        if self.batch < 1 or self.update < 0 or self.limit < 0:
            raise ValueError(f"batch must be at least 1, update and limit at least 0; got {self}")


@dataclass(frozen=True)
class Simulated:
    """waiting: the share of the learner's time in which it had no batch. trained: shares of the strata in what it was trained on."""

    seconds: float
    throughput: float  # finished episodes per second
    tails: Mapping[str, Tail]
    waiting: float
    updates: int
    mean_lag: float
    max_lag: int
    dropped: int
    trained: Mapping[str, float]


def draw_jobs(strata: Mapping[str, Stratum], count: int, seed: int) -> Jobs:
    """`count` episodes of the law of the strata."""
    draw, names = np.random.default_rng(seed), tuple(strata)
    shares = np.array([s.share for s in strata.values()], dtype=float)
    kind = draw.choice(len(names), count, p=shares / shares.sum())
    wait = np.zeros(count)
    for place, stratum in enumerate(strata.values()):
        mine = np.flatnonzero(kind == place)
        u = 1.0 - draw.random((len(mine), stratum.turns))
        wait[mine] = np.minimum(stratum.longest, stratum.wait * u ** (-1 / stratum.tail)).sum(1)
    turns = np.array([s.turns for s in strata.values()])[kind]
    compute = turns * np.array([s.compute for s in strata.values()], dtype=float)[kind]
    return Jobs(names, kind, compute, wait, turns)


def simulate(jobs: Jobs, *, workers: int, learning: Learning | None = None, cores: int | None = None) -> Simulated:
    """Play all jobs with so many workers, first come first served, and say what learner and workers lived through.

    cores: how many can compute at once; None gives every worker a machine of its own. learning=None: nobody learns, and workers run
    until all jobs are done. A learner counts up to its last update: what is left over then would be nobody's batch, and waiting for it
    says nothing about a run that goes on.
    Reduces to: one worker takes the sum of all compute and waiting; with as many workers and cores as jobs, the longest job.
    Raises: ValueError for less than one worker or core; ImportError, saying what to install, without simpy.
    Source: the layout of rollout workers and learner; staleness control as in AReaL (Fu et al. 2025, arXiv 2505.24298), section 5.1.
    """
    if workers < 1 or (cores is not None and cores < 1) or not len(jobs):
        raise ValueError(f"workers, cores and jobs must be at least 1; got {workers}, {cores} and {len(jobs)}")
    return _Cluster(jobs, learning, cores).run(workers)


class _Cluster:
    """The state of a simulation. Plain lists and deques: a million episodes pass through them."""

    def __init__(self, jobs: Jobs, learning: Learning | None, cores: int | None):
        simpy = _simpy()
        self.jobs, self.learning, self.env = jobs, learning, simpy.Environment()
        self.cores = None if cores is None else simpy.Resource(self.env, cores)
        self.alone = (jobs.compute + jobs.wait).tolist()  # seconds, where nothing is shared
        self.begun = self.version = self.dropped = self.running = 0
        self.start, self.end = np.zeros(len(jobs)), np.zeros(len(jobs))
        self.first_version = [0] * len(jobs)
        self.idle: deque[Any] = deque()  # events of workers that may not begin yet
        self.ready: deque[int] = deque()
        self.awaited: Any = None  # the learner's event while it waits
        self.waited = dict.fromkeys(jobs.names, 0.0)
        self.learned = 0.0  # when the last update was published
        self.lags: list[int] = []
        self.used: list[int] = []

    def run(self, workers: int) -> Simulated:
        for _ in range(min(workers, len(self.jobs))):
            self.env.process(self._worker())
        done = self.env.process(self._learner()) if self.learning else None
        self.env.run(done)
        return self._report()

    def _allowed(self) -> int:
        """How many episodes may have been begun by now."""
        if self.learning is None:
            return len(self.jobs)
        return min(len(self.jobs), (self.version + 1 + self.learning.limit) * self.learning.batch + self.dropped)

    def _worker(self) -> Iterator[Any]:
        env, alone, start, end, versions = self.env, self.alone, self.start, self.end, self.first_version
        while True:
            if self.begun >= self._allowed():
                if self.begun == len(self.jobs):
                    return
                self.idle.append(gate := env.event())
                yield gate
                continue
            job, self.begun, self.running = self.begun, self.begun + 1, self.running + 1
            start[job], versions[job] = env.now, self.version
            if self.cores is None:
                yield env.timeout(alone[job])
            else:
                yield from self._turns(job)
            end[job], self.running = env.now, self.running - 1
            self._finished(job)

    def _turns(self, job: int) -> Iterator[Any]:
        turns = int(self.jobs.turns[job])
        compute, wait = float(self.jobs.compute[job]) / turns, float(self.jobs.wait[job]) / turns
        for _ in range(turns):
            with self.cores.request() as core:
                yield core
                yield self.env.timeout(compute)
            yield self.env.timeout(wait)

    def _finished(self, job: int) -> None:
        if self.learning is None:
            return
        self.ready.append(job)
        self._sort_out()
        if self.awaited is not None and (len(self.ready) >= self.learning.batch or self._over()):
            waiting, self.awaited = self.awaited, None
            waiting.succeed(job)

    def _over(self) -> bool:
        """No batch will ever be full again."""
        return self.begun == len(self.jobs) and not self.running

    def _sort_out(self) -> None:
        """Drop what has become too old, oldest first; another may be begun for each."""
        while self.ready and self.version - self.first_version[self.ready[-1]] > self.learning.limit:
            self.ready.pop()
            self.dropped += 1
        self._open()

    def _open(self) -> None:
        free = self._allowed() - self.begun
        while self.idle and (free > 0 or self.begun == len(self.jobs)):
            self.idle.popleft().succeed()
            free -= 1

    def _learner(self) -> Iterator[Any]:
        batch, env = self.learning.batch, self.env
        while True:
            if len(self.ready) < batch:
                if self._over():
                    return
                since, self.awaited = env.now, env.event()
                last = yield self.awaited
                if len(self.ready) < batch:
                    return
                self.waited[self.jobs.names[self.jobs.stratum[last]]] += env.now - since
                continue
            taken = [self.ready.popleft() for _ in range(batch)]
            self.lags += [self.version - self.first_version[job] for job in taken]
            self.used += taken
            yield env.timeout(self.learning.update)
            self.version, self.learned = self.version + 1, env.now
            kept = [job for job in self.ready if self.version - self.first_version[job] <= self.learning.limit]
            self.dropped += len(self.ready) - len(kept)
            self.ready = deque(kept)
            self._open()

    def _report(self) -> Simulated:
        seconds, names = float(self.learned if self.version else self.env.now), self.jobs.names
        latency = {name: (self.end - self.start)[self.jobs.stratum == place] for place, name in enumerate(names)}
        counts = np.bincount(self.jobs.stratum[self.used], minlength=len(names)) if self.used else np.zeros(len(names))
        return Simulated(
            seconds=seconds,
            throughput=int((self.end <= seconds).sum()) / seconds if seconds else float("inf"),
            tails=tails(latency, self.waited, seconds),
            waiting=sum(self.waited.values()) / seconds if seconds else 0.0,
            updates=self.version,
            mean_lag=sum(self.lags) / len(self.lags) if self.lags else 0.0,
            max_lag=max(self.lags, default=0),
            dropped=self.dropped,
            trained={name: float(count) / max(1, len(self.used)) for name, count in zip(names, counts)},
        )


def _simpy() -> Any:
    try:
        import simpy
    except ImportError:
        raise ImportError("the simulation needs simpy: pip install 'agentic-rl-course[systems]'") from None
    return simpy


# ---------------------------------------------------------------- calibration


def measured_jobs(engine: Engine, plays: Sequence[Play], waits: Callable[[Record], float]) -> Jobs:
    """What each shard of the plays takes: the compute of one real worker, measured, and the seconds that its tools would wait.

    engine: with one worker that has a policy, has warmed up, and whose tools answer at once. All of its time counts as compute, its
    overheads too, since they hold a core. waits: how long slow tools take over the same episode.
    """
    shards = engine.workload.shards(plays)
    compute, wait, turns = [], [], []
    for shard in shards:
        began = time.perf_counter()
        engine.start(shard)
        ((_, records),) = engine.finished()
        compute.append(time.perf_counter() - began)
        wait.append(sum(map(waits, records.values())))
        turns.append(sum(len(record.steps) for record in records.values()))
    return Jobs(("shard",), np.zeros(len(shards), dtype=int), np.array(compute), np.array(wait), np.array(turns))


def measured_throughput(engine: Engine, plays: Sequence[Play]) -> float:
    """Shards per second of a collection by this engine, whose workers have warmed up."""
    began = time.perf_counter()
    engine.collect(plays)
    return len(engine.workload.shards(plays)) / (time.perf_counter() - began)
