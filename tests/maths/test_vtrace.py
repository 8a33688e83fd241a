"""V-trace against both published vectors, a direct sum, GAE, and the fixed points of a small decision process."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError

from course.credit.returns import generalized_advantage_estimation
from course.credit.vtrace import vtrace

REFUSED = (ValueError, TypeCheckError)
NAN, INF = float("nan"), float("inf")


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(got, expected, rtol=1e-10, atol=1e-10):
    torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


def case(seed, rows=3, time=5):
    """behaviour, target, rewards, values, discounts, bootstrap; some discounts are 0."""
    ends = torch.rand(rows, time, generator=torch.Generator().manual_seed(seed + 9)) < 0.25
    discounts = torch.where(
        ends, 0.0, 0.5 + 0.5 * torch.rand(rows, time, generator=torch.Generator().manual_seed(seed + 8)).double()
    )
    return [-normal(seed, rows, time).abs(), -normal(seed + 1, rows, time).abs(), normal(seed + 2, rows, time),
            normal(seed + 3, rows, time), discounts, normal(seed + 4, rows)]  # fmt: skip


def direct_sum(behaviour, target, rewards, values, discounts, bootstrap, rho_bar, c_bar, pg_rho_bar, lambda_, next_values):
    """The definition: vs_t = V_t + sum over k of (product of the gammas and traces before k) delta_k, row by row, no recursion."""
    vs, advantages = torch.zeros_like(values), torch.zeros_like(values)
    rows, time = values.shape
    for b in range(rows):
        ratio = [math.exp(target[b, t] - behaviour[b, t]) for t in range(time)]
        cut = [next_values is not None and not math.isnan(next_values[b, t]) for t in range(time)]
        after = [
            float(next_values[b, t]) if cut[t] else float(values[b, t + 1] if t + 1 < time else bootstrap[b]) for t in range(time)
        ]
        td = [float(rewards[b, t] + discounts[b, t] * after[t] - values[b, t]) for t in range(time)]
        error = [0.0] * (time + 1)
        for s in range(time):
            for k in range(s, time):
                weight = 1.0
                for i in range(s, k):
                    weight *= float(discounts[b, i]) * lambda_ * min(c_bar, ratio[i]) * (not cut[i])
                error[s] += weight * min(rho_bar, ratio[k]) * td[k]
        for s in range(time):
            vs[b, s] = values[b, s] + error[s]
            later = 0.0 if cut[s] else lambda_ * error[s + 1]
            advantages[b, s] = min(pg_rho_bar, ratio[s]) * (td[s] + float(discounts[b, s]) * later)
    return vs, advantages


# ------------------------------------------------------------------------------------------------------- published vectors
def test_the_vector_of_rlax():
    """rlax/_src/vtrace_test.py: the errors vs - V of two rows of four steps, clipped at 1."""
    behaviour = f64([[[8.9, 0.7], [5, 1], [0.6, 0.1], [-0.9, -0.1]], [[0.3, -5], [1, -8], [0.3, 1.7], [4.7, 3.3]]])
    target = f64([[[0.4, 0.5], [9.2, 8.8], [0.7, 4.4], [7.9, 1.4]], [[1, 0.9], [1, -1], [-4.3, 8.7], [0.8, 0.3]]])
    actions = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 1]])[..., None]
    logp = [logits.log_softmax(-1).gather(-1, actions)[..., 0] for logits in (behaviour, target)]
    rewards, discounts = f64([[-1.3, -1.3, 2.3, 42], [1.3, 5.3, -3.3, -5]]), f64([[0, 0.89, 0.85, 0.99], [0.88, 1, 0.83, 0.95]])
    values, bootstrap = f64([[2.1, 1.1, -3.1, 0], [3.1, 0.1, -1.1, 7.4]]), f64([8.4, -1.2])
    vs, _ = vtrace(*logp, rewards, values, discounts, bootstrap)
    expected = f64([[-1.6155143, -3.4973226, 1.8670533, 50.316002], [1.4662437, 3.6116405, -8.33e-5, -13.54]])
    close(vs - values, expected, rtol=1e-3)


def test_the_vector_of_scalable_agent():
    """scalable_agent, vtrace_test.py: its Batch1, other bounds for the target (3.7) and for the gradient (2.2)."""
    steps = torch.arange(5, dtype=torch.float64)[None]
    log_rho = 5 * (steps / 5 - 0.5)
    zero = torch.zeros_like(steps)
    vs, advantages = vtrace(zero, log_rho, steps, steps, zero + 0.9, f64([1.0]), rho_bar=3.7, pg_rho_bar=2.2)
    close(vs, f64([[0.2001819, 2.7096824, 8.5136279, 11.9323966, 7.33]]), rtol=1e-6)
    close(advantages, f64([[0.2001819, 1.7096824, 6.5136279, 10.8766142, 1.98]]), rtol=1e-6)


# ----------------------------------------------------------------------------------------------------------- independent twin
@given(
    st.integers(0, 10_000),
    st.sampled_from([(1.0, 1.0, None, 1.0), (2.0, 1.0, 0.5, 0.7), (INF, INF, INF, 0.3), (0.4, 0.2, None, 0)]),
)
@settings(deadline=None, max_examples=30)
def test_the_recursion_is_the_direct_sum(seed, bounds):
    rho_bar, c_bar, pg_rho_bar, lambda_ = bounds
    inputs = case(seed)
    cut = torch.rand(3, 5, generator=torch.Generator().manual_seed(seed + 7)) < 0.3
    for next_values in (None, torch.where(cut, normal(seed + 6, 3, 5), NAN)):
        got = vtrace(*inputs, rho_bar, c_bar, pg_rho_bar, lambda_, next_values)
        pg = rho_bar if pg_rho_bar is None else pg_rho_bar
        for one, other in zip(got, direct_sum(*inputs, rho_bar, c_bar, pg, lambda_, next_values)):
            close(one, other)


# -------------------------------------------------------------------------------------------------------------- reduces to
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.6, 1.0]))
@settings(deadline=None, max_examples=20)
def test_on_policy_it_is_gae(seed, lambda_):
    """Rows that end, are cut, or stop at T: the advantage is GAE's, and vs is GAE + V."""
    behaviour, _, rewards, values, _, bootstrap = case(seed)
    coins = torch.rand(3, 5, generator=torch.Generator().manual_seed(seed + 5))
    ends, cut = coins < 0.2, coins > 0.8
    final = normal(seed + 6, 3, 5)
    vs, advantages = vtrace(
        behaviour, behaviour, rewards, values, f64([[0.9]]).expand(3, 5).masked_fill(ends, 0), bootstrap, lambda_=lambda_,
        next_values=torch.where(cut, final, NAN),
    )  # fmt: skip
    # For GAE a row that stops is cut at its last step, and what it holds there is the bootstrap.
    final[:, -1] = torch.where(cut[:, -1], final[:, -1], bootstrap)
    cut[:, -1] |= ~ends[:, -1]
    gae, returns = generalized_advantage_estimation(rewards, values, ends, cut, final, torch.ones(3, 5), 0.9, lambda_)
    close(advantages, gae)
    close(vs, returns)


