"""Laws over a vocabulary against loops in float64 and exact enumeration."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.prob import entropy, kl_divergence, kl_estimates, log_softmax, token_logprobs

REFUSED = (ValueError, TypeCheckError)
INF = float("inf")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def slow_log_softmax(row):
    """By the textbook, with Python's own floats and exact summation."""
    z = row.tolist()
    top = max(z)
    norm = math.log(math.fsum(math.exp(v - top) for v in z))
    return [v - top - norm for v in z]


def slow_entropy(row):
    return -math.fsum(math.exp(lp) * lp for lp in slow_log_softmax(row) if lp > -INF)


def slow_kl(p, q):
    total = []
    for a, b in zip(slow_log_softmax(p), slow_log_softmax(q)):
        if a > -INF:
            if b == -INF:
                return INF
            total.append(math.exp(a) * (a - b))
    return math.fsum(total)


def random_logits(seed, *shape, forbid=0.0, scale=3.0):
    g = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(*shape, generator=g, dtype=torch.float64)
    z[torch.rand(shape, generator=g) < forbid] = -INF
    z[..., 0] = torch.randn(shape[:-1], generator=g, dtype=torch.float64)
    return z


# ----------------------------------------------------------------------------------------------------------- log_softmax
@given(st.integers(0, 10_000), st.integers(1, 9), st.sampled_from([0.0, 0.4]))
@settings(deadline=None, max_examples=40)
def test_log_softmax_against_a_loop(seed, vocab, forbid):
    z = random_logits(seed, 3, vocab, forbid=forbid)
    expected = f64([slow_log_softmax(row) for row in z])
    torch.testing.assert_close(log_softmax(z), expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(log_softmax(z).exp().sum(-1), torch.ones(3, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(log_softmax(z + 17.25), log_softmax(z), rtol=1e-12, atol=1e-12)


def test_log_softmax_is_stable_at_the_ends():
    z = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4 - 1, -INF]], requires_grad=True)
    out = log_softmax(z)
    assert out[0].tolist() == [0.0, -2e4, -1e4]
    assert out[1, 0].item() == pytest.approx(-math.log1p(math.exp(-1)), rel=1e-6) and out[1, 2].item() == -INF
    out[out > -INF].sum().backward()
    assert torch.isfinite(z.grad).all()


def test_log_softmax_gradient_is_one_hot_minus_probabilities():
    z = random_logits(3, 5).requires_grad_(True)
    (gradient,) = torch.autograd.grad(log_softmax(z)[2], z)
    expected = torch.eye(5, dtype=torch.float64)[2] - f64([math.exp(v) for v in slow_log_softmax(z)])
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_reduced_in_float32(dtype):
    z = (4 * torch.randn(8, 4000, generator=torch.Generator().manual_seed(1))).to(dtype)
    out = log_softmax(z)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), torch.log_softmax(z.double(), -1), rtol=0, atol=2e-5)
    assert entropy(z).dtype == torch.float32 and kl_divergence(z, z.flip(-1)).dtype == torch.float32
    tokens = torch.zeros(1, 8, dtype=torch.long)
    assert token_logprobs(z[None], tokens).dtype == torch.float32


def test_log_softmax_refuses_what_is_no_law():
    not_a_law = (([0.0, float("nan")], "logits must be"), ([0.0, INF], "logits must be"), ([-INF, -INF], "every entry is -inf"))
    for bad, words in not_a_law:
        with pytest.raises(ValueError, match=words):
            log_softmax(torch.tensor([[0.0, 0.0], bad]))
    with pytest.raises(ValueError, match="V >= 1"):
        log_softmax(torch.zeros(2, 0))
    with pytest.raises(REFUSED):
        log_softmax(torch.tensor([1, 2]))


# -------------------------------------------------------------------------------------------------------- token_logprobs
def test_one_prompt_token_and_one_answer_token():
    z = random_logits(0, 1, 2, 4).requires_grad_(True)
    tokens = torch.tensor([[3, 1]])
    (value,) = token_logprobs(z, tokens)[0]
    assert value.item() == pytest.approx(slow_log_softmax(z[0, 0])[1], rel=1e-12)
    value.backward()
    assert z.grad[0, 0].abs().sum() > 0 and torch.equal(z.grad[0, 1], torch.zeros(4, dtype=torch.float64))


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 5), st.integers(1, 6))
@settings(deadline=None, max_examples=30)
def test_token_logprobs_against_a_loop(seed, batch, time, vocab):
    z = random_logits(seed, batch, time, vocab, forbid=0.2)
    tokens = torch.randint(vocab, (batch, time), generator=torch.Generator().manual_seed(seed))
    out = token_logprobs(z, tokens)
    assert out.shape == (batch, time - 1)
    for b, t in itertools.product(range(batch), range(time - 1)):
        expected = slow_log_softmax(z[b, t])[tokens[b, t + 1]]
        assert out[b, t].item() == expected or math.isclose(out[b, t].item(), expected, rel_tol=1e-11)


