"""How good a preference model is on held-out comparisons, and for whom."""

from dataclasses import dataclass
from typing import Sequence

from jaxtyping import Float, Shaped
from torch import Tensor
import torch
import torch.nn.functional as F

from course.tasks.records import Comparison, PreferenceLabel


def expected_calibration_error(prob: Float[Tensor, "n"], label: Shaped[Tensor, "n"], bins: int = 10) -> Float[Tensor, ""]:
    """Average distance between what was predicted and what happened, over predictions that are alike.

        sum over bins b of (n_b / N) * | mean of prob in b - mean of label in b |

    Shapes and units: prob [N] in [0, 1]; label [N] bool or 0/1; bins of equal width on [0, 1], bin b holds b/bins <= prob <
    (b+1)/bins, the last one also prob = 1; result a scalar in [0, 1].
    Reduces to: |mean of prob - mean of label| with one bin; 0 for a constant prediction equal to the rate. It does not fall
    when a model becomes better informed: a coin's probability is calibrated too.
    Raises: ValueError if shapes differ or are empty, prob is outside [0, 1], label is not 0/1, or bins < 1.
    Source: Naeini et al. 2015; Guo et al. 2017 (arXiv 1706.04599), equation 3.
    """
    if prob.shape != label.shape or prob.dim() != 1 or len(prob) == 0:
        raise ValueError(f"prob and label must both be [N] with N >= 1; got {tuple(prob.shape)} and {tuple(label.shape)}")
    if not ((prob >= 0) & (prob <= 1)).all():
        raise ValueError("prob must lie in [0, 1] everywhere; got other values or NaN")
    if not ((label == 0) | (label == 1)).all():
        raise ValueError("label must hold only 0 and 1; ties and abstentions are left out before, not coded 0.5")
    if bins < 1:
        raise ValueError(f"bins must be at least 1; got {bins}")
    wide = prob.float() if prob.dtype in (torch.float16, torch.bfloat16) else prob
    bin_of = (wide * bins).long().clamp(max=bins - 1)
    # |sum of prob - sum of label| in a bin is n_b times the distance of the means, so an empty bin needs no special case.
    gap = torch.zeros(bins, dtype=wide.dtype, device=wide.device).index_add(0, bin_of, wide - label.to(wide.dtype))
    return gap.abs().sum() / len(wide)


@dataclass(frozen=True)
class ValidationRow:
    """One law of comparisons: those by one annotator, or of responses by one version of the policy, or all of the sample."""

    grouped_by: str
    value: str | None
    count: int
    undecided: int  # ties, abstentions and invalid comparisons: counted here, part of no other number
    accuracy: float
    log_loss: float
    calibration_error: float

    def __str__(self) -> str:
        law = self.grouped_by if self.value is None else f"{self.grouped_by} = {self.value}"
        return (
            f"{law:32s} n {self.count:5d} (+{self.undecided} undecided)  accuracy {self.accuracy:.3f}  "
            f"log loss {self.log_loss:.3f}  calibration error {self.calibration_error:.3f}"
        )


def validation_report(margin: Float[Tensor, "n"], comparisons: Sequence[Comparison], bins: int = 10) -> list[ValidationRow]:
    """Accuracy, log loss and calibration error on held-out comparisons: of all, by annotator, by version of the policy.

    margin: score of the first response minus score of the second, one per comparison (also for undecided ones). A margin of 0
    counts half. There is no row for a law without a decided comparison.
    """
    if margin.dim() != 1 or len(margin) != len(comparisons) or not torch.isfinite(margin).all():
        raise ValueError(f"margin must be finite, one per comparison ({len(comparisons)}); got {tuple(margin.shape)}")
    laws: dict[tuple[str, str | None], list[int]] = {("all", None): list(range(len(comparisons)))}
    for field in ("annotator", "policy_version"):
        for i, comparison in enumerate(comparisons):
            laws.setdefault((field, getattr(comparison.provenance, field)), []).append(i)
    rows = []
    for (field, value), members in laws.items():
        kept = [i for i in members if comparisons[i].label.decided]
        if not kept:
            continue
        first = torch.tensor([comparisons[i].label is PreferenceLabel.FIRST for i in kept])
        m = margin.detach().cpu().double()[kept]
        signed = torch.where(first, m, -m)
        rows.append(
            ValidationRow(
                grouped_by=field,
                value=value,
                count=len(kept),
                undecided=len(members) - len(kept),
                accuracy=float(((signed > 0).double() + 0.5 * (signed == 0)).mean()),
                log_loss=float(-F.logsigmoid(signed).mean()),
                calibration_error=float(expected_calibration_error(torch.sigmoid(m), first, bins)),
            )
        )
    return rows
