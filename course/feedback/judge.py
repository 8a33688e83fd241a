"""An AI judge: a probability instead of a label, with the faults of such judges: overconfidence and a liking for one position."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
import torch

from course.masks import matched


def average_orders(shown_first: Float[Tensor, "*pairs"], shown_second: Float[Tensor, "*pairs"]) -> Float[Tensor, "*pairs"]:
    """Probability that A is better, from a judge who was asked twice, with A shown first and with A shown second.

        P(A) = (P(first is better | A shown first) + 1 - P(first is better | B shown first)) / 2

    Shapes and units: shown_first = P(first | A, B), shown_second = P(first | B, A), [any one shape], both the judge's probability
    for whatever stood first; result in [0, 1].
    Reduces to: P(A) + P(B) = 1 whatever the judge says; shown_first for a judge without position bias; 1/2 for a judge who
    always says "the first".
    Raises: ValueError if shapes differ, are empty, or an entry is outside [0, 1].
    Source: Constitutional AI (Bai et al. 2022, arXiv 2212.08073); position bias: Zheng et al. 2023 (arXiv 2306.05685).
    """
    a, b = matched(shown_first=shown_first, shown_second=shown_second)
    for name, p in (("shown_first", a), ("shown_second", b)):
        if ((p < 0) | (p > 1)).any():
            raise ValueError(f"{name} must lie in [0, 1]; got values from {p.min().item()} to {p.max().item()}")
    return (a + (1 - b)) / 2


def clamp_probability(prob: Float[Tensor, "*pairs"], low: float, high: float) -> Float[Tensor, "*pairs"]:
    """A judge's probability, no more certain than it deserves.

        min(max(prob, low), high)

    Shapes and units: prob [any shape]; result in [low, high].
    Reduces to: prob for low = 0, high = 1. With low = 1 - high it commutes with exchanging the responses.
    Raises: ValueError if prob is outside [0, 1] or not 0 <= low <= high <= 1.
    Source: Constitutional AI (Bai et al. 2022, arXiv 2212.08073), which uses 0.4 and 0.6.
    """
    if not 0 <= low <= high <= 1:
        raise ValueError(f"low and high must satisfy 0 <= low <= high <= 1; got {low} and {high}")
    if not ((prob >= 0) & (prob <= 1)).all():
        raise ValueError("prob must lie in [0, 1] everywhere; got other values or NaN")
    return prob.clamp(low, high)


@dataclass(frozen=True)
class Judge:
    """A simulated language-model judge.

    sharpness: logits per unit of utility (large is overconfident). position_bias: logits added for whatever is shown first.
    noise: standard deviation of its error about each response, in utility; the same response gets the same error every time.
    """

    name: str
    sharpness: float = 1.0
    position_bias: float = 0.0
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.sharpness > 0 and self.noise >= 0):
            raise ValueError(f"sharpness must be positive and noise not negative; got {self.sharpness} and {self.noise}")

    def opinion(self, utility: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        """What it takes the utility of n responses to be."""
        generator = torch.Generator().manual_seed(self.seed)
        error = torch.randn(utility.shape, generator=generator, dtype=utility.dtype).to(utility.device)
        return utility + self.noise * error

    def probability(self, first: Float[Tensor, "n"], second: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        """Probability that the response shown first is better, from its opinions about both."""
        return torch.sigmoid(self.sharpness * (first - second) + self.position_bias)
