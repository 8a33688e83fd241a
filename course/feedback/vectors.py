"""Rewards as vectors: every component is kept with what it means, and only then made into a scalar, an order or a gate.

In every component more is better: a cost is stored as a number that is not positive.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, Literal, Mapping, Sequence

import torch

from course.feedback.normaliser import RewardNormaliser
from course.language.stamp import digest

Missing = Literal["lowest", "skip", "refuse"]
Reach = Literal["nothing", "see", "change"]


@dataclass(frozen=True)
class Component:
    """What one number of a reward vector means.

    low, high: the range in which a score must lie; unit: of what. version: of the grader; another one gives other numbers.
    missing: what a scalar does without a score: "lowest" puts low in its place, "skip" leaves the term out and the other weights
    as they are, "refuse" gives no scalar. actor_can: what the actor can do to the grader's inputs; "change" is an invitation.
    calibration: the data that the grader was calibrated on, "" for none.
    """

    name: str
    low: float | int
    high: float | int
    unit: str
    version: str
    missing: Missing
    actor_can: Reach = "nothing"
    calibration: str = ""

    def __post_init__(self) -> None:
        for field in ("name", "unit", "version"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field):
                raise ValueError(f"{field} must be non-empty text; got {getattr(self, field)!r}")
        if not -inf < self.low < self.high < inf:
            raise ValueError(f"low and high of {self.name} must be finite, low < high; got {self.low} and {self.high}")
        if self.missing not in ("lowest", "skip", "refuse"):
            raise ValueError(f"missing of {self.name} must be 'lowest', 'skip' or 'refuse'; got {self.missing!r}")
        if self.actor_can not in ("nothing", "see", "change"):
            raise ValueError(f"actor_can of {self.name} must be 'nothing', 'see' or 'change'; got {self.actor_can!r}")
        object.__setattr__(self, "low", float(self.low))  # 0 and 0.0 are one range, so they have one digest
        object.__setattr__(self, "high", float(self.high))


@dataclass(frozen=True)
class Score:
    """A component's value for one trajectory, in its unit. None: there is no score, which is not a 0.

    confidence: of the grader in this value, from 0 to 1. It is recorded, and enters no sum. reason: what the value was
    read from, or why there is none.
    """

    value: float | int | None
    confidence: float | int = 1.0
    reason: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not (self.value is None or isfinite(self.value)):
            raise ValueError(f"value must be a finite number, or None if it is missing; got {self.value}")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence must lie in [0, 1]; got {self.confidence}")
        object.__setattr__(self, "value", None if self.value is None else float(self.value))
        object.__setattr__(self, "confidence", float(self.confidence))


@dataclass(frozen=True)
class RewardVector:
    """All scores of one trajectory, one for each component: a grader that did not answer has a Score too, without a value."""

    components: tuple[Component, ...]
    scores: Mapping[str, Score]

    def __post_init__(self) -> None:
        names = [c.name for c in self.components]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"components must be at least one, each with a name of its own; got {names}")
        if set(self.scores) != set(names):
            raise ValueError(f"scores must hold one score for each of {sorted(names)}; got {sorted(self.scores)}")
        for c in self.components:
            value = self.scores[c.name].value
            if value is not None and not c.low <= value <= c.high:
                raise ValueError(f"scores[{c.name!r}] must lie in [{c.low}, {c.high}] {c.unit}; got {value}")
        object.__setattr__(self, "scores", MappingProxyType({name: self.scores[name] for name in names}))

    @property
    def digest(self) -> str:
        return digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        return {
            "components": [dict(vars(c)) for c in self.components],
            "scores": {name: dict(vars(score)) for name, score in self.scores.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RewardVector":
        components = tuple(Component(**c) for c in data["components"])
        return cls(components, {name: Score(**score) for name, score in data["scores"].items()})


# ---------------------------------------------------------------- three ways to decide


def scalarize(vector: RewardVector, weights: Mapping[str, float | int]) -> float | None:
    """The weighted sum of a reward vector; a missing score follows its component's rule.

        sum over the named components of  weight * value
        no value:  "lowest" -> value = low;   "skip" -> no term, the other weights stay;   "refuse" -> None

    Shapes and units: weights in scalar units per unit of the component; components that are not named have no part in it, and one
    that is named with weight 0 still refuses. Terms are added in the order of the components: the stored vector gives the same bits.
    None also if no term is left: a sum over nothing is 0, and a missing score is not a 0.
    Reduces to: the value of a single component with weight 1.
    Raises: ValueError if weights is empty, names no component, or is not finite.
    Source: the reward vector before a scalar, in source A 7.5.
    """
    _check_names(weights, vector, "weights")
    terms = []
    for c in vector.components:
        if c.name not in weights:
            continue
        value = vector.scores[c.name].value
        if value is None and c.missing == "refuse":
            return None
        if value is not None or c.missing == "lowest":
            terms.append(weights[c.name] * (c.low if value is None else value))
    return float(sum(terms)) if terms else None


def lexicographic(vectors: Sequence[RewardVector], order: Sequence[str]) -> list[int]:
    """Places of the vectors, best first: by the first component of the order, equal ones by the second, and so on.

        i before j  if  value_i[c] > value_j[c] at the first component c of the order in which they differ

    Shapes and units: result a permutation of 0..N-1. A missing value stands as the component's low end, whatever its rule: an order
    has no place for "no order". Vectors equal in all named components stay in the order they came in.
    Reduces to: sorting by one value. No number of units of a later component makes up for any difference in an earlier one.
    Raises: ValueError if order is empty, repeats a name or names no component of some vector.
    Source: lexicographic constraints, in source A 7.5.
    """
    if not order or len(set(order)) < len(order):
        raise ValueError(f"order must name at least one component, each once; got {list(order)}")
    for vector in vectors:
        _check_names(dict.fromkeys(order, 0), vector, "order")

    def key(vector: RewardVector) -> tuple[float, ...]:
        low = {c.name: c.low for c in vector.components}
        return tuple(low[name] if vector.scores[name].value is None else vector.scores[name].value for name in order)

    return sorted(range(len(vectors)), key=lambda i: tuple(-x for x in key(vectors[i])))


def gate(vector: RewardVector, limits: Mapping[str, float | int]) -> bool:
    """Whether every named component reaches its limit.

        all over the named components of  value >= limit

    Shapes and units: limits in the components' units: the least admissible values. A missing value never passes: what nobody has
    looked at is not known to be safe.
    Reduces to: a threshold on one component. It reads nothing but the named components, so no other reward can buy a passage.
    Raises: ValueError if limits is empty, names no component, or is not finite.
    Source: severe-risk gates, in source A 7.5.
    """
    _check_names(limits, vector, "limits")
    values = {name: vector.scores[name].value for name in limits}
    return all(value is not None and value >= limits[name] for name, value in values.items())


def _check_names(named: Mapping[str, float | int], vector: RewardVector, what: str) -> None:
    known = [c.name for c in vector.components]
    if not named or not set(named) <= set(known):
        raise ValueError(f"{what} must name components of the vector, {known}, at least one; got {list(named)}")
    for name, number in named.items():
        if not isfinite(number):
            raise ValueError(f"{what}[{name!r}] must be finite; got {number}")


# ---------------------------------------------------------------- one scale for all components


def fit_normalisers(
    stream: Sequence[RewardVector], split: str = "train", *, names: Sequence[str] | None = None
) -> Mapping[str, RewardNormaliser]:
    """A normaliser for each component (or for the named ones), from the scores of a stream of vectors. Missing scores have no part.

    split: which data these are; it is recorded in each normaliser. The constants never move afterwards.
    Raises: ValueError if the vectors have not the same components, or a component has fewer than two scores or equal ones only:
    that one has no scale, and must be left out by naming the others.
    """
    if not stream or any(vector.components != stream[0].components for vector in stream):
        raise ValueError(f"stream must hold vectors, at least one, all with the same components; got {len(stream)} vectors")
    wanted = [c.name for c in stream[0].components] if names is None else names
    _check_names(dict.fromkeys(wanted, 0), stream[0], "names")
    fitted = {}
    for name in wanted:
        values = [v.scores[name].value for v in stream if v.scores[name].value is not None]
        try:
            fitted[name] = RewardNormaliser.fit(torch.tensor(values, dtype=torch.float64), split)
        except ValueError as error:
            raise ValueError(f"stream must give {name} at least two different scores: {error}") from None
    return MappingProxyType(fitted)


def normalised(vector: RewardVector, normalisers: Mapping[str, RewardNormaliser]) -> RewardVector:
    """The same scores in standard deviations of the training stream; what has no normaliser stays as it is.

        value' = (value - mean) / std,   and the range likewise

    The result is a vector of its own, with range, unit and version of the new numbers: it can't be taken for the raw one. A
    missing score stays missing; under "lowest" it stands at the new low end, under "skip" as if it were the training mean.
    """
    _check_names(dict.fromkeys(normalisers, 0), vector, "normalisers")
    components, scores = [], {}
    for c in vector.components:
        score, n = vector.scores[c.name], normalisers.get(c.name)
        if n is not None:
            version = f"{c.version}, normalised by {digest(n.to_json())[:12]}"
            low, high = (c.low - n.mean) / n.std, (c.high - n.mean) / n.std
            c = replace(c, low=low, high=high, unit=f"standard deviations of {n.split}", version=version)
            score = score if score.value is None else replace(score, value=(score.value - n.mean) / n.std)
        components.append(c)
        scores[c.name] = score
    return RewardVector(tuple(components), scores)
