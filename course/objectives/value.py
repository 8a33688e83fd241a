"""Losses of a critic: the value at position t is the value before the action at t, and is fitted to that action's return."""

from jaxtyping import Float, Shaped
from torch import Tensor
import torch

from course.masks import boolean_mask, selected
from course.objectives.aggregation import aggregate


def critic_loss(
    values: Float[Tensor, "batch time"],
    returns: Float[Tensor, "batch time"],
    mask: Shaped[Tensor, "batch time"],
    *,
    denominator: int | float | None = None,
) -> Float[Tensor, ""]:
    """Squared error of the critic over the actions of the batch.

        L = 1/2 * mean over actions of (V_t - G_t)^2,   G constant

    Shapes and units: all [B,T] in reward units, mask 1 on actions; result a scalar in squared reward units; denominator as in
    aggregate with "token". No gradient flows into the returns, which were made from the same critic's values.
    Reduces to: 1/2 for V = 1 and G = 0; gradient (V - G) / number of actions; 0 for an empty mask.
    Raises: ValueError if shapes differ, the mask is not 0/1, or a counted entry is not finite.
    Source: least squares; the value term of PPO (Schulman et al. 2017, arXiv 1707.06347), equation 9.
    """
    counted = boolean_mask(mask, tuple(values.shape))
    error = selected(values, "values", counted) - selected(returns, "returns", counted).detach()
    return aggregate(error.square() / 2, counted, how="token", denominator=denominator)


def clipped_critic_loss(
    values: Float[Tensor, "batch time"],
    old_values: Float[Tensor, "batch time"],
    returns: Float[Tensor, "batch time"],
    mask: Shaped[Tensor, "batch time"],
    *,
    clip_eps: float | int,
    denominator: int | float | None = None,
) -> Float[Tensor, ""]:
    """Squared error of the critic, with no gain from moving further than clip_eps from the values at sampling time.

        W_t = old_t + clip(V_t - old_t, -eps, eps);   L = 1/2 * mean over actions of max((V_t - G_t)^2, (W_t - G_t)^2)

    Shapes and units: all [B,T] in reward units, mask 1 on actions; clip_eps in reward units; result a scalar in squared reward
    units; denominator as in aggregate with "token". No gradient flows into old_values or returns.
    The greater of the two, as the loss is to be minimised: the smaller one would reward leaving the interval.
    Reduces to: critic_loss while no value has moved by more than clip_eps; never below it.
    Raises: ValueError if shapes differ, the mask is not 0/1, clip_eps is not above 0, or a counted entry is not finite.
    Source: the value clipping of PPO implementations (not in the paper).
    """
    if not clip_eps > 0:
        raise ValueError(f"clip_eps must be above 0; got {clip_eps}")
    counted = boolean_mask(mask, tuple(values.shape))
    v = selected(values, "values", counted)
    old, target = (selected(x, name, counted).detach() for x, name in ((old_values, "old_values"), (returns, "returns")))
    near = old + (v - old).clamp(-clip_eps, clip_eps)
    worse = torch.maximum((v - target).square(), (near - target).square())
    return aggregate(worse / 2, counted, how="token", denominator=denominator)
