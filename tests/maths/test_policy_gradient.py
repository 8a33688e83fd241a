"""Policy-gradient losses: goldens, gradients, unbiasedness by enumeration, and what clipping does on each side."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.credit.returns import whiten
from course.objectives.policy_gradient import (
    clip_report,
    clipped_token_loss,
    entropy_bonus,
    overlong_penalty,
    policy_gradient_loss,
    ppo_actor_loss,
    ppo_ptx_loss,
)

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


# --------------------------------------------------------------------------------------------------------- score function
LOGITS, ARM_REWARDS = f64([0.2, -0.4, 0.9]), f64([1.0, 0.2, 0.5])


def bandit_gradients(baseline):
    """One-sample gradients of the loss for each arm, and the arms' probabilities."""
    z = LOGITS.clone().requires_grad_(True)
    logp = torch.log_softmax(z, 0)
    one = torch.ones(1, 1)
    per_arm = [
        torch.autograd.grad(policy_gradient_loss(logp[a].view(1, 1), (ARM_REWARDS[a] - baseline).view(1, 1), one, how="token"), z,
                            retain_graph=True)[0]
        for a in range(3)
    ]  # fmt: skip
    return torch.stack(per_arm), logp.detach().exp()


@pytest.mark.parametrize("baseline", [0.0, 0.5, -3.0])
def test_the_score_function_gradient_is_unbiased_whatever_the_baseline(baseline):
    per_arm, probability = bandit_gradients(baseline)
    exact = gradient(lambda z: -(z.softmax(0) * ARM_REWARDS).sum(), LOGITS)
    torch.testing.assert_close((probability[:, None] * per_arm).sum(0), exact, rtol=1e-10, atol=1e-13)


def test_a_baseline_changes_the_spread():
    def spread(baseline):
        per_arm, probability = bandit_gradients(baseline)
        mean = (probability[:, None] * per_arm).sum(0)
        return (probability[:, None] * (per_arm - mean).square()).sum().item()

    assert spread(0.6) < spread(0.0) < spread(-3.0)


@pytest.mark.parametrize("credit", ["return", "return to go", "advantage"])
def test_a_two_token_episode_by_enumeration(credit):
    """All four sequences of a table policy, each with its probability: three kinds of credit, one expected gradient."""
    table, first_reward, second_reward = normal(0, 3, 2), normal(1, 2), normal(2, 2, 2)
    sequences = list(itertools.product(range(2), repeat=2))
    rewards = torch.stack([torch.stack([first_reward[a], second_reward[a, b]]) for a, b in sequences])

    def logp(z):  # row 0 of the table: logits of token 1; row 1 + a: logits of token 2 after token 1 = a
        return torch.stack(
            [torch.stack([torch.log_softmax(z[0], 0)[a], torch.log_softmax(z[1 + a], 0)[b]]) for a, b in sequences]
        )

    to_go = rewards.flip(1).cumsum(1).flip(1)
    baseline = torch.stack([torch.stack([f64(0.3), f64([-1.0, 2.0])[a]]) for a, _ in sequences])  # a function of the prefix only
    credits = {"return": rewards.sum(1, keepdim=True).expand(4, 2), "return to go": to_go, "advantage": to_go - baseline}
    weighted = credits[credit] * logp(table).sum(1, keepdim=True).exp()
    got = gradient(lambda z: policy_gradient_loss(logp(z), weighted, torch.ones(4, 2), how="token", denominator=1), table)
    exact = gradient(lambda z: -(logp(z).sum(1).exp() * rewards.sum(1)).sum(), table)
    torch.testing.assert_close(got, exact, rtol=1e-10, atol=1e-12)


