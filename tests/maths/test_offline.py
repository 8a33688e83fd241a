"""Offline values: targets, expectiles, penalties, and what they do to actions that no one recorded on a small chain."""

import dataclasses
import inspect
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError, config

from course.credit.returns import next_action_values
from course.objectives.direct import optimal_policy
from course.objectives.offline import (
    awac_loss,
    awac_weight,
    cql_penalty,
    expectile,
    expectile_loss,
    ilql_losses,
    td_loss,
    td_target,
    value_guided_logits,
    verifier_q_loss,
)
from course.objectives.policy_gradient import policy_gradient_loss
from course.objectives.value import critic_loss

REFUSED = (ValueError, TypeCheckError)
NAN, INF = float("nan"), float("inf")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def integers(seed, high, *shape):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def coins(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def gradient(loss, x):
    z = x.clone().requires_grad_(True)
    return torch.autograd.grad(loss(z), z)[0]


# --------------------------------------------------------------------------------------------------------- Bellman target
def test_the_target_does_not_look_past_a_terminal():
    reward, terminated = f64([1, 2, 3]), torch.tensor([0, 1, 0])
    assert td_target(reward, f64([10, NAN, -10]), terminated, 0.5).tolist() == [6, 2, -2]
    assert torch.equal(td_target(reward, f64([10, INF, -10]), terminated.bool(), 0.5), f64([6, 2, -2]))
    assert td_target(reward, f64([10, 10, 10]), terminated, 0).tolist() == [1, 2, 3]
    following = f64([1.0]).requires_grad_(True)
    assert not td_target(f64([1.0]).requires_grad_(True), following, torch.zeros(1), 1.0).requires_grad


def test_target_arguments():
    r, no = torch.zeros(2), torch.zeros(2)
    for gamma in (-0.1, 1.1, NAN):
        with pytest.raises(ValueError, match="gamma"):
            td_target(r, r, no, gamma)
    with pytest.raises(ValueError, match="next_value must be finite"):
        td_target(r, r * NAN, no, 1.0)
    with pytest.raises(ValueError, match="reward must be finite"):
        td_target(r + INF, r, no, 1.0)
    with pytest.raises(ValueError, match="terminated"):
        td_target(r, r, no + 2, 1.0)
    with pytest.raises(ValueError, match="reward and next_value"):
        inspect.unwrap(td_target)(r, torch.zeros(3), no, 1.0)


def slow_td(q, action, target, mask):
    terms = [
        (q[b, t, action[b, t]] - target[b, t]).item() ** 2 / 2 for b in range(len(q)) for t in range(q.shape[1]) if mask[b, t]
    ]
    return sum(terms) / max(1, len(terms))


def junk(mask, q, action, *others):
    return (q.masked_fill(~mask[..., None], NAN), action.masked_fill(~mask, -100), *(x.masked_fill(~mask, NAN) for x in others))


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=12)
def test_td_loss_against_a_loop(seed):
    q, action, target, mask = normal(seed, 3, 4, 5), integers(seed, 5, 3, 4), normal(seed + 1, 3, 4), coins(seed, 3, 4)
    dirty = junk(mask, q, action, target)
    got = td_loss(*dirty, mask.int())
    assert got.item() == pytest.approx(slow_td(q, action, target, mask), rel=1e-11)
    chosen = q.gather(-1, action[..., None])[..., 0]
    torch.testing.assert_close(got, critic_loss(chosen, target, mask), rtol=1e-12, atol=1e-14)
    grad = gradient(lambda z: td_loss(z, dirty[1], dirty[2], mask), dirty[0])
    assert torch.isfinite(grad).all() and ((grad != 0).sum(-1) == mask).all()
    constant = target.requires_grad_(True)
    assert torch.autograd.grad(td_loss(q.requires_grad_(True), action, constant, mask), constant, allow_unused=True)[0] is None


# -------------------------------------------------------------------------------------------------------------- expectiles
@pytest.mark.parametrize("tau, value", [(0.5, 0.25), (0.7, 0.4375), (0.9, 0.75)])
def test_golden_expectiles(tau, value):
    assert expectile(f64([0, 1, 0, 0]), tau).item() == pytest.approx(value, rel=1e-12)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=7), st.sampled_from([0.05, 0.3, 0.5, 0.8, 0.99]))
