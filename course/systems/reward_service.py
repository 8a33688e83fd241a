"""Rewards that come late: out of order, after failures and retries, or never. A missing reward is missing, and nobody waits for it.

The desk decides what is asked when, and what counts as an answer; it has no clock, process or randomness, so that every order of
events can be tried. The service under it runs graders in processes that may hang or die.
"""

import hashlib
import time
from collections import deque
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Callable, Iterable, Literal, Sequence

from course.feedback.events import FeedbackEvent, evidence_event
from course.rollout.record import Record
from course.rollout.replay import Recipe
from course.systems.processes import Child, end_with_parent, serve

NEVER = float("inf")


class StaleReward(ValueError):
    """A reward of another record, or by another grader or version of it, than was asked."""


@dataclass(frozen=True)
class Retry:
    """attempts: at most so many for one record. After failure k the next one waits backoff * factor ** (k - 1). Seconds."""

    attempts: int = 3
    timeout: float | int = 10.0
    backoff: float | int = 0.5
    factor: float | int = 2.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or not self.timeout > 0 or not self.backoff >= 0 or not self.factor >= 1:
            raise ValueError(f"attempts must be at least 1, timeout above 0, backoff at least 0, factor at least 1; got {self}")

    def pause(self, failures: int) -> float:
        return self.backoff * self.factor ** (failures - 1)


@dataclass(frozen=True)
class Send:
    """What is to be graded now."""

    record: str  # content hash
    attempt: int  # 1 for the first


@dataclass(frozen=True)
class Request:
    """What is known about one record's reward. at: when its next attempt is due, or when the running one has timed out."""

    state: Literal["due", "running", "settled"]
    attempt: int  # the running or last one; 0 before the first
    at: float
    event: FeedbackEvent | None = None  # once settled: the grader's word, or an abstention that says why there is none
    reason: str = ""  # of the last failure


class Desk:
    """Requests by record, each on its own. Times are given by the caller, in seconds that never go back.

    source, version: the grader that is asked. observed: what it can see, for the abstentions written in its place.
    """

    def __init__(self, source: str, version: str, retry: Retry = Retry(), observed: tuple[str, ...] = ("task", "trajectory")):
        self.source, self.version, self.retry, self.observed = source, version, retry, observed
        self.requests: dict[str, Request] = {}
        self.ignored = 0  # answers that came twice, or too late

    def ask(self, record: str, now: float | int) -> None:
        """Ask for a reward; asking again changes nothing."""
        self.requests.setdefault(record, Request("due", 0, now))

    def due(self, now: float | int, most: int | None = None) -> list[Send]:
        """Start what is due, those that have waited longest first, at most so many; the caller carries it out."""
        waiting = sorted((r.at, i, name) for i, (name, r) in enumerate(self.requests.items()) if r.state == "due" and r.at <= now)
        sends = [Send(name, self.requests[name].attempt + 1) for _, _, name in waiting[:most]]
        for send in sends:
            request = self.requests[send.record]
            self.requests[send.record] = replace(request, state="running", attempt=send.attempt, at=now + self.retry.timeout)
        return sends

    def answer(self, record: str, event: FeedbackEvent) -> bool:
        """Take an answer, of whichever attempt; returns whether it counts. The first one does, later ones are ignored.

        Raises: StaleReward if the event is about another record than the one it answers, this was never asked, or another grader
        or version gave it. The request stays as it was: a wrong answer is none, and another one may still come.
        """
        if record not in self.requests or event.record != record:
            raise StaleReward(f"record must be one that was asked, and the event's; got {record[:12]} and {event.record[:12]}")
        if (event.source, event.version) != (self.source, self.version):
            got, wanted = f"{event.source}@{event.version}", f"{self.source}@{self.version}"
            raise StaleReward(f"event must be by {wanted}; got {got} for record {record[:12]}: ask again")
        request = self.requests[record]
        if request.state == "settled":
            self.ignored += 1
            return False
        self.requests[record] = replace(request, state="settled", at=NEVER, event=event)
        return True

    def fail(self, record: str, attempt: int, reason: str, now: float | int) -> None:
        """The attempt came to nothing. It is made again after a pause; after the last one the reward is missing."""
        request = self.requests.get(record)
        if request is None or request.state != "running" or request.attempt != attempt:
            return  # settled, or given up already: that attempt no longer counts
        if attempt < self.retry.attempts:
            self.requests[record] = replace(request, state="due", at=now + self.retry.pause(attempt), reason=reason)
            return
        why = f"missing after {attempt} attempts; the last one: {reason}"
        event = FeedbackEvent(record, "abstention", None, self.observed, self.source, self.version, why)
        self.requests[record] = Request("settled", attempt, NEVER, event, reason)

    def expire(self, now: float | int) -> list[Send]:
        """Give up attempts that have run too long; returns them, so that the caller can stop them."""
        late = [Send(name, r.attempt) for name, r in self.requests.items() if r.state == "running" and r.at <= now]
        for send in late:
            self.fail(send.record, send.attempt, f"no answer in {self.retry.timeout:g} s", now)
        return late

    def next_time(self) -> float:
        """When there will be something to start or to give up; infinity if never."""
        return min((r.at for r in self.requests.values()), default=NEVER)

    def event(self, record: str) -> FeedbackEvent | None:
        """The settled word on a record: a score, or an abstention if it is missing. None while it may still come."""
        request = self.requests.get(record)
        return None if request is None else request.event

    def settled(self, records: Iterable[str]) -> list[FeedbackEvent]:
        """What is settled among these records, in their order. The others are not in it, and hold nothing up."""
        return [event for record in records if (event := self.event(record)) is not None]

    def forget(self, records: Iterable[str]) -> None:
        """Drop requests; a later answer to one of them is stale."""
        for record in records:
            self.requests.pop(record, None)


