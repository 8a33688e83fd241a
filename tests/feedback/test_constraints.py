import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

import small_ppo
from course.feedback.constraints import (
    completions,
    dual_ascent,
    front_of_weights,
    lagrangian_step,
    penalised_policy,
    select_lagrangian,
    select_lexicographic,
    select_scalarised,
)
from course.objectives.direct import optimal_policy
from course.search.pareto import pareto_front

# A wrong shape is refused by the type check under test and by the function's own ValueError without it.
REFUSED = (ValueError, TypeCheckError)
EXACT = torch.float64


def table(*rows):
    return torch.tensor(rows, dtype=EXACT)


# ---------------------------------------------------------------- L5.03: the multiplier


@settings(deadline=None, max_examples=100)
@given(st.floats(0, 100), st.floats(-10, 10), st.floats(1e-3, 10))
def test_the_multiplier_rises_while_the_limit_is_broken_and_never_goes_below_zero(lmbda, violation, lr):
    new = lagrangian_step(lmbda, violation, lr)
    assert new >= 0
    if violation > 1e-6:
        assert new > lmbda
    elif violation < 0:
        assert new <= lmbda
    assert new == pytest.approx(lmbda + lr * violation if lmbda + lr * violation > 0 else 0.0)


def test_known_steps():
    assert lagrangian_step(1.0, 0.5, 0.1) == pytest.approx(1.05)
    assert lagrangian_step(1.0, 0.0, 0.1) == 1.0
    assert lagrangian_step(0.02, -1.0, 0.1) == 0.0 and lagrangian_step(0, -1, 1) == 0.0
    trace = [0.0]
    for violation in (1, 1, 1, -2, -2, -2):
        trace.append(lagrangian_step(trace[-1], violation, 0.5))
    assert trace == [0.0, 0.5, 1.0, 1.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("arguments", [(-1.0, 0.0, 0.1), (float("nan"), 0.0, 0.1), (0.0, float("inf"), 0.1), (0.0, 0.0, 0.0)])
def test_bad_steps_are_named(arguments):
    with pytest.raises(ValueError, match="lmbda, violation and lr"):
        lagrangian_step(*arguments)


# ---------------------------------------------------------------- safe completions

SEVERITY = torch.tensor([0.0, 0.1, 0.4, 1.0], dtype=EXACT)  # of what a full answer to each prompt could do
OUTPUTS = torch.tensor([0.0, 0.1, 0.25, 0.5, 1.0], dtype=EXACT)  # how much detail
REFUSE_OR_COMPLY = torch.tensor([0.0, 1.0], dtype=EXACT)


def even(x):
    return torch.full_like(x, 1 / x.shape[1])


def ascend(severity, detail, limit, *, beta=0.05, lr=1.0, steps=300):
    reward, cost = completions(severity, detail)
    run = dual_ascent(reward, cost, limit, reference=even(reward), beta=beta, lr=lr, steps=steps)
    return reward, cost, even(reward), list(run)


def test_penalised_policy_is_the_best_of_all_policies():
    reward, cost = completions(SEVERITY, OUTPUTS)
    generator = torch.Generator().manual_seed(0)
    reference = torch.rand(reward.shape, generator=generator, dtype=EXACT).softmax(1)

    def objective(policy):
        kl = (policy * (policy / reference).log()).sum(1)
        return ((policy * (reward - 0.7 * cost)).sum(1) - 0.3 * kl).mean()

    best = penalised_policy(reward, cost, reference, 0.7, 0.3)
    torch.testing.assert_close(best.sum(1), torch.ones(4, dtype=EXACT))
    for _ in range(50):
        other = (best.log() + 0.3 * torch.randn(reward.shape, generator=generator, dtype=EXACT)).softmax(1)
        assert objective(other) <= objective(best)


def test_penalised_policy_reduces_to_the_one_without_a_constraint():
    reward, cost = completions(SEVERITY, OUTPUTS)
    reference = even(reward)
    free = penalised_policy(reward, cost, reference, 0.0, 0.3)
    for row in range(4):
        torch.testing.assert_close(free[row], optimal_policy(reference[row].log(), reward[row], 0.3).exp())
    torch.testing.assert_close(penalised_policy(reward, cost, reference, 0.7, 1e6), reference, atol=1e-5, rtol=0)
    greedy = penalised_policy(reward, cost, reference, 0.7, 1e-4)
    assert greedy.argmax(1).tolist() == (reward - 0.7 * cost).argmax(1).tolist() and greedy.amax(1).min() > 0.999
    never = reference.clone()
    never[:, 4] = 0.0
    never = never / never.sum(1, keepdim=True)
    assert (penalised_policy(reward, cost, never, 0.0, 0.3)[:, 4] == 0).all()


def multiplier_by_bisection(reward, cost, reference, limit, beta):
    """Complementary slackness, without a step of dual ascent: 0 if there is room, else the multiplier at which the limit is met."""

    def harm(lmbda):
        total = 0.0
        for h, c, p in zip(reward.tolist(), cost.tolist(), reference.tolist()):
            weight = [q * math.exp((x - lmbda * y) / beta) for x, y, q in zip(h, c, p)]
            total += sum(w * y for w, y in zip(weight, c)) / sum(weight) / len(reward)
        return total

    if harm(0.0) <= limit:
        return 0.0
    low, high = 0.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if harm(middle) > limit else (low, middle)
    return high


@pytest.mark.parametrize("limit", [0.04, 0.1, 5.0])
def test_dual_ascent_finds_the_multiplier_that_slackness_asks_for(limit):
    reward, cost, reference, run = ascend(SEVERITY, OUTPUTS, limit, beta=0.1, lr=2.0, steps=300)
    expected = multiplier_by_bisection(reward, cost, reference, limit, 0.1)
    assert run[-1].lmbda == pytest.approx(expected, abs=5e-3)
    assert run[-1].cost <= limit + 1e-3
    assert (run[-1].lmbda == 0) == (limit == 5.0)  # a limit that binds nobody costs nothing
    # No policy within the limit earns more, after its KL: weak duality against random ones.
    generator = torch.Generator().manual_seed(1)
    best = penalised_policy(reward, cost, reference, run[-1].lmbda, 0.1)

    def earned(policy):
        return float(((policy * reward).sum(1) - 0.1 * (policy * (policy / reference).log()).sum(1)).mean())

    for scale in (0.1, 0.5, 2.0):
        for _ in range(20):
            other = (best.log() + scale * torch.randn(reward.shape, generator=generator, dtype=EXACT)).softmax(1)
            if float((other * cost).sum(1).mean()) <= limit:
                assert earned(other) <= earned(best) + 1e-3


def test_the_multiplier_starts_at_zero_and_rises_as_long_as_the_limit_is_broken():
    *_, run = ascend(SEVERITY, OUTPUTS, 0.05, steps=100)
    assert run[0].lmbda == 0 and run[0].violation > 0.05  # the first policy knows no limit
    for before, after in itertools.pairwise(run):
        assert after.lmbda >= 0
        assert (after.lmbda > before.lmbda) == (before.violation > 0) or before.violation == 0 or after.lmbda == 0


def test_the_update_is_an_operator():
    reward, cost = completions(SEVERITY, OUTPUTS)
    frozen = dual_ascent(
        reward, cost, 0.05, reference=even(reward), beta=0.1, lr=0.3, steps=20, update=lambda lmbda, violation, lr: lmbda
    )
    assert {step.lmbda for step in frozen} == {0.0}
    # Without the max a loose limit would pay for harm.
    loose = dual_ascent(reward, cost, 5.0, reference=even(reward), beta=0.1, lr=0.3, steps=20, update=lambda m, v, lr: m + lr * v)
    with pytest.raises(ValueError, match="lmbda"):
        list(loose)


def test_judging_the_output_helps_more_than_judging_the_prompt_at_the_same_harm():
    gains = []
    for limit in (0.04, 0.08, 0.15):
        *_, whole = ascend(SEVERITY, REFUSE_OR_COMPLY, limit)
        *_, parts = ascend(SEVERITY, OUTPUTS, limit)
        assert whole[-1].cost <= limit + 2e-3 and parts[-1].cost <= limit + 2e-3
        gains.append(parts[-1].reward - whole[-1].reward)
    assert min(gains) > 0.03 and sum(gains) / 3 > 0.05, gains


def test_the_harmless_prompt_is_answered_and_the_severe_one_is_not():
    reward, cost, reference, run = ascend(SEVERITY, OUTPUTS, 0.05)
    policy = penalised_policy(reward, cost, reference, run[-1].lmbda, 0.05)
    detail = (policy * OUTPUTS).sum(1)
    assert detail[0] > 0.9 and detail[3] < 0.1 and (detail.diff() < 0).all()


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: completions(torch.tensor([-1.0]), torch.tensor([0.5])), "severity"),
        (lambda: completions(torch.tensor([1.0]), torch.tensor([1.5])), "detail"),
        (lambda: completions(torch.tensor([]), torch.tensor([0.5])), "severity"),
        (lambda: penalised_policy(table([1, 2]), table([1, 2]), table([0.5, 0.6]), 0.0, 1.0), "reference"),
        (lambda: penalised_policy(table([1, 2]), table([1, 2]), table([0.5, 0.5]), -1.0, 1.0), "lmbda"),
        (lambda: penalised_policy(table([1, 2]), table([1, 2]), table([0.5, 0.5]), 0.0, 0.0), "beta"),
        (
            lambda: list(dual_ascent(table([1, 2]), table([1, 2]), 0.5, reference=table([0.5, 0.5]), beta=1, lr=1, steps=1)),
            "limit",
        ),
        (
            lambda: list(dual_ascent(table([1, 2]), table([0, 2]), 0.5, reference=table([0.0, 1.0]), beta=1, lr=1, steps=1)),
            "limit",
        ),
        (lambda: select_scalarised(table([1, 2]), torch.ones(3)), "weights"),
        (lambda: select_scalarised(torch.zeros(0, 2), torch.ones(2)), "objectives"),
        (lambda: select_scalarised(table([1, float("nan")]), torch.ones(2)), "objectives"),
        (lambda: select_lexicographic(table([1, 2]), [], []), "order"),
        (lambda: select_lexicographic(table([1, 2]), [0, 0], [0, 0]), "order"),
        (lambda: select_lexicographic(table([1, 2]), [2], [0]), "order"),
        (lambda: select_lexicographic(table([1, 2]), [0, 1], [0]), "slack"),
        (lambda: select_lexicographic(table([1, 2]), [0], [-1]), "slack"),
        (lambda: select_lagrangian(torch.tensor([1.0]), torch.tensor([1.0]), 0.5, lr=0.1, steps=1), "cost"),
        (lambda: select_lagrangian(torch.tensor([1.0]), torch.tensor([0.0]), 0.5, lr=0.1, steps=0), "steps"),
        (lambda: front_of_weights(table([1, 2]), torch.zeros(0, 2)), "weights"),
    ],
)
def test_bad_input_is_named(make, named):
    with pytest.raises(REFUSED, match=named):
        make()


