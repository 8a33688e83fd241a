"""Which finished trajectories make the next batch. Taking what is done first takes what is short."""

from collections import Counter
from dataclasses import dataclass
from math import isfinite
from typing import Iterable, Mapping, Sequence

STAGES = ("sampling", "completion", "reward", "optimisation")


@dataclass(frozen=True)
class Waiting:
    """A finished trajectory that waits for a batch. stratum: what kind of task it is about. Times in seconds of one clock."""

    number: int
    stratum: str
    sampled_at: float
    completed_at: float

    def __post_init__(self) -> None:
        if not (isfinite(self.sampled_at) and isfinite(self.completed_at) and self.sampled_at <= self.completed_at):
            times = (self.sampled_at, self.completed_at)
            raise ValueError(f"sampled_at and completed_at must be finite times in this order; got {times}")


def balanced_batch(queue: Sequence[Waiting], quotas: Mapping[str, int]) -> list[int] | None:
    """Places in the queue of a batch with exactly quotas[s] trajectories of each stratum s; None while a stratum is short.

    queue: in the order of arrival. Within a stratum the first come are taken, and the places rise. A short stratum is waited for
    and never filled up from another: that would bring back the law of what finishes first.
    Reduces to: the first n of the queue where there is one stratum, with quota n; [] for quotas of 0.
    Raises: ValueError if a quota is negative.
    Source: batches of completed episodes favour short tasks; a sampler balanced by task does not.
    """
    wrong = {stratum: quota for stratum, quota in quotas.items() if quota < 0}
    if wrong:
        raise ValueError(f"quotas must be numbers of trajectories, at least 0; got {wrong}")
    left, taken = dict(quotas), []
    for place, waiting in enumerate(queue):
        if left.get(waiting.stratum, 0) > 0:
            left[waiting.stratum] -= 1
            taken.append(place)
    return None if any(left.values()) else taken


def completed_first(queue: Sequence[Waiting], size: int) -> list[int] | None:
    """Places of the first `size` of the queue, whatever they are about; None while there are fewer. Biased: shown, not used."""
    return list(range(size)) if len(queue) >= size else None


def horizon_log(
    sampled: Mapping[int, str], completed: Iterable[int], rewarded: Iterable[int], optimised: Iterable[int]
) -> dict[str, dict[str, float]]:
    """The share of each stratum among the trajectories that reached each stage.

        log[stage][s] = number of trajectories of stratum s at this stage / number of trajectories at this stage

    sampled: the stratum of every trajectory that was begun, by number; the others: the numbers that got as far. A stage that
    nothing has reached has no shares: {}. Where shares change from one stage to the next, a stage selects.
    Raises: ValueError if a trajectory is at a stage without having been at the one before, or is twice at one of them.
    Source: horizon distributions are logged at sampling, completion, reward and optimisation.
    """
    log, before = {}, set(sampled)
    for stage, numbers in zip(STAGES, (list(sampled), list(completed), list(rewarded), list(optimised))):
        unknown = set(numbers) - before
        if unknown or len(set(numbers)) < len(numbers):
            raise ValueError(
                f"{stage} must hold trajectories of the stage before it, each once; got {sorted(unknown) or 'one twice'}"
            )
        counts = Counter(sampled[number] for number in numbers)
        log[stage] = {stratum: count / len(numbers) for stratum, count in sorted(counts.items())}
        before = set(numbers)
    return log


def distance(law: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Total variation between two laws of strata: half the sum of the absolute differences, from 0 to 1."""
    return sum(abs(law.get(s, 0.0) - other.get(s, 0.0)) for s in {*law, *other}) / 2
