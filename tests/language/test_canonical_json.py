"""One JSON text per value, and stamps that change with every part."""

import hashlib

from hypothesis import given, settings, strategies as st
import pytest

from course.language import canonical_json, digest, policy_stamp

PARTS = {"weights": "w", "tokenizer": "t", "serializer": "s", "decoding": {"temperature": 0.7}, "code": "c"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé", max_size=3), inner, max_size=3),
    max_leaves=8,
)


def test_the_text_and_the_digest_are_these():
    assert canonical_json({"b": [1, 2.0, 1e-07, None, True], "a": "é <"}) == '{"a":"é <","b":[1,2.0,1e-07,null,true]}'
    assert digest({}) == hashlib.sha256(b"{}").hexdigest()
    assert digest("é") == hashlib.sha256('"é"'.encode("utf-8")).hexdigest()


@settings(deadline=None, max_examples=40)
@given(values)
def test_reading_the_text_gives_the_value_and_key_order_does_not_count(value):
    import json

    assert json.loads(canonical_json(value)) == value
    reordered = dict(reversed(value.items())) if isinstance(value, dict) else value
    assert digest(reordered) == digest(value)


@pytest.mark.parametrize(
    "bad", [float("nan"), [float("inf")], {1: 2}, {"a": {2: 3}}, {"a": {1, 2}}, "\ud800", {"\udc00": 1}, b"x", object()]
)
def test_what_has_no_single_text_is_refused(bad):
    with pytest.raises(ValueError, match="obj"):
        canonical_json(bad)


def test_true_and_one_and_one_point_zero_are_three_values():
    assert len({digest(True), digest(1), digest(1.0), digest("1")}) == 4


def test_every_part_changes_the_stamp_and_none_may_be_missing():
    changed = [{**PARTS, name: "other"} for name in PARTS]
    stamps = {policy_stamp(parts) for parts in [PARTS, {**PARTS, "more": 1}, *changed]}
    assert len(stamps) == len(PARTS) + 2 and all(len(stamp) == 64 for stamp in stamps)
    for name in PARTS:
        with pytest.raises(ValueError, match=name):
            policy_stamp({k: v for k, v in PARTS.items() if k != name})
        with pytest.raises(ValueError, match=name):
            policy_stamp({**PARTS, name: None})