# ---------------------------------------------------------------- one of a small set of policies

#         helpfulness, safety
POLICIES = table([1.0, 0.0], [0.8, 0.5], [0.55, 0.7], [0.5, 0.6], [0.0, 1.0])
SWEEP = torch.stack([torch.linspace(0.02, 0.98, 97), 1 - torch.linspace(0.02, 0.98, 97)], 1).double()


def random_table(seed, policies=8, aims=2):
    rng = random.Random(f"{seed} policies")
    return table(*[[rng.random() for _ in range(aims)] for _ in range(policies)])


@pytest.mark.parametrize("seed", range(10))
def test_what_weights_select_is_on_the_pareto_front(seed):
    objectives = random_table(seed)
    # (cost, quality): less of the first is better there, so that aim goes in with its sign turned.
    front = set(pareto_front(torch.stack([-objectives[:, 0], objectives[:, 1]], 1)).tolist())
    chosen = front_of_weights(objectives, SWEEP)
    assert len(set(chosen)) == len(chosen) and set(chosen) <= front


def test_a_policy_in_a_dent_of_the_front_is_found_by_no_weights_but_by_an_order_and_a_limit():
    dented = table([1.0, 0.0], [0.4, 0.4], [0.0, 1.0])
    assert pareto_front(torch.stack([-dented[:, 0], dented[:, 1]], 1)).tolist() == [0, 1, 2]
    assert set(front_of_weights(dented, SWEEP)) == {0, 2}
    assert select_lexicographic(dented, order=[1, 0], slack=[0.6, 0.0]) == 1
    # Dual ascent passes it over too: it mixes its neighbours, which is better than the dent, and no single policy.
    shares, _ = select_lagrangian(dented[:, 0], -dented[:, 1], -0.4, lr=0.05, steps=4000)
    assert shares.tolist() == pytest.approx([0.6, 0.0, 0.4], abs=0.02)


