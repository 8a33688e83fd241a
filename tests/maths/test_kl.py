"""The four KL terms: values and gradients by exact enumeration of a three-symbol law."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.objectives.kl import kl_token_estimate
from course.prob import kl_divergence, kl_estimates

REFUSED = (ValueError, TypeCheckError)
NAN, INF = float("nan"), float("inf")
NAMES = ("k1", "k2", "k3", "k3_corrected")
P = torch.tensor([0.2, -0.4, 0.9], dtype=torch.float64)
Q = torch.tensor([-0.3, 0.5, 0.1], dtype=torch.float64)


def expected(estimator, p_logits=P, q_logits=Q):
    """Value and gradient (in p's logits) of the estimator averaged over samples from p; the samples' law is held fixed."""
    z = p_logits.clone().requires_grad_(True)
    logp, logq = torch.log_softmax(z, -1)[None], torch.log_softmax(q_logits, -1)[None]
    mean = (logp.detach().exp() * kl_token_estimate(logp, logq, estimator=estimator)).sum()
    return mean.item(), torch.autograd.grad(mean, z)[0]


def gradient(f, x):
    z = x.clone().requires_grad_(True)
    return torch.autograd.grad(f(z), z)[0]


@pytest.mark.parametrize(
    "estimator, value, grad",
    [
        ("k1", 0.234677, [0, 0, 0]),
        ("k2", 0.202879, [0.012938, -0.208569, 0.195631]),
        ("k3", 0.234677, [0.068714, -0.317727, 0.249013]),
        ("k3_corrected", 0.234677, [0.012938, -0.208569, 0.195631]),
    ],
)
def test_golden_table(estimator, value, grad):
    got_value, got_grad = expected(estimator)
    assert got_value == pytest.approx(value, abs=1e-6)
    assert got_grad.tolist() == pytest.approx(grad, abs=1e-6)


def random_laws(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, 4, generator=g, dtype=torch.float64)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_values_and_gradients_on_any_law(seed):
    p, q = random_laws(seed)
    kl, to_p, from_q = (
        kl_divergence(p, q).item(),
        gradient(lambda z: kl_divergence(z, q), p),
        gradient(lambda z: kl_divergence(q, z), p),
    )
    tables = {name: expected(name, p, q) for name in NAMES}
    for name in ("k1", "k3", "k3_corrected"):
        assert tables[name][0] == pytest.approx(kl, rel=1e-9, abs=1e-12)
    for name, grad in (("k1", torch.zeros(4).double()), ("k2", to_p), ("k3", from_q), ("k3_corrected", to_p)):
        torch.testing.assert_close(tables[name][1], grad, rtol=1e-8, atol=1e-11)


def test_a_step_on_each_term_moves_as_the_table_says():
    """A descent step lowers KL(p||q) for k2 and corrected k3, KL(q||p) for k3, and k1 moves nothing."""
    for name in NAMES:
        step = P - 0.1 * expected(name)[1]
        if name == "k1":
            torch.testing.assert_close(step, P, rtol=1e-12, atol=1e-14)
        else:
            assert kl_divergence(step, Q) < kl_divergence(P, Q)
    assert kl_divergence(Q, P - 0.1 * expected("k3")[1]) < kl_divergence(Q, P)


def test_k1_in_the_reward_has_the_right_gradient():
    z = P.clone().requires_grad_(True)
    logp = torch.log_softmax(z, -1)[None]
    cost = kl_token_estimate(logp, torch.log_softmax(Q, -1)[None], estimator="k1").detach()
    got = torch.autograd.grad((logp.detach().exp() * cost * logp).sum(), z)[0]
    torch.testing.assert_close(got, gradient(lambda x: kl_divergence(x, Q), P), rtol=1e-10, atol=1e-12)


def test_goldens_of_single_tokens():
    reference = torch.zeros(1, 2).double()
    logp = torch.tensor([[1.0, -1.0]]).double()
    assert kl_token_estimate(logp, reference, estimator="k3").tolist()[0] == pytest.approx([0.367879, 0.718282], abs=1e-6)
    assert kl_token_estimate(logp, reference, estimator="k2").tolist() == [[0.5, 0.5]]
    assert kl_token_estimate(logp, reference, estimator="k1").tolist() == [[1, -1]]


def test_values_are_those_of_kl_estimates_and_all_differ():
    g = torch.Generator().manual_seed(0)
    logp, ref = (-torch.rand(2, 3, generator=g).double() for _ in range(2))
    values = {name: kl_token_estimate(logp, ref, estimator=name) for name in NAMES}
    table = kl_estimates(logp, ref)
    for name in ("k1", "k2", "k3"):
        assert torch.equal(values[name], table[name])
    assert torch.equal(values["k3_corrected"], table["k3"])
    grads = {n: gradient(lambda z, n=n: kl_token_estimate(z, ref, estimator=n).sum(), logp) for n in NAMES}
    torch.testing.assert_close(grads["k1"], torch.ones(2, 3).double())
    torch.testing.assert_close(grads["k2"], logp - ref)
    torch.testing.assert_close(grads["k3"], 1 - (ref - logp).exp())
    torch.testing.assert_close(grads["k3_corrected"], logp - ref)


def test_equal_laws_cost_nothing():
    logp = -torch.rand(2, 3, generator=torch.Generator().manual_seed(1)).double()
    for name in NAMES:
        assert (kl_token_estimate(logp, logp, estimator=name) == 0).all()
        grad = gradient(lambda z, n=name: kl_token_estimate(z, logp, estimator=n).sum(), logp)
        assert (grad == (1 if name == "k1" else 0)).all()


def test_no_gradient_into_the_reference():
    logp, ref = torch.zeros(1, 2).requires_grad_(True), torch.ones(1, 2).requires_grad_(True)
    for name in NAMES:
        out = kl_token_estimate(logp, ref, estimator=name)
        assert out.requires_grad
        out.sum().backward()
    assert ref.grad is None and logp.grad is not None


@pytest.mark.parametrize("name", NAMES)
def test_masked_tokens_may_hold_anything(name):
    logp = torch.tensor([[-1.0, NAN, -INF], [-2.0, 0.0, -1.0]]).double()
    ref = torch.tensor([[-1.5, INF, NAN], [-1.0, -2.0, -1.0]]).double()
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    got = kl_token_estimate(logp, ref, estimator=name, mask=mask)
    assert got[0, 1:].tolist() == [0, 0]
    torch.testing.assert_close(got[1:], kl_token_estimate(logp[1:], ref[1:], estimator=name))
    grad = gradient(lambda z: kl_token_estimate(z, ref, estimator=name, mask=mask).sum(), logp)
    assert torch.isfinite(grad).all() and grad[0, 1:].tolist() == [0, 0]


def test_far_from_the_reference_nothing_is_clamped():
    logp, ref = torch.tensor([[-25.0, 0.0]]).double(), torch.tensor([[0.0, -25.0]]).double()
    grad = gradient(lambda z: kl_token_estimate(z, ref, estimator="k3").sum(), logp)
    torch.testing.assert_close(grad, torch.tensor([[1 - math.exp(25), 1 - math.exp(-25)]]).double())


def test_k3_near_nothing_keeps_its_digits():
    got = kl_token_estimate(torch.tensor([[1e-4]]), torch.zeros(1, 1), estimator="k3").item()
    assert got == pytest.approx(5.0e-9, rel=0.02)


def test_arguments():
    z = torch.zeros(1, 2)
    with pytest.raises(TypeError, match="estimator"):
        kl_token_estimate(z, z)
    with pytest.raises(ValueError, match="estimator must be"):
        inspect.unwrap(kl_token_estimate)(z, z, estimator="k4")
    for bad in (z * NAN, z - INF, z + INF):
        with pytest.raises(ValueError, match="logp must be finite"):
            kl_token_estimate(bad, z, estimator="k1")
        with pytest.raises(ValueError, match="logp_reference must be finite"):
            kl_token_estimate(z, bad, estimator="k1")
    with pytest.raises(ValueError, match="mask"):
        kl_token_estimate(z, z, estimator="k1", mask=z + 3)
    with pytest.raises(REFUSED):
        kl_token_estimate(z, torch.zeros(2, 2), estimator="k1")
    with pytest.raises(ValueError, match="logp and logp_reference"):
        inspect.unwrap(kl_token_estimate)(z, torch.zeros(2, 2), estimator="k1")
    assert kl_token_estimate(z.bfloat16(), z.bfloat16(), estimator="k2").dtype == torch.float32
