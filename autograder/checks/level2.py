"""Level 2, contextual-bandit RLHF: what a right answer must do. Expected values come from plain loops, one token at a time."""

import functools
import itertools
import json
import math
from pathlib import Path

import torch

from autograder.framework import CheckFailed, Exercise, expect, expect_verdicts, invariant
from autograder.inside.execute import StudentError

EXERCISES = (
    Exercise("shaped_token_rewards", "2.1", "A reward for every token", 20, 2),
    Exercise("test_shaped_token_rewards", "2.2", "Bug hunt: where the reward lands", 25, 3),
    Exercise("discounted_returns", "2.3", "What is still to come", 15, 2,
             ("generalized_advantage_estimation", "_backward_sums")),
    Exercise("generalized_advantage_estimation", "2.4", "Credit through time", 40, 5,
             ("discounted_returns", "_backward_sums", "next_action_values")),
    Exercise("test_generalized_advantage_estimation", "2.5", "Bug hunt: a timeout is not a failure", 30, 4),
    Exercise("whiten", "2.6", "Advantages on one scale", 10, 1, ("process_advantages",)),
    Exercise("ppo_actor_loss", "2.7", "The pessimist's minimum", 25, 3, ("clipped_token_loss", "policy_gradient_loss")),
    Exercise("clip_report", "2.8", "One extreme action", 20, 2, ("saturated",)),
    Exercise("critic_loss", "2.9", "The critic's share", 10, 1,
             ("clipped_critic_loss", "policy_gradient_loss", "mse_loss", "MSELoss")),
    Exercise("ppo_ptx_loss", "2.10", "Rehearsal", 5, 1),
    Exercise("group_relative_advantages", "2.11", "A group is its own baseline", 20, 3,
             ("process_advantages", "leave_one_out_advantages", "_grouped", "_sums", "_bounds")),
    Exercise("leave_one_out_advantages", "2.12", "A baseline made of the others", 15, 2,
             ("process_advantages", "group_relative_advantages", "_grouped", "_sums", "_bounds")),
    Exercise("test_group_relative_advantages", "2.13", "Bug hunt: noise divided by noise", 25, 4),
    Exercise("aggregate", "2.14", "Whose token counts how much", 20, 3, ("policy_gradient_loss", "clipped_critic_loss", "sft_loss")),
    Exercise("overlong_penalty", "2.15", "Too long", 10, 1),
    Exercise("overoptimisation_alarm", "2.16", "Exit: an alarm without the reward", 45, 4, ("_pays_for_nothing",)),
)  # fmt: skip


# ---------------------------------------------------------------- slow twins: numbers, not tensors


def scalar(x):
    return torch.tensor(x, dtype=torch.float64)


def mean(numbers):
    numbers = list(numbers)
    return math.fsum(numbers) / len(numbers)


def deviation(numbers):
    """The population standard deviation."""
    numbers = list(numbers)
    middle = mean(numbers)
    return math.sqrt(mean((x - middle) ** 2 for x in numbers))


def spoiled(x, mask, fill):
    """x with `fill` wherever the mask is 0."""
    return x.masked_fill(mask == 0, fill)


def gap_inserted(draw, mask):
    """The mask with one 0 at least between the first and the last 1 of every row that has room for it."""
    for row in mask:
        if int(row.sum()) == 1:
            row[(int(row.nonzero()[0]) + 2) % len(row)] = True
        first, last = (int(row.nonzero()[i]) for i in (0, -1))
        if last - first > 1:
            row[draw.number(first + 1, last)] = False
    return mask


def expect_value_error(call, what):
    try:
        call()
    except StudentError as error:
        if error.kind == "NotImplementedError":
            raise
        if error.kind not in ("ValueError", "TypeCheckError"):  # the second: the package's own where its annotations are checked
            raise CheckFailed(f"{what}: expected a ValueError, got {error.kind}") from error
        return
    raise CheckFailed(f"{what}: expected a ValueError, got an answer")


# ---------------------------------------------------------------- 2.1 shaped_token_rewards


def shaped_twin(actor, reference, mask, reward, beta):
    rows = []
    for b, marks in enumerate(mask.tolist()):
        row = [-beta * (float(actor[b, t]) - float(reference[b, t])) if on else 0.0 for t, on in enumerate(marks)]
        row[max(t for t, on in enumerate(marks) if on)] += float(reward[b])
        rows.append(row)
    return scalar(rows)


def logprobs(draw, *shape):
    return -draw.uniform(*shape, high=4)


@invariant("L2.01", points=1, anchor=True)
def the_shaped_rewards_of_random_responses(shaped_token_rewards, draw):
    """Every action gets -beta * (logp_actor - logp_reference), the last one the reward as well, prompt tokens get 0."""
    actor, reference, reward, beta = logprobs(draw, 5, 7), logprobs(draw, 5, 7), draw.normal(5), 0.3
    mask = torch.arange(7).expand(5, 7) >= draw.integers(1, 6, 5)[:, None]
    got = shaped_token_rewards(actor, reference, mask, reward, beta)
    expect(got, "the token rewards").close_to(shaped_twin(actor, reference, mask, reward, beta))


@invariant("L2.01", points=1)
def reward_four_fifths_at_ratio_two(shaped_token_rewards, draw):
    """Reward 0.8 for a token that became twice as likely, beta 0.1: 0.7307. Three tokens at ratios e^0.5, e^-0.5, 1: -0.05, 0.05, 2."""
    old, one = logprobs(draw, 1, 1), torch.ones(1, 1, dtype=torch.bool)
    got = shaped_token_rewards(old + math.log(2), old, one, scalar([0.8]), 0.1)
    expect(got, "the reward of the token").close_to(scalar([[0.7306852819440055]]))
    actor, reference = scalar([[-1.0, -2.0, -3.0]]), scalar([[-1.5, -1.5, -3.0]])
    got = shaped_token_rewards(actor, reference, torch.ones(1, 3, dtype=torch.bool), scalar([2.0]), 0.1)
    expect(got, "the rewards of three tokens").close_to(scalar([[-0.05, 0.05, 2.0]]))


@invariant("L2.01", points=1)
def the_rewards_of_a_response_sum_up(shaped_token_rewards, draw):
    """The token rewards of a response sum to reward - beta * (log pi - log pi_ref) of its actions, and nothing else gets any."""
    actor, reference, reward, beta = logprobs(draw, 6, 9), logprobs(draw, 6, 9), draw.normal(6), 0.7
    mask = gap_inserted(draw, draw.mask(6, 9))
    got = torch.as_tensor(shaped_token_rewards(actor, reference, mask, reward, beta))
    unread = [spoiled(x, mask, math.nan) for x in (actor, reference)]
    expect(shaped_token_rewards(*unread, mask, reward, beta), "the token rewards with NaN where the mask is 0").close_to(
        shaped_twin(actor, reference, mask, reward, beta)
    )
    ratio = [math.fsum(float(actor[b, t] - reference[b, t]) for t in range(9) if mask[b, t]) for b in range(6)]
    wanted = scalar([float(r) - beta * k for r, k in zip(reward, ratio)])
    expect(got.sum(1), "the sums of the token rewards").close_to(wanted)
    expect(got[~mask], "the rewards of tokens that are no actions").equals(0.0)


