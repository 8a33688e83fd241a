"""Staleness: values against slow twins, large log-ratios, and a real policy that moves on."""

import copy
import math
from dataclasses import dataclass

from hypothesis import given, settings, strategies as st
import pytest
import torch

from course.models.decoder import Decoder, DecoderConfig
from course.objectives.policy_gradient import clipped_token_loss, policy_gradient_loss
from course.systems.staleness import (
    Aged, effective_sample_size, staleness_report, stale_token_loss, truncated_importance_weights, within_staleness,
)  # fmt: skip
from course.models.sampling import sample
from course.models.score import score
from course.training.learner import Learner

EVERY = torch.ones(1, 4, dtype=torch.bool)


def slow_ess(log_ratio, mask):
    """Weights in the log domain, one at a time."""
    kept = [x for row, counts in zip(log_ratio, mask) for x, c in zip(row, counts) if c]
    if not kept:
        return 0.0
    top = max(kept)
    first = top + math.log(math.fsum(math.exp(x - top) for x in kept))
    second = 2 * top + math.log(math.fsum(math.exp(2 * (x - top)) for x in kept))
    return math.exp(2 * first - second)


ROWS = st.integers(1, 6).flatmap(
    lambda t: st.lists(
        st.tuples(st.lists(st.floats(-800, 800), min_size=t, max_size=t), st.lists(st.booleans(), min_size=t, max_size=t)),
        min_size=1,
        max_size=4,
    )
)


@given(ROWS)
@settings(max_examples=200, deadline=None)
def test_effective_sample_size_equals_its_slow_twin(rows):
    values, masks = zip(*rows)
    got = effective_sample_size(torch.tensor(values, dtype=torch.float64), torch.tensor(masks))
    wanted = slow_ess(values, masks)
    assert float(got) == pytest.approx(wanted, rel=1e-9)
    assert got == 0 or 1 - 1e-9 <= float(got) <= sum(map(sum, masks)) + 1e-9


def test_effective_sample_size_at_its_ends():
    assert effective_sample_size(torch.full((1, 4), -3.0), EVERY) == 4
    assert effective_sample_size(torch.tensor([[0.0, 0.0, 0.0, 200.0]]), EVERY) == 1
    assert effective_sample_size(torch.tensor([[0.0, -math.inf, 0.0, math.nan]]), torch.tensor([[1, 1, 1, 0]])) == 2
    assert effective_sample_size(torch.full((1, 4), -math.inf), EVERY) == 0
    assert effective_sample_size(torch.zeros(1, 4), ~EVERY) == 0
    weights = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert float(effective_sample_size(weights.log(), EVERY)) == pytest.approx(100 / 30)
    # A common factor of all weights changes nothing, also where it would overflow.
    assert float(effective_sample_size((weights.log() + 500), EVERY)) == pytest.approx(100 / 30, rel=1e-4)
    with pytest.raises(ValueError, match="log_ratio must be finite or -inf wherever it counts"):
        effective_sample_size(torch.tensor([[0.0, 0.0, 0.0, math.inf]]), EVERY)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 3), st.lists(st.floats(-3, 3), min_size=1, max_size=5)),
        min_size=1,
        max_size=6,
    )
)
def test_report_equals_its_slow_twin(drawn):
    records = [Aged(first, first + span, tuple(ratios), (True,) * len(ratios)) for first, span, ratios in drawn]
    now = 9
    report = staleness_report(records, now)
    assert report.lags == tuple(now - first for first, _, _ in drawn)
    assert report.mean_lag == pytest.approx(sum(report.lags) / len(drawn)) and report.max_lag == max(report.lags)
    ratios = sorted(math.exp(x) for _, _, row in drawn for x in row)
    for name, q in (("5%", 0.05), ("50%", 0.5), ("95%", 0.95)):
        place = q * (len(ratios) - 1)
        low, high = ratios[int(place)], ratios[min(int(place) + 1, len(ratios) - 1)]
        assert report.ratio_quantiles[name] == pytest.approx(low + (place - int(place)) * (high - low))
    assert report.effective_sample_size == pytest.approx(slow_ess([row for _, _, row in drawn], [[1] * 5] * len(drawn)))


def test_lag_counts_from_the_version_that_began_the_rollout():
    spanning = Aged(3, 5, (0.0, 0.5, 9.0), (True, True, False))
    report = staleness_report([spanning, Aged(5, 5, (0.0,), (True,))], 6)
    assert report.lags == (3, 1) and report.mean_lag == 2.0 and report.max_lag == 3
    assert report.ratio_quantiles["95%"] == pytest.approx(1 + 0.9 * (math.exp(0.5) - 1))  # the masked 9.0 is nowhere
    assert within_staleness([spanning], 6, 2) == [] and within_staleness([spanning], 6, 3) == [spanning]
    huge = staleness_report([Aged(0, 0, (800.0, 800.0, 0.0), (True,) * 3)], 0)
    assert huge.ratio_quantiles["95%"] == math.inf and huge.effective_sample_size == pytest.approx(2)


@dataclass(frozen=True)
class Sample:
    first_version: int
    reward: float


