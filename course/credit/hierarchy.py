"""Two levels of control: a high level chooses what to do next, a low level writes out how, and each has its own rewards.

A choice lasts as long as its sub-trajectory, so between two choices a semi-Markov process discounts by gamma to the power of that
length, not by gamma once.
"""

from jaxtyping import Bool, Float, Int, Num, Shaped
from torch import Tensor
import torch

from course.credit.returns import discounted_returns, next_action_values
from course.credit.turns import acting, action_sums
from course.masks import boolean_mask, selected


def semi_markov_returns(
    rewards: Float[Tensor, "batch choices"],
    lengths: Num[Tensor, "batch choices"],
    mask: Shaped[Tensor, "batch choices"],
    *,
    gamma: float | int,
) -> Float[Tensor, "batch choices"]:
    """Discounted return of each high-level choice.

        G_k = r_k + gamma^n_k G_k+1,   n_k the length of choice k's sub-trajectory,   G = 0 behind the last choice

    Shapes and units: all [B,K]; rewards in reward units, as seen from the beginning of each choice; lengths in primitive steps, at
    least 1; mask 1 on choices, the others are skipped whatever they hold and get 0; result in reward units.
    Reduces to: discounted_returns for lengths of 1; if r_k is its primitive rewards' discounted sum (option_rewards), the primitive
    return at the choice's first step.
    Raises: ValueError if shapes differ, gamma is outside [0, 1], a length that counts is below 1, or a reward that counts is not
    finite.
    Source: options as a semi-Markov process (Sutton, Precup and Singh 1999).
    """
    zeros = torch.zeros_like(rewards)
    return semi_markov_advantages(rewards, zeros, lengths, mask, gamma=gamma, gae_lambda=1.0)[0]


def semi_markov_advantages(
    rewards: Float[Tensor, "batch choices"],
    values: Float[Tensor, "batch choices"],
    lengths: Num[Tensor, "batch choices"],
    mask: Shaped[Tensor, "batch choices"],
    *,
    gamma: float | int,
    gae_lambda: float | int = 0.95,
) -> tuple[Float[Tensor, "batch choices"], Float[Tensor, "batch choices"]]:
    """Generalised advantage estimates of high-level choices, and the value targets that belong to them.

        delta_k = r_k + gamma^n_k V_k+1 - V_k,   A_k = delta_k + gamma^n_k lambda A_k+1,   target_k = A_k + V_k

    Shapes and units: all [B,K] as in semi_markov_returns; values_k: the high level's value where it makes choice k; both results
    [B,K] in reward units, 0 where mask is 0. The row's last choice ends the episode: nothing follows it.
    lambda fades by choices, the discount by primitive steps.
    Reduces to: generalized_advantage_estimation for lengths of 1; semi_markov_returns minus values for lambda 1; delta for lambda 0.
    Raises: as semi_markov_returns, or if a value that counts is not finite, or gae_lambda is outside [0, 1].
    Source: Sutton, Precup and Singh 1999, with the estimator of Schulman et al. 2016 (arXiv 1506.02438).
    """
    for name, rate in (("gamma", gamma), ("gae_lambda", gae_lambda)):
        if not 0 <= rate <= 1:
            raise ValueError(f"{name} must lie in [0, 1]; got {rate}")
    if not (rewards.shape == values.shape == lengths.shape) or rewards.dim() != 2:
        shapes = [tuple(x.shape) for x in (rewards, values, lengths)]
        raise ValueError(f"rewards, values and lengths must share one shape [B,K]; got {shapes}")
    counted = boolean_mask(mask, tuple(rewards.shape))
    r, v = selected(rewards, "rewards", counted), selected(values, "values", counted)
    n = selected(lengths.to(r.dtype), "lengths", counted)
    if (counted & (n < 1)).any():
        raise ValueError(f"lengths must be at least 1 primitive step for every choice; got {n[counted & (n < 1)][0].item()}")
    discount = torch.where(counted, gamma**n, 1.0)  # what is no choice takes no time
    delta = r + discount * next_action_values(v, counted) - v
    carry, sums = torch.zeros_like(delta[:, 0]), []
    for k in reversed(range(delta.shape[1])):
        carry = torch.where(counted[:, k], delta[:, k] + discount[:, k] * gae_lambda * carry, carry)
        sums.append(carry)
    advantages = torch.where(counted, torch.stack(sums[::-1], 1), 0.0) if sums else delta
    return advantages, advantages + v