# ---------------------------------------------------------------- graders in processes

Grade = Callable[[Record, int], FeedbackEvent]  # (record, attempt) -> event; may raise, hang or kill its process


def recorded_evidence() -> Grade:
    """The verifier's word that came with the record."""
    return lambda record, attempt: evidence_event(record)


def unreliable(make: Recipe, seed: int, *, fails: float | int = 0, hangs: float | int = 0, dies: float | int = 0) -> Grade:
    """A grader that fails by lot, for experiments: (seed, record, attempt) decide whether it raises, hangs or ends its process."""
    grade = make.made()

    def graded(record: Record, attempt: int) -> FeedbackEvent:
        text = f"{seed} {record.content_hash} {attempt}".encode()
        lot = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") / 2**64
        if lot < dies:
            raise SystemExit(1)
        if lot < dies + hangs:
            time.sleep(3600)
        if lot < dies + hangs + fails:
            raise RuntimeError("the service is unavailable")
        return grade(record, attempt)

    return graded


class _Grader(Child):
    """The attempt it is busy with, and until when."""

    def __init__(self, make: Recipe):
        super().__init__("reward service", _work, make)
        self.task: Send | None = None
        self.until = NEVER  # when the task has timed out

    @property
    def pid(self) -> int:
        return self.process.pid

    def idle(self) -> bool:
        return self.task is None

    def alive(self) -> bool:
        return self.process.is_alive()

    def give(self, send: Send, record: Record, until: float) -> None:
        self.task, self.until = send, until
        self.tell((record.to_json(), send.attempt))


