"""The ledger of a run: one record of each round, chained by hashes, so that nothing in the past can be changed unseen.

A round names everything by digest or version: what was asked, which policy answered, what was said about it, what was made of that,
what was proposed, what was committed, with which seeds, and what it cost. The things themselves lie in stores.
"""

from dataclasses import dataclass, field, fields
from functools import reduce
from types import MappingProxyType
from typing import Any, Iterable, Literal, Mapping

from course.accounting.budget import Cost
from course.language.stamp import digest

GENESIS = "0" * 64
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
    decision: Literal["accept", "reject"]
    proposed: str
    committed: str
    seeds: Mapping[str, int]
    operators: Mapping[str, str]  # versions
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
    if round.index != len(ledger):
        raise ValueError(f"index of the round must be {len(ledger)}, the next one of the ledger; got {round.index}")
    if ledger and round.decision == "reject" and round.committed != ledger[-1].round.committed:
        raise ValueError(f"committed of rejected round {round.index} must be the state before it; got another one")
    before = ledger[-1].hash if ledger else GENESIS
    return (*ledger, Entry(round, before, chained(before, round)))


def chained(before: str, round: Round) -> str:
    return digest([before, round.to_json()])


def verify_ledger(ledger: tuple[Entry, ...]) -> int | None:
    """The place of the first entry that is not as append_round makes it; None if all are.

    An entry is bad if its index is not its place, its `before` is not the hash of the entry before it, or its hash is not that of
    its `before` and its round. Somebody who rewrites everything from some round on makes a valid chain: keep the last hash elsewhere
    to see that, and to see that entries are missing at the end.
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
