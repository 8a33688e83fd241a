"""The proof of level 1: every known mistake is caught, every right alternative passes, and the checks work through plain data."""

from dataclasses import replace

import pytest

from autograder.framework import Direct
from autograder.judge import judge, run_check
from autograder.levels import contract, load
from autograder.verify import Matrix, _verify_level
from promises import check_anchors, check_recognised, check_right_accepted, check_sentences
from wall import check_through_the_wall

LEVEL = load(1)
EXERCISES = [exercise.function for exercise in LEVEL.exercises]


TRAINED = ("reward_scores", "tail_recipe")  # these train models: `course verify-checks` has them, half a minute in all


def test_the_proof_of_the_checks():
    quick = replace(LEVEL, **{
        field: tuple(item for item in getattr(LEVEL, field) if item.function not in TRAINED)
        for field in ("exercises", "checks", "mutants", "alternatives")
    })  # fmt: skip
    matrix = Matrix()
    _verify_level(quick, {exercise.function: quick.reference(exercise.function) for exercise in quick.exercises}, matrix)
    assert (matrix.survivors, matrix.rejected, matrix.faults) == ([], [], [])
    assert matrix.uncovered == ["L1.18: no check"]
    row = matrix.levels["1"]
    assert row["stub_points"] == 0 and row["solution_points"] == row["max_points"]


def test_every_invariant_has_four_known_mistakes():
    statements = [id for id in contract() if id.startswith("L1.")]
    assert len(statements) == 19
    for id in statements:
        assert sum(id in mutant.kills for mutant in LEVEL.mutants) >= 4, id


@pytest.mark.parametrize("function", EXERCISES)
def test_each_exercise_has_one_or_two_anchors_and_a_hidden_check(function):
    check_anchors(LEVEL, function, most=2)
    assert 3 <= LEVEL.points_of(function) <= 8


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


@pytest.mark.parametrize("name", ["log_of_a_sigmoid", "one_weight_per_pair", "last_column", "beta_outside", "always_the_top"])
def test_a_known_mistake_is_recognised(name):
    check_recognised(LEVEL, name)


@pytest.mark.parametrize("function", [name for name in EXERCISES if name != "reward_scores"])
def test_checks_hold_when_only_data_travels(function):
    check_through_the_wall(LEVEL, function)


@pytest.mark.parametrize("function", [name for name in EXERCISES if name != "reward_scores"])
def test_chance_does_not_reject_a_right_answer(function):
    check_right_accepted(LEVEL, function, range(100, 104))


def test_a_test_that_rejects_everything_earns_nothing():
    def never_right(fn):
        raise AssertionError

    verdicts = judge(LEVEL, "test_last_token_score", lambda _: Direct("test_last_token_score", never_right), 3, hidden=True)
    assert sum(v.points for v in verdicts) == 0


def test_a_test_that_accepts_everything_earns_nothing():
    verdicts = judge(LEVEL, "test_last_token_score", lambda _: Direct("test_last_token_score", lambda fn: None), 3, hidden=True)
    assert sum(v.points for v in verdicts) == 0


def test_the_order_of_candidates_is_secret():
    check = next(c for c in LEVEL.checks if c.name == "the_test_accepts_every_right_function")
    orders = set()
    for seed in range(12):
        direct = Direct("test_last_token_score", lambda fn: None)
        run_check(check, direct, seed)
        orders.add(direct.calls[0].args[0].source)
    assert len(orders) > 1
