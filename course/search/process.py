"""Scores of solutions from the probabilities of their steps, as a process reward model gives them."""

from jaxtyping import Float, Shaped
from torch import Tensor
import torch

from course.masks import boolean_mask, checked
from course.search.best_of import first_best


def process_score(
    step_probs: Float[Tensor, "*batch steps"],
    calibrate_length: bool = False,
    *,
    mask: Shaped[Tensor, "*batch steps"] | None = None,
) -> Float[Tensor, "*batch"]:
    """Probability that every step of a solution is right; calibrated, the typical probability of one of its steps.

        S = product over k of p_k;   calibrated S = (product over k of p_k)^(1 / number of steps)

    Shapes and units: step_probs [.., K] in [0, 1]; mask [.., K], which of them are steps, where solutions differ in length;
    result [..] in [0, 1]. Compare long solutions by process_log_score: a product of 200 steps at 1/2 is 0 in float32.
    Reduces to: p for one step. The product falls with each step below 1; the calibrated score stays the same when a step is added
    whose probability is the score.
    Raises: ValueError if shapes differ, a solution has no step (the empty product would call it perfect), or a probability is NaN
    or outside [0, 1].
    Source: Lightman et al. 2023 (arXiv 2305.20050), product of step probabilities; the geometric mean is its length-free variant.
    """
    if calibrate_length:
        return process_log_score(step_probs, True, mask=mask).exp()
    probs, _ = _steps(step_probs, mask)
    return probs.prod(-1)  # and not exp of a sum: at a probability of 0 that has gradient NaN


def process_log_score(
    step_probs: Float[Tensor, "*batch steps"],
    calibrate_length: bool = False,
    *,
    mask: Shaped[Tensor, "*batch steps"] | None = None,
) -> Float[Tensor, "*batch"]:
    """Logarithm of process_score, which keeps apart solutions whose products are too small to be told apart.

        log S = sum over k of log p_k;   calibrated: divided by the number of steps

    Shapes and units: as process_score; result [..] in nats, -inf for a solution with an impossible step.
    Reduces to: log p for one step; -1.021651 for 0.9, 0.8, 0.5.
    Raises: ValueError as process_score does.
    Source: Lightman et al. 2023 (arXiv 2305.20050).
    """
    probs, steps = _steps(step_probs, mask)
    total = probs.log().sum(-1)
    return total / steps if calibrate_length else total


def select_by_process(
    step_probs: Float[Tensor, "n steps"],
    calibrate_length: bool = False,
    *,
    mask: Shaped[Tensor, "n steps"] | None = None,
) -> int:
    """Place of the solution with the highest process score among N; the first one among equals.

    Shapes and units: step_probs [N,K] and mask [N,K] as in process_score. Compared in logarithms.
    Raises: ValueError as process_score does, or if there is no solution.
    """
    scores = process_log_score(step_probs, calibrate_length, mask=mask)
    return int(first_best(scores, len(scores)))


def _steps(step_probs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities with 1 where there is no step, and the number of steps of each solution."""
    if mask is None:
        mask = torch.ones(step_probs.shape, dtype=torch.bool, device=step_probs.device)
    counted = boolean_mask(mask, tuple(step_probs.shape))
    if step_probs.dim() < 1 or not counted.any(-1).all():
        raise ValueError(f"step_probs must be [.., K] with at least one step per solution; got {tuple(step_probs.shape)}")
    probs = torch.where(counted, checked(step_probs, "step_probs", counted), 1.0)
    if ((probs < 0) | (probs > 1)).any():
        raise ValueError(f"step_probs must lie in [0, 1]; got values from {probs.min().item()} to {probs.max().item()}")
    return probs, counted.sum(-1)
