"""Forecasts of the parameter path: signs, exact cases, the round that jumps, and its bill."""

from hypothesis import given, settings, strategies as st
import pytest
import torch
from test_round import fresh, operators

from course.accounting.budget import Cost
from course.accounting.ledger import verify_ledger
from course.training.extrapolation import (
    Factors,
    Path,
    factors,
    forecast,
    forecast_cost,
    jump_round,
    jump_run,
    projector_change,
    signed_change,
)
from course.training.round import copies, run_rounds, state_digest


def low_rank(m, n, rank, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(m, rank, generator=g, dtype=torch.float64) @ torch.randn(rank, n, generator=g, dtype=torch.float64)


def path_of(weights):
    return Path(tuple({"w": w} for w in weights))


def noisy(m, n, count, seed):
    """A path with a drift and steps of chance."""
    g = torch.Generator().manual_seed(seed)
    w, drift, weights = torch.zeros(m, n, dtype=torch.float64), low_rank(m, n, 1, seed + 1), []
    for _ in range(count):
        weights.append(w)
        w = w + drift + 0.5 * torch.randn(m, n, generator=g, dtype=torch.float64)
    return weights


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 6), st.integers(2, 6), st.integers(1, 3), st.integers(0, 99))
def test_factors_against_the_definition(m, n, rank, seed):
    rank = min(rank, m, n)
    delta = low_rank(m, n, min(m, n), seed)
    u, s, v = factors(delta, rank)
    eye = torch.eye(rank, dtype=torch.float64)
    torch.testing.assert_close(u.T @ u, eye, atol=1e-9, rtol=0)
    torch.testing.assert_close(v.T @ v, eye, atol=1e-9, rtol=0)
    torch.testing.assert_close(delta @ v, u * s, atol=1e-8, rtol=1e-8)
    assert all(column[column.abs().argmax()] > 0 for column in u.T)  # the declared convention
    again = factors(-delta, rank)
    torch.testing.assert_close(again.u, u, atol=1e-8, rtol=0)
    torch.testing.assert_close(again.v, -v, atol=1e-8, rtol=0)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 999), st.lists(st.sampled_from([-1.0, 1.0]), min_size=4, max_size=4))
def test_the_projector_form_knows_no_signs(seed, signs):
    """Flipped together or one by one: P_u D P_v is the same. A slow twin with the projectors themselves says what it should be."""
    weights = noisy(5, 4, 5, seed)
    deltas = [w - weights[0] for w in weights]
    found = factors(deltas[-1], 2)
    a, b = torch.tensor(signs[:2], dtype=torch.float64), torch.tensor(signs[2:], dtype=torch.float64)
    change = projector_change(deltas, found, 3)
    torch.testing.assert_close(
        projector_change(deltas, Factors(found.u * a, found.s, found.v * b), 3), change, atol=1e-12, rtol=0
    )
    slow = torch.zeros(5, 4, dtype=torch.float64)
    for u, v in zip(found.u.T, found.v.T):
        p, q = torch.outer(u, u), torch.outer(v, v)
        projected = [p @ d @ q for d in deltas]
        slow += 3 * sum((t - 2) * d for t, d in enumerate(projected)) / 10  # 10 = sum of (t - 2)^2
    torch.testing.assert_close(change, slow, atol=1e-10, rtol=0)


def test_signed_factors_depend_on_the_convention():
    """One flip at one checkpoint is another forecast, though it describes the same path."""
    weights = noisy(5, 4, 5, 0)
    steps = [factors(b - a, 1) for a, b in zip(weights, weights[1:])]
    flipped = [Factors(-f.u, f.s, -f.v) if i == 1 else f for i, f in enumerate(steps)]
    for f, g in zip(steps, flipped):
        torch.testing.assert_close(f.u * f.s @ f.v.T, g.u * g.s @ g.v.T)
    one, two = signed_change(steps, 2), signed_change(flipped, 2)
    assert float((one - two).norm()) > 0.1 * float(one.norm())
    everywhere = [Factors(-f.u, f.s, -f.v) for f in steps]
    torch.testing.assert_close(signed_change(everywhere, 2), one)  # all at once: another convention, the same forecast


@pytest.mark.parametrize("form", ["projector", "signed"])
@pytest.mark.parametrize("horizon", [1, 4])
def test_a_straight_path_goes_on(form, horizon):
    g = low_rank(6, 4, 2, 3)
    path = path_of([low_rank(6, 4, 4, 1) + t * g for t in range(4)])
    torch.testing.assert_close(forecast(path, horizon=horizon, rank=2, form=form)["w"], horizon * g, atol=1e-8, rtol=1e-8)
    tall = forecast(path, horizon=horizon, rank=99, form="projector")["w"]  # the rank is cut
    torch.testing.assert_close(tall, horizon * g, atol=1e-8, rtol=1e-8)


def test_a_path_that_stands_still_stays():
    w = low_rank(3, 3, 3, 0)
    for form in ("projector", "signed"):
        assert forecast(path_of([w, w, w]), horizon=5, rank=2, form=form)["w"].abs().max() < 1e-12


