"""Rollout workers as Ray actors, on this machine or a cluster: the third engine, for the extra `systems`.

Actors that die are replaced and their shards gone on with; on a cluster the folder of logs must be one that all machines share.
"""

import math
import os
import time
from pathlib import Path
from typing import Any

import torch

from course.systems.engine import Law, LostWorker, Played, Player, Pool, Said, Shard, Workload

TRIES = 4  # of a cluster on this machine: Ray fixes the seconds it waits, and a second start finds its files read already
START = 120  # seconds within which the first of some actors must be up


def start_ray(address: str | None = None, cpus: int | None = None) -> bool:
    """Connect to a cluster, or start one on this machine; returns whether that was needed. Nothing is reported to anybody.

    Raises: ImportError that says what to install; RuntimeError if no cluster comes up.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError("ray must be installed for this engine: pip install 'agentic-rl-course[systems]'") from error
    if ray.is_initialized():
        return False
    local = {} if address else {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": 100 * 2**20}
    for left in reversed(range(1 if address else TRIES)):
        try:
            ray.init(address=address, logging_level="ERROR", log_to_driver=False, **local)
            break
        except Exception as error:
            ray.shutdown()
            if not left:
                raise RuntimeError(
                    f"a Ray cluster must come up ({error}): its agents have 15 s for that, which is short on a busy machine; try "
                    f"again when it is quieter, or give the address of a running cluster"
                ) from error
    return True


def actor_class(made_of: type, actors: int, cpus: float | int, address: str | None) -> tuple[Any, Any, bool]:
    """(ray, the class for so many actors of `cpus` each, whether a cluster was started for them). None of Ray's own retries: the caller counts."""
    own = start_ray(address, None if address else max(1, math.ceil(actors * cpus)))
    import ray

    return ray, ray.remote(num_cpus=cpus, max_restarts=0, max_task_retries=0)(made_of), own


def no_place(who: str, seconds: float | int) -> RuntimeError:
    """The error for actors that Ray would let wait for ever."""
    return RuntimeError(
        f"{who} must start within {seconds} s: the cluster needs free CPUs for them, beside those of its other actors; nothing is lost"
    )


class _Actor:
    def __init__(self, workload: Workload, logs: Path | None):
        torch.set_num_threads(1)
        self.player = Player(workload, logs)

    def pid(self) -> int:
        return os.getpid()

    def play(self, law: Law, shard: Shard) -> Said:
        return self.player.play(law, shard)


class RayActors(Pool):
    """actors: how many, of `cpus` each. address: of a cluster, as ray.init takes it; None starts one here and stops it with close().

    Raises: as Pool; RuntimeError from finished() if no actor comes up, because the cluster has no free places for them.
    """

    def __init__(
        self, workload: Workload, logs: str | os.PathLike | None = None, *, actors: int = 2, cpus: float | int = 1,
        address: str | None = None,
    ):  # fmt: skip
        super().__init__(workload, logs)
        if actors < 1:
            raise ValueError(f"actors must be at least 1; got {actors}")
        self._ray, self._kind, self._own = actor_class(_Actor, actors, cpus, address)
        self._laws: dict[str, Any] = {}  # references, by stamp
        self._actors, self._pids = [None] * actors, [None] * actors
        self._up, self._since = False, time.monotonic()
        for place in range(actors):
            self._new(place)
        self._tasks: dict[
            Any, tuple[int, tuple[Law, Shard]]
        ] = {}  # by reference of the answer: place of the actor, what it plays

    @property
    def pids(self) -> list[int]:
        """Of the actors that have started, now."""
        ready, _ = self._ray.wait(self._pids, num_returns=len(self._pids), timeout=0)
        found = []
        for reference in ready:
            try:
                found.append(self._ray.get(reference))
            except self._ray.exceptions.RayError:
                pass  # dead before it had started
        return found

    def _new(self, place: int) -> None:
        self._actors[place] = self._kind.remote(self.workload, self.logs)
        self._pids[place] = self._actors[place].pid.remote()

    def finished(self, timeout: float | int | None = None) -> list[Played]:
        until, done = None if timeout is None else time.monotonic() + timeout, []
        while not done and (self._queue or self._tasks):
            self._assign()
            self._wait_for_a_first(until)
            left = None if until is None else max(0.0, until - time.monotonic())
            ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=left)
            for reference in ready:
                place, task = self._tasks.pop(reference)
                try:
                    said = self._ray.get(reference)
                except self._ray.exceptions.RayError as error:  # the actor, its machine's memory or disk, or its answer is gone
                    if problem := self._replace(place, task, str(error).partition("\n")[0]):
                        raise problem from None
                    continue
                done.append(self._heard(said, *task))
            if left == 0:
                break
        self._assign()
        return done

    def _wait_for_a_first(self, until: float | None) -> None:
        """Until an actor is up, or has died trying, but not beyond `until`. Ray itself would wait for places for ever and say nothing."""
        if self._up:
            return
        last = self._since + START
        patience = max(0.0, (last if until is None else min(last, until)) - time.monotonic())
        self._up = bool(self._ray.wait(self._pids, num_returns=1, timeout=patience)[0])
        if not self._up and (until is None or last <= until):
            raise no_place("actors", START)

    def abandon(self) -> None:
        super().abandon()
        for place in {place for place, _ in self._tasks.values()}:
            self._ray.kill(self._actors[place])
            self._new(place)
        self._tasks.clear()

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors, self._tasks = [], {}
        if self._own:
            self._ray.shutdown()

    def _assign(self) -> None:
        busy = {place for place, _ in self._tasks.values()}
        for place, actor in enumerate(self._actors):
            if self._queue and place not in busy:
                law, shard = self._queue.popleft()
                if law.stamp not in self._laws:
                    used = {task[0].stamp for _, task in self._tasks.values()} | {waiting.stamp for waiting, _ in self._queue}
                    self._laws = {stamp: put for stamp, put in self._laws.items() if stamp in used}
                    self._laws[law.stamp] = self._ray.put(law)
                self._tasks[actor.play.remote(self._laws[law.stamp], shard)] = (place, (law, shard))

    def _replace(self, place: int, task: tuple[Law, Shard], how: str) -> LostWorker | None:
        self._new(place)
        return self._died(task, how)