@settings(deadline=None, max_examples=40)
def test_an_expectile_balances_and_minimises(numbers, tau):
    x = f64(numbers)
    e = expectile(x, tau)
    assert (tau * (x - e).clamp(min=0).sum() - (1 - tau) * (e - x).clamp(min=0).sum()).abs() < 1e-12
    assert gradient(lambda v: expectile_loss(x - v, tau), e).abs() < 1e-12
    for other in (e - 0.1, e + 0.1):
        assert expectile_loss(x - other, tau) > expectile_loss(x - e, tau)
    batch = expectile(torch.stack([x, x.flip(0), 2 * x + 1]), tau)
    torch.testing.assert_close(batch, torch.stack([e, e, 2 * e + 1]), rtol=1e-12, atol=1e-12)


def test_the_ends_of_tau():
    x = normal(0, 3, 6)
    torch.testing.assert_close(expectile(x, 0.5), x.mean(-1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(expectile(x, 1 - 1e-9), x.amax(-1), rtol=0, atol=1e-7)
    torch.testing.assert_close(expectile(x, 1e-9), x.amin(-1), rtol=0, atol=1e-7)
    rising = torch.stack([expectile(x, tau) for tau in (0.1, 0.4, 0.5, 0.6, 0.9)])
    assert (rising.diff(dim=0) > 0).all()


def test_expectile_loss_and_its_mask():
    diff, mask = f64([2, -1, NAN]), torch.tensor([1, 1, 0])
    assert expectile_loss(diff, 0.7, mask).item() == pytest.approx((0.7 * 4 + 0.3) / 2)
    assert expectile_loss(diff[:2], 0.5).item() == pytest.approx(0.5 * 5 / 2)
    grad = gradient(lambda z: expectile_loss(z, 0.7, mask), diff)
    torch.testing.assert_close(grad, f64([1.4, -0.3, 0]))
    assert expectile_loss(diff, 0.7, mask * 0).item() == 0


def test_expectile_arguments():
    for tau in (0, 1, -0.1, NAN):
        with pytest.raises(ValueError, match="tau"):
            expectile(torch.ones(2), tau)
        with pytest.raises(ValueError, match="tau"):
            expectile_loss(torch.ones(2), tau)
    for bad in (torch.tensor([NAN]), torch.tensor([INF])):
        with pytest.raises(ValueError, match="x must be finite"):
            expectile(bad, 0.5)
        with pytest.raises(ValueError, match="diff must be finite"):
            expectile_loss(bad, 0.5)
    with pytest.raises(ValueError, match="x must be"):
        expectile(torch.ones(2, 0), 0.5)


# ------------------------------------------------------------------------------------------------------------- CQL penalty
@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=12)
def test_the_penalty_is_a_negative_log_likelihood(seed):
    q, action, mask = normal(seed, 3, 4, 5), integers(seed, 5, 3, 4), coins(seed, 3, 4)
    mask[0, 0] = True
    dirty_q, dirty_action = junk(mask, q, action)
    got = cql_penalty(dirty_q, dirty_action, mask.int())
    expected = torch.nn.functional.cross_entropy(q[mask], action[mask])
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)
    grad = gradient(lambda z: cql_penalty(z, dirty_action, mask), dirty_q)
    textbook = (q.softmax(-1) - torch.nn.functional.one_hot(action, 5)) / mask.sum()
    torch.testing.assert_close(grad, torch.where(mask[..., None], textbook, 0.0), rtol=1e-10, atol=1e-13)


def test_forbidden_actions_in_the_penalty():
    q = f64([[1.0, -INF, 0.0]])
    expected = math.log(math.e + 1) - 1
    assert cql_penalty(q, torch.tensor([0]), torch.ones(1)).item() == pytest.approx(expected)
    assert torch.isfinite(gradient(lambda z: cql_penalty(z, torch.tensor([0]), torch.ones(1)), q)).all()
    with pytest.raises(ValueError, match="recorded action must be finite"):
        cql_penalty(q, torch.tensor([1]), torch.ones(1))