def table_law(tokens, vocab=3):
    """A small Markov law: the logits at a position depend on the tokens up to it."""
    table = random_logits(7, 5, vocab)
    state = torch.cumsum(tokens + 1, dim=1) % 5
    return table[state]


def test_probabilities_of_all_responses_sum_to_one():
    responses = torch.tensor([(0, *rest) for rest in itertools.product(range(3), repeat=4)])
    total = token_logprobs(table_law(responses), responses).sum(1).exp().sum()
    assert total.item() == pytest.approx(1, rel=1e-12)


def test_with_an_end_token_finished_and_unfinished_responses_sum_to_one():
    end, limit, total = 2, 4, 0.0
    for length in range(1, limit + 1):
        for body in itertools.product(range(3), repeat=length):
            finished = body[-1] == end and end not in body[:-1]
            unfinished = length == limit and end not in body
            if finished or unfinished:
                row = torch.tensor([(0, *body)])
                total += token_logprobs(table_law(row), row).sum().exp().item()
    assert total == pytest.approx(1, rel=1e-12)


def test_what_scores_nothing_is_not_looked_at():
    z = torch.zeros(1, 3, 4)
    z[0, -1] = float("nan")
    assert token_logprobs(z, torch.tensor([[-100, 1, 2]])).tolist() == [[pytest.approx(-math.log(4))] * 2]


def test_token_logprobs_refuses_unknown_ids_and_shapes():
    z = torch.zeros(1, 3, 4)
    for bad in (-1, 4, -100):
        with pytest.raises(ValueError, match=r"tokens must be ids in 0\.\.3"):
            token_logprobs(z, torch.tensor([[0, 1, bad]]))
    with pytest.raises(ValueError, match="logits"):
        token_logprobs(z.index_fill(1, torch.tensor([0]), float("nan")), torch.tensor([[0, 1, 2]]))
    for tokens in (torch.zeros(1, 2).long(), torch.zeros(2, 3).long()):
        with pytest.raises(REFUSED):
            token_logprobs(z, tokens)
        with pytest.raises(ValueError, match=r"logits must be \[B,T,V\]"):
            inspect.unwrap(token_logprobs)(z, tokens)


# --------------------------------------------------------------------------------------------------------------- entropy
@given(st.integers(0, 10_000), st.integers(1, 8), st.sampled_from([0.0, 0.5]))
@settings(deadline=None, max_examples=30)
def test_entropy_against_a_loop_in_value_and_gradient(seed, vocab, forbid):
    z = random_logits(seed, vocab, forbid=forbid).requires_grad_(True)
    value = entropy(z)
    assert math.isclose(value.item(), slow_entropy(z), rel_tol=1e-11, abs_tol=1e-14)
    (gradient,) = torch.autograd.grad(value, z)
    # dH/dz_v = -p_v (log p_v + H)
    expected = [0.0 if lp == -INF else -math.exp(lp) * (lp + slow_entropy(z)) for lp in slow_log_softmax(z)]
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-13)


def test_entropy_of_uniform_and_one_hot():
    assert entropy(torch.zeros(7, dtype=torch.float64)).item() == pytest.approx(math.log(7), rel=1e-14)
    z = torch.tensor([[0.0, -INF, -INF], [1e4, -1e4, 0.0]], requires_grad=True)
    value = entropy(z)
    value.sum().backward()
    assert value.tolist() == [0.0, 0.0] and torch.equal(z.grad, torch.zeros(2, 3))


def test_entropy_ignores_a_forbidden_token():
    z = f64([0.3, -1.2, 0.5])
    torch.testing.assert_close(entropy(torch.cat([z, torch.tensor([-INF])])), entropy(z), rtol=1e-14, atol=0)


