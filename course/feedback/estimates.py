"""A measured number with its interval: what every rate that is claimed comes with."""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import Sequence


@dataclass(frozen=True)
class Estimate:
    """value, and the ends of its interval at the level it was made with. count: how many independent units it rests on."""

    value: float
    low: float
    high: float
    count: int

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"value must lie in its interval; got {self.value} and [{self.low}, {self.high}]")

    def excludes(self, number: float | int = 0) -> bool:
        """The interval does not hold this number."""
        return not self.low <= number <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}], n = {self.count}"

    @classmethod
    def of_share(cls, hits: int, of: int, *, level: float = 0.95) -> "Estimate":
        """A share with Wilson's interval: inside [0, 1], and not of width 0 for none or all."""
        if not 0 <= hits <= of or of < 1:
            raise ValueError(f"hits must be 0..of, of at least 1; got {hits} and {of}")
        z, p = _z(level), hits / of
        middle, half = p + z * z / (2 * of), z * sqrt(p * (1 - p) / of + z * z / (4 * of * of))
        scale = 1 + z * z / of
        # The ends are exactly 0 and 1 for none and all; rounding may miss them by a hair.
        return cls(p, min(p, max(0.0, (middle - half) / scale)), max(p, min(1.0, (middle + half) / scale)), of)

    @classmethod
    def of_mean(cls, values: Sequence[float | int], *, level: float = 0.95) -> "Estimate":
        """A mean of independent values, plus and minus z standard errors. Too narrow for fewer than about 20 of them."""
        if len(values) < 2:
            raise ValueError(f"values must be at least two; got {len(values)}")
        mean = sum(values) / len(values)
        half = _z(level) * sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
        return cls(mean, mean - half, mean + half, len(values))


def _z(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1; got {level}")
    return NormalDist().inv_cdf((1 + level) / 2)
