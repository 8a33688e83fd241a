"""Centring and scaling of rewards, with constants that are fitted once, on training data."""

import math
from dataclasses import asdict, dataclass

from jaxtyping import Float
from torch import Tensor
import torch


@dataclass(frozen=True)
class RewardNormaliser:
    """Mean 0 and standard deviation 1 on the scores it was fitted to, whatever it is applied to later.

    Frozen, and applying it returns tensors only: scoring evaluation data cannot move the constants. `split` records where they
    come from, so that a reward that was normalised on the evaluation prompts can be found out.
    """

    mean: float
    std: float
    count: int
    split: str

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and math.isfinite(self.std) and self.std > 0 and self.count >= 2):
            raise ValueError(f"mean and std must be finite, std > 0, count >= 2; got {self.mean}, {self.std}, {self.count}")

    @classmethod
    def fit(cls, scores: Float[Tensor, "n"], split: str = "train") -> "RewardNormaliser":
        """Constants of these scores (population standard deviation, in float64)."""
        if scores.dim() != 1 or len(scores) < 2 or not torch.isfinite(scores).all():
            raise ValueError(f"scores must be [N] with N >= 2 finite entries; got {tuple(scores.shape)}")
        if (scores == scores[0]).all():
            raise ValueError("scores are all equal; dividing by their spread would turn rounding errors into rewards")
        exact = scores.detach().cpu().double()
        return cls(float(exact.mean()), float(exact.std(unbiased=False)), len(scores), split)

    def apply(self, scores: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        """(scores - mean) / std, in standard deviations of the training scores."""
        return (scores - self.mean) / self.std

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> "RewardNormaliser":
        return cls(**data)
