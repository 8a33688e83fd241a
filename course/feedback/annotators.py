"""Simulated annotators: what they prefer is the gold utility, seen through noise, a taste for length, and doubt."""

import random
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor
import torch

from course.tasks.records import PreferenceLabel


@dataclass(frozen=True)
class Annotator:
    """Says which of two responses is better.

    temperature: 0 always follows the perceived utility, above 0 the choice is Bradley-Terry with utility / temperature.
    flip: chance that the answer is written down the wrong way round. length_bias: utility a response seems to gain per token.
    tie_margin: differences of perceived utility up to this are a tie. abstain: chance to give no answer.
    A pair of identical responses is INVALID: it says nothing about the law, not even a tie.
    """

    name: str
    temperature: float = 0.0
    flip: float = 0.0
    length_bias: float = 0.0
    tie_margin: float = 0.0
    abstain: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.tie_margin < 0:
            raise ValueError(f"temperature and tie_margin must not be negative; got {self.temperature}, {self.tie_margin}")
        if not (0 <= self.flip <= 1 and 0 <= self.abstain <= 1):
            raise ValueError(f"flip and abstain must be probabilities; got {self.flip}, {self.abstain}")

    def probability(self, utility: Float[Tensor, "n 2"], length: Int[Tensor, "n 2"]) -> Float[Tensor, "n"]:
        """Probability of FIRST, given that the answer is FIRST or SECOND: what a calibrated model of this annotator says."""
        gap = self._gap(utility, length)
        if self.temperature == 0:
            p = torch.where(gap == 0, 0.5, (gap > 0).to(gap.dtype))
        else:
            p = torch.sigmoid(gap / self.temperature)
        return p * (1 - self.flip) + (1 - p) * self.flip

    def _gap(self, utility: Float[Tensor, "n 2"], length: Int[Tensor, "n 2"]) -> Float[Tensor, "n"]:
        perceived = utility + self.length_bias * length
        return perceived[:, 0] - perceived[:, 1]

    def label(
        self, utility: Float[Tensor, "n 2"], length: Int[Tensor, "n 2"], same: Bool[Tensor, "n"], seed: int
    ) -> list[PreferenceLabel]:
        """Labels of n pairs. The answer to pair i depends on (annotator, seed, i) only, not on the other pairs."""
        labels = []
        gap, p = self._gap(utility, length).tolist(), self.probability(utility, length).tolist()
        for i, identical in enumerate(same.tolist()):
            rng = random.Random(f"{self.name} {self.seed} {seed} {i}")
            silent, first = rng.random() < self.abstain, rng.random() < p[i]
            if identical:
                labels.append(PreferenceLabel.INVALID)
            elif silent:
                labels.append(PreferenceLabel.ABSTAIN)
            elif abs(gap[i]) <= self.tie_margin:
                labels.append(PreferenceLabel.TIE)
            else:
                labels.append(PreferenceLabel.FIRST if first else PreferenceLabel.SECOND)
        return labels