@given(st.integers(0, 10_000), st.sampled_from(["token", "response"]))
@settings(deadline=None, max_examples=25)
def test_policy_gradient_against_a_loop(seed, how):
    logp, advantage, mask = -normal(seed, 3, 4).abs(), normal(seed + 1, 3, 4), coins(seed, 3, 4)
    rows = [[(-advantage[b, t] * logp[b, t]).item() for t in range(4) if mask[b, t]] for b in range(3)]
    rows = [r for r in rows if r]
    flat = sum(rows, [])
    expected = sum(flat) / max(1, len(flat)) if how == "token" else sum(sum(r) / len(r) for r in rows) / max(1, len(rows))
    got = policy_gradient_loss(logp, advantage, mask, how=how)
    assert got.item() == pytest.approx(expected, rel=1e-11, abs=1e-13)
    dirty = logp.masked_fill(~mask, -INF), advantage.masked_fill(~mask, NAN)
    assert torch.equal(policy_gradient_loss(*dirty, mask.int(), how=how), got)
    grad = gradient(lambda z: policy_gradient_loss(z, dirty[1], mask, how=how), dirty[0])
    assert torch.isfinite(grad).all() and (grad[~mask] == 0).all()


def test_advantage_one_is_imitation_and_no_gradient_flows_into_advantages():
    logp, mask = -normal(0, 2, 3).abs(), torch.tensor([[1, 1, 0], [1, 0, 0]])
    got = policy_gradient_loss(logp, torch.ones(2, 3).double(), mask, how="token")
    assert got.item() == pytest.approx(-logp[mask == 1].mean().item())
    logp, advantage, old = (normal(i, 2, 3).requires_grad_(True) for i in range(3))
    policy_gradient_loss(logp, advantage, mask, how="token").backward()
    ppo_actor_loss(logp, old, advantage, mask).backward()
    assert advantage.grad is None and old.grad is None and logp.grad is not None


# --------------------------------------------------------------------------------------------------------------- clipping
def one(ratio, advantage, low=0.2, high=0.2):
    logp = f64([[math.log(ratio)]]).requires_grad_(True)
    loss = clipped_token_loss(logp, torch.zeros(1, 1).double(), f64([[advantage]]), clip_low=low, clip_high=high)
    return loss.item(), torch.autograd.grad(loss.sum(), logp)[0].item()


@pytest.mark.parametrize(
    "ratio, advantage, loss, grad",
    [
        (1.4, 2, -2.4, 0),
        (0.6, -2, 1.6, 0),
        (0.7, 1, -0.7, -0.7),
        (0.7, -1, 0.8, 0),
        (1.0, 1, -1, -1),
        (1.0, -1, 1, 1),
        (1.3, 1, -1.2, 0),
        (1.3, -1, 1.3, 1.3),
        (1.3, 0, 0, 0),
        (5.0, -1, 5, 5),
    ],
)
def test_golden_clip_table(ratio, advantage, loss, grad):
    assert one(ratio, advantage) == pytest.approx((loss, grad), abs=1e-12)


def test_golden_vectors_of_rlax():
    """rlax/_src/policy_gradients_test.py."""
    ratio, advantage = f64([[1, 1, 0.1353353]]), f64([[0.3, 0.2, 0.1]])
    zero, mask = torch.zeros(1, 3).double(), torch.ones(1, 3)
    assert ppo_actor_loss(ratio.log(), zero, advantage, mask).item() == pytest.approx(-0.17117467, abs=1e-5)
    assert ppo_actor_loss(ratio.log(), zero, -advantage, mask).item() == pytest.approx(0.19333333, abs=1e-7)


def slow_ppo(new, old, advantage, mask, low, high):
    terms = []
    for n, o, a, m in zip(*(x.reshape(-1).tolist() for x in (new, old, advantage, mask))):
        if m:
            ratio = math.exp(n - o)
            terms.append(-min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a))
    return terms


