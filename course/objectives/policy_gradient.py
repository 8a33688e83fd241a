"""Policy-gradient losses: score function, clipped ratio, rehearsal, entropy, and what to report about the ratio.

Log-probabilities, advantages and masks are all [B,T]. No gradient flows into old log-probabilities or advantages.
"""

import math
from typing import Literal

from jaxtyping import Bool, Float, Int, Num, Shaped
from torch import Tensor
import torch

from course.masks import boolean_mask, checked, masked_mean, selected
from course.objectives.aggregation import aggregate
from course.prob import entropy


def saturated(
    ratio: Float[Tensor, "*shape"], advantage: Float[Tensor, "*shape"], clip_low: float | int, clip_high: float | int
) -> Bool[Tensor, "*shape"]:
    """Where the clipped term is the smaller one: there the loss is flat, and a further step in that direction gains nothing."""
    return ((advantage > 0) & (ratio > 1 + clip_high)) | ((advantage < 0) & (ratio < 1 - clip_low))


def policy_gradient_loss(
    logp: Float[Tensor, "batch time"],
    advantage: Float[Tensor, "batch time"],
    action_mask: Shaped[Tensor, "batch time"],
    *,
    how: Literal["token", "response"],
    denominator: int | float | None = None,
) -> Float[Tensor, ""]:
    """Score-function loss: its gradient is minus the policy gradient of on-policy samples. Its value means nothing.

        L = aggregate of -A_t log pi(a_t),   A constant

    Shapes and units: all [B,T], logp in nats, advantage in any unit; how and denominator as in aggregate; result a scalar.
    Reduces to: the token-mean negative log-likelihood for advantage 1; ppo_actor_loss's gradient where logp_old = logp.
    Raises: ValueError if shapes differ, or a counted log-probability or advantage is not finite; as aggregate.
    Source: REINFORCE (Williams 1992); with a learned value as baseline Mnih et al. 2016 (arXiv 1602.01783, A2C).
    """
    counted = boolean_mask(action_mask, tuple(logp.shape), "action_mask")
    a = selected(advantage, "advantage", counted).detach()
    return aggregate(-a * selected(logp, "logp", counted), counted, how=how, denominator=denominator)


def clipped_token_loss(
    logp_new: Float[Tensor, "batch time"],
    logp_old: Float[Tensor, "batch time"],
    advantage: Float[Tensor, "batch time"],
    *,
    clip_low: float | int,
    clip_high: float | int,
    mask: Shaped[Tensor, "batch time"] | None = None,
) -> Float[Tensor, "batch time"]:
    """PPO's pessimistic term for each token, with separate bounds below and above.

        rho = exp(log pi_new - log pi_old);   l_t = -min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)

    Shapes and units: all [B,T], log-probabilities in nats; mask: 1 on the tokens that count (None: all), the others give 0 and
    may hold anything; result [B,T] in the advantage's units.
    The clip stops the gradient where the ratio has already moved as the advantage asks; it bounds no divergence.
    A clipped token's ratio is taken out before exponentiation: exp may overflow there, and 0 * inf would be its gradient.
    Reduces to: -A, with gradient -A, at ratio 1; -rho * A where it is not clipped. clip_low = clip_high is PPO, clip_high >
    clip_low is DAPO's clip-higher.
    Raises: ValueError if shapes differ, a bound is not above 0, or a counted entry is not finite.
    Source: PPO (Schulman et al. 2017, arXiv 1707.06347), equation 7; clip-higher DAPO (Yu et al. 2025, arXiv 2503.14476).
    """
    for name, bound in (("clip_low", clip_low), ("clip_high", clip_high)):
        if not bound > 0:
            raise ValueError(f"{name} must be above 0; got {bound}")
    shape = tuple(logp_new.shape)
    counted = torch.ones_like(logp_new, dtype=torch.bool) if mask is None else boolean_mask(mask, shape)
    log_ratio = selected(logp_new, "logp_new", counted) - selected(logp_old, "logp_old", counted).detach()
    a = selected(advantage, "advantage", counted).detach()
    clipped = saturated(log_ratio.detach().exp(), a, clip_low, clip_high)
    flat = clipped | (a == 0)
    ratio = torch.where(flat, 0.0, log_ratio).exp()
    at_bound = torch.where(a > 0, (1 + clip_high) * a, (1 - clip_low) * a)
    return -torch.where(clipped, at_bound, ratio * a)


