"""Critic losses against loops: masks, factors, gradients, and which of two errors counts."""

import inspect

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.objectives.value import clipped_critic_loss, critic_loss

REFUSED = (ValueError, TypeCheckError)
NAN, INF = float("nan"), float("inf")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coins(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def gradient(loss, x):
    z = x.clone().requires_grad_(True)
    return torch.autograd.grad(loss(z), z)[0]


def test_the_factor_is_one_half():
    assert critic_loss(f64([[1.0]]), f64([[0.0]]), torch.ones(1, 1)).item() == 0.5


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_critic_loss_against_a_loop(seed):
    values, returns, mask = normal(seed, 3, 4), normal(seed + 1, 3, 4), coins(seed, 3, 4)
    terms = [(v - g) ** 2 for v, g, m in zip(*(x.reshape(-1).tolist() for x in (values, returns, mask))) if m]
    dirty = values.masked_fill(~mask, NAN), returns.masked_fill(~mask, INF)
    got = critic_loss(*dirty, mask)
    assert got.item() == pytest.approx(0.5 * sum(terms) / max(1, len(terms)), rel=1e-11)
    grad = gradient(lambda z: critic_loss(z, dirty[1], mask), dirty[0])
    torch.testing.assert_close(grad, torch.where(mask, (values - returns) / mask.sum(), 0.0), rtol=1e-11, atol=1e-13)
    split = [critic_loss(values[s], returns[s], mask[s], denominator=max(1, len(terms))) for s in (slice(0, 1), slice(1, 3))]
    torch.testing.assert_close(sum(split), got, rtol=1e-11, atol=1e-13)


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 2.0]))
@settings(deadline=None, max_examples=30)
def test_clipped_critic_loss_against_a_loop(seed, eps):
    values, old, returns, mask = normal(seed, 3, 4), normal(seed + 1, 3, 4), normal(seed + 2, 3, 4), coins(seed, 3, 4)
    terms = []
    for v, o, g, m in zip(*(x.reshape(-1).tolist() for x in (values, old, returns, mask))):
        if m:
            near = min(max(v, o - eps), o + eps)
            terms.append(max((v - g) ** 2, (near - g) ** 2))
    dirty = [x.masked_fill(~mask, NAN) for x in (values, old, returns)]
    got = clipped_critic_loss(*dirty, mask, clip_eps=eps)
    assert got.item() == pytest.approx(0.5 * sum(terms) / max(1, len(terms)), rel=1e-11)
    assert got >= critic_loss(values, returns, mask) - 1e-12
    grad = gradient(lambda z: clipped_critic_loss(z, *dirty[1:], mask, clip_eps=eps), dirty[0])
    assert torch.isfinite(grad).all() and (grad[~mask] == 0).all()


def test_a_value_that_moved_past_the_bound_towards_its_return_has_no_gradient():
    values, old, returns = f64([[0.5, -0.5, 0.1]]), f64([[0.0, 0.0, 0.0]]), f64([[1.0, 1.0, 1.0]])
    grad = gradient(lambda z: clipped_critic_loss(z, old, returns, torch.ones(1, 3), clip_eps=0.2), values)
    assert grad[0, 0] == 0 and grad[0, 1].item() == pytest.approx(-0.5) and grad[0, 2].item() == pytest.approx(-0.3)


def test_near_the_old_values_clipping_changes_nothing():
    values, returns, mask = normal(0, 2, 3), normal(1, 2, 3), torch.tensor([[1, 1, 0], [1, 0, 1]])
    old = values + 0.09
    clipped = clipped_critic_loss(values, old, returns, mask, clip_eps=0.1)
    torch.testing.assert_close(clipped, critic_loss(values, returns, mask), rtol=1e-12, atol=0)


def test_targets_are_constants_and_an_empty_mask_costs_nothing():
    values, old, returns = (normal(i, 2, 3).requires_grad_(True) for i in range(3))
    (
        critic_loss(values, returns, torch.ones(2, 3)) + clipped_critic_loss(values, old, returns, torch.ones(2, 3), clip_eps=1)
    ).backward()
    assert returns.grad is None and old.grad is None and values.grad is not None
    assert critic_loss(values * NAN, returns, torch.zeros(2, 3)).item() == 0
    assert clipped_critic_loss(values, old, returns, torch.zeros(2, 3), clip_eps=1).item() == 0


def test_arguments():
    z, m = torch.zeros(1, 2), torch.ones(1, 2)
    for i, name in enumerate(("values", "old_values", "returns")):
        args = [z, z, z]
        args[i] = z * NAN
        with pytest.raises(ValueError, match=f"{name} must be finite"):
            clipped_critic_loss(*args, m, clip_eps=0.2)
    with pytest.raises(ValueError, match="values must be finite"):
        critic_loss(z + INF, z, m)
    with pytest.raises(ValueError, match="returns must be finite"):
        critic_loss(z, z - INF, m)
    with pytest.raises(ValueError, match="mask"):
        critic_loss(z, z, m * 2)
    for bad in (0, -1, NAN):
        with pytest.raises(ValueError, match="clip_eps"):
            clipped_critic_loss(z, z, z, m, clip_eps=bad)
    with pytest.raises(REFUSED):
        critic_loss(z, torch.zeros(2, 1), m)
    with pytest.raises(ValueError, match="returns must have the mask's shape"):
        inspect.unwrap(critic_loss)(z, torch.zeros(2, 1), m)
    assert critic_loss(z.bfloat16(), (z + 1).bfloat16(), m).dtype == torch.float32
