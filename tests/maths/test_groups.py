"""Group credit against loops, its goldens, exact zeros, and unbiasedness by enumerating a three-armed bandit."""

import dataclasses
import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.credit.groups import group_relative_advantages, informative_groups, leave_one_out_advantages

REFUSED = (ValueError, TypeCheckError)
NAN, INF = float("nan"), float("inf")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def members(groups):
    out = {}
    for i, g in enumerate(groups):
        out.setdefault(g, []).append(i)
    return out.values()


def slow_relative(rewards, groups, scale):
    out = [0.0] * len(rewards)
    for rows in members(groups):
        r = [rewards[i] for i in rows]
        mean = sum(r) / len(r)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in r) / len(r))
        for i in rows:
            if max(r) > min(r):
                out[i] = (rewards[i] - mean) / (deviation if scale == "std" else 1)
    return f64(out)


def slow_leave_one_out(rewards, groups):
    out = [0.0] * len(rewards)
    for rows in members(groups):
        for i in rows:
            out[i] = rewards[i] - sum(rewards[j] for j in rows if j != i) / (len(rows) - 1)
    return f64(out)


rows_of_rewards = st.lists(st.tuples(st.integers(-3, 3), st.integers(-2, 2)), min_size=1, max_size=14)


@given(rows_of_rewards, st.sampled_from(["none", "std"]))
@settings(deadline=None, max_examples=40)
def test_relative_advantages_against_a_loop(rows, scale):
    rewards, groups = [r / 4 for r, _ in rows], [g for _, g in rows]
    got = group_relative_advantages(f64(rewards), torch.tensor(groups), scale=scale)
    torch.testing.assert_close(got, slow_relative(rewards, groups, scale), rtol=1e-10, atol=1e-12)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    shuffled = group_relative_advantages(f64(rewards)[order], torch.tensor(groups)[order], scale=scale)
    torch.testing.assert_close(shuffled, got[order], rtol=1e-10, atol=1e-12)


@given(rows_of_rewards)
@settings(deadline=None, max_examples=30)
def test_leave_one_out_against_a_loop(rows):
    rows = [*rows, *((r + 1, g) for r, g in rows)]
    rewards, groups = [r / 4 for r, _ in rows], [g for _, g in rows]
    got = leave_one_out_advantages(f64(rewards), torch.tensor(groups))
    torch.testing.assert_close(got, slow_leave_one_out(rewards, groups), rtol=1e-10, atol=1e-12)
    size = f64([groups.count(g) for g in groups])
    centred = group_relative_advantages(f64(rewards), torch.tensor(groups), scale="none")
    torch.testing.assert_close(got, size / (size - 1) * centred, rtol=1e-12, atol=1e-14)


def test_golden_relative_advantages():
    one = torch.zeros(3).long()
    centred = group_relative_advantages(f64([1, 0, 1]), one, scale="none")
    torch.testing.assert_close(centred, f64([1 / 3, -2 / 3, 1 / 3]))
    assert group_relative_advantages(f64([0, 1]), one[:2], scale="std").tolist() == [-1, 1]
    four = group_relative_advantages(f64([1, 0, 0, 0]), torch.zeros(4).long(), scale="std")
    torch.testing.assert_close(four, f64([1.7321, -0.5774, -0.5774, -0.5774]), rtol=0, atol=5e-5)
    assert group_relative_advantages(f64([5, 9]), one[:2], scale="std").tolist() == [-1, 1]


def test_golden_leave_one_out():
    two = leave_one_out_advantages(f64([6, 9, 3, 12]), torch.tensor([4, -7, 4, -7]))
    assert two.tolist() == [3, -3, -3, 3]
    columns = f64([[1, 2, 3], [2, 3, 4], [5, 6, 7], [8, 9, 10]])
    got = leave_one_out_advantages(columns.reshape(-1), torch.arange(3).repeat(4)).reshape(4, 3)
    expected = f64([-4, -2.6667, 1.3333, 5.3333])[:, None].expand(4, 3)
    torch.testing.assert_close(got, expected, rtol=0, atol=5e-5)


def test_each_scale_has_its_own_answer():
    rewards, group = f64([0, 1, 0, 100]), torch.tensor([0, 0, 1, 1])
    assert group_relative_advantages(rewards, group, scale="none").tolist() == [-0.5, 0.5, -50, 50]
    assert group_relative_advantages(rewards, group, scale="std").tolist() == [-1, 1, -1, 1]