def test_penalty_and_td_arguments():
    q, a, m = torch.zeros(2, 3), torch.zeros(2).long(), torch.ones(2)
    for bad in (a + 3, a - 1):
        with pytest.raises(ValueError, match="action must be an index in 0..2"):
            cql_penalty(q, bad, m)
    with pytest.raises(ValueError, match="q must be"):
        cql_penalty(q * NAN, a, m)
    with pytest.raises(ValueError, match="target must be finite"):
        td_loss(q, a, m * NAN, m)
    with pytest.raises(ValueError, match="mask"):
        td_loss(q, a, m, m * 2)
    with pytest.raises(ValueError, match="q must be"):
        inspect.unwrap(cql_penalty)(q, torch.zeros(3).long(), torch.ones(3))
    with pytest.raises(ValueError, match="target must have"):
        inspect.unwrap(td_loss)(q, a, torch.zeros(3), m)
    assert cql_penalty(q * NAN, a, m * 0).item() == 0 and td_loss(q * NAN, a - 9, m, m * 0).item() == 0
    assert cql_penalty(q.bfloat16(), a, m).dtype == torch.float32


# ------------------------------------------------------------------------------------------------------------- a small chain
# States 0, 1, 2 and the end; action 0 goes on (reward 0; 1 from state 2), action 1 goes on with reward -0.1, action 2 was never
# recorded. Every state's values are a row of a table.
STATE = torch.tensor([0, 0, 1, 1, 2, 2])
ACTION = torch.tensor([0, 1, 0, 1, 0, 1])
REWARD = f64([0, -0.1, 0, -0.1, 1, 0.5])
NEXT = torch.tensor([1, 1, 2, 2, 0, 0])  # after the end: any state, its value must not be read
TERMINATED = torch.tensor([0, 0, 0, 0, 1, 1])
ALL = torch.ones(6)
GAMMA = 0.9


