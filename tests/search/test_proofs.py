"""Exact AND-OR search against enumeration."""

from functools import lru_cache

from hypothesis import given, settings, strategies as st
import pytest

from course.cases.alphaproof import fingerprint, new_prover
from course.envs.proofs import TACTICS, Goal, check_proof, encode_goal, kernel, problems
from course.search.proofs import ProofCompute, guided_search, proof_cost, solve


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


@settings(max_examples=80, deadline=None)
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


# ---------------------------------------------------------------- guided search


def know_nothing(goals):
    return [[1 / len(TACTICS)] * len(TACTICS) for _ in goals], [1.0] * len(goals), [len(encode_goal(g)) for g in goals]


def test_guided_search_proves_what_exhaustive_search_proves_and_the_kernel_agrees():
    goals_ = problems(10, 1, hypotheses=(2, 3))
    for result in guided_search(goals_, TACTICS, kernel, know_nothing, budget=4000):
        exact = solve(result.goal, lambda _: TACTICS, kernel, 12)
        assert (result.proof is None) == (exact is None), result.goal
        if exact is None:
            assert result.refuted
        else:
            assert check_proof(result.goal, result.proof)
            assert proof_cost(result.proof) >= proof_cost(exact)


@settings(max_examples=60, deadline=None)
@given(st.lists(moves, min_size=7, max_size=7))
def test_guided_search_agrees_with_solve_on_any_table(rows):
    """With budget to spare, also with cycles and dead ends: a proof where there is one, refuted where there is none."""
    names = [f"t{i}" for i in range(4)]

    def table_kernel(goal, tactic):
        row = rows[goal]
        return row[int(tactic[1])] if int(tactic[1]) < len(row) else None

    def guide(asked):
        return [[0.4, 0.3, 0.2, 0.1]] * len(asked), [1.0] * len(asked), [1] * len(asked)

    exact = solve(0, lambda _: names, table_kernel, 50)
    (result,) = guided_search([0], names, table_kernel, guide, budget=5_000)
    assert (result.proof is None) == (exact is None)
    assert result.refuted == (exact is None)
    assert exact is None or check_proof(0, result.proof, table_kernel)


def test_compute_is_counted_where_it_is_spent():
    goals_, calls, reads = problems(6, 2), [], []

    def counted(goal, tactic):
        calls.append((goal, tactic))
        return kernel(goal, tactic)

    def read(goals):
        reads.extend(goals)
        return know_nothing(goals)

    results = guided_search(goals_, TACTICS, counted, read, budget=40)
    total = sum((r.compute for r in results), ProofCompute())
    assert total.kernel_calls == total.sampled_tokens == len(calls)
    assert total.network_calls == len(reads)
    assert total.read_tokens == sum(len(encode_goal(g)) for g in reads)
    assert all(r.compute.kernel_calls <= 40 for r in results)
    assert total.trained_tokens == 0
    assert ProofCompute(1, 2, 3, 4, 5).total == 3 + 4 + 15


def test_goals_searched_together_get_what_they_get_alone():
    goals_ = problems(6, 5)
    together = guided_search(goals_, TACTICS, kernel, know_nothing, budget=60)
    for goal, result in zip(goals_, together):
        assert guided_search([goal], TACTICS, kernel, know_nothing, budget=60) == [result]


def test_a_limit_on_tokens_stops_the_search():
    (free,) = guided_search([problems(1, 8)[0]], TACTICS, kernel, know_nothing, budget=300)
    (bound,) = guided_search([free.goal], TACTICS, kernel, know_nothing, budget=300, total=200)
    assert bound.compute.total < 200 + 200 and bound.compute.kernel_calls < free.compute.kernel_calls


def test_the_prover_reads_a_goal_alike_alone_and_in_a_batch_and_search_changes_no_weight():
    prover, goals_ = new_prover(0), problems(5, 3)
    before = fingerprint(prover)
    priors, costs, lengths = prover.guide(goals_)
    for i, goal in enumerate(goals_):
        prior, cost, length = prover.guide([goal])
        assert prior[0] == pytest.approx(priors[i], abs=1e-6) and cost[0] == pytest.approx(costs[i], abs=1e-5)
        assert length == [lengths[i]] == [len(encode_goal(goal))]
        assert sum(prior[0]) == pytest.approx(1, abs=1e-5)
    guided_search(goals_, TACTICS, kernel, prover.guide, budget=20)
    assert fingerprint(prover) == before


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="budget must be at least 1"):
        guided_search([Goal((), "p")], TACTICS, kernel, know_nothing, budget=0)
