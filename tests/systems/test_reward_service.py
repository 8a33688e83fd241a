"""Rewards that come late. The desk under every order of events that hypothesis finds, and graders in real processes that fail."""

import os
import signal
import time
from collections import Counter

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
import pytest

from course.feedback.events import FeedbackEvent, evidence_event
from course.rollout.replay import Recipe
from course.systems.reward_service import Desk, Retry, RewardService, StaleReward, unreliable
from course.training import tool_agent

NAMES = [f"record {i}" for i in range(5)]
RETRY = Retry(attempts=3, timeout=10.0, backoff=1.0, factor=2.0)


def score(record, value=1.0, source="grader", version="1"):
    return FeedbackEvent(record, "score", value, ("task", "trajectory"), source, version)


class Late(RuleBasedStateMachine):
    """Asks, starts, answers, failures, duplicates, strays and time in any order, against a list of what really was answered."""

    def __init__(self):
        super().__init__()
        self.desk, self.now = Desk("grader", "1", RETRY), 0.0
        self.asked, self.sent, self.answered, self.starts = [], [], {}, Counter()
        self.begun, self.ended = {}, {}

    @rule(name=st.sampled_from(NAMES))
    def ask(self, name):
        self.desk.ask(name, self.now)
        self.asked += [name] if name not in self.asked else []

    @rule(most=st.none() | st.integers(1, 3))
    def start(self, most):
        for send in self.desk.due(self.now, most):
            assert send.record not in self.answered, "a settled reward was asked for again"
            self.starts[send.record] += 1
            assert send.attempt == self.starts[send.record] <= RETRY.attempts
            if send.attempt > 1:  # backoff: 1 s after the first failure, 2 after the second
                assert self.now >= self.ended[send.record] + RETRY.backoff * RETRY.factor ** (send.attempt - 2)
            self.begun[send.record] = self.now
            self.sent.append(send)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), value=st.floats(-2, 2))
    def answer(self, data, value):
        """Of any attempt ever sent, late ones and duplicates too."""
        send = data.draw(st.sampled_from(self.sent))
        before = self.desk.event(send.record)
        counted = self.desk.answer(send.record, score(send.record, value))
        assert counted == (before is None)
        if counted:
            self.answered[send.record] = value
        else:
            assert self.desk.event(send.record) is before

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def fail(self, data):
        send = data.draw(st.sampled_from(self.sent))
        request = self.desk.requests[send.record]
        if request.state == "running" and request.attempt == send.attempt:
            self.ended[send.record] = self.now
        self.desk.fail(send.record, send.attempt, "broken", self.now)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 12.0]))
    def pass_time(self, seconds):
        self.now += seconds
        for send in self.desk.expire(self.now):
            assert self.now >= self.begun[send.record] + RETRY.timeout
            self.ended[send.record] = self.now

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), wrong=st.sampled_from(["record", "version", "source", "unknown"]))
    def stray(self, data, wrong):
        name = data.draw(st.sampled_from(self.asked))
        before = dict(self.desk.requests)
        event = {
            "record": score(name + " of another run"),
            "version": score(name, version="0"),
            "source": score(name, source="another"),
            "unknown": score("nobody asked"),
        }[wrong]
        with pytest.raises(StaleReward):
            self.desk.answer("nobody asked" if wrong == "unknown" else name, event)
        assert self.desk.requests == before

    @invariant()
    def missing_is_missing_and_never_a_number(self):
        for name in self.asked:
            event = self.desk.event(name)
            if name in self.answered:
                assert event.kind == "score" and event.value == self.answered[name]
            elif event is not None:
                assert event.kind == "abstention" and event.value is None and "missing after 3 attempts" in event.reason
                assert self.starts[name] == RETRY.attempts
        assert len(self.desk.requests) == len(self.asked)

    @invariant()
    def nobody_waits_for_another(self):
        there = [name for name in self.asked if self.desk.event(name) is not None]
        assert [event.record for event in self.desk.settled(self.asked)] == there

    def teardown(self):
        """Left alone, every request ends: nothing hangs for good."""
        for _ in range(4 * RETRY.attempts * len(NAMES)):
            self.desk.due(self.now)
            self.now += 10.0
            self.desk.expire(self.now)
        assert all(self.desk.event(name) is not None for name in self.asked)
        assert self.desk.next_time() == float("inf")


TestLate = Late.TestCase
TestLate.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_the_desk_by_hand():
    desk = Desk("grader", "1", RETRY)
    for name in ("a", "b"):
        desk.ask(name, 0.0)
    assert [(s.record, s.attempt) for s in desk.due(0.0, 1)] == [("a", 1)] and desk.due(0.0)[0].record == "b"
    assert desk.answer("b", score("b", 0.0)) and desk.settled(["a", "b"])[0].value == 0.0  # b has come, and it is a real 0
    assert desk.event("a") is None
    assert desk.expire(9.0) == [] and desk.expire(10.0)[0].record == "a"
    assert desk.next_time() == 11.0 and desk.due(10.5) == [] and desk.due(11.0)[0].attempt == 2
    desk.fail("a", 1, "an echo of the first attempt", 11.5)  # changes nothing
    desk.fail("a", 2, "broken", 12.0)
    assert desk.next_time() == 14.0
    assert desk.due(14.0)[0].attempt == 3 and desk.answer("a", score("a"))  # late or not, it counts
    assert not desk.answer("a", score("a", 0.5)) and desk.ignored == 1 and desk.event("a").value == 1.0
    desk.forget(["a"])
    with pytest.raises(StaleReward, match="record must be one that was asked, and the event's; got a and a"):
        desk.answer("a", score("a"))
    with pytest.raises(StaleReward, match="event must be by grader@1; got grader@2 for record b: ask again"):
        desk.answer("b", score("b", version="2"))
    with pytest.raises(ValueError, match="attempts must be at least 1"):
        Retry(attempts=0)