@pytest.fixture
def unchecked():
    """Type checks off for the tests that call a loss hundreds of times; the others have checked its types."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


def fit(loss, *tables, steps=200, lr=0.2):
    tables = [t.clone().requires_grad_(True) for t in tables]
    optimiser = torch.optim.Adam(tables, lr=lr)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = lr * (1 - step / steps)
        optimiser.zero_grad()
        loss(*tables).backward()
        optimiser.step()
    return [t.detach() for t in tables]


def q_learning(alpha, start):
    def loss(q):
        target = td_target(REWARD, q[NEXT].amax(-1), TERMINATED, GAMMA)
        penalty = cql_penalty(q[STATE], ACTION, ALL) if alpha else 0.0
        return td_loss(q[STATE], ACTION, target, ALL) + alpha * penalty

    return fit(loss, start)[0]


def test_the_penalty_lowers_what_nobody_recorded(unchecked):
    """A table that starts too high at the unrecorded action: plain Q-learning believes it, the penalty does not."""
    start = torch.zeros(3, 3).double()
    start[:, 2] = 5.0
    plain, conservative = q_learning(0.0, start), q_learning(1.0, start)
    assert (plain[:, 2] == 5).all() and (plain.argmax(-1) == 2).all()
    torch.testing.assert_close(plain[0, 0], f64(0.9 * 5), rtol=1e-3, atol=1e-3)  # 4.5 from a state worth at most 0.81
    assert (conservative[:, 2] < plain[:, 2] - 3).all() and (conservative.argmax(-1) != 2).all()
    better = f64([0.81, 0.9, 1.0])
    assert (conservative[:, 2] < better).all()


def test_a_target_that_bootstraps_past_the_end_is_far_off(unchecked):
    start = torch.zeros(3, 2).double()
    right = fit(lambda q: td_loss(q[STATE], ACTION, td_target(REWARD, q[NEXT].amax(-1), TERMINATED, GAMMA), ALL), start)[0]
    torch.testing.assert_close(right, f64([[0.81, 0.71], [0.9, 0.8], [1.0, 0.5]]), rtol=0, atol=2e-3)
    no_end = TERMINATED * 0
    wrong = fit(lambda q: td_loss(q[STATE], ACTION, td_target(REWARD, q[NEXT].amax(-1), no_end, GAMMA), ALL), start)[0]
    assert wrong[2, 0] > 1.3


def ilql(tau, alpha):
    def loss(q, v):
        parts = ilql_losses(
            q[STATE], q[STATE], v[STATE], v[NEXT], ACTION, REWARD, TERMINATED, ALL, gamma=GAMMA, tau=tau
        )  # fmt: skip
        return parts.total(alpha)

    start = torch.zeros(3, 3).double()
    start[:, 2] = 5.0
    return fit(loss, start, torch.zeros(3).double())


def test_ilql_without_penalty_is_evaluation_at_one_half_and_leans_to_the_better_action_above(unchecked):
    _, value = ilql(0.5, 0.0)
    last = 0.75
    middle = 0.9 * last - 0.05
    torch.testing.assert_close(value, f64([0.9 * middle - 0.05, middle, last]), rtol=0, atol=5e-3)
    q, value = ilql(0.9, 0.0)
    last = expectile(f64([1.0, 0.5]), 0.9)
    middle = expectile(f64([0.9 * last, 0.9 * last - 0.1]), 0.9)
    first = expectile(f64([0.9 * middle, 0.9 * middle - 0.1]), 0.9)
    torch.testing.assert_close(value, torch.stack([first, middle, last]), rtol=0, atol=0.03)
    assert (q[:, 2] == 5).all()  # never asked about, so never corrected: decoding needs the penalty


def test_the_penalty_of_ilql_lowers_what_nobody_recorded(unchecked):
    plain, _ = ilql(0.8, 0.0)
    conservative, value = ilql(0.8, 0.5)
    assert (conservative[:, 2] < plain[:, 2] - 3).all() and (conservative[:, 2] < conservative[:, :2].amin(-1)).all()
    uniform = torch.zeros(3, 3).double()
    law = value_guided_logits(uniform, conservative, value, 2.0).softmax(-1)
    assert (law[:, 2] < 1 / 3).all() and (law[:, 0] > law[:, 1]).all()
    assert (value_guided_logits(uniform, plain, value, 2.0).softmax(-1)[:, 2] > 0.9).all()


# -------------------------------------------------------------------------------------------------------------------- ILQL
def ilql_case(seed):
    shape = (3, 4)
    return dict(
        q=normal(seed, *shape, 5), target_q=normal(seed + 1, *shape, 5), value=normal(seed + 2, *shape),
        next_value=normal(seed + 3, *shape), action=integers(seed, 5, *shape), reward=normal(seed + 4, *shape),
        terminated=coins(seed + 5, *shape), mask=coins(seed + 6, *shape),
    )  # fmt: skip


@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.7, 0.9]))
@settings(deadline=None, max_examples=12)
def test_ilql_against_a_loop(seed, tau):
    case = ilql_case(seed)
    td, value, penalty, count = 0.0, 0.0, 0.0, 0
    for b in range(3):
        for t in range(4):
            if case["mask"][b, t]:
                q, lagging, v, following, a, r, end = (
                    case[k][b, t] for k in ("q", "target_q", "value", "next_value", "action", "reward", "terminated")
                )
                y = r + (0 if end else 0.9 * following)
                diff = lagging[a] - v
                td = td + (q[a] - y).item() ** 2 / 2
                value = value + (tau if diff > 0 else 1 - tau) * diff.item() ** 2
                penalty = penalty + (q.exp().sum().log() - q[a]).item()
                count += 1
    got = ilql_losses(**case, gamma=0.9, tau=tau)
    count = max(1, count)
    expected = (td / count, value / count, penalty / count)
    assert [x.item() for x in (got.td, got.value, got.penalty)] == pytest.approx(expected, rel=1e-10)
    assert got.total(0.3).item() == pytest.approx(expected[0] + expected[1] + 0.3 * expected[2], rel=1e-10)
    mask = case["mask"]
    dirty = {k: x.masked_fill(~mask[..., None], NAN) if k in ("q", "target_q") else x for k, x in case.items()}
    dirty = {k: x.masked_fill(~mask, INF) if k in ("value", "reward") else x for k, x in dirty.items()}
    dirty["next_value"] = case["next_value"].masked_fill(~mask | case["terminated"], NAN)
    dirty["action"] = case["action"].masked_fill(~mask, -1)
    again = ilql_losses(**dirty, gamma=0.9, tau=tau)
    assert torch.equal(again.td, got.td) and torch.equal(again.value, got.value) and torch.equal(again.penalty, got.penalty)


def test_gradients_of_ilql_reach_what_they_should():
    case = ilql_case(1)
    names = ("q", "target_q", "value", "next_value")
    reached = {}
    for part in ("td", "value", "penalty"):
        leaves = {n: case[n].clone().requires_grad_(True) for n in names}
        getattr(ilql_losses(**{**case, **leaves}, gamma=0.9, tau=0.7), part).backward()
        reached[part] = {n for n in names if leaves[n].grad is not None and leaves[n].grad.any()}
    assert reached == {"td": {"q"}, "value": {"value"}, "penalty": {"q"}}


def test_rows_of_tokens_take_the_next_action_value():
    """A row with an observation inside: the first action's target is the value at the second action, not at the next token."""
    value, mask = f64([[0.0, 9.0, 0.5]]), torch.tensor([[1, 0, 1]])
    q, action = torch.zeros(1, 3, 2).double(), torch.zeros(1, 3).long()
    end, reward = torch.tensor([[0, 0, 1]]), f64([[0, 0, 1]])
    parts = ilql_losses(q, q, value, next_action_values(value, mask), action, reward, end, mask, gamma=1.0, tau=0.5)
    assert parts.td.item() == pytest.approx((0.5**2 / 2 + 1 / 2) / 2)


