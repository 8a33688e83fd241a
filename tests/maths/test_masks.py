"""Masked reductions: value, gradient, and what must not leak."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.masks import boolean_mask, checked, masked_mean, masked_sum, matched

# With the import hook on, a wrong shape is refused by the annotation; without it by the function's own check.
REFUSED = (ValueError, TypeCheckError)


def slow_masked_mean(x, mask):
    kept = [a for a, m in zip(x.flatten().tolist(), mask.flatten().tolist()) if m]
    return sum(kept) / len(kept) if kept else 0.0


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 10_000))
@settings(deadline=None, max_examples=30)
def test_value_and_gradient_against_a_loop(rows, columns, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=g, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(rows, columns, generator=g) < 0.6
    value = masked_mean(x, mask)
    assert math.isclose(value.item(), slow_masked_mean(x, mask), rel_tol=1e-12, abs_tol=1e-15)
    (gradient,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(gradient, mask.double() / max(1, int(mask.sum())), rtol=1e-12, atol=0)
    by_row = masked_mean(x, mask, dim=1)
    for b in range(rows):
        assert math.isclose(by_row[b].item(), slow_masked_mean(x[b], mask[b]), rel_tol=1e-12, abs_tol=1e-15)


def test_full_mask_is_the_plain_mean_and_sum():
    x = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    full = torch.ones_like(x, dtype=torch.long)
    for dim in (None, 0, 2, -1, (0, 2)):
        mean, total = (x.mean(), x.sum()) if dim is None else (x.mean(dim), x.sum(dim))
        torch.testing.assert_close(masked_mean(x, full, dim), mean, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(masked_sum(x, full, dim), total, rtol=1e-12, atol=1e-14)


def test_empty_mask_is_zero_and_differentiable():
    x = torch.full((2, 3), float("nan"), requires_grad=True)
    value = masked_mean(x, torch.zeros(2, 3))
    value.backward()
    assert value.item() == 0 and torch.equal(x.grad, torch.zeros(2, 3))
    assert torch.equal(masked_mean(x, torch.zeros(2, 3), dim=1), torch.zeros(2))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf"), 1e38])
@pytest.mark.parametrize("kind", [torch.bool, torch.long, torch.float32])
def test_masked_positions_reach_neither_value_nor_gradient(poison, kind):
    x = torch.tensor([[1.0, poison, 3.0], [poison, poison, 8.0]], requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [0, 0, 1]]).to(kind)
    value = masked_mean(x, mask)
    value.backward()
    assert value.item() == 4.0
    torch.testing.assert_close(x.grad, mask.float() / 3, rtol=1e-6, atol=0)
    assert masked_sum(x, mask, dim=1).tolist() == [4.0, 8.0]


def test_the_row_of_an_open_instruct_bug_report():
    logp = torch.tensor([[-1.0, -2.0, -3.0], [float("nan")] * 3])
    assert masked_mean(logp, torch.tensor([[1, 1, 1], [0, 0, 0]]), dim=1).tolist() == [-2.0, 0.0]


def test_global_mean_is_not_the_mean_of_row_means():
    x, mask = torch.tensor([[1.0, 2, 0], [3, 4, 5], [7, 0, 0]]), torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]])
    assert masked_mean(x, mask).item() == pytest.approx(3.666667, rel=1e-6)
    assert masked_mean(x, mask, dim=1).tolist() == [1.5, 4.0, 7.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    x = torch.full((70_000,), 1.0, dtype=dtype)
    total = masked_sum(x, torch.ones(70_000))
    assert total.dtype == torch.float32 and total.item() == 70_000
    assert masked_mean(x, torch.ones(70_000)).item() == 1.0


def test_minus_infinity_counts_but_nan_and_infinity_are_refused():
    assert masked_mean(torch.tensor([0.0, float("-inf")]), torch.tensor([1, 1])).item() == float("-inf")
    for bad in ("nan", "inf"):
        with pytest.raises(ValueError, match="x must be finite or -inf"):
            masked_mean(torch.tensor([0.0, float(bad)]), torch.tensor([0, 1]))


def test_bad_masks_are_refused():
    for mask in (torch.tensor([0.5, 1.0]), torch.tensor([2, 0]), torch.tensor([float("nan"), 1.0]), torch.tensor([-100, 1])):
        with pytest.raises(ValueError, match="mask"):
            masked_mean(torch.zeros(2), mask)
    with pytest.raises(REFUSED):
        masked_mean(torch.zeros(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"mask must have shape \(2,\); got \(3,\)"):
        inspect.unwrap(masked_sum)(torch.zeros(2), torch.ones(3))


def test_argument_checks():
    assert boolean_mask(torch.tensor([1.0, 0.0]), (2,)).tolist() == [True, False]
    with pytest.raises(ValueError, match="flag must have shape"):
        boolean_mask(torch.ones(2), (3,), "flag")
    assert checked(torch.ones(2, dtype=torch.float64), "x").dtype == torch.float64
    with pytest.raises(ValueError, match="x must be a floating-point tensor"):
        checked(torch.tensor([1, 2]), "x")
    with pytest.raises(ValueError, match="b must be finite"):
        matched(a=torch.zeros(2), b=torch.tensor([0.0, float("-inf")]))
    with pytest.raises(ValueError, match="a, b must have one shape"):
        matched(a=torch.zeros(2), b=torch.zeros(2, 1))
    with pytest.raises(ValueError, match="at least one element"):
        matched(a=torch.zeros(0))
