import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from course.credit.potential import potential_rewards
from course.credit.returns import discounted_returns

# A wrong shape is refused by the type check under test and by the function's own ValueError without it.
REFUSED = (ValueError, TypeCheckError)


def slow(utility, gamma):
    return [gamma * after - before for before, after in zip(utility, utility[1:])]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.floats(-100, 100), min_size=5, max_size=5), min_size=1, max_size=4), st.floats(0, 1))
def test_equals_the_slow_one(rows, gamma):
    got = potential_rewards(torch.tensor(rows, dtype=torch.float64), gamma)
    torch.testing.assert_close(got, torch.tensor([slow(row, gamma) for row in rows], dtype=torch.float64))
    for row in rows:  # one episode alone, [T+1]
        one = potential_rewards(torch.tensor(row, dtype=torch.float64), gamma)
        torch.testing.assert_close(one, torch.tensor(slow(row, gamma), dtype=torch.float64))


def test_known_values_and_what_it_reduces_to():
    u = torch.tensor([[1.0, 3.0, 2.0]])
    assert potential_rewards(u).tolist() == [[2.0, -1.0]]
    assert potential_rewards(u, 0.5).tolist() == [[0.5, -2.0]]
    assert potential_rewards(u, 0).tolist() == [[-1.0, -3.0]]
    assert potential_rewards(torch.full((2, 4), 7.0)).tolist() == [[0.0] * 3] * 2


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9), st.floats(0, 1))
def test_the_sum_telescopes(row, gamma):
    u = torch.tensor(row, dtype=torch.float64)
    assert potential_rewards(u).sum().item() == pytest.approx(row[-1] - row[0], abs=1e-9)
    first = discounted_returns(potential_rewards(u, gamma), gamma)[0]
    assert first.item() == pytest.approx(gamma ** (len(row) - 1) * row[-1] - row[0], abs=1e-9)


def test_gradient():
    u = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: potential_rewards(x, 0.9), (u,))
    (gradient,) = torch.autograd.grad(potential_rewards(u).sum(), u)
    assert gradient.tolist() == [[-1.0, 0.0, 0.0, 0.0, 1.0]] * 2  # what lies between has no say


@pytest.mark.parametrize(
    "utility, gamma, named",
    [([[1.0]], 1.0, "utility"), ([[1.0, float("nan")]], 1.0, "utility"), ([[1.0, float("-inf")]], 1.0, "utility"),
     ([[1.0, 2.0]], 1.1, "gamma"), ([[1.0, 2.0]], -0.1, "gamma"), ([[1.0, 2.0]], float("nan"), "gamma")],
)  # fmt: skip
def test_bad_input_is_named(utility, gamma, named):
    with pytest.raises(REFUSED, match=named):
        potential_rewards(torch.tensor(utility), gamma)


# ---------------------------------------------------------------- what becomes of the optimal policy: by enumeration
#
# A Markov decision process whose states only go forward, 0 -> ... -> one of the two terminal states, so that every policy has
# finitely many trajectories. Every policy is valued by writing all of them out; no value recursion is shared with the package.

INNER, ENDS, ACTIONS = (0, 1, 2), (3, 4), (0, 1)


def random_process(seed):
    rng, moves, pays = random.Random(f"{seed} process"), {}, {}
    for s, a in itertools.product(INNER, ACTIONS):
        later = [n for n in INNER + ENDS if n > s]
        weight = [rng.random() * (rng.random() < 0.7) + 1e-3 for _ in later]
        moves[s, a] = [(n, w / sum(weight)) for n, w in zip(later, weight)]
        pays.update({(s, a, n): rng.gauss(0, 1) for n in later})
    return moves, pays


def trajectories(moves, policy, state=0):
    """(probability, states, actions) of every way to an end."""
    if state in ENDS:
        return [(1.0, [state], [])]
    found = []
    for following, p in moves[state, policy[state]]:
        for q, states, actions in trajectories(moves, policy, following):
            found.append((p * q, [state, *states], [policy[state], *actions]))
    return found


