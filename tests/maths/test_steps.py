"""Outcome and process credit against loops."""

import inspect

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.credit.groups import group_relative_advantages
from course.credit.steps import outcome_advantages, process_advantages

REFUSED = (ValueError, TypeCheckError)
NAN = float("nan")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_outcome_repeats_one_number_over_the_actions():
    mask = torch.tensor([[0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0]])
    got = outcome_advantages(f64([2, -3, NAN]), mask)
    assert got.tolist() == [[0, 2, 0, 2], [-3, -3, -3, 0], [0, 0, 0, 0]]
    assert torch.equal(got, outcome_advantages(f64([2, -3, 1]), mask.bool()))


def test_golden_process_supervision():
    args = f64([[1, 0], [0, 1]]), torch.tensor([[0, 1], [0, 1]]), torch.zeros(2).long(), torch.ones(2, 2)
    assert process_advantages(*args, scale="std").tolist() == [[0, -1], [0, 1]]
    assert process_advantages(*args, scale="none").tolist() == [[0, -0.5], [0, 0.5]]


def problem(seed, batch=5, steps=3, time=6):
    g = torch.Generator().manual_seed(seed)
    ends = torch.randint(-1, time, (batch, steps), generator=g)
    ends[0, 0] = 2
    return (
        normal(seed, batch, steps),
        ends,
        torch.randint(-2, 1, (batch,), generator=g),
        torch.rand(batch, time, generator=g) < 0.7,
    )


def slow_process(step_rewards, step_ends, group_id, mask, scale):
    out = torch.zeros(mask.shape).double()
    steps = [(b, k) for b in range(len(mask)) for k in range(step_ends.shape[1]) if step_ends[b, k] >= 0]
    for b in range(len(mask)):
        own = torch.stack([step_rewards[c, k] for c, k in steps if group_id[c] == group_id[b]] or [f64(0)])
        deviation = own.std(correction=0) if scale == "std" else 1.0
        for t in range(mask.shape[1]):
            for c, k in steps:
                if mask[b, t] and c == b and step_ends[b, k] >= t and own.max() > own.min():
                    out[b, t] += (step_rewards[b, k] - own.mean()) / deviation
    return out


@given(st.integers(0, 100_000), st.sampled_from(["none", "std"]))
@settings(deadline=None, max_examples=30)
def test_process_supervision_against_a_loop(seed, scale):
    rewards, ends, group, mask = problem(seed)
    got = process_advantages(rewards, ends, group, mask, scale=scale)
    torch.testing.assert_close(got, slow_process(rewards, ends, group, mask, scale), rtol=1e-10, atol=1e-12)
    dirty = rewards.masked_fill(ends < 0, NAN)
    assert torch.equal(process_advantages(dirty, ends, group, mask.int(), scale=scale), got)
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled = process_advantages(rewards[order], ends[order], group[order], mask[order], scale=scale)
    torch.testing.assert_close(shuffled, got[order], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", ["none", "std"])
def test_one_step_per_response_is_outcome_supervision(scale):
    reward, group = f64([1, 0, 0, 3, 4]), torch.tensor([8, 8, 8, 2, 2])
    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 0]])
    last = torch.tensor([[2], [3], [3], [2], [1]])
    outcome = outcome_advantages(group_relative_advantages(reward, group, scale=scale), mask)
    process = process_advantages(reward[:, None], last, group, mask, scale=scale)
    torch.testing.assert_close(process, outcome, rtol=1e-12, atol=1e-14)


def test_actions_after_the_last_step_get_nothing():
    got = process_advantages(f64([[1.0], [0.0]]), torch.tensor([[1], [0]]), torch.zeros(2).long(), torch.ones(2, 3), scale="std")
    assert got.tolist() == [[1, 1, 0], [-1, 0, 0]]


def test_equal_step_rewards_give_exactly_nothing():
    got = process_advantages(
        torch.full((3, 4), 0.7), torch.arange(4).expand(3, 4), torch.zeros(3).long(), torch.ones(3, 4), scale="std"
    )
    assert (got == 0).all()


def test_gradients_reach_step_rewards_that_exist():
    rewards = f64([[1, NAN], [0, 2]]).requires_grad_(True)
    ends = torch.tensor([[1, -1], [0, 1]])
    process_advantages(rewards, ends, torch.zeros(2).long(), torch.ones(2, 2), scale="none")[0, 0].backward()
    torch.testing.assert_close(rewards.grad, f64([[2 / 3, 0], [-1 / 3, -1 / 3]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    rewards = torch.tensor([[1, 0], [0, 1]], dtype=dtype)
    got = process_advantages(rewards, torch.tensor([[0, 1]] * 2), torch.zeros(2).long(), torch.ones(2, 2), scale="std")
    assert got.dtype == torch.float32 and got.tolist() == [[0, -1], [0, 1]]
    assert outcome_advantages(rewards[0], torch.ones(2, 3)).dtype == torch.float32


def test_arguments():
    rewards, ends, group, mask = problem(0)
    for bad in (ends - 9, ends + 6):
        with pytest.raises(ValueError, match="step_ends must lie in 0..5"):
            process_advantages(rewards, bad, group, mask, scale="none")
    with pytest.raises(ValueError, match="step_rewards must be finite"):
        process_advantages(rewards * NAN, ends, group, mask, scale="none")
    with pytest.raises(ValueError, match="mask"):
        process_advantages(rewards, ends, group, mask.int() * 2, scale="none")
    with pytest.raises(ValueError, match="advantage must be finite"):
        outcome_advantages(f64([NAN, 1]), torch.ones(2, 3))
    with pytest.raises(REFUSED):
        process_advantages(rewards, ends, group[:2], mask, scale="none")
    unwrapped = inspect.unwrap(process_advantages)
    with pytest.raises(ValueError, match="group_id must be"):
        unwrapped(rewards, ends, group[:2], mask, scale="none")
    with pytest.raises(ValueError, match="step_rewards and step_ends must both be"):
        unwrapped(rewards, ends[:, :2], group, mask, scale="none")
    with pytest.raises(ValueError, match="advantage must be"):
        inspect.unwrap(outcome_advantages)(f64([1, 2]), torch.ones(3, 3))
    with pytest.raises(TypeError, match="scale"):
        process_advantages(rewards, ends, group, mask)
