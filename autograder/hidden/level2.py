"""Level 2: the checks that students do not see before they submit."""

from pathlib import Path

import torch

from autograder.checks import level2 as visible
from autograder.checks.level2 import expect_value_error, logprobs, scalar, spoiled
from autograder.framework import expect, invariant

# ---------------------------------------------------------------- token rewards


@invariant("L2.01", points=1, hidden=True)
def masked_log_probabilities_do_not_matter(shaped_token_rewards, draw):
    """NaN, infinity or -infinity at tokens that are no actions changes nothing; the mask may hold numbers 0 and 1."""
    actor, reference, reward = logprobs(draw, 4, 7), logprobs(draw, 4, 7), draw.normal(4)
    mask = visible.gap_inserted(draw, draw.mask(4, 7))
    wanted = visible.shaped_twin(actor, reference, mask, reward, 0.4)
    for fill in (float("nan"), float("inf"), float("-inf")):
        got = shaped_token_rewards(spoiled(actor, mask, fill), spoiled(reference, mask, fill), mask.double(), reward, 0.4)
        expect(got, f"the token rewards with {fill} elsewhere").close_to(wanted)


@invariant("L2.02", points=1, hidden=True)
def the_reward_comes_on_top_of_the_penalty(shaped_token_rewards, draw):
    """The last action keeps its own penalty, in responses of one token too; with beta 0 there is nothing but the reward."""
    mask = torch.tensor([[0, 0, 1, 0, 0], [1, 0, 1, 1, 0], [0, 1, 0, 0, 1], [1, 0, 0, 0, 0]])[draw.permutation(4)]
    actor, reference, reward = logprobs(draw, 4, 5), logprobs(draw, 4, 5), draw.normal(4, scale=3)
    for beta in (1.5, 0.0):
        got = shaped_token_rewards(actor, reference, mask, reward, beta)
        expect(got, f"the token rewards at beta {beta}").close_to(visible.shaped_twin(actor, reference, mask, reward, beta))


