"""Latencies are reported by their tails and by kind of task, and so is the time in which the learner had nothing to do."""

from dataclasses import dataclass
from math import isfinite
from typing import Mapping, Sequence

import numpy as np

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ALL = "all"


@dataclass(frozen=True)
class Episode:
    """One episode's kind of task and its times, in seconds of one clock."""

    stratum: str
    began: float | int
    ended: float | int

    def __post_init__(self) -> None:
        if not (isfinite(self.began) and isfinite(self.ended) and self.began <= self.ended):
            raise ValueError(f"began and ended must be finite times in this order; got {self.began} and {self.ended}")
        if self.stratum == ALL:
            raise ValueError(f"stratum must be a kind of task; got {ALL!r}, which names all of them together")


@dataclass(frozen=True)
class Wait:
    """The learner had nothing to do from began to ended; stratum: of the episode whose end it waited for last."""

    stratum: str
    began: float | int
    ended: float | int


@dataclass(frozen=True)
class Tail:
    """Seconds. waiting: the share of the learner's time in which it waited for an episode of this stratum."""

    episodes: int
    mean: float
    quantiles: Mapping[str, float]  # "p50", "p95", "p99"
    slowest: float
    waiting: float


def latency_report(episodes: Sequence[Episode], waits: Sequence[Wait], seconds: float | int) -> dict[str, Tail]:
    """Tails of the episodes' latencies and the learner's waiting, by stratum and for "all" of them.

        latency = ended - began        waiting = sum of the waits / seconds

    seconds: how long the learner was watched. A wait belongs to the stratum whose episode ended it: that one held the learner up.
    Quantiles interpolate linearly between the sorted latencies. Why not the mean: of a heavy tail it says little, and p50 nothing.
    Reduces to: waiting of "all" is the sum over the strata; the p50 of one episode is its latency.
    Raises: ValueError without episodes, or if the waits are longer than seconds, or name a stratum that no episode has.
    Source: long trajectories make throughput uneven: reported by tail and by task stratum.
    """
    if not episodes:
        raise ValueError("episodes must hold at least one; got none")
    latency: dict[str, list[float]] = {}
    for episode in episodes:
        latency.setdefault(episode.stratum, []).append(episode.ended - episode.began)
    waited = dict.fromkeys(latency, 0.0)
    for wait in waits:
        if wait.stratum not in waited or not wait.began <= wait.ended:
            raise ValueError(f"waits must be of the episodes' strata {sorted(latency)}, from began to ended; got {wait}")
        waited[wait.stratum] += wait.ended - wait.began
    return tails({name: np.array(values) for name, values in sorted(latency.items())}, waited, seconds)


def tails(latency: Mapping[str, np.ndarray], waited: Mapping[str, float], seconds: float | int) -> dict[str, Tail]:
    """The report from arrays: latencies of each stratum, and how long the learner waited for it in all. As latency_report."""
    total = sum(waited.values())
    if not total <= seconds * (1 + 1e-9):
        raise ValueError(f"seconds must cover the waits, {total:g}; got {seconds}")
    rows = {**latency, ALL: np.concatenate(list(latency.values()))}
    share = {name: time / seconds if seconds else 0.0 for name, time in {**waited, ALL: total}.items()}
    return {name: _tail(values, share.get(name, 0.0)) for name, values in rows.items() if len(values)}


def _tail(latency: np.ndarray, waiting: float) -> Tail:
    quantiles = {name: float(np.quantile(latency, q)) for name, q in QUANTILES.items()}
    return Tail(len(latency), float(latency.mean()), quantiles, float(latency.max()), waiting)