def test_ilql_arguments():
    case = ilql_case(2)
    with pytest.raises(ValueError, match="tau"):
        ilql_losses(**case, gamma=0.9, tau=1.0)
    with pytest.raises(ValueError, match="gamma"):
        ilql_losses(**case, gamma=1.9, tau=0.5)
    for name in ("q", "target_q", "value", "reward"):
        with pytest.raises(ValueError, match=name):
            ilql_losses(**{**case, name: case[name] * NAN}, gamma=0.9, tau=0.5)
    live = {**case, "mask": torch.ones(3, 4), "terminated": torch.zeros(3, 4), "next_value": case["next_value"] * NAN}
    with pytest.raises(ValueError, match="next_value"):
        ilql_losses(**live, gamma=0.9, tau=0.5)
    with pytest.raises(ValueError, match="q, target_q must be"):
        inspect.unwrap(ilql_losses)(**{**case, "target_q": torch.zeros(3, 4, 6)}, gamma=0.9, tau=0.5)
    losses = ilql_losses(**case, gamma=0.9, tau=0.5)
    for alpha in (-1, NAN, INF):
        with pytest.raises(ValueError, match="alpha"):
            losses.total(alpha)
    with pytest.raises(dataclasses.FrozenInstanceError):
        losses.td = losses.value


# ---------------------------------------------------------------------------------------------------- policies from values
def test_awac_weights():
    q, value = f64([1, 2, 0]), f64([0, 2, 1])
    torch.testing.assert_close(awac_weight(q, value, 2.0), f64([math.exp(2), 1, math.exp(-2)]))
    assert awac_weight(q, value, 0).tolist() == [1, 1, 1]
    assert awac_weight(q, value, 2.0, cap=1.5).tolist() == pytest.approx([1.5, 1, math.exp(-2)])
    assert not awac_weight(q.requires_grad_(True), value, 2.0).requires_grad


