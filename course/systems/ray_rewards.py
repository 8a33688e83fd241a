"""Rewards from Ray actors, on this machine or a cluster: the desk and its promises are those of reward_service."""

import os
import time
from typing import Any

from course.rollout.record import Record
from course.rollout.replay import Recipe
from course.systems.ray_cluster import START, actor_class, no_place
from course.systems.reward_service import NEVER, FarGrader, Retry, RewardService, Send


class _Actor(FarGrader):
    def pid(self) -> int:
        return os.getpid()


class _RayGrader:
    """A grader elsewhere: the attempt it is busy with, until when, and the reference of its answer."""

    def __init__(self, ray: Any, kind: Any, make: Recipe):
        self._ray, self._actor = ray, kind.remote(make)
        self._pid = self.answer = self._actor.pid.remote()
        self._started, self.since = False, time.monotonic()
        self.task: Send | None = None
        self.until = NEVER

    @property
    def pid(self) -> int | None:
        """None before it has started, or if it died before that; of one that died later still the old one, until it is replaced."""
        try:
            return self._ray.get(self._pid) if self.has_started() else None
        except self._ray.exceptions.RayError:
            return None

    def has_started(self) -> bool:
        self._started = self._started or bool(self._ray.wait([self._pid], timeout=0)[0])
        return self._started

    def idle(self) -> bool:
        """Not before it has started: that takes seconds, which no attempt has to pay for."""
        return self.task is None and self.has_started()

    def alive(self) -> bool:
        """One that has died with nothing to do is found at its next task, which costs that task one attempt."""
        return True

    def give(self, send: Send, record: Record, until: float) -> None:
        self.task, self.until = send, until
        self.answer = self._actor.answer.remote(record.to_json(), send.attempt)

    def taken(self) -> Any:
        try:
            return self._ray.get(self.answer)
        except self._ray.exceptions.RayError:  # the actor or its machine is gone
            return None

    def end(self) -> None:
        self._ray.kill(self._actor)


class RayRewardService(RewardService):
    """A RewardService whose graders are Ray actors of `cpus` each. address: of a cluster; None starts one here, and close() stops it.

    Raises: as RewardService; RuntimeError if no grader comes up, because the cluster has no free places for them.
    """

    def __init__(
        self, make: Recipe, source: str, version: str, *, retry: Retry = Retry(), workers: int = 2,
        observed: tuple[str, ...] = ("task", "trajectory"), cpus: float | int = 0.5, address: str | None = None,
    ):  # fmt: skip
        self._ray, self._kind, self._own = actor_class(_Actor, workers, cpus, address)
        try:
            super().__init__(make, source, version, retry=retry, workers=workers, observed=observed)
        except ValueError:
            if self._own:
                self._ray.shutdown()
            raise

    @property
    def pids(self) -> list[int]:
        """Of the graders that have started; one that died with nothing to do is still among them."""
        return [pid for grader in self._graders if (pid := grader.pid) is not None]

    def close(self) -> None:
        super().close()
        if self._own:
            self._ray.shutdown()

    def _new(self) -> _RayGrader:
        return _RayGrader(self._ray, self._kind, self.make)

    def _stirring(self, timeout: float | int) -> list[_RayGrader]:
        """Those that have answered, died or started."""
        if all(not grader.has_started() and time.monotonic() - grader.since > START for grader in self._graders):
            raise no_place("graders", START)
        awaited = {grader.answer: grader for grader in self._graders if grader.task is not None or not grader.has_started()}
        if not awaited:
            time.sleep(timeout)  # until something is due: Ray has nothing to wait for
            return []
        if not self._ray.wait(list(awaited), num_returns=1, timeout=min(timeout, START))[0]:
            return []
        ready, _ = self._ray.wait(list(awaited), num_returns=len(awaited), timeout=0)  # whoever else has answered is not late
        return [awaited[reference] for reference in ready]