@pytest.mark.parametrize("size", range(2, 65, 3))
def test_equal_rewards_get_exactly_nothing(size):
    rewards = torch.arange(11).repeat_interleave(size) / 10
    group = torch.arange(11).repeat_interleave(size)
    for x in (rewards, -1e30 * rewards, rewards.double()):
        for scale in ("none", "std"):
            assert (group_relative_advantages(x, group, scale=scale) == 0).all()
        assert (leave_one_out_advantages(x, group) == 0).all()


def test_a_group_of_one():
    assert group_relative_advantages(f64([3.0, 1, 2]), torch.tensor([0, 1, 1]), scale="std").tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match="group_id must give every group at least two"):
        leave_one_out_advantages(f64([3.0, 1, 2]), torch.tensor([0, 1, 1]))


def test_a_large_common_level_and_tiny_differences_keep_their_digits():
    group = torch.zeros(3).long()
    got = group_relative_advantages(torch.tensor([1e4, 1e4 + 1, 1e4 + 2]), group, scale="std")
    torch.testing.assert_close(got, torch.tensor([-1.0, 0, 1]) * math.sqrt(1.5), rtol=1e-6, atol=1e-6)
    tiny = group_relative_advantages(torch.tensor([1e-30, 2e-30, 3e-30]), group, scale="std")
    torch.testing.assert_close(tiny, torch.tensor([-1.0, 0, 1]) * math.sqrt(1.5), rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_the_formulas():
    group, weight = torch.tensor([0, 0, 0, 1, 1]), f64([1, -2, 3, 0.5, 2])
    x = f64([1, 2, 4, 3, 3]).requires_grad_(True)
    for scale in ("none", "std"):
        got = torch.autograd.grad((group_relative_advantages(x, group, scale=scale) * weight).sum(), x)[0]
        y = f64([1, 2, 4]).requires_grad_(True)
        textbook = (y - y.mean()) / (y.std(correction=0) if scale == "std" else 1)
        expected = torch.autograd.grad((textbook * weight[:3]).sum(), y)[0]
        torch.testing.assert_close(got[:3], expected, rtol=1e-10, atol=1e-12)
        assert torch.isfinite(got).all() and got[3:].tolist() == [0, 0]


# ------------------------------------------------------------------------------------------- expectations by enumeration
LOGITS, ARM_REWARDS = f64([0.2, -0.4, 0.9]), f64([1.0, 0.2, 0.5])


def expected_gradient(credit, samples):
    """Gradient of the mean of credit * log pi over a group of samples, averaged over all groups with their probabilities."""
    z = LOGITS.clone().requires_grad_(True)
    logp = torch.log_softmax(z, 0)
    total = 0
    for arms in itertools.product(range(3), repeat=samples):
        arms = torch.tensor(arms)
        advantage = credit(ARM_REWARDS[arms], torch.full((samples,), 5))
        total = total + logp.detach()[arms].sum().exp() * (advantage * logp[arms]).mean()
    return torch.autograd.grad(total, z)[0]


def true_gradient():
    z = LOGITS.clone().requires_grad_(True)
    return torch.autograd.grad((z.softmax(0) * ARM_REWARDS).sum(), z)[0]


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_leave_one_out_is_unbiased_and_the_group_mean_shrinks(samples):
    exact = true_gradient()
    torch.testing.assert_close(expected_gradient(leave_one_out_advantages, samples), exact, rtol=1e-10, atol=1e-13)
    centred = expected_gradient(lambda r, g: group_relative_advantages(r, g, scale="none"), samples)
    torch.testing.assert_close(centred, (samples - 1) / samples * exact, rtol=1e-10, atol=1e-13)


def test_dividing_by_the_standard_deviation_turns_the_gradient():
    scaled = expected_gradient(lambda r, g: group_relative_advantages(r, g, scale="std"), 4)
    ratio = scaled / true_gradient()
    assert (ratio > 0).all() and ratio.max() - ratio.min() > 0.005
    assert scaled.sum().abs() < 1e-12


# ---------------------------------------------------------------------------------------------------------- dynamic sampling
def test_selection_keeps_whole_groups_that_differ():
    rewards = f64([0, 1, 0, 0, 1, 1, 1, 0, 0.5, 0.5])
    group = torch.tensor([9, 9, 2, 2, -4, -4, 7, 7, 0, 0])
    report = informative_groups(rewards, group)
    assert report.keep.tolist() == [1, 1, 0, 0, 0, 0, 1, 1, 0, 0] and report.keep.dtype == torch.bool
    assert (report.kept, report.dropped, report.dropped_rewards) == (2, 3, (0.0, 0.5, 1.0))
    assert report.total_variation == pytest.approx(3 / 5)
    assert report.mean_reward == pytest.approx(0.5) and report.mean_reward_kept == pytest.approx(0.5)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=16))
