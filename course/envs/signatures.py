"""Results that only the runtime can have produced: a signature over what, in which episode, at which step."""

import hashlib
import hmac
from typing import Any

from course.language.stamp import canonical_json


def sign_result(key: bytes, episode: str, step: int, payload: Any) -> str:
    """HMAC-SHA-256 of the canonical JSON of {episode, step, payload}, as 64 hexadecimal digits.

    payload: plain JSON data. The key stays with the runtime; neither a policy nor a record ever holds it.
    Why episode and step are inside: a true result of another step or episode would otherwise pass as this one's.
    Raises: ValueError if the key is shorter than 16 bytes, step is negative, or payload has no single JSON text.
    """
    _check(key)
    if not isinstance(episode, str) or type(step) is not int or step < 0:
        raise ValueError(f"episode must be text and step an integer that is not negative; got {episode!r} and {step!r}")
    message = canonical_json({"episode": episode, "payload": payload, "step": step})
    return hmac.new(key, message.encode("utf-8"), hashlib.sha256).hexdigest()


def verify_result(key: bytes, episode: str, step: int, payload: Any, signature: Any) -> bool:
    """Whether sign_result with this key gave this signature for this payload of this step of this episode.

    A payload that sign_result would refuse was never signed, so the answer is False.
    Raises: ValueError if the key is shorter than 16 bytes.
    """
    _check(key)  # the caller's mistake, whatever came from elsewhere
    try:
        expected = sign_result(key, episode, step, payload).encode()
    except ValueError:
        return False
    return isinstance(signature, str) and hmac.compare_digest(expected, signature.encode("utf-8", "replace"))


def _check(key: bytes) -> None:
    if not isinstance(key, bytes) or len(key) < 16:
        raise ValueError("key must be at least 16 bytes")
