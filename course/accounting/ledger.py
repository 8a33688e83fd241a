"""The ledger of a run: one record of each round, chained by hashes, so that nothing in the past can be changed unseen.

A round names everything by digest or version: what was asked, which policy answered, what was said about it, what was made of that,
what was proposed, what was committed, with which seeds, and what it cost. The things themselves lie in stores.
"""

import hashlib
import json
from dataclasses import dataclass, field, fields
from functools import reduce
from types import MappingProxyType
from typing import Any, Iterable, Mapping

from course.accounting.append_only import GENESIS, AppendOnly
from course.accounting.budget import Cost
from course.language.stamp import canonical_json, digest

SEEDS = ("credit", "feedback", "rollout", "task", "update")
OPERATORS = ("accounting", "credit", "feedback", "rollout", "sampler", "update")


@dataclass(frozen=True)
class Round:
    """One round as it happened. proposed and committed: digests of model and optimiser state together."""

    index: int
    task: str  # the law or family that the instances were drawn from
    instance: tuple[str, ...]  # digests of the tasks
    stamp: str  # of the policy that acted
    environment: str  # name@version
    trajectory: tuple[str, ...]  # content hashes of the records
    feedback: tuple[str, ...]  # digests of the events
    credit: str  # digest of the credits together
    decision: str  # "accept" or "reject"
    proposed: str
    committed: str
    seeds: Mapping[str, int] = field(hash=False)
    operators: Mapping[str, str] = field(hash=False)  # versions
    cost: Mapping[str, int | float] = field(hash=False)

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ValueError(f"index must be at least 0; got {self.index}")
        for name in ("task", "stamp", "environment", "credit", "proposed", "committed"):
            if not getattr(self, name):
                raise ValueError(f"{name} of round {self.index} must be non-empty text; got {getattr(self, name)!r}")
        for name in ("instance", "trajectory", "feedback"):
            if not getattr(self, name) or not all(getattr(self, name)):
                raise ValueError(f"{name} of round {self.index} must be digests, at least one; got {getattr(self, name)}")
        if self.decision not in ("accept", "reject"):
            raise ValueError(f"decision of round {self.index} must be 'accept' or 'reject'; got {self.decision!r}")
        if self.decision == "accept" and self.committed != self.proposed:
            raise ValueError(f"committed of round {self.index} must be what was proposed and accepted; got another state")
        for name, keys in (("seeds", SEEDS), ("operators", OPERATORS)):
            if sorted(getattr(self, name)) != list(keys):
                got = ", ".join(sorted(getattr(self, name))) or "nothing"
                raise ValueError(f"{name} of round {self.index} must be those of {', '.join(keys)}; got {got}")
        if not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in self.seeds.values()):
            raise ValueError(f"seeds of round {self.index} must be integers; got {dict(self.seeds)}")
        if not all(isinstance(version, str) and version for version in self.operators.values()):
            raise ValueError(f"operators of round {self.index} must have versions, non-empty text; got {dict(self.operators)}")
        try:
            cost = Cost(**self.cost)
        except ValueError as error:
            raise ValueError(f"cost of round {self.index}: {error}") from None
        for name, value in (("seeds", self.seeds), ("operators", self.operators), ("cost", cost.to_json())):
            object.__setattr__(self, name, MappingProxyType(dict(value)))

    def __reduce__(self) -> tuple:
        return Round.from_json, (self.to_json(),)

    def to_json(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        lists = {name: list(plain[name]) for name in ("instance", "trajectory", "feedback")}
        return {**plain, **lists, **{name: dict(plain[name]) for name in ("seeds", "operators", "cost")}}

    @classmethod
    def from_json(cls, data: Any) -> "Round":
        """What to_json wrote. Raises ValueError that names the field."""
        names = {f.name for f in fields(cls)}
        if not isinstance(data, Mapping) or set(data) != names:
            odd = ", ".join(sorted(names ^ set(data))) if isinstance(data, Mapping) else type(data).__name__
            raise ValueError(f"a round must be an object with exactly the fields of Round; missing or unknown: {odd}")
        for name in ("instance", "trajectory", "feedback"):
            if not isinstance(data[name], (list, tuple)) or not all(isinstance(x, str) for x in data[name]):
                raise ValueError(f"{name} of a round must be a list of text; got {data[name]!r}")
        for name in ("seeds", "operators", "cost"):
            if not isinstance(data[name], Mapping):
                raise ValueError(f"{name} of a round must be an object; got {data[name]!r}")
        if type(data["index"]) is not int:
            raise ValueError(f"index of a round must be an integer; got {data['index']!r}")
        for name in ("task", "stamp", "environment", "credit", "decision", "proposed", "committed"):
            if not isinstance(data[name], str):
                raise ValueError(f"{name} of a round must be text; got {data[name]!r}")
        return cls(**{**data, **{name: tuple(data[name]) for name in ("instance", "trajectory", "feedback")}})


@dataclass(frozen=True)
class Entry:
    """A round in its place. before: the hash of the entry before it; hash: of that and of this round."""

    round: Round
    before: str
    hash: str


def append_round(ledger: tuple[Entry, ...], round: Round) -> tuple[Entry, ...]:
    """A new ledger that ends in this round; the old one stays as it is.

        hash_n = SHA-256(canonical JSON of [hash_(n-1), round_n]),   hash_(-1) = 64 zeros

    Reduces to: a chain of one link for an empty ledger.
    Raises: ValueError if the round does not have the next index, or is rejected and commits another state than the last one.
    Source: C ftip-004U, ftip-0073 (the append-only training ledger).
    """
    return (*ledger, _next(len(ledger), ledger[-1] if ledger else None, round))


def _next(place: int, last: Entry | None, round: Round) -> Entry:
    if round.index != place:
        raise ValueError(f"index of the round must be {place}, the next one of the ledger; got {round.index}")
    if last is not None and round.decision == "reject" and round.committed != last.round.committed:
        raise ValueError(f"committed of rejected round {place} must be the state before it; got another one")
    before = GENESIS if last is None else last.hash
    return Entry(round, before, chained(before, round))


def chained(before: str, round: Round) -> str:
    return digest([before, round.to_json()])


def verify_ledger(ledger: tuple[Entry, ...]) -> int | None:
    """The place of the first entry whose index, link or hash is wrong; None if there is none.

    An entry is bad if its index is not its place, its `before` is not the hash of the entry before it, or its hash is not that of
    its `before` and its round. Somebody who rewrites everything from some round on makes a valid chain: keep the last hash elsewhere
    to see that, and to see that entries are missing at the end. What a round says is not judged: append_round refuses a rejected
    round that commits another state, and a chain that was made without it may hold one.
    Reduces to: None for an empty ledger.
    Source: C ftip-004U.
    """
    before = GENESIS
    for place, entry in enumerate(ledger):
        if (entry.round.index, entry.before, entry.hash) != (place, before, chained(entry.before, entry.round)):
            return place
        before = entry.hash
    return None


def total_cost(ledger: Iterable[Entry]) -> Cost:
    """Of all rounds, rejected ones too; Cost() for none."""
    return reduce(lambda total, entry: total + Cost(**entry.round.cost), ledger, Cost())


class LedgerFile(AppendOnly):
    """A ledger in a file: triggers refuse changes, and what was changed behind its back is found.

    Several processes may open it; open it anew in a child process. What append has returned from is on the disk.
    """

    KIND, TABLE, OWN = "a ledger", "rounds", ("body",)  # the chain value is the entry's hash, body the round's canonical JSON
    APPLICATION, LAYOUT = 0x4550_4C31, 1
    RESCUE = "restore the file from a copy"

    @staticmethod
    def _chain(before: str, number: int, body: str) -> str:
        return hashlib.sha256(f'["{before}",{body}]'.encode("utf-8")).hexdigest()  # digest([before, round]), without parsing

    def append(self, round: Round) -> Entry:
        """Store one round behind the others, as append_round does.

        Raises: ValueError as append_round; OSError, and nothing was stored, if the file can't take it or didn't keep it as it is.
        """

        def check(last: int) -> None:
            row = self._alone(last) if last >= 0 else None
            if isinstance(row, str):
                raise ValueError(f"{self.path}: round {last}: {row}; {self.RESCUE}")
            _next(last + 1, row and self._entry(row), round)

        (number,) = self._store([(canonical_json(round.to_json()),)], check)
        return self._entry(self._alone(number))

    def entries(self) -> tuple[Entry, ...]:
        """The ledger. Raises ValueError that names the first entry that can't be trusted."""
        found = []
        for number, row in self._rows():
            try:
                if isinstance(row, str):
                    raise ValueError(row)
                found.append(self._entry(row))
                if found[-1].before != (found[-2].hash if number else GENESIS):
                    raise ValueError("before must be the hash of the round before it; this round or that one was changed")
            except Exception as error:  # whatever a damaged row holds
                raise DamagedLedger(number, f"{self.path}: round {number}: {error}; {self.RESCUE}") from None
        return tuple(found)

    def verify(self) -> int | None:
        """The number of the first round that can't be trusted; None if all can. See verify_ledger for what it can't see."""
        try:
            self.entries()
        except DamagedLedger as error:
            return error.index
        return None

    def _entry(self, row: tuple) -> Entry:
        number, body, before, chain = row
        round = Round.from_json(json.loads(body))
        if (round.index, chain) != (number, chained(before, round)) or body != canonical_json(round.to_json()):
            raise ValueError("hash must be that of the round; one of them was changed")
        return Entry(round, before, chain)


class DamagedLedger(ValueError):
    """index: the first round that can't be trusted."""

    def __init__(self, index: int, message: str):
        super().__init__(message)
        self.index = index
