"""Canonical JSON, its digest, and the stamp that says which law a record was sampled from."""

import hashlib
import json
from typing import Any, Mapping

PARTS = ("weights", "tokenizer", "serializer", "decoding", "code")  # what the law over the next token depends on


def canonical_json(obj: Any) -> str:
    """The one JSON text of a value: keys sorted, no spaces, characters as they are, floats by repr. Tuples are written as lists.

    Raises: ValueError for what has no single JSON text: NaN and infinities, keys that are not text, lone surrogates, other types.
    """
    try:
        text = _ENCODER.encode(obj)
        text.encode("utf-8")
        if _has_text_keys([obj]):  # the only ambiguity that the encoder passes over in silence
            return text
    except (TypeError, ValueError):
        pass
    _refuse_ambiguous(obj, "obj")  # slower, and says where
    return _ENCODER.encode(obj)


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_PLAIN = {int, float, str, bool, type(None)}


def digest(obj: Any) -> str:
    """SHA-256 of the canonical JSON, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(obj).encode("utf-8")).hexdigest()


def policy_stamp(parts: Mapping[str, Any]) -> str:
    """Digest of everything that changes what a policy samples or how it is scored.

    parts needs at least weights, tokenizer, serializer, decoding and code (digests or plain JSON); more may be added. The
    serializer counts even where two of them give the same tokens: the next transcript may be the one on which they differ.
    """
    missing = [name for name in PARTS if parts.get(name) in (None, "")]
    if missing:
        raise ValueError(f"parts must hold {', '.join(PARTS)}; got nothing for {', '.join(missing)}")
    return digest(dict(parts))


def _has_text_keys(value: Any) -> bool:
    if isinstance(value, dict):
        if not set(map(type, value)) <= {str}:
            return False
        value = value.values()
    return set(map(type, value)) <= _PLAIN or all(
        [_has_text_keys(item) for item in value if isinstance(item, (dict, list, tuple))]
    )


def _refuse_ambiguous(value: Any, where: str) -> None:
    if value is None or isinstance(value, (bool, int)):
        return
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"{where} must be finite to have a JSON text; got {value}")
    elif isinstance(value, str):
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise ValueError(f"{where} must be Unicode text; got a lone surrogate in {value!r}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _refuse_ambiguous(item, f"{where}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where} must have text as keys (1 and '1' would become one key); got {key!r}")
            _refuse_ambiguous(key, f"a key of {where}")
            _refuse_ambiguous(item, f"{where}[{key!r}]")
    else:
        raise ValueError(f"{where} must be plain JSON data; got {type(value).__name__}")