@invariant("L2.02", points=1)
def the_reward_lands_on_the_last_action(shaped_token_rewards, draw):
    """For masks that start late, have gaps or end early, the reward is at the greatest index whose mask is 1."""
    rows = [
        [1, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1],
        [0, 1, 1, 1, 0, 0],
        [0, 1, 0, 0, 1, 0],
        [1, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
    ]
    mask, reward = torch.tensor(rows)[draw.permutation(6)], draw.normal(6)
    same = logprobs(draw, 6, 6)
    got = shaped_token_rewards(same, same, mask.bool(), reward, 0.5)
    wanted = torch.zeros(6, 6, dtype=torch.float64)
    for b, row in enumerate(mask.tolist()):
        wanted[b, max(t for t, on in enumerate(row) if on)] = reward[b]
    expect(got, "the token rewards of a policy that is the reference").close_to(wanted)


@invariant("L2.02", points=1)
def a_row_without_an_action_is_an_error(shaped_token_rewards, draw):
    """A row whose mask is all 0 raises ValueError, since the reward has no place; the same batch without that row is fine."""
    actor, reference, reward, mask = logprobs(draw, 3, 4), logprobs(draw, 3, 4), draw.normal(3), draw.mask(3, 4)
    empty = mask.clone()
    empty[draw.number(0, 3)] = False
    got = shaped_token_rewards(actor, reference, mask, reward, 0.2)
    expect(got, "the token rewards").close_to(shaped_twin(actor, reference, mask, reward, 0.2))
    expect_value_error(lambda: shaped_token_rewards(actor, reference, empty, reward, 0.2), "a row without an action")


# ---------------------------------------------------------------- 2.2 test_shaped_token_rewards
# The functions that a student's test is given. Each is self-contained, because only its source travels.


def shaped_at_once(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    zero = torch.zeros_like(logp_actor)
    penalty = -beta * (torch.where(on, logp_actor, zero) - torch.where(on, logp_reference, zero))
    last = torch.where(on, torch.arange(on.shape[1]), -1).amax(1, keepdim=True)
    placed = torch.where(torch.arange(on.shape[1]) == last, terminal_reward[:, None].to(penalty.dtype), zero)
    return torch.where(on, penalty, zero) + placed


def shaped_by_loop(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    rewards = torch.zeros_like(logp_actor)
    for b in range(len(logp_actor)):
        places = [t for t in range(logp_actor.shape[1]) if bool(action_mask[b, t])]
        if not places:
            raise ValueError("no action in a row")
        for t in places:
            rewards[b, t] = beta * (logp_reference[b, t] - logp_actor[b, t])
        rewards[b, places[-1]] = rewards[b, places[-1]] + terminal_reward[b]
    return rewards


def shaped_from_the_end(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask.bool()
    if (on.sum(1) == 0).any():
        raise ValueError("a response without a token")
    gap = torch.zeros_like(logp_actor)
    gap[on] = (logp_actor - logp_reference)[on]
    is_last = on & (on.long().flip(1).cumsum(1).flip(1) == 1)
    return is_last * terminal_reward[:, None] - beta * gap


RIGHT_SHAPED = (shaped_at_once, shaped_by_loop, shaped_from_the_end)


def shaped_nothing(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    return torch.zeros_like(logp_actor)


def shaped_the_other_way(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    zero = torch.zeros_like(logp_actor)
    penalty = -beta * (torch.where(on, logp_reference, zero) - torch.where(on, logp_actor, zero))
    last = torch.where(on, torch.arange(on.shape[1]), -1).amax(1, keepdim=True)
    return penalty + torch.where(torch.arange(on.shape[1]) == last, terminal_reward[:, None], zero)


def shaped_last_column(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    zero = torch.zeros_like(logp_actor)
    rewards = -beta * (torch.where(on, logp_actor, zero) - torch.where(on, logp_reference, zero))
    rewards[:, -1] = rewards[:, -1] + terminal_reward
    return rewards


def shaped_on_every_token(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask != 0
    if not bool(on.any(1).all()):
        raise ValueError("action_mask has a row without an action")
    zero = torch.zeros_like(logp_actor)
    penalty = -beta * (torch.where(on, logp_actor, zero) - torch.where(on, logp_reference, zero))
    return torch.where(on, penalty + terminal_reward[:, None], zero)


@invariant("L2.01", points=1, anchor=True)
def the_test_accepts_right_shaped_rewards(test_shaped_token_rewards, draw):
    """Right functions, written in different ways, pass your test; one that returns zeros does not."""
    expect_verdicts(test_shaped_token_rewards, draw, RIGHT_SHAPED, [shaped_nothing])


@invariant("L2.01", points=1)
def the_test_finds_the_inverted_difference(test_shaped_token_rewards, draw):
    """Your test finds the function that subtracts the other way round and so pays for leaving the reference."""
    expect_verdicts(test_shaped_token_rewards, draw, RIGHT_SHAPED[:2], [shaped_the_other_way])


@invariant("L2.02", points=1)
def the_test_finds_a_reward_in_the_last_column(test_shaped_token_rewards, draw):
    """Your test finds the function that puts the terminal reward into the last column."""
    expect_verdicts(test_shaped_token_rewards, draw, RIGHT_SHAPED[1:], [shaped_last_column])


@invariant("L2.02", points=1)
def the_test_finds_a_reward_on_every_token(test_shaped_token_rewards, draw):
    """Your test finds the function that gives the terminal reward to every token of the response."""
    expect_verdicts(test_shaped_token_rewards, draw, RIGHT_SHAPED[:2], [shaped_on_every_token])


# ---------------------------------------------------------------- 2.3 discounted_returns


def return_twin(rewards, gamma, mask):
    """Each action's return as a direct sum over the later actions."""
    out = torch.zeros(rewards.shape, dtype=torch.float64)
    for b, marks in enumerate(mask.tolist()):
        places = [t for t, on in enumerate(marks) if on]
        for i, t in enumerate(places):
            out[b, t] = math.fsum(gamma ** (j - i) * float(rewards[b, s]) for j, s in enumerate(places) if j >= i)
    return out


@invariant("L2.03", points=1, anchor=True)
def the_returns_at_random_rewards(discounted_returns, draw):
    """The return of a step is the sum of its own and all later rewards of its row, each later one discounted once more."""
    rewards, gamma = draw.normal(4, 6), 0.8
    wanted = return_twin(rewards, gamma, torch.ones(4, 6))
    expect(discounted_returns(rewards, gamma), "the returns").close_to(wanted)
    full = torch.ones(4, 6, dtype=torch.bool)
    expect(discounted_returns(rewards, gamma, full), "the returns under a mask of ones").close_to(wanted)


@invariant("L2.03", points=1)
def rewards_zero_one_two(discounted_returns, draw):
    """Rewards 0, 1, 2 at gamma 1/2 have returns 1, 2, 2; gamma 0 gives the rewards themselves, gamma 1 the plain reward to go."""
    expect(discounted_returns(scalar([[0.0, 1.0, 2.0]]), 0.5), "the returns").close_to(scalar([[1.0, 2.0, 2.0]]))
    rewards = draw.normal(3, 5)
    expect(discounted_returns(rewards, 0.0), "the returns at gamma 0").close_to(rewards)
    wanted = return_twin(rewards, 1.0, torch.ones(3, 5))
    expect(discounted_returns(rewards, 1.0), "the returns at gamma 1").close_to(wanted)


@invariant("L2.03", points=1)
def positions_without_an_action_are_no_time(discounted_returns, draw):
    """Positions with mask 0 are skipped: nothing is discounted for them, and their own return is 0."""
    mask = gap_inserted(draw, draw.mask(5, 8))
    rewards, gamma = torch.where(mask, draw.normal(5, 8), 0.0), 0.6
    expect(discounted_returns(rewards, gamma, mask), "the returns").close_to(return_twin(rewards, gamma, mask))


@invariant("L2.03", points=1)
def a_reward_outside_the_mask_is_an_error(discounted_returns, draw):
    """A reward at a position with mask 0 would be lost: it raises ValueError, be it negative, small, or one of two that cancel."""
    mask = gap_inserted(draw, draw.mask(3, 6))
    rewards = torch.where(mask, draw.normal(3, 6), 0.0)
    expect(discounted_returns(rewards, 0.9, mask), "the returns").close_to(return_twin(rewards, 0.9, mask))
    for values in ((0.7,), (-1e-3,), (0.7, -0.7)):
        lost = rewards.clone()
        for (b, t), value in zip(draw.shuffled((~mask).nonzero().tolist()), values):
            lost[b, t] = value
        expect_value_error(lambda lost=lost: discounted_returns(lost, 0.9, mask), f"rewards {values} where the mask is 0")


# ---------------------------------------------------------------- 2.4 generalized_advantage_estimation


def gae_case(draw, rows, width, *, gaps=False, ends=0.0, last=None):
    """[rewards, values, terminated, truncated, final_value, mask]. ends: chance that an action ends an episode; the last one does."""
    mask = gap_inserted(draw, draw.mask(rows, width, p=0.7)) if gaps else torch.ones(rows, width, dtype=torch.bool)
    rewards = torch.where(mask, draw.normal(rows, width), 0.0)
    terminated, truncated = torch.zeros(rows, width, dtype=torch.bool), torch.zeros(rows, width, dtype=torch.bool)
    for b in range(rows):
        places = mask[b].nonzero()[:, 0].tolist()
        for t in places:
            if t == places[-1] and last is not None:
                (terminated if last == "terminated" else truncated)[b, t] = True
            elif t == places[-1] or float(draw.uniform(1)) < ends:
                draw.choice([terminated, truncated])[b, t] = True
    return [rewards, draw.normal(rows, width), terminated, truncated, draw.normal(rows, width), mask]


def gae_twin(rewards, values, terminated, truncated, final_value, mask, gamma, gae_lambda):
    """Every advantage as a direct sum of the residuals of its own episode."""
    advantages, returns = torch.zeros(rewards.shape, dtype=torch.float64), torch.zeros(rewards.shape, dtype=torch.float64)
    for b, marks in enumerate(mask.tolist()):
        places = [t for t, on in enumerate(marks) if on]
        residual, ends = [], []
        for i, t in enumerate(places):
            if terminated[b, t]:
                following = 0.0
            elif truncated[b, t]:
                following = float(final_value[b, t])
            else:
                following = float(values[b, places[i + 1]])
            residual.append(float(rewards[b, t]) + gamma * following - float(values[b, t]))
            ends.append(bool(terminated[b, t] or truncated[b, t]))
        for i, t in enumerate(places):
            stop = next(j for j in range(i, len(places)) if ends[j])
            total = math.fsum((gamma * gae_lambda) ** (j - i) * residual[j] for j in range(i, stop + 1))
            advantages[b, t], returns[b, t] = total, total + float(values[b, t])
    return advantages, returns


def pair_of(answer):
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise CheckFailed(f"the result: expected (advantages, returns), got {type(answer).__name__}")
    return torch.as_tensor(answer[0]), torch.as_tensor(answer[1])


def expect_gae(answer, wanted, what=""):
    for got, value, name in zip(pair_of(answer), wanted, ("advantages", "returns")):
        expect(got, f"the {name}{what}").close_to(value)


@invariant("L2.04", points=1, anchor=True)
def the_advantages_of_whole_episodes(generalized_advantage_estimation, draw):
    """For rows that are one episode each, every advantage is the sum of (gamma * lambda)^k times the residuals from there on."""
    case = gae_case(draw, 4, 6, last="terminated")
    answer = generalized_advantage_estimation(*case, 0.9, 0.7)
    expect_gae(answer, gae_twin(*case, 0.9, 0.7))


@invariant("L2.04", points=1)
def the_two_ends_of_lambda(generalized_advantage_estimation, draw):
    """lambda = 1 gives the return (bootstrapped where truncated) minus the value, lambda = 0 the residual of one step."""
    case, gamma = gae_case(draw, 4, 5, last="truncated"), 0.85
    rewards, values, _, _, final_value, mask = case
    paid = rewards.clone()
    paid[:, -1] += gamma * final_value[:, -1]
    long, _ = pair_of(generalized_advantage_estimation(*case, gamma, 1.0))
    expect(long, "the advantages at lambda 1").close_to(return_twin(paid, gamma, mask) - values)
    following = torch.cat([values[:, 1:], final_value[:, -1:]], 1)
    short, _ = pair_of(generalized_advantage_estimation(*case, gamma, 0.0))
    expect(short, "the advantages at lambda 0").close_to(rewards + gamma * following - values)


@invariant("L2.04", points=1)
def nothing_leaks_across_an_end(generalized_advantage_estimation, draw):
    """A row holds several episodes: none of them sees a reward or a value of the next one."""
    case = gae_case(draw, 6, 9, ends=0.35)
    for b, t in enumerate(draw.integers(2, 6, 6).tolist()):
        case[2 + b % 2][b, t] = True
        case[3 - b % 2][b, t] = False
    case[1] = case[1] * 3
    expect_gae(generalized_advantage_estimation(*case, 0.95, 0.8), gae_twin(*case, 0.95, 0.8))


@invariant("L2.04", points=1)
def observations_between_actions_change_nothing(generalized_advantage_estimation, draw):
    """Tokens with mask 0 put between the actions change no advantage of an action; they get 0 themselves."""
    dense, gamma, gae_lambda = gae_case(draw, 4, 5, ends=0.2), 0.9, 0.75
    wanted = gae_twin(*dense, gamma, gae_lambda)
    places = torch.stack([draw.permutation(9)[:5].sort().values for _ in range(4)])
    wide = [torch.zeros(4, 9, dtype=x.dtype).scatter(1, places, x) for x in dense]
    for i in (1, 4):
        wide[i] = torch.where(wide[5], wide[i], draw.normal(4, 9))
    answer = generalized_advantage_estimation(*wide, gamma, gae_lambda)
    expect_gae(answer, [torch.zeros(4, 9, dtype=torch.float64).scatter(1, places, x) for x in wanted])


def two_steps(kind):
    """Two steps of reward 1, values 0.5 and 0.6, and a critic that gives the final observation 0.7."""
    flag, none = torch.tensor([[False, True]]), torch.zeros(1, 2, dtype=torch.bool)
    ended, cut = {"terminated": (flag, none), "truncated": (none, flag), "both": (flag, flag)}[kind]
    return [scalar([[1.0, 1.0]]), scalar([[0.5, 0.6]]), ended, cut, scalar([[9.0, 0.7]]), torch.ones(1, 2, dtype=torch.bool)]


@invariant("L2.05", points=1)
def a_timeout_is_not_a_failure(generalized_advantage_estimation, draw):
    """Two steps of reward 1 at values 0.5, 0.6: advantages 1.382, 0.4 where terminated, 1.92065, 1.03 where cut off at value 0.7."""
    for kind, wanted in (("terminated", [[1.382, 0.4]]), ("truncated", [[1.92065, 1.03]]), ("both", [[1.382, 0.4]])):
        advantages, returns = pair_of(generalized_advantage_estimation(*two_steps(kind), 0.9, 0.95))
        expect(advantages, f"the advantages where {kind}").close_to(scalar(wanted))
        expect(returns, f"the returns where {kind}").close_to(scalar(wanted) + scalar([[0.5, 0.6]]))


@invariant("L2.05", points=1)
def a_cut_in_the_middle_of_a_row(generalized_advantage_estimation, draw):
    """Where an episode ends inside a row, the value after it is that of its own final observation, not of the next episode's first."""
    for kind, wanted in (("truncated", [[2.07455, 1.21, 1.9763, 1.06]]), ("terminated", [[1.382, 0.4, 1.9763, 1.06]])):
        ended, cut = torch.zeros(1, 4, dtype=torch.bool), torch.zeros(1, 4, dtype=torch.bool)
        (ended if kind == "terminated" else cut)[0, 1] = True
        cut[0, 3] = True
        case = [torch.ones(1, 4, dtype=torch.float64), scalar([[0.5, 0.6, 0.2, 0.3]]), ended, cut]
        case += [scalar([[0.0, 0.9, 0.0, 0.4]]), torch.ones(1, 4, dtype=torch.bool)]
        advantages, _ = pair_of(generalized_advantage_estimation(*case, 0.9, 0.95))
        expect(advantages, f"the advantages where {kind} at the second step").close_to(scalar(wanted))


@invariant("L2.03", points=1)
def the_advantage_is_the_return_minus_the_value(generalized_advantage_estimation, draw):
    """Rewards 0, 1, 2 at gamma 1/2 and a value of 0.4 for the first step: at lambda 1 its advantage is 0.6."""
    ended = torch.tensor([[False, False, True]])
    case = [scalar([[0.0, 1.0, 2.0]]), torch.cat([scalar([[0.4]]), draw.normal(1, 2)], 1), ended, torch.zeros_like(ended)]
    case += [draw.normal(1, 3), torch.ones(1, 3, dtype=torch.bool)]
    advantages, returns = pair_of(generalized_advantage_estimation(*case, 0.5, 1.0))
    expect(advantages[0, 0], "the advantage of the first step").close_to(scalar(0.6))
    expect(returns, "the returns").close_to(scalar([[1.0, 2.0, 2.0]]))


# ---------------------------------------------------------------- 2.5 test_generalized_advantage_estimation


def gae_by_loop(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if any(float(r) != 0 and not math.isnan(float(r)) for r in rewards[mask == 0]):
        raise ValueError("a reward at a position that is no action")
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
            advantages[b, t], returns[b, t], following = carried, carried + v[t], v[t]
    return advantages, returns


def gae_by_columns(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    on, zero = mask.bool(), torch.zeros_like(rewards[:, 0])
    if bool((~on & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("rewards must be 0 where mask is 0")
    ended, cut = terminated.bool() & on, truncated.bool() & on & ~terminated.bool()
    carried, following, columns = zero, zero, []
    for t in range(rewards.shape[1] - 1, -1, -1):
        value = torch.where(on[:, t], values[:, t], zero)
        after = torch.where(ended[:, t], zero, torch.where(cut[:, t], final_value[:, t], following))
        rest = torch.where(ended[:, t] | cut[:, t], zero, carried)
        here = rewards[:, t] + gamma * after - value + gamma * gae_lambda * rest
        carried = torch.where(on[:, t], here, carried)
        following = torch.where(on[:, t], value, following)
        columns.append(torch.where(on[:, t], here, zero))
    advantages = torch.stack(columns[::-1], 1)
    return advantages, torch.where(on, advantages + values, torch.zeros_like(values))


def gae_by_direct_sums(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    advantages = torch.zeros_like(values)
    for b in range(len(rewards)):
        r, v, end, cut, final, on = (x[b].tolist() for x in (rewards, values, terminated, truncated, final_value, mask))
        places = [t for t in range(len(r)) if on[t]]
        start, residual = 0, []
        for i, t in enumerate(places):
            after = 0.0 if end[t] else final[t] if cut[t] else v[places[i + 1]] if i + 1 < len(places) else 0.0
            residual.append(r[t] + gamma * after - v[t])
            if end[t] or cut[t] or i + 1 == len(places):
                for k in range(start, i + 1):
                    advantages[b, places[k]] = sum((gamma * gae_lambda) ** (j - k) * residual[j] for j in range(k, i + 1))
                start = i + 1
    return advantages, torch.where(mask != 0, advantages + values, torch.zeros_like(values))


RIGHT_GAE = (gae_by_loop, gae_by_columns, gae_by_direct_sums)


def gae_nothing(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    return torch.zeros_like(values), torch.zeros_like(values)


def gae_leaks_across_an_end(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
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
                following = 0.0
            elif cut[t]:
                following = final[t]
            carried = r[t] + gamma * following - v[t] + gamma * gae_lambda * carried
            advantages[b, t], returns[b, t], following = carried, carried + v[t], v[t]
    return advantages, returns


def gae_timeout_is_failure(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for b in range(len(rewards)):
        r, v, end, cut, _, on = (x[b].tolist() for x in (rewards, values, terminated, truncated, final_value, mask))
        carried = following = 0.0
        for t in reversed(range(len(r))):
            if not on[t]:
                continue
            if end[t] or cut[t]:
                carried, following = 0.0, 0.0
            carried = r[t] + gamma * following - v[t] + gamma * gae_lambda * carried
            advantages[b, t], returns[b, t], following = carried, carried + v[t], v[t]
    return advantages, returns


def gae_gaps_are_time(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    if bool(((mask == 0) & (rewards != 0) & ~torch.isnan(rewards)).any()):
        raise ValueError("a reward outside the mask")
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for b in range(len(rewards)):
        r, v, end, cut, final, on = (x[b].tolist() for x in (rewards, values, terminated, truncated, final_value, mask))
        carried = following = 0.0
        for t in reversed(range(len(r))):
            if not on[t]:
                carried = gamma * gae_lambda * carried
                continue
            if end[t]:
                carried, following = 0.0, 0.0
            elif cut[t]:
                carried, following = 0.0, final[t]
            carried = r[t] + gamma * following - v[t] + gamma * gae_lambda * carried
            advantages[b, t], returns[b, t], following = carried, carried + v[t], v[t]
    return advantages, returns


@invariant("L2.04", points=1, anchor=True)
def the_test_accepts_right_advantages(test_generalized_advantage_estimation, draw):
    """Right functions, written in different ways, pass your test; one that returns zeros does not."""
    expect_verdicts(test_generalized_advantage_estimation, draw, RIGHT_GAE, [gae_nothing])


@invariant("L2.04", points=1)
def the_test_finds_a_leak_across_an_end(test_generalized_advantage_estimation, draw):
    """Your test finds the function that carries advantages of the next episode of a row into the one before."""
    expect_verdicts(test_generalized_advantage_estimation, draw, RIGHT_GAE[:2], [gae_leaks_across_an_end])


@invariant("L2.05", points=1)
def the_test_finds_a_timeout_taken_for_a_failure(test_generalized_advantage_estimation, draw):
    """Your test finds the function that bootstraps 0 where an episode was only cut off."""
    expect_verdicts(test_generalized_advantage_estimation, draw, RIGHT_GAE[1:], [gae_timeout_is_failure])


@invariant("L2.04", points=1)
def the_test_finds_gaps_taken_for_time(test_generalized_advantage_estimation, draw):
    """Your test finds the function that lets advantages decay over observation tokens."""
    expect_verdicts(test_generalized_advantage_estimation, draw, RIGHT_GAE[::2], [gae_gaps_are_time])


# ---------------------------------------------------------------- 2.6 whiten


def whiten_twin(x, mask):
    counted = x[mask != 0].tolist()
    middle, spread = mean(counted), deviation(counted)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for place in (mask != 0).nonzero().tolist():
        out[tuple(place)] = (float(x[tuple(place)]) - middle) / spread
    return out


@invariant("L2.06", points=1, anchor=True)
def the_whitened_values_at_random_actions(whiten, draw):
    """Mean 0 and population variance 1 over the positions with mask 1 of the whole batch, and 0 elsewhere."""
    x, mask = draw.normal(4, 7, scale=3) + 2, draw.mask(4, 7)
    x[0] += 5  # rows differ in level: the statistics are the batch's
    expect(whiten(x, mask), "the whitened values").close_to(whiten_twin(x, mask))


@invariant("L2.06", points=1)
def what_stands_elsewhere_does_not_whiten(whiten, draw):
    """NaN, infinity or 1e30 where the mask is 0 change nothing and come out as 0."""
    x, mask = draw.normal(3, 6), draw.mask(3, 6)
    wanted = whiten_twin(x, mask)
    for fill in (float("nan"), float("inf"), 1e30):
        got = torch.as_tensor(whiten(spoiled(x, mask, fill), mask))
        expect(got, f"the whitened values with {fill} elsewhere").close_to(wanted)
        expect(got[~mask], "the values where the mask is 0").equals(0.0)


@invariant("L2.06", points=1)
def a_constant_whitens_to_zero(whiten, draw):
    """Where all counted values are equal the result is exactly 0: no noise divided by noise, in float32 and float64."""
    for dtype in (torch.float32, torch.float64):
        value, mask = draw.number(1, 10) / 10, draw.mask(3, 5)
        for level in (0.7, value):
            x = torch.full((3, 5), level, dtype=dtype)
            expect(whiten(x, mask), f"the whitened constant {level} in {dtype}").equals(torch.zeros(3, 5))
    lonely = torch.zeros(2, 4, dtype=torch.bool)
    lonely[1, draw.number(0, 4)] = True
    expect(whiten(draw.normal(2, 4), lonely), "one counted value, whitened").equals(torch.zeros(2, 4))
    expect(whiten(draw.normal(2, 4), 0 * lonely), "no counted value, whitened").equals(torch.zeros(2, 4))


# ---------------------------------------------------------------- 2.7 ppo_actor_loss


def clipped(ratio, eps):
    return min(max(ratio, 1 - eps), 1 + eps)


def actor_twin(new, old, advantage, mask, eps=0.2):
    """(loss, gradient with respect to the new log-probabilities)."""
    terms, slope = [], torch.zeros(new.shape, dtype=torch.float64)
    places = (mask != 0).nonzero().tolist()
    for b, t in places:
        ratio, a = math.exp(float(new[b, t]) - float(old[b, t])), float(advantage[b, t])
        terms.append(-min(ratio * a, clipped(ratio, eps) * a))
        free = not ((a > 0 and ratio > 1 + eps) or (a < 0 and ratio < 1 - eps))
        slope[b, t] = -ratio * a / len(places) if free else 0.0
    return scalar(mean(terms)), slope


def policies(draw, rows, width, *, scale=0.4):
    """(new, old, advantage, mask) with ratios on both sides of every bound."""
    old = logprobs(draw, rows, width)
    return [old + draw.normal(rows, width, scale=scale), old, draw.normal(rows, width), draw.mask(rows, width)]


@invariant("L2.07", points=1, anchor=True)
def the_actor_loss_at_random_ratios(ppo_actor_loss, draw):
    """Minus the mean, over the active tokens of the batch, of min(ratio * A, clip(ratio, 0.8, 1.2) * A)."""
    given = policies(draw, 4, 8)
    expect(ppo_actor_loss(*given), "the loss").close_to(actor_twin(*given)[0])


@invariant("L2.07", points=1)
def the_minimum_is_pessimistic(ppo_actor_loss, draw):
    """A = 2 at ratio 1.4 is worth 2.4, A = -2 at ratio 0.6 is worth -1.6; a ratio in the harmful direction is not clipped."""
    one = torch.ones(1, 1, dtype=torch.bool)
    old = logprobs(draw, 1, 1)
    for a, ratio, worth in ((2.0, 1.4, 2.4), (-2.0, 0.6, -1.6), (2.0, 0.6, 1.2), (-2.0, 1.4, -2.8), (-2.0, 3.0, -6.0)):
        got = ppo_actor_loss(old + math.log(ratio), old, scalar([[a]]), one)
        expect(got, f"the loss of A = {a} at ratio {ratio}").close_to(scalar(-worth))
    ratios = scalar([[1.0, 1.0, 0.1353353]])
    got = ppo_actor_loss(ratios.log(), torch.zeros(1, 3, dtype=torch.float64), scalar([[0.3, 0.2, 0.1]]), torch.ones(1, 3))
    expect(got, "the loss of ratios 1, 1, 0.1353 at A = 0.3, 0.2, 0.1").close_to(scalar(-0.17117784333))


@invariant("L2.07", points=1)
def the_clipped_side_has_no_gradient(ppo_actor_loss, draw):
    """A token beyond the bound on the side that its advantage wants gets gradient 0, every other one -ratio * A / tokens."""
    given = policies(draw, 5, 6, scale=0.6)
    expect(ppo_actor_loss.gradient(*given), "the gradient").close_to(actor_twin(*given)[1])
    old = torch.zeros(1, 6, dtype=torch.float64)
    ratios, a = scalar([[0.7, 0.7, 1.0, 1.0, 1.3, 1.3]]), scalar([[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]])
    slope = ppo_actor_loss.gradient(ratios.log(), old, a, torch.ones(1, 6))
    expect(slope, "the gradient at ratios 0.7, 1, 1.3, A = +1, -1 each").close_to(scalar([[-0.7, 0, -1, 1, 0, 1.3]]) / 6)


@invariant("L2.07", points=1)
def at_ratio_one_it_is_the_policy_gradient(ppo_actor_loss, draw):
    """Before the first update the value is minus the mean advantage and the gradient of a token is -A / tokens."""
    _, old, advantage, mask = policies(draw, 4, 5)
    count = int(mask.sum())
    nothing = ppo_actor_loss(old, old, advantage, torch.zeros_like(mask))
    expect(1 + torch.as_tensor(nothing), "1 + the loss of a batch without an action").close_to(scalar(1.0))
    expect(ppo_actor_loss(old, old, advantage, mask), "the loss").close_to(scalar(-mean(advantage[mask].tolist())))
    expect(ppo_actor_loss.gradient(old, old, advantage, mask), "the gradient").close_to(
        torch.where(mask, -advantage / count, 0.0)
    )


@invariant("L2.06", points=1)
def advantages_and_old_policy_are_constants(ppo_actor_loss, draw):
    """The loss sends no gradient into the old log-probabilities or the advantages, even where they could carry one."""
    given = policies(draw, 3, 5)
    new, old, advantage = ppo_actor_loss.gradient(*given, wrt=(0, 1, 2))
    expect(new, "the gradient for logp_new").close_to(actor_twin(*given)[1])
    expect(old, "the gradient for logp_old").equals(torch.zeros(3, 5))
    expect(advantage, "the gradient for the advantages").equals(torch.zeros(3, 5))


# ---------------------------------------------------------------- 2.8 clip_report


def quantile(numbers, q):
    numbers = sorted(numbers)
    place = q * (len(numbers) - 1)
    low = math.floor(place)
    high = min(low + 1, len(numbers) - 1)
    return numbers[low] + (place - low) * (numbers[high] - numbers[low])


def report_twin(new, old, advantage, mask, action_type, eps):
    tokens = {}
    for b, t in (mask != 0).nonzero().tolist():
        ratio, a = math.exp(float(new[b, t]) - float(old[b, t])), float(advantage[b, t])
        hit = (a > 0 and ratio > 1 + eps) or (a < 0 and ratio < 1 - eps)
        for key in ("all", int(action_type[b, t])):
            tokens.setdefault(key, []).append((ratio, hit))
    report = {}
    for key, rows in tokens.items():
        ratios = [r for r, _ in rows]
        report[key] = {f"ratio_q{int(100 * q)}": quantile(ratios, q) for q in (0.5, 0.9, 0.99)}
        report[key] |= {"clip_fraction": mean(hit for _, hit in rows), "ratio_max": max(ratios), "tokens": len(rows)}
    return report


@invariant("L2.09", points=1, anchor=True)
def the_report_at_random_ratios(clip_report, draw):
    """Clip fraction, quantiles and maximum of the ratio, and the number of tokens, over all valid actions."""
    given, eps = policies(draw, 5, 8), 0.2
    action_type = draw.integers(0, 2, 5, 8)
    got = clip_report(*given, action_type, eps)
    if not isinstance(got, dict) or "all" not in got:
        raise CheckFailed(f"the report: expected a dict with the key 'all', got {type(got).__name__}")
    expect(got["all"], "the report['all']").close_to(report_twin(*given, action_type, eps)["all"])


@invariant("L2.09", points=1)
def every_action_type_has_its_own_row(clip_report, draw):
    """Beside "all" there is one entry per type of action, with that type's own tokens only."""
    given, eps = policies(draw, 6, 9), 0.15
    action_type = scalar([3, 8, 11]).long()[draw.integers(0, 3, 6, 9)]
    got, wanted = clip_report(*given, action_type, eps), report_twin(*given, action_type, eps)
    if isinstance(got, dict) and set(got) != set(wanted):
        found = f"{list(got)[:5]}" + "".join(
            f", of type {kind}" for kind in sorted({type(k).__name__ for k in got} - {"int", "str"})
        )
        raise CheckFailed(f'the report: expected the keys "all" and the types as int, {list(wanted)}, got {found}')
    expect(got, "the report").close_to(wanted)


@invariant("L2.09", points=1)
def one_extreme_action_shows(clip_report, draw):
    """One tool call in 200 tokens at ratio 20: the mean log-ratio is 0.015, its type's row says 20, that of the text says 1."""
    old, ones = logprobs(draw, 4, 50), torch.ones(4, 50, dtype=torch.bool)
    new, action_type = old.clone(), torch.zeros(4, 50, dtype=torch.long)
    b, t = draw.number(0, 4), draw.number(0, 50)
    new[b, t] += math.log(20)
    action_type[b, t] = 1
    got = clip_report(new, old, ones.double(), ones, action_type, 0.2)
    same = {"ratio_q50": 1.0, "ratio_q90": 1.0, "ratio_q99": 1.0}
    wanted = {
        "all": same | {"clip_fraction": 1 / 200, "ratio_max": 20.0, "tokens": 200},
        0: same | {"clip_fraction": 0.0, "ratio_max": 1.0, "tokens": 199},
        1: {"ratio_q50": 20.0, "ratio_q90": 20.0, "ratio_q99": 20.0, "clip_fraction": 1.0, "ratio_max": 20.0, "tokens": 1},
    }
    expect(got, "the report").close_to(wanted)


@invariant("L2.09", points=1)
def the_sign_of_the_advantage_decides(clip_report, draw):
    """A token counts as clipped only where the clipped term is used: above the bound for A > 0, below it for A < 0."""
    ratios, a = scalar([[0.5, 0.5, 1.0, 1.0, 1.5, 1.5, 1.5]]), scalar([[1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 0.0]])
    old, ones = logprobs(draw, 1, 7), torch.ones(1, 7, dtype=torch.bool)
    action_type = torch.tensor([[0, 0, 1, 1, 2, 2, 3]])
    got = clip_report(old + ratios.log(), old, a, ones, action_type, 0.2)
    fractions = {key: row["clip_fraction"] for key, row in got.items()}
    expect(fractions, "the clip fractions").close_to({"all": 2 / 7, 0: 0.5, 1: 0.0, 2: 0.5, 3: 0.0})


# ---------------------------------------------------------------- 2.9 critic_loss, 2.10 ppo_ptx_loss


def critic_twin(values, returns, mask):
    return scalar(mean((float(v) - float(r)) ** 2 for v, r in zip(values[mask != 0], returns[mask != 0])) / 2)


@invariant("L2.10", points=1, anchor=True)
def the_critic_loss_at_random_values(critic_loss, draw):
    """Half the mean, over the counted positions of the batch, of the squared distance between value and return."""
    values, returns, mask = draw.normal(4, 7), draw.normal(4, 7), draw.mask(4, 7)
    expect(critic_loss(values, returns, mask), "the loss").close_to(critic_twin(values, returns, mask))


@invariant("L2.10", points=1)
def off_by_one_costs_a_half(critic_loss, draw):
    """A value of 1 where the return is 0 costs 0.5, whatever NaN stands at positions with mask 0."""
    mask = draw.mask(2, 5)
    level = draw.normal(2, 5)
    expect(critic_loss(level + 1, level, mask), "the loss").close_to(scalar(0.5))
    nothing = critic_loss(level + 1, level, torch.zeros_like(mask))
    expect(1 + torch.as_tensor(nothing), "1 + the loss of a batch without an action").close_to(scalar(1.0))
    for fill in (float("nan"), float("inf")):
        values, returns = spoiled(level + 1, mask, fill), spoiled(level, mask, fill)
        expect(critic_loss(values, returns, mask), f"the loss with {fill} elsewhere").close_to(scalar(0.5))


@invariant("L2.10", points=1)
def the_gradient_reaches_the_values_only(critic_loss, draw):
    """The gradient of a value is (value - return) / number of counted positions, 0 where the mask is 0 and for the returns."""
    values, returns, mask = draw.normal(3, 6), draw.normal(3, 6), draw.mask(3, 6)
    wanted = torch.where(mask, (values - returns) / int(mask.sum()), 0.0)
    for fill in (0.0, float("nan")):
        given = spoiled(values, mask, fill), spoiled(returns, mask, fill), mask
        slope, other = critic_loss.gradient(*given, wrt=(0, 1))
        expect(slope, f"the gradient for the values with {fill} elsewhere").close_to(wanted)
        expect(other, "the gradient for the returns").equals(torch.zeros(3, 6))


@invariant("L2.11", points=1, anchor=True)
def the_rehearsed_loss(ppo_ptx_loss, draw):
    """The loss is the PPO loss plus gamma times the language-model loss on pretraining text."""
    for gamma in (0.0, 0.5, 27.8):
        ppo, nll = draw.normal(1)[0], draw.uniform(1, low=1, high=5)[0]
        expect(ppo_ptx_loss(ppo, nll, gamma), f"the loss at gamma {gamma}").close_to(scalar(float(ppo) + gamma * float(nll)))


@invariant("L2.11", points=1)
def the_two_gradients_add(ppo_ptx_loss, draw):
    """The gradient is the PPO gradient plus gamma times the language-model gradient: 1 and gamma."""
    for gamma in (0.25, 3.0):
        ppo, nll = ppo_ptx_loss.gradient(draw.normal(1)[0], draw.uniform(1, low=1, high=5)[0], gamma, wrt=(0, 1))
        expect(ppo, "the gradient for the PPO loss").close_to(scalar(1.0))
        expect(nll, f"the gradient for the language-model loss at gamma {gamma}").close_to(scalar(gamma))


# ---------------------------------------------------------------- 2.11 group_relative_advantages, 2.12 leave_one_out_advantages


def group_twin(rewards, group_id, scale):
    rewards, groups = rewards.tolist(), group_id.tolist()
    out = []
    for r, g in zip(rewards, groups):
        mine = [x for x, h in zip(rewards, groups) if h == g]
        spread = deviation(mine) if scale == "std" else 1.0
        out.append(0.0 if min(mine) == max(mine) else (r - mean(mine)) / spread)
    return scalar(out)


def others_twin(rewards, group_id):
    rewards, groups = rewards.tolist(), group_id.tolist()
    out = []
    for i, r in enumerate(rewards):
        others = [x for j, x in enumerate(rewards) if groups[j] == groups[i] and j != i]
        out.append(r - mean(others))
    return scalar(out)


def equal_groups(draw, dtype):
    """(rewards, group_id): groups of 2 to 64 in which all rewards are equal, k/10 each, and 0.7 in one of 8."""
    sizes = (2, 3, 8, 7, 64, 5)
    groups = draw.groups(sizes)
    names = sorted({int((groups == g).sum()): int(g) for g in groups.unique()}.items())
    rewards = torch.zeros(len(groups), dtype=dtype)
    for size, name in names:
        rewards[groups == name] = 0.7 if size == 8 else draw.number(-9, 10) / 10
    return rewards, groups


@invariant("L2.14", points=1, anchor=True)
def rewards_are_centred_in_their_group(group_relative_advantages, draw):
    """scale="none": each reward minus the mean of its own group, for groups of different sizes in any order."""
    rewards, groups = draw.normal(12) * 2 + 1, draw.groups([2, 3, 7])
    got = group_relative_advantages(rewards, groups, scale="none")
    expect(got, "the advantages").close_to(group_twin(rewards, groups, "none"))


@invariant("L2.14", points=1)
def and_scaled_where_asked_for(group_relative_advantages, draw):
    """scale="std" divides by the group's population standard deviation: rewards 0 and 1 become -1 and 1. Any other is an error."""
    rewards, groups = draw.normal(11, scale=3), draw.groups([2, 4, 5])
    got = group_relative_advantages(rewards, groups, scale="std")
    expect(got, "the advantages").close_to(group_twin(rewards, groups, "std"))
    got = group_relative_advantages(scalar([0.0, 1.0, 1.0, 0.0, 0.0, 0.0]), torch.tensor([4, 4, 9, 9, 9, 9]), scale="std")
    root = math.sqrt(3)
    expect(got, "the advantages of 0, 1 and of 1, 0, 0, 0").close_to(scalar([-1, 1, root, -1 / root, -1 / root, -1 / root]))
    for other in ("variance", "", True):
        expect_value_error(lambda: group_relative_advantages(rewards, groups, scale=other), f"scale={other!r}")


@invariant("L2.14", points=1)
def one_zero_one(group_relative_advantages, draw):
    """Rewards 1, 0, 1 centred are 1/3, -2/3, 1/3, and two groups of very different spread keep or lose it as `scale` says."""
    order = draw.permutation(6)
    rewards, groups = scalar([1.0, 0.0, 1.0, 100.0, 0.0, 100.0])[order], torch.tensor([2, 2, 2, 1, 1, 1])[order]
    third, root = scalar([1, -2, 1]) / 3, scalar([1, -2, 1]) / math.sqrt(2)
    for scale, wanted in (("none", torch.cat([third, 100 * third])), ("std", torch.cat([root, root]))):
        got = torch.as_tensor(group_relative_advantages(rewards, groups, scale=scale))
        for g, part in ((2, wanted[:3]), (1, wanted[3:])):
            mine = groups == g
            expect(got[mine], f"scale {scale!r}, the group of rewards 0 and {rewards[mine].max():g}").close_to(
                part[order[mine] % 3]
            )


@invariant("L2.14", points=1)
def a_group_without_variation_gives_zero(group_relative_advantages, draw):
    """Equal rewards of a group give exactly 0, in a group of one too: eight times 0.7 in float32 must not become noise."""
    for dtype in (torch.float32, torch.float64):
        rewards, groups = equal_groups(draw, dtype)
        for scale in ("none", "std"):
            got = group_relative_advantages(rewards, groups, scale=scale)
            expect(got, f"the advantages of equal rewards, scale {scale!r}, {dtype}").equals(torch.zeros(len(rewards)))
    rewards, groups = draw.normal(6), draw.groups([1, 4, 1])
    for scale in ("none", "std"):
        got = group_relative_advantages(rewards, groups, scale=scale)
        expect(got, f"the advantages with two groups of one, scale {scale!r}").close_to(group_twin(rewards, groups, scale))


@invariant("L2.14", points=1, anchor=True)
def each_reward_against_the_others(leave_one_out_advantages, draw):
    """Each reward minus the mean reward of the other samples of its group, for groups of different sizes in any order."""
    rewards, groups = draw.normal(12) * 2 + 1, draw.groups([2, 3, 7])
    expect(leave_one_out_advantages(rewards, groups), "the advantages").close_to(others_twin(rewards, groups))


@invariant("L2.14", points=1)
def equal_rewards_leave_exactly_zero(leave_one_out_advantages, draw):
    """Equal rewards of a group give exactly 0, in float32 too; 6, 3 and 9, 12 give 3, -3 and -3, 3."""
    for dtype in (torch.float32, torch.float64):
        rewards, groups = equal_groups(draw, dtype)
        got = leave_one_out_advantages(rewards, groups)
        expect(got, f"the advantages of equal rewards in {dtype}").equals(torch.zeros(len(rewards)))
    got = leave_one_out_advantages(scalar([6.0, 9.0, 3.0, 12.0]), torch.tensor([1, 0, 1, 0]))
    expect(got, "the advantages").close_to(scalar([3.0, -3.0, -3.0, 3.0]))


def every_draw(arms, samples, draw):
    """All groups that `samples` draws from a bandit can give, as one shuffled batch: (arm [N], group_id [N])."""
    draws = list(itertools.product(range(arms), repeat=samples))
    arm, group = torch.tensor(draws).flatten(), torch.arange(len(draws)).repeat_interleave(samples)
    order = draw.permutation(len(arm))
    return arm[order], group[order]


def expected_gradient(advantages, arm, group, law, samples):
    """The mean, over all draws, of mean_i A_i * gradient of log pi(a_i) with respect to the logits."""
    total = [0.0] * len(law)
    chance = {g: math.prod(law[a] for a in arm[group == g].tolist()) for g in set(group.tolist())}
    for a, g, value in zip(arm.tolist(), group.tolist(), advantages.tolist()):
        for k, p in enumerate(law):
            total[k] += chance[g] * value / samples * ((k == a) - p)
    return scalar(total)


@invariant("L2.12", points=1)
def the_gradient_is_unbiased(leave_one_out_advantages, draw):
    """Over all pairs and triples of draws of a three-armed bandit, the mean estimate is the true gradient, not a fraction of it."""
    law, worth = draw.normal(3).softmax(0).tolist(), draw.normal(3).tolist()
    middle = math.fsum(p * r for p, r in zip(law, worth))
    wanted = scalar([p * (r - middle) for p, r in zip(law, worth)])
    for samples in (2, 3):
        arm, group = every_draw(3, samples, draw)
        got = torch.as_tensor(leave_one_out_advantages(scalar(worth)[arm], group))
        expect(got.shape == arm.shape, "the shape of the advantages").true("that of the rewards")
        expect(expected_gradient(got, arm, group, law, samples), f"the gradient from {samples} samples").close_to(
            wanted, rtol=1e-5
        )


# ---------------------------------------------------------------- 2.13 test_group_relative_advantages


def group_by_scatter(rewards, group_id, scale="none"):
    if scale not in ("none", "std"):
        raise ValueError("scale must be 'none' or 'std'")
    _, group, size = group_id.unique(return_inverse=True, return_counts=True)
    zero = torch.zeros(len(size), dtype=rewards.dtype)
    centred = rewards - (zero.index_add(0, group, rewards) / size)[group]
    low = zero.scatter_reduce(0, group, rewards, "amin", include_self=False)
    high = zero.scatter_reduce(0, group, rewards, "amax", include_self=False)
    flat = (low == high)[group]
    if scale == "std":
        spread = (zero.index_add(0, group, centred**2) / size).sqrt()[group]
        centred = centred / torch.where(flat, torch.ones_like(spread), spread)
    return torch.where(flat, torch.zeros_like(rewards), centred)


def group_by_loop(rewards, group_id, scale="none"):
    if scale not in ("none", "std"):
        raise ValueError("scale")
    advantages = torch.zeros_like(rewards)
    for g in set(group_id.tolist()):
        places = [i for i, h in enumerate(group_id.tolist()) if h == g]
        mine = rewards[places]
        if bool((mine == mine[0]).all()):
            continue
        away = mine - mine.mean()
        advantages[places] = away / (away**2).mean().sqrt() if scale == "std" else away
    return advantages


def group_by_matrix(rewards, group_id, scale="none"):
    if scale not in ("none", "std"):
        raise ValueError("scale")
    same = group_id[:, None] == group_id[None, :]
    weight = same.to(rewards.dtype) / same.sum(1, keepdim=True)
    centred = rewards - weight @ rewards
    flat = ((rewards[:, None] == rewards[None, :]) | ~same).all(1)
    spread = (weight @ centred**2).sqrt().masked_fill(flat, 1.0)
    return (centred / spread if scale == "std" else centred).masked_fill(flat, 0.0)


RIGHT_GROUP = (group_by_scatter, group_by_loop, group_by_matrix)


def group_nothing(rewards, group_id, scale="none"):
    return torch.zeros_like(rewards)


def group_divides_noise(rewards, group_id, scale="none"):
    advantages = torch.zeros_like(rewards)
    for g in group_id.unique():
        mine = rewards[group_id == g]
        away = mine - mine.mean()
        advantages[group_id == g] = away / (away.std(correction=0) + 1e-8) if scale == "std" else away
    return advantages


def group_divides_by_one_less(rewards, group_id, scale="none"):
    advantages = torch.zeros_like(rewards)
    for g in group_id.unique():
        mine = rewards[group_id == g]
        if bool((mine == mine[0]).all()):
            continue
        away = mine - mine.mean()
        advantages[group_id == g] = away / mine.std() if scale == "std" else away
    return advantages


def group_of_the_batch(rewards, group_id, scale="none"):
    if bool((rewards == rewards[0]).all()):
        return torch.zeros_like(rewards)
    away = rewards - rewards.mean()
    return away / rewards.std(correction=0) if scale == "std" else away


@invariant("L2.14", points=1, anchor=True)
def the_test_accepts_right_groups(test_group_relative_advantages, draw):
    """Right functions, written in different ways, pass your test; one that returns zeros does not."""
    expect_verdicts(test_group_relative_advantages, draw, RIGHT_GROUP, [group_nothing])


@invariant("L2.14", points=1)
def the_test_finds_noise_divided_by_noise(test_group_relative_advantages, draw):
    """Your test finds the function that makes advantages out of rounding errors where all rewards are equal."""
    expect_verdicts(test_group_relative_advantages, draw, RIGHT_GROUP[:2], [group_divides_noise])


@invariant("L2.14", points=1)
def the_test_finds_the_other_divisor(test_group_relative_advantages, draw):
    """Your test finds the function that divides by the sample's standard deviation, with size - 1."""
    expect_verdicts(test_group_relative_advantages, draw, RIGHT_GROUP[1:], [group_divides_by_one_less])


@invariant("L2.14", points=1)
def the_test_finds_statistics_of_the_batch(test_group_relative_advantages, draw):
    """Your test finds the function that takes mean and deviation of the whole batch."""
    expect_verdicts(test_group_relative_advantages, draw, RIGHT_GROUP[::2], [group_of_the_batch])


# ---------------------------------------------------------------- 2.14 aggregate, 2.15 overlong_penalty


def aggregate_twin(loss, mask, how, denominator=None):
    rows = [[float(x) for x, on in zip(r, m) if on] for r, m in zip(loss.tolist(), mask.tolist())]
    rows = [row for row in rows if row]
    if how == "token":
        total, count = math.fsum(x for row in rows for x in row), sum(map(len, rows))
    else:
        total, count = math.fsum(map(mean, rows)), len(rows)
    return scalar(total / (count if denominator is None else denominator))


GOLDEN_LOSS = [[1.0, 2.0, 9.0], [3.0, 4.0, 5.0], [7.0, 9.0, 9.0]]
GOLDEN_MASK = [[1, 1, 0], [1, 1, 1], [1, 0, 0]]


@invariant("L2.16", points=1, anchor=True)
def the_two_means_at_random_losses(aggregate, draw):
    """ "token": mean over the active tokens of the batch; "response": mean over responses of their token means; no other `how`."""
    loss, mask = draw.normal(5, 8), draw.mask(5, 8)
    for how in ("token", "response"):
        expect(aggregate(loss, mask, how=how), f"the {how} mean").close_to(aggregate_twin(loss, mask, how))
    expect_value_error(lambda: aggregate(loss, mask, how="sequence"), 'how="sequence"')


@invariant("L2.16", points=1)
def eleven_thirds_and_twenty_five_sixths(aggregate, draw):
    """Losses 1, 2 | 3, 4, 5 | 7: 3.6667 by tokens, 4.1667 by responses, and a response without tokens changes neither."""
    order = draw.permutation(3)
    loss, mask = scalar(GOLDEN_LOSS)[order], torch.tensor(GOLDEN_MASK)[order]
    empty = torch.cat([mask, torch.zeros(1, 3, dtype=mask.dtype)])
    longer = torch.cat([loss, draw.normal(1, 3)])
    for how, wanted in (("token", 11 / 3), ("response", 25 / 6)):
        expect(aggregate(loss, mask, how=how), f"the {how} mean").close_to(scalar(wanted))
        expect(aggregate(longer, empty, how=how), f"the {how} mean with an empty response").close_to(scalar(wanted))


@invariant("L2.16", points=1)
def the_parts_sum_to_the_whole(aggregate, draw):
    """With the step's global count as denominator, the losses of any micro-batches sum to the loss of the whole batch."""
    loss, mask = draw.normal(6, 7), draw.mask(6, 7)
    cut = draw.number(1, 6)
    for how, count in (("token", int(mask.sum())), ("response", 6)):
        parts = [aggregate(loss[rows], mask[rows], how=how, denominator=count) for rows in (slice(0, cut), slice(cut, 6))]
        for part, rows in zip(parts, (slice(0, cut), slice(cut, 6))):
            expect(part, f"a micro-batch, {how}").close_to(aggregate_twin(loss[rows], mask[rows], how, count))
        total = torch.as_tensor(parts[0]) + torch.as_tensor(parts[1])
        expect(total, f"both micro-batches together, {how}").close_to(aggregate_twin(loss, mask, how))


@invariant("L2.16", points=1)
def who_weighs_how_much(aggregate, draw):
    """The gradient: "token" gives every token the same weight, "response" gives every response the same, whatever its length."""
    loss, mask = draw.normal(4, 6), draw.mask(4, 6)
    slope = aggregate.gradient(loss, mask, how="token")
    expect(slope, "the gradient by tokens").close_to(mask.double() / int(mask.sum()))
    slope = aggregate.gradient(loss, mask, how="response")
    expect(slope, "the gradient by responses").close_to(mask.double() / mask.sum(1, keepdim=True) / 4)


def overlong_twin(lengths, most, buffer):
    start = most - buffer
    return scalar([0.0 if n <= start else -1.0 if n > most else (start - n) / buffer for n in lengths.tolist()])


@invariant("L2.16", points=1, anchor=True)
def the_penalty_of_random_lengths(overlong_penalty, draw):
    """0 up to max_length - buffer, then linear down to -1 at max_length."""
    lengths = draw.integers(1, 60, 12)
    lengths[:2] = torch.tensor([36, 47])
    expect(overlong_penalty(lengths, 50, 15), f"the penalties of lengths {lengths.tolist()}").close_to(
        overlong_twin(lengths, 50, 15)
    )


@invariant("L2.16", points=1)
def limit_twenty_buffer_four(overlong_penalty, draw):
    """Limit 20, buffer 4: lengths 16, 17, 18, 20, 21 get 0, -0.25, -0.5, -1, -1, never below -1 or above 0; one number is fine too."""
    lengths, wanted = torch.tensor([16, 17, 18, 20, 21, 1, 400]), scalar([0, -0.25, -0.5, -1, -1, 0, -1])
    order = draw.permutation(7)
    got = torch.as_tensor(overlong_penalty(lengths[order], 20, 4))
    expect(list(got.shape), "the shape of the penalties").equals([7])
    for penalty, length, value in zip(got, lengths[order].tolist(), wanted[order]):
        expect(penalty, f"the penalty of {length} tokens").close_to(value)
    for one in (18, torch.tensor(18)):
        expect(overlong_penalty(one, 20, 4), f"the penalty of {one!r}").close_to(scalar(-0.5))


# ---------------------------------------------------------------- 2.16 overoptimisation_alarm

RUNS = Path(__file__).with_name("level2_runs.json")
FIELDS = ("step", "kl", "entropy", "length", "repetition", "heldout_score")


def made_up_run(draw, kind, records=18):
    """A run as it is drawn on a blackboard.

    "flat" stays where it is, "healthy" improves and levels off, "pushed" falls apart, and a "traveller" goes as far as a pushed run
    and is the better for it: every nat buys 0.12 to 0.2 of the held-out score, and length, repetition and entropy hardly change.
    """
    if kind == "traveller":
        return _traveller(draw, records)
    turn = draw.number(records // 3, records // 2)
    history, gold = [], []
    for i in range(records):
        noise = (draw.normal(6) * 0.01).tolist()
        learnt = 0.0 if kind == "flat" else 1 - math.exp(-3 * i / (turn if kind == "pushed" else records / 2))
        lost = max(0.0, (i - turn) / (records - 1 - turn)) if kind == "pushed" else 0.0
        wild = lost**0.5  # fast at first: what the reward has a hole for is soon found
        row = {"step": 5 * i, "kl": max(0.0, 1.6 * learnt + 18 * wild + 2 * noise[0])}
        row |= {"entropy": 1.3 - 0.1 * learnt - 0.5 * wild + noise[1], "length": 10.5 + 1.5 * learnt + 11 * wild + 10 * noise[2]}
        row |= {"repetition": max(0.0, 0.02 + 0.01 * learnt + 0.15 * wild + noise[3] / 5)}
        history.append(row | {"heldout_score": 1.3 * learnt - 0.8 * lost + noise[4]})
        gold.append(learnt - 2 * lost)
    return {"seed": draw.number(0, 1000), "healthy": kind != "pushed", "history": history, "gold": gold}


def _traveller(draw, records):
    far, worth = float(draw.uniform(1, low=15, high=20)), float(draw.uniform(1, low=0.12, high=0.2))
    history = []
    for i in range(records):
        noise, kl = (draw.normal(6) * 0.01).tolist(), far * i / (records - 1)
        row = {"step": 5 * i, "kl": max(0.0, kl + 2 * noise[0]), "entropy": 1.3 - 0.01 * kl + noise[1]}
        row |= {"length": 10.5 + 0.05 * kl + 10 * noise[2], "repetition": max(0.0, 0.02 + noise[3] / 5)}
        history.append(row | {"heldout_score": worth * kl + noise[4]})
    gold = [row["heldout_score"] for row in history]
    return {"seed": draw.number(0, 1000), "healthy": True, "history": history, "gold": gold}


@functools.lru_cache(maxsize=4)
def _read(path):
    return json.loads(path.read_text())["runs"]


def recorded_runs(path, *, healthy):
    return [run for run in _read(path) if run["healthy"] == healthy]


def record_of(row):
    """The detector's declared inputs and nothing else."""
    return {name: int(row[name]) if name == "step" else float(row[name]) for name in FIELDS}


def raised(answer, history):
    """Whether the answer is an alarm: a step of the history, and not None."""
    if answer is None:
        return False
    steps = [row["step"] for row in history]
    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        answer = answer.item()
    if isinstance(answer, bool) or not isinstance(answer, int) or answer not in steps:
        raise CheckFailed(f"the answer: expected None or one of the steps {steps[:3]} ... {steps[-1]}, got {answer!r}")
    return True


def first_alarm(overoptimisation_alarm, run):
    """Index of the record at which the run's alarm is raised, or None. Every prefix is asked, the longest last."""
    history = [record_of(row) for row in run["history"]]
    found = None
    for end in range(1, len(history) + 1):
        alarm = raised(overoptimisation_alarm(history[:end]), history[:end])
        if alarm and found is None:
            found = end - 1
    return found


def in_time(place, run):
    """After the gold peak and before the last record."""
    peak = max(range(len(run["gold"])), key=run["gold"].__getitem__)
    return place is not None and peak < place < len(run["history"]) - 1


def expect_alarms(overoptimisation_alarm, runs):
    """In time for four pushed runs of five at least."""
    places = [first_alarm(overoptimisation_alarm, run) for run in runs]
    good = sum(in_time(place, run) for place, run in zip(places, runs))
    seen = [
        "never" if place is None else f"step {run['history'][place]['step']} of {run['history'][-1]['step']}"
        for place, run in zip(places, runs)
        if not in_time(place, run)
    ]
    if good < math.ceil(0.8 * len(runs)):
        raise CheckFailed(
            f"the alarm on {len(runs)} pushed runs: expected it after the peak and before the end in {math.ceil(0.8 * len(runs))}, "
            f"got that in {good}; the others: {', '.join(seen)}"
        )


def expect_quiet(overoptimisation_alarm, runs):
    """No more than one false alarm in ten healthy runs."""
    places = [first_alarm(overoptimisation_alarm, run) for run in runs]
    false = [f"step {run['history'][p]['step']}" for p, run in zip(places, runs) if p is not None]
    if len(false) > len(runs) // 10:
        raise CheckFailed(
            f"the alarm on {len(runs)} healthy runs: expected at most {len(runs) // 10}, got {len(false)}: at {', '.join(false)}"
        )


@invariant("L2.20", points=1, anchor=True)
def a_collapse_raises_the_alarm(overoptimisation_alarm, draw):
    """Made-up runs that fall apart in every column raise the alarm after the peak and before the end."""
    runs = [made_up_run(draw, "pushed", records) for records in (16, 20, 25)]
    expect_alarms(overoptimisation_alarm, runs)


@invariant("L2.20", points=1)
def a_flat_run_stays_quiet(overoptimisation_alarm, draw):
    """Made-up runs in which nothing happens, or which improve and level off, raise no alarm at any step."""
    expect_quiet(overoptimisation_alarm, [made_up_run(draw, kind) for kind in ("flat", "healthy", "flat")])


@invariant("L2.20", points=1)
def a_profitable_journey_stays_quiet(overoptimisation_alarm, draw):
    """Made-up runs that go 15 to 20 nats far while the held-out judge likes every nat of it raise no alarm: far is not wrong."""
    expect_quiet(overoptimisation_alarm, [made_up_run(draw, "traveller", records) for records in (18, 24)])


@invariant("L2.20", points=1)
def the_answer_is_a_step_or_none(overoptimisation_alarm, draw):
    """The answer is None or a step of the history it was given; one record alone is no alarm; asked again, it says the same."""
    history = [record_of(row) for row in made_up_run(draw, "pushed")["history"]]
    alone = overoptimisation_alarm(history[:1])
    expect(raised(alone, history[:1]), "an alarm at the first record").equals(False)
    ends = (2, 5, len(history) - 1, len(history))
    first = [overoptimisation_alarm(history[:end]) for end in ends]
    again = [overoptimisation_alarm(history[:end]) for end in ends]
    for end, one, other in zip(ends, first, again):
        if raised(one, history[:end]) != raised(other, history[:end]):
            raise CheckFailed(f"the answer for the first {end} records: expected the same twice, got {one!r} and {other!r}")


@invariant("L2.20", points=1)
def the_alarm_on_recorded_runs(overoptimisation_alarm, draw):
    """Recorded runs that were pushed too far: after the peak of gold and before the end in four of five."""
    expect_alarms(overoptimisation_alarm, recorded_runs(RUNS, healthy=False))


@invariant("L2.20", points=1)
def quiet_on_recorded_healthy_runs(overoptimisation_alarm, draw):
    """Recorded healthy runs raise no alarm."""
    expect_quiet(overoptimisation_alarm, recorded_runs(RUNS, healthy=True))
