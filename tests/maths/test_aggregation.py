"""The one place where token losses are averaged: goldens, loops, and any split into micro-batches."""

import inspect

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.objectives.aggregation import aggregate

REFUSED = (ValueError, TypeCheckError)
NAN = float("nan")
LOSSES = torch.tensor([[1, 2, NAN], [3, 4, 5], [7, NAN, NAN]]).double()
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]])


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def coins(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def gradient(loss, x):
    z = x.clone().requires_grad_(True)
    return torch.autograd.grad(loss(z), z)[0]


def test_golden_aggregations():
    assert aggregate(LOSSES, MASK, how="token").item() == pytest.approx(3.666667, abs=1e-6)
    assert aggregate(LOSSES, MASK, how="response").item() == pytest.approx(4.166667, abs=1e-6)
    assert aggregate(LOSSES, MASK, how="token", denominator=3).item() == pytest.approx(7.333333, abs=1e-6)
    assert aggregate(LOSSES, MASK, how="token", denominator=3 * 3).item() == pytest.approx(2.444444, abs=1e-6)
    ranks = [aggregate(LOSSES[rows], MASK[rows], how="token", denominator=6 / 2).item() for rows in (slice(0, 2), slice(2, 3))]
    assert ranks == pytest.approx([5.0, 2.333333], abs=1e-6)
    assert sum(ranks) / 2 == pytest.approx(3.666667, abs=1e-6)
    of_micro_batches = [aggregate(LOSSES[b : b + 1], MASK[b : b + 1], how="token").item() for b in range(3)]
    assert sum(of_micro_batches) / 3 != pytest.approx(3.666667, abs=0.1)


def slow(losses, mask, how):
    rows = [[x for x, m in zip(r, k) if m] for r, k in zip(losses.tolist(), mask.tolist())]
    rows = [r for r in rows if r]
    if how == "token":
        return sum(map(sum, rows)) / max(1, sum(map(len, rows)))
    return sum(sum(r) / len(r) for r in rows) / max(1, len(rows))


@given(st.integers(0, 10_000), st.sampled_from(["token", "response"]), st.integers(1, 5), st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_against_a_loop(seed, how, batch, time):
    losses, mask = normal(seed, batch, time), coins(seed, batch, time)
    got = aggregate(losses, mask, how=how)
    assert got.item() == pytest.approx(slow(losses, mask, how), rel=1e-12, abs=1e-14)
    padded = torch.nn.functional.pad(losses, (1, 2, 0, 1), value=NAN), torch.nn.functional.pad(mask, (1, 2, 0, 1))
    assert aggregate(*padded, how=how).item() == pytest.approx(got.item(), rel=1e-12)


@given(st.integers(0, 10_000), st.sampled_from(["token", "response"]), st.lists(st.integers(1, 5), max_size=3))
@settings(deadline=None, max_examples=30)
def test_micro_batches_add_up(seed, how, cuts):
    """Loss and gradient of a step do not depend on how it was cut, given the step's own count."""
    losses, mask = normal(seed, 6, 4), coins(seed, 6, 4)
    count = max(1, int(mask.sum() if how == "token" else mask.any(1).sum()))
    edges = sorted({0, 6, *cuts})
    parts = [slice(a, b) for a, b in zip(edges, edges[1:])]

    def split(z):
        return sum(aggregate(z[p], mask[p], how=how, denominator=count) for p in parts)

    def whole(z):
        return aggregate(z, mask, how=how)

    torch.testing.assert_close(split(losses), whole(losses), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(gradient(split, losses), gradient(whole, losses), rtol=1e-12, atol=1e-14)


def test_weights_of_long_and_short_responses():
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
    by_token = gradient(lambda z: aggregate(z, mask, how="token"), torch.zeros(2, 4)).sum(1)
    by_response = gradient(lambda z: aggregate(z, mask, how="response"), torch.zeros(2, 4)).sum(1)
    assert by_token.tolist() == pytest.approx([0.8, 0.2]) and by_response.tolist() == pytest.approx([0.5, 0.5])


def test_equal_lengths_make_no_difference():
    losses, mask = normal(0, 3, 5), torch.tensor([[1, 1, 0, 1, 0]] * 3)
    torch.testing.assert_close(aggregate(losses, mask, how="token"), aggregate(losses, mask, how="response"))


@pytest.mark.parametrize("how", ["token", "response"])
def test_nothing_and_fully_masked_rows(how):
    assert aggregate(LOSSES, MASK * 0, how=how).item() == 0
    assert aggregate(LOSSES, MASK * 0, how=how, denominator=7).item() == 0
    more = torch.cat([LOSSES, torch.full((1, 3), NAN).double()]), torch.cat([MASK, torch.zeros(1, 3).long()])
    assert torch.equal(aggregate(*more, how=how), aggregate(LOSSES, MASK, how=how))
    grad = gradient(lambda z: aggregate(z, MASK, how=how), LOSSES)
    assert torch.isfinite(grad).all() and (grad[MASK == 0] == 0).all()


def test_a_duplicated_batch_keeps_its_loss():
    twice = torch.cat([LOSSES, LOSSES]), torch.cat([MASK, MASK])
    for how in ("token", "response"):
        torch.testing.assert_close(aggregate(*twice, how=how), aggregate(LOSSES, MASK, how=how))
        fixed = aggregate(*twice, how=how, denominator=6), aggregate(LOSSES, MASK, how=how, denominator=6)
        torch.testing.assert_close(fixed[0], 2 * fixed[1])


def test_arguments():
    x, unwrapped = torch.ones(2, 2), inspect.unwrap(aggregate)
    with pytest.raises(TypeError, match="how"):
        aggregate(x, x)
    with pytest.raises(ValueError, match="how must be"):
        unwrapped(x, x, how="sum")
    for bad in (0, -1, float("inf"), NAN):
        with pytest.raises(ValueError, match="denominator"):
            aggregate(x, x, how="token", denominator=bad)
    with pytest.raises(ValueError, match="mask"):
        aggregate(x, x * 2, how="token")
    for how in ("token", "response"):
        with pytest.raises(ValueError, match="token_loss must be finite or -inf"):
            aggregate(x * NAN, x, how=how)
        with pytest.raises(ValueError, match="token_loss must be finite or -inf"):
            aggregate(x * NAN, x, how=how, denominator=2)
    with pytest.raises(REFUSED):
        aggregate(x, torch.ones(2, 3), how="token")
    with pytest.raises(ValueError, match="token_loss must be"):
        unwrapped(torch.ones(2), torch.ones(2), how="token")
    assert aggregate(x.bfloat16(), x, how="token").dtype == torch.float32
