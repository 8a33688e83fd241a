"""Rollout workers as processes of this machine. One that dies is replaced in tens of milliseconds and its shard is gone on with.

Workers are forked from a server that has imported everything and never computes; they end with the process that started them.
"""

import multiprocessing
import os
import threading
import time
from collections import Counter, deque
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from course.models.policy import Policy
from course.systems.engine import Engine, Law, LostWorker, Played, Shard, WrongRecord, Workload, _published, accepted, play_shard

PATIENCE = 50  # deaths over one shard, or in a row, after which a person should look


def context() -> Any:
    """The start method of all processes here. "__main__" is preloaded too, or each worker would import it again."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["__main__", "course.systems.processes", "course.training.round"])
    return made


def end_with_parent() -> None:
    """Let this process end as soon as the one that started it has ended, killed or not."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class _Worker:
    """A process with a pipe: what it plays, since when, and which law it knows."""

    def __init__(self, workload: Workload, logs: Path | None):
        made = context()
        self.pipe, theirs = made.Pipe()
        self.process = made.Process(target=_work, args=(theirs, workload, logs), daemon=True, name="rollout worker")
        self.process.start()
        theirs.close()
        self.task: tuple[Law, Shard] | None = None
        self.since, self.stamp = 0.0, ""

    def give(self, law: Law, shard: Shard) -> None:
        self.task, self.since = (law, shard), time.monotonic()
        try:
            if self.stamp != law.stamp:
                self.pipe.send(("policy", law))
                self.stamp = law.stamp
            self.pipe.send(("play", shard))
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is dead, which the next look finds

    def taken(self) -> tuple[str, Any] | None:
        """What it has sent, if anything: a worker may die behind its answer."""
        try:
            return self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Processes(Engine):
    """workers: how many. deadline: seconds after which a worker that has not finished its shard is killed and replaced; None waits.

    Only policies with a Decoder and a tokenizer of the course can be sent.
    """

    def __init__(
        self, workload: Workload, logs: str | os.PathLike | None = None, *, workers: int = 2, deadline: float | int | None = None
    ):
        super().__init__(workload, logs)
        if workers < 1:
            raise ValueError(f"workers must be at least 1; got {workers}")
        self.deadline, self.replaced = deadline, 0
        self._queue: deque[tuple[Law, Shard]] = deque()
        self._deaths: Counter = Counter()
        self._workers = [_Worker(workload, self.logs) for _ in range(workers)]

    @property
    def pids(self) -> list[int]:
        """Of the workers, now."""
        return [worker.process.pid for worker in self._workers]

    def start(self, shard: Shard) -> None:
        self._queue.append((_published(self), shard))
        self._assign()

    def finished(self, timeout: float | int | None = None) -> list[Played]:
        until, done = None if timeout is None else time.monotonic() + timeout, []
        while not done and (self._queue or any(worker.task for worker in self._workers)):
            self._assign()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0 and timeout:
                break
            parts = [x for worker in self._workers for x in (worker.pipe, worker.process.sentinel)]
            ready = wait(parts, min(x for x in (left, self.deadline, 3600) if x is not None))
            done = self._look(ready)
            if timeout == 0:
                break
        self._assign()
        return done

    def abandon(self) -> None:
        self._queue.clear()
        self._deaths.clear()
        for place, worker in enumerate(self._workers):
            if worker.task:
                worker.end()
                self._workers[place] = _Worker(self.workload, self.logs)

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []

    def _parts(self, policy: Policy) -> Any:
        spec, weights = policy.to_spec()
        return spec, {name: weight.cpu().numpy().copy() for name, weight in weights.items()}

    def _assign(self) -> None:
        for worker in self._workers:
            if self._queue and worker.task is None:
                worker.give(*self._queue.popleft())

    def _look(self, ready: list[Any]) -> list[Played]:
        done: list[Played] = []
        problem: Exception | None = None
        for place, worker in enumerate(self._workers):
            if worker.pipe in ready or worker.process.sentinel in ready:
                if (said := worker.taken()) is not None:
                    (law, shard), worker.task = worker.task, None
                    try:
                        done.append((shard, self._records(said, law, shard)))
                    except Exception as error:
                        self._queue.appendleft((law, shard))
                        problem = error
                elif not worker.process.is_alive() or worker.pipe in ready:
                    problem = self._replace(place) or problem
            elif self.deadline is not None and worker.task and time.monotonic() - worker.since > self.deadline:
                problem = self._replace(place) or problem
        if problem is not None and not done:
            raise problem
        return done

    def _records(self, said: tuple[str, Any], law: Law, shard: Shard) -> dict[int, Any]:
        kind, what = said
        if kind == "error":
            raise what
        if set(what) != set(shard.plays):
            raise WrongRecord(f"a worker must give a record of each row {sorted(shard.plays)}; got {sorted(what)}")
        self._deaths.clear()
        return {row: accepted(what[row], play, row, self, law) for row, play in shard.plays.items()}

    def _replace(self, place: int) -> LostWorker | None:
        """A new worker for one that is dead; its shard goes to the front of the queue."""
        worker, problem = self._workers[place], None
        worker.end()
        lost = None if worker.task is None else worker.task[1].number
        if worker.task is not None:
            self._queue.appendleft(worker.task)
        self._deaths[lost] += 1
        if self._deaths[lost] > PATIENCE:
            over = "before it was given a shard" if lost is None else f"over shard {lost}"
            self._deaths.clear()
            problem = LostWorker(
                f"a worker must live long enough to finish; {PATIENCE + 1} in a row died {over} (exit code "
                f"{worker.process.exitcode}): nothing is lost, look for what kills them (memory?) and go on"
            )
        self._workers[place], self.replaced = _Worker(self.workload, self.logs), self.replaced + 1
        return problem


def _work(pipe: Connection, workload: Workload, logs: Path | None) -> None:
    """The life of a worker."""
    torch.set_num_threads(1)
    end_with_parent()
    setting, policy, law = workload.setting(), None, None
    try:
        while True:
            kind, what = pipe.recv()
            if kind == "policy":
                policy, law = None, what
                continue
            try:
                policy = policy or policy_of(law)
                records = play_shard(policy, law.temperature, setting, workload, logs, what)
                said = "records", {row: record.to_json() for row, record in records.items()}
            except Exception as error:
                said = "error", _sendable(error)
            pipe.send(said)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # nobody is there any more


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
