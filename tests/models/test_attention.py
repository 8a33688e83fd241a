"""Attention against a slow twin; causality and padding by value and by gradient."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from course.models.attention import causal_attention


def slow(q, k, v, mask):
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                seen = [s for s in range(t + 1) if mask[b, s]]
                if seen:
                    scores = torch.stack([q[b, h, t] @ k[b, h, s] / math.sqrt(q.shape[-1]) for s in seen])
                    out[b, h, t] = sum(w * v[b, h, s] for w, s in zip(scores.softmax(0), seen))
    return out


def inputs(seed, batch=2, heads=2, time=5, size=3):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(batch, heads, time, size, generator=generator, dtype=torch.float64) for _ in range(3))
    return q, k, v, torch.rand(batch, time, generator=generator) < 0.7


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), time=st.integers(1, 6))
def test_value_and_gradient_against_the_twin(seed, time):
    q, k, v, mask = inputs(seed, time=time)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    twins = [x.clone().requires_grad_() for x in (q, k, v)]
    got, wanted = causal_attention(*leaves, mask), slow(*twins, mask)
    assert torch.allclose(got, wanted, rtol=1e-10, atol=1e-12)
    got.square().sum().backward()
    wanted.square().sum().backward() if wanted.requires_grad else None
    for leaf, twin in zip(leaves, twins):
        expected = torch.zeros_like(twin) if twin.grad is None else twin.grad
        assert torch.allclose(leaf.grad, expected, rtol=1e-9, atol=1e-11)


def test_nan_in_padding_reaches_nothing():
    q, k, v, _ = inputs(0)
    mask = torch.tensor([[0, 1, 1, 1, 0], [1, 1, 0, 1, 1]]).bool()
    clean = causal_attention(q, k, v, mask)
    for x in (k, v):
        x[~mask[:, None].expand(2, 2, 5)] = math.nan
    leaf = q.clone().requires_grad_()
    got = causal_attention(leaf, k, v, mask)
    assert torch.equal(got, clean)
    got.sum().backward()
    assert torch.isfinite(leaf.grad).all()


def test_a_query_without_a_key_gives_exactly_zero():
    q, k, v, _ = inputs(1)
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    got = causal_attention(q, k, v, mask)
    assert (got[0, :, :2] == 0).all() and (got[1] == 0).all() and torch.isfinite(got).all()


def test_bad_input_is_named():
    from jaxtyping import TypeCheckError

    q, k, v, mask = inputs(2)
    with pytest.raises((ValueError, TypeCheckError)):
        causal_attention(q, k[:, :1], v, mask)
    with pytest.raises((ValueError, TypeCheckError), match="key_mask"):
        causal_attention(q, k, v, mask[:, :2])
    with pytest.raises(ValueError, match="key_mask must"):
        causal_attention(q, k, v, mask.long() + 1)
