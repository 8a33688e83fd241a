"""Two levels of control: semi-Markov returns against sums over primitive steps."""

import itertools

import pytest
import torch
from hypothesis import given, settings, strategies as st

from course.credit.hierarchy import option_rewards, semi_markov_advantages, semi_markov_returns, two_level_returns
from course.credit.returns import discounted_returns, generalized_advantage_estimation
from course.credit.turns import turn_advantages

NAN = float("nan")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def table(lengths, gaps):
    """Numbers of the choices over tokens: `gap` tokens of nobody, then the choice's own."""
    return torch.tensor([k for n, (length, gap) in enumerate(zip(lengths, gaps)) for k in [-1] * gap + [n] * length])


lengths_and_gaps = st.integers(1, 4).flatmap(
    lambda n: st.tuples(st.lists(st.integers(1, 3), min_size=n, max_size=n), st.lists(st.integers(0, 2), min_size=n, max_size=n))
)


def test_golden_discount_over_the_length():
    """gamma 1/2, lengths 1, 2, 3: the second choice is one step away, the third three; a discount by choices would give 1 + 2 + 4."""
    returns = semi_markov_returns(f64([[1, 4, 16]]), f64([[1, 2, 3]]), torch.ones(1, 3), gamma=0.5)
    assert returns.tolist() == [[1 + 4 / 2 + 16 / 8, 4 + 16 / 4, 16]]


@given(lengths_and_gaps, st.integers(0, 1000), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
@settings(deadline=None, max_examples=30)
def test_a_choices_return_is_the_primitive_return_at_its_first_step(layout, seed, gamma):
    turn = table(*layout)[None]
    primitive = normal(seed, *turn.shape)
    dirty = torch.where(turn >= 0, primitive, NAN)
    rewards, lengths = option_rewards(dirty, turn, 5, gamma=gamma)
    mask = lengths > 0
    assert lengths[0].tolist() == [*layout[0], *[0] * (5 - len(layout[0]))]
    got = semi_markov_returns(rewards.masked_fill(~mask, NAN), lengths.masked_fill(~mask, NAN), mask, gamma=gamma)
    flat = torch.where(turn >= 0, primitive, 0.0)
    whole = discounted_returns(flat, gamma, turn >= 0)
    for k in range(len(layout[0])):
        first = int((turn[0] == k).nonzero()[0])
        assert float(got[0, k]) == pytest.approx(float(whole[0, first]))
    assert not got[~mask].any()


def every_episode(depth):
    """All paths of a small tree: at each of `depth` choices one of two, of other length, reward and probability."""
    kinds = ((0.3, 1, 2.0), (0.7, 3, -1.0))
    return itertools.product(kinds, repeat=depth)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 1.0])
def test_estimates_are_right_on_average_over_an_enumerated_tree(gae_lambda):
    """With the true values of a policy the mean advantage of its own choices is 0, whatever lambda: each delta's mean is 0."""
    gamma, depth = 0.8, 3
    value = [0.0]
    for _ in range(depth):  # by backward induction: V = E[r + gamma^n V']
        value.insert(0, sum(p * (r + gamma**n * value[0]) for p, n, r in ((0.3, 1, 2.0), (0.7, 3, -1.0))))
    mean, plain = torch.zeros(depth).double(), 0.0
    for path in every_episode(depth):
        chance = torch.tensor([p for p, _, _ in path]).double().prod()
        rewards, lengths = f64([[r for _, _, r in path]]), f64([[n for _, n, _ in path]])
        args = lengths, torch.ones(1, depth)
        advantages, targets = semi_markov_advantages(rewards, f64([value[:-1]]), *args, gamma=gamma, gae_lambda=gae_lambda)
        mean += chance * advantages[0]
        plain += float(chance * semi_markov_returns(rewards, *args, gamma=gamma)[0, 0])
        torch.testing.assert_close(targets, advantages + f64([value[:-1]]))
    assert mean.abs().max() < 1e-6 and plain == pytest.approx(value[0])


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.7, 1.0]), st.sampled_from([0.0, 0.5, 1.0]))
@settings(deadline=None, max_examples=30)
def test_unit_lengths_are_the_ordinary_estimates(seed, gamma, gae_lambda):
    rewards, values = normal(seed, 2, 3, 5)
    mask = torch.rand(3, 5, generator=torch.Generator().manual_seed(seed)) < 0.7
    ends = torch.zeros(3, 5)
    rewards = torch.where(mask, rewards, 0.0)
    expected = generalized_advantage_estimation(rewards, values, ends, ends, ends.double(), mask, gamma, gae_lambda)
    got = semi_markov_advantages(rewards, values, torch.ones(3, 5), mask, gamma=gamma, gae_lambda=gae_lambda)
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(
        semi_markov_returns(rewards, torch.ones(3, 5), mask, gamma=gamma), discounted_returns(rewards, gamma, mask)
    )