def option_rewards(
    token_rewards: Float[Tensor, "batch time"], turn: Int[Tensor, "batch time"], choices: int, *, gamma: float | int
) -> tuple[Float[Tensor, "batch choices"], Float[Tensor, "batch choices"]]:
    """What a choice earns while it lasts, and how long it lasts.

        r_k = sum over its tokens i = 0, 1, .. of gamma^i reward_i,    n_k = number of its tokens

    Shapes and units: token_rewards, turn [B,T], turn the choice that each token belongs to or -1 (not read, and it takes no time);
    both results [B,choices], in reward units and in tokens, 0 where a row has no such choice.
    Reduces to: action_sums for gamma 1.
    Raises: ValueError if shapes differ, gamma is outside [0, 1], or as action_sums.
    Source: the reward of an option (Sutton, Precup and Singh 1999).
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1]; got {gamma}")
    kept = selected(token_rewards, "token_rewards", acting(turn, choices))
    discounted = kept * gamma ** _age(turn).to(kept.dtype)
    return action_sums(discounted, turn, choices), action_sums(torch.ones_like(kept), turn, choices)


def two_level_returns(
    high_rewards: Float[Tensor, "batch choices"],
    low_rewards: Float[Tensor, "batch time"],
    turn: Int[Tensor, "batch time"],
    chooses: Shaped[Tensor, "batch time"],
    *,
    gamma: float | int,
) -> Float[Tensor, "batch time"]:
    """Returns of both levels on the tokens that each of them writes.

        choosing tokens:     G_k of semi_markov_returns on the high rewards, n_k = number of action k's tokens
        the other tokens:    H_t = sum over the rest of their own action of gamma^(i - t) low_i

    Shapes and units: high_rewards [B,K], one per action (progress of the task, the price of a tool); low_rewards [B,T] (a well
    formed call, a right argument); turn [B,T], the action of each token or -1; chooses [B,T], 1 on the tokens that name the tool;
    result [B,T] in reward units, 0 off actions, where nothing is read. A low return stops where its action does: later choices are
    not its doing. Subtract a value or a group's mean to get advantages.
    Reduces to: turn_advantages' returns with gamma 1 if every token chooses; discounted low returns per action if none does.
    Raises: ValueError if shapes do not fit, or as the functions it calls.
    Source: hierarchical control with R_hi and R_lo, in options terms (Sutton, Precup and Singh 1999).
    """
    if high_rewards.dim() != 2 or len(high_rewards) != len(turn):
        got = f"{tuple(high_rewards.shape)} and {tuple(turn.shape)}"
        raise ValueError(f"high_rewards must be [B,K], one per action, and turn [B,T]; got {got}")
    acts = turn >= 0
    choosing: Bool[Tensor, "batch time"] = boolean_mask(chooses, tuple(turn.shape), "chooses") & acts
    choices = high_rewards.shape[1]
    low = selected(low_rewards, "low_rewards", acts)
    _, lengths = option_rewards(low, turn, choices, gamma=gamma)
    high = semi_markov_returns(high_rewards, lengths, lengths > 0, gamma=gamma)
    own = torch.zeros_like(low)
    for k in range(choices):
        own = own + discounted_returns(torch.where(turn == k, low, 0.0), gamma, turn == k)
    return torch.where(choosing, high.gather(1, turn.clamp(min=0).long()), torch.where(acts, own, 0.0))


def _age(turn: Int[Tensor, "batch time"]) -> Int[Tensor, "batch time"]:
    """How many tokens of its own action stand before each token."""
    same = (turn[:, :, None] == turn[:, None, :]) & (turn >= 0)[:, None, :]
    return same.tril(-1).sum(2)