@settings(deadline=None, max_examples=40)
def test_for_right_and_wrong_it_is_the_rule_of_dapo(rows):
    rewards, groups = [float(r) for r, _ in rows], [g for _, g in rows]
    report = informative_groups(f64(rewards), torch.tensor(groups))
    correct = {g: sum(r for r, h in zip(rewards, groups) if h == g) for g in groups}
    keep = [0 < correct[g] < groups.count(g) for g in groups]
    kept = {g for g, k in zip(groups, keep) if k}
    assert report.keep.tolist() == keep and report.kept == len(kept) and report.dropped == len(set(groups)) - len(kept)
    before = {g: 1 / len(set(groups)) for g in groups}
    after = {g: (g in kept) / len(kept) if kept else 0 for g in groups}
    distance = max(sum(before[g] - after[g] for g in some) for n in range(5) for some in itertools.combinations(before, n))
    assert report.total_variation == pytest.approx(distance)
    means = {g: correct[g] / groups.count(g) for g in groups}
    assert report.mean_reward == pytest.approx(sum(means.values()) / len(means))
    if kept:
        assert report.mean_reward_kept == pytest.approx(sum(means[g] for g in kept) / len(kept))
    else:
        assert report.mean_reward_kept is None
    credit = group_relative_advantages(f64(rewards), torch.tensor(groups), scale="std")
    assert ((credit != 0) == report.keep).all()


def test_rounding_does_not_keep_a_constant_group():
    report = informative_groups(torch.full((8,), 0.7), torch.zeros(8).long())
    assert (report.kept, report.dropped) == (0, 1) and report.dropped_rewards == pytest.approx((0.7,))


def test_a_selection_that_contradicts_itself():
    report = informative_groups(f64([0, 1]), torch.tensor([0, 0]))
    for change in (dict(dropped=1), dict(kept=0), dict(mean_reward_kept=None), dict(keep=~report.keep)):
        with pytest.raises(ValueError):
            dataclasses.replace(report, **change)
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.kept = 3


# -------------------------------------------------------------------------------------------------------------- arguments
@pytest.mark.parametrize(
    "credit",
    [lambda r, g: group_relative_advantages(r, g, scale="none"), leave_one_out_advantages, informative_groups],
)
def test_arguments(credit):
    for bad in (NAN, INF, -INF):
        with pytest.raises(ValueError, match="rewards must be finite"):
            credit(torch.tensor([1.0, bad]), torch.tensor([0, 0]))
    with pytest.raises(REFUSED):
        credit(torch.ones(2), torch.zeros(3).long())
    with pytest.raises(REFUSED):
        credit(torch.ones(2, 2), torch.zeros(2, 2).long())


def test_scale_and_shapes_without_the_type_checker():
    unwrapped = inspect.unwrap(group_relative_advantages)
    with pytest.raises(ValueError, match="scale must be"):
        unwrapped(torch.ones(2), torch.zeros(2).long(), scale="batch")
    with pytest.raises(TypeError, match="scale"):
        group_relative_advantages(torch.ones(2), torch.zeros(2).long())
    with pytest.raises(REFUSED, match="rewards"):
        unwrapped(torch.ones(2), torch.zeros(3).long(), scale="std")
    with pytest.raises(ValueError, match="rewards must hold at least one"):
        informative_groups(torch.ones(0), torch.zeros(0).long())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    rewards, group = torch.tensor([0.0, 1, 1, 2], dtype=dtype), torch.zeros(4).long()
    for got in (group_relative_advantages(rewards, group, scale="std"), leave_one_out_advantages(rewards, group)):
        assert got.dtype == torch.float32 and got.sum().abs() < 1e-6