class RewardService:
    """Graders in processes behind a desk. make gives the Grade in any process; source and version are those of its events.

    A grader that is over its time is killed and replaced, and so is one that has died: a hung one would never be freed.
    """

    def __init__(
        self, make: Recipe, source: str, version: str, *, retry: Retry = Retry(), workers: int = 2,
        observed: tuple[str, ...] = ("task", "trajectory"),
    ):  # fmt: skip
        if workers < 1:
            raise ValueError(f"workers must be at least 1; got {workers}")
        self.make, self.desk, self.replaced = make, Desk(source, version, retry, observed), 0
        self.stale: deque[str] = deque(maxlen=100)  # what was wrong with answers that were refused
        self._records: dict[str, Record] = {}
        self._graders = [self._new() for _ in range(workers)]

    @property
    def pids(self) -> list[int]:
        """Of the graders, now."""
        return [grader.pid for grader in self._graders]

    def ask(self, records: Sequence[Record]) -> None:
        """Start asking for the rewards of these records; returns at once."""
        for record in records:
            self._records[record.content_hash] = record
            self.desk.ask(record.content_hash, time.monotonic())
        self._start()

    def settled(self, records: Sequence[Record], timeout: float | int = 0) -> list[FeedbackEvent]:
        """The events that are there, in the order of records; waits until all are or `timeout` seconds have passed.

        A record whose reward may still come has no event in the list. One that is missing for good has an abstention.
        """
        names, until = [record.content_hash for record in records], time.monotonic() + timeout
        unknown = [name[:12] for name in names if name not in self.desk.requests]
        if unknown:
            raise ValueError(f"records must have been asked about; got {', '.join(unknown)}")
        while True:
            self._look(0)
            events = self.desk.settled(names)
            left = until - time.monotonic()
            if len(events) == len(names) or left <= 0:
                return events
            self._look(min(left, max(0.0, self._wake() - time.monotonic())))

    def feedback(self, records: Sequence[Record], seed: int) -> list[FeedbackEvent]:
        """feedback= of a round: one event for each record, in order. Retries end, so this does; then nothing of them is kept."""
        self.ask(records)
        events = self.settled(records, timeout=NEVER)
        self.forget(records)
        return events

    def forget(self, records: Sequence[Record]) -> None:
        """Drop what was asked about these records, settled or not."""
        self.desk.forget(record.content_hash for record in records)
        for record in records:
            self._records.pop(record.content_hash, None)

    def close(self) -> None:
        for grader in self._graders:
            grader.end()
        self._graders = []

    def _start(self) -> None:
        """Give what is due to graders that have nothing to do; one that has died meanwhile is replaced first."""
        now = time.monotonic()
        idle = [place for place, grader in enumerate(self._graders) if grader.idle()]
        for place, send in zip(idle, self.desk.due(now, len(idle))):
            if not self._graders[place].alive():
                self._replace(place, "")
            self._graders[place].give(send, self._records[send.record], now + self.desk.retry.timeout)

    def _wake(self) -> float:
        """When to look again if no grader says anything: at a timeout, or when something is due and a grader is idle."""
        times = [grader.until for grader in self._graders if grader.task is not None]
        return min(times + ([self.desk.next_time()] if any(grader.idle() for grader in self._graders) else []), default=NEVER)

    def _look(self, timeout: float | int) -> None:
        """Wait for something to happen, at most so long; take answers, see to the dead and the late, start what is due."""
        ready = self._stirring(min(timeout, 3600))
        for place, grader in enumerate(self._graders):
            if grader.task is None:
                continue
            if grader in ready and (said := grader.taken()) is not None:
                self._hear(*said, grader)
            elif grader in ready:
                self._replace(place, "its process died")
            elif time.monotonic() >= grader.until:
                self._replace(place, f"no answer in {self.desk.retry.timeout:g} s")
        self._start()

    def _new(self) -> Any:
        return _Grader(self.make)

    def _stirring(self, timeout: float | int) -> list[Any]:
        """Graders that have answered or died, as soon as there is one, or after so many seconds."""
        busy = [grader for grader in self._graders if grader.task is not None]
        handles = {handle: grader for grader in busy for handle in (grader.pipe, grader.process.sentinel)}
        return [handles[handle] for handle in wait(list(handles), timeout)]

    def _hear(self, kind: str, what: Any, grader: Any) -> None:
        send, grader.task = grader.task, None
        reason = what
        if kind == "event":
            try:
                self.desk.answer(send.record, FeedbackEvent.from_json(what))
                return
            except StaleReward as error:
                reason = str(error)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                reason = f"no event: {type(error).__name__}: {error}"
            self.stale.append(reason)
        self.desk.fail(send.record, send.attempt, reason, time.monotonic())

    def _replace(self, place: int, reason: str) -> None:
        grader = self._graders[place]
        grader.end()
        if grader.task is not None:
            self.desk.fail(grader.task.record, grader.task.attempt, reason, time.monotonic())
        self._graders[place], self.replaced = self._new(), self.replaced + 1


class FarGrader:
    """What stands where the grading is done: makes its grade at the first question, and answers in plain data."""

    def __init__(self, make: Recipe):
        self.make, self.grade = make, None

    def answer(self, data: Any, attempt: int) -> tuple[str, Any]:
        try:
            self.grade = self.grade or self.make.made()
            return "event", self.grade(Record.from_json(data), attempt).to_json()
        except Exception as error:
            return "error", f"{type(error).__name__}: {error}"


def _work(pipe: Connection, make: Recipe) -> None:
    """The life of a grader."""
    end_with_parent()
    far = FarGrader(make)
    serve(pipe, lambda message: far.answer(*message))
