"""Level 2: known mistakes. The docstring of each is what a learner is told whose function answers alike."""

import math

import torch

from autograder.framework import mutant

# ---------------------------------------------------------------- 2.1 shaped_token_rewards


def _gap(actor, reference, mask):
    on = mask != 0
    zero = torch.zeros_like(actor)
    return torch.where(on, actor, zero) - torch.where(on, reference, zero)


def _last(mask):
    return torch.where(mask != 0, torch.arange(mask.shape[1]), -1).amax(1)


def _refuse_empty(mask):
    if not bool((mask != 0).any(1).all()):
        raise ValueError("a row without an action")


def _put(rewards, place, reward):
    return rewards.scatter_add(1, place[:, None], reward[:, None].to(rewards.dtype))


@mutant(of="shaped_token_rewards", kills="L2.01")
def pays_for_leaving(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like logp_reference - logp_actor in the penalty: tokens that the policy made likelier are paid for it."""
    _refuse_empty(action_mask)
    return _put(beta * _gap(logp_actor, logp_reference, action_mask), _last(action_mask), terminal_reward)


@mutant(of="shaped_token_rewards", kills="L2.01")
def charges_the_prompt(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like a penalty on prompt tokens and observations too: the policy did not choose them."""
    _refuse_empty(action_mask)
    return _put(-beta * (logp_actor - logp_reference), _last(action_mask), terminal_reward)


@mutant(of="shaped_token_rewards", kills="L2.01")
def multiplies_by_the_mask(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like a product with the mask: 0 times NaN is NaN, so what stands in the padding does matter."""
    _refuse_empty(action_mask)
    penalty = -beta * (logp_actor - logp_reference) * (action_mask != 0)
    return _put(penalty, _last(action_mask), terminal_reward)


@mutant(of="shaped_token_rewards", kills="L2.01")
def never_pays_back(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like a log-ratio cut off at 0: a token that became less likely is paid back, or the sum is no log-ratio."""
    _refuse_empty(action_mask)
    return _put(-beta * _gap(logp_actor, logp_reference, action_mask).clamp(min=0), _last(action_mask), terminal_reward)


@mutant(of="shaped_token_rewards", kills="L2.01")
def third_estimator(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like the estimator k3: a fine estimate of the KL, but the token rewards no longer sum to the log-ratio."""
    _refuse_empty(action_mask)
    gap = _gap(logp_actor, logp_reference, action_mask)
    return _put(-beta * ((-gap).exp() - 1 + gap), _last(action_mask), terminal_reward)


@mutant(of="shaped_token_rewards", kills=("L2.01", "L2.02"))
def writes_over_the_penalty(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like rewards[last] = reward: the last action's own penalty is lost. The reward is added."""
    _refuse_empty(action_mask)
    penalty = -beta * _gap(logp_actor, logp_reference, action_mask)
    return penalty.scatter(1, _last(action_mask)[:, None], terminal_reward[:, None].to(penalty.dtype))


@mutant(of="shaped_token_rewards", kills="L2.01")
def beta_on_the_reward(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like beta times everything: it weighs the penalty only."""
    _refuse_empty(action_mask)
    return _put(-beta * _gap(logp_actor, logp_reference, action_mask), _last(action_mask), beta * terminal_reward)


@mutant(of="shaped_token_rewards", kills="L2.02")
def in_the_last_column(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like rewards[:, -1]: with padding on the right that is a pad, and no action gets the reward."""
    _refuse_empty(action_mask)
    end = torch.full((len(logp_actor),), logp_actor.shape[1] - 1)
    return _put(-beta * _gap(logp_actor, logp_reference, action_mask), end, terminal_reward)


@mutant(of="shaped_token_rewards", kills="L2.02")
def on_the_first_action(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like argmax of the mask: that is the first action. The reward comes when the response is finished."""
    _refuse_empty(action_mask)
    return _put(-beta * _gap(logp_actor, logp_reference, action_mask), (action_mask != 0).long().argmax(1), terminal_reward)


@mutant(of="shaped_token_rewards", kills="L2.02")
def after_the_last_action(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like one token too late: the first pad is no action, and what stands there is masked away."""
    _refuse_empty(action_mask)
    place = (_last(action_mask) + 1).clamp(max=logp_actor.shape[1] - 1)
    return _put(-beta * _gap(logp_actor, logp_reference, action_mask), place, terminal_reward)


@mutant(of="shaped_token_rewards", kills="L2.02")
def at_the_number_of_actions(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like mask.sum() - 1 as the position: a mask that starts late, or has a gap, ends further on."""
    _refuse_empty(action_mask)
    place = (action_mask != 0).long().sum(1) - 1
    return _put(-beta * _gap(logp_actor, logp_reference, action_mask), place, terminal_reward)


@mutant(of="shaped_token_rewards", kills="L2.02")
def before_the_first_gap(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like the end of the first run of actions: after a gap the response goes on."""
    _refuse_empty(action_mask)
    on = (action_mask != 0).long()
    started = on.cumsum(1) > 0
    gap = (started & (on == 0)).long()
    place = torch.where(gap.any(1), gap.argmax(1) - 1, on.shape[1] - 1)
    return _put(-beta * _gap(logp_actor, logp_reference, action_mask), place, terminal_reward)


@mutant(of="shaped_token_rewards", kills=("L2.01", "L2.02"))
def on_every_action(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like the reward on every action: long responses then get it many times. It belongs to the last one."""
    _refuse_empty(action_mask)
    on = action_mask != 0
    return torch.where(on, terminal_reward[:, None] - beta * _gap(logp_actor, logp_reference, action_mask), 0.0)


@mutant(of="shaped_token_rewards", kills="L2.02")
def forgives_an_empty_row(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """This looks like a row without an action that passes silently: its reward lands on a token that is none."""
    return _put(-beta * _gap(logp_actor, logp_reference, action_mask), _last(action_mask) % logp_actor.shape[1], terminal_reward)


# ---------------------------------------------------------------- 2.2 test_shaped_token_rewards: tests that do not test


def _close(got, wanted):
    assert torch.allclose(got.double(), wanted.double()), f"expected {wanted}, got {got}"


def _ones(rows, width):
    return torch.ones(rows, width, dtype=torch.bool)


@mutant(of="test_shaped_token_rewards", kills=("L2.01", "L2.02"))
def shaped_shape_only(fn):
    """This looks like a test of the shape only: every wrong function here has the right shape."""
    assert fn(torch.randn(2, 3), torch.randn(2, 3), _ones(2, 3), torch.randn(2), 0.1).shape == (2, 3)


@mutant(of="test_shaped_token_rewards", kills=("L2.01", "L2.02"))
def shaped_never_fails(fn):
    """This looks like a test that cannot fail: what it computes is never compared with anything."""
    fn(torch.randn(2, 3), torch.randn(2, 3), _ones(2, 3), torch.randn(2), 0.1)


@mutant(of="test_shaped_token_rewards", kills=("L2.01", "L2.02"))
def shaped_always_fails(fn):
    """This looks like a test that rejects everything: a right function must pass it."""
    assert fn is None


@mutant(of="test_shaped_token_rewards", kills="L2.02")
def shaped_without_padding(fn):
    """This looks like a test without padding: there the last column is the last action."""
    actor, reference = torch.tensor([[-1.0, -2.0, -3.0]]), torch.tensor([[-1.5, -1.5, -3.0]])
    _close(fn(actor, reference, _ones(1, 3), torch.tensor([2.0]), 0.1), torch.tensor([[-0.05, 0.05, 2.0]]))


@mutant(of="test_shaped_token_rewards", kills="L2.01")
def shaped_equal_policies(fn):
    """This looks like a test in which policy and reference are equal: a penalty of the wrong sign is 0 there too."""
    mask, reward = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 1]]).bool(), torch.tensor([2.0, -1.0])
    wanted = torch.tensor([[0.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, -1.0]])
    _close(fn(torch.zeros(2, 4), torch.zeros(2, 4), mask, reward, 0.1), wanted)


@mutant(of="test_shaped_token_rewards", kills="L2.02")
def shaped_no_reward(fn):
    """This looks like a test with a reward of 0: wherever it lands, nothing is to be seen."""
    actor, mask = torch.tensor([[-1.0, -2.0, -3.0, -1.0]]), torch.tensor([[0, 1, 1, 0]]).bool()
    _close(fn(actor, torch.zeros(1, 4), mask, torch.zeros(1), 0.5), torch.tensor([[0.0, 1.0, 1.5, 0.0]]))


@mutant(of="test_shaped_token_rewards", kills=("L2.01", "L2.02"))
def shaped_sums_only(fn):
    """This looks like a test of the sums only: a reward on the wrong token sums up just as well."""
    actor, mask = torch.tensor([[-1.0, -2.0, -3.0, -1.0]]), torch.tensor([[0, 1, 1, 0]]).bool()
    _close(fn(actor, torch.zeros(1, 4), mask, torch.tensor([0.8]), 0.5).sum(1), torch.tensor([3.3]))


@mutant(of="test_shaped_token_rewards", kills=("L2.01", "L2.02"))
def shaped_expects_the_first_pad(fn):
    """This looks like a test that expects the reward one token after the last action: it rejects the right functions."""
    mask = torch.tensor([[1, 1, 0, 0]]).bool()
    _close(fn(torch.zeros(1, 4), torch.zeros(1, 4), mask, torch.tensor([1.0]), 0.5), torch.tensor([[0.0, 0.0, 1.0, 0.0]]))


# ---------------------------------------------------------------- 2.3 discounted_returns


def _on(rewards, mask):
    return torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask != 0


def _refuse_lost(rewards, on):
    if bool((~on & (rewards != 0)).any()):
        raise ValueError("a reward where the mask is 0")


def _returns(rewards, gamma, mask, *, skip_decay=1.0):
    """skip_decay: what a skipped position multiplies the rest by."""
    on = _on(rewards, mask)
    rest, columns = torch.zeros_like(rewards[:, 0]), []
    for t in range(rewards.shape[1] - 1, -1, -1):
        rest = torch.where(on[:, t], rewards[:, t] + gamma * rest, skip_decay * rest)
        columns.append(torch.where(on[:, t], rest, torch.zeros_like(rest)))
    return torch.stack(columns[::-1], 1)


@mutant(of="discounted_returns", kills="L2.03")
def gaps_cost_time(rewards, gamma, mask=None):
    """This looks like discounting over positions with mask 0: a tool's long answer is no time for the policy."""
    _refuse_lost(rewards, _on(rewards, mask))
    return _returns(rewards, gamma, mask, skip_decay=gamma)


@mutant(of="discounted_returns", kills="L2.03")
def gap_starts_anew(rewards, gamma, mask=None):
    """This looks like a gap taken for the end: what comes after an observation is still to come."""
    _refuse_lost(rewards, _on(rewards, mask))
    return _returns(rewards, gamma, mask, skip_decay=0.0)


@mutant(of="discounted_returns", kills="L2.03")
def loses_a_masked_reward(rewards, gamma, mask=None):
    """This looks like a reward at a skipped position that silently disappears: it is an error somewhere before."""
    return _returns(torch.where(_on(rewards, mask), rewards, torch.zeros_like(rewards)), gamma, mask)


@mutant(of="discounted_returns", kills="L2.03")
def adds_up_masked_rewards(rewards, gamma, mask=None):
    """This looks like a sum over skipped positions that must be 0: two lost rewards can cancel, and both are lost."""
    on = _on(rewards, mask)
    if float(rewards[~on].sum()) != 0:
        raise ValueError("a reward where the mask is 0")
    return _returns(torch.where(on, rewards, torch.zeros_like(rewards)), gamma, mask)


@mutant(of="discounted_returns", kills="L2.03")
def counts_from_the_start(rewards, gamma, mask=None):
    """This looks like discounting from the start of the row: a return is discounted from its own step on."""
    on = _on(rewards, mask)
    _refuse_lost(rewards, on)
    power = gamma ** (on.long().cumsum(1) - 1).clamp(min=0)
    return (rewards * power).flip(1).cumsum(1).flip(1) * on


@mutant(of="discounted_returns", kills="L2.03")
def sums_the_past(rewards, gamma, mask=None):
    """This looks like a sum over what has been: a return is about what is still to come."""
    on = _on(rewards, mask)
    _refuse_lost(rewards, on)
    flipped = None if mask is None else mask.flip(1)
    return _returns(rewards.flip(1), gamma, flipped).flip(1)


@mutant(of="discounted_returns", kills="L2.03")
def without_the_own_reward(rewards, gamma, mask=None):
    """This looks like a return that starts at the next step: the step's own reward belongs to it."""
    on = _on(rewards, mask)
    _refuse_lost(rewards, on)
    return _returns(rewards, gamma, mask) - rewards


@mutant(of="discounted_returns", kills="L2.03")
def discounts_the_own_reward(rewards, gamma, mask=None):
    """This looks like one discount too many: the step's own reward counts in full."""
    _refuse_lost(rewards, _on(rewards, mask))
    return gamma * _returns(rewards, gamma, mask)


@mutant(of="discounted_returns", kills="L2.03")
def never_discounts(rewards, gamma, mask=None):
    """This looks like a plain sum: gamma is not used."""
    _refuse_lost(rewards, _on(rewards, mask))
    return _returns(rewards, 1.0, mask)


@mutant(of="discounted_returns", kills="L2.03")
def divides_by_powers(rewards, gamma, mask=None):
    """This looks like sums of gamma^t r_t divided by gamma^t: at gamma 0, or in a long row, that is 0 divided by 0."""
    on = _on(rewards, mask)
    _refuse_lost(rewards, on)
    power = float(gamma) ** (on.long().cumsum(1) - 1).clamp(min=0).to(rewards.dtype)
    return (rewards * power).flip(1).cumsum(1).flip(1) / power * on


@mutant(of="discounted_returns", kills="L2.03")
def fills_the_gaps(rewards, gamma, mask=None):
    """This looks like returns at skipped positions too: nothing was chosen there, and the result is 0."""
    on = _on(rewards, mask)
    _refuse_lost(rewards, on)
    rest, columns = torch.zeros_like(rewards[:, 0]), []
    for t in range(rewards.shape[1] - 1, -1, -1):
        rest = torch.where(on[:, t], rewards[:, t] + gamma * rest, rest)
        columns.append(rest)
    return torch.stack(columns[::-1], 1)


# ---------------------------------------------------------------- 2.4 generalized_advantage_estimation


def _gae(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda, *, stop="both", gap=1.0, strict=True):
    """A right loop with two places to go wrong: which flags stop the recursion, and what a skipped position multiplies it by."""
    on = mask != 0
    if strict:
        _refuse_lost(rewards, on)
    zero = torch.zeros_like(values[:, 0])
    carried, following, columns = zero, zero, []
    for t in range(values.shape[1] - 1, -1, -1):
        ended, cut = terminated[:, t] != 0, (truncated[:, t] != 0) & (terminated[:, t] == 0)
        value = torch.where(on[:, t], values[:, t], zero)
        after = torch.where(ended, zero, torch.where(cut, final_value[:, t], following))
        stops = {"both": ended | cut, "never": ended & cut, "terminated": ended}[stop]
        here = rewards[:, t] + gamma * after - value + gamma * gae_lambda * torch.where(stops, zero, carried)
        carried = torch.where(on[:, t], here, gap * carried)
        following = torch.where(on[:, t], value, following)
        columns.append(torch.where(on[:, t], here, zero))
    advantages = torch.stack(columns[::-1], 1)
    return advantages, torch.where(on, advantages + values, torch.zeros_like(values))


@mutant(of="generalized_advantage_estimation", kills="L2.04")
def leaks_across_ends(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like a recursion that no end stops: the next episode's luck becomes this one's credit."""
    return _gae(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda, stop="never")


@mutant(of="generalized_advantage_estimation", kills=("L2.04", "L2.05"))
def leaks_across_timeouts(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like a recursion that only a true end stops: a truncated step bootstraps, but the sum ends there as well."""
    return _gae(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda, stop="terminated")


@mutant(of="generalized_advantage_estimation", kills="L2.05")
def timeout_is_failure(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like truncated = terminated: a clock that ran out says nothing about the future, the critic does."""
    ended = (terminated != 0) | (truncated != 0)
    return _gae(rewards, values, ended, torch.zeros_like(ended), final_value, mask, gamma, gae_lambda)


@mutant(of="generalized_advantage_estimation", kills="L2.05")
def end_is_a_timeout(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like a bootstrap past a true end: after it there is nothing that could be worth anything."""
    ended = (terminated != 0) | (truncated != 0)
    return _gae(rewards, values, torch.zeros_like(ended), ended, final_value, mask, gamma, gae_lambda)


@mutant(of="generalized_advantage_estimation", kills="L2.05")
def truncated_wins(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like the flags in the wrong order: a step that ended and ran out of time at once has ended."""
    ended = (terminated != 0) & (truncated == 0)
    return _gae(rewards, values, ended, truncated, final_value, mask, gamma, gae_lambda)


@mutant(of="generalized_advantage_estimation", kills="L2.05")
def next_value_at_a_timeout(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like values[t + 1] at a truncated step: that is the first value of another episode. final_value is this one's."""
    following = torch.cat([values[:, 1:], final_value[:, -1:]], 1)
    return _gae(rewards, values, terminated, truncated, following, mask, gamma, gae_lambda)


@mutant(of="generalized_advantage_estimation", kills="L2.05")
def reads_every_final_value(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like final_value times a flag: 0 times NaN is NaN, and where nothing was cut off it is not to be read."""
    safe = final_value + 0 * final_value.sum(1, keepdim=True)
    return _gae(rewards, values + 0 * safe, terminated, truncated, safe, mask, gamma, gae_lambda)


@mutant(of="generalized_advantage_estimation", kills="L2.04")
def decays_over_observations(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like time that passes at observations: the advantage decays by the length of a tool's answer."""
    return _gae(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda, gap=gamma * gae_lambda)


@mutant(of="generalized_advantage_estimation", kills="L2.04")
def values_of_observations(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like the value of the next token, be it an observation: the critic is trained at actions only."""
    on = mask != 0
    _refuse_lost(rewards, on)
    ended, cut = terminated != 0, (truncated != 0) & (terminated == 0)
    following = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    following = torch.where(ended, 0.0, torch.where(cut, final_value, following))
    delta, carried, columns = rewards + gamma * following - values, torch.zeros_like(values[:, 0]), []
    for t in range(values.shape[1] - 1, -1, -1):
        here = delta[:, t] + gamma * gae_lambda * torch.where(ended[:, t] | cut[:, t], 0.0, carried)
        carried = torch.where(on[:, t], here, carried)
        columns.append(torch.where(on[:, t], here, 0.0))
    advantages = torch.stack(columns[::-1], 1)
    return advantages, torch.where(on, advantages + values, 0.0)


@mutant(of="generalized_advantage_estimation", kills="L2.04")
def next_column(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like values[t + 1] and the advantage of t + 1, actions or not: at a gap the next action is further on."""
    on = mask != 0
    _refuse_lost(rewards, on)
    values = torch.where(on, values, 0.0)
    ended, cut = terminated != 0, (truncated != 0) & (terminated == 0)
    carried, columns = torch.zeros_like(values[:, 0]), []
    for t in range(values.shape[1] - 1, -1, -1):
        following = values[:, t + 1] if t + 1 < values.shape[1] else torch.zeros_like(carried)
        following = torch.where(ended[:, t], 0.0, torch.where(cut[:, t], final_value[:, t], following))
        here = rewards[:, t] + gamma * following - values[:, t]
        here = here + gamma * gae_lambda * torch.where(ended[:, t] | cut[:, t], 0.0, carried)
        carried = torch.where(on[:, t], here, 0.0)
        columns.append(carried)
    advantages = torch.stack(columns[::-1], 1)
    return advantages, torch.where(on, advantages + values, 0.0)


@mutant(of="generalized_advantage_estimation", kills=("L2.04", "L2.05"))
def bootstraps_from_itself(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like gamma * values[t] in the residual at t: what comes after a step is worth the next action's value, not its own."""
    on = mask != 0
    _refuse_lost(rewards, on)
    own = torch.where(on, values, 0.0)
    ended, cut = terminated != 0, (truncated != 0) & (terminated == 0)
    carried, columns = torch.zeros_like(own[:, 0]), []
    for t in range(own.shape[1] - 1, -1, -1):
        following = torch.where(ended[:, t], 0.0, torch.where(cut[:, t], final_value[:, t], own[:, t]))
        here = rewards[:, t] + gamma * following - own[:, t]
        here = here + gamma * gae_lambda * torch.where(ended[:, t] | cut[:, t], 0.0, carried)
        carried = torch.where(on[:, t], here, carried)
        columns.append(torch.where(on[:, t], here, 0.0))
    advantages = torch.stack(columns[::-1], 1)
    return advantages, torch.where(on, advantages + own, 0.0)


@mutant(of="generalized_advantage_estimation", kills="L2.04")
def without_lambda(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like gamma alone in the recursion: lambda is not used."""
    return _gae(rewards, values, terminated, truncated, final_value, mask, gamma, 1.0)


@mutant(of="generalized_advantage_estimation", kills="L2.04")
def without_gamma_in_the_recursion(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like lambda alone in the recursion: residuals further away are discounted by gamma * lambda."""
    return _gae(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda / gamma)


@mutant(of="generalized_advantage_estimation", kills=("L2.04", "L2.05"))
def undiscounted_bootstrap(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like a residual without gamma before the next value: what comes a step later counts a step's discount less."""
    return _gae(rewards, values, terminated, truncated, final_value, mask, 1.0, gamma * gae_lambda)


@mutant(of="generalized_advantage_estimation", kills=("L2.03", "L2.04"))
def returns_lack_the_values(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like returns that are the advantages: the critic's target is advantage plus value."""
    advantages, _ = _gae(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda)
    return advantages, advantages


@mutant(of="generalized_advantage_estimation", kills=("L2.03", "L2.04"))
def advantages_are_returns(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like a baseline that was never subtracted: an advantage is what came minus what was expected."""
    _, returns = _gae(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda)
    return returns, returns


@mutant(of="generalized_advantage_estimation", kills=("L2.03", "L2.04"))
def value_minus_return(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like value minus return: every surprise has the wrong sign."""
    advantages, returns = _gae(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda)
    return -advantages, returns


@mutant(of="generalized_advantage_estimation", kills="L2.04")
def multiplies_values_by_the_mask(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like a product with the mask: 0 times NaN is NaN, so what stands at skipped positions does matter."""
    on = (mask != 0).to(values.dtype)
    advantages, _ = _gae(rewards, values * on, terminated, truncated, final_value, mask, gamma, gae_lambda)
    return advantages, advantages + values * on


@mutant(of="generalized_advantage_estimation", kills="L2.04")
def loses_rewards_at_gaps(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like a reward at a skipped position that silently disappears: it is an error somewhere before."""
    return _gae(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda, strict=False)


@mutant(of="generalized_advantage_estimation", kills="L2.04")
def flags_of_observations(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """This looks like flags that are read at skipped positions: only an action can end an episode."""
    any_flag = (terminated != 0) & (mask == 0)
    shifted = torch.cat([any_flag[:, 1:], torch.zeros_like(any_flag[:, :1])], 1)
    return _gae(rewards, values, (terminated != 0) | shifted, truncated, final_value, mask, gamma, gae_lambda)


# ---------------------------------------------------------------- 2.5 test_generalized_advantage_estimation


def _two_steps(fn, flag, wanted):
    rewards, values = torch.ones(1, 2, dtype=torch.float64), torch.tensor([[0.5, 0.6]], dtype=torch.float64)
    end, none = torch.tensor([[False, True]]), torch.zeros(1, 2, dtype=torch.bool)
    flags = (end, none) if flag == "terminated" else (none, end)
    got, _ = fn(rewards, values, *flags, torch.full((1, 2), 0.7, dtype=torch.float64), ~none, 0.9, 0.95)
    _close(got, torch.tensor([wanted], dtype=torch.float64))


@mutant(of="test_generalized_advantage_estimation", kills=("L2.04", "L2.05"))
def gae_shape_only(fn):
    """This looks like a test of the shapes only: every wrong function here has the right ones."""
    end = torch.tensor([[False, True]])
    got = fn(torch.ones(1, 2), torch.ones(1, 2), end, ~end & end, torch.ones(1, 2), _ones(1, 2), 0.9, 0.9)
    assert [x.shape for x in got] == [(1, 2), (1, 2)]


@mutant(of="test_generalized_advantage_estimation", kills=("L2.04", "L2.05"))
def gae_always_fails(fn):
    """This looks like a test that rejects everything: a right function must pass it."""
    assert fn is None


@mutant(of="test_generalized_advantage_estimation", kills=("L2.04", "L2.05"))
def gae_true_ends_only(fn):
    """This looks like a test without a timeout: with true ends only, both flags mean the same."""
    _two_steps(fn, "terminated", [1.382, 0.4])


@mutant(of="test_generalized_advantage_estimation", kills=("L2.04", "L2.05"))
def gae_timeouts_only(fn):
    """This looks like a test without a true end: a function that always bootstraps passes it."""
    _two_steps(fn, "truncated", [1.92065, 1.03])


@mutant(of="test_generalized_advantage_estimation", kills="L2.04")
def gae_one_episode_a_row(fn):
    """This looks like a test with one episode in each row and no observation: nothing can leak, and nothing is skipped."""
    _two_steps(fn, "terminated", [1.382, 0.4])
    _two_steps(fn, "truncated", [1.92065, 1.03])


@mutant(of="test_generalized_advantage_estimation", kills=("L2.04", "L2.05"))
def gae_compares_with_itself(fn):
    """This looks like a function that is compared with itself: that holds whatever it computes."""
    end = torch.tensor([[False, True]])
    given = (torch.ones(1, 2), torch.ones(1, 2), end, ~end & end, torch.ones(1, 2), _ones(1, 2), 0.9, 0.9)
    _close(fn(*given)[0], fn(*given)[0])


@mutant(of="test_generalized_advantage_estimation", kills=("L2.04", "L2.05"))
def gae_expects_no_bootstrap(fn):
    """This looks like a test that expects a timeout to be a failure: it rejects the right functions."""
    _two_steps(fn, "truncated", [1.382, 0.4])


@mutant(of="test_generalized_advantage_estimation", kills="L2.05")
def gae_zero_critic(fn):
    """This looks like a test with a critic that says 0 everywhere: a wrong bootstrap adds nothing there."""
    rewards, none = torch.tensor([[1.0, 2.0, 3.0]]), torch.zeros(1, 3, dtype=torch.bool)
    end = torch.tensor([[False, False, True]])
    got, _ = fn(rewards, torch.zeros(1, 3), none, end, torch.zeros(1, 3), ~none, 1.0, 1.0)
    _close(got, torch.tensor([[6.0, 5.0, 3.0]]))


# ---------------------------------------------------------------- 2.6 whiten


def _statistics(x, mask):
    counted = x[mask != 0]
    return counted.mean(), counted.std(correction=0)


def _constant(x, mask):
    counted = x[mask != 0]
    return bool((counted == counted[:1]).all())  # so is nothing at all


@mutant(of="whiten", kills="L2.06")
def whitens_over_everything(x, mask):
    """This looks like mean and variance over all positions: padding is no action, and there is a lot of it."""
    on = mask != 0
    if _constant(x, mask):
        return torch.zeros_like(x)
    return torch.where(on, (x - x.mean()) / x.std(correction=0), 0.0)


@mutant(of="whiten", kills="L2.06")
def whitens_over_zeroed_padding(x, mask):
    """This looks like padding set to 0 and then counted: zeros draw the mean towards 0 and make the deviation another one."""
    on = mask != 0
    kept = torch.where(on, x, 0.0)
    if _constant(x, mask):
        return torch.zeros_like(x)
    return torch.where(on, (kept - kept.mean()) / kept.std(correction=0), 0.0)


@mutant(of="whiten", kills="L2.06")
def whitens_with_size_minus_one(x, mask):
    """This looks like torch's own std with its divisor n - 1: the population variance divides by n."""
    if _constant(x, mask):
        return torch.zeros_like(x)
    counted = x[mask != 0]
    return torch.where(mask != 0, (x - counted.mean()) / counted.std(), 0.0)


@mutant(of="whiten", kills="L2.06")
def whitens_with_an_epsilon(x, mask):
    """This looks like an epsilon beside the deviation: small advantages are shrunk, and rounding errors of a constant are blown up."""
    middle, spread = _statistics(x, mask)
    return torch.where(mask != 0, (x - middle) / (spread + 1e-8), 0.0)


@mutant(of="whiten", kills="L2.06")
def whitens_under_a_root(x, mask):
    """This looks like an epsilon under the root: advantages of a millionth are no longer of size 1."""
    middle, spread = _statistics(x, mask)
    if _constant(x, mask):
        return torch.zeros_like(x)
    return torch.where(mask != 0, (x - middle) / (spread**2 + 1e-8).sqrt(), 0.0)


@mutant(of="whiten", kills="L2.06")
def whitens_each_row(x, mask):
    """This looks like statistics of each row: whether one response was better than another is lost."""
    if _constant(x, mask):
        return torch.zeros_like(x)
    out = torch.zeros_like(x)
    for b in range(len(x)):
        on = mask[b] != 0
        if bool(on.any()) and not _constant(x[b], mask[b]):
            out[b, on] = (x[b, on] - x[b, on].mean()) / x[b, on].std(correction=0)
    return out


@mutant(of="whiten", kills="L2.06")
def whitens_by_the_variance(x, mask):
    """This looks like division by the variance: the deviation is its square root."""
    middle, spread = _statistics(x, mask)
    return torch.zeros_like(x) if _constant(x, mask) else torch.where(mask != 0, (x - middle) / spread**2, 0.0)


@mutant(of="whiten", kills="L2.06")
def whitens_without_centring(x, mask):
    """This looks like scaling only: the mean over actions must be 0."""
    return torch.zeros_like(x) if _constant(x, mask) else torch.where(mask != 0, x / _statistics(x, mask)[1], 0.0)


@mutant(of="whiten", kills="L2.06")
def leaves_the_padding(x, mask):
    """This looks like whitened padding: positions with mask 0 must come out as 0."""
    middle, spread = _statistics(x, mask)
    return torch.zeros_like(x) if _constant(x, mask) else (x - middle) / spread


@mutant(of="whiten", kills="L2.06")
def whitens_by_products(x, mask):
    """This looks like sums of x * mask: 0 times NaN is NaN, so what stands elsewhere does matter."""
    on = mask.to(x.dtype)
    if _constant(x, mask):
        return torch.zeros_like(x)
    middle = (x * on).sum() / on.sum()
    return (x - middle) * on / (((x - middle) ** 2 * on).sum() / on.sum()).sqrt()


@mutant(of="whiten", kills="L2.06")
def noise_by_noise(x, mask):
    """This looks like a constant that is divided by its own rounding error: equal values must give exactly 0."""
    middle, spread = _statistics(x, mask)
    return torch.where(mask != 0, (x - middle) / spread, 0.0).nan_to_num(0.0)


@mutant(of="whiten", kills="L2.06")
def close_is_equal(x, mask):
    """This looks like "nearly equal" taken for equal: values that differ by a millionth still differ, and come out with variance 1."""
    middle, spread = _statistics(x, mask)
    return torch.where(mask != 0, (x - middle) / spread, 0.0) if spread > 1e-7 else torch.zeros_like(x)


@mutant(of="whiten", kills="L2.06")
def greatest_of_nothing(x, mask):
    """This looks like the greatest of no values, which is an error: where the mask is 0 everywhere the result is 0."""
    counted, (middle, spread) = x[mask != 0], _statistics(x, mask)
    if bool(counted.max() == counted.min()):
        return torch.zeros_like(x)
    return torch.where(mask != 0, (x - middle) / spread, 0.0)


# ---------------------------------------------------------------- 2.7 ppo_actor_loss


def _kept(mask, *tensors):
    """The tensors at active tokens, as one row each."""
    return [x[mask != 0] for x in tensors]


def _surrogate(new, old, a, eps, join=torch.minimum):
    ratio = (new - old).exp()
    return join(ratio * a, ratio.clamp(1 - eps, 1 + eps) * a)


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_sign(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like the objective itself: as a loss it has a minus, or training makes good actions rarer."""
    return _surrogate(*_kept(action_mask, logp_new, logp_old.detach(), advantage.detach()), clip_eps).mean()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_maximum(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like the greater of the two terms: the pessimist takes the smaller one, before the minus."""
    kept = _kept(action_mask, logp_new, logp_old.detach(), advantage.detach())
    return -_surrogate(*kept, clip_eps, torch.maximum).mean()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_clips_always(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like the clipped term alone: a ratio that went the wrong way then gets no gradient back."""
    new, old, a = _kept(action_mask, logp_new, logp_old.detach(), advantage.detach())
    return -((new - old).exp().clamp(1 - clip_eps, 1 + clip_eps) * a).mean()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_never_clips(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like the ratio without a clip: nothing keeps the new policy near the old one."""
    new, old, a = _kept(action_mask, logp_new, logp_old.detach(), advantage.detach())
    return -((new - old).exp() * a).mean()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_smaller_ratio(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like min(ratio, clipped ratio) * A: for negative advantages the minimum of the products is another one."""
    new, old, a = _kept(action_mask, logp_new, logp_old.detach(), advantage.detach())
    return -((new - old).exp().clamp(max=1 + clip_eps) * a).mean()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_fixed_bound(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like a bound of 0.2 whatever clip_eps says."""
    return -_surrogate(*_kept(action_mask, logp_new, logp_old.detach(), advantage.detach()), 0.2).mean()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_clips_the_log(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like a clip of the log-ratio to eps: exp(0.2) is 1.22 and exp(-0.2) is 0.82, the bounds are 1.2 and 0.8."""
    new, old, a = _kept(action_mask, logp_new, logp_old.detach(), advantage.detach())
    log_ratio = new - old
    return -torch.minimum(log_ratio.exp() * a, log_ratio.clamp(-clip_eps, clip_eps).exp() * a).mean()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_old_over_new(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like old over new: the ratio says how much likelier the action has become."""
    new, old, a = _kept(action_mask, logp_new, logp_old.detach(), advantage.detach())
    return -_surrogate(old, new, a, clip_eps).mean()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_mean_over_positions(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like a mean over all positions: padding makes the step smaller. The mean is over active tokens."""
    kept = _kept(action_mask, logp_new, logp_old.detach(), advantage.detach())
    return -_surrogate(*kept, clip_eps).sum() / action_mask.numel()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_mean_of_rows(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like the mean of the rows' means: here every active token of the batch counts the same."""
    rows = []
    for new, old, a, on in zip(logp_new, logp_old.detach(), advantage.detach(), action_mask != 0):
        if bool(on.any()):
            rows.append(-_surrogate(new[on], old[on], a[on], clip_eps).mean())
    return torch.stack(rows).mean()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_times_the_mask(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like a product with the mask: 0 times NaN is NaN, in the gradient too."""
    on = action_mask.to(logp_new.dtype)
    return -(_surrogate(logp_new, logp_old.detach(), advantage.detach(), clip_eps) * on).sum() / on.sum()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_selects_too_late(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like torch.where after the exponential: the value is right, and the gradient of a masked NaN is NaN."""
    term = _surrogate(logp_new, logp_old.detach(), advantage.detach(), clip_eps)
    return -torch.where(action_mask != 0, term, 0.0).sum() / (action_mask != 0).sum()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_is_reinforce(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like REINFORCE: minus A times the log-probability, without a ratio to the policy that sampled."""
    new, a = _kept(action_mask, logp_new, advantage.detach())
    return -(new * a).mean()


@mutant(of="ppo_actor_loss", kills="L2.07")
def actor_nothing_is_nan(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like the mean of no tokens: a batch without an action costs 0, not NaN."""
    return -_surrogate(*_kept(action_mask, logp_new, logp_old.detach(), advantage.detach()), clip_eps).mean()


@mutant(of="ppo_actor_loss", kills="L2.06")
def gradient_into_the_old_policy(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like old log-probabilities that carry a gradient: they were recorded while sampling and are constants."""
    return -_surrogate(*_kept(action_mask, logp_new, logp_old, advantage.detach()), clip_eps).mean()


@mutant(of="ppo_actor_loss", kills="L2.06")
def gradient_into_the_advantages(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """This looks like advantages that carry a gradient: the actor's loss would teach the critic to praise it."""
    return -_surrogate(*_kept(action_mask, logp_new, logp_old.detach(), advantage), clip_eps).mean()


# ---------------------------------------------------------------- 2.8 clip_report


def _row(ratio, hit):
    at = {f"ratio_q{int(100 * q)}": float(torch.quantile(ratio, q)) for q in (0.5, 0.9, 0.99)}
    return at | {"clip_fraction": float(hit.double().mean()), "ratio_max": float(ratio.max()), "tokens": len(ratio)}


def _hits(ratio, a, eps):
    return ((a > 0) & (ratio > 1 + eps)) | ((a < 0) & (ratio < 1 - eps))


def _report(new, old, a, kind, eps, *, hits=_hits, row=_row):
    ratio = (new - old).exp()
    hit = hits(ratio, a, eps)
    return {"all": row(ratio, hit)} | {int(k): row(ratio[kind == k], hit[kind == k]) for k in kind.unique()}


@mutant(of="clip_report", kills="L2.09")
def report_over_everything(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like a report over all positions: padding has ratio 1 and hides what the actions do."""
    return _report(logp_new.flatten(), logp_old.flatten(), advantage.flatten(), action_type.flatten(), clip_eps)


@mutant(of="clip_report", kills="L2.09")
def report_of_all_only(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like one row for all actions: one rare action at ratio 20 is in no mean and no quantile of all."""
    whole = _report(*_kept(action_mask, logp_new, logp_old, advantage, action_type), clip_eps)
    return {"all": whole["all"]}


@mutant(of="clip_report", kills="L2.09")
def report_without_the_sign(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like a count of all ratios outside the bounds: on the side that the advantage does not want, nothing is clipped."""
    kept = _kept(action_mask, logp_new, logp_old, advantage, action_type)
    return _report(*kept, clip_eps, hits=lambda ratio, a, eps: (ratio > 1 + eps) | (ratio < 1 - eps))


@mutant(of="clip_report", kills="L2.09")
def report_above_only(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like a count above the upper bound only: negative advantages are clipped below the lower one."""
    kept = _kept(action_mask, logp_new, logp_old, advantage, action_type)
    return _report(*kept, clip_eps, hits=lambda ratio, a, eps: (a > 0) & (ratio > 1 + eps))


@mutant(of="clip_report", kills="L2.09")
def report_signs_swapped(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like the signs the wrong way round: it counts the tokens that are not clipped although they are out of bounds."""
    kept = _kept(action_mask, logp_new, logp_old, advantage, action_type)
    return _report(*kept, clip_eps, hits=lambda ratio, a, eps: _hits(ratio, -a, eps))


@mutant(of="clip_report", kills="L2.09")
def report_fraction_of_all(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like a type's clipped tokens divided by all tokens: the fraction is of the type's own."""
    new, old, a, kind = _kept(action_mask, logp_new, logp_old, advantage, action_type)
    report = _report(new, old, a, kind, clip_eps)
    return {k: row | {"clip_fraction": row["clip_fraction"] * row["tokens"] / len(new)} for k, row in report.items()}


@mutant(of="clip_report", kills="L2.09")
def report_of_log_ratios(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like quantiles of the log-ratio: the report is about the ratio itself, 1 where nothing has changed."""
    kept = _kept(action_mask, logp_new, logp_old, advantage, action_type)
    return _report(*kept, clip_eps, row=lambda ratio, hit: _row(ratio, hit) | _row(ratio.log(), hit) | {"tokens": len(ratio)})


@mutant(of="clip_report", kills="L2.09")
def report_nearest_rank(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like quantiles without interpolation: between two neighbours the quantile lies on the line."""

    def row(ratio, hit):
        at = {f"ratio_q{int(100 * q)}": float(torch.quantile(ratio, q, interpolation="nearest")) for q in (0.5, 0.9, 0.99)}
        return _row(ratio, hit) | at

    return _report(*_kept(action_mask, logp_new, logp_old, advantage, action_type), clip_eps, row=row)


@mutant(of="clip_report", kills="L2.09")
def report_names_masked_types(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like a row for types that occur at masked tokens only: there is nothing to report about them."""
    report = _report(*_kept(action_mask, logp_new, logp_old, advantage, action_type), clip_eps)
    empty = {name: 0.0 for name in ("clip_fraction", "ratio_q50", "ratio_q90", "ratio_q99", "ratio_max")} | {"tokens": 0}
    return {int(k): empty for k in action_type.unique()} | report


@mutant(of="clip_report", kills="L2.09")
def report_old_over_new(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like old over new: the ratio says how much likelier the action has become."""
    new, old, a, kind = _kept(action_mask, logp_new, logp_old, advantage, action_type)
    return _report(old, new, a, kind, clip_eps)


@mutant(of="clip_report", kills="L2.09")
def report_clips_at_advantage_zero(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """This looks like A <= 0 where A < 0 is meant: a token with advantage 0 has no gradient to lose, it is not clipped."""
    new, old, a, kind = _kept(action_mask, logp_new, logp_old, advantage, action_type)
    return _report(new, old, torch.where(a == 0, -1.0, a), kind, clip_eps)


# ---------------------------------------------------------------- 2.9 critic_loss, 2.10 ppo_ptx_loss


@mutant(of="critic_loss", kills="L2.10")
def critic_without_the_half(values, returns, mask):
    """This looks like the mean of squares without the half: the gradient is twice value minus return."""
    value, target = _kept(mask, values, returns.detach())
    return ((value - target) ** 2).mean()


@mutant(of="critic_loss", kills="L2.10")
def critic_over_everything(values, returns, mask):
    """This looks like a mean over all positions: the critic learns what padding is worth."""
    return ((values - returns.detach()) ** 2).mean() / 2


@mutant(of="critic_loss", kills="L2.10")
def critic_divides_by_positions(values, returns, mask):
    """This looks like division by all positions: padding makes the step smaller. The mean is over counted ones."""
    value, target = _kept(mask, values, returns.detach())
    return ((value - target) ** 2).sum() / 2 / mask.numel()


@mutant(of="critic_loss", kills="L2.10")
def critic_of_rows(values, returns, mask):
    """This looks like the mean of the rows' means: every action of the batch counts the same."""
    rows = [((v[m != 0] - r[m != 0]) ** 2).mean() / 2 for v, r, m in zip(values, returns.detach(), mask) if bool((m != 0).any())]
    return torch.stack(rows).mean() if rows else values.sum() * 0


@mutant(of="critic_loss", kills="L2.10")
def critic_moves_its_target(values, returns, mask):
    """This looks like returns that carry a gradient: the target moves towards the value. It is a constant."""
    value, target = _kept(mask, values, returns)
    return ((value - target) ** 2).mean() / 2


@mutant(of="critic_loss", kills="L2.10")
def critic_times_the_mask(values, returns, mask):
    """This looks like a product with the mask: 0 times NaN is NaN, so what stands elsewhere does matter."""
    on = mask.to(values.dtype)
    return ((values - returns.detach()) ** 2 * on).sum() / on.sum() / 2


@mutant(of="critic_loss", kills="L2.10")
def critic_selects_too_late(values, returns, mask):
    """This looks like torch.where after the square: the value is right, and the gradient of a masked NaN is NaN."""
    return torch.where(mask != 0, (values - returns.detach()) ** 2, 0.0).sum() / (mask != 0).sum() / 2


@mutant(of="critic_loss", kills="L2.10")
def critic_by_distance(values, returns, mask):
    """This looks like the absolute distance: it finds the median of the returns, the square finds their mean."""
    value, target = _kept(mask, values, returns.detach())
    return (value - target).abs().mean() / 2


@mutant(of="ppo_ptx_loss", kills="L2.11")
def rehearses_backwards(ppo, pretrain_nll, gamma):
    """This looks like minus gamma times the loss: it unlearns the pretraining text. Both are losses to minimise."""
    return ppo - gamma * pretrain_nll


@mutant(of="ppo_ptx_loss", kills="L2.11")
def mixes_the_losses(ppo, pretrain_nll, gamma):
    """This looks like (1 - gamma) times PPO: gamma weighs the rehearsal only, and may be 27.8."""
    return (1 - gamma) * ppo + gamma * pretrain_nll


@mutant(of="ppo_ptx_loss", kills="L2.11")
def weighs_ppo(ppo, pretrain_nll, gamma):
    """This looks like gamma on the PPO loss: it belongs to the pretraining loss."""
    return gamma * ppo + pretrain_nll


@mutant(of="ppo_ptx_loss", kills="L2.11")
def forgets_gamma(ppo, pretrain_nll, gamma):
    """This looks like a plain sum: gamma is not used."""
    return ppo + pretrain_nll


@mutant(of="ppo_ptx_loss", kills="L2.11")
def rehearses_without_gradient(ppo, pretrain_nll, gamma):
    """This looks like a pretraining loss without gradient: the number is right and nothing is rehearsed."""
    return ppo + gamma * pretrain_nll.detach()


@mutant(of="ppo_ptx_loss", kills="L2.11")
def rehearses_probabilities(ppo, pretrain_nll, gamma):
    """This looks like gamma times 1 - exp(-loss): the rehearsal is the log-likelihood itself."""
    return ppo + gamma * (1 - torch.exp(-pretrain_nll))


# ---------------------------------------------------------------- 2.11 group_relative_advantages


def _by_group(rewards, group_id, rule):
    """rule(rewards of one group) for every group; exactly 0 where they are all equal."""
    out = torch.zeros_like(rewards)
    for g in group_id.unique():
        mine = rewards[group_id == g]
        out[group_id == g] = torch.zeros_like(mine) if bool((mine == mine[0]).all()) else rule(mine)
    return out


def _centred(scale, correction=0):
    return lambda r: (r - r.mean()) / (r.std(correction=correction) if scale == "std" else 1.0)


@mutant(of="group_relative_advantages", kills="L2.14")
def batch_statistics(rewards, group_id, *, scale):
    """This looks like mean and deviation of the whole batch: an easy prompt's samples all look good."""
    return _by_group(rewards, torch.zeros_like(group_id), _centred(scale))


@mutant(of="group_relative_advantages", kills="L2.14")
def batch_deviation(rewards, group_id, *, scale):
    """This looks like the deviation of the whole batch beside the group's mean: both are the group's own."""
    spread = rewards.std(correction=0) if scale == "std" else 1.0
    return _by_group(rewards, group_id, lambda r: (r - r.mean()) / spread)


@mutant(of="group_relative_advantages", kills="L2.14")
def size_minus_one(rewards, group_id, *, scale):
    """This looks like torch's own std with its divisor n - 1: rewards 0 and 1 become 0.71 and not 1. Here it divides by n."""
    return _by_group(rewards, group_id, _centred(scale, 1))


@mutant(of="group_relative_advantages", kills="L2.14")
def noise_over_noise(rewards, group_id, *, scale):
    """This looks like a deviation plus 1e-8: the mean of eight times 0.7 in float32 is not 0.7, and the rest becomes advantage 0.8."""
    out = torch.zeros_like(rewards)
    for g in group_id.unique():
        mine = rewards[group_id == g]
        out[group_id == g] = (mine - mine.mean()) / (mine.std(correction=0) + 1e-8 if scale == "std" else 1.0)
    return out


@mutant(of="group_relative_advantages", kills="L2.14")
def epsilon_beside_the_deviation(rewards, group_id, *, scale):
    """This looks like an epsilon beside the deviation: small rewards are shrunk. Groups without variation are a case of their own."""
    return _by_group(rewards, group_id, lambda r: (r - r.mean()) / (r.std(correction=0) + 1e-4 if scale == "std" else 1.0))


@mutant(of="group_relative_advantages", kills="L2.14")
def lost_brackets(rewards, group_id, *, scale):
    """This looks like r - mean / deviation: division comes before subtraction, and the result is not centred."""
    return _by_group(rewards, group_id, lambda r: r - r.mean() / r.std(correction=0) if scale == "std" else r - r.mean())


@mutant(of="group_relative_advantages", kills="L2.14")
def swapped_modes(rewards, group_id, *, scale):
    """This looks like the two modes the wrong way round."""
    return _by_group(rewards, group_id, _centred("none" if scale == "std" else "std"))


@mutant(of="group_relative_advantages", kills="L2.14")
def always_divides(rewards, group_id, *, scale):
    """This looks like a division in both modes: with "none" the rewards are only centred."""
    return _by_group(rewards, group_id, _centred("std"))


@mutant(of="group_relative_advantages", kills="L2.14")
def never_divides(rewards, group_id, *, scale):
    """This looks like no division at all: with "std" the advantages have deviation 1 in every group."""
    return _by_group(rewards, group_id, _centred("none"))


@mutant(of="group_relative_advantages", kills="L2.14")
def by_the_variance(rewards, group_id, *, scale):
    """This looks like division by the variance: the deviation is its square root."""
    return _by_group(rewards, group_id, lambda r: (r - r.mean()) / (r.var(correction=0) if scale == "std" else 1.0))


@mutant(of="group_relative_advantages", kills="L2.14")
def any_other_scale_passes(rewards, group_id, *, scale):
    """This looks like an `else` that takes every other scale for "none": a misspelt option must be refused."""
    return _by_group(rewards, group_id, _centred("std" if scale == "std" else "none"))


@mutant(of="group_relative_advantages", kills="L2.14")
def alone_keeps_its_reward(rewards, group_id, *, scale):
    """This looks like a group of one that keeps its reward: its rewards are all equal, so the advantage is 0."""
    if scale not in ("none", "std"):
        raise ValueError("scale")
    alone = (group_id[:, None] == group_id).sum(1) == 1
    return torch.where(alone, rewards, _by_group(rewards, group_id, _centred(scale)))


@mutant(of="group_relative_advantages", kills="L2.14")
def groups_are_blocks(rewards, group_id, *, scale):
    """This looks like it takes a group to be a block of neighbours: the samples of a prompt may stand anywhere in the batch."""
    block = torch.cat([torch.zeros(1, dtype=torch.long), (group_id[1:] != group_id[:-1]).long()]).cumsum(0)
    return _by_group(rewards, block, _centred(scale))


@mutant(of="group_relative_advantages", kills="L2.14")
def groups_are_sorted(rewards, group_id, *, scale):
    """This looks like group ids that were sorted while the rewards were not: they no longer belong together."""
    return _by_group(rewards, group_id.sort().values, _centred(scale))


@mutant(of="group_relative_advantages", kills="L2.14")
def own_reward_left_out(rewards, group_id, *, scale):
    """This looks like the mean of the others: that is leave-one-out. Here the whole group is the baseline."""

    def rule(r):
        away = r - (r.sum() - r) / (len(r) - 1)
        return away / r.std(correction=0) if scale == "std" else away

    return _by_group(rewards, group_id, rule)


@mutant(of="group_relative_advantages", kills="L2.14")
def median_of_the_group(rewards, group_id, *, scale):
    """This looks like the median as baseline: then the advantages of a group do not sum to 0."""
    return _by_group(rewards, group_id, lambda r: (r - r.median()) / (r.std(correction=0) if scale == "std" else 1.0))


# ---------------------------------------------------------------- 2.12 leave_one_out_advantages


def _refuse_alone(group_id):
    if bool((group_id.unique(return_counts=True)[1] < 2).any()):
        raise ValueError("a group of one")


def _others(r):
    return r - (r.sum() - r) / (len(r) - 1)


@mutant(of="leave_one_out_advantages", kills=("L2.12", "L2.14"))
def own_reward_in_the_baseline(rewards, group_id):
    """This looks like the mean of the whole group: your own reward is in the baseline, and the gradient shrinks by (g - 1) / g."""
    _refuse_alone(group_id)
    return _by_group(rewards, group_id, lambda r: r - r.mean())


@mutant(of="leave_one_out_advantages", kills=("L2.12", "L2.14"))
def standardised(rewards, group_id):
    """This looks like GRPO's division by the deviation: leave-one-out has no scale, and divided it is no longer unbiased."""
    _refuse_alone(group_id)
    return _by_group(rewards, group_id, lambda r: (r - r.mean()) / r.std(correction=0))


@mutant(of="leave_one_out_advantages", kills="L2.14")
def best_of_the_others(rewards, group_id):
    """This looks like the greatest of the others as baseline: it is their mean."""
    _refuse_alone(group_id)

    def rule(r):
        return torch.stack([r[i] - torch.cat([r[:i], r[i + 1 :]]).max() for i in range(len(r))])

    return _by_group(rewards, group_id, rule)


@mutant(of="leave_one_out_advantages", kills=("L2.12", "L2.14"))
def winners_only(rewards, group_id):
    """This looks like advantages cut off at 0: what was worse than the others must be pushed down, or the gradient is biased."""
    _refuse_alone(group_id)
    return _by_group(rewards, group_id, lambda r: _others(r).clamp(min=0))


@mutant(of="leave_one_out_advantages", kills=("L2.12", "L2.14"))
def signs_only(rewards, group_id):
    """This looks like +1 and -1: by how much a reward differs from the others' mean is part of the gradient."""
    _refuse_alone(group_id)
    return _by_group(rewards, group_id, lambda r: _others(r).sign())


@mutant(of="leave_one_out_advantages", kills="L2.14")
def no_baseline(rewards, group_id):
    """This looks like the rewards themselves: unbiased, but there is no baseline, and equal rewards do not give 0."""
    _refuse_alone(group_id)
    return rewards.clone()


@mutant(of="leave_one_out_advantages", kills=("L2.12", "L2.14"))
def best_only(rewards, group_id):
    """This looks like an advantage for the best of a group only: the others must be pushed down."""
    _refuse_alone(group_id)
    return _by_group(rewards, group_id, lambda r: torch.where(r == r.max(), _others(r), torch.zeros_like(r)))


@mutant(of="leave_one_out_advantages", kills="L2.14")
def divides_by_the_whole_size(rewards, group_id):
    """This looks like the others' sum divided by g: there are g - 1 of them."""
    _refuse_alone(group_id)
    return _by_group(rewards, group_id, lambda r: r - (r.sum() - r) / len(r))


@mutant(of="leave_one_out_advantages", kills="L2.14")
def others_of_the_batch(rewards, group_id):
    """This looks like all other rewards of the batch: only those of the same prompt say what was to be expected."""
    _refuse_alone(group_id)
    return _by_group(rewards, torch.zeros_like(group_id), _others)


@mutant(of="leave_one_out_advantages", kills="L2.14")
def adjacent_samples_only(rewards, group_id):
    """This looks like a reshape: it is only right when the samples of a prompt stand next to each other."""
    _refuse_alone(group_id)
    block = torch.cat([torch.zeros(1, dtype=torch.long), (group_id[1:] != group_id[:-1]).long()]).cumsum(0)
    return _by_group(rewards, block, lambda r: _others(r) if len(r) > 1 else r)


@mutant(of="leave_one_out_advantages", kills="L2.14")
def residue_of_equal_rewards(rewards, group_id):
    """This looks like rounding errors for equal rewards: the mean of the others is not always the reward. Equal means 0."""
    _refuse_alone(group_id)
    out = torch.zeros_like(rewards)
    for g in group_id.unique():
        out[group_id == g] = _others(rewards[group_id == g])
    return out


@mutant(of="leave_one_out_advantages", kills="L2.14")
def forgives_a_group_of_one(rewards, group_id):
    """This looks like advantage 0 for a group of one: it has no others, and it would silently teach nothing."""
    return _by_group(rewards, group_id, _others)


# ---------------------------------------------------------------- 2.13 test_group_relative_advantages


@mutant(of="test_group_relative_advantages", kills="L2.14")
def group_shape_only(fn):
    """This looks like a test of the shape only: every wrong function here has the right shape."""
    assert fn(torch.randn(4), torch.tensor([1, 1, 2, 2]), scale="std").shape == (4,)


@mutant(of="test_group_relative_advantages", kills="L2.14")
def group_always_fails(fn):
    """This looks like a test that rejects everything: a right function must pass it."""
    assert fn is None


@mutant(of="test_group_relative_advantages", kills="L2.14")
def one_group_only(fn):
    """This looks like a test with one group: there the batch is the group, and any order is right."""
    rewards, groups = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([4, 4, 4])
    _close(fn(rewards, groups, scale="none"), torch.tensor([1.0, -2.0, 1.0]) / 3)
    _close(fn(rewards, groups, scale="std"), torch.tensor([1.0, -2.0, 1.0]) / math.sqrt(2))


@mutant(of="test_group_relative_advantages", kills="L2.14")
def sorted_groups_only(fn):
    """This looks like a test with groups in blocks of equal size: an interleaved batch is where that goes wrong."""
    rewards, groups = torch.tensor([0.0, 1.0, 5.0, 9.0]), torch.tensor([1, 1, 2, 2])
    _close(fn(rewards, groups, scale="none"), torch.tensor([-0.5, 0.5, -2.0, 2.0]))
    _close(fn(rewards, groups, scale="std"), torch.tensor([-1.0, 1.0, -1.0, 1.0]))


@mutant(of="test_group_relative_advantages", kills="L2.14")
def mode_none_only(fn):
    """This looks like a test of one mode: what the other one divides by is never seen."""
    rewards, groups = torch.tensor([0.0, 5.0, 1.0, 9.0]), torch.tensor([1, 2, 1, 2])
    _close(fn(rewards, groups, scale="none"), torch.tensor([-0.5, -2.0, 0.5, 2.0]))


@mutant(of="test_group_relative_advantages", kills="L2.14")
def rewards_that_vary(fn):
    """This looks like a test without a group of equal rewards: that is where noise is divided by noise."""
    rewards, groups = torch.tensor([0.0, 5.0, 1.0, 9.0, 1.0]), torch.tensor([1, 2, 1, 2, 1])
    for scale in ("none", "std"):
        wanted = torch.zeros(5)
        for g in (1, 2):
            mine = rewards[groups == g]
            wanted[groups == g] = (mine - mine.mean()) / (mine.std(correction=0) if scale == "std" else 1.0)
        _close(fn(rewards, groups, scale=scale), wanted)


@mutant(of="test_group_relative_advantages", kills="L2.14")
def equal_rewards_of_one(fn):
    """This looks like equal rewards of 1: their mean is exact. With 0.7 in float32 it is not."""
    _close(fn(torch.ones(8), torch.zeros(8, dtype=torch.long), scale="std"), torch.zeros(8))
    rewards_that_vary(fn)


@mutant(of="test_group_relative_advantages", kills="L2.14")
def expects_the_sample_deviation(fn):
    """This looks like a test that expects torch's own std: it rejects the right functions."""
    _close(fn(torch.tensor([0.0, 1.0]), torch.tensor([3, 3]), scale="std"), torch.tensor([-1.0, 1.0]) / math.sqrt(2))


# ---------------------------------------------------------------- 2.14 aggregate


def _safe(token_loss, mask):
    on = mask != 0
    return torch.where(on, token_loss, torch.zeros_like(token_loss)), on


def _response(token_loss, mask, denominator, count=None):
    kept, on = _safe(token_loss, mask)
    means = kept.sum(1) / on.sum(1).clamp(min=1)
    count = int(on.any(1).sum()) if count is None else count
    return means.sum() / (max(1, count) if denominator is None else denominator)


def _token(token_loss, mask, denominator):
    kept, on = _safe(token_loss, mask)
    return kept.sum() / (max(1, int(on.sum())) if denominator is None else denominator)


@mutant(of="aggregate", kills="L2.16")
def modes_that_are_one(token_loss, mask, *, how, denominator=None):
    """This looks like the token mean for both modes: a response of one token and one of a hundred should weigh the same by response."""
    return _token(token_loss, mask, denominator)


@mutant(of="aggregate", kills="L2.16")
def always_by_response(token_loss, mask, *, how, denominator=None):
    """This looks like the mean over responses for both modes: by token, a long response weighs more."""
    return _response(token_loss, mask, denominator)


@mutant(of="aggregate", kills="L2.16")
def aggregates_swapped(token_loss, mask, *, how, denominator=None):
    """This looks like the two modes the wrong way round."""
    return _response(token_loss, mask, denominator) if how == "token" else _token(token_loss, mask, denominator)


@mutant(of="aggregate", kills="L2.16")
def divides_by_positions(token_loss, mask, *, how, denominator=None):
    """This looks like a mean over all positions: padding makes the loss smaller."""
    if how == "token":
        return _token(token_loss, mask, denominator or mask.numel())
    kept, _ = _safe(token_loss, mask)
    return kept.mean(1).sum() / (len(kept) if denominator is None else denominator)


@mutant(of="aggregate", kills="L2.16")
def counts_empty_responses(token_loss, mask, *, how, denominator=None):
    """This looks like a mean over all rows: a response without an active token adds nothing and is not counted either."""
    return _token(token_loss, mask, denominator) if how == "token" else _response(token_loss, mask, denominator, len(mask))


@mutant(of="aggregate", kills="L2.16")
def sums_of_responses(token_loss, mask, *, how, denominator=None):
    """This looks like the mean of the responses' sums: by response, each one's own token mean is taken first."""
    if how == "token":
        return _token(token_loss, mask, denominator)
    kept, on = _safe(token_loss, mask)
    return kept.sum() / (max(1, int(on.any(1).sum())) if denominator is None else denominator)


@mutant(of="aggregate", kills="L2.16")
def ignores_the_denominator(token_loss, mask, *, how, denominator=None):
    """This looks like a denominator that is not used: micro-batches then do not sum to the step."""
    return _token(token_loss, mask, None) if how == "token" else _response(token_loss, mask, None)


@mutant(of="aggregate", kills="L2.16")
def divides_twice(token_loss, mask, *, how, denominator=None):
    """This looks like the mean divided by the denominator: it takes the place of the count, it does not come on top."""
    value = _token(token_loss, mask, None) if how == "token" else _response(token_loss, mask, None)
    return value if denominator is None else value / denominator


@mutant(of="aggregate", kills="L2.16")
def denominator_for_tokens_only(token_loss, mask, *, how, denominator=None):
    """This looks like a denominator that the response mode forgets: there it is the step's number of responses."""
    return _token(token_loss, mask, denominator) if how == "token" else _response(token_loss, mask, None)


@mutant(of="aggregate", kills="L2.16")
def aggregates_by_products(token_loss, mask, *, how, denominator=None):
    """This looks like a product with the mask: 0 times NaN is NaN, so what stands at inactive tokens does matter."""
    on = mask.to(token_loss.dtype)
    if how == "token":
        return (token_loss * on).sum() / (on.sum().clamp(min=1) if denominator is None else denominator)
    means = (token_loss * on).sum(1) / on.sum(1).clamp(min=1)
    return means.sum() / ((on.sum(1) > 0).sum().clamp(min=1) if denominator is None else denominator)


@mutant(of="aggregate", kills="L2.16")
def nothing_is_nan(token_loss, mask, *, how, denominator=None):
    """This looks like 0 divided by 0: a batch without an active token must cost 0, not NaN."""
    kept, on = _safe(token_loss, mask)
    if how == "token":
        return kept.sum() / (on.sum() if denominator is None else denominator)
    means = (kept.sum(1) / on.sum(1))[on.any(1)]
    return means.mean() if denominator is None else means.sum() / denominator


@mutant(of="aggregate", kills="L2.16")
def any_other_how_passes(token_loss, mask, *, how, denominator=None):
    """This looks like an `else` that takes every other `how` for "response": a misspelt option must be refused."""
    kept, on = _safe(token_loss, mask)
    if how == "token":
        return kept.sum() / (max(1, int(on.sum())) if denominator is None else denominator)
    total = (kept.sum(1) / on.sum(1).clamp(min=1)).sum()
    return total / (max(1, int(on.any(1).sum())) if denominator is None else denominator)


# ---------------------------------------------------------------- 2.15 overlong_penalty


@mutant(of="overlong_penalty", kills="L2.16")
def whole_steps(length, max_length, buffer):
    """This looks like integer division: between 0 and -1 nothing is left of the slope."""
    return ((max_length - buffer - length) // buffer).clamp(-1, 0).double()


@mutant(of="overlong_penalty", kills="L2.16")
def tensors_only(length, max_length, buffer):
    """This looks like a method of tensors called on a number: the length may be a plain number."""
    return -((length.double() - (max_length - buffer)) / buffer).clamp(0.0, 1.0)


@mutant(of="overlong_penalty", kills="L2.16")
def starts_at_the_limit(length, max_length, buffer):
    """This looks like a slope that begins at max_length: it begins a buffer before, so that nobody is cut off unwarned."""
    return ((max_length - length).double() / buffer).clamp(-1, 0)


@mutant(of="overlong_penalty", kills="L2.16")
def without_a_floor(length, max_length, buffer):
    """This looks like a slope that never ends: beyond max_length the penalty stays at -1."""
    return ((max_length - buffer - length).double() / buffer).clamp(max=0)


@mutant(of="overlong_penalty", kills="L2.16")
def pays_for_brevity(length, max_length, buffer):
    """This looks like a slope that goes on above 0: a short response gets no bonus."""
    return ((max_length - buffer - length).double() / buffer).clamp(min=-1)


@mutant(of="overlong_penalty", kills="L2.16")
def hard_limit(length, max_length, buffer):
    """This looks like a hard limit: no penalty up to max_length, then -1 at once."""
    return -(length > max_length).double()


@mutant(of="overlong_penalty", kills="L2.16")
def penalty_of_the_right_size(length, max_length, buffer):
    """This looks like a positive number: it is added to the reward, so a penalty is negative."""
    return ((length - max_length + buffer).double() / buffer).clamp(0, 1)


@mutant(of="overlong_penalty", kills="L2.16")
def slope_over_the_whole(length, max_length, buffer):
    """This looks like a slope of 1 / max_length: it falls from 0 to -1 within the buffer."""
    return torch.where(length > max_length, -1.0, ((max_length - buffer - length).double() / max_length).clamp(-1, 0))


# ---------------------------------------------------------------- 2.16 overoptimisation_alarm


@mutant(of="overoptimisation_alarm", kills="L2.20")
def never_raises(history):
    """This looks like a detector that never speaks: it is quiet on healthy runs, and on the others."""


@mutant(of="overoptimisation_alarm", kills="L2.20")
def always_raises(history):
    """This looks like a detector that speaks at once: before the peak there is nothing to report, and healthy runs are stopped too."""
    return history[-1]["step"]


@mutant(of="overoptimisation_alarm", kills="L2.20")
def raises_at_the_second_record(history):
    """This looks like an alarm for any movement: a healthy run moves as well."""
    return history[-1]["step"] if len(history) > 1 else None


@mutant(of="overoptimisation_alarm", kills="L2.20")
def any_fall_of_the_score(history):
    """This looks like an alarm whenever the held-out score falls from one record to the next: that is noise half of the time."""
    scores = [row["heldout_score"] for row in history]
    return history[-1]["step"] if len(scores) > 1 and scores[-1] < scores[-2] else None


@mutant(of="overoptimisation_alarm", kills="L2.20")
def a_number_of_steps(history):
    """This looks like an alarm after a fixed number of records: it looks at the clock and not at the run."""
    return history[-1]["step"] if len(history) >= 12 else None


@mutant(of="overoptimisation_alarm", kills="L2.20")
def a_little_kl(history):
    """This looks like an alarm at a KL that every run passes which learns anything: moving away from the reference is the point."""
    return history[-1]["step"] if history[-1]["kl"] > 0.3 else None


@mutant(of="overoptimisation_alarm", kills="L2.20")
def limit_on_kl(history):
    """This looks like a limit on KL: it is a limit on moving, and stops a policy that goes far and is the better for it."""
    return history[-1]["step"] if history[-1]["kl"] > 12 else None


@mutant(of="overoptimisation_alarm", kills="L2.20")
def entropy_below_the_start(history):
    """This looks like an alarm for entropy below the first record's: a policy that learns is surer, also when all is well."""
    return history[-1]["step"] if history[-1]["entropy"] < history[0]["entropy"] else None


@mutant(of="overoptimisation_alarm", kills="L2.20")
def answers_yes(history):
    """This looks like True and False for an answer: it is the step of a record, or None."""
    return history[-1]["kl"] > 4


@mutant(of="overoptimisation_alarm", kills="L2.20")
def answers_a_position(history):
    """This looks like the position of a record for an answer: it is its step."""
    return len(history) - 1 if history[-1]["kl"] > 4 else None


_SEEN = []


@mutant(of="overoptimisation_alarm", kills="L2.20")
def remembers_other_calls(history):
    """This looks like a detector that remembers what it was asked before: the same history must get the same answer."""
    _SEEN.append(len(history))
    return history[-1]["step"] if len(history) > 1 and (len(_SEEN) % 2 or history[-1]["kl"] > 4) else None


@mutant(of="overoptimisation_alarm", kills="L2.20")
def waits_for_the_judge_to_fall(history):
    """This looks like an alarm when the held-out score has fallen far: that judge is a model too, and stops rising long before it falls."""
    scores = [row["heldout_score"] for row in history]
    return history[-1]["step"] if max(scores) - scores[-1] > 0.4 else None


@mutant(of="overoptimisation_alarm", kills="L2.20")
def looks_for_the_reward(history):
    """This looks like a detector that wants the training reward: it is not there, and it rises until the end anyway."""
    reward = [row["training_reward"] for row in history]
    return history[-1]["step"] if reward[-1] < max(reward) else None


@mutant(of="overoptimisation_alarm", kills="L2.20")
def only_when_all_is_lost(history):
    """This looks like an alarm when there is nothing left to save: at that point the run is at its end."""
    return history[-1]["step"] if history[-1]["entropy"] < 0.05 and history[-1]["repetition"] > 0.95 else None
