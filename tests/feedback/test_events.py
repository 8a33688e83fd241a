"""Feedback is an event with a type and a source; credit is a record of its own; an abstention is neither a 0 nor nothing."""

import dataclasses
import json
import math

import pytest

from course.feedback.events import Credit, FeedbackEvent, in_order


def event(kind="score", value=1.5, **changes):
    plain = {"record": "r1", "kind": kind, "value": value, "observed": ("trajectory",), "source": "judge", "version": "2"}
    return FeedbackEvent(**{**plain, "reason": "timeout" if kind == "abstention" else "", **changes})


KINDS = {"score": -2, "steps": (0.0, 1, -1.0), "preference": ("r0", "r1"), "abstention": None}


@pytest.mark.parametrize("kind", KINDS)
def test_events_are_values(kind):
    a = event(kind, KINDS[kind])
    again = FeedbackEvent.from_json(json.loads(json.dumps(a.to_json())))
    assert again == a and again.digest == a.digest and (again.value is None) == (kind == "abstention")


def test_every_field_is_in_the_digest():
    """What was observable is part of what was said: the same number from another view is another event."""
    a = event()
    others = [
        dataclasses.replace(a, **change)
        for change in (
            {"record": "r2"}, {"value": 1.25}, {"observed": ("trajectory", "hidden tests")}, {"source": "rule"}, {"version": "3"},
            {"reason": "late"},
        )
    ]  # fmt: skip
    others += [event("steps", (1.5,)), event("abstention", None), event("score", 0.0)]
    assert len({e.digest for e in (a, *others)}) == len(others) + 1


@pytest.mark.parametrize(
    "kind, value",
    [
        ("score", None), ("score", math.nan), ("score", (1.0,)), ("steps", ()), ("steps", 1.0), ("steps", (1.0, math.inf)),
        ("preference", ("r1",)), ("preference", ("r0", "r2")), ("preference", ("r1", "r1")), ("preference", 1.0),
        ("abstention", 0.0), ("abstention", (0.0,)),
    ],
)  # fmt: skip
def test_a_value_must_fit_its_kind(kind, value):
    with pytest.raises(ValueError, match=f"value of a {kind} must be"):
        event(kind, value)


def test_an_abstention_has_a_reason_and_an_event_a_view():
    with pytest.raises(ValueError, match="reason"):
        event("abstention", None, reason="")
    for observed in ((), ("",), ("a", "a")):
        with pytest.raises(ValueError, match="observed"):
            event(observed=observed)
    for name in ("record", "source", "version"):
        with pytest.raises(ValueError, match=name):
            event(**{name: ""})


def test_credit_is_a_record_of_its_own():
    said = event()
    a = Credit("r1", said.digest, "group", "1", (0.5, -0.5))
    assert Credit.from_json(json.loads(json.dumps(a.to_json()))) == a
    other = Credit("r1", said.digest, "last action", "1", (0.0, 1.0))  # another rule, the same event
    assert other.event == a.event and other.digest != a.digest and said.value == 1.5
    with pytest.raises(ValueError, match="targets"):
        Credit("r1", said.digest, "group", "1", ())
    with pytest.raises(ValueError, match="targets"):
        Credit("r1", said.digest, "group", "1", (math.nan,))


def test_a_stale_event_is_refused_by_name():
    in_order([event(record="a"), event(record="b")], ["a", "b"])
    for records, words in ((["a", "b", "c"], "2 events in another order"), (["b", "a"], "another order"), (["a", "c"], "other records: b")):
        with pytest.raises(ValueError, match=words):
            in_order([event(record="a"), event(record="b")], records)