def test_on_policy_it_is_the_n_step_return():
    vs, _ = vtrace(*[f64([[-1.0, -2.0, -0.5]])] * 2, f64([[1, 2, 3]]), f64([[5, -7, 11]]), f64([[0.5, 0.5, 0.5]]), f64([8.0]))
    close(vs, f64([[1 + 1 + 0.75 + 1, 2 + 1.5 + 2, 3 + 4]]))  # the values of the row do not matter, only the one after it


def test_bounds_of_at_least_one_change_nothing_on_policy():
    inputs = case(3)
    inputs[1] = inputs[0]
    for one, other in zip(vtrace(*inputs), vtrace(*inputs, rho_bar=INF, c_bar=4.0)):
        close(one, other)


def test_an_action_the_target_never_takes_teaches_nothing():
    inputs = case(4)
    inputs[1] = torch.full_like(inputs[0], -INF)
    vs, advantages = vtrace(*inputs, rho_bar=INF, c_bar=INF)
    assert torch.equal(vs, inputs[3]) and not advantages.any()


# ------------------------------------------------------------------------------------------------------ ends of two kinds
def test_truncation_bootstraps_and_termination_does_not():
    """Two steps, an end of either kind after the first: r = 1, V = .5 and .6, the observation cut off is worth .7."""
    equal, rewards, values, bootstrap = f64([[-1.0, -1.0]]), f64([[1, 1]]), f64([[0.5, 0.6]]), f64([2.0])
    ended, _ = vtrace(equal, equal, rewards, values, f64([[0.0, 0.9]]), bootstrap)
    cut, _ = vtrace(equal, equal, rewards, values, f64([[0.9, 0.9]]), bootstrap, next_values=f64([[0.7, NAN]]))
    on, _ = vtrace(equal, equal, rewards, values, f64([[0.9, 0.9]]), bootstrap)
    close(ended, f64([[1.0, 2.8]]))
    close(cut, f64([[1 + 0.9 * 0.7, 2.8]]))  # neither .6 nor 2.8, which belong to the next episode
    close(on, f64([[1 + 0.9 * 2.8, 2.8]]))


