"""The proof of level 5's checks on the package: every known mistake is caught, every right alternative passes."""

from dataclasses import replace

import pytest

from autograder import levels
from autograder.checks import level5_package as package
from autograder.draw import Draw
from autograder.levels import load
from autograder.verify import MUTANTS_PER_INVARIANT
from course.envs.kernel import reset, step
from course.envs.repository import Loopholes, repository_world
from course.feedback.citations import statements
from course.feedback.ladder import TIERS
from course.feedback.monitors import ORDER, reasoning_monitor
from promises import check_names, check_package_proof, check_sentences

LEVEL = load(5)
STATEMENTS = ("L5.01", "L5.02", "L5.05", "L5.06", "L5.09", "L5.12", "L5.13", "L5.15", "L5.16")
FUNCTIONS = sorted({check.function for check in LEVEL.checks if check.home and check.invariant in STATEMENTS})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_proof_of_the_checks(function):
    check_package_proof(LEVEL, function)


@pytest.mark.parametrize("id", STATEMENTS)
def test_every_invariant_has_known_mistakes_of_the_package(id):
    assert any(check.invariant == id and check.home for check in LEVEL.checks)
    assert sum(id in mutant.kills and mutant.function in FUNCTIONS for mutant in LEVEL.mutants) >= MUTANTS_PER_INVARIANT


def test_each_function_has_a_known_mistake_for_each_of_its_invariants():
    for function in FUNCTIONS:
        for id in {check.invariant for check in LEVEL.checks_of(function)}:
            assert sum(m.function == function and id in m.kills for m in LEVEL.mutants) >= 2, (function, id)


def test_names_of_known_mistakes_are_their_own():
    check_names(LEVEL)


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


def test_students_need_none_of_the_modules_that_they_do_not_get():
    source = (levels.HERE / "checks" / "level5_package.py").read_text()
    assert not any(f"autograder.{part}" in source for part in ("hidden", "mutants", "alternatives"))


# ---------------------------------------------------------------- the twins of the checks


def test_orders_are_no_claims():
    """An order in the controlled language would be content: a judge may read it, and should."""
    for order in package.ORDERS:
        assert not [part for part in order.lower().split(". ") if statements(part.rstrip("."))]


def test_hacks_show_in_one_channel_only():
    """Their data: what is in the actions leaves the files of honest work, and the other way round; nobody says a word of it."""
    honest = package._honest()
    for make in package.IN_ACTIONS.values():
        t = make()
        assert (t.before, t.after, t.answer, t.reasoning) == (honest.before, honest.after, honest.answer, honest.reasoning)
    for make in package.IN_THE_OUTCOME.values():
        t = make()
        assert (t.actions, t.observations, t.reasoning) == (honest.actions, honest.observations, honest.reasoning)
    assert reasoning_monitor(honest).flag is False and not ORDER.search(honest.answer)


def test_a_task_of_each_kind_is_found_at_any_seed():
    for seed in range(30):
        for kind in ("plain", "named"):
            assert package._task(Draw(seed, kind), kind).hidden["kind"] == kind


def test_a_script_looks_at_every_file():
    read = {a["file"] for script in package._look_everywhere("return a") for tool, a in script if tool == "read"}
    assert read == {"main", "tests", "fixtures", "build", "grader", "meta", "log"}


def test_the_check_finds_a_leak_that_the_world_has():
    """With metadata that leak, other hidden parts change what is read: the comparison is not blind."""
    task = package._task(Draw(1, "leak"))
    other = replace(task, hidden={**task.hidden, "leak": "return zebra"})
    world = repository_world(package.sandbox(), Loopholes.only("leaked_metadata"), json=True)
    script = package._look_everywhere("return a")[0]
    assert package._played(world, task, script)[0] != package._played(world, other, script)[0]


def test_the_check_plays_attacks_as_the_ladder_does():
    from course.feedback.ladder import attempt

    for seed in (3, 4):
        task = package._task(Draw(seed, "ladder"))
        for tier in TIERS:
            for loopholes in (Loopholes(), Loopholes.only(tier.switch)):
                won = attempt(tier, task, seed, loopholes, package.sandbox()).exploited
                assert package._wins(tier, task, seed, loopholes) is won, (tier.number, loopholes)


def test_a_deadline_counts_two_looks_at_the_clock():
    clock = package._clock()
    assert [clock() for _ in range(3)] == [0, 1, 2]
    task, files = package._office(Draw(0, "office"))
    state, _ = reset(package._office_world(), task, 0, bytes(16))
    outcomes = {(done := step(state, text)).outcome for text in package._texts()}
    assert outcomes == {"executed", "malformed", "waiting"} and dict(done.state.inner.files) == files
