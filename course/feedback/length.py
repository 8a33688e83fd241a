"""What length alone does to a score, measured and taken out."""

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Mapping

from jaxtyping import Float, Num, Shaped
from torch import Tensor
import torch

from course.masks import checked


def remove_length_effect(score: Float[Tensor, "n"], length: Num[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Scores without what a straight line in length explains of them.

        result = score - slope * (length - mean length),   slope = cov(score, length) / var(length)

    That is the residual of the least-squares line plus the mean score. Shapes and units: score [N] in reward units, length [N] in
    words or tokens; result [N] in reward units. Differentiable in score.
    Reduces to: score if all lengths are equal, or one is alone; the mean score everywhere if score is a line in length. The result
    has no correlation with length, and applied twice it is the same.
    Not a cure for every length bias: only for what is linear on these data, and a good long answer loses along with a padded one
    if good answers are long here. LengthCalibration with `content` tells the two apart.
    Raises: ValueError if shapes differ, are empty, or an entry is not finite.
    Source: length as a confounder of preference scores, in source A 5.3 and 9; length-controlled win rates (Dubois et al. 2024,
    arXiv 2404.04475).
    """
    said, size = _paired(score, length)
    if (size == size[0]).all():  # decided on the lengths: a difference from their mean could be a rounding error
        return said
    centred = size - size.mean()
    return said - _slope(said, centred) * centred


@dataclass(frozen=True)
class LengthCalibration:
    """The line that was fitted once, for scores that come later. split: which data it was fitted on."""

    slope: float  # reward units per word
    mean_length: float
    count: int
    split: str

    def __post_init__(self) -> None:
        if not (isfinite(self.slope) and isfinite(self.mean_length) and self.count >= 2):
            got = f"{self.slope}, {self.mean_length}, {self.count}"
            raise ValueError(f"slope and mean_length must be finite, count at least 2; got {got}")

    @classmethod
    def fit(
        cls,
        score: Float[Tensor, "n"],
        length: Num[Tensor, "n"],
        split: str = "train",
        *,
        content: Shaped[Tensor, "n"] | None = None,
    ) -> "LengthCalibration":
        """slope = sum over i of (length_i - m_i) score_i / sum over i of (length_i - m_i)^2

        m_i: the mean length of all, or with content [N] (any ids: equal id, equal content) of the responses that say the same. With
        content, long and short are compared within one content only: quality that goes with length is not taken for its effect.
        Raises: ValueError as remove_length_effect; also if no two lengths that are compared differ: they show no effect to remove.
        """
        said, size = _paired(score, length)
        if content is not None and content.shape != score.shape:
            raise ValueError(f"content must have an id for each of {len(score)} scores; got {tuple(content.shape)}")
        group = torch.zeros_like(size, dtype=torch.long) if content is None else content.unique(return_inverse=True)[1]
        of_group = size.new_zeros(int(group.max()) + 1)
        if (size == of_group.scatter(0, group, size)[group]).all():  # all lengths are those of some member of their group
            raise ValueError("length must differ between responses that are compared; got one length in every group")
        centred = size - (of_group.index_add(0, group, size) / group.bincount())[group]
        return cls(float(_slope(said, centred)), float(size.mean()), len(said), split)

    def apply(self, score: Float[Tensor, "n"], length: Num[Tensor, "n"]) -> Float[Tensor, "n"]:
        """score - slope * (length - mean length of the fitted data)"""
        said, size = _paired(score, length)
        return said - self.slope * (size - self.mean_length)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "LengthCalibration":
        return cls(**data)


def _paired(score: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    if score.dim() != 1 or length.shape != score.shape or not len(score):
        raise ValueError(f"score and length must both be [N] with N >= 1; got {tuple(score.shape)} and {tuple(length.shape)}")
    said = checked(score, "score", finite=True)
    return said, checked(length.to(said.dtype), "length", finite=True)


def _slope(said: Tensor, centred: Tensor) -> Tensor:
    """Least squares on lengths whose means are 0: a constant in the scores cancels, and is taken out first to lose no digits."""
    return (centred * (said - said.mean())).sum() / centred.square().sum()
