"""The proof of level 6's checks on the package: every known mistake is caught, every right alternative passes."""

import pytest

from autograder import levels
from autograder.checks import level6_package as package
from autograder.levels import load
from autograder.verify import MUTANTS_PER_INVARIANT
from promises import check_names, check_package_proof, check_sentences

LEVEL = load(6)
FUNCTIONS = sorted({check.function for check in LEVEL.checks if check.home})
STATEMENTS = sorted({check.invariant for check in LEVEL.checks if check.home})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_proof_of_the_checks(function):
    check_package_proof(LEVEL, function)


@pytest.mark.parametrize("id", STATEMENTS)
def test_every_invariant_has_known_mistakes_of_the_package(id):
    assert sum(id in mutant.kills and mutant.function in FUNCTIONS for mutant in LEVEL.mutants) >= MUTANTS_PER_INVARIANT


def test_each_function_has_a_known_mistake_for_each_of_its_invariants():
    for function in FUNCTIONS:
        for id in {check.invariant for check in LEVEL.checks_of(function)}:
            assert sum(m.function == function and id in m.kills for m in LEVEL.mutants) >= 2, (function, id)


def test_what_has_no_exercise_is_checked_on_the_package():
    """Of the contract's statements on level 6 each has a check, on an exercise or on the package."""
    assert {f"L6.{n:02}" for n in (*range(5, 17), 18)} <= set(STATEMENTS)


def test_names_of_known_mistakes_are_their_own():
    check_names(LEVEL)


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


def test_students_need_none_of_the_modules_that_they_do_not_get():
    source = (levels.HERE / "checks" / "level6_package.py").read_text()
    assert not any(f"autograder.{part}" in source for part in ("hidden", "mutants", "alternatives"))


# ---------------------------------------------------------------- the twins of the checks


def test_the_small_rounds_have_something_to_learn():
    """No two scores are equal: a rejection that left a trace could not hide behind a gradient of 0."""
    scores = [event.value for event in package.brevity(package.episodes().records, 0)]
    assert len(set(scores)) == len(scores) == 4


def test_the_checks_share_episodes_that_nobody_changes():
    first = [record.content_hash for record in package.episodes().records]
    assert first == [record.content_hash for record in package.episodes().records]
    assert package.episodes() is package.episodes()
