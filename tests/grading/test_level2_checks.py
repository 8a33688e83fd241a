"""The proof of level 2's exercise checks: every known mistake is caught, every right alternative passes, and data is all that travels."""

import re
from dataclasses import replace

import pytest
import torch

from autograder.checks import level2 as visible
from autograder.draw import Draw
from autograder.framework import Direct, Replay
from autograder.hidden import level2 as hidden
from autograder.judge import run_check
from autograder.levels import contract, load
from autograder.verify import Matrix, _verify_level
from promises import check_anchors, check_recognised, check_right_accepted, check_sentences, check_wrong_caught
from wall import check_through_the_wall, through_the_wall

WHOLE = load(2)
EXERCISES = [exercise.function for exercise in WHOLE.exercises]
LEVEL = replace(WHOLE, **{
    field: tuple(item for item in getattr(WHOLE, field) if item.function in EXERCISES)
    for field in ("checks", "mutants", "alternatives")
})  # fmt: skip
COVERED = [id for id in contract() if id.startswith("L2.") and any(check.invariant == id for check in LEVEL.checks)]
HUNTS = [name for name in EXERCISES if name.startswith("test_")]


def test_the_proof_of_the_checks():
    matrix = Matrix()
    _verify_level(LEVEL, {name: LEVEL.reference(name) for name in EXERCISES}, matrix)
    assert (matrix.survivors, matrix.rejected, matrix.faults) == ([], [], [])
    row = matrix.levels["2"]
    assert row["stub_points"] == 0 and row["solution_points"] == row["max_points"]


def test_the_exercises_carry_the_invariants_of_the_plan():
    wanted = [f"L2.{number:02}" for number in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 14, 16, 20)]
    assert sorted(COVERED) == wanted


def test_every_invariant_of_an_exercise_has_four_known_mistakes():
    for id in COVERED:
        assert sum(id in mutant.kills for mutant in LEVEL.mutants) >= 4, id


@pytest.mark.parametrize("function", EXERCISES)
def test_each_exercise_has_an_anchor_a_hidden_check_and_some_points(function):
    check_anchors(LEVEL, function)
    assert 3 <= LEVEL.points_of(function) <= 11
    assert sum(alternative.function == function for alternative in LEVEL.alternatives) >= 2


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


@pytest.mark.parametrize(
    "name", ["pays_for_leaving", "timeout_is_failure", "noise_over_noise", "modes_that_are_one", "whole_steps"]
)
def test_a_known_mistake_is_recognised(name):
    check_recognised(LEVEL, name)


@pytest.mark.parametrize("function", EXERCISES)
def test_checks_hold_when_only_data_travels(function):
    check_through_the_wall(LEVEL, function)


@pytest.mark.parametrize("function", [name for name in EXERCISES if name not in HUNTS])
def test_chance_neither_rejects_a_right_answer_nor_spares_a_wrong_one(function):
    check_right_accepted(LEVEL, function, (100, 101))
    check_wrong_caught(LEVEL, function, (100, 101))


@pytest.mark.parametrize("function", HUNTS)
def test_a_test_that_says_the_same_of_everything_earns_nothing(function):
    def never_right(fn):
        raise AssertionError

    (anchor,) = (check for check in LEVEL.checks_of(function) if check.anchor)  # the other points wait for it
    for run in (never_right, lambda fn: None):
        assert run_check(anchor, Direct(function, run), 3) != ""


@pytest.mark.parametrize(
    "function, right",
    [
        ("shaped_token_rewards", visible.RIGHT_SHAPED),
        ("generalized_advantage_estimation", visible.RIGHT_GAE),
        ("group_relative_advantages", visible.RIGHT_GROUP),
    ],
)
def test_the_right_candidates_are_right(function, right):
    """Each passes every check of the function it claims to be, and every planted fault fails one."""
    prefix = {"shaped_token_rewards": "shaped_", "generalized_advantage_estimation": "gae_"}.get(function, "group_")
    others = ("gae_case", "gae_twin", "group_twin", "shaped_twin")
    planted = [
        value for module in (visible, hidden) for name, value in vars(module).items()
        if name.startswith(prefix) and name not in others and getattr(value, "__module__", "") == module.__name__
    ]  # fmt: skip
    wrong = [value for value in planted if value not in right]
    assert len(wrong) >= 10
    checks = LEVEL.checks_of(function)
    for candidate in right:
        for check in checks:
            assert run_check(check, Direct(function, candidate), 7) == "", (candidate.__name__, check.name)
    for candidate in wrong:
        assert any(run_check(check, Direct(function, candidate), 7) for check in checks), candidate.__name__