@given(st.integers(0, 10_000), st.sampled_from([(0.2, 0.2), (0.2, 0.28), (0.05, 1.5), (0.3, 3.0)]))
@settings(deadline=None, max_examples=40)
def test_clipped_losses_against_a_loop(seed, bounds):
    new, old, advantage = normal(seed, 3, 4), normal(seed + 1, 3, 4), normal(seed + 2, 3, 4)
    mask = coins(seed, 3, 4)
    got = clipped_token_loss(new, old, advantage, clip_low=bounds[0], clip_high=bounds[1], mask=mask)
    torch.testing.assert_close(got[mask], f64(slow_ppo(new, old, advantage, mask, *bounds)), rtol=1e-11, atol=1e-13)
    assert (got[~mask] == 0).all()
    everywhere = clipped_token_loss(new, old, advantage, clip_low=bounds[0], clip_high=bounds[1])
    assert torch.equal(everywhere[mask], got[mask])
    terms = slow_ppo(new, old, advantage, mask, 0.2, 0.2)
    dirty = (x.masked_fill(~mask, fill) for x, fill in ((new, NAN), (old, INF), (advantage, -INF)))
    loss = ppo_actor_loss(*dirty, mask.int())
    assert loss.item() == pytest.approx(sum(terms) / max(1, len(terms)), rel=1e-11, abs=1e-13)
    dirty_new = new.masked_fill(~mask, 1e6)
    grad = gradient(lambda z: ppo_actor_loss(z, old, advantage.masked_fill(~mask, NAN), mask), dirty_new)
    assert torch.isfinite(grad).all() and (grad[~mask] == 0).all()

    def textbook(z):
        ratio = (z - old).exp()
        term = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return (term * mask).sum() / mask.sum().clamp(min=1)

    expected = gradient(textbook, new)
    torch.testing.assert_close(gradient(lambda z: ppo_actor_loss(z, old, advantage, mask), new), expected, rtol=1e-9, atol=1e-12)


def test_right_after_sampling_it_is_the_policy_gradient():
    logp, mask = -normal(0, 2, 4).abs(), torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0]])
    advantage = normal(1, 2, 4)
    assert ppo_actor_loss(logp, logp, advantage, mask).item() == pytest.approx(-advantage[mask == 1].mean().item())
    ppo = gradient(lambda z: ppo_actor_loss(z, logp, advantage, mask), logp)
    reinforce = gradient(lambda z: policy_gradient_loss(z, advantage, mask, how="token"), logp)
    torch.testing.assert_close(ppo, reinforce, rtol=1e-12, atol=1e-14)
    group = whiten(f64([[1, -1, 1, -1]]), torch.ones(1, 4))
    args = torch.zeros(1, 4).double(), group, torch.ones(1, 4)
    assert ppo_actor_loss(f64([[0, 0, 0, 0]]), *args).item() == 0
    assert gradient(lambda z: ppo_actor_loss(z, *args), f64([[0, 0, 0, 0]])).tolist() == [[-0.25, 0.25, -0.25, 0.25]]


def test_clip_higher_moves_one_side_only():
    assert one(1.25, 1, high=0.28) == pytest.approx((-1.25, -1.25)) and one(1.25, 1) == pytest.approx((-1.2, 0))
    assert one(0.7, -1, high=0.28) == one(0.7, -1)
    assert one(1e4, 1, high=INF) == pytest.approx((-1e4, -1e4))


def test_a_clipped_ratio_that_overflows_sends_no_nan():
    new = torch.tensor([[1000.0, 1000.0, -1000.0]])
    args = torch.zeros(1, 3), torch.tensor([[1.0, 0.0, -1.0]]), torch.ones(1, 3)
    assert ppo_actor_loss(new, *args).item() == pytest.approx((-1.2 + 0.8) / 3, rel=1e-6)
    assert gradient(lambda z: ppo_actor_loss(z, *args), new).tolist() == [[0, 0, 0]]


@given(st.integers(0, 10_000), st.integers(1, 3))
@settings(deadline=None, max_examples=15)
def test_micro_batches_add_up(seed, cut):
    new, old, advantage, mask = normal(seed, 4, 3), normal(seed + 1, 4, 3), normal(seed + 2, 4, 3), coins(seed, 4, 3)
    count = max(1, int(mask.sum()))
    parts = [ppo_actor_loss(new[s], old[s], advantage[s], mask[s], denominator=count) for s in (slice(0, cut), slice(cut, None))]
    torch.testing.assert_close(sum(parts), ppo_actor_loss(new, old, advantage, mask), rtol=1e-12, atol=1e-14)
    logits = normal(seed, 4, 3, 5)
    parts = [entropy_bonus(logits[s], mask[s], denominator=count) for s in (slice(0, cut), slice(cut, None))]
    torch.testing.assert_close(sum(parts), entropy_bonus(logits, mask), rtol=1e-12, atol=1e-14)


