"""Direct alignment: one identity for each method, slow twins, golden numbers, frozen references."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.objectives.direct import (
    dpo_loss,
    implicit_reward,
    ipo_loss,
    kto_kl_estimate,
    kto_loss,
    log_odds_ratio,
    optimal_policy,
    orpo_loss,
    pro_loss,
    rrhf_loss,
    safe_dpo_loss,
    una_loss,
    una_pair_loss,
)
from course.objectives.supervised import sft_loss

REFUSED = (ValueError, TypeCheckError)
INF = float("inf")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def logps(seed, *shape):
    """Response log-probabilities, between about -12 and 0."""
    return -4 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 2 - 1e-3


def four(seed, n=5):
    return tuple(logps(seed + k, n) for k in range(4))


def value_and_gradients(loss, *inputs):
    z = [x.clone().requires_grad_(True) for x in inputs]
    value = loss(*z)
    return (value, *torch.autograd.grad(value, z, allow_unused=True, materialize_grads=True))


def close(a, b, rtol=1e-10, atol=1e-13):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


PAIRWISE = {
    "dpo": lambda *x: dpo_loss(*x, beta=0.3),
    "ipo": lambda *x: ipo_loss(*x, tau=0.3),
    "una pair": lambda *x: una_pair_loss(*x, beta=0.3),
    "safe dpo": lambda *x: safe_dpo_loss(*x, torch.ones(len(x[0])), torch.ones(len(x[0])), beta=0.3, delta=2.0),
}


# ----------------------------------------------------------------------------------------------------- slow twins, pairs
def slow_margins(pc, pr, rc, rr):
    return [(a - c) - (b - d) for a, b, c, d in zip(pc, pr, rc.detach(), rr.detach())]


SLOW = {
    "dpo": lambda *x: sum(torch.log1p(torch.exp(-0.3 * m)) for m in slow_margins(*x)) / len(x[0]),
    "ipo": lambda *x: sum((m - 1 / 0.6) ** 2 for m in slow_margins(*x)) / len(x[0]),
}
SLOW["una pair"] = SLOW["safe dpo"] = SLOW["dpo"]


@pytest.mark.parametrize("name", PAIRWISE)
@given(st.integers(0, 10_000), st.integers(1, 6))
@settings(deadline=None, max_examples=12)
def test_pair_losses_against_a_loop(name, seed, n):
    close(value_and_gradients(PAIRWISE[name], *four(seed, n)), value_and_gradients(SLOW[name], *four(seed, n)))


@pytest.mark.parametrize("name", PAIRWISE)
def test_the_reference_is_frozen(name):
    _, chosen, rejected, ref_chosen, ref_rejected = value_and_gradients(PAIRWISE[name], *four(0))
    assert ref_chosen.abs().sum() == ref_rejected.abs().sum() == 0
    assert (chosen < 0).all() and (rejected > 0).all()


@pytest.mark.parametrize("name", PAIRWISE)
@given(st.integers(0, 10_000), st.integers(1, 6))
@settings(deadline=None, max_examples=8)
def test_order_of_pairs_and_micro_batches(name, seed, cut):
    pairs, order = four(seed, 7), torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    whole = PAIRWISE[name](*pairs)
    torch.testing.assert_close(PAIRWISE[name](*(x[order] for x in pairs)), whole, rtol=1e-12, atol=0)
    parts = cut * PAIRWISE[name](*(x[:cut] for x in pairs)) + (7 - cut) * PAIRWISE[name](*(x[cut:] for x in pairs))
    torch.testing.assert_close(parts / 7, whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", PAIRWISE)
def test_what_pair_losses_refuse(name):
    for position, bad in itertools.product(range(4), ("nan", "inf", "-inf")):
        pairs = list(four(0))
        pairs[position] = pairs[position].index_fill(0, torch.tensor([2]), float(bad))
        with pytest.raises(ValueError, match="finite"):
            PAIRWISE[name](*pairs)
    with pytest.raises(REFUSED):
        PAIRWISE[name](*four(0)[:3], logps(0, 4))
    with pytest.raises(ValueError, match="at least one element"):
        PAIRWISE[name](*[torch.zeros(0)] * 4)


@pytest.mark.parametrize("name", PAIRWISE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pair_losses_in_half_precision(name, dtype):
    low = [(20 * x).to(dtype) for x in four(1)]
    value = PAIRWISE[name](*low)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(PAIRWISE[name](*(x.double() for x in low)).item(), rel=1e-5)


@pytest.mark.parametrize("bad", [0, -1.0, INF, float("nan")])
def test_strengths_must_be_positive(bad):
    x, safe = four(0), torch.ones(5)
    for call in (
        lambda: dpo_loss(*x, bad),
        lambda: ipo_loss(*x, tau=bad),
        lambda: una_pair_loss(*x, beta=bad),
        lambda: una_loss(x[0], x[1], x[2], beta=bad),
        lambda: implicit_reward(x[0], x[1], bad),
        lambda: optimal_policy(x[0], x[1], bad),
        lambda: safe_dpo_loss(*x, safe, safe, beta=bad, delta=0),
        lambda: kto_loss(x[0], x[1], safe, 0.0, beta=bad, desirable_weight=1, undesirable_weight=1),
        lambda: kto_loss(x[0], x[1], safe, 0.0, beta=1, desirable_weight=1, undesirable_weight=bad),
    ):
        with pytest.raises(ValueError, match=r"(beta|tau|undesirable_weight) must be a finite number above 0"):
            call()


# ------------------------------------------------------------------------------------------------------------------- DPO
def test_worked_dpo_example():
    p = [torch.log(f64([v])) for v in (0.6, 0.2, 0.3, 0.4)]
    assert dpo_loss(*p, 0.5).item() == pytest.approx(math.log(1.5), rel=1e-12)
    assert math.exp(-dpo_loss(*p, 0.5).item()) == pytest.approx(2 / 3, rel=1e-12)


def test_dpo_at_the_reference_and_its_gradient_weight():
    chosen, rejected = logps(0, 4), logps(1, 4)
    value, to_chosen, *_ = value_and_gradients(lambda *x: dpo_loss(*x, 0.7), chosen, rejected, chosen, rejected)
    assert value.item() == pytest.approx(0.693147, abs=1e-6)
    torch.testing.assert_close(4 * to_chosen, torch.full((4,), -0.35).double(), rtol=1e-6, atol=0)
    pairs = four(5)
    _, to_chosen, to_rejected, *_ = value_and_gradients(lambda *x: dpo_loss(*x, 0.7), *pairs)
    weight = f64([0.7 * sigmoid(-0.7 * m.item()) for m in slow_margins(*pairs)]) / 5
    close((to_chosen, to_rejected), (-weight, weight))
    assert dpo_loss(f64([2.0]), f64([0.0]), f64([0.0]), f64([0.0]), 0.5).item() == pytest.approx(0.313262, abs=1e-6)


def test_dpo_uses_sums():
    """A response repeated twice has twice the log-ratio, so the margin doubles; an average would leave it."""
    token = {k: logps(i, 6) for i, k in enumerate(("pc", "pr", "rc", "rr"))}
    once = [token[k].sum(0, keepdim=True) for k in token]
    twice = [torch.cat([token[k], token[k]]).sum(0, keepdim=True) for k in token]
    margin = [(x[0] - x[2]) - (x[1] - x[3]) for x in (once, twice)]
    torch.testing.assert_close(margin[1], 2 * margin[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(dpo_loss(*twice, 0.1), dpo_loss(*once, 0.2), rtol=1e-12, atol=0)


def test_dpo_margins_of_ten_thousand():
    zero, big = torch.tensor([0.0]), torch.tensor([-1e4])
    assert dpo_loss(zero, big, zero, zero, 1.0).item() == 0.0
    value, gradient, *_ = value_and_gradients(lambda *x: dpo_loss(*x, 1.0), big, zero, zero, zero)
    assert value.item() == 1e4 and gradient.item() == -1.0


def test_a_shared_prompt_cancels():
    x, prompt = four(3), logps(9, 5)
    torch.testing.assert_close(dpo_loss(*(v + prompt for v in x), 0.5), dpo_loss(*x, 0.5), rtol=1e-12, atol=0)


# --------------------------------------------------------------------------------------------------------------- optimum
def objective(logp, ref, reward, beta):
    p = logp.exp()
    return (p * reward).sum(-1) - beta * (p * (logp - ref)).sum(-1)


@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([0.05, 0.5, 3.0]))
@settings(deadline=None, max_examples=25)
def test_optimum_of_kl_regularised_reward(seed, size, beta):
    g = torch.Generator().manual_seed(seed)
    ref = torch.log_softmax(torch.randn(2, size, generator=g, dtype=torch.float64), -1)
    reward = torch.randn(2, size, generator=g, dtype=torch.float64)
    best = optimal_policy(ref, reward, beta)
    for b in range(2):
        top = reward[b].max().item()
        weight = [math.exp(a + (r - top) / beta) for a, r in zip(ref[b].tolist(), reward[b].tolist())]
        torch.testing.assert_close(best[b].exp(), f64(weight) / math.fsum(weight), rtol=1e-9, atol=1e-15)
    log_z = torch.logsumexp(ref + reward / beta, -1)
    torch.testing.assert_close(objective(best, ref, reward, beta), beta * log_z, rtol=1e-9, atol=1e-12)
    other = torch.log_softmax(2 * torch.randn(200, 2, size, generator=g, dtype=torch.float64), -1)
    lost = beta * (other.exp() * (other - best)).sum(-1)
    gap = objective(best, ref, reward, beta) - objective(other, ref, reward, beta)
    torch.testing.assert_close(gap, lost, rtol=1e-7, atol=1e-11)
    assert (lost > -1e-12).all()
    recovered = implicit_reward(best, ref, beta) - reward
    torch.testing.assert_close(recovered, recovered[:, :1].expand(2, size), rtol=1e-8, atol=1e-10)


def test_optimum_at_its_ends():
    ref, reward = torch.log(f64([0.5, 0.3, 0.2])), f64([1.0, 3.0, 2.0])
    torch.testing.assert_close(optimal_policy(ref, torch.ones(3).double(), 0.1), ref, rtol=1e-12, atol=0)
    assert optimal_policy(ref, reward, 1e-3).exp().tolist() == [0.0, 1.0, 0.0]
    assert torch.isfinite(optimal_policy(ref.float(), reward.float() * 1e4, 1e-4)[1])
    never = optimal_policy(f64([math.log(0.5), -INF, math.log(0.5)]), f64([0.0, 1e9, 0.0]), 1e-3)
    assert never.exp().tolist() == pytest.approx([0.5, 0.0, 0.5])
    ruled_out = optimal_policy(torch.tensor([0.0, -INF, 0.0]), torch.tensor([0.0, 1e9, 1.0]), 1.0)
    assert ruled_out.exp().tolist() == pytest.approx([sigmoid(-1), 0.0, sigmoid(1)], rel=1e-5)
    large = optimal_policy(torch.log(torch.tensor([0.7, 0.3])), torch.tensor([1e7, 1e7]), 0.1)
    assert large.exp().tolist() == pytest.approx([0.7, 0.3], rel=1e-5)
    unsafe = optimal_policy(ref, f64([1.0, -INF, 1.0]), 1.0)
    assert unsafe.exp().tolist() == pytest.approx([5 / 7, 0.0, 2 / 7])


def test_optimum_gradient_is_finite_with_impossible_responses():
    ref, reward = f64([math.log(0.5), -INF, math.log(0.5)]), f64([0.3, 5.0, -0.2])
    _, to_ref, to_reward = value_and_gradients(lambda a, r: optimal_policy(a, r, 0.5)[0], ref, reward)
    p = optimal_policy(ref, reward, 0.5).exp()
    torch.testing.assert_close(to_reward, (f64([1.0, 0, 0]) - p) / 0.5, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(to_ref, f64([1.0, 0, 0]) - p, rtol=1e-12, atol=1e-15)


def test_optimum_refuses_what_leaves_nothing():
    ref = torch.log(f64([0.5, 0.5]))
    with pytest.raises(ValueError, match="without any possible response"):
        optimal_policy(f64([0.0, -INF]), f64([-INF, 1.0]), 1.0)
    for bad in ("nan", "inf"):
        with pytest.raises(ValueError, match="reward"):
            optimal_policy(ref, f64([0.0, float(bad)]), 1.0)
        with pytest.raises(ValueError, match="ref_logprobs"):
            optimal_policy(f64([0.0, float(bad)]), ref, 1.0)
    with pytest.raises(REFUSED):
        optimal_policy(ref, torch.zeros(3), 1.0)
    with pytest.raises(ValueError, match="ref_logprobs and reward"):
        inspect.unwrap(optimal_policy)(ref, torch.zeros(3), 1.0)


def test_dpo_is_minimal_at_the_optimum_of_the_reward_that_made_the_labels():
    """With Bradley-Terry labels of a reward, the expected DPO gradient vanishes at optimal_policy of that reward."""
    ref, reward, beta = torch.log(f64([0.5, 0.3, 0.2])), f64([0.4, -0.3, 1.0]), 0.5
    z = optimal_policy(ref, reward, beta).requires_grad_(True)
    logp, total = torch.log_softmax(z, 0), 0
    for i, j in itertools.permutations(range(3), 2):
        total = total + sigmoid((reward[i] - reward[j]).item()) * dpo_loss(logp[i], logp[j], ref[i], ref[j], beta)
    (gradient,) = torch.autograd.grad(total, z)
    assert gradient.abs().max() < 1e-12


# ------------------------------------------------------------------------------------------------------------------- IPO
def test_ipo_minimum_and_value_at_the_reference():
    zero = f64([0.0])
    assert ipo_loss(zero, zero, zero, zero, tau=0.1).item() == pytest.approx(25, rel=1e-12)
    value, gradient, *_ = value_and_gradients(lambda *x: ipo_loss(*x, tau=0.1), f64([5.0]), zero, zero, zero)
    assert value.item() == 0 and gradient.item() == 0
    assert ipo_loss(f64([5.1]), zero, zero, zero, tau=0.1) > 0 < ipo_loss(f64([4.9]), zero, zero, zero, tau=0.1)


# ------------------------------------------------------------------------------------------------------------------- KTO
def slow_kto(policy, ref, up, kl, beta, w_up, w_down):
    terms = []
    for a, b, good in zip(policy, ref.detach(), up.tolist()):
        sign, w = (1, w_up) if good else (-1, w_down)
        terms.append(w * (1 - 1 / (1 + torch.exp(-sign * beta * (a - b - kl)))))
    return sum(terms) / len(terms)


@given(st.integers(0, 10_000), st.floats(0, 3), st.sampled_from([torch.bool, torch.long, torch.float32]))
@settings(deadline=None, max_examples=15)
def test_kto_against_a_loop(seed, kl, kind):
    policy, ref = logps(seed, 6), logps(seed + 1, 6)
    up = torch.rand(6, generator=torch.Generator().manual_seed(seed)) < 0.5
    fast = value_and_gradients(
        lambda a, b: kto_loss(a, b, up.to(kind), kl, beta=0.4, desirable_weight=1.5, undesirable_weight=0.7), policy, ref
    )
    close(fast, value_and_gradients(lambda a, b: slow_kto(a, b, up, kl, 0.4, 1.5, 0.7), policy, ref))
    assert fast[2].abs().sum() == 0 and (fast[1][up] < 0).all() and (fast[1][~up] > 0).all()


def test_kto_is_one_half_at_the_reference():
    x = logps(0, 3)
    kl = kto_kl_estimate(x, x)
    for label in (torch.ones(3), torch.zeros(3), torch.tensor([True, False, True])):
        assert kto_loss(x, x, label, kl, beta=0.1, desirable_weight=1, undesirable_weight=1).item() == 0.5


def test_kto_keeps_a_small_remaining_loss_in_float32():
    value = kto_loss(
        torch.tensor([30.0]), torch.tensor([0.0]), torch.tensor([1]), 0.0, beta=1.0, desirable_weight=1.0, undesirable_weight=1.0
    )
    assert value.item() == pytest.approx(math.exp(-30), rel=1e-5)


def test_kto_reference_point():
    policy, ref = logps(0, 6).requires_grad_(True), logps(1, 6)
    kl = kto_kl_estimate(policy, ref)
    assert kl.item() == pytest.approx(max(0.0, (policy - ref).mean().item()), rel=1e-12) and not kl.requires_grad
    assert kto_kl_estimate(f64([-2.0, -3.0]), f64([-1.0, -1.0])).item() == 0
    assert kto_kl_estimate(f64([-1.0, -1.0]), f64([-2.0, -3.0])).item() == 1.5
    with pytest.raises(ValueError, match="N >= 2"):
        kto_kl_estimate(f64([-1.0]), f64([-1.0]))


def test_kto_arguments():
    x = logps(0, 2)
    for kl in (-0.1, INF, float("nan"), torch.tensor(-1.0)):
        with pytest.raises(ValueError, match="kl must be"):
            kto_loss(x, x, torch.ones(2), kl, beta=1.0, desirable_weight=1.0, undesirable_weight=1.0)
    with pytest.raises(ValueError, match="desirable must be bool"):
        kto_loss(x, x, torch.tensor([1, -1]), 0.0, beta=1.0, desirable_weight=1.0, undesirable_weight=1.0)
    with pytest.raises(ValueError, match="ref_logp must be finite"):
        kto_loss(x, f64([0.0, float("nan")]), torch.ones(2), 0.0, beta=1.0, desirable_weight=1.0, undesirable_weight=1.0)


# ------------------------------------------------------------------------------------------------------------------ ORPO
def test_worked_orpo_example():
    c, r = torch.log(f64([0.8])), torch.log(f64([0.3]))
    assert log_odds_ratio(c, r).item() == pytest.approx(math.log((0.8 / 0.2) / (0.3 / 0.7)), rel=1e-12)
    assert log_odds_ratio(c, r).item() == pytest.approx(2.233592, abs=1e-6)
    assert orpo_loss(c, r, weight=1).item() + c.item() == pytest.approx(0.101783, abs=1e-6)


def slow_orpo(c, r, weight):
    terms = []
    for a, b in zip(c, r):
        odds = [torch.exp(x) / (1 - torch.exp(x)) for x in (a, b)]
        terms.append(-a - weight * torch.log(1 / (1 + odds[1] / odds[0])))
    return sum(terms) / len(terms)


@given(st.integers(0, 10_000), st.sampled_from([0, 0.1, 2.0]))
@settings(deadline=None, max_examples=15)
def test_orpo_against_a_loop(seed, weight):
    pair = logps(seed, 5), logps(seed + 1, 5)
    fast = value_and_gradients(lambda *x: orpo_loss(*x, weight=weight), *pair)
    close(fast, value_and_gradients(lambda *x: slow_orpo(*x, weight), *pair), rtol=1e-8)
    torch.testing.assert_close(log_odds_ratio(*pair), -log_odds_ratio(*reversed(pair)), rtol=1e-12, atol=0)
    if weight == 0:
        torch.testing.assert_close(fast[0], -pair[0].mean(), rtol=1e-12, atol=0)


def test_log_odds_are_exact_at_both_ends():
    for logp in (-1e-17, -1e-12, -1e-5, -0.69, -0.7, -50.0, -800.0):
        value, gradient, _ = value_and_gradients(lambda a, b: log_odds_ratio(a, b).sum(), f64([logp]), f64([-math.log(2)]))
        exact = logp - (math.log(-math.expm1(logp)) if logp > -0.7 else math.log1p(-math.exp(logp)))
        assert value.item() == pytest.approx(exact, rel=1e-12, abs=1e-12)
        assert gradient.item() == pytest.approx(-1 / math.expm1(logp), rel=1e-9)
    far = log_odds_ratio(f64([-100.0]), f64([-60.0]))
    assert far.item() == pytest.approx(-40, rel=1e-12)


def test_orpo_without_its_penalty_is_imitation():
    g = torch.Generator().manual_seed(0)
    logits, tokens = torch.randn(3, 5, 4, generator=g, dtype=torch.float64), torch.randint(4, (3, 5), generator=g)
    mask = torch.tensor([[0, 1, 1, 1, 1], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]])
    logp = torch.log_softmax(logits[:, :-1], -1).gather(-1, tokens[:, 1:, None])[..., 0]
    mean = (logp * mask[:, 1:]).sum(1) / mask[:, 1:].sum(1)
    imitation = sft_loss(logits, tokens, mask, normalize="record")
    torch.testing.assert_close(orpo_loss(mean, logps(1, 3), weight=0), imitation, rtol=1e-12, atol=0)


def test_orpo_arguments():
    for bad in (0.0, 0.5):
        with pytest.raises(ValueError, match="rejected_mean_logp must be below 0"):
            orpo_loss(f64([-1.0]), f64([bad]), weight=1.0)
    for bad in (-1.0, INF):
        with pytest.raises(ValueError, match="weight"):
            orpo_loss(f64([-1.0]), f64([-1.0]), weight=bad)


# ---------------------------------------------------------------------------------------------------------- RRHF and PRO
def slow_rrhf(p, reward):
    total = p.sum() * 0
    for b in range(len(p)):
        for i, j in itertools.product(range(p.shape[1]), repeat=2):
            if reward[b, i] > reward[b, j] and p[b, j] > p[b, i]:
                total = total + p[b, j] - p[b, i]
    return total / len(p)


@given(st.integers(0, 10_000), st.integers(2, 5))
@settings(deadline=None, max_examples=15)
def test_rrhf_against_a_loop(seed, k):
    p, reward = logps(seed, 3, k), torch.randint(0, 3, (3, k), generator=torch.Generator().manual_seed(seed))
    fast = value_and_gradients(lambda x: rrhf_loss(x, reward), p)
    close(fast, value_and_gradients(lambda x: slow_rrhf(x, reward), p))
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(rrhf_loss(p[:, order], reward[:, order].double()), fast[0], rtol=1e-12, atol=0)


def test_rrhf_example_and_agreement():
    assert rrhf_loss(f64([[-1.0, -0.5, -2.0]]), f64([[3.0, 2.0, 1.0]])).item() == 0.5
    assert rrhf_loss(f64([[-0.1, -0.5, -2.0]]), torch.tensor([[30, 2, 1]])).item() == 0.0
    assert rrhf_loss(f64([[-1.0, -0.5]]), torch.tensor([[1, 1]])).item() == 0.0
    with pytest.raises(ValueError, match="K >= 2"):
        rrhf_loss(f64([[-1.0]]), f64([[1.0]]))
    with pytest.raises(ValueError, match="reward must be finite"):
        rrhf_loss(f64([[-1.0, -2.0]]), f64([[1.0, float("nan")]]))


def slow_pro(scores):
    total = 0
    for row in scores:
        for k in range(len(row) - 1):
            total = total - torch.log(torch.exp(row[k]) / torch.exp(row[k:]).sum())
    return total / len(scores)


@given(st.integers(0, 10_000), st.integers(2, 5))
@settings(deadline=None, max_examples=15)
def test_pro_against_a_loop(seed, k):
    scores = torch.randn(3, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    close(value_and_gradients(pro_loss, scores), value_and_gradients(slow_pro, scores))
    torch.testing.assert_close(pro_loss(scores + 3.5), pro_loss(scores), rtol=1e-11, atol=0)


def test_golden_plackett_luce_numbers():
    assert pro_loss(f64([[4.0, 4.0, 4.0]])).item() == pytest.approx(1.791759, abs=1e-6)
    assert pro_loss(f64([[2.0, 1.0, 0.0]])).item() == pytest.approx(0.720868, abs=1e-6)
    scores = f64([0.3, -1.0, 0.8, 0.1])
    likelihoods = [math.exp(-pro_loss(scores[list(order)][None]).item()) for order in itertools.permutations(range(4))]
    assert math.fsum(likelihoods) == pytest.approx(1, rel=1e-12)
    assert pro_loss(torch.tensor([[1e4, 0.0, -1e4]])).item() == 0.0
    with pytest.raises(ValueError, match="K >= 2"):
        pro_loss(f64([[1.0]]))


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=10)
def test_pro_with_two_candidates_and_implicit_rewards_is_dpo(seed):
    def by_pro(pc, pr, rc, rr):
        return pro_loss(torch.stack([implicit_reward(pc, rc, 0.3), implicit_reward(pr, rr, 0.3)], dim=1))

    close(value_and_gradients(by_pro, *four(seed)), value_and_gradients(PAIRWISE["dpo"], *four(seed)))


# --------------------------------------------------------------------------------------------------------------- SafeDPO
def slow_safe(pc, pr, rc, rr, good, other, beta, delta):
    terms = []
    for m, g, o in zip(slow_margins(pc, pr, rc, rr), good.tolist(), other.tolist()):
        if g and o:
            terms.append(torch.log1p(torch.exp(-beta * m)))
        elif g or o:
            terms.append(torch.log1p(torch.exp(-((1 if g else -1) * beta * m - delta))))
    return sum(terms, pc.sum() * 0) / max(1, len(terms))


@given(st.integers(0, 10_000), st.sampled_from([0, 0.5, 4.0]))
@settings(deadline=None, max_examples=20)
def test_safe_dpo_against_a_loop(seed, delta):
    good, other = torch.rand(2, 6, generator=torch.Generator().manual_seed(seed)) < 0.6
    fast = value_and_gradients(lambda *x: safe_dpo_loss(*x, good, other.long(), beta=0.3, delta=delta), *four(seed, 6))
    close(fast, value_and_gradients(lambda *x: slow_safe(*x, good, other, 0.3, delta), *four(seed, 6)))


def test_safe_dpo_without_unsafe_responses_is_dpo():
    safe = torch.ones(5, dtype=torch.bool)
    for delta in (0, 7.0):
        close(
            value_and_gradients(lambda *x: safe_dpo_loss(*x, safe, safe, beta=0.3, delta=delta), *four(2)),
            value_and_gradients(PAIRWISE["dpo"], *four(2)),
        )


def test_safe_dpo_swaps_and_asks_for_more():
    yes, no = torch.ones(1), torch.zeros(1)
    pc, pr, rc, rr = four(4, 1)
    swapped = safe_dpo_loss(pc, pr, rc, rr, no, yes, beta=0.3, delta=0)
    torch.testing.assert_close(swapped, dpo_loss(pr, pc, rr, rc, 0.3), rtol=1e-12, atol=0)
    assert safe_dpo_loss(pc, pr, pc, pr, no, yes, beta=0.3, delta=0).item() == pytest.approx(math.log(2), rel=1e-12)
    kept = [safe_dpo_loss(pc, pr, rc, rr, yes, no, beta=0.3, delta=d) for d in (0.0, 1.0)]
    torch.testing.assert_close(kept[0], dpo_loss(pc, pr, rc, rr, 0.3), rtol=1e-12, atol=0)
    assert kept[1] > kept[0]


def test_safe_dpo_does_not_look_at_pairs_of_unsafe_responses():
    good, other = torch.tensor([1, 0, 0, 1, 1]), torch.tensor([1, 0, 1, 0, 1])
    pairs = four(6)
    dirty = [x.index_fill(0, torch.tensor([1]), float("nan")) for x in pairs]
    run = lambda *x: safe_dpo_loss(*x, good, other, beta=0.3, delta=1.0)  # noqa: E731
    close(value_and_gradients(run, *dirty), value_and_gradients(run, *pairs))
    keep = torch.tensor([0, 2, 3, 4])
    without = safe_dpo_loss(*(x[keep] for x in pairs), good[keep], other[keep], beta=0.3, delta=1.0)
    torch.testing.assert_close(run(*pairs), without, rtol=1e-12, atol=0)
    none = torch.zeros(5)
    assert safe_dpo_loss(*pairs, none, none, beta=0.3, delta=1.0).item() == 0.0
    with pytest.raises(ValueError, match="delta"):
        safe_dpo_loss(*pairs, none, none, beta=0.3, delta=-1.0)
    with pytest.raises(ValueError, match="rejected_safe"):
        safe_dpo_loss(*pairs, none, none + 2, beta=0.3, delta=1.0)


# ------------------------------------------------------------------------------------------------------------------- UNA
def test_una_is_zero_where_the_implicit_reward_is_the_score():
    policy, ref = logps(0, 4), logps(1, 4)
    score = f64([0.4 * (a - b) for a, b in zip(policy.tolist(), ref.tolist())])
    value, to_policy, to_ref = value_and_gradients(lambda a, b: una_loss(a, b, score, beta=0.4), policy, ref)
    assert value.item() < 1e-30 and to_policy.abs().max() < 1e-15 and to_ref.abs().sum() == 0
    assert una_loss(ref, ref, score, beta=0.4).item() == pytest.approx(score.square().mean().item(), rel=1e-12)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=10)
def test_una_against_a_loop(seed):
    policy, ref, score = logps(seed, 5), logps(seed + 1, 5), logps(seed + 2, 5) + 2
    slow = lambda a, b: sum((0.4 * (x - y) - s) ** 2 for x, y, s in zip(a, b.detach(), score)) / 5  # noqa: E731
    close(value_and_gradients(lambda a, b: una_loss(a, b, score, beta=0.4), policy, ref), value_and_gradients(slow, policy, ref))


def test_una_pairs_are_dpo():
    close(value_and_gradients(PAIRWISE["una pair"], *four(8)), value_and_gradients(PAIRWISE["dpo"], *four(8)))


def test_una_arguments():
    x = logps(0, 3)
    with pytest.raises(ValueError, match="score must be finite"):
        una_loss(x, x, f64([0.0, 1.0, INF]), beta=1.0)
    with pytest.raises(REFUSED):
        una_loss(x, x, f64([0.0]), beta=1.0)
    with pytest.raises(ValueError, match="score must have the shape"):
        inspect.unwrap(una_loss)(x, x, f64([0.0]), beta=1.0)
