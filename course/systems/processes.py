"""Rollout workers as processes of this machine. One that dies is replaced in tens of milliseconds and its shard is gone on with.

Workers are forked from a server that has imported everything and never computes; they end with the process that started them.
"""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import threading
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable

import torch

from course.systems.engine import Law, LostWorker, Played, Player, Pool, Said, Shard, Workload


def context(*more: str) -> Any:
    """The start method of all processes here, with more modules to import in the server, if it has not been started yet.

    "__main__" is among them, or each worker would import it again.
    """
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["__main__", "course.systems.run", *more])
    server = multiprocessing.forkserver._forkserver
    if getattr(server, "_forkserver_pid", 0) is None and getattr(server, "_forkserver_address", None):
        # This process came from a server, which its own children may use. Python means them to, but starts another one first, which
        # imports everything again (3.11 to 3.13).
        server.ensure_running = multiprocessing.resource_tracker.ensure_running
    return made


def end_with_parent() -> None:
    """Let this process end as soon as the one that started it has ended, killed or not; and let `ps` show what it is."""
    parent, comm = multiprocessing.parent_process(), Path("/proc/self/comm")
    if comm.exists():
        comm.write_text(multiprocessing.current_process().name[:15])

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Child:
    """A process of ours with a pipe: work(pipe, *args) is its life. It may die at any moment, also behind an answer."""

    def __init__(self, name: str, work: Callable[..., None], *args: Any):
        made = context()
        self.pipe, theirs = made.Pipe()
        self.process = made.Process(target=work, args=(theirs, *args), daemon=True, name=name)
        self.process.start()
        theirs.close()

    def tell(self, message: Any) -> bool:
        """Send; whether that was possible. A dead one is found at the next look."""
        try:
            self.pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def taken(self) -> Any:
        """What it has sent, None if nothing."""
        try:
            return self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def serve(pipe: Connection, answer: Callable[[Any], Any]) -> None:
    """The life of a child behind its preparations: one answer to each message, until nobody is there any more."""
    try:
        while True:
            pipe.send(answer(pipe.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


class _Worker(Child):
    """What it plays, since when, and which law it knows."""

    def __init__(self, workload: Workload, logs: Path | None):
        super().__init__("rollout worker", _work, workload, logs)
        self.task: tuple[Law, Shard] | None = None
        self.since, self.stamp = 0.0, ""

    def give(self, law: Law, shard: Shard) -> None:
        self.task, self.since = (law, shard), time.monotonic()
        if self.tell((None if self.stamp == law.stamp else law, shard)):
            self.stamp = law.stamp


class Processes(Pool):
    """workers: how many. deadline: seconds after which a worker that has not finished its shard is killed and replaced; None waits."""

    def __init__(
        self, workload: Workload, logs: str | os.PathLike | None = None, *, workers: int = 2, deadline: float | int | None = None
    ):
        super().__init__(workload, logs)
        if workers < 1:
            raise ValueError(f"workers must be at least 1; got {workers}")
        self.deadline = deadline
        self._workers = [_Worker(workload, self.logs) for _ in range(workers)]

    @property
    def pids(self) -> list[int]:
        """Of the workers, now."""
        return [worker.process.pid for worker in self._workers]

    def finished(self, timeout: float | int | None = None) -> list[Played]:
        until, done = None if timeout is None else time.monotonic() + timeout, []
        while not done and (self._queue or any(worker.task for worker in self._workers)):
            self._assign()
            left = None if until is None else until - time.monotonic()
            parts = [x for worker in self._workers for x in (worker.pipe, worker.process.sentinel)]
            done = self._look(wait(parts, min((x for x in (left, self.deadline) if x is not None), default=None)))
            if left is not None and left <= 0:
                break
        self._assign()
        return done

    def abandon(self) -> None:
        super().abandon()
        for place, worker in enumerate(self._workers):
            if worker.task:
                worker.end()
                self._workers[place] = _Worker(self.workload, self.logs)

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []

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
                    task, worker.task = worker.task, None
                    try:
                        done.append(self._heard(said, *task))
                    except Exception as error:
                        problem = error
                elif not worker.process.is_alive() or worker.pipe in ready:
                    problem = self._replace(place) or problem
            elif self.deadline is not None and worker.task and time.monotonic() - worker.since > self.deadline:
                problem = self._replace(place) or problem
        if problem is not None and not done:
            raise problem
        return done

    def _replace(self, place: int) -> LostWorker | None:
        worker = self._workers[place]
        worker.end()
        self._workers[place] = _Worker(self.workload, self.logs)
        return self._died(worker.task, f"exit code {worker.process.exitcode}")


def _work(pipe: Connection, workload: Workload, logs: Path | None) -> None:
    """The life of a worker."""
    torch.set_num_threads(1)
    end_with_parent()
    player, law = Player(workload, logs), None

    def played(message: tuple[Law | None, Shard]) -> Said:
        nonlocal law
        law = message[0] or law
        return player.play(law, message[1])

    serve(pipe, played)