def test_clipping_arguments():
    z, m = torch.zeros(1, 2), torch.ones(1, 2)
    for bad in (0, -0.1, NAN):
        with pytest.raises(ValueError, match="clip_eps"):
            ppo_actor_loss(z, z, z, m, bad)
        with pytest.raises(ValueError, match="clip_eps"):
            clip_report(z, z, z, m, z.long(), bad)
        with pytest.raises(ValueError, match="clip_low"):
            clipped_token_loss(z, z, z, clip_low=bad, clip_high=0.2)
        with pytest.raises(ValueError, match="clip_high"):
            clipped_token_loss(z, z, z, clip_low=0.2, clip_high=bad)
    for i, name in enumerate(("logp_new", "logp_old", "advantage")):
        args = [z, z, z]
        args[i] = z * NAN
        for call in (lambda: ppo_actor_loss(*args, m), lambda: clip_report(*args, m, z.long(), 0.2)):
            with pytest.raises(ValueError, match=f"{name} must be finite"):
                call()
    with pytest.raises(ValueError, match="action_mask"):
        ppo_actor_loss(z, z, z, m * 2)
    with pytest.raises(REFUSED):
        ppo_actor_loss(z, z, torch.zeros(1, 3), m)
    with pytest.raises(ValueError, match="advantage must have the mask's shape"):
        inspect.unwrap(clipped_token_loss)(z, z, torch.zeros(1, 3), clip_low=0.2, clip_high=0.2)
    with pytest.raises(ValueError, match="action_type"):
        inspect.unwrap(clip_report)(z, z, z, m, torch.zeros(1, 3).long(), 0.2)
    with pytest.raises(ValueError, match="advantage must be finite"):
        policy_gradient_loss(z, z + INF, m, how="token")
    assert ppo_actor_loss(z, z, z, m * 0).item() == 0
    half = ppo_actor_loss(z.bfloat16(), z.bfloat16(), (z + 1).bfloat16(), m)
    assert half.dtype == torch.float32 and half.item() == -1


# ------------------------------------------------------------------------------------------------------------ clip report
def test_report_of_a_hand_made_table():
    ratio = f64([[1.5, 0.5, 1.0, 9.0], [1.1, 2.0, 0.1, 9.0]])
    advantage = f64([[1, 1, 1, 1], [-1, -1, -1, NAN]])
    mask, kind = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0]]), torch.tensor([[7, 7, 7, 7], [7, -2, -2, 5]])
    report = clip_report(ratio.log(), torch.zeros(2, 4).double(), advantage, mask, kind, 0.2)
    assert list(report) == ["all", -2, 7]
    assert report["all"]["clip_fraction"] == pytest.approx(2 / 6)  # 1.5 with A > 0, 0.1 with A < 0; not 0.5 and 2.0
    assert report[7]["clip_fraction"] == pytest.approx(1 / 4) and report[-2]["clip_fraction"] == pytest.approx(1 / 2)
    assert [report[k]["tokens"] for k in report] == [6, 2, 4] and type(report[7]["tokens"]) is int
    assert report["all"]["ratio_max"] == pytest.approx(2.0) and report["all"]["ratio_q50"] == pytest.approx(1.05)
    ordered = sorted([1.5, 0.5, 1.0, 1.1])
    for q, name in ((0.5, "ratio_q50"), (0.9, "ratio_q90"), (0.99, "ratio_q99")):
        place = q * 3
        low = int(place)
        expected = ordered[low] + (place - low) * (ordered[min(low + 1, 3)] - ordered[low])
        assert report[7][name] == pytest.approx(expected)
    assert all(type(v) is float for row in report.values() for k, v in row.items() if k != "tokens")


