"""Credit in time: token rewards, discounted returns, generalised advantages, whitening.

Rows are [B,T] with a mask over actions. Positions with mask 0 (prompt, observations, padding) are not steps: time goes from one
action to the next, however many tokens of a tool's answer lie between, and results are 0 there.
"""

import math

from jaxtyping import Bool, Float, Shaped
from torch import Tensor
import torch

from course.masks import boolean_mask, checked, masked_mean, selected


def _rate(name: str, x: float | int) -> None:
    if not 0 <= x <= 1:
        raise ValueError(f"{name} must lie in [0, 1]; got {x}")


def _no_reward_elsewhere(rewards: Float[Tensor, "*shape"], counted: Bool[Tensor, "*shape"]) -> None:
    # NaN is what padding often holds; any number but 0 is a reward that somebody meant and that would be lost.
    lost = ~counted & (rewards != 0) & ~torch.isnan(rewards)
    if lost.any():
        raise ValueError(
            f"rewards must be 0 where mask is 0; got {rewards[lost][0].item()} at {int(lost.sum())} masked position(s), "
            "where no action would get it"
        )


def _backward_sums(terms: Float[Tensor, "*batch time"], decay: Float[Tensor, "*batch time"]) -> Float[Tensor, "*batch time"]:
    """s_t = terms_t + decay_t * s_{t+1} with s_T = 0: the one recursion behind returns and advantages."""
    carry, sums = torch.zeros_like(terms[..., 0]), []
    for term, rate in zip(reversed(terms.unbind(-1)), reversed(decay.unbind(-1))):
        carry = torch.addcmul(term, rate, carry)
        sums.append(carry)
    return torch.stack(sums[::-1], dim=-1)


def shaped_token_rewards(
    logp_actor: Float[Tensor, "batch time"],
    logp_reference: Float[Tensor, "batch time"],
    action_mask: Shaped[Tensor, "batch time"],
    terminal_reward: Float[Tensor, "batch"],
    beta: float | int,
) -> Float[Tensor, "batch time"]:
    """Token rewards of a response: a KL charge on every action, and the response's reward on its last action.

        r_t = -beta (log pi(a_t) - log pi_ref(a_t)) + [t is the row's last action] * R        where action_mask = 1
        r_t = 0                                                                               elsewhere

    Shapes and units: logp_actor, logp_reference, action_mask [B,T], log-probabilities in nats, 1 on the policy's own tokens;
    terminal_reward [B] in reward units; beta in reward units per nat; result [B,T] in reward units. The last action is the
    greatest index whose mask is 1, wherever the mask starts, pauses or ends. Differentiable: a training loop passes constants.
    Reduces to: the terminal reward alone with beta 0 or pi = pi_ref; summed over a row it is R - beta (log pi - log pi_ref) of
    the whole response.
    Raises: ValueError if shapes do not fit, a row has no action, beta is negative or not finite, terminal_reward is not finite,
    or a log-probability is not finite where it counts.
    Source: InstructGPT (Ouyang et al. 2022, arXiv 2203.02155), equation 2, per token; a common fault: sum(mask) - 1 as the index
    of the last action, which is right only for masks that start at 0 and have no gap.
    """
    if not (beta >= 0 and math.isfinite(beta)):
        raise ValueError(f"beta must be a finite number of at least 0; got {beta}")
    counted = boolean_mask(action_mask, tuple(logp_actor.shape), "action_mask")
    if counted.dim() != 2 or tuple(terminal_reward.shape) != tuple(counted.shape[:1]):
        got = f"{tuple(logp_actor.shape)} and {tuple(terminal_reward.shape)}"
        raise ValueError(f"logp_actor must be [B,T] and terminal_reward [B]; got {got}")
    if not counted.any(1).all():
        row = int((~counted.any(1)).nonzero()[0])
        raise ValueError(f"action_mask must have an action in every row, to carry the terminal reward; got none in row {row}")
    reward = checked(terminal_reward, "terminal_reward", finite=True)
    charge = selected(logp_actor, "logp_actor", counted) - selected(logp_reference, "logp_reference", counted)
    position = torch.arange(counted.shape[1], device=counted.device)
    last = torch.where(counted, position, -1).amax(1)
    return -beta * charge + torch.where(position == last[:, None], reward[:, None], 0.0)


def discounted_returns(
    rewards: Float[Tensor, "*batch time"], gamma: float | int, mask: Shaped[Tensor, "*batch time"] | None = None
) -> Float[Tensor, "*batch time"]:
    """Discounted sum of the rewards from each step to the end of its row.

        G_t = sum over k >= 0 of gamma^k r_{t+k},   t counting the row's unmasked positions

    Shapes and units: rewards [..,T] in reward units; mask [same], 1 on the steps, None for all; result [..,T] in reward units, 0
    on masked positions, which are skipped and take no discount.
    Reduces to: the rewards for gamma 0; reversed cumulative sums for gamma 1. An advantage is this minus the value.
    Raises: ValueError if shapes differ, gamma is outside [0, 1], a counted reward is not finite, or a masked one is a number
    other than 0 (no step would get it; NaN is taken for padding).
    Source: Sutton and Barto 2018, section 3.3.
    """
    _rate("gamma", gamma)
    if rewards.dim() < 1 or rewards.shape[-1] < 1:
        raise ValueError(f"rewards must be [..,T] with T >= 1; got {tuple(rewards.shape)}")
    counted = torch.ones_like(rewards, dtype=torch.bool) if mask is None else boolean_mask(mask, tuple(rewards.shape))
    _no_reward_elsewhere(rewards, counted)
    r = selected(rewards, "rewards", counted)
    sums = _backward_sums(r, torch.ones_like(r).masked_fill(counted, gamma))
    return torch.where(counted, sums, 0.0)