def ppo_actor_loss(
    logp_new: Float[Tensor, "batch time"],
    logp_old: Float[Tensor, "batch time"],
    advantage: Float[Tensor, "batch time"],
    action_mask: Shaped[Tensor, "batch time"],
    clip_eps: float | int = 0.2,
    *,
    denominator: int | float | None = None,
) -> Float[Tensor, ""]:
    """PPO's clipped loss, averaged over the actions of the batch.

        L = mean over actions of -min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t),   rho = exp(log pi_new - log pi_old)

    Shapes and units: all [B,T], log-probabilities in nats, logp_old as recorded while sampling; result a scalar in the
    advantage's units; denominator as in aggregate. No gradient flows into logp_old or advantage.
    Reduces to: policy_gradient_loss's gradient at ratio 1, where its value is minus the mean advantage; 0 for an empty mask.
    Raises: ValueError if shapes differ, the mask is not 0/1, clip_eps is not above 0, or a counted entry is not finite.
    Source: PPO (Schulman et al. 2017, arXiv 1707.06347), equation 7.
    """
    if not clip_eps > 0:
        raise ValueError(f"clip_eps must be above 0; got {clip_eps}")
    counted = boolean_mask(action_mask, tuple(logp_new.shape), "action_mask")
    token_loss = clipped_token_loss(logp_new, logp_old, advantage, clip_low=clip_eps, clip_high=clip_eps, mask=counted)
    return aggregate(token_loss, counted, how="token", denominator=denominator)


def clip_report(
    logp_new: Float[Tensor, "batch time"],
    logp_old: Float[Tensor, "batch time"],
    advantage: Float[Tensor, "batch time"],
    action_mask: Shaped[Tensor, "batch time"],
    action_type: Int[Tensor, "batch time"],
    clip_eps: float | int,
) -> dict[str | int, dict[str, float | int]]:
    """How far the policy has moved since sampling, over all actions and for each type of action.

        clip_fraction = share of actions with (A > 0 and rho > 1 + eps) or (A < 0 and rho < 1 - eps)
        ratio_q50, _q90, _q99, _max: quantiles of rho = exp(log pi_new - log pi_old), linear between neighbours

    Shapes and units: all [B,T]; action_type any integers (a kind of action: text, tool call, ..); result {"all": row, type: row,
    ..} for the types that occur, rows {"clip_fraction", "ratio_q50", "ratio_q90", "ratio_q99", "ratio_max", "tokens"}, floats but
    for the int tokens. Without any action the only row is "all", with clip_fraction 0 and ratios NaN.
    A clipped action is one without gradient: a ratio out of bounds on the side that the advantage does not ask for is not
    clipped.
    Why by type: one type of action may have moved tenfold while the mean KL, over a hundred times as many tokens, stays small.
    Reduces to: clip_fraction 0 and all ratios 1 right after sampling.
    Raises: ValueError if shapes differ, the mask is not 0/1, action_type is no integer, clip_eps is not above 0, or a counted entry
    is not finite.
    Source: the clip fraction of PPO implementations, with the sign of the advantage; a common fault: counting without it.
    """
    if not clip_eps > 0:
        raise ValueError(f"clip_eps must be above 0; got {clip_eps}")
    counted = boolean_mask(action_mask, tuple(logp_new.shape), "action_mask")
    if action_type.shape != counted.shape:
        raise ValueError(f"action_type must have the mask's shape {tuple(counted.shape)}; got {tuple(action_type.shape)}")
    if action_type.is_floating_point():
        raise ValueError(f"action_type must be integers; got {action_type.dtype}")
    with torch.no_grad():
        new, old, a = (
            selected(x, name, counted)[counted]
            for x, name in ((logp_new, "logp_new"), (logp_old, "logp_old"), (advantage, "advantage"))
        )
        ratio, kind = (new - old).exp(), action_type[counted]
        clipped = saturated(ratio, a, clip_eps, clip_eps)

        def row(chosen: Bool[Tensor, "n"]) -> dict[str, float | int]:
            tokens, some = int(chosen.sum()), ratio[chosen]
            at = torch.tensor([0.5, 0.9, 0.99, 1.0], dtype=some.dtype, device=some.device)
            q50, q90, q99, greatest = torch.quantile(some, at).tolist() if tokens else [math.nan] * 4
            fraction = clipped[chosen].double().mean().item() if tokens else 0.0
            return {
                "clip_fraction": fraction, "ratio_q50": q50, "ratio_q90": q90, "ratio_q99": q99, "ratio_max": greatest,
                "tokens": tokens,
            }  # fmt: skip

        return {"all": row(torch.ones_like(clipped)), **{int(k): row(kind == k) for k in kind.unique().tolist()}}