def value(moves, pays, policy, gamma, utility, task=1.0):
    """The policy's expected return: task rewards, and the function's rewards for the utility of the states on the way."""
    total = 0.0
    for p, states, actions in trajectories(moves, policy):
        rewards = [task * pays[step] for step in zip(states, actions, states[1:])]
        if utility is not None:
            shaped = potential_rewards(torch.tensor([utility[s] for s in states], dtype=torch.float64), gamma)
            rewards = [r + x for r, x in zip(rewards, shaped.tolist())]
        total += p * sum(gamma**t * r for t, r in enumerate(rewards))
    return total


POLICIES = list(itertools.product(ACTIONS, repeat=len(INNER)))


@pytest.mark.parametrize("gamma", [1.0, 0.8])
@pytest.mark.parametrize("seed", range(4))
def test_with_no_utility_at_the_ends_every_policy_loses_the_same(seed, gamma):
    moves, pays = random_process(seed)
    rng = random.Random(f"{seed} utility")
    utility = {s: rng.gauss(0, 5) for s in INNER} | dict.fromkeys(ENDS, 0.0)
    plain = [value(moves, pays, policy, gamma, None) for policy in POLICIES]
    shaped = [value(moves, pays, policy, gamma, utility) for policy in POLICIES]
    assert shaped == pytest.approx([v - utility[0] for v in plain], abs=1e-9)
    assert max(plain) - min(plain) > 0.1  # there was something to choose
    assert {i for i, v in enumerate(shaped) if v > max(shaped) - 1e-9} == {
        i for i, v in enumerate(plain) if v > max(plain) - 1e-9
    }


def test_a_utility_at_an_end_can_change_the_optimal_policy():
    # One choice: end 3 pays 1, end 4 pays 0. A utility of 5 at end 4 makes that one better, and no sum takes it back.
    moves = {(0, 0): [(3, 1.0)], (0, 1): [(4, 1.0)]}
    pays = {(0, 0, 3): 1.0, (0, 1, 4): 0.0}
    none, some = {0: 2.0, 3: 0.0, 4: 0.0}, {0: 2.0, 3: 0.0, 4: 5.0}
    for gamma in (1.0, 0.9):
        plain, harmless, harmful = (max(ACTIONS, key=lambda a: value(moves, pays, [a], gamma, u)) for u in (None, none, some))
        assert (plain, harmless, harmful) == (0, 0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_utility_at_the_ends_adds_exactly_its_expected_discounted_value(seed):
    moves, pays = random_process(seed)
    rng = random.Random(f"{seed} utility")
    utility = {s: rng.gauss(0, 5) for s in INNER + ENDS}
    for policy in POLICIES:
        last = sum(p * 0.8 ** len(actions) * utility[states[-1]] for p, states, actions in trajectories(moves, policy))
        extra = value(moves, pays, policy, 0.8, utility) - value(moves, pays, policy, 0.8, None)
        assert extra == pytest.approx(last - utility[0], abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_used_alone_it_optimises_the_utility_of_the_last_state(seed):
    moves, pays = random_process(seed)
    rng = random.Random(f"{seed} utility")
    utility = {s: rng.gauss(0, 5) for s in INNER + ENDS}
    alone = [value(moves, pays, policy, 1.0, utility, task=0.0) for policy in POLICIES]
    terminal = [sum(p * utility[states[-1]] for p, states, _ in trajectories(moves, policy)) for policy in POLICIES]
    assert alone == pytest.approx([v - utility[0] for v in terminal], abs=1e-9)
    assert terminal[max(range(len(alone)), key=alone.__getitem__)] == pytest.approx(max(terminal))
    # What was passed through on the way has no say: any other utility of the inner states orders the policies alike.
    detour = {s: u + (100.0 * s if s in INNER else 0.0) for s, u in utility.items()}
    again = [value(moves, pays, policy, 1.0, detour, task=0.0) for policy in POLICIES]
    assert sorted(range(len(again)), key=again.__getitem__) == sorted(range(len(alone)), key=alone.__getitem__)
