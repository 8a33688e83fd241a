"""A replay pool: which records may be used again, by a rule that is declared. It holds records and never changes one.

Every change makes a new pool, so that a rejected or repeated attempt can go on from the old one. How often a record was used belongs
to the pool; what it is worth under the current policy belongs to the attempt (rollout.attempts).
"""

import random
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Callable, Mapping, Sequence

PARTITIONS: Mapping[str, Callable[[Any], str]] = {
    "none": lambda record: "all",
    "family": lambda record: record.task["family"],
    "stamp": lambda record: record.versions.policy,
}


@dataclass(frozen=True)
class PoolRule:
    """capacity: records in each part; the ones that came first leave first. max_age: updates after which a record leaves; None: never.

    partition: the parts are one for all, one for each task family, or one for each policy that wrote the records.
    """

    capacity: int
    max_age: int | None = None
    partition: str = "none"

    def __post_init__(self) -> None:
        if self.capacity < 1 or (self.max_age is not None and self.max_age < 0):
            raise ValueError(f"capacity must be at least 1 and max_age at least 0; got {self.capacity} and {self.max_age}")
        if self.partition not in PARTITIONS:
            raise ValueError(f"partition must be one of {', '.join(PARTITIONS)}; got {self.partition!r}")


@dataclass(frozen=True)
class Held:
    """A record in a pool. inserted: the update at which it came; uses: how often it was selected and used."""

    record: Any  # rollout.record.Record, or what has content_hash, logprobs, task and versions
    inserted: int
    uses: int = 0


@dataclass(frozen=True)
class ReplayPool:
    """A finite multiset of immutable records, in order of arrival."""

    rule: PoolRule
    held: tuple[Held, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.held)

    def insert(self, records: Sequence[Any], update: int) -> "ReplayPool":
        """The pool after these records came at this update, and whatever had to leave left.

        Raises: ValueError for an update before that of a record that is there already.
        """
        if self.held and update < self.held[-1].inserted:
            raise ValueError(f"update must be at least {self.held[-1].inserted}, that of the last insertion; got {update}")
        return replace(self, held=(*self.held, *(Held(record, update) for record in records))).evict(update)

    def evict(self, update: int) -> "ReplayPool":
        """The pool without what the rule lets go at this update: what is older than max_age, then the first of each full part."""
        rule, left = self.rule, self.held
        if rule.max_age is not None:
            left = tuple(h for h in left if update - h.inserted <= rule.max_age)
        kept = {id(h) for part in self._parts(left).values() for h in part[-rule.capacity :]}
        return replace(self, held=tuple(h for h in left if id(h) in kept))

    def parts(self) -> dict[str, tuple[Held, ...]]:
        """Each part of the declared partition, in order of arrival; names sorted."""
        return {name: tuple(part) for name, part in sorted(self._parts(self.held).items())}

    def _parts(self, held: Sequence[Held]) -> dict[str, list[Held]]:
        found: dict[str, list[Held]] = {}
        for h in held:
            found.setdefault(PARTITIONS[self.rule.partition](h.record), []).append(h)
        return found

    def select(self, k: int, seed: int, part: str | None = None) -> tuple[Any, ...]:
        """k different entries' records, drawn evenly without replacement, in order of arrival. Neither pool nor record changes.

        part: only from this one. Raises: ValueError if there are fewer than k, or no part of that name.
        """
        if part is not None and part not in (parts := self.parts()):
            raise ValueError(f"part must be one of {', '.join(parts) or 'none'}; got {part!r}")
        there = self.held if part is None else parts[part]
        if not 0 <= k <= len(there):
            raise ValueError(f"k must be at most the {len(there)} records that are there; got {k}")
        places = sorted(random.Random(f"pool {seed}").sample(range(len(there)), k))
        return tuple(there[place].record for place in places)

    def used(self, records: Sequence[Any]) -> "ReplayPool":
        """The pool in which these records have one use more: for updates that were made."""
        names = {record.content_hash for record in records}
        return replace(self, held=tuple(replace(h, uses=h.uses + (h.record.content_hash in names)) for h in self.held))

    @property
    def inserted(self) -> Mapping[str, int]:
        """By content hash, the first time; what attempts.CurrentPolicy asks for."""
        return MappingProxyType({h.record.content_hash: h.inserted for h in reversed(self.held)})

    @property
    def uses(self) -> Mapping[str, int]:
        return MappingProxyType({h.record.content_hash: h.uses for h in reversed(self.held)})