def test_scalarised_choice_equals_the_slow_one():
    for seed in range(20):
        objectives = random_table(seed, aims=3)
        weights = torch.tensor([random.Random(f"{seed} w").gauss(0, 1) for _ in range(3)], dtype=EXACT)
        sums = [sum(w * x for w, x in zip(weights.tolist(), row)) for row in objectives.tolist()]
        assert select_scalarised(objectives, weights) == max(range(8), key=lambda i: sums[i])
    assert select_scalarised(table([1, 1], [1, 1]), torch.ones(2)) == 0


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=6),
    st.permutations(range(3)),
)
def test_without_slack_an_order_is_the_order_of_tuples(rows, order):
    chosen = select_lexicographic(table(*rows), order, [0, 0, 0])
    keys = [tuple(row[k] for k in order) for row in rows]
    assert keys[chosen] == max(keys) and chosen == keys.index(max(keys))


def test_slack_gives_up_a_little_of_the_first_aim():
    assert select_lexicographic(POLICIES, [1, 0], [0, 0]) == 4
    assert select_lexicographic(POLICIES, [1, 0], [0.3, 0]) == 2
    assert select_lexicographic(POLICIES, [1, 0], [0.5, 0]) == 1
    assert select_lexicographic(POLICIES, [1, 0], [float("inf"), 0]) == 0