def test_one_extreme_action_shows_under_a_small_mean_kl():
    new, old = torch.zeros(10, 100).double(), torch.zeros(10, 100).double()
    new[3, 7] = math.log(10)
    kind = torch.zeros(10, 100).long()
    kind[:, 7] = 1
    report = clip_report(new, old, torch.ones(10, 100).double(), torch.ones(10, 100), kind, 0.2)
    assert (new - old).mean() < 0.003 and report["all"]["ratio_q99"] == 1
    assert report[1]["clip_fraction"] == pytest.approx(0.1) and report[1]["ratio_max"] == pytest.approx(10)
    assert report[0] == {**report[0], "clip_fraction": 0.0, "ratio_max": 1.0, "tokens": 990}


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_clipped_tokens_are_those_without_gradient(seed):
    new, old, advantage, mask = normal(seed, 3, 5), normal(seed + 1, 3, 5), normal(seed + 2, 3, 5), coins(seed, 3, 5)
    kind = (3 * normal(seed + 3, 3, 5)).long()
    report = clip_report(new, old, advantage, mask, kind, 0.2)
    dead = gradient(lambda z: ppo_actor_loss(z, old, advantage, mask), new) == 0
    for key, row in report.items():
        chosen = mask if key == "all" else mask & (kind == key)
        assert row["tokens"] == chosen.sum()
        if row["tokens"]:
            assert row["clip_fraction"] == pytest.approx(dead[chosen].double().mean().item())
    padded = (torch.nn.functional.pad(x, (0, 2), value=NAN) for x in (new, old, advantage))
    flags = (torch.nn.functional.pad(x, (0, 2)) for x in (mask, kind))
    again = clip_report(*padded, *flags, 0.2)
    assert str(again) == str(report)


def test_reports_right_after_sampling_and_of_nothing():
    logp, kind = normal(0, 2, 3), torch.tensor([[0, 1, 1], [0, 0, 1]])
    report = clip_report(logp, logp, normal(1, 2, 3), torch.ones(2, 3), kind, 0.2)
    for row in report.values():
        assert row["clip_fraction"] == 0 and [row[f"ratio_{q}"] for q in ("q50", "q90", "q99", "max")] == [1, 1, 1, 1]
    nothing = clip_report(logp, logp, logp, torch.zeros(2, 3), kind, 0.2)
    assert list(nothing) == ["all"] and nothing["all"]["tokens"] == 0 and nothing["all"]["clip_fraction"] == 0
    assert math.isnan(nothing["all"]["ratio_q50"])


# ------------------------------------------------------------------------------------------------------------------ ptx
def test_ptx_adds_the_two_gradients():
    theta = normal(0, 4)
    ppo, nll = lambda z: (z**3).sum(), lambda z: torch.logsumexp(z, 0)  # noqa: E731
    both = gradient(lambda z: ppo_ptx_loss(ppo(z), nll(z), 0.7), theta)
    torch.testing.assert_close(both, gradient(ppo, theta) + 0.7 * gradient(nll, theta))
    assert ppo_ptx_loss(f64(-2.0), f64(3.0), 0.5).item() == -0.5
    assert torch.equal(gradient(lambda z: ppo_ptx_loss(ppo(z), nll(z), 0), theta), gradient(ppo, theta))


def test_ptx_arguments():
    x, unwrapped = torch.tensor(1.0), inspect.unwrap(ppo_ptx_loss)
    for gamma in (-1, NAN, INF):
        with pytest.raises(ValueError, match="gamma"):
            ppo_ptx_loss(x, x, gamma)
    with pytest.raises(ValueError, match="ppo must be finite"):
        ppo_ptx_loss(x * NAN, x, 1)
    with pytest.raises(ValueError, match="pretrain_nll must be finite"):
        ppo_ptx_loss(x, x * INF, 1)
    for args in ((torch.ones(2), x), (x, torch.ones(2))):
        with pytest.raises(REFUSED):
            ppo_ptx_loss(*args, 1)
        with pytest.raises(ValueError, match="must be a scalar"):
            unwrapped(*args, 1)


