"""Exact AND-OR search against enumeration."""

from functools import lru_cache

from hypothesis import given, settings, strategies as st
import pytest

from course.search.proofs import proof_cost, solve


def brute(goal, table, budget):
    """(cost, proof) by plain recursion over the bound: the slow twin."""

    @lru_cache(maxsize=None)
    def best(g, left):
        found = None
        if left > 0:
            for tactic, subgoals in table.get(g, []):
                if subgoals is None:
                    continue
                subs = [best(s, left - 1) for s in subgoals]
                if None in subs:
                    continue
                cost = 1 + max([c for c, _ in subs], default=0)
                if found is None or cost < found[0]:
                    found = (cost, (tactic, tuple(p for _, p in subs)))
        return found

    return best(goal, budget)


def as_functions(table):
    def tactics(goal):
        return [tactic for tactic, _ in table.get(goal, [])]

    def kernel(goal, tactic):
        return dict(table[goal])[tactic]

    return tactics, kernel


goals = st.integers(0, 6)
moves = st.lists(st.one_of(st.none(), st.lists(goals, max_size=3)), max_size=4)


@settings(max_examples=400, deadline=None)
@given(st.lists(moves, min_size=7, max_size=7), st.integers(0, 9))
def test_solve_agrees_with_enumeration_on_any_table(rows, budget):
    table = {g: [(f"t{i}", subs) for i, subs in enumerate(row)] for g, row in enumerate(rows)}
    wanted = brute(0, table, budget)
    got = solve(0, *as_functions(table), budget)
    assert got == (None if wanted is None else wanted[1])
    if got is not None:
        assert proof_cost(got) == wanted[0] <= budget


def test_an_and_node_needs_all_goals_and_costs_its_hardest():
    table = {0: [("split", [1, 2])], 1: [("a", [])], 2: [("b", [3])], 3: [("c", [])]}
    proof = solve(0, *as_functions(table), 3)
    assert proof == ("split", (("a", ()), ("b", (("c", ()),))))
    assert proof_cost(proof) == 3
    assert solve(0, *as_functions(table), 2) is None
    table[3] = []
    assert solve(0, *as_functions(table), 100) is None


def test_a_cheaper_later_tactic_beats_an_earlier_one_and_equals_go_by_order():
    table = {0: [("long", [1]), ("short", []), ("also short", [])], 1: [("x", [])]}
    assert solve(0, *as_functions(table), 5) == ("short", ())


def test_invalid_tactics_cost_nothing_and_change_nothing():
    table = {0: [(f"bad{i}", None) for i in range(50)] + [("good", [])]}
    assert solve(0, *as_functions(table), 1) == ("good", ())


def test_cycles_end_and_each_goal_meets_the_kernel_once():
    table = {0: [("turn", [1])], 1: [("back", [0]), ("self", [1])]}
    calls = []
    tactics, kernel = as_functions(table)

    def counted(goal, tactic):
        calls.append((goal, tactic))
        return kernel(goal, tactic)

    assert solve(0, tactics, counted, 10**9) is None
    assert len(calls) == len(set(calls)) == 3


def test_infinitely_many_goals_are_no_trouble_where_a_proof_is_near():
    def kernel(goal, tactic):
        return [] if (goal, tactic) == (3, "stop") else [goal + 1] if tactic == "up" else None

    assert proof_cost(solve(0, lambda g: ["up", "stop"], kernel, 10**6)) == 4


def test_long_chains_do_not_exhaust_the_stack():
    def kernel(goal, tactic):
        return [goal + 1] if goal < 1500 else []

    proof = solve(0, lambda g: ["on"], kernel, 2000)
    assert proof_cost(proof) == 1501
    assert solve(0, lambda g: ["on"], kernel, 1500) is None


@pytest.mark.parametrize("budget", [-1, True])
def test_a_budget_is_a_count(budget):
    with pytest.raises(ValueError, match="budget must be an integer"):
        solve(0, lambda g: [], lambda g, t: None, budget)


def test_what_is_no_proof_is_refused():
    with pytest.raises(ValueError, match="proof must be a pair"):
        proof_cost(("tactic",))
