"""Canonical JSON, its digest, and the stamp that says which law a record was sampled from."""

import hashlib
import json
from typing import Any, Mapping

PARTS = ("weights", "tokenizer", "serializer", "decoding", "code")  # what the law over the next token depends on


def canonical_json(obj: Any) -> str:
    """The one JSON text of a value: keys sorted, no spaces, characters as they are, floats by repr. Tuples are written as lists.

    Raises: ValueError for what has no single JSON text: NaN and infinities, keys that are not text, lone surrogates, other types.
    """
    _refuse_ambiguous(obj, "obj")
    return json.dumps(obj, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


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