def slow_two_levels(high, low, turn, chooses, gamma):
    out = [0.0] * len(turn)
    sizes = [sum(1 for x in turn if x == k) for k in range(len(high))]
    for t, k in enumerate(turn):
        if k < 0:
            continue
        if chooses[t]:
            elapsed, total = 0, 0.0
            for j in range(k, len(high)):
                total += gamma**elapsed * high[j] if sizes[j] else 0.0
                elapsed += sizes[j]
            out[t] = total
        else:
            own = [low[i] for i in range(t, len(turn)) if turn[i] == k]
            out[t] = sum(gamma**i * r for i, r in enumerate(own))
    return out


@given(lengths_and_gaps, st.integers(0, 1000), st.sampled_from([0.0, 0.5, 1.0]))
@settings(deadline=None, max_examples=30)
def test_two_levels_against_a_loop(layout, seed, gamma):
    turn = table(*layout)
    high, low = normal(seed, len(layout[0])), normal(seed + 1, len(turn))
    chooses = torch.tensor([t == 0 or turn[t] != turn[t - 1] for t in range(len(turn))])
    dirty = torch.where(turn >= 0, low, NAN)
    got = two_level_returns(high[None], dirty[None], turn[None], chooses[None], gamma=gamma)
    expected = slow_two_levels(high.tolist(), low.tolist(), turn.tolist(), (chooses & (turn >= 0)).tolist(), gamma)
    torch.testing.assert_close(got[0], f64(expected))


def test_each_level_has_its_own_rewards():
    turn = torch.tensor([[-1, 0, 0, 0, -1, 1, 1]])
    chooses = torch.tensor([[0, 1, 0, 0, 0, 1, 0]])
    high, low = f64([[0, 8]]), f64([[0, 0, 1, 0, 0, 0, 2]])
    got = two_level_returns(high, low, turn, chooses, gamma=0.5)
    assert got.tolist() == [[0, 1, 1, 0, 0, 8, 2]]  # 8 / 2^3 at the first choice; 1 and 2 stay within their calls
    high_only = two_level_returns(high, torch.zeros_like(low), turn, chooses, gamma=0.5)
    assert high_only.tolist() == [[0, 1, 0, 0, 0, 8, 0]]
    all_choose = two_level_returns(high, low, turn, turn >= 0, gamma=1)
    assert torch.equal(all_choose, turn_advantages(high, turn, gamma=1))


def test_errors_name_the_argument():
    one, mask = torch.ones(1, 2), torch.ones(1, 2)
    for arguments, keys, match in (
        ((one, one, torch.tensor([[1.0, 0.0]]), mask), {}, "lengths"),
        ((one, torch.tensor([[1.0, NAN]]), one, mask), {}, "values"),
        ((torch.tensor([[NAN, 1.0]]), one, one, mask), {}, "rewards"),
        ((one, one, one, mask), {"gamma": 1.5}, "gamma"),
        ((one, one, one, mask), {"gae_lambda": -0.1}, "gae_lambda"),
        ((one, one, one, 2 * mask), {}, "mask"),
    ):
        with pytest.raises(ValueError, match=match):
            semi_markov_advantages(*arguments, **{"gamma": 0.9, **keys})
    with pytest.raises(ValueError, match="gamma"):
        option_rewards(one, torch.zeros(1, 2).long(), 1, gamma=2)
