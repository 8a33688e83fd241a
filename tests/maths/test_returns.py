"""Returns, advantages and whitening against sums that are written out, with every golden number of the contract."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.credit.returns import (
    discounted_returns,
    generalized_advantage_estimation,
    next_action_values,
    shaped_token_rewards,
    whiten,
)
from course.masks import selected

REFUSED = (ValueError, TypeCheckError)
NAN, INF = float("nan"), float("inf")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coins(seed, *shape, p=0.5):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < p


def close(got, expected, rtol=1e-10, atol=1e-12):
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


# -------------------------------------------------------------------------------------------------------- selecting first
def test_selected_is_the_identity_under_a_full_mask_and_clean_elsewhere():
    x = normal(0, 2, 3).requires_grad_(True)
    assert torch.equal(selected(x, "x", torch.ones(2, 3).bool()), x)
    dirty = f64([1.0, NAN]).requires_grad_(True)
    selected(dirty, "dirty", torch.tensor([True, False])).exp().sum().backward()
    assert dirty.grad.tolist() == [math.e, 0.0]
    with pytest.raises(ValueError, match="dirty must be finite"):
        selected(dirty, "dirty", torch.tensor([False, True]))
    with pytest.raises(ValueError, match="x must have the mask's shape"):
        inspect.unwrap(selected)(x, "x", torch.ones(2).bool())


# ---------------------------------------------------------------------------------------------------------- token rewards
def slow_shaped(actor, reference, mask, reward, beta):
    out = torch.zeros_like(actor)
    for b in range(len(actor)):
        actions = [t for t in range(actor.shape[1]) if mask[b, t]]
        for t in actions:
            out[b, t] = -beta * (actor[b, t] - reference[b, t])
        out[b, actions[-1]] += reward[b]
    return out


def test_golden_token_rewards():
    one = shaped_token_rewards(f64([[math.log(0.4)]]), f64([[math.log(0.2)]]), torch.ones(1, 1), f64([0.8]), 0.1)
    assert one.item() == pytest.approx(0.7307, abs=5e-5)
    three = shaped_token_rewards(f64([[-1, -2, -3]]), f64([[-1.5, -1.5, -3]]), torch.ones(1, 3), f64([2]), 0.1)
    close(three, f64([[-0.05, 0.05, 2]]))


MASKS = [[1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 0, 1]]


@given(st.integers(0, 10_000), st.sampled_from([0, 0.1, 1.0, 3]))
@settings(deadline=None, max_examples=25)
def test_token_rewards_against_a_loop(seed, beta):
    mask = torch.tensor(MASKS)
    actor, reference, reward = -normal(seed, 6, 4).abs(), -normal(seed + 1, 6, 4).abs(), normal(seed + 2, 6)
    got = shaped_token_rewards(actor, reference, mask, reward, beta)
    close(got, slow_shaped(actor, reference, mask, reward, beta))
    assert (got[mask == 0] == 0).all()
    whole = reward - beta * ((actor - reference) * mask).sum(1)
    close(got.sum(1), whole)
    dirty = (torch.where(mask == 1, x, fill) for x, fill in ((actor, NAN), (reference, -INF)))
    assert torch.equal(shaped_token_rewards(*dirty, mask.bool(), reward, beta), got)


def test_the_terminal_reward_alone_without_a_charge():
    mask, reward = torch.tensor(MASKS), normal(3, 6)
    expected = torch.zeros(6, 4).double()
    expected[torch.arange(6), torch.tensor([3, 3, 3, 1, 1, 3])] = reward
    actor = normal(0, 6, 4)
    assert torch.equal(shaped_token_rewards(actor, normal(1, 6, 4), mask, reward, 0), expected)
    assert torch.equal(shaped_token_rewards(actor, actor, mask, reward, 0.7), expected)
    zero = shaped_token_rewards(actor, actor, mask, torch.zeros(6).double(), 1.0)
    assert (zero == 0).all()


def test_gradients_of_token_rewards_stay_on_actions():
    actor, reference = f64([[NAN, -1, -2, NAN]]).requires_grad_(True), f64([[NAN, -1, -1, INF]]).requires_grad_(True)
    reward = f64([1.0]).requires_grad_(True)
    shaped_token_rewards(actor, reference, torch.tensor([[0, 1, 1, 0]]), reward, 0.5).sum().backward()
    assert actor.grad.tolist() == [[0, -0.5, -0.5, 0]] and reference.grad.tolist() == [[0, 0.5, 0.5, 0]]
    assert reward.grad.tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_token_rewards_in_half_precision(dtype):
    args = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.0]]), torch.ones(1, 2), torch.tensor([1.0])
    got = shaped_token_rewards(*(x.to(dtype) for x in args), 0.1)
    assert got.dtype == torch.float32 and torch.equal(got, shaped_token_rewards(*args, 0.1))


def test_token_reward_arguments():
    a, r = torch.zeros(2, 3), torch.zeros(2)
    with pytest.raises(ValueError, match="action_mask must have an action in every row.*row 1"):
        shaped_token_rewards(a, a, torch.tensor([[0, 1, 0], [0, 0, 0]]), r, 0.1)
    for beta in (-0.1, NAN, INF):
        with pytest.raises(ValueError, match="beta"):
            shaped_token_rewards(a, a, torch.ones(2, 3), r, beta)
    for name, args in (
        ("logp_actor", (a * NAN, a, torch.ones(2, 3), r)),
        ("logp_reference", (a, a - INF, torch.ones(2, 3), r)),
        ("terminal_reward", (a, a, torch.ones(2, 3), r + INF)),
        ("action_mask", (a, a, torch.full((2, 3), 2), r)),
    ):
        with pytest.raises(ValueError, match=name):
            shaped_token_rewards(*args, 0.1)
    with pytest.raises(REFUSED):
        shaped_token_rewards(a, a, torch.ones(2, 3), torch.zeros(3), 0.1)
    with pytest.raises(ValueError, match="terminal_reward"):
        inspect.unwrap(shaped_token_rewards)(a, a, torch.ones(2, 3), torch.zeros(3), 0.1)


# ------------------------------------------------------------------------------------------------------ discounted returns
def slow_returns(rewards, gamma, mask):
    out = torch.zeros_like(rewards)
    for b in range(len(rewards)):
        steps = [t for t in range(rewards.shape[1]) if mask[b, t]]
        for i, t in enumerate(steps):
            out[b, t] = sum(gamma**k * rewards[b, u] for k, u in enumerate(steps[i:]))
    return out


def test_golden_returns():
    assert discounted_returns(f64([0, 1, 2]), 0.5).tolist() == [1.0, 2.0, 2.0]
    assert (discounted_returns(f64([0, 1, 2]), 0.5)[0] - 0.4).item() == pytest.approx(0.6)
    assert discounted_returns(f64([[1, 2, 3]]), 1).tolist() == [[6, 5, 3]]
    assert discounted_returns(f64([[1, 2, 3]]), 0.5).tolist() == [[2.75, 3.5, 3]]


@given(st.integers(0, 10_000), st.sampled_from([0, 0.3, 0.99, 1.0]), st.integers(1, 7))
@settings(deadline=None, max_examples=30)
def test_returns_against_the_double_sum(seed, gamma, time):
    mask = coins(seed, 4, time, p=0.7)
    rewards = torch.where(mask, normal(seed, 4, time), 0.0)
    got = discounted_returns(rewards, gamma, mask)
    close(got, slow_returns(rewards, gamma, mask))
    assert torch.equal(discounted_returns(rewards.masked_fill(~mask, NAN), gamma, mask.int()), got)
    everywhere = normal(seed + 1, 4, time)
    close(discounted_returns(everywhere, gamma), slow_returns(everywhere, gamma, torch.ones(4, time)))
    close(discounted_returns(everywhere, 0), everywhere)
    close(discounted_returns(everywhere, 1), everywhere.flip(1).cumsum(1).flip(1))


def test_observations_between_steps_take_no_discount():
    dense = discounted_returns(f64([[1, 2, 4]]), 0.5)
    gaps = discounted_returns(f64([[0, 1, 0, 0, 2, 4, 0]]), 0.5, torch.tensor([[0, 1, 0, 0, 1, 1, 0]]))
    assert gaps[:, [1, 4, 5]].tolist() == dense.tolist() and gaps[:, [0, 2, 3, 6]].tolist() == [[0, 0, 0, 0]]
    plain = discounted_returns(f64([[0, 1, 0, 0, 2, 4, 0]]), 0.5)
    assert plain[0, 1] < gaps[0, 1]


def test_potentials_telescope():
    """Shaping by potentials adds gamma^T U_T - U_0 to the return, whatever the potentials are."""
    gamma, potential = 0.9, normal(0, 1, 6)
    shaping = gamma * potential[:, 1:] - potential[:, :-1]
    close(discounted_returns(shaping, gamma)[:, 0], gamma**5 * potential[:, -1] - potential[:, 0])


def test_gradients_of_returns():
    rewards = f64([[1, NAN, 3]]).requires_grad_(True)
    discounted_returns(rewards, 0.5, torch.tensor([[1, 0, 1]]))[0, 0].backward()
    assert rewards.grad.tolist() == [[1, 0, 0.5]]


def test_return_arguments():
    r = torch.ones(1, 3)
    for gamma in (-0.1, 1.1, NAN):
        with pytest.raises(ValueError, match="gamma"):
            discounted_returns(r, gamma)
    for lost in (1.0, -INF, INF):
        with pytest.raises(ValueError, match="rewards must be 0 where mask is 0"):
            discounted_returns(torch.tensor([[1.0, lost, 1.0]]), 1.0, torch.tensor([[1, 0, 1]]))
    with pytest.raises(ValueError, match="rewards must be finite"):
        discounted_returns(r * NAN, 1.0)
    with pytest.raises(ValueError, match="mask"):
        discounted_returns(r, 1.0, torch.tensor([[1, 2, 3]]))
    with pytest.raises(ValueError, match="rewards must be"):
        discounted_returns(torch.zeros(2, 0), 1.0)


# --------------------------------------------------------------------------------------------------- value at the next action
@given(st.integers(0, 10_000), st.integers(1, 7))
@settings(deadline=None, max_examples=20)
def test_next_action_values_against_a_loop(seed, time):
    mask, values = coins(seed, 3, time), normal(seed, 3, time)
    expected = torch.zeros(3, time).double()
    for b, t in itertools.product(range(3), range(time)):
        later = [u for u in range(t + 1, time) if mask[b, u]]
        if mask[b, t] and later:
            expected[b, t] = values[b, later[0]]
    assert torch.equal(next_action_values(values.masked_fill(~mask, NAN), mask), expected)


def test_next_action_values_under_a_full_mask():
    v = normal(0, 2, 4)
    assert torch.equal(next_action_values(v, torch.ones(2, 4)), torch.cat([v[:, 1:], torch.zeros(2, 1).double()], 1))
    with pytest.raises(ValueError, match="values"):
        next_action_values(v * NAN, torch.ones(2, 4))


# -------------------------------------------------------------------------------------------------------------------- GAE
def slow_gae(rewards, values, terminated, truncated, final_value, mask, gamma, lam):
    """The sums as they are written in the paper: for each action, all TD residuals up to the end of its episode."""
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for b in range(len(rewards)):
        actions = [t for t in range(rewards.shape[1]) if mask[b, t]]

        def delta(i):
            t = actions[i]
            if terminated[b, t]:
                future = 0.0
            elif truncated[b, t]:
                future = final_value[b, t]
            else:
                future = values[b, actions[i + 1]] if i + 1 < len(actions) else 0.0
            return rewards[b, t] + gamma * future - values[b, t]

        for i, t in enumerate(actions):
            total = 0.0
            for k in range(i, len(actions)):
                total = total + (gamma * lam) ** (k - i) * delta(k)
                if terminated[b, actions[k]] or truncated[b, actions[k]]:
                    break
            advantages[b, t], returns[b, t] = total, total + values[b, t]
    return advantages, returns


def episodes(seed, batch=4, time=7):
    """Rows with several episodes, gaps of observations, both kinds of end, sometimes on one step."""
    mask = coins(seed, batch, time, p=0.7)
    terminated, truncated = coins(seed + 1, batch, time, p=0.3), coins(seed + 2, batch, time, p=0.3)
    rewards = torch.where(mask, normal(seed + 3, batch, time), 0.0)
    return rewards, normal(seed + 4, batch, time), terminated, truncated, normal(seed + 5, batch, time), mask


@given(st.integers(0, 100_000), st.sampled_from([0, 0.5, 0.95, 1]), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_gae_against_the_double_sum(seed, gamma, lam, time):
    args = episodes(seed, time=time)
    got, expected = generalized_advantage_estimation(*args, gamma, lam), slow_gae(*args, gamma, lam)
    close(got[0], expected[0])
    close(got[1], expected[1])
    assert (got[0][~args[-1]] == 0).all() and (got[1][~args[-1]] == 0).all()


@given(st.integers(0, 100_000))
@settings(deadline=None, max_examples=30)
def test_what_is_not_read_may_hold_anything(seed):
    rewards, values, terminated, truncated, final_value, mask = episodes(seed)
    clean = generalized_advantage_estimation(rewards, values, terminated, truncated, final_value, mask, 0.9, 0.8)
    read = mask & truncated & ~terminated
    dirty = [
        rewards.masked_fill(~mask, NAN).requires_grad_(True),
        values.masked_fill(~mask, INF).requires_grad_(True),
        final_value.masked_fill(~read, NAN).requires_grad_(True),
    ]
    flags = (torch.where(mask, x, coins(seed + 9, *mask.shape)) for x in (terminated, truncated))
    got = generalized_advantage_estimation(dirty[0], dirty[1], *flags, dirty[2], mask.int(), 0.9, 0.8)
    assert torch.equal(got[0], clean[0]) and torch.equal(got[1], clean[1])
    (normal(seed + 7, *mask.shape) * got[0]).sum().backward()
    for x, used in zip(dirty, (mask, mask, read)):
        assert (x.grad[~used] == 0).all() and torch.isfinite(x.grad).all()


@given(st.integers(0, 100_000))
@settings(deadline=None, max_examples=30)
def test_observation_tokens_change_nothing(seed):
    """The same actions, dense in one row and spread over a longer row."""
    time, wide = 5, 12
    args = episodes(seed, batch=3, time=time)[:5]
    args = (normal(seed + 8, 3, time), *args[1:])
    dense = generalized_advantage_estimation(*args, torch.ones(3, time), 0.9, 0.7)
    places = torch.stack(
        [torch.randperm(wide, generator=torch.Generator().manual_seed(seed + b))[:time].sort().values for b in range(3)]
    )
    spread = [torch.zeros(3, wide, dtype=x.dtype).scatter(1, places, x) for x in (*args, torch.ones(3, time).bool())]
    got = generalized_advantage_estimation(*spread, 0.9, 0.7)
    close(got[0].gather(1, places), dense[0])
    close(got[1].gather(1, places), dense[1])


def ended(shape, kind):
    flags = torch.zeros(shape).bool()
    flags[:, -1] = kind
    return flags


@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.99, 1.0]))
@settings(deadline=None, max_examples=20)
def test_the_two_ends_of_lambda(seed, gamma):
    rewards, values = normal(seed, 2, 5), normal(seed + 1, 2, 5)
    no, yes, mask, final = ended((2, 5), False), ended((2, 5), True), torch.ones(2, 5), normal(seed + 2, 2, 5)
    monte_carlo, _ = generalized_advantage_estimation(rewards, values, yes, no, final, mask, gamma, 1)
    close(monte_carlo, discounted_returns(rewards, gamma) - values)
    residual, _ = generalized_advantage_estimation(rewards, values, yes, no, final, mask, gamma, 0)
    close(residual, rewards + gamma * next_action_values(values, mask) - values)
    bootstrapped, _ = generalized_advantage_estimation(rewards, values, no, yes, final, mask, gamma, 1)
    with_value = rewards.clone()
    with_value[:, -1] += gamma * final[:, -1]
    close(bootstrapped, discounted_returns(with_value, gamma) - values)


def test_nothing_leaks_across_an_end():
    for end in ((1, 0), (0, 1), (1, 1)):
        rewards = torch.zeros(1, 4).double().requires_grad_(True)
        values = torch.zeros(1, 4).double().requires_grad_(True)
        flags = [f64([[0, e, 0, 0]]) for e in end]
        a, _ = generalized_advantage_estimation(rewards, values, *flags, torch.ones(1, 4).double(), torch.ones(1, 4), 1.0, 1.0)
        a[0, :2].sum().backward()
        assert rewards.grad.tolist() == [[1, 2, 0, 0]] and values.grad.tolist() == [[-1, -1, 0, 0]]


def gae(rewards, values, terminated, truncated, final, gamma, lam):
    args = [f64([x]) for x in (rewards, values, terminated, truncated, final)]
    a, r = generalized_advantage_estimation(*args, torch.ones(1, len(rewards)), gamma, lam)
    close(r, a + args[1])
    return a[0]


def test_golden_ends():
    r, v, no, last = [1, 1], [0.5, 0.6], [0, 0], [0, 1]
    close(gae(r, v, last, no, [0, 0.7], 0.9, 0.95), f64([1.382, 0.4]))
    close(gae(r, v, no, last, [0, 0.7], 0.9, 0.95), f64([1.92065, 1.03]))
    close(gae(r, v, last, last, [0, 0.7], 0.9, 0.95), f64([1.382, 0.4]))
    r, v, final = [1] * 4, [0.5, 0.6, 0.2, 0.3], [7, 0.9, 7, 0.4]
    close(gae(r, v, [0] * 4, [0, 1, 0, 1], final, 0.9, 0.95), f64([2.07455, 1.21, 1.9763, 1.06]))
    close(gae(r, v, [0, 1, 0, 0], [0, 0, 0, 1], final, 0.9, 0.95), f64([1.382, 0.4, 1.9763, 1.06]))


@pytest.mark.parametrize(
    "lam, expected",
    [
        (1.0, [[-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3, 2, 1, 0, -4.9]]),
        (0.7, [[-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1, 0, -4.9]]),
        (0.4, [[0.56731, -6.042, 2.3431, 0.815, -0.49], [1.725, 1.46, 1, 0, -4.9]]),
    ],
)
def test_golden_vectors_of_rlax(lam, expected):
    """rlax/_src/multistep_test.py. Its second row has discount 0 at step 3, a true end, and .9 elsewhere."""
    first = gae([0, 0, 1, 0, -0.5], [1, 4, -3, -2, -1], [0] * 5, [0, 0, 0, 0, 1], [0, 0, 0, 0, -1], 0.99, lam)
    second = gae([0, 0, 0, 0, 1], [-3, -2, -1, 0, 5], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, -1], 0.9, lam)
    close(first, f64(expected[0]), rtol=1e-3, atol=1e-3)  # the printed 0.815 is cut
    close(second, f64(expected[1]), rtol=1e-3, atol=1e-5)


def test_golden_returns_of_gae():
    v, end = [0.5, 1, 1.5], [0, 0, 1]
    for gamma, lam, returns in ((1, 1, [6, 5, 3]), (0.5, 1, [2.75, 3.5, 3]), (1, 0.5, [3.625, 4.25, 3])):
        close(gae([1, 2, 3], v, end, [0, 0, 0], [0, 0, 0], gamma, lam) + f64(v), f64(returns))


def test_a_row_that_stops_without_a_flag_ends_there():
    args = normal(0, 2, 3), normal(1, 2, 3)
    no, final, mask = torch.zeros(2, 3), normal(2, 2, 3), torch.tensor([[1, 1, 1], [1, 1, 0]])
    rewards = torch.where(mask == 1, args[0], 0.0)
    stops = torch.tensor([[0, 0, 1], [0, 1, 0]])
    silent = generalized_advantage_estimation(rewards, args[1], no, no, final, mask)
    close(silent[0], generalized_advantage_estimation(rewards, args[1], stops, no, final, mask)[0])


def test_rows_do_not_mix_and_padding_does_nothing():
    args = episodes(5)
    whole = generalized_advantage_estimation(*args, 0.9, 0.8)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = generalized_advantage_estimation(*(x[order] for x in args), 0.9, 0.8)
    assert torch.equal(shuffled[0], whole[0][order])
    padded = [torch.nn.functional.pad(x, (2, 3)) for x in args]
    assert torch.equal(generalized_advantage_estimation(*padded, 0.9, 0.8)[0][:, 2:-3], whole[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gae_in_half_precision(dtype):
    args = [torch.tensor([x], dtype=dtype) for x in ([1.0, 1.0], [0.5, 0.25])]
    no, last = torch.zeros(1, 2), torch.tensor([[0, 1]])
    a, r = generalized_advantage_estimation(*args, last, no, args[0], torch.ones(1, 2))
    assert a.dtype == r.dtype == torch.float32
    close(a, torch.tensor([[0.75 + 0.95 * 0.75, 0.75]]), rtol=1e-6)


def test_gae_arguments():
    z, one = torch.zeros(1, 3), torch.ones(1, 3)
    good = dict(rewards=z, values=z, terminated=z, truncated=z, final_value=z, mask=one)
    bad = dict(rewards=z * NAN, values=z + INF, terminated=z + 2, truncated=z - 1, mask=one * 2)
    for name, value in bad.items():
        with pytest.raises(ValueError, match=name):
            generalized_advantage_estimation(**{**good, name: value})
    with pytest.raises(ValueError, match="final_value"):
        generalized_advantage_estimation(**{**good, "truncated": one, "final_value": z * NAN})
    with pytest.raises(ValueError, match="rewards must be 0 where mask is 0"):
        generalized_advantage_estimation(**{**good, "rewards": one, "mask": torch.tensor([[1, 1, 0]])})
    for name in ("gamma", "gae_lambda"):
        with pytest.raises(ValueError, match=name):
            generalized_advantage_estimation(**good, **{name: 1.5})
    unwrapped = inspect.unwrap(generalized_advantage_estimation)
    for name in ("values", "terminated", "truncated", "final_value", "mask"):
        with pytest.raises(REFUSED):
            generalized_advantage_estimation(**{**good, name: torch.zeros(1, 2)})
        with pytest.raises(ValueError, match=name):
            unwrapped(**{**good, name: torch.zeros(1, 2)})


# -------------------------------------------------------------------------------------------------------------- whitening
@given(st.integers(0, 10_000), st.floats(-50, 50), st.floats(0.01, 100))
@settings(deadline=None, max_examples=30)
def test_whitening_against_numpy_formulas(seed, shift, factor):
    x, mask = normal(seed, 3, 6), coins(seed, 3, 6, p=0.6)
    mask[0, :2] = True
    values = x[mask].tolist()
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
    got = whiten(x, mask)
    close(got, torch.where(mask, (x - mean) / deviation, 0.0))
    assert got[mask].mean().abs() < 1e-12 and got[mask].square().mean().item() == pytest.approx(1, rel=1e-12)
    close(whiten(got, mask), got)
    close(whiten(factor * x + shift, mask), got, rtol=1e-8, atol=1e-9)
    assert torch.equal(whiten(x.masked_fill(~mask, NAN), mask.int()), got)


@pytest.mark.parametrize("value", [0.7, 0.1, 1e30, -3e-30, 0.0])
@pytest.mark.parametrize("n", [1, 2, 8, 63])
def test_constant_input_whitens_to_nothing(value, n):
    x = torch.full((2, n), value)
    assert (whiten(x, torch.ones(2, n)) == 0).all()


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_whitening_at_the_ends_of_float32(factor):
    x = torch.tensor([[1.0, 2.0, 3.0]])
    close(whiten(x * factor, torch.ones(1, 3)), whiten(x, torch.ones(1, 3)), rtol=1e-5, atol=1e-6)


def test_whitening_with_nothing_to_whiten_and_its_gradient():
    assert whiten(torch.full((2, 2), NAN), torch.zeros(2, 2)).tolist() == [[0, 0], [0, 0]]
    x = f64([[1, 2, NAN, 4]]).requires_grad_(True)
    mask = torch.tensor([[1, 1, 0, 1]])
    grad = torch.autograd.grad((whiten(x, mask) * f64([[1, -2, 5, 3]])).sum(), x)[0]
    assert grad[0, 2] == 0 and torch.isfinite(grad).all() and grad.sum().abs() < 1e-12
    kept = f64([[1, 2, 4]]).requires_grad_(True)
    textbook = (kept - kept.mean()) / kept.var(correction=0).sqrt()
    close(grad[:, [0, 1, 3]], torch.autograd.grad((textbook * f64([[1, -2, 3]])).sum(), kept)[0])


def test_whitening_arguments():
    with pytest.raises(ValueError, match="x must be finite"):
        whiten(torch.tensor([1.0, NAN]), torch.ones(2))
    with pytest.raises(ValueError, match="mask"):
        whiten(torch.ones(2), torch.tensor([1, 3]))
    with pytest.raises(REFUSED):
        whiten(torch.ones(2), torch.ones(3))
    assert whiten(torch.tensor([1.0, 2.0]).bfloat16(), torch.ones(2)).dtype == torch.float32