def test_awac_without_values_is_imitation():
    logp, mask = -normal(0, 2, 3).abs(), torch.tensor([[1, 1, 0], [1, 0, 1]])
    q, value = normal(1, 2, 3), normal(2, 2, 3)
    imitation = awac_loss(logp, q, value, mask, beta=0)
    assert imitation.item() == pytest.approx(-logp[mask == 1].mean().item())
    weighted = awac_loss(logp, q, value, mask, beta=1.5)
    expected = -((1.5 * (q - value)).exp() * logp)[mask == 1].mean()
    torch.testing.assert_close(weighted, expected)
    as_credit = policy_gradient_loss(logp, (1.5 * (q - value)).exp(), mask, how="token")
    torch.testing.assert_close(weighted, as_credit)
    dirty = [x.masked_fill(mask == 0, NAN) for x in (logp, q, value)]
    assert torch.equal(awac_loss(*dirty, mask, beta=1.5), weighted)
    grad = gradient(lambda z: awac_loss(z, *dirty[1:], mask, beta=1.5), dirty[0])
    assert torch.isfinite(grad).all() and (grad[mask == 0] == 0).all()


def test_value_guided_laws():
    logits, q, value = normal(0, 2, 4), normal(1, 2, 4), normal(2, 2)
    logits[0, 1], q[1, 2] = -INF, -INF
    for beta in (0, 0.5, 3.0):
        got = value_guided_logits(logits, q, value, beta)
        assert got[0, 1] == -INF and got[1, 2] == -INF and torch.isfinite(got).sum() == 6
        if beta:
            tilted = optimal_policy(torch.log_softmax(logits, -1), q, 1 / beta)
            torch.testing.assert_close(torch.log_softmax(got, -1), tilted, rtol=1e-10, atol=1e-12)
    assert torch.equal(value_guided_logits(logits[:1], q[:1], value[:1], 0), logits[:1])
    shifted = value_guided_logits(logits, q, value + 7, 1.5).softmax(-1)
    torch.testing.assert_close(shifted, value_guided_logits(logits, q, value, 1.5).softmax(-1))


def test_policy_arguments():
    z, q = torch.zeros(2), torch.zeros(2, 3)
    for beta in (-1, NAN, INF):
        with pytest.raises(ValueError, match="beta"):
            awac_weight(z, z, beta)
        with pytest.raises(ValueError, match="beta"):
            value_guided_logits(q, q, z, beta)
    for cap in (0, -1, NAN):
        with pytest.raises(ValueError, match="cap"):
            awac_weight(z, z, 1, cap)
    with pytest.raises(ValueError, match="q must be finite"):
        awac_weight(z * NAN, z, 1)
    with pytest.raises(ValueError, match="value must be finite"):
        value_guided_logits(q, q, z - INF, 1)
    for args in ((q * NAN, q, z), (q, q + INF, z)):
        with pytest.raises(ValueError, match="must be finite or -inf"):
            value_guided_logits(*args, 1)
    with pytest.raises(ValueError, match="q and value must"):
        inspect.unwrap(awac_weight)(z, torch.zeros(3), 1)
    with pytest.raises(ValueError, match="logits and q must"):
        inspect.unwrap(value_guided_logits)(q, q, torch.zeros(3), 1)


# ---------------------------------------------------------------------------------------------------------------- verifier
def verifier_case(seed, batch=3, steps=4, candidates=3):
    mask = coins(seed, batch, steps)
    ends = coins(seed + 1, batch, steps)
    return dict(
        logits=normal(seed, batch, steps, candidates), target_logits=normal(seed + 1, batch, steps, candidates),
        chosen=integers(seed, candidates, batch, steps), reward=torch.where(ends, coins(seed + 2, batch, steps).double(), 0.0),
        terminated=ends, mask=mask,
    )  # fmt: skip


