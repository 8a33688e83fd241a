"""Intervals over seeds. One run is an anecdote; these say how far a mean over seeds may be off."""

from dataclasses import dataclass
from typing import Sequence

import torch


@dataclass(frozen=True)
class Interval:
    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}] over {self.count} seeds"


def bootstrap_mean(values: Sequence[float], *, level: float, seed: int, draws: int = 10_000) -> Interval:
    """Mean of independent outcomes with a percentile-bootstrap interval at the stated level (say 0.95)."""
    x = torch.as_tensor(values, dtype=torch.float64)
    if x.dim() != 1 or len(x) < 2 or not bool(torch.isfinite(x).all()):
        raise ValueError(f"values must be at least two finite outcomes; got {tuple(x.shape)}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level}")
    generator = torch.Generator().manual_seed(seed)
    means = x[torch.randint(len(x), (draws, len(x)), generator=generator)].mean(1)
    tail = (1 - level) / 2
    return Interval(float(x.mean()), float(means.quantile(tail)), float(means.quantile(1 - tail)), len(x))