@given(st.integers(0, 10_000), st.integers(1, 4), st.booleans())
@settings(deadline=None, max_examples=30)
def test_padding_after_an_end_holds_anything(seed, length, truncated):
    inputs, other = case(seed), case(seed + 100)
    next_values = torch.full((3, 5), NAN, dtype=torch.float64)
    if truncated:
        next_values[:, length - 1] = 0.3
    else:
        inputs[4][:, length - 1] = 0
    for mine, theirs in zip(inputs[:5], other[:5]):
        theirs[:, :length] = mine[:, :length]
    for one, two in zip(vtrace(*inputs, next_values=next_values), vtrace(*other, next_values=next_values)):
        assert torch.equal(one[:, :length], two[:, :length])
    # and rows do not meet: a row alone gives what it gives in the batch
    for one, two in zip(vtrace(*inputs, next_values=next_values), vtrace(*[x[:1] for x in inputs], next_values=next_values[:1])):
        close(one[:1], two)


# ------------------------------------------------------------------------------------------- what rho and c do, by iteration
TRANSITION = f64([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], [[0.3, 0.4, 0.3], [0.6, 0.3, 0.1]], [[0.2, 0.6, 0.2], [0.5, 0.0, 0.5]]])
REWARD = f64([[1.0, -0.5], [0.0, 2.0], [-1.0, 0.3]])
MU, PI = f64([[0.5, 0.5], [0.8, 0.2], [0.3, 0.7]]), f64([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
GAMMA = 0.8


def value_of(policy):
    """V of a policy by solving (I - gamma P) V = r."""
    p, r = torch.einsum("sa,saz->sz", policy, TRANSITION), (policy * REWARD).sum(1)
    return torch.linalg.solve(torch.eye(3, dtype=torch.float64) - GAMMA * p, r)


def sweep(values, rho_bar, c_bar):
    """E_mu[vs] for every state at once: all action sequences of two steps, weighted by their exact probability under mu."""
    paths = [(s, a, z, b, y) for s in range(3) for a in range(2) for z in range(3) for b in range(2) for y in range(3)]
    s, a, z, b, y = torch.tensor(paths).T
    weight = MU[s, a] * TRANSITION[s, a, z] * MU[z, b] * TRANSITION[z, b, y]
    stack = lambda one, two: torch.stack([one, two], dim=1)  # noqa: E731
    vs, _ = vtrace(stack(MU[s, a], MU[z, b]).log(), stack(PI[s, a], PI[z, b]).log(), stack(REWARD[s, a], REWARD[z, b]),
                   stack(values[s], values[z]), torch.full((len(s), 2), GAMMA).double(), values[y], rho_bar, c_bar)  # fmt: skip
    return torch.zeros(3, dtype=torch.float64).index_add(0, s, weight * vs[:, 0])


def iterate(rho_bar, c_bar, tolerance=1e-10):
    values, rounds = torch.zeros(3, dtype=torch.float64), 0
    while rounds < 2000:
        after, rounds = sweep(values, rho_bar, c_bar), rounds + 1
        if (after - values).abs().max() < tolerance:
            return after, rounds
        values = after
    raise AssertionError("no fixed point")


def between(rho_bar):
    """The policy proportional to min(rho_bar mu, pi)."""
    weight = torch.minimum(rho_bar * MU, PI)
    return weight / weight.sum(1, keepdim=True)


@pytest.mark.parametrize("rho_bar", [0.2, 1.0, 1.5, INF])
def test_rho_decides_what_is_learned(rho_bar):
    """If rho_bar changed only the speed, the four fixed points would be one."""
    expected = value_of(PI if rho_bar == INF else between(rho_bar))
    for c_bar in (0.0, 1.0):
        found, _ = iterate(rho_bar, min(c_bar, rho_bar), tolerance=1e-9)
        close(found, expected, rtol=1e-6, atol=1e-6)
    others = [value_of(between(other)) for other in (0.2, 1.0, 1.5) if other != rho_bar]
    assert all((found - other).abs().max() > 0.05 for other in others)
    if rho_bar == 0.2:  # below every ratio: the behaviour policy's own value
        close(found, value_of(MU), rtol=1e-6, atol=1e-6)


def test_c_decides_only_how_fast():
    fixed, rounds = zip(*(iterate(1.0, c_bar) for c_bar in (0.0, 0.5, 1.0)))
    close(fixed[0], fixed[2], rtol=1e-7, atol=1e-7)
    close(fixed[1], fixed[2], rtol=1e-7, atol=1e-7)
    assert rounds[0] > rounds[1] > rounds[2]


# ------------------------------------------------------------------------------------------------------ constants, refusals
def test_results_are_constants():
    inputs = [x.clone().requires_grad_(True) for x in case(5)[:4]] + case(5)[4:]
    vs, advantages = vtrace(*inputs)
    assert not vs.requires_grad and not advantages.requires_grad
    # The number of a common fault: d(w log pi) = w where the weight is a constant, w (1 + log pi) = 0 at log pi = -1 where not.
    target = f64([[-1.0]]).requires_grad_(True)
    _, weighted = vtrace(f64([[-1.5]]), target, f64([[1.0]]), f64([[0.0]]), f64([[0.0]]), f64([0.0]), rho_bar=INF)
    (weighted * target).sum().backward()
    assert target.grad.item() == pytest.approx(1.6487213)


def test_a_huge_ratio_is_clipped_before_it_overflows():
    arguments = f64([[-2000.0]]), f64([[-0.1]]), f64([[1.0]]), f64([[0.0]]), f64([[1.0]]), f64([2.0])
    vs, advantages = vtrace(*arguments)
    assert vs.item() == 3 and advantages.item() == 3
    with pytest.raises(ValueError, match="beyond exp; set rho_bar"):
        vtrace(*arguments, rho_bar=INF)


@pytest.mark.parametrize("at, value, message", [
    (0, -INF, "behaviour_logp must be finite"), (1, NAN, "target_logp must be finite or -inf"), (2, NAN, "rewards must be finite"),
    (3, INF, "values must be finite"), (4, 1.5, r"discounts must lie in \[0, 1\]"), (4, -0.1, r"discounts must lie in \[0, 1\]"),
    (5, NAN, "bootstrap must be finite"),
])  # fmt: skip
def test_refuses_numbers(at, value, message):
    inputs = case(6)
    inputs[at][(0,) * inputs[at].dim()] = value
    with pytest.raises(ValueError, match=message):
        vtrace(*inputs)


def test_refuses_settings_and_shapes():
    inputs = case(7)
    for name, value in [("rho_bar", -1), ("c_bar", NAN), ("pg_rho_bar", -0.5), ("lambda_", 1.1), ("lambda_", -0.1)]:
        with pytest.raises(ValueError, match=name):
            vtrace(*inputs, **{name: value})
    with pytest.raises(ValueError, match="next_values must be finite"):
        vtrace(*inputs, next_values=torch.full((3, 5), INF, dtype=torch.float64))
    for at in range(6):
        wrong = list(inputs)
        wrong[at] = wrong[at][:2]
        with pytest.raises(REFUSED):
            vtrace(*wrong)
    with pytest.raises(REFUSED):
        vtrace(*[x[:, :0] for x in inputs[:5]], inputs[5])
