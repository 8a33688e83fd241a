"""Programs, their evaluator, and an evolution whose records suffice to check it."""

import dataclasses
import math

import pytest

from course.search.evolution import (
    OPERATIONS,
    Program,
    ancestors,
    error_score,
    evolve,
    execute,
    filter_cluster_select,
    number,
    operation,
    x,
)

POINTS = [((float(a),), float(a**3 + a * a + a)) for a in range(-3, 4)]
SMALL = {"inputs": 1, "generations": 10, "survivors": 8, "offspring": 24}


@pytest.fixture(scope="module")
def run():
    return list(evolve(error_score(POINTS), seed=1, **SMALL))


def test_programs_say_what_they_compute():
    program = operation("+", operation("*", x(), x()), operation("max", x(1), number(2)))
    assert str(program) == "((x0 * x0) + max(x1, 2))" and program.size == 7
    assert execute(program, [(3.0, 1.0), (1, 5)]) == [11.0, 6.0]
    assert execute(operation("-", x(), operation("/", number(1), number(4))), [(1.0,)]) == [0.75]
    assert execute(operation("min", x(), number(0)), [(1.0,), (-1.0,)]) == [0.0, -1.0]


def test_programs_without_a_value_give_nan_and_the_lowest_score():
    failing = [
        operation("/", number(1), x()),
        x(3),
        operation("min", operation("/", number(1), x()), number(0)),
        operation("*", number(1e300), operation("+", number(1e300), x())),
    ]
    for program in failing:
        assert math.isnan(execute(program, [(0.0,)])[0])
        assert error_score([((0.0,), 1.0)])(program) == -math.inf
    assert error_score([((0.0,), 1.0), ((1.0,), 3.0)])(number(1)) == -2.0
    assert error_score([((0.0,), 1.0)])(number(1e200)) == -math.inf


def test_only_the_listed_operations_exist():
    assert set(OPERATIONS) == {"+", "-", "*", "/", "min", "max"}
    for make in (
        lambda: Program("import"),
        lambda: Program("+"),
        lambda: Program("x", 0.5),
        lambda: Program("number", math.nan),
        lambda: Program("number", 1.0, (number(1), number(2))),
    ):
        with pytest.raises(ValueError, match="op must|arguments must|value must"):
            make()
    with pytest.raises(dataclasses.FrozenInstanceError):
        number(1).value = 2.0


def test_every_recorded_score_is_the_evaluator_s_and_the_best_never_falls(run):
    evaluate = error_score(POINTS)
    best = -math.inf
    seen = {}
    for index, generation in enumerate(run):
        assert generation.index == index and len(generation.proposed) == 24 and len(generation.survivors) <= 8
        for candidate in generation.proposed:
            assert candidate.score == (evaluate(candidate.program) if candidate.program.size <= 15 else -math.inf)
            assert candidate.id == len(seen)
            seen[candidate.id] = candidate
        assert all(c == seen[c.id] for c in generation.survivors)
        assert len({c.program for c in generation.survivors}) == len(generation.survivors)
        assert generation.best.score == max(c.score for c in seen.values()) >= best
        best = generation.best.score
    assert run[-1].best.score > run[0].best.score
    assert run[-1].evaluations == sum(c.program.size <= 15 for c in seen.values())


def test_ancestors_are_recorded_and_come_from_earlier_survivors(run):
    assert all(c.proposal == "start" and c.parents == () for c in run[0].proposed)
    for before, generation in zip(run, run[1:]):
        allowed = {c.id for c in before.survivors}
        for c in generation.proposed:
            assert set(c.parents) <= allowed and len(c.parents) == {"mutation": 1, "crossover": 2}[c.proposal]
    assert {c.proposal for g in run[1:] for c in g.proposed} == {"mutation", "crossover"}
    line = ancestors(run[-1].best.id, run)
    ids = [c.id for c in line]
    assert ids == sorted(set(ids)) and line[0].proposal == "start"
    assert set(run[-1].best.parents) <= set(ids) and all(set(c.parents) <= set(ids) for c in line)
    with pytest.raises(ValueError, match="candidate must be the id"):
        ancestors(10**6, run)


def test_a_seed_fixes_the_run_and_another_one_changes_it(run):
    assert list(evolve(error_score(POINTS), seed=1, **SMALL)) == run
    assert list(evolve(error_score(POINTS), seed=2, **SMALL)) != run


def test_search_beats_as_many_random_programs():
    """The proposals improve because their ancestors do: the same evaluations without ancestors find less."""
    found = blind = 0.0
    for seed in range(2):
        *_, last = evolve(error_score(POINTS), seed=seed, **SMALL)
        (start,) = evolve(error_score(POINTS), seed=seed, inputs=1, generations=0, survivors=8, offspring=last.evaluations)
        found, blind = found + last.best.score, blind + start.best.score
    assert found > blind + 10


def test_bad_settings_are_named():
    for name, value in (
        ("inputs", 0),
        ("survivors", 0),
        ("offspring", 0),
        ("generations", -1),
        ("crossover", 1.5),
        ("longest", 0),
    ):
        with pytest.raises(ValueError, match=f"^{name} must"):
            next(evolve(error_score(POINTS), seed=0, **{**SMALL, name: value}))
    with pytest.raises(ValueError, match="evaluate must"):
        next(evolve(lambda program: math.nan, seed=0, **SMALL))
    with pytest.raises(ValueError, match="points"):
        error_score([])


def test_filter_cluster_select():
    square, same = operation("*", x(), x()), operation("*", operation("+", x(), number(0)), x())
    other = operation("+", x(), number(2))  # agrees on the example, not elsewhere
    wrong, failing = x(), operation("/", number(4), operation("-", x(), number(2)))
    programs = [other, same, wrong, square, failing]
    result = filter_cluster_select(programs, [((2.0,), 4.0)], [(0.0,), (3.0,)], submissions=2)
    assert (result.sampled, result.passed, result.clusters, result.chosen) == (5, 3, (2, 1), (square, other))
    assert filter_cluster_select(programs, [((2.0,), 4.0)], [(0.0,), (3.0,)], submissions=1).chosen == (square,)
    assert filter_cluster_select(programs, [((2.0,), 5.0)], [(0.0,)], submissions=3).chosen == ()
    with pytest.raises(ValueError, match="submissions"):
        filter_cluster_select(programs, [], [], submissions=0)
