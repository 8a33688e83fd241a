"""A signature holds for one payload, at one step, of one episode, under one key."""

import hashlib
import hmac

from hypothesis import given, settings, strategies as st
import pytest

from course.envs.signatures import sign_result, verify_result

KEY, OTHER = b"k" * 16, b"o" * 32
PAYLOAD = {"outcome": "executed", "observation": "7", "cost": {"calls": 1}}
SIGNED = sign_result(KEY, "episode", 3, PAYLOAD)


def test_the_signature_is_this():
    message = '{"episode":"episode","payload":{"cost":{"calls":1},"observation":"7","outcome":"executed"},"step":3}'
    assert SIGNED == hmac.new(KEY, message.encode(), hashlib.sha256).hexdigest()
    assert verify_result(KEY, "episode", 3, PAYLOAD, SIGNED)
    assert verify_result(KEY, "episode", 3, dict(reversed(PAYLOAD.items())), SIGNED)


PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, "", "1", "é"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2), max_leaves=4,
)  # fmt: skip
CALLS = st.tuples(st.sampled_from([KEY, OTHER]), st.sampled_from(["a", "b", "a1"]), st.integers(0, 12), PAYLOADS)


@settings(deadline=None, max_examples=200)
@given(CALLS, CALLS)
def test_another_key_episode_step_or_payload_fails(one, two):
    def exact(call):
        return repr(call)  # 1, 1.0 and True are three payloads

    assert verify_result(*one, sign_result(*one))
    ordered = (*one[:3], canonical(one[3])) == (*two[:3], canonical(two[3]))
    assert verify_result(*two, sign_result(*one)) == ordered, exact((one, two))


def canonical(value):
    """A slow twin of the canonical text: order of keys apart, types kept."""
    if isinstance(value, dict):
        return "dict", tuple(sorted((key, canonical(item)) for key, item in value.items()))
    if isinstance(value, list):
        return "list", tuple(map(canonical, value))
    return type(value).__name__, repr(value)


@pytest.mark.parametrize("forged", ["", SIGNED[:-1], SIGNED.upper(), SIGNED + "0", "é" * 64, "\ud800", "0" * 64], ids=ascii)
def test_other_signatures_fail(forged):
    assert not verify_result(KEY, "episode", 3, PAYLOAD, forged)


@pytest.mark.parametrize(
    ("episode", "step", "payload"),
    [
        ("episode", 3, {**PAYLOAD, "observation": float("nan")}), ("episode", 3, {1: 2}), ("episode", 3, b"7"),
        ("episode", -1, PAYLOAD), ("episode", True, PAYLOAD), ("\ud800", 3, PAYLOAD),
        ("episode", 3, {**PAYLOAD, "observation": "\udfff"}),
    ],
    ids=range(7),
)  # fmt: skip
def test_what_can_not_be_signed_was_not_signed(episode, step, payload):
    assert not verify_result(KEY, episode, step, payload, SIGNED)
    with pytest.raises(ValueError):
        sign_result(KEY, episode, step, payload)


@pytest.mark.parametrize("key", [b"", b"k" * 15])
def test_short_keys_are_refused(key):
    for call in (lambda: sign_result(key, "episode", 3, PAYLOAD), lambda: verify_result(key, "episode", 3, {1: 2}, SIGNED)):
        with pytest.raises(ValueError, match="key must be at least 16 bytes"):
            call()