# ---------------------------------------------------------------- processes


@pytest.fixture(scope="module")
def records():
    policy, tasks = tool_agent.blank_policy(0), tool_agent.held_out(12)
    return tool_agent.attempts(policy, tasks).records


def service(make, retry=Retry(attempts=3, timeout=1.0, backoff=0.02), workers=2):
    policy, tasks = tool_agent.blank_policy(0), tool_agent.held_out(1)
    evidence = tool_agent.attempts(policy, tasks).records[0].evidence
    said = {"source": evidence.verifier, "version": evidence.version}
    return RewardService(make, **said, retry=retry, workers=workers)


EVIDENCE = Recipe("course.systems.reward_service:recorded_evidence")


def faulty(seed, **rates):
    return Recipe("course.systems.reward_service:unreliable", {"make": EVIDENCE, "seed": seed, **rates})


def lot_of(record, seed, attempt, **rates):
    """What an unreliable grader does at this attempt: answers True, raises, or is not tried here."""
    try:
        unreliable(EVIDENCE, seed, **rates)(record, attempt)
        return True
    except RuntimeError:
        return False


def test_events_come_in_the_order_of_records_and_equal_the_grader_s(records):
    made = service(EVIDENCE)
    try:
        assert made.feedback(records, 0) == [evidence_event(record) for record in records]
        assert made.desk.requests == {}
    finally:
        made.close()


def test_failures_are_retried_and_what_never_comes_is_missing(records):
    seed = next(s for s in range(100) if {any(lot_of(r, s, k, fails=0.7) for k in (1, 2, 3)) for r in records} == {True, False})
    made = service(faulty(seed, fails=0.7))
    try:
        for record, event in zip(records, made.feedback(records, 0)):
            if any(lot_of(record, seed, attempt, fails=0.7) for attempt in (1, 2, 3)):
                assert event == evidence_event(record)
            else:
                assert event.kind == "abstention" and "missing after 3 attempts; the last one: RuntimeError" in event.reason
    finally:
        made.close()


def test_a_hanging_grader_holds_up_no_other_record_and_is_freed(records):
    """Some are answered long before the others have timed out; the graders that hung are killed and replaced."""
    made = service(faulty(3, hangs=0.3), retry=Retry(attempts=1, timeout=4.0), workers=3)
    try:
        began = time.monotonic()
        made.ask(records)
        while len(made.settled(records)) < 2:
            made.settled(records, timeout=0.05)
        assert time.monotonic() - began < 3.9
        events = made.settled(records, timeout=60)
        missing = [event for event in events if event.kind == "abstention"]
        assert 0 < len(missing) < len(records) == len(events) and made.replaced == len(missing)
        assert all("no answer in 4 s" in event.reason for event in missing)
    finally:
        made.close()


def test_dying_and_killed_graders_lose_nothing(records):
    made = service(faulty(1, dies=0.3), retry=Retry(attempts=12, timeout=20.0, backoff=0.0))
    try:
        made.ask(records)
        for pid in made.pids:
            os.kill(pid, signal.SIGKILL)
        assert made.settled(records, timeout=60) == [evidence_event(record) for record in records]
        assert made.replaced >= 3
    finally:
        made.close()


def test_a_grader_of_another_version_is_refused_by_name(records):
    made = service(EVIDENCE, retry=Retry(attempts=2, timeout=5.0, backoff=0.0))
    made.desk.version = "another"
    try:
        events = made.feedback(records[:2], 0)
        assert all(e.kind == "abstention" and "event must be by" in e.reason for e in events) and len(made.stale) == 4
        with pytest.raises(ValueError, match="records must have been asked about"):
            made.settled(records)
    finally:
        made.close()


def no_event():
    """A grader whose answers travel well and are no events."""
    return lambda record, attempt: record


def test_an_answer_that_is_no_event_is_none(records):
    made = service(Recipe(f"{__name__}:no_event"), retry=Retry(attempts=2, timeout=20.0, backoff=0.0), workers=1)
    try:
        (event,) = made.feedback(records[:1], 0)
        assert event.kind == "abstention" and "missing after 2 attempts" in event.reason and len(made.stale) == 2
    finally:
        made.close()


def test_a_grader_that_can_not_be_made_says_why(records):
    made = service(Recipe("course.systems.reward_service:no_such_grader"), retry=Retry(attempts=1))
    try:
        assert "make must name something that exists" in made.feedback(records[:1], 0)[0].reason
    finally:
        made.close()
