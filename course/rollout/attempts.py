"""What is true of a record only now, when the current policy looks at it: ratios, clipping, age, reuse. Nothing of it is stored there."""

from dataclasses import dataclass
from math import exp, isfinite
from typing import Any, Callable, Mapping, Sequence


@dataclass(frozen=True)
class CurrentPolicy:
    """The policy of this attempt. logprobs(record): of the record's sampled tokens, in order, under this policy.

    update: number of the update that is attempted. clip: a ratio outside of [1 - clip, 1 + clip] is clipped. inserted: by content hash,
    the update at which a record came into the pool; uses: how often it was used before, 0 where it is not named.
    """

    stamp: str
    update: int
    clip: float | int
    logprobs: Callable[[Any], Sequence[float]]
    inserted: Mapping[str, int]
    uses: Mapping[str, int]

    def __post_init__(self) -> None:
        if not self.stamp:
            raise ValueError("stamp must be non-empty text; got ''")
        if not 0 <= self.clip < 1:
            raise ValueError(f"clip must lie in [0, 1); got {self.clip}")


@dataclass(frozen=True)
class Annotation:
    """Of one record in one attempt. stamp: of the current policy. ratios: one for each sampled token."""

    stamp: str
    ratios: tuple[float, ...]
    clipped: tuple[bool, ...]
    age: int  # updates since the record was inserted
    reuse: int  # uses before this one

    def __post_init__(self) -> None:
        if len(self.ratios) != len(self.clipped):
            raise ValueError(f"clipped must say of each of {len(self.ratios)} ratios; got {len(self.clipped)}")
        for name in ("age", "reuse"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0; got {getattr(self, name)}")


def attempt_annotations(record: Any, current_policy: CurrentPolicy) -> Annotation:
    """The annotation of a record for one attempt of an update.

        ratio_t = exp(current log-probability_t - recorded log-probability_t),   clipped_t = ratio_t outside of [1 - clip, 1 + clip]
        age = update - update at insertion,   reuse = number of uses before

    Shapes and units: record: whatever has content_hash and logprobs, natural logarithms of its sampled tokens; ratios without units.
    Reduces to: ratios of 1, none clipped, for the policy that wrote the record.
    Raises: ValueError if the policy gives another number of log-probabilities, one that is not finite or above 0, or the record was
    never inserted, or later than this update.
    Source: C ftip-0057, ftip-0059.
    """
    now, then, name = tuple(current_policy.logprobs(record)), record.logprobs, record.content_hash
    if len(now) != len(then) or not all(isfinite(p) and p <= 1e-5 for p in now):
        raise ValueError(f"logprobs must give a finite number, at most 0, for each of {len(then)} tokens; got {now}")
    if name not in current_policy.inserted or current_policy.inserted[name] > current_policy.update:
        got = current_policy.inserted.get(name, "nothing")
        raise ValueError(f"inserted must say at which update up to {current_policy.update} record {name[:12]} came; got {got}")
    ratios = tuple(exp(a - b) for a, b in zip(now, then))
    return Annotation(
        stamp=current_policy.stamp,
        ratios=ratios,
        clipped=tuple(not 1 - current_policy.clip <= ratio <= 1 + current_policy.clip for ratio in ratios),
        age=current_policy.update - current_policy.inserted[name],
        reuse=current_policy.uses.get(name, 0),
    )