def shaped_charges_the_prompt(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    last = torch.where(on, torch.arange(on.shape[1]), -1).amax(1, keepdim=True)
    until = torch.arange(on.shape[1]) <= last
    zero = torch.zeros_like(logp_actor)
    penalty = -beta * (torch.where(until, logp_actor, zero) - torch.where(until, logp_reference, zero))
    return penalty + torch.where(torch.arange(on.shape[1]) == last, terminal_reward[:, None], zero)


def shaped_charges_everything(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    last = torch.where(on, torch.arange(on.shape[1]), -1).amax(1, keepdim=True)
    penalty = -beta * (logp_actor - logp_reference)
    return penalty + torch.where(torch.arange(on.shape[1]) == last, terminal_reward[:, None], torch.zeros_like(penalty))


def shaped_lets_nan_in(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = (action_mask != 0).to(logp_actor.dtype)
    if bool((on.sum(1) == 0).any()):
        raise ValueError("action_mask has a row without an action")
    last = (on * torch.arange(1, on.shape[1] + 1)).argmax(1, keepdim=True)
    placed = torch.zeros_like(logp_actor).scatter(1, last, terminal_reward[:, None].to(logp_actor.dtype))
    return -beta * (logp_actor - logp_reference) * on + placed


def shaped_never_pays_back(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    zero = torch.zeros_like(logp_actor)
    gap = (torch.where(on, logp_actor, zero) - torch.where(on, logp_reference, zero)).clamp(min=0)
    last = torch.where(on, torch.arange(on.shape[1]), -1).amax(1, keepdim=True)
    return -beta * gap + torch.where(torch.arange(on.shape[1]) == last, terminal_reward[:, None], zero)


def shaped_by_the_third_estimator(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    zero = torch.zeros_like(logp_actor)
    gap = torch.where(on, logp_reference, zero) - torch.where(on, logp_actor, zero)
    last = torch.where(on, torch.arange(on.shape[1]), -1).amax(1, keepdim=True)
    return -beta * (gap.exp() - 1 - gap) + torch.where(torch.arange(on.shape[1]) == last, terminal_reward[:, None], zero)


def shaped_at_the_first_action(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    zero = torch.zeros_like(logp_actor)
    first = on.long().argmax(1, keepdim=True)
    penalty = -beta * (torch.where(on, logp_actor, zero) - torch.where(on, logp_reference, zero))
    return penalty + torch.where(torch.arange(on.shape[1]) == first, terminal_reward[:, None], zero)


def shaped_after_the_last_action(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    zero = torch.zeros_like(logp_actor)
    last = torch.where(on, torch.arange(on.shape[1]), -1).amax(1, keepdim=True)
    pad = (last + 1).clamp(max=on.shape[1] - 1)
    penalty = -beta * (torch.where(on, logp_actor, zero) - torch.where(on, logp_reference, zero))
    return penalty + torch.where(torch.arange(on.shape[1]) == pad, terminal_reward[:, None], zero)


def shaped_by_counting_actions(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    zero = torch.zeros_like(logp_actor)
    last = on.long().argmax(1, keepdim=True) + on.long().sum(1, keepdim=True) - 1
    penalty = -beta * (torch.where(on, logp_actor, zero) - torch.where(on, logp_reference, zero))
    return penalty + torch.where(torch.arange(on.shape[1]) == last, terminal_reward[:, None], zero)


def shaped_writes_over_the_penalty(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    zero = torch.zeros_like(logp_actor)
    last = torch.where(on, torch.arange(on.shape[1]), -1).amax(1, keepdim=True)
    penalty = -beta * (torch.where(on, logp_actor, zero) - torch.where(on, logp_reference, zero))
    return torch.where(torch.arange(on.shape[1]) == last, terminal_reward[:, None].to(penalty.dtype), penalty)


def shaped_forgives_an_empty_row(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    zero = torch.zeros_like(logp_actor)
    last = torch.where(on, torch.arange(on.shape[1]), -1).amax(1, keepdim=True)
    penalty = -beta * (torch.where(on, logp_actor, zero) - torch.where(on, logp_reference, zero))
    return penalty + torch.where(torch.arange(on.shape[1]) == last, terminal_reward[:, None], zero)


@invariant("L2.01", points=1, hidden=True)
def the_test_finds_prompt_tokens_that_are_charged(test_shaped_token_rewards, draw):
    """Your test finds the functions that charge tokens which are no actions."""
    wrong = [shaped_charges_the_prompt, shaped_charges_everything]
    visible.expect_verdicts(test_shaped_token_rewards, draw, visible.RIGHT_SHAPED[::2], wrong)


@invariant("L2.01", points=1, hidden=True)
def the_test_finds_nan_in_the_token_rewards(test_shaped_token_rewards, draw):
    """Your test finds the function that is right unless a masked position holds NaN or infinity."""
    visible.expect_verdicts(test_shaped_token_rewards, draw, visible.RIGHT_SHAPED, [shaped_lets_nan_in])


@invariant("L2.01", points=1, hidden=True)
def the_test_finds_another_estimator(test_shaped_token_rewards, draw):
    """Your test finds the functions whose penalty is never negative: a token may become less likely, and then it is paid back."""
    wrong = [shaped_never_pays_back, shaped_by_the_third_estimator]
    visible.expect_verdicts(test_shaped_token_rewards, draw, visible.RIGHT_SHAPED[:2], wrong)


@invariant("L2.02", points=1, hidden=True)
def the_test_finds_every_wrong_place(test_shaped_token_rewards, draw):
    """Your test finds a reward on the first action, after the last one, or where counting actions leads to."""
    wrong = [shaped_at_the_first_action, shaped_after_the_last_action, shaped_by_counting_actions]
    visible.expect_verdicts(test_shaped_token_rewards, draw, visible.RIGHT_SHAPED[1:], wrong)


@invariant("L2.02", points=1, hidden=True)
def the_test_finds_a_lost_penalty_and_a_lost_reward(test_shaped_token_rewards, draw):
    """Your test finds a reward written over the last penalty, and one that vanishes in a row without an action."""
    wrong = [shaped_writes_over_the_penalty, shaped_forgives_an_empty_row]
    visible.expect_verdicts(test_shaped_token_rewards, draw, visible.RIGHT_SHAPED[:2], wrong)


# ---------------------------------------------------------------- returns and advantages


@invariant("L2.03", points=1, hidden=True)
def a_row_keeps_its_returns(discounted_returns, draw):
    """Each row has the same returns alone, and with skipped positions put anywhere between its steps; no steps, no returns."""
    rewards, gamma = draw.normal(3, 4), 0.7
    wanted = visible.return_twin(rewards, gamma, torch.ones(3, 4))
    for b in range(3):
        expect(discounted_returns(rewards[b : b + 1], gamma), f"the returns of row {b} alone").close_to(wanted[b : b + 1])
    places = torch.stack([draw.permutation(9)[:4].sort().values for _ in range(3)])
    wide, mask, out = (
        torch.zeros(3, 9, dtype=torch.float64).scatter(1, places, x) for x in (rewards, torch.ones(3, 4).double(), wanted)
    )
    expect(discounted_returns(wide, gamma, mask), "the returns with gaps").close_to(out)
    mask[1], wide[1], out[1] = 0, 0, 0
    expect(discounted_returns(wide, gamma, mask.long()), "the returns with a row without steps").close_to(out)


@invariant("L2.03", points=1, hidden=True)
def long_rows_do_not_underflow(discounted_returns, draw):
    """Four hundred steps at gamma 0.05: finite and right to the last one."""
    rewards = draw.normal(2, 400)
    wanted = torch.zeros(2, 401, dtype=torch.float64)
    for t in range(399, -1, -1):
        wanted[:, t] = rewards[:, t] + 0.05 * wanted[:, t + 1]
    expect(discounted_returns(rewards, 0.05), "the returns").close_to(wanted[:, :400])


@invariant("L2.05", points=1, hidden=True)
def the_final_value_is_read_where_truncated_only(generalized_advantage_estimation, draw):
    """NaN as the final value of every step that was not cut off changes nothing."""
    case = visible.gae_case(draw, 5, 7, ends=0.3)
    for b, t in enumerate(draw.integers(1, 5, 5).tolist()):
        case[3][b, t], case[2][b, t] = True, False
    wanted = visible.gae_twin(*case, 0.9, 0.6)
    case[4] = case[4].masked_fill(~case[3], float("nan"))
    visible.expect_gae(generalized_advantage_estimation(*case, 0.9, 0.6), wanted, " with NaN elsewhere")


@invariant("L2.05", points=1, hidden=True)
def where_both_flags_are_set_it_is_over(generalized_advantage_estimation, draw):
    """A step that both ended and ran out of time has ended: nothing is bootstrapped."""
    case = visible.gae_case(draw, 4, 6, ends=0.3)
    case[3] = case[3] | case[2]
    case[4] = case[4] + 5
    visible.expect_gae(generalized_advantage_estimation(*case, 0.9, 0.8), visible.gae_twin(*case, 0.9, 0.8))


@invariant("L2.04", points=1, hidden=True)
def skipped_positions_may_hold_anything(generalized_advantage_estimation, draw):
    """NaN and flags where the mask is 0, and a row without actions, change nothing; a reward there is an error. Flags may be 0/1."""
    case = visible.gae_case(draw, 5, 8, gaps=True, ends=0.25)
    case = [torch.cat([x, torch.zeros(1, 8, dtype=x.dtype)]) for x in case]
    mask = case[5]
    wanted = visible.gae_twin(*case, 0.8, 0.9)
    for fill in (float("nan"), float("inf")):
        given = [
            case[0],
            spoiled(case[1], mask, fill),
            (case[2] | ~mask).long(),
            (case[3] | ~mask).long(),
            spoiled(case[4], mask, fill),
            mask.long(),
        ]
        visible.expect_gae(generalized_advantage_estimation(*given, 0.8, 0.9), wanted, f" with {fill} elsewhere")
    lost = case[0].clone()
    b, t = (~mask).nonzero()[0].tolist()
    lost[b, t] = -0.4
    expect_value_error(lambda: generalized_advantage_estimation(lost, *case[1:], 0.8, 0.9), "a reward where the mask is 0")


@invariant("L2.04", points=1, hidden=True)
def published_vectors(generalized_advantage_estimation, draw):
    """Two published rows at lambda 1, 0.7 and 0.4; without gamma and lambda in the call they are 1 and 0.95."""
    rewards = scalar([[0, 0, 1, 0, -0.5], [0, 0, 0, 0, 1]]).double()
    values = scalar([[1.0, 4, -3, -2, -1], [-3, -2, -1, 0, 5]])
    ended, cut = torch.zeros(2, 5, dtype=torch.bool), torch.zeros(2, 5, dtype=torch.bool)
    ended[1, 3] = cut[0, 4] = cut[1, 4] = True
    final = torch.full((2, 5), -1.0, dtype=torch.float64)
    case = [rewards, values, ended, cut, final, torch.ones(2, 5, dtype=torch.bool)]
    known = {
        1.0: ([-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3.0, 2.0, 1.0, 0.0, -4.9]),
        0.7: ([-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1.0, 0.0, -4.9]),
        0.4: ([0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1.0, 0.0, -4.9]),
    }
    for gae_lambda, rows in known.items():
        for row, gamma in enumerate((0.99, 0.9)):
            one = [x[row : row + 1] for x in case]
            advantages, _ = visible.pair_of(generalized_advantage_estimation(*one, gamma, gae_lambda))
            expect(advantages[0], f"row {row} at lambda {gae_lambda}").close_to(
                scalar(rows[row]), rtol=2e-4
            )  # published with four digits
    case = visible.gae_case(draw, 3, 5, ends=0.2)
    visible.expect_gae(generalized_advantage_estimation(*case), visible.gae_twin(*case, 1.0, 0.95), " at the defaults")


def gae_bootstraps_past_an_end(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for b in range(len(rewards)):
        r, v, end, cut, final, on = (x[b].tolist() for x in (rewards, values, terminated, truncated, final_value, mask))
        carried = following = 0.0
        for t in reversed(range(len(r))):
            if not on[t]:
                continue
            if end[t]:
                carried = 0.0
            elif cut[t]:
                carried, following = 0.0, final[t]
            carried = r[t] + gamma * following - v[t] + gamma * gae_lambda * carried
            advantages[b, t], returns[b, t], following = carried, carried + v[t], v[t]
    return advantages, returns


def gae_both_flags_are_a_cut(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for b in range(len(rewards)):
        r, v, end, cut, final, on = (x[b].tolist() for x in (rewards, values, terminated, truncated, final_value, mask))
        carried = following = 0.0
        for t in reversed(range(len(r))):
            if not on[t]:
                continue
            if cut[t]:
                carried, following = 0.0, final[t]
            elif end[t]:
                carried, following = 0.0, 0.0
            carried = r[t] + gamma * following - v[t] + gamma * gae_lambda * carried
            advantages[b, t], returns[b, t], following = carried, carried + v[t], v[t]
    return advantages, returns


def gae_next_value_of_the_row(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for b in range(len(rewards)):
        r, v, end, cut, final, on = (x[b].tolist() for x in (rewards, values, terminated, truncated, final_value, mask))
        carried, following, later = 0.0, 0.0, False
        for t in reversed(range(len(r))):
            if not on[t]:
                continue
            if end[t]:
                carried, following = 0.0, 0.0
            elif cut[t]:
                carried, following = 0.0, following if later else final[t]
            carried = r[t] + gamma * following - v[t] + gamma * gae_lambda * carried
            advantages[b, t], returns[b, t] = carried, carried + v[t]
            following, later = v[t], True
    return advantages, returns


def gae_without_lambda(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for b in range(len(rewards)):
        r, v, end, cut, final, on = (x[b].tolist() for x in (rewards, values, terminated, truncated, final_value, mask))
        carried = following = 0.0
        for t in reversed(range(len(r))):
            if not on[t]:
                continue
            if end[t]:
                carried, following = 0.0, 0.0
            elif cut[t]:
                carried, following = 0.0, final[t]
            carried = r[t] + gamma * following - v[t] + gamma * carried
            advantages[b, t], returns[b, t], following = carried, carried + v[t], v[t]
    return advantages, returns


def gae_undiscounted_bootstrap(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for b in range(len(rewards)):
        r, v, end, cut, final, on = (x[b].tolist() for x in (rewards, values, terminated, truncated, final_value, mask))
        carried = following = 0.0
        for t in reversed(range(len(r))):
            if not on[t]:
                continue
            if end[t]:
                carried, following = 0.0, 0.0
            elif cut[t]:
                carried, following = 0.0, final[t]
            carried = r[t] + following - v[t] + gamma * gae_lambda * carried
            advantages[b, t], returns[b, t], following = carried, carried + v[t], v[t]
    return advantages, returns


def gae_reads_the_next_column(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for b in range(len(rewards)):
        r, v, end, cut, final, on = (x[b].tolist() for x in (rewards, values, terminated, truncated, final_value, mask))
        carried = 0.0
        for t in reversed(range(len(r))):
            if not on[t]:
                continue
            following = v[t + 1] if t + 1 < len(r) else 0.0
            if end[t]:
                carried, following = 0.0, 0.0
            elif cut[t]:
                carried, following = 0.0, final[t]
            carried = r[t] + gamma * following - v[t] + gamma * gae_lambda * carried
            advantages[b, t], returns[b, t] = carried, carried + v[t]
    return advantages, returns


def gae_returns_without_values(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for b in range(len(rewards)):
        r, v, end, cut, final, on = (x[b].tolist() for x in (rewards, values, terminated, truncated, final_value, mask))
        carried = following = 0.0
        for t in reversed(range(len(r))):
            if not on[t]:
                continue
            if end[t]:
                carried, following = 0.0, 0.0
            elif cut[t]:
                carried, following = 0.0, final[t]
            carried = r[t] + gamma * following - v[t] + gamma * gae_lambda * carried
            advantages[b, t], returns[b, t], following = carried, carried, v[t]
    return advantages, returns


def gae_lets_nan_in(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    on, zero = mask.to(values.dtype), torch.zeros_like(values[:, 0])
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    ended, cut = (terminated != 0).to(values.dtype), ((truncated != 0) & (terminated == 0)).to(values.dtype)
    carried, following, columns = zero, zero, []
    for t in range(values.shape[1] - 1, -1, -1):
        after = (1 - ended[:, t] - cut[:, t]) * following + cut[:, t] * final_value[:, t]
        rest = (1 - ended[:, t] - cut[:, t]) * carried
        here = rewards[:, t] + gamma * after - values[:, t] + gamma * gae_lambda * rest
        carried = on[:, t] * here + (1 - on[:, t]) * carried
        following = on[:, t] * values[:, t] + (1 - on[:, t]) * following
        columns.append(on[:, t] * here)
    advantages = torch.stack(columns[::-1], 1)
    return advantages, advantages + on * values


@invariant("L2.05", points=1, hidden=True)
def the_test_finds_a_bootstrap_past_an_end(test_generalized_advantage_estimation, draw):
    """Your test finds the functions that bootstrap past a true end, always or only where both flags are set."""
    wrong = [gae_bootstraps_past_an_end, gae_both_flags_are_a_cut]
    visible.expect_verdicts(test_generalized_advantage_estimation, draw, visible.RIGHT_GAE[:2], wrong)


@invariant("L2.05", points=1, hidden=True)
def the_test_finds_the_next_episodes_value(test_generalized_advantage_estimation, draw):
    """Your test finds the function that bootstraps a cut episode with the first value of the next one in the row."""
    visible.expect_verdicts(test_generalized_advantage_estimation, draw, visible.RIGHT_GAE[1:], [gae_next_value_of_the_row])


@invariant("L2.04", points=1, hidden=True)
def the_test_finds_a_lost_lambda_or_gamma(test_generalized_advantage_estimation, draw):
    """Your test finds the functions that leave out lambda, or gamma before the next value."""
    wrong = [gae_without_lambda, gae_undiscounted_bootstrap]
    visible.expect_verdicts(test_generalized_advantage_estimation, draw, visible.RIGHT_GAE[::2], wrong)


@invariant("L2.04", points=1, hidden=True)
def the_test_finds_an_observations_value(test_generalized_advantage_estimation, draw):
    """Your test finds the function that takes the value of the next token, be it an observation, for that of the next action."""
    visible.expect_verdicts(test_generalized_advantage_estimation, draw, visible.RIGHT_GAE[:2], [gae_reads_the_next_column])


@invariant("L2.04", points=1, hidden=True)
def the_test_finds_wrong_returns_and_nan(test_generalized_advantage_estimation, draw):
    """Your test finds returns that lack the values, and NaN that comes in from positions that are not read."""
    wrong = [gae_returns_without_values, gae_lets_nan_in]
    visible.expect_verdicts(test_generalized_advantage_estimation, draw, visible.RIGHT_GAE, wrong)


# ---------------------------------------------------------------- whitening, the actor, the critic


@invariant("L2.06", points=1, hidden=True)
def neither_level_nor_unit_matters(whiten, draw):
    """Values far smaller, or shifted, whiten to the same numbers: there is no epsilon. The mask may hold numbers, or nothing but 0."""
    x, mask = draw.normal(3, 8), draw.mask(3, 8)
    wanted = visible.whiten_twin(x, mask)
    for given in (x * 1e-6, x * 1e-9, x * 1e-7 + 1, x + 40, x * 300):
        expect(whiten(given, mask.double()), "the whitened values").close_to(wanted)
    expect(whiten(x, torch.zeros_like(mask)), "the whitened values where the mask is 0 everywhere").equals(torch.zeros(3, 8))


@invariant("L2.06", points=1, hidden=True)
def unequal_rows_share_one_mean(whiten, draw):
    """Rows with very different numbers of actions and levels: the statistics are those of all actions together."""
    x, mask = draw.normal(3, 9), torch.zeros(3, 9, dtype=torch.bool)
    for b, count in enumerate((1, 3, 8)):
        mask[b, draw.permutation(9)[:count]] = True
        x[b] += 10 * b
    expect(whiten(x, mask), "the whitened values").close_to(visible.whiten_twin(x, mask))


@invariant("L2.07", points=1, hidden=True)
def another_bound(ppo_actor_loss, draw):
    """The bound is an argument: at eps 0.05 and 0.5 value and gradient follow it, for ratios of a hundred too."""
    given = visible.policies(draw, 4, 6, scale=2.0)
    given[0][0, 0], given[2][0, 0], given[3][0, 0] = given[1][0, 0] + 5, -1.5, True
    for eps in (0.05, 0.5):
        loss, slope = visible.actor_twin(*given, eps)
        expect(ppo_actor_loss(*given, eps), f"the loss at eps {eps}").close_to(loss)
        expect(ppo_actor_loss.gradient(*given, eps), f"the gradient at eps {eps}").close_to(slope)


@invariant("L2.07", points=1, hidden=True)
def masked_tokens_never_act(ppo_actor_loss, draw):
    """NaN and infinity at masked tokens, and a row that is masked as a whole, change neither loss nor gradient; no action costs 0."""
    given = visible.policies(draw, 4, 6)
    given[3][draw.number(0, 4)] = False
    given[3][:, 0] = given[3].any(1)
    loss, slope = visible.actor_twin(*given)
    for fill in (float("nan"), float("inf"), float("-inf")):
        spoilt = [spoiled(x, given[3], fill) for x in given[:3]]
        expect(ppo_actor_loss(*spoilt, given[3].long()), f"the loss with {fill} elsewhere").close_to(loss)
        expect(ppo_actor_loss.gradient(*spoilt, given[3]), f"the gradient with {fill} elsewhere").close_to(slope)
    nothing = ppo_actor_loss(*given[:3], torch.zeros_like(given[3]))
    expect(1 + torch.as_tensor(nothing), "1 + the loss of no action").close_to(scalar(1.0))


@invariant("L2.09", points=1, hidden=True)
def masked_tokens_are_not_reported(clip_report, draw):
    """What stands at masked tokens is in no row, and a type that occurs only there has none. Advantage 0 is never clipped."""
    given, eps = visible.policies(draw, 4, 7), 0.1
    given[2][:, ::3] = 0.0
    action_type = torch.where(given[3], draw.integers(-2, 1, 4, 7) * 10**6, 77)
    wanted = visible.report_twin(*given, action_type, eps)
    for fill in (float("nan"), float("inf")):
        spoilt = [spoiled(x, given[3], fill) for x in given[:3]]
        expect(clip_report(*spoilt, given[3].long(), action_type, eps), f"the report with {fill} elsewhere").close_to(wanted)


@invariant("L2.09", points=1, hidden=True)
def quantiles_lie_between_neighbours(clip_report, draw):
    """Of four ratios 1, 2, 3, 4 the quantiles are 2.5, 3.7 and 3.97; a type with one token has all of them equal."""
    order = draw.permutation(5)
    ratios, action_type = scalar([1.0, 2.0, 3.0, 4.0, 0.3])[order][None], torch.tensor([0, 0, 0, 0, 9])[order][None]
    old, ones = logprobs(draw, 1, 5), torch.ones(1, 5, dtype=torch.bool)
    got = clip_report(old + ratios.log(), old, -torch.ones(1, 5).double(), ones, action_type, 0.2)
    four = {"ratio_q50": 2.5, "ratio_q90": 3.7, "ratio_q99": 3.97, "ratio_max": 4.0, "clip_fraction": 0.0, "tokens": 4}
    one = {"ratio_q50": 0.3, "ratio_q90": 0.3, "ratio_q99": 0.3, "ratio_max": 0.3, "clip_fraction": 1.0, "tokens": 1}
    expect(got[0], "the report[0]").close_to(four)
    expect(got[9], "the report[9]").close_to(one)


@invariant("L2.10", points=1, hidden=True)
def every_action_weighs_the_same(critic_loss, draw):
    """Short and long rows: the mean is over actions, not over rows; a masked row changes nothing and no action at all costs 0."""
    values, returns, mask = draw.normal(3, 8, scale=20), draw.normal(3, 8), torch.zeros(3, 8, dtype=torch.long)
    mask[0, draw.number(0, 8)] = 1
    mask[1, draw.permutation(8)[:7]] = 1
    wanted = visible.critic_twin(values, returns, mask)
    expect(critic_loss(values, returns, mask), "the loss").close_to(wanted)
    expect(critic_loss(values[:2], returns[:2], mask[:2]), "the loss without the masked row").close_to(wanted)
    expect(1 + torch.as_tensor(critic_loss(values, returns, 0 * mask)), "1 + the loss of no action").close_to(scalar(1.0))


@invariant("L2.11", points=1, hidden=True)
def without_rehearsal_it_is_ppo(ppo_ptx_loss, draw):
    """At gamma 0 loss and gradient are PPO's, for negative losses too, and nothing is clamped or rescaled."""
    for level in (-3.0, 0.0, 50.0):
        ppo, nll = draw.normal(1)[0] + level, draw.uniform(1, low=2, high=9)[0]
        expect(ppo_ptx_loss(ppo, nll, 0.0), "the loss at gamma 0").close_to(ppo)
        expect(ppo_ptx_loss(ppo, nll, 1.0), "the loss at gamma 1").close_to(ppo + nll)
        expect(ppo_ptx_loss.gradient(ppo, nll, 0.0), "the gradient at gamma 0").close_to(scalar(1.0))


# ---------------------------------------------------------------- groups


@invariant("L2.14", points=1, hidden=True)
def small_rewards_are_scaled_too(group_relative_advantages, draw):
    """Rewards of a hundred-thousandth and less, and rewards on a high level, are standardised alike: there is no epsilon."""
    rewards, groups = draw.normal(10), draw.groups([3, 3, 4])
    wanted = visible.group_twin(rewards, groups, "std")
    for given in (rewards * 1e-5, rewards * 1e-9, rewards * 1e-5 + 0.25, rewards * 1e4):
        expect(group_relative_advantages(given, groups, scale="std"), "the advantages").close_to(wanted)


@invariant("L2.14", points=1, hidden=True)
def group_names_are_only_names(group_relative_advantages, draw):
    """Huge and negative ids, groups of one size and groups in a block change nothing; a prompt's own level cancels."""
    names = draw.permutation(4) * 10**12 - 2 * 10**12
    two = names[torch.cat([torch.tensor([0, 1, 0, 1]), draw.integers(0, 2, 8)])]
    for groups in (names.repeat(3), names.repeat_interleave(3), two, names.repeat(3) // 10**12 + 10**12):
        rewards = draw.normal(12) + groups / 10**12
        for scale in ("none", "std"):
            wanted = visible.group_twin(rewards, groups, scale)
            expect(group_relative_advantages(rewards, groups, scale=scale), f"the advantages, scale {scale!r}").close_to(wanted)


@invariant("L2.14", points=1, hidden=True)
def a_group_of_one_has_no_others(leave_one_out_advantages, draw):
    """A group with one member raises ValueError; the same batch without it is fine, whatever the ids are."""
    rewards, groups = draw.normal(9), draw.groups([4, 2, 3]) * 10**9 - 10**10
    expect(leave_one_out_advantages(rewards, groups), "the advantages").close_to(visible.others_twin(rewards, groups))
    alone = torch.cat([groups, torch.tensor([3])])
    expect_value_error(lambda: leave_one_out_advantages(draw.normal(10), alone), "a group of one")


@invariant("L2.14", points=1, hidden=True)
def a_prompts_level_cancels(leave_one_out_advantages, draw):
    """A number added to all rewards of a group leaves the advantages as they are; they sum to 0 in every group."""
    rewards, groups = draw.normal(8), draw.groups([2, 6])
    wanted = visible.others_twin(rewards, groups)
    shifted = rewards + 20.0 * (groups == groups[0])
    got = torch.as_tensor(leave_one_out_advantages(shifted, groups))
    expect(got, "the advantages after the shift").close_to(wanted)
    for g in groups.unique():
        expect(1 + got[groups == g].sum(), "1 + the sum of a group's advantages").close_to(scalar(1.0))


def group_with_an_epsilon(rewards, group_id, scale="none"):
    advantages = torch.zeros_like(rewards)
    for g in group_id.unique():
        mine = rewards[group_id == g]
        if bool((mine == mine[0]).all()):
            continue
        away = mine - mine.mean()
        advantages[group_id == g] = away / (mine.std(correction=0) + 1e-3) if scale == "std" else away
    return advantages


def group_divides_first(rewards, group_id, scale="none"):
    advantages = torch.zeros_like(rewards)
    for g in group_id.unique():
        mine = rewards[group_id == g]
        if bool((mine == mine[0]).all()):
            continue
        advantages[group_id == g] = mine - mine.mean() / mine.std(correction=0) if scale == "std" else mine - mine.mean()
    return advantages


def group_of_neighbours(rewards, group_id, scale="none"):
    advantages = torch.zeros_like(rewards)
    block = torch.cat([torch.zeros(1, dtype=torch.long), (group_id[1:] != group_id[:-1]).long()]).cumsum(0)
    for g in block.unique():
        mine = rewards[block == g]
        if bool((mine == mine[0]).all()):
            continue
        away = mine - mine.mean()
        advantages[block == g] = away / mine.std(correction=0) if scale == "std" else away
    return advantages


def group_after_sorting(rewards, group_id, scale="none"):
    advantages = torch.zeros_like(rewards)
    sorted_id = group_id.sort().values
    for g in sorted_id.unique():
        mine = rewards[sorted_id == g]
        if bool((mine == mine[0]).all()):
            continue
        away = mine - mine.mean()
        advantages[sorted_id == g] = away / mine.std(correction=0) if scale == "std" else away
    return advantages


def group_modes_swapped(rewards, group_id, scale="none"):
    advantages = torch.zeros_like(rewards)
    for g in group_id.unique():
        mine = rewards[group_id == g]
        if bool((mine == mine[0]).all()):
            continue
        away = mine - mine.mean()
        advantages[group_id == g] = away if scale == "std" else away / mine.std(correction=0)
    return advantages


def group_none_divides_too(rewards, group_id, scale="none"):
    advantages = torch.zeros_like(rewards)
    for g in group_id.unique():
        mine = rewards[group_id == g]
        if bool((mine == mine[0]).all()):
            continue
        advantages[group_id == g] = (mine - mine.mean()) / mine.std(correction=0)
    return advantages


def group_against_the_others(rewards, group_id, scale="none"):
    advantages = torch.zeros_like(rewards)
    for g in group_id.unique():
        mine = rewards[group_id == g]
        if bool((mine == mine[0]).all()):
            continue
        away = mine - (mine.sum() - mine) / (len(mine) - 1)
        advantages[group_id == g] = away / mine.std(correction=0) if scale == "std" else away
    return advantages


@invariant("L2.14", points=1, hidden=True)
def the_test_finds_an_epsilon_and_a_lost_bracket(test_group_relative_advantages, draw):
    """Your test finds an epsilon beside the deviation, and r - mean / deviation without brackets."""
    wrong = [group_with_an_epsilon, group_divides_first]
    visible.expect_verdicts(test_group_relative_advantages, draw, visible.RIGHT_GROUP[:2], wrong)


@invariant("L2.14", points=1, hidden=True)
def the_test_finds_groups_taken_for_blocks(test_group_relative_advantages, draw):
    """Your test finds the functions that are right only where the samples of a group are neighbours, or sorted by group."""
    wrong = [group_of_neighbours, group_after_sorting]
    visible.expect_verdicts(test_group_relative_advantages, draw, visible.RIGHT_GROUP[1:], wrong)


@invariant("L2.14", points=1, hidden=True)
def the_test_finds_swapped_modes(test_group_relative_advantages, draw):
    """Your test finds modes that changed places, and a mode "none" that divides too."""
    wrong = [group_modes_swapped, group_none_divides_too]
    visible.expect_verdicts(test_group_relative_advantages, draw, visible.RIGHT_GROUP[::2], wrong)


@invariant("L2.14", points=1, hidden=True)
def the_test_finds_the_other_baseline(test_group_relative_advantages, draw):
    """Your test finds the function that leaves the own reward out of the mean."""
    visible.expect_verdicts(test_group_relative_advantages, draw, visible.RIGHT_GROUP, [group_against_the_others])


# ---------------------------------------------------------------- aggregation and length


@invariant("L2.16", points=1, hidden=True)
def inactive_tokens_never_count(aggregate, draw):
    """NaN and infinity at inactive tokens change neither value nor gradient; the mask may hold numbers."""
    loss, mask = draw.normal(4, 6), draw.mask(4, 6)
    slopes = {"token": mask.double() / int(mask.sum()), "response": mask.double() / mask.sum(1, keepdim=True) / 4}
    for how, slope in slopes.items():
        for fill in (float("nan"), float("inf")):
            given = spoiled(loss, mask, fill)
            expect(aggregate(given, mask.long(), how=how), f"the {how} mean").close_to(visible.aggregate_twin(loss, mask, how))
            expect(aggregate.gradient(given, mask, how=how), f"the gradient, {how}").close_to(slope)


@invariant("L2.16", points=1, hidden=True)
def nothing_to_learn_costs_nothing(aggregate, draw):
    """A batch without an active token has loss 0 and gradient 0, with a denominator or without; empty responses take no share."""
    loss, mask = draw.normal(3, 5), torch.zeros(3, 5, dtype=torch.bool)
    for how in ("token", "response"):
        for denominator in (None, 12):
            got = aggregate(loss, mask, how=how, denominator=denominator)
            expect(1 + torch.as_tensor(got), f"1 + the loss of nothing, {how}").close_to(scalar(1.0))
        expect(aggregate.gradient(loss, mask, how=how), f"the gradient of nothing, {how}").equals(torch.zeros(3, 5))
    some = mask.clone()
    some[draw.number(0, 3), 1:4] = True
    for how in ("token", "response"):
        slope = aggregate.gradient(loss, some, how=how, denominator=7)
        wanted = some.double() / (7 if how == "token" else 21)
        expect(slope, f"the gradient with denominator 7, {how}").close_to(wanted)


@invariant("L2.16", points=1, hidden=True)
def the_slope_is_one_over_the_buffer(overlong_penalty, draw):
    """Inside the buffer each token costs 1 / buffer more, for buffers of 1, 7 and the whole length; lengths may be [B, K]."""
    for most, buffer in ((30, 1), (30, 7), (30, 30)):
        lengths = torch.arange(most - buffer, most + 3)
        lengths = torch.cat([lengths, draw.integers(0, 40, 2 * len(lengths))])
        lengths = lengths[draw.permutation(len(lengths))]
        wanted = visible.overlong_twin(lengths, most, buffer)
        expect(overlong_penalty(lengths, most, buffer), f"the penalties at buffer {buffer}").close_to(wanted)
        expect(overlong_penalty(lengths.view(3, -1), most, buffer), "the penalties of [B, K]").close_to(wanted.view(3, -1))


# ---------------------------------------------------------------- exit

RUNS = Path(__file__).with_name("level2_runs.json")


@invariant("L2.20", points=2, hidden=True)
def the_alarm_holds_over_seeds(overoptimisation_alarm, draw):
    """Unseen runs that were pushed too far: after the peak of gold and before the end in at least eight of ten."""
    visible.expect_alarms(overoptimisation_alarm, visible.recorded_runs(RUNS, healthy=False))


@invariant("L2.20", points=1, hidden=True)
def quiet_on_any_profitable_journey(overoptimisation_alarm, draw):
    """Made-up runs of several lengths that travel far to their profit raise no alarm, in whichever order they come."""
    runs = [visible.made_up_run(draw, "traveller", records) for records in draw.shuffled((14, 21, 30))]
    visible.expect_quiet(overoptimisation_alarm, runs)


@invariant("L2.20", points=1, hidden=True)
def quiet_over_seeds(overoptimisation_alarm, draw):
    """Unseen healthy runs: at most one alarm in ten."""
    visible.expect_quiet(overoptimisation_alarm, visible.recorded_runs(RUNS, healthy=True))