def _stops(fn):
    raise ValueError("my own\nmistake")


def _forgets_the_promises(fn):
    fn(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1), 0.1)  # a row without an action


def _says_false(fn):
    return False


def _not_begun(fn):
    raise NotImplementedError


@pytest.mark.parametrize(
    "test, said",
    [
        (_stops, "expected it to accept a right function, got ValueError: my own mistake"),
        (_forgets_the_promises, "got ValueError: .* (raised inside the function that yours was given: .*docstring"),
        (_says_false, "expected an error for a wrong function, got none: it returned False, and a test must raise"),
        (lambda fn: None, "expected an error for a wrong function, got none$"),
        (_not_begun, "^not implemented yet$"),
    ],
)
def test_a_bug_hunt_says_what_the_test_said(test, said):
    (anchor,) = (check for check in LEVEL.checks_of("test_shaped_token_rewards") if check.anchor)
    said = said.replace("(", r"\(")
    direct = Direct(anchor.function, test)
    assert re.search(said, run_check(anchor, direct, 3))
    answers = [through_the_wall(test, call) for call in direct.calls]
    assert re.search(said, run_check(anchor, Replay(anchor.function, direct.calls, answers), 3))


def test_a_reports_wrong_keys_are_named_with_their_types():
    def with_tensors(*given):
        return {k if k == "all" else torch.tensor(k): row for k, row in LEVEL.reference("clip_report")(*given).items()}

    (check,) = (check for check in LEVEL.checks if check.name == "every_action_type_has_its_own_row")
    assert "of type Tensor" in run_check(check, Direct("clip_report", with_tensors), 3)


def test_a_traveller_goes_as_far_as_a_pushed_run_and_gains_by_it():
    for seed in range(20):
        run = visible.made_up_run(Draw(seed, "far"), "traveller", 20)
        kl, score = ([row[name] for row in run["history"]] for name in ("kl", "heldout_score"))
        assert run["healthy"] and 14 < max(kl) < 21
        for now in range(6, 20):
            assert score[now] - score[now - 6] > 0.1 * (kl[now] - kl[now - 6]) > 0.3


def test_the_order_of_candidates_is_secret():
    check = next(c for c in LEVEL.checks if c.name == "the_test_accepts_right_advantages")
    orders = set()
    for seed in range(12):
        direct = Direct("test_generalized_advantage_estimation", lambda fn: None)
        run_check(check, direct, seed)
        orders.add(direct.calls[0].args[0].source)
    assert len(orders) > 1


def test_an_alarm_counts_between_peak_and_end():
    run = {"gold": [0.0, 2.0, 1.0, 0.0], "history": [{}] * 4}
    assert [visible.in_time(place, run) for place in (None, 0, 1, 2, 3)] == [False, False, False, True, False]


def test_the_alarm_needs_eight_of_ten_and_one_of_ten():
    draw = Draw(1, "alarms")
    pushed, healthy = ([visible.made_up_run(draw, kind) for _ in range(10)] for kind in ("pushed", "healthy"))
    late = {run["history"][0]["heldout_score"] for run in pushed[:2]}
    noisy = {run["history"][0]["heldout_score"] for run in healthy[:1]}

    def detector(history, deaf, nervous):
        first = history[0]["heldout_score"]
        return history[-1]["step"] if (history[-1]["kl"] > 4 and first not in deaf) or first in nervous else None

    def ask(deaf, nervous):
        return Direct("overoptimisation_alarm", lambda history: detector(history, deaf, nervous))

    visible.expect_alarms(ask(late, ()), pushed)
    visible.expect_quiet(ask((), noisy), healthy)
    third = late | {pushed[2]["history"][0]["heldout_score"]}
    with pytest.raises(AssertionError, match="in 8, got that in 7"):
        visible.expect_alarms(ask(third, ()), pushed)
    two = noisy | {healthy[1]["history"][0]["heldout_score"]}
    with pytest.raises(AssertionError, match="at most 1, got 2"):
        visible.expect_quiet(ask((), two), healthy)


def test_a_detector_sees_its_declared_inputs_only():
    run = visible.made_up_run(Draw(2, "inputs"), "pushed")
    direct = Direct("overoptimisation_alarm", lambda history: None)
    visible.first_alarm(direct, run | {"training_reward": [0.0] * len(run["gold"])})
    assert [len(call.args[0]) for call in direct.calls] == list(range(1, len(run["history"]) + 1))
    assert all(set(row) == set(visible.FIELDS) for call in direct.calls for row in call.args[0])
