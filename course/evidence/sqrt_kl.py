"""Reward against the square root of the KL divergence: a line that one paper saw in its runs, looked for in one's own."""

from dataclasses import dataclass
from typing import Sequence

from jaxtyping import Float
from torch import Tensor
import torch


@dataclass(frozen=True)
class SqrtKlFit:
    a: float  # reward per square root of a nat
    b: float  # reward at the reference policy
    a_error: float  # standard errors, as if the residuals were independent
    b_error: float
    residual: float  # standard deviation of the points about the line, in units of the reward
    points: int

    def __str__(self) -> str:
        line = f"reward = ({self.a:.3f} ± {self.a_error:.3f}) sqrt(KL) + ({self.b:.3f} ± {self.b_error:.3f})"
        return f"{line}, {self.points} points, sd about the line {self.residual:.3f}"

    def predict(self, kl: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return self.a * kl.sqrt() + self.b


def fit_sqrt_kl(kl: Float[Tensor, "points"] | Sequence[float], reward: Float[Tensor, "points"] | Sequence[float]) -> SqrtKlFit:
    """Least squares of reward on sqrt(KL) over a run's points, with its errors.

        reward_i = a x_i + b + e_i,  x_i = sqrt(kl_i),  s^2 = sum e_i^2 / (n - 2)
        se(a) = s / sqrt(S),  se(b) = s sqrt(1/n + mean(x)^2 / S),  S = sum (x_i - mean(x))^2

    Shapes and units: kl [n] in nats per response, reward [n]; a in reward per sqrt(nat), the others in units of the reward.
    An observation about these points and not a law: neighbouring steps of a run are alike, so that the errors are too small,
    and beyond the last point the line says nothing.
    Reduces to: errors and residual 0 for points on one line.
    Raises: ValueError if the lengths differ, there are fewer than three points, one is not finite, a KL is negative (an average
    of logp - logq over few samples can be: leave such points out, or use k3), or all KL are equal.
    Source: A 4.1; Bai et al. 2022 (arXiv 2204.05862), section 4.3.
    """
    x, y = (torch.as_tensor(values, dtype=torch.float64) for values in (kl, reward))
    if x.dim() != 1 or x.shape != y.shape or len(x) < 3:
        raise ValueError(f"kl and reward must be equally many, at least three; got {tuple(x.shape)} and {tuple(y.shape)}")
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise ValueError("kl and reward must be finite; got NaN or infinity")
    if bool((x < 0).any()):
        raise ValueError(f"kl must not be negative; got {float(x.min())}")
    x = x.sqrt()
    count, middle = len(x), x.mean()
    spread = (x - middle).square().sum()
    if bool((x == x[0]).all()):
        raise ValueError(f"kl must hold at least two different values; got {count} times {float(x[0]) ** 2}")
    a = ((x - middle) * (y - y.mean())).sum() / spread
    b = y.mean() - a * middle
    s = ((y - a * x - b).square().sum() / (count - 2)).sqrt()
    b_error = s * (1 / count + middle.square() / spread).sqrt()
    return SqrtKlFit(float(a), float(b), float(s / spread.sqrt()), float(b_error), float(s), count)
