"""Rule-based rewards: propositions that a fixed model grades, linear weights from few labels, added to helpfulness."""

from jaxtyping import Float
from torch import Tensor
import torch

from course.masks import checked


def fit_rule_weights(grades: Float[Tensor, "n k"], labels: Float[Tensor, "n"]) -> Float[Tensor, "k"]:
    """Linear weights of the propositions, by least squares with an intercept.

        (b, w) = argmin of  sum over i of (labels_i - b - grades_i . w)^2

    Shapes and units: grades [N,K], one column per proposition; labels [N] in reward units; result w [K] in reward units per grade.
    The intercept is fitted and not returned: a constant in a reward changes no comparison. fit_rules keeps it.
    Reduces to: the weights that made the labels, where labels are exactly linear in the grades; the slope of a line for K = 1.
    Raises: ValueError if shapes differ, an entry is not finite, or the weights are not determined (fewer than K + 1 rows, a
    proposition whose grade never changes, or one that follows from others).
    Source: rule-based rewards, in source A 3.5 (Mu et al. 2024, arXiv 2411.01111), which fits a linear model on a small labelled set.
    """
    return _least_squares(grades, labels)[0]


def _least_squares(grades: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(w [K], b []), solved in float64: the normal equations of a small set must not lose half the digits."""
    if grades.dim() != 2 or labels.shape != grades.shape[:1]:
        got = f"{tuple(grades.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"grades must be [N,K] and labels [N]; got {got}")
    if 0 in grades.shape:
        raise ValueError(f"grades must have at least one row and one proposition; got {tuple(grades.shape)}")
    x, y = checked(grades, "grades", finite=True), checked(labels, "labels", finite=True)
    wide, target = x.double(), y.double()
    centred = wide - wide.mean(0)
    if torch.linalg.matrix_rank(centred) < x.shape[1]:
        raise ValueError(
            f"grades must determine {x.shape[1]} weights: more rows than propositions, each grade varying and none a sum of others"
        )
    w = torch.linalg.lstsq(centred, (target - target.mean())[:, None]).solution[:, 0]
    return w.to(y.dtype), (target.mean() - wide.mean(0) @ w).to(y.dtype)