def ppo_ptx_loss(ppo: Float[Tensor, ""], pretrain_nll: Float[Tensor, ""], gamma: float | int) -> Float[Tensor, ""]:
    """PPO with rehearsal of pretraining text.

        L = L_ppo + gamma * NLL of pretraining tokens

    Shapes and units: two scalars; gamma in the PPO loss's units per nat; result a scalar. The gradient is the sum of the two
    gradients, so rehearsal acts on texts that the policy never samples; a KL penalty acts on those it does.
    Reduces to: the PPO loss, value and gradient, for gamma 0.
    Raises: ValueError if a loss is not a finite scalar, or gamma is negative or not finite.
    Source: InstructGPT (Ouyang et al. 2022, arXiv 2203.02155), equation 2 (PPO-ptx).
    """
    if not (gamma >= 0 and math.isfinite(gamma)):
        raise ValueError(f"gamma must be a finite number of at least 0; got {gamma}")
    for name, x in (("ppo", ppo), ("pretrain_nll", pretrain_nll)):
        if x.dim() != 0:
            raise ValueError(f"{name} must be a scalar; got shape {tuple(x.shape)}")
    return checked(ppo, "ppo", finite=True) + gamma * checked(pretrain_nll, "pretrain_nll", finite=True)


def overlong_penalty(length: Num[Tensor, "*batch"] | int | float, max_length: int, buffer: int) -> Float[Tensor, "*batch"]:
    """A reward that falls gently before the length limit instead of all at once at it.

        0 if length <= max_length - buffer;   (max_length - buffer - length) / buffer up to max_length;   -1 beyond

    Shapes and units: length [..] or a number, tokens; max_length, buffer tokens; result [..] in reward units, between -1 and 0.
    Reduces to: 0 at max_length - buffer and -1 at max_length, without a jump.
    Raises: ValueError unless 1 <= buffer <= max_length, or if a length is negative or not finite.
    Source: soft overlong punishment of DAPO (Yu et al. 2025, arXiv 2503.14476), equation 13.
    """
    if not 1 <= buffer <= max_length:
        raise ValueError(f"buffer must satisfy 1 <= buffer <= max_length; got buffer {buffer}, max_length {max_length}")
    tokens = torch.as_tensor(length)
    if not ((tokens >= 0) & (tokens < float("inf"))).all():
        raise ValueError("length must be a finite number of tokens of at least 0; got other values")
    return ((max_length - buffer - tokens) / buffer).clamp(-1, 0)


def entropy_bonus(
    logits: Float[Tensor, "batch time vocab"],
    action_mask: Shaped[Tensor, "batch time"],
    *,
    denominator: int | float | None = None,
) -> Float[Tensor, ""]:
    """Mean entropy of the policy over its actions: subtract it, times a coefficient, from the loss.

        mean over actions of - sum over v of p_v log p_v,   with 0 log 0 = 0

    Shapes and units: logits [B,T,V], the law that each action was drawn from, -inf for forbidden tokens; action_mask [B,T];
    result a scalar in nats, between 0 and log V, differentiable; denominator as in aggregate with "token". Masked rows may hold
    anything.
    Reduces to: log V for equal logits; 0, with gradient 0, for an empty mask.
    Raises: ValueError if shapes do not fit, or a counted row is NaN, +inf or all -inf.
    Source: Williams and Peng 1991; in PPO's objective Schulman et al. 2017 (arXiv 1707.06347), equation 9.
    """
    if logits.dim() != 3:
        raise ValueError(f"logits must be [B,T,V]; got {tuple(logits.shape)}")
    if denominator is not None and not 0 < denominator < float("inf"):
        raise ValueError(f"denominator must be a positive number; got {denominator}")
    counted = boolean_mask(action_mask, tuple(logits.shape[:2]), "action_mask")
    per_action = entropy(logits[counted])
    if denominator is not None:
        return per_action.sum() / denominator
    return masked_mean(per_action, torch.ones_like(per_action, dtype=torch.bool))