@given(st.integers(0, 10_000), st.sampled_from([0.5, 0.9]))
@settings(deadline=None, max_examples=12)
def test_verifier_loss_against_a_loop(seed, tau):
    case = verifier_case(seed)
    logits, lagging, mask = case["logits"], torch.sigmoid(case["target_logits"]), case["mask"]
    terms = []
    for b in range(3):
        steps = [k for k in range(4) if mask[b, k]]
        for i, k in enumerate(steps):
            y = case["reward"][b, k]
            if not case["terminated"][b, k] and i + 1 < len(steps):
                y = y + 0.9 * expectile(lagging[b, steps[i + 1]], tau)
            row, a = logits[b, k], case["chosen"][b, k]
            terms.append(((torch.sigmoid(row[a]) - y) ** 2 / 2 + 0.3 * (row.exp().sum().log() - row[a])).item())
    got = verifier_q_loss(**case, gamma=0.9, tau=tau, alpha=0.3)
    assert got.item() == pytest.approx(sum(terms) / max(1, len(terms)), rel=1e-10)
    dirty = {**case, "chosen": case["chosen"].masked_fill(~mask, -5), "reward": case["reward"].masked_fill(~mask, NAN)}
    for name in ("logits", "target_logits"):
        dirty[name] = case[name].masked_fill(~mask[..., None], NAN)
    assert torch.equal(verifier_q_loss(**dirty, gamma=0.9, tau=tau, alpha=0.3), got)
    grad = gradient(lambda z: verifier_q_loss(**{**dirty, "logits": z}, gamma=0.9, tau=tau, alpha=0.3), dirty["logits"])
    assert torch.isfinite(grad).all() and (grad[~mask] == 0).all()


def test_a_verifier_without_future_is_a_process_reward_model():
    case = {**verifier_case(3), "mask": torch.ones(3, 4)}
    label = coins(9, 3, 4).double()
    got = verifier_q_loss(**{**case, "reward": label}, gamma=0, tau=0.5, alpha=0)
    score = torch.sigmoid(case["logits"].gather(-1, case["chosen"][..., None])[..., 0])
    assert got.item() == pytest.approx(((score - label).square() / 2).mean().item())


def test_a_trained_verifier_carries_success_back_and_doubts_what_it_has_not_seen(unchecked):
    """Two recorded solutions of three steps: candidate 0 throughout succeeds, candidate 1 fails, candidate 2 was not recorded."""
    chosen = torch.tensor([[0, 0, 0], [1, 1, 1]])
    reward, end = f64([[0, 0, 1], [0, 0, 0]]), torch.tensor([[0, 0, 1], [0, 0, 1]])
    start = torch.zeros(2, 3, 3).double()
    start[..., 2] = 3.0

    def train(alpha):
        return fit(
            lambda z: verifier_q_loss(z, z, chosen, reward, end, torch.ones(2, 3), gamma=1.0, tau=0.9, alpha=alpha),
            start,
        )[0].sigmoid()

    plain, conservative = train(0.0), train(0.05)
    assert (plain[..., 2] > 0.9).all() and (conservative[..., 2] < 0.6).all()
    assert (conservative[0, :, 0].diff() > 0).all() and conservative[0, 0, 0] > 0.6 > 0.3 > conservative[1, 2, 1]


def test_verifier_gradients_and_arguments():
    case = {**verifier_case(1), "mask": torch.ones(3, 4)}
    lagging = case["target_logits"].clone().requires_grad_(True)
    live = case["logits"].clone().requires_grad_(True)
    verifier_q_loss(**{**case, "target_logits": lagging, "logits": live}, gamma=0.9, tau=0.9, alpha=1.0).backward()
    assert lagging.grad is None and live.grad.any()
    kwargs = dict(gamma=0.9, tau=0.9, alpha=0.1)
    with pytest.raises(ValueError, match="reward must keep every target in"):
        verifier_q_loss(**{**case, "reward": case["reward"] + 1}, **kwargs)
    for name in ("logits", "target_logits"):
        with pytest.raises(ValueError, match=name):
            verifier_q_loss(**{**case, name: case[name] * NAN}, **kwargs)
    with pytest.raises(ValueError, match="action must be an index"):
        verifier_q_loss(**{**case, "chosen": case["chosen"] + 3}, **kwargs)
    for name, bad in (("alpha", -1), ("tau", 1), ("gamma", 2)):
        with pytest.raises(ValueError, match=name):
            verifier_q_loss(**case, **{**kwargs, name: bad})
    with pytest.raises(ValueError, match="logits, target_logits must be"):
        inspect.unwrap(verifier_q_loss)(**{**case, "chosen": torch.zeros(3, 5).long()}, **kwargs)
    with pytest.raises(REFUSED):
        verifier_q_loss(**{**case, "chosen": torch.zeros(3, 5).long()}, **kwargs)