# --------------------------------------------------------------------------------------------------------- kl_divergence
@given(st.integers(0, 10_000), st.integers(1, 7), st.sampled_from([0.0, 0.3]))
@settings(deadline=None, max_examples=40)
def test_kl_against_a_loop(seed, vocab, forbid):
    p, q = random_logits(seed, 4, vocab, forbid=forbid), random_logits(seed + 1, 4, vocab, forbid=forbid / 2)
    out = kl_divergence(p, q)
    for b in range(4):
        expected = slow_kl(p[b], q[b])
        assert out[b].item() == expected or math.isclose(out[b].item(), expected, rel_tol=1e-10, abs_tol=1e-14)
    assert (out >= 0).all() and torch.equal(kl_divergence(p, p), torch.zeros(4, dtype=torch.float64))


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=20)
def test_kl_gradient_in_both_arguments(seed):
    p, q = random_logits(seed, 5).requires_grad_(True), random_logits(seed + 1, 5).requires_grad_(True)
    value = kl_divergence(p, q)
    to_p, to_q = torch.autograd.grad(value, (p, q))
    lp, lq = f64(slow_log_softmax(p)), f64(slow_log_softmax(q))
    torch.testing.assert_close(to_p, lp.exp() * (lp - lq - slow_kl(p, q)), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(to_q, lq.exp() - lp.exp(), rtol=1e-9, atol=1e-12)


def test_kl_where_one_law_lacks_mass():
    p = torch.tensor([0.0, 0.0, -INF], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    value = kl_divergence(p, q)
    value.backward()
    assert value.item() == pytest.approx(math.log(1.5), rel=1e-14)
    assert torch.isfinite(p.grad).all() and torch.isfinite(q.grad).all()
    assert kl_divergence(q, p).item() == INF
    # a probability that underflows to 0 is still mass that q lacks
    assert kl_divergence(torch.tensor([0.0, -1e4]), torch.tensor([0.0, -INF])).item() == INF
    both = kl_divergence(torch.stack([q, q]), torch.stack([p, q]))
    (gradient,) = torch.autograd.grad(both[1], q)
    assert both.tolist() == [INF, 0.0] and torch.isfinite(gradient).all()


def test_kl_of_nearly_equal_laws_is_not_negative():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(2000, 50, generator=g)
    assert (kl_divergence(z, z + 1e-5 * torch.randn(2000, 50, generator=g)) >= 0).all()


def test_kl_to_uniform_is_what_entropy_lacks():
    z = random_logits(5, 6)
    torch.testing.assert_close(kl_divergence(z, torch.zeros_like(z)), math.log(6) - entropy(z), rtol=1e-12, atol=0)


def test_kl_names_the_bad_argument():
    ok, bad = torch.zeros(3), torch.tensor([0.0, float("nan"), 0.0])
    for args, name in (((bad, ok), "p_logits"), ((ok, bad), "q_logits"), ((ok, torch.full((3,), -INF)), "q_logits")):
        with pytest.raises(ValueError, match=name):
            kl_divergence(*args)
    with pytest.raises(REFUSED):
        kl_divergence(torch.zeros(3), torch.zeros(1))
    with pytest.raises(ValueError, match="p_logits and q_logits"):
        inspect.unwrap(kl_divergence)(torch.zeros(3), torch.zeros(1))


# ---------------------------------------------------------------------------------------------------------- kl_estimates
P_LOGITS = f64([0.2, -0.4, 0.9])
Q_LOGITS = f64([-0.3, 0.5, 0.1])


def expected_under_p(estimator, p_logits=P_LOGITS, q_logits=Q_LOGITS):
    logp, logq = log_softmax(p_logits), log_softmax(q_logits)
    return (logp.exp() * kl_estimates(logp, logq)[estimator]).sum()


def expected_gradient(loss_of_logp):
    """E_p of the gradient of a loss on each sample: the sampling law is held fixed, as autograd sees it."""
    z = P_LOGITS.clone().requires_grad_(True)
    logp = log_softmax(z)
    (gradient,) = torch.autograd.grad((logp.exp().detach() * loss_of_logp(logp, log_softmax(Q_LOGITS))).sum(), z)
    return gradient


def gradient_of(function):
    z = P_LOGITS.clone().requires_grad_(True)
    return torch.autograd.grad(function(z), z)[0]


def test_estimators_in_expectation_by_enumeration():
    exact = kl_divergence(P_LOGITS, Q_LOGITS)
    assert exact.item() == pytest.approx(0.234676570, abs=1e-9)
    assert expected_under_p("k1").item() == pytest.approx(exact.item(), rel=1e-12)
    assert expected_under_p("k3").item() == pytest.approx(exact.item(), rel=1e-12)
    assert expected_under_p("k2").item() == pytest.approx(0.202879, abs=1e-6)


def test_expected_gradients_when_used_as_losses():
    forward = gradient_of(lambda z: kl_divergence(z, Q_LOGITS))
    backward = gradient_of(lambda z: kl_divergence(Q_LOGITS, z))
    torch.testing.assert_close(forward, f64([0.012938, -0.208569, 0.195631]), rtol=0, atol=1e-6)
    torch.testing.assert_close(backward, f64([0.068714, -0.317727, 0.249013]), rtol=0, atol=1e-6)
    k1, k2, k3 = (expected_gradient(lambda a, b, k=k: kl_estimates(a, b)[k]) for k in ("k1", "k2", "k3"))
    torch.testing.assert_close(k1, torch.zeros(3).double(), rtol=0, atol=1e-14)
    torch.testing.assert_close(k2, forward, rtol=1e-12, atol=0)
    torch.testing.assert_close(k3, backward, rtol=1e-12, atol=0)
    corrected = expected_gradient(lambda a, b: (a - a.detach()).exp() * kl_estimates(a, b)["k3"])
    torch.testing.assert_close(corrected, forward, rtol=1e-12, atol=1e-14)


def test_k3_with_its_arguments_swapped_is_another_quantity():
    logp, logq = log_softmax(P_LOGITS), log_softmax(Q_LOGITS)
    swapped = (logp.exp() * kl_estimates(logq, logp)["k3"]).sum()
    chi2 = ((logp - logq).exp() * logp.exp()).sum() - 1
    assert swapped.item() == pytest.approx(0.197652, abs=1e-6)
    assert swapped.item() == pytest.approx((chi2 - kl_divergence(P_LOGITS, Q_LOGITS)).item(), rel=1e-12)
    half_chi2 = gradient_of(lambda z: (2 * log_softmax(z) - log_softmax(Q_LOGITS)).exp().sum() / 2)
    torch.testing.assert_close(expected_gradient(lambda a, b: kl_estimates(b, a)["k3"]), half_chi2, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(half_chi2, f64([-0.030366, -0.170348, 0.200713]), rtol=0, atol=1e-6)


def spread(p, q, estimator):
    p, q = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
    k = kl_estimates(p.log(), q.log())[estimator]
    return ((p * k * k).sum() - (p * k).sum() ** 2).item()


def test_k3_has_less_variance_near_and_more_far():
    near = ([0.5, 0.3, 0.2], [0.48, 0.33, 0.19])
    assert spread(*near, "k3") < spread(*near, "k1") / 10
    far = ([0.99, 0.01], [0.5, 0.5])
    assert spread(*far, "k1") == pytest.approx(0.21, abs=0.005)
    assert spread(*far, "k3") == pytest.approx(19.96, abs=0.005)


def test_agreement_fails_under_truncated_sampling():
    """Samples from the top-p head of p, scored with p: k1 and k3 no longer estimate KL(p||q), nor that of the head."""
    head = torch.tensor([True, False, True])
    logp, logq = log_softmax(P_LOGITS), log_softmax(Q_LOGITS)
    law = torch.where(head, logp.exp(), 0.0) / logp.exp()[head].sum()
    of_head = kl_divergence(P_LOGITS.masked_fill(~head, -INF), Q_LOGITS)
    for k in ("k1", "k3"):
        estimate = (law * kl_estimates(logp, logq)[k]).sum()
        assert abs(estimate - kl_divergence(P_LOGITS, Q_LOGITS)) > 0.05 and abs(estimate - of_head) > 0.05


def test_pinned_values_of_the_estimators():
    k = kl_estimates(f64([0.0, -1.0]), f64([-1.0, 0.0]))
    assert k["k1"].tolist() == [1.0, -1.0] and k["k2"].tolist() == [0.5, 0.5]
    torch.testing.assert_close(k["k3"], f64([math.exp(-1), math.e - 2]), rtol=1e-14, atol=0)
    for same in kl_estimates(f64([-3.0]), f64([-3.0])).values():
        assert same.item() == 0.0


def test_k3_near_zero_keeps_its_digits_in_float32():
    tiny = kl_estimates(torch.tensor([1e-4]), torch.tensor([0.0]))["k3"].item()
    assert tiny == pytest.approx(5e-9, rel=1e-2)


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=8))
@settings(deadline=None, max_examples=30)
def test_k3_is_never_negative(ratios):
    r = torch.tensor(ratios, dtype=torch.float64)
    assert (kl_estimates(r, torch.zeros_like(r))["k3"] >= 0).all()


def test_k1_and_k3_gradients_pass_at_extreme_ratios():
    logp = torch.tensor([25.0, -25.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(kl_estimates(logp, torch.zeros(2).double())["k3"].sum(), logp)
    torch.testing.assert_close(gradient, f64([1 - math.exp(-25), 1 - math.exp(25)]), rtol=1e-12, atol=0)


def test_kl_estimates_checks_support():
    k = kl_estimates(torch.tensor([-1.0]), torch.tensor([-INF]))
    assert k["k1"].item() == INF and k["k3"].item() == INF
    with pytest.raises(ValueError, match="logp must be finite"):
        kl_estimates(torch.tensor([-INF]), torch.tensor([-1.0]))
    with pytest.raises(ValueError, match="logq"):
        kl_estimates(torch.tensor([-1.0]), torch.tensor([float("nan")]))
    with pytest.raises(REFUSED):
        kl_estimates(torch.zeros(2), torch.zeros(3))