def test_a_forecast_stays_in_the_subspace_it_represents():
    weights = noisy(6, 5, 4, 2)
    found = factors(weights[-1] - weights[0], 1)
    change = forecast(path_of(weights), horizon=2, rank=1, form="projector")["w"]
    p, q = found.u @ found.u.T, found.v @ found.v.T
    torch.testing.assert_close(p @ change @ q, change, atol=1e-10, rtol=0)


def test_costs_by_hand():
    path = path_of([torch.zeros(6, 4, dtype=torch.float64)] * 3)
    once = 4 * 36 * 4 + 8 * 6 * 16 + 9 * 64
    assert path.bytes == 3 * 24 * 8
    assert forecast_cost(path, rank=2, form="projector") == Cost(stored_bytes=576, fit_flops=once + 2 * 24 * 2 * 2)
    assert forecast_cost(path, rank=9, form="signed") == Cost(stored_bytes=576, fit_flops=2 * (once + 4 * 10 * 4))


def test_what_forecasts_refuse():
    w = torch.zeros(3, 3)
    for count, form in ((1, "projector"), (2, "signed")):
        with pytest.raises(ValueError, match=f"at least {count + 1} checkpoints"):
            forecast(path_of([w] * count), horizon=1, rank=1, form=form)
    for rank in (0, 4):
        with pytest.raises(ValueError, match="rank must lie in 1..3"):
            factors(w, rank)
    with pytest.raises(ValueError, match="deltas must be at least two"):
        projector_change([w], factors(w, 1), 1)


# ---------------------------------------------------------------- the jump as a round


def travelled(rounds=3):
    learner, path = fresh(average=0.9), Path()
    ledger, path = (), path.add(learner)
    for entry in run_rounds(learner, operators(), rounds=rounds, seed=1):
        ledger, path = (*ledger, entry), path.add(learner)
    return learner, ledger, path


def test_a_jump_is_a_round_of_the_ledger():
    """The matrices move by the forecast and nothing else does; storage and fit are in the bill; recovery goes on from there."""
    learner, ledger, path = travelled()
    before = copies(learner)
    jump = jump_round(operators(), path, horizon=2, rank=2, scale=0.5)
    (entry,) = run_rounds(learner, jump, rounds=4, seed=1, ledger=ledger)
    moved = forecast(path, horizon=2, rank=2, form="projector")
    for name, tensor in learner.tensors().items():
        expected = before[name] + 0.5 * moved[name] if name in moved else before[name]
        torch.testing.assert_close(tensor, expected, msg=name)
    assert any("exp_avg" in name for name in before) and len(moved) > 3
    assert any(not torch.equal(learner.tensors()[name], before[name]) for name in moved)
    assert entry.round.cost["stored_bytes"] == path.bytes and entry.round.cost["fit_flops"] > 0
    assert entry.round.cost["sampled_tokens"] > 0 and "trained_tokens" not in entry.round.cost
    assert "projector" in entry.round.operators["update"] and "signed" not in entry.round.operators["update"]
    rest = tuple(run_rounds(learner, operators(), rounds=5, seed=1, ledger=(*ledger, entry)))
    assert verify_ledger((*ledger, entry, *rest)) is None and rest[0].round.cost["trained_tokens"] > 0


def test_a_rejected_jump_changes_nothing_but_the_bill():
    learner, ledger, path = travelled()
    before = state_digest(learner)
    jump = jump_round(operators(), path, horizon=2, rank=1, accept=lambda d: d["moved"] < 0)
    (entry,) = run_rounds(learner, jump, rounds=4, seed=1, ledger=ledger)
    assert (entry.round.decision, state_digest(learner)) == ("reject", before)
    assert entry.round.cost["stored_bytes"] == path.bytes and entry.round.proposed != before


def test_a_path_that_ends_elsewhere_is_refused():
    learner, ledger, path = travelled()
    jump = jump_round(operators(), Path(path.checkpoints[:-1]), horizon=1, rank=1)
    with pytest.raises(ValueError, match="path must end at the learner's weights"):
        tuple(run_rounds(learner, jump, rounds=4, seed=1, ledger=ledger))


def size(policy):
    return float(policy.model.embedding.weight.detach().norm())


def test_the_whole_comparison():
    """Bills add up: the jumping run pays for its rounds and for storage and fit, the plain ones for their rounds alone."""
    start = fresh()["actor"]
    options = {"lr": 1e-3, "trained": 2, "every": 1, "horizon": 2, "recovery": 1, "rank": 2}
    found = jump_run(3, start, operators(), size, **options)
    assert found == jump_run(3, start, operators(), size, **options)
    assert list(found.quality) == ["start", "trained", "jumped", "recovered", "short", "long"]
    assert len(set(found.quality.values())) == 6
    episodes = {name: cost["episodes"] for name, cost in found.cost.items()}
    assert episodes == {"jumping": 16, "short": 12, "long": 20}
    assert found.cost["jumping"]["stored_bytes"] > 0 and "stored_bytes" not in found.cost["long"]
    with pytest.raises(ValueError, match="trained must be a multiple of every"):
        jump_run(3, start, operators(), lambda p: 0.0, **{**options, "every": 3})
