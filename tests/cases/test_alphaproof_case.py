"""The loop's promises: only verified proofs are trained on, the base stays, and the bill adds up."""

import pytest
import torch

from course.cases.alphaproof import (
    CLAUSES, READINGS, adapt_to, alphaproof, demonstrations, equivalent, fingerprint, keep_verified, library, new_prover, prover_loss,
    renamed, search, solved_share, train, translations, variants,
)  # fmt: skip
from course.envs.proofs import ATOMS, FIRST_COST, FIRST_TACTIC, TACTICS, Goal, check_proof, kernel, problems, truth
from course.search.proofs import ProofCompute, SearchResult, proof_cost, solve

CLOSE = ("assumption", ())
GOAL = Goal(("p", "q"), "&pq")


@pytest.fixture(scope="module")
def written():
    return library(40, 1)


def test_an_unverified_proof_never_enters_the_data():
    right, wrong = ("split", (CLOSE, CLOSE)), CLOSE
    kept = keep_verified([SearchResult(GOAL, wrong, ProofCompute(), False)], {})
    assert kept == {}
    kept = keep_verified([SearchResult(GOAL, right, ProofCompute(), False), SearchResult(GOAL, None, ProofCompute(), True)], kept)
    assert kept == {GOAL: right, Goal(("p", "q"), "p"): CLOSE, Goal(("p", "q"), "q"): CLOSE}
    assert solved_share([SearchResult(GOAL, p, ProofCompute(), False) for p in (right, wrong, None, right)]) == 0.5


def test_the_cheaper_proof_of_a_goal_stays():
    goal = Goal(("&pq", "p"), "p")
    long = ("cases 0", (CLOSE,))
    results = [SearchResult(goal, proof, ProofCompute(), False) for proof in (long, CLOSE, long)]
    assert keep_verified(results, {})[goal] == CLOSE


def test_demonstrations_hold_tactic_and_cost_under_any_names(written):
    data = demonstrations(written, seed=0, copies=2)
    assert len(data) == 2 * len(written)
    for i, proof in enumerate(proof for proof in written.values() for _ in range(2)):
        assert data.response(i) == (FIRST_TACTIC + TACTICS.index(proof[0]), FIRST_COST + proof_cost(proof))


def test_a_proof_holds_under_any_names(written):
    for goal, proof in list(written.items())[:50]:
        assert check_proof(renamed(goal, "tsrqp"), proof)
    assert renamed(GOAL, ATOMS) == GOAL


def test_the_loss_reads_tactic_and_cost_at_the_end_of_the_goal():
    data = demonstrations({GOAL: ("split", (CLOSE, CLOSE)), Goal(("p",), "p"): CLOSE}, seed=0, copies=1)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(*data.tokens.shape, 60, generator=generator, dtype=torch.float64)
    costs = torch.randn(data.tokens.shape, generator=generator, dtype=torch.float64)
    by_hand, errors = [], []
    for row in range(2):
        end = len(data.prompt(row)) - 1
        tactic, cost = data.response(row)
        by_hand.append(-torch.log_softmax(logits[row, end], -1)[tactic])
        errors.append((costs[row, end] - (cost - FIRST_COST)) ** 2)
    wanted = sum(by_hand) / 2 + 0.1 * sum(errors) / 2
    assert prover_loss((logits, costs), data.tokens, data.action_mask) == pytest.approx(float(wanted), rel=1e-9)


def test_training_learns_tactics_and_costs(written):
    prover = new_prover(0)
    start = solved_share(search(prover, list(written)[:60], 6))
    bill = train(prover, written, steps=60, seed=0)
    assert solved_share(search(prover, list(written)[:60], 6)) > start + 0.1
    assert bill.trained_tokens > 60 * 32 * 5 and bill.kernel_calls == 0
    easy, hard = Goal(("p",), "p"), Goal(("|pq", ">pr", ">qr"), "r")
    assert prover.guide([easy])[1][0] < prover.guide([hard])[1][0]


def test_the_loop_yields_rounds_and_only_verified_proofs(written):
    prover, goals = new_prover(0), problems(12, 5, hypotheses=(2, 3))
    rounds = list(alphaproof(prover, written, goals[:8], goals[8:], rounds=1, budget=12, steps=5, seed=0))
    assert [r.round for r, _ in rounds] == [0, 1]
    assert all(check_proof(goal, proof) for goal, proof in rounds[-1][1].items())
    assert not set(goals[8:]) & (set(rounds[-1][1]) - set(written))
    assert rounds[0][0].compute.trained_tokens > 0 == rounds[1][0].compute.trained_tokens
    again = list(alphaproof(new_prover(0), written, goals[:8], goals[8:], rounds=1, budget=12, steps=5, seed=0))
    assert [r for r, _ in again] == [r for r, _ in rounds]
    control = list(
        alphaproof(new_prover(0), written, goals[:8], goals[8:], rounds=1, budget=12, steps=5, seed=0, feed_back=False)
    )
    assert control[-1][1] == written


def test_variants_are_new_different_and_near():
    target = problems(1, 3)[0]
    made = variants(target, 20, 0)
    assert made == variants(target, 20, 0) != variants(target, 20, 1)
    assert len(set(made)) == 20 and target not in made
    assert any(solve(v, lambda _: TACTICS, kernel, 5) for v in made)


def test_test_time_rl_moves_a_copy_only_and_plain_search_may_spend_as_much(written):
    base, target = new_prover(0), problems(1, 9, hypotheses=(4, 6))[0]
    before = fingerprint(base)
    a = adapt_to(base, target, written, variants_n=6, variant_budget=12, steps=3, final_budget=12, seed=0)
    assert a.base_before == a.base_after == before == fingerprint(base) != a.adapted_weights
    assert a.adapted_compute.trained_tokens > 0 == a.plain_compute.trained_tokens
    assert a.adapted.compute.kernel_calls <= 12
    assert a.plain_compute.total >= a.adapted_compute.total or a.plain.proof is not None or a.plain.refuted
    assert a.plain_compute.total < a.adapted_compute.total + 200
    for result in (a.plain, a.adapted, a.short):
        assert result.proof is None or check_proof(target, result.proof)


def test_equivalence_is_proved_both_ways():
    assert equivalent(">p>qr", ">&pqr")
    assert not equivalent("&pq", "p")  # one way only
    assert not equivalent("p", "&pq")
    assert not equivalent(">>qFp", "|qp") and truth(">>qFp") == truth("|qp")  # needs the excluded middle


def test_no_accepted_translation_has_another_meaning():
    made = translations(60, 0)
    assert made == translations(60, 0)
    assert all(t.same_table for t in made if t.accepted)
    assert all(t.accepted for t in made if t.same_text)
    assert any(t.accepted and not t.same_text for t in made) and any(not t.accepted for t in made)
    assert all(len(readings) == 4 for readings in READINGS.values()) and set(CLAUSES.values()) == set(ATOMS)
