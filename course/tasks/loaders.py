"""Preference data in public formats, from a local file. Text comes in here and nowhere else; tokenising it makes the record.

A malformed row is an error that names the file, the row and the field. Nothing is skipped silently: a data set that lost its
longest rows is another data set.
"""

import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from course.tasks.records import Comparison, Ids, PreferenceLabel, Provenance

Message = tuple[str, str]  # role ("system", "user", "assistant"), text
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class PreferenceRow:
    """One row: the messages both sides share, and what the assistant says next on each side."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    where: str  # file and row number, for error messages and for provenance


def read_hh(path: str | Path) -> list[PreferenceRow]:
    """HH-RLHF: JSONL or JSONL.gz with the fields `chosen` and `rejected`, each a whole dialogue of Human and Assistant turns."""
    rows = []
    for where, row in _rows(path):
        sides = {field: _dialogue(_text(row, field, where), field, where) for field in ("chosen", "rejected")}
        prompt, chosen = sides["chosen"][:-1], sides["chosen"][-1][1]
        if sides["rejected"][:-1] != prompt:
            raise ValueError(f"{where}: rejected must share every turn but the last with chosen; it does not")
        rows.append(PreferenceRow(prompt, chosen, sides["rejected"][-1][1], where))
    return rows


def read_preference_rows(path: str | Path) -> list[PreferenceRow]:
    """Rows `prompt`, `chosen`, `rejected`, each a text or a list of {"role", "content"} messages (the TRL formats).

    `prompt` may be missing where chosen and rejected are message lists: it is then the turns they share.
    """
    rows = []
    for where, row in _rows(path):
        sides = {field: _messages(row, field, where, "assistant") for field in ("chosen", "rejected")}
        if "prompt" in row:
            prompt = _messages(row, "prompt", where, "user")
        else:
            if isinstance(row["chosen"], str):
                raise ValueError(f"{where}: prompt is missing; only message lists can do without it")
            prompt = sides["chosen"][:-1]
            if sides["rejected"][:-1] != prompt:
                raise ValueError(f"{where}: rejected must share every turn but the last with chosen; it does not")
            sides = {field: side[-1:] for field, side in sides.items()}
        for field, side in sides.items():
            if len(side) != 1 or side[0][0] != "assistant":
                roles = [role for role, _ in side]
                raise ValueError(f"{where}: {field} must be one assistant message after the prompt; got roles {roles}")
        rows.append(PreferenceRow(prompt, sides["chosen"][0][1], sides["rejected"][0][1], where))
    return rows


def to_comparison(
    row: PreferenceRow, *, encode_prompt: Callable[[tuple[Message, ...]], Ids], encode_response: Callable[[str], Ids], swap: bool
) -> Comparison:
    """A row as a record of token ids. swap puts the chosen response second: files that always store it first teach position."""
    chosen, rejected = encode_response(row.chosen), encode_response(row.rejected)
    first, second = (rejected, chosen) if swap else (chosen, rejected)
    label = PreferenceLabel.SECOND if swap else PreferenceLabel.FIRST
    if chosen == rejected:
        label = PreferenceLabel.INVALID
    source = Provenance(
        producer="not recorded in the file", procedure=f"read from {row.where}", selection_rule="not recorded in the file",
        display_order="not recorded in the file; " + ("chosen second here" if swap else "chosen first here"),
    )  # fmt: skip
    prompt = encode_prompt(row.prompt)
    return Comparison(prompt, first, second, label, source, family=" ".join(map(str, prompt)))


def _rows(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    path = Path(path)
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as lines:
        empty = True
        for number, line in enumerate(lines, start=1):
            where = f"{path}, row {number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where}: not JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{where}: must be a JSON object; got {type(row).__name__}")
            empty = False
            yield where, row
    if empty:
        raise ValueError(f"{path}: holds no rows")


def _text(row: dict[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {field} must be a non-empty text; got {value!r}")
    return value


def _dialogue(text: str, field: str, where: str) -> tuple[Message, ...]:
    parts = re.split(r"\n\n(Human|Assistant): ?", text)
    roles = ["user" if name == "Human" else "assistant" for name in parts[1::2]]
    if parts[0].strip() or len(roles) < 2 or roles[0] != "user" or roles[-1] != "assistant":
        raise ValueError(f"{where}: {field} must be turns from a first Human to a last Assistant; got {text[:60]!r}")
    return tuple(zip(roles, (part.strip() for part in parts[2::2])))


def _messages(row: dict[str, Any], field: str, where: str, role: str) -> tuple[Message, ...]:
    value = row.get(field)
    if isinstance(value, str):
        return ((role, _text(row, field, where)),)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: {field} must be a text or a list of messages; got {value!r}")
    for message in value:
        good = isinstance(message, dict) and message.get("role") in ROLES and isinstance(message.get("content"), str)
        if not good:
            raise ValueError(f"{where}: {field} must hold messages with a role of {ROLES} and content; got {message!r}")
    return tuple((message["role"], message["content"]) for message in value)