def test_stale_samples_go_whole_and_the_rest_keep_their_order():
    samples = [Sample(v, r) for v, r in ((4, 0.4), (1, 0.1), (3, 0.3), (5, 0.5), (2, 0.2))]
    kept = within_staleness(samples, 5, 2)
    assert kept == [samples[0], samples[2], samples[3]]
    assert within_staleness(samples, 5, 0) == [samples[3]]


def test_weights_are_truncated_and_constants():
    log_mu, log_pi = torch.tensor([[-1.5]]), torch.tensor([[-1.0]], requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    weight = truncated_importance_weights(log_pi - log_mu, mask, 10.0)
    (weight * log_pi).sum().backward()
    assert float(log_pi.grad) == pytest.approx(1.6487, abs=1e-4)  # an attached weight would give w * (1 + log pi) = 0
    values = torch.tensor([[math.log(0.5), math.log(3.0), 800.0, math.nan]])
    got = truncated_importance_weights(values, torch.tensor([[1, 1, 1, 0]]), 2.0)
    assert torch.allclose(got, torch.tensor([[0.5, 2.0, 2.0, 0.0]]))
    plain = truncated_importance_weights(values[:, :2], torch.ones(1, 2, dtype=torch.bool), math.inf)
    assert torch.allclose(plain, torch.tensor([[0.5, 3.0]]))


def test_age_is_corrected_exactly_once():
    draw = torch.Generator().manual_seed(0)
    logp, mu, near = (-torch.rand(3, 5, generator=draw) - 0.1 for _ in range(3))
    advantage, mask = torch.randn(3, 5, generator=draw), torch.rand(3, 5, generator=draw) < 0.7
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    plain = clipped_token_loss(logp, mu, advantage, mask=mask, **clip)
    assert torch.equal(stale_token_loss(logp, mu, None, advantage, mask, cap=None, **clip), plain)
    assert torch.equal(stale_token_loss(logp, mu, mu, advantage, mask, cap=2.0, **clip), plain)
    # On the proximal policy itself the gradient is that of the importance-weighted policy gradient.
    leaf = near.clone().requires_grad_(True)
    stale_token_loss(leaf, mu, near, advantage, mask, cap=1.5, **clip).sum().backward()
    wanted = -torch.where(mask, (near - mu).exp().clamp(max=1.5) * advantage, 0.0)
    assert torch.allclose(leaf.grad, wanted, atol=1e-6)
    with pytest.raises(ValueError, match="cap must be None without proximal_logp"):
        stale_token_loss(logp, mu, None, advantage, mask, cap=2.0, **clip)
    with pytest.raises(ValueError, match="cap must be given with proximal_logp"):
        stale_token_loss(logp, mu, near, advantage, mask, cap=None, **clip)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda: Aged(2, 1, (), ()), "first_version and last_version must be"),
        (lambda: Aged(0, 0, (0.0,), ()), "log_ratio and mask must have one length; got 1 and 0"),
        (lambda: Aged(0, 0, (math.nan,), (True,)), "log_ratio must be finite where mask is True; got nan"),
        (lambda: staleness_report([], 0), "records must hold at least one unmasked token"),
        (lambda: staleness_report([Aged(0, 4, (0.0,), (True,))], 3), "up to current_version 3; got version 4"),
        (lambda: within_staleness([Sample(4, 0.0)], 3, 1), "up to current_version 3; got version 4"),
        (lambda: within_staleness([], 3, -1), "limit must be a number of versions"),
        (lambda: truncated_importance_weights(torch.zeros(1, 4), EVERY, 0), "cap must be above 0; got 0"),
    ],
)
def test_errors_name_the_argument(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize("seed", range(3))
def test_as_the_policy_moves_on_the_spread_grows_and_the_effective_sample_falls(seed):
    """A real policy is trained away from the one that sampled: if age did no harm, both numbers would stay where they began."""
    policy = Decoder(DecoderConfig(vocab_size=12, layers=1, width=32, heads=2, max_length=24), seed)
    prompt = torch.zeros(64, 2, dtype=torch.int64)
    drawn = sample(copy.deepcopy(policy).eval(), prompt, max_new_tokens=12, end_ids=(), pad_id=11, seed=seed)
    mask = drawn.action_mask[:, 1:]
    behaviour = score(policy, drawn.tokens, drawn.attention_mask).detach()
    learner = Learner({"actor": policy}, lr=3e-3)
    advantage = (drawn.tokens[:, 1:] % 3 == 0).float() - 0.5
    reports = []
    for version in range(9):
        now = score(policy, drawn.tokens, drawn.attention_mask)
        if version % 2 == 0:
            rows = zip((now.detach() - behaviour).tolist(), mask.tolist())
            reports.append(staleness_report([Aged(0, 0, tuple(r), tuple(m)) for r, m in rows], version))
        learner.descend([policy_gradient_loss(now, advantage, mask, how="token")])
    assert [r.max_lag for r in reports] == [0, 2, 4, 6, 8]
    spread = [r.ratio_quantiles["95%"] - r.ratio_quantiles["5%"] for r in reports]
    size = [r.effective_sample_size for r in reports]
    assert spread[0] == pytest.approx(0, abs=1e-4) and size[0] == pytest.approx(int(mask.sum()), rel=1e-6)
    assert all(a < b for a, b in zip(spread, spread[1:])) and all(a > b for a, b in zip(size, size[1:]))
    assert size[-1] < 0.95 * size[0]
