"""What every level promises of its checks, mutants and alternatives: one place for the tests of all levels."""

import inspect
from dataclasses import replace

from autograder.framework import Direct
from autograder.judge import PUBLIC_SEED, judge, run_check
from autograder.verify import ALTERNATIVES_PER_FUNCTION, Matrix, _alternatives, _mutants, _references, _verify_level


def only(level, *functions):
    """The level with nothing but what belongs to these functions."""
    fields = ("exercises", "checks", "mutants", "alternatives")
    return replace(level, **{f: tuple(item for item in getattr(level, f) if item.function in functions) for f in fields})


def check_proof(level, function):
    """An exercise: mistakes caught, right answers accepted, nothing for the stub, everything for the reference."""
    matrix, part = Matrix(), only(level, function)
    _verify_level(part, {function: part.reference(function)}, matrix)
    assert (matrix.survivors, matrix.rejected, matrix.faults) == ([], [], [])
    assert not [line for line in matrix.uncovered if line.startswith(function)]
    (row,) = matrix.levels.values()
    assert row["stub_points"] == 0 and row["solution_points"] == row["max_points"]


def check_package_proof(level, *functions):
    """Functions of the package: mistakes caught, right answers accepted, and enough of them."""
    part, matrix = only(level, *functions), Matrix()
    killed, accepted = _mutants(part, matrix), _alternatives(part, matrix)
    _references(part, matrix)
    assert matrix.survivors + matrix.rejected + matrix.faults == []
    assert (killed, accepted) == (len(part.mutants), len(part.alternatives)) and accepted >= ALTERNATIVES_PER_FUNCTION


def check_names(level):
    names = [mutant.name for mutant in level.mutants]
    assert sorted(set(names)) == sorted(names)


def check_sentences(level):
    """A learner is told one sentence about a known mistake, and every check says what it checks."""
    for mutant in level.mutants:
        assert mutant.message.startswith("This looks like ") and mutant.message.endswith("."), mutant.name
        assert "\n" not in mutant.message, mutant.name
    for check in level.checks:
        assert inspect.getdoc(check.run), check.name


def check_anchors(level, function, most=1, hidden=0):
    """An exercise has one visible anchor (at most `most`) and at least one hidden check.

    hidden: anchors beside it that only grading knows, where the text that students have can't tell a right answer from one in form.
    """
    checks = level.checks_of(function)
    anchors = [check for check in checks if check.anchor]
    assert 1 <= sum(not check.hidden for check in anchors) <= most and sum(check.hidden for check in anchors) == hidden
    assert any(check.hidden for check in checks)


def check_recognised(level, name):
    mutant = next(m for m in level.mutants if m.name == name)
    verdicts = judge(level, mutant.function, lambda _: Direct(mutant.function, mutant.run), PUBLIC_SEED, hidden=False)
    assert any(mutant.message in verdict.reason for verdict in verdicts)


def check_right_accepted(level, function, seeds):
    """Chance does not reject a right answer."""
    right = [level.reference(function), *(a.run for a in level.alternatives if a.function == function)]
    for seed in seeds:
        for run in right:
            for check in level.checks_of(function):
                assert run_check(check, Direct(function, run), seed) == "", (check.name, seed)


def check_wrong_caught(level, function, seeds):
    """Chance does not spare a wrong one."""
    for seed in seeds:
        for mutant in (m for m in level.mutants if m.function == function):
            for id in mutant.kills:
                checks = [check for check in level.checks_of(function) if check.invariant == id]
                assert any(run_check(check, Direct(function, mutant.run), seed) for check in checks), (mutant.name, id, seed)
