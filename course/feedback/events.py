"""What was said about an episode, and apart from it what training made of that: feedback is evidence, credit is a rule's output.

Both refer to a record by its content hash and change nothing in it. An event says what its source could see; an abstention is an
event of its own kind, with a reason, and no number stands in for it.
"""

from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, Literal, Mapping, Sequence

from course.language.stamp import digest
from course.rollout.record import Record

Kind = Literal["score", "steps", "preference", "abstention"]
VALUES = {
    "score": "a finite number",
    "steps": "a tuple of finite numbers, one for each step, at least one",
    "preference": "a tuple of different records' content hashes, best first, this record's among them",
    "abstention": "None",
}


@dataclass(frozen=True)
class FeedbackEvent:
    """One source's word on one record.

    observed: what the source could see when it spoke ("task", "trajectory", "hidden tests", ..): a score of the whole episode and
    one of its first half are not the same observation. source and version: who spoke.
    """

    record: str  # content hash
    kind: Kind
    value: float | int | tuple | None
    observed: tuple[str, ...]
    source: str
    version: str
    reason: str = ""

    def __post_init__(self) -> None:
        for name in ("record", "source", "version"):
            if not getattr(self, name):
                raise ValueError(f"{name} must be non-empty text; got {getattr(self, name)!r}")
        if self.kind not in VALUES:
            raise ValueError(f"kind must be one of {', '.join(VALUES)}; got {self.kind!r}")
        if not self.observed or not all(self.observed) or len(set(self.observed)) < len(self.observed):
            raise ValueError(f"observed must name what the source saw, each once, at least one thing; got {self.observed}")
        if not self._fits():
            raise ValueError(f"value of a {self.kind} must be {VALUES[self.kind]}; got {self.value!r}")
        if self.kind == "abstention" and not self.reason:
            raise ValueError("reason must say why the source abstains; got none")

    def _fits(self) -> bool:
        value = self.value
        if self.kind == "abstention":
            return value is None
        if self.kind == "score":
            return _number(value)
        if not isinstance(value, tuple) or not value:
            return False
        if self.kind == "steps":
            return all(map(_number, value))
        names = all(isinstance(name, str) and name for name in value)
        return names and len(set(value)) == len(value) >= 2 and self.record in value

    @cached_property
    def digest(self) -> str:
        return digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return {
            "record": self.record, "kind": self.kind, "value": value, "observed": list(self.observed), "source": self.source,
            "version": self.version, "reason": self.reason,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "FeedbackEvent":
        """What to_json wrote."""
        value = tuple(data["value"]) if isinstance(data["value"], list) else data["value"]
        return cls(**{**data, "value": value, "observed": tuple(data["observed"])})


@dataclass(frozen=True)
class Credit:
    """What a rule made of an event: one target for each action token of the record, in order. The event keeps its own value."""

    record: str  # content hash
    event: str  # digest
    rule: str
    version: str
    targets: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("record", "event", "rule", "version"):
            if not getattr(self, name):
                raise ValueError(f"{name} must be non-empty text; got {getattr(self, name)!r}")
        if not self.targets or not all(map(_number, self.targets)):
            raise ValueError(f"targets must be finite numbers, one for each action token; got {self.targets}")

    @cached_property
    def digest(self) -> str:
        return digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        return {**{f: getattr(self, f) for f in ("record", "event", "rule", "version")}, "targets": list(self.targets)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Credit":
        """What to_json wrote."""
        return cls(**{**data, "targets": tuple(data["targets"])})


def evidence_event(record: Record, observed: tuple[str, ...] = ("task", "trajectory", "hidden tests")) -> FeedbackEvent:
    """The verifier's word that came with the record: a score, or an abstention where the verifier gave none."""
    said = record.evidence
    kind = "abstention" if said.reward is None else "score"
    return FeedbackEvent(record.content_hash, kind, said.reward, observed, said.verifier, said.version, said.reason)


def in_order(events: Sequence[FeedbackEvent], records: Sequence[str]) -> None:
    """Refuse events that are not exactly one for each of these content hashes, in their order: a stale event names another record."""
    if [event.record for event in events] != list(records):
        known = set(records)
        stale = [event.record[:12] for event in events if event.record not in known]
        what = f"events about other records: {', '.join(stale)}" if stale else f"{len(events)} events in another order or number"
        raise ValueError(f"feedback must give one event for each of {len(records)} records, in their order; got {what}")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