# --------------------------------------------------------------------------------------------------------------- overlong
def test_golden_overlong_penalties():
    got = overlong_penalty(torch.tensor([1, 16, 17, 18, 20, 21, 500]), 20, 4)
    assert got.tolist() == [0, 0, -0.25, -0.5, -1, -1, -1] and got.is_floating_point()
    assert overlong_penalty(18, 20, 4).item() == -0.5 and overlong_penalty(18, 20, 4).dim() == 0
    assert overlong_penalty(torch.tensor([17.0]).double(), 20, 4).dtype == torch.float64


@given(st.integers(1, 50), st.integers(0, 50))
@settings(deadline=None, max_examples=25)
def test_the_penalty_falls_without_a_jump(buffer, spare):
    longest = buffer + spare
    got = overlong_penalty(torch.arange(longest + 5), longest, buffer)
    assert got[spare] == 0 and got[longest] == -1 and (got[:spare] == 0).all() and (got[longest:] == -1).all()
    steps = got[spare : longest + 1].diff()
    torch.testing.assert_close(steps, torch.full((buffer,), -1 / buffer), rtol=1e-4, atol=1e-6)


def test_overlong_arguments():
    for longest, buffer in ((10, 0), (10, 11), (10, -1)):
        with pytest.raises(ValueError, match="buffer"):
            overlong_penalty(torch.tensor([1]), longest, buffer)
    for bad in (torch.tensor([-1]), torch.tensor([NAN]), torch.tensor([INF]), -2):
        with pytest.raises(ValueError, match="length"):
            overlong_penalty(bad, 10, 2)


# ---------------------------------------------------------------------------------------------------------------- entropy
def test_golden_entropies():
    law = f64([[[0.5, 0.25, 0.25], [1, 1, 1]]]).log()
    first = torch.tensor([[1, 0]])
    assert entropy_bonus(law, first).item() == pytest.approx(1.039721, abs=1e-6)
    assert entropy_bonus(law, 1 - first).item() == pytest.approx(math.log(3))
    assert entropy_bonus(law, torch.ones(1, 2)).item() == pytest.approx((1.039721 + math.log(3)) / 2, abs=1e-6)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=20)
def test_entropy_value_and_gradient(seed):
    logits, mask = normal(seed, 2, 3, 4), coins(seed, 2, 3)
    logits[..., 0] = -INF
    p = logits.softmax(-1)
    terms = -(p[..., 1:] * p[..., 1:].log()).sum(-1)
    expected = terms[mask].sum() / mask.sum().clamp(min=1)
    dirty = logits.masked_fill(~mask[..., None], NAN)
    torch.testing.assert_close(entropy_bonus(dirty, mask), expected, rtol=1e-11, atol=1e-13)
    grad = gradient(lambda z: entropy_bonus(z, mask), dirty)
    textbook = torch.where(p > 0, -p * (p.log() + terms[..., None]), 0.0) / mask.sum().clamp(min=1)
    torch.testing.assert_close(grad, torch.where(mask[..., None], textbook, 0.0), rtol=1e-9, atol=1e-12)


def test_entropy_of_nothing_and_its_arguments():
    logits = torch.zeros(1, 2, 3)
    assert entropy_bonus(logits * NAN, torch.zeros(1, 2)).item() == 0
    assert (gradient(lambda z: entropy_bonus(z, torch.zeros(1, 2)), logits) == 0).all()
    for bad in (NAN, INF, -INF):
        with pytest.raises(ValueError, match="logits"):
            entropy_bonus(logits + bad, torch.ones(1, 2))
    with pytest.raises(ValueError, match="denominator"):
        entropy_bonus(logits, torch.ones(1, 2), denominator=0)
    with pytest.raises(ValueError, match="action_mask"):
        entropy_bonus(logits, torch.ones(1, 2) * 3)
    with pytest.raises(ValueError, match="logits must be"):
        inspect.unwrap(entropy_bonus)(logits[0], torch.ones(2, 3))
    assert entropy_bonus(logits.bfloat16(), torch.ones(1, 2)).dtype == torch.float32