def best_mixture(reward, cost, limit):
    """The greatest mean reward within the limit: a linear programme over mixtures has an answer of at most two policies."""
    best = -math.inf
    for i, j in itertools.product(range(len(reward)), repeat=2):
        for share in [0.0, 1.0] + ([(limit - cost[j]) / (cost[i] - cost[j])] if cost[i] != cost[j] else []):
            if 0 <= share <= 1 and share * cost[i] + (1 - share) * cost[j] <= limit + 1e-12:
                best = max(best, share * reward[i] + (1 - share) * reward[j])
    return best


@pytest.mark.parametrize("seed", range(8))
def test_multiplier_steps_mix_the_best_policies_within_the_limit(seed):
    objectives = random_table(seed)
    reward, cost = objectives.unbind(1)
    limit = float(cost.median())
    shares, lmbdas = select_lagrangian(reward, cost, limit, lr=0.02, steps=3000)
    assert shares.sum().item() == pytest.approx(1.0) and min(lmbdas) == 0.0 == lmbdas[0] and len(lmbdas) == 3001
    assert float(shares @ cost) <= limit + lmbdas[-1] / (0.02 * 3000) + 1e-9
    assert float(shares @ reward) == pytest.approx(best_mixture(reward.tolist(), cost.tolist(), limit), abs=0.03)


def test_a_safe_best_policy_is_simply_taken():
    shares, lmbdas = select_lagrangian(table([0.3, 0.9])[0], table([0.9, 0.1])[0], 0.5, lr=0.1, steps=50)
    assert shares.tolist() == [0.0, 1.0] and set(lmbdas) == {0.0}


def test_no_task_reward_passes_an_order_but_any_weights_have_their_price():
    # Safety first. The severe policy pays more and more.
    for bribe in (1.0, 1e3, 1e9):
        offers = table([bribe, -1.0], [0.5, 0.0])
        assert select_lexicographic(offers, [1, 0], [0.0, 0.0]) == 1
        assert select_scalarised(offers, torch.tensor([1.0, 100.0], dtype=EXACT)) == (0 if bribe > 100.5 else 1)
    # A multiplier answers a greater bribe with a greater lambda: it is no fixed price, but it takes its time.
    last = [
        select_lagrangian(table([bribe, 0.5])[0], table([1.0, 0.0])[0], 0.1, lr=1.0, steps=500)[1][-1]
        for bribe in (1.0, 10.0, 100.0)
    ]
    assert last[0] < last[1] < last[2]


# ---------------------------------------------------------------- inside PPO

HARM, LIMIT = 4, 0.1  # word 4 is worth twice word 5, and at most a tenth of the responses' words may be it


def shares(batch, word):
    return ((batch.tokens == word) & batch.action_mask).sum(1) / batch.action_mask.sum(1)


@pytest.mark.parametrize("seed", range(2))
def test_a_multiplier_that_steps_with_ppo_holds_the_limit_that_a_small_weight_does_not(seed):
    left = {}
    for name, lmbda, lr, steps in (("weight", 0.5, None, 12), ("multiplier", 0.5, 2.0, 20)):
        trace, costs = [lmbda], []

        def reward(batch):
            cost = shares(batch, HARM)
            costs.append(float(cost.mean()))
            return 2 * cost + shares(batch, 5) - trace[-1] * cost

        actor, run = small_ppo.steps_of(reward, seed, steps)
        for _ in run:
            trace.append(trace[-1] if lr is None else lagrangian_step(trace[-1], costs[-1] - LIMIT, lr))
        left[name] = sum(costs[-5:]) / 5
        if lr is not None:
            assert all(
                (after > before) == (cost > LIMIT) for before, after, cost in zip(trace, trace[1:], costs) if cost != LIMIT
            )
            assert shares(small_ppo.answers(actor, seed), 5).mean() > 0.5  # helpful in the way that is left
    assert left["weight"] > 0.5 and left["multiplier"] < 0.2, left
