"""What the current policy makes of a record is worked out anew in each attempt, and the record stays what it was."""

import dataclasses
import math
from types import SimpleNamespace

from hypothesis import given, settings, strategies as st
import pytest
import torch

from course.feedback.events import evidence_event
from course.rollout.attempts import Annotation, CurrentPolicy, attempt_annotations
from course.rollout.store import Store
from written_records import written_record


def current(logprobs, **changes):
    plain = {"stamp": "now", "update": 5, "clip": 0.2, "logprobs": lambda r: logprobs, "inserted": {"h": 2}, "uses": {"h": 2}}
    return CurrentPolicy(**{**plain, **changes})


def test_golden_annotation():
    """Stored probability 0.25, current 0.50: ratio 2; age 3 and prior reuse 2."""
    record = SimpleNamespace(content_hash="h", logprobs=(math.log(0.25),))
    got = attempt_annotations(record, current((math.log(0.5),)))
    assert got == Annotation("now", (got.ratios[0],), (True,), 3, 2) and got.ratios[0] == pytest.approx(2.0, rel=1e-12)
    assert vars(record) == {"content_hash": "h", "logprobs": (math.log(0.25),)}


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(-8, 0), st.floats(-8, 0)), max_size=8), st.sampled_from([0.0, 0.2, 0.5]))
def test_annotations_against_tensors(pairs, clip):
    then, now = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    got = attempt_annotations(SimpleNamespace(content_hash="h", logprobs=then), current(now, clip=clip))
    ratio = (torch.tensor(now, dtype=torch.float64) - torch.tensor(then, dtype=torch.float64)).exp()
    assert torch.allclose(torch.tensor(got.ratios, dtype=torch.float64), ratio, rtol=1e-12)
    assert list(got.clipped) == ((ratio < 1 - clip) | (ratio > 1 + clip)).tolist()


def test_the_policy_that_wrote_it_has_ratios_of_one():
    record = written_record(3)
    name = record.content_hash
    policy = current(record.logprobs, inserted={name: 5}, uses={})
    got = attempt_annotations(record, policy)
    assert got.ratios == (1.0,) * 5 and not any(got.clipped) and (got.age, got.reuse) == (0, 0)
    later = attempt_annotations(record, dataclasses.replace(policy, stamp="later", update=9, uses={name: 1}))
    assert (later.age, later.reuse, later.stamp) == (4, 1, "later")  # another attempt, another annotation
    assert record.content_hash == name == written_record(3).content_hash
    assert not {"ratios", "clipped", "age", "reuse", "uses"} & set(record.to_json())


@pytest.mark.parametrize(
    "logprobs, changes, words",
    [
        ((-1.0, -1.0), {}, "each of 1 tokens"),
        ((math.nan,), {}, "finite number"),
        ((0.5,), {}, "at most 0"),
        ((-1.0,), {"inserted": {}}, "inserted must say .* got nothing"),
        ((-1.0,), {"inserted": {"h": 6}}, "up to 5 .* got 6"),
    ],
)
def test_what_an_attempt_refuses(logprobs, changes, words):
    with pytest.raises(ValueError, match=words):
        attempt_annotations(SimpleNamespace(content_hash="h", logprobs=(-1.0,)), current(logprobs, **changes))


def test_what_a_policy_and_an_annotation_refuse():
    with pytest.raises(ValueError, match="clip"):
        current((), clip=1.0)
    with pytest.raises(ValueError, match="stamp"):
        current((), stamp="")
    with pytest.raises(ValueError, match="clipped"):
        Annotation("now", (1.0,), (), 0, 0)
    for name in ("age", "reuse"):
        with pytest.raises(ValueError, match=name):
            Annotation("now", (), (), **{"age": 0, "reuse": 0, name: -1})


def test_attempts_leave_the_store_as_it_was(tmp_path):
    with Store(tmp_path / "store") as store:
        store.append([written_record(i) for i in range(3)])
        head = store.head
        for update in (5, 6):
            for record in store.records():
                attempt_annotations(record, current((-0.5,) * 5, update=update, inserted={record.content_hash: 5}))
        assert store.head == head and store.verify() is None


def test_a_verifier_that_abstains_gives_an_event_without_a_number():
    judged, silent = written_record(1), written_record(2, abstains=True)
    assert (evidence_event(judged).kind, evidence_event(judged).value) == ("score", judged.reward)
    said = evidence_event(silent)
    assert (said.kind, said.value, said.reason) == ("abstention", None, silent.evidence.reason)
    assert said.record == silent.content_hash