def next_action_values(values: Float[Tensor, "batch time"], mask: Shaped[Tensor, "batch time"]) -> Float[Tensor, "batch time"]:
    """The value at the row's next action after each action.

        result[b, t] = values[b, u],   u = the least index above t with mask 1;   0 if there is none

    Shapes and units: values, mask [B,T]; result [B,T] in the values' units, 0 on masked positions. Ends of episodes are not known
    here: the caller decides where the next action belongs to another episode.
    Reduces to: values[:, 1:] with a column of zeros after it, under a full mask.
    Raises: ValueError if shapes differ or a counted value is not finite.
    Source: the value of the next state, on the sequence of actions.
    """
    counted = boolean_mask(mask, tuple(values.shape))
    v, time = selected(values, "values", counted), values.shape[1]
    index = torch.where(counted, torch.arange(time, device=values.device), time)
    following = torch.nn.functional.pad(index, (0, 1), value=time)[:, 1:].flip(1).cummin(1).values.flip(1)
    return torch.where(counted, torch.nn.functional.pad(v, (0, 1)).gather(1, following), 0.0)


def generalized_advantage_estimation(
    rewards: Float[Tensor, "batch time"],
    values: Float[Tensor, "batch time"],
    terminated: Shaped[Tensor, "batch time"],
    truncated: Shaped[Tensor, "batch time"],
    final_value: Float[Tensor, "batch time"],
    mask: Shaped[Tensor, "batch time"],
    gamma: float | int = 1.0,
    gae_lambda: float | int = 0.95,
) -> tuple[Float[Tensor, "batch time"], Float[Tensor, "batch time"]]:
    """Generalised advantage estimates and the value targets that belong to them, over the actions of each row.

        V'_t = 0 if terminated_t;  else final_value_t if truncated_t;  else the value at the next action (0 after the last one)
        delta_t = r_t + gamma V'_t - V_t
        A_t = delta_t + gamma lambda A_next, where A_next = 0 if terminated_t or truncated_t;   return_t = A_t + V_t

    Shapes and units: all [B,T]. values_t: the critic's value before the action at t. terminated, truncated: 1 on the action after
    which the episode ended, by itself or by a limit; if both are set, terminated wins. final_value_t: the critic's value of the
    observation after step t, read only where truncated. mask: 1 on actions; the other positions are skipped, take no discount,
    count for nothing whatever they hold, and get 0 in both results. A row may hold several episodes.
    An end belongs to an action: a flag on a masked position is not read. A row that stops without a flag is taken to end there.
    Why two flags: a timeout is not a failure. Both stop the sum, but only a true end makes the future worth 0.
    Reduces to: discounted_returns minus values for lambda 1 and terminated rows; the TD residual delta for lambda 0.
    Raises: ValueError if shapes differ, gamma or gae_lambda is outside [0, 1], a reward, value or final value that is read is not
    finite, a flag is neither 0 nor 1, or a masked position holds a reward (a number other than 0).
    Source: Schulman et al. 2016 (arXiv 1506.02438), equations 10 and 16; terminated and truncated as in Gymnasium.
    """
    _rate("gamma", gamma)
    _rate("gae_lambda", gae_lambda)
    counted, shape = boolean_mask(mask, tuple(rewards.shape)), tuple(rewards.shape)
    if len(shape) != 2 or shape[1] < 1:
        raise ValueError(f"rewards must be [B,T] with T >= 1; got {shape}")
    _no_reward_elsewhere(rewards, counted)
    r, v = selected(rewards, "rewards", counted), selected(values, "values", counted)
    ends = boolean_mask(terminated, shape, "terminated") & counted
    cut = boolean_mask(truncated, shape, "truncated") & counted & ~ends
    following = torch.where(ends | cut, 0.0, next_action_values(values, counted)) + selected(final_value, "final_value", cut)
    delta = r + gamma * following - v
    # A masked position hands on what comes after it: term 0, decay 1.
    decay = torch.ones_like(delta).masked_fill(counted, gamma * gae_lambda).masked_fill(ends | cut, 0.0)
    advantages = torch.where(counted, _backward_sums(delta, decay), 0.0)
    return advantages, advantages + v


def whiten(x: Float[Tensor, "*shape"], mask: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """x shifted and scaled to mean 0 and variance 1 over the positions where the mask is 1.

        (x - mean) / sqrt(mean of (x - mean)^2)        where mask = 1, both means over all masked-in positions;   0 elsewhere

    Shapes and units: x, mask [same shape]; result without units. Population variance (divisor n), no epsilon.
    If all counted values are equal (or there is one, or none) the result is 0: equality is decided on the values, because the
    standard deviation of equal float32 numbers is often not 0 but rounding, which would be blown up to order 1.
    Reduces to: itself when applied twice; unchanged when x is shifted or multiplied by a positive number.
    Raises: ValueError if shapes differ, the mask is not 0/1, or a counted value is not finite.
    Source: the advantage normalisation of PPO implementations, restricted to valid actions.
    """
    counted = boolean_mask(mask, tuple(x.shape))
    kept = selected(x, "x", counted)
    if not counted.any():
        return torch.zeros_like(kept)
    low, high = kept.detach()[counted].min(), kept.detach()[counted].max()
    if low == high:
        return torch.zeros_like(kept)
    # On a scale of 0 to 1 first: neither a huge nor a tiny spread leaves float32 when it is squared. The result is the same.
    unit = (kept - low) / (high - low)
    centred = torch.where(counted, unit - masked_mean(unit, counted), 0.0)
    return centred / masked_mean(centred.square(), counted).sqrt()
