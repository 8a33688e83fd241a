"""Level 7: what only the package promises. Numbers of different suites have no mean."""

from autograder.checks.level5 import differ
from autograder.checks.level7 import BENCHMARKS, BUDGETS, COMPARATORS, COUNTS, RATES
from autograder.framework import CheckFailed, invariant
from autograder.inside.execute import StudentError
from course.evidence.numbers import Reported


def expect_refusal(function, numbers, words):
    """A ValueError that names what differs."""
    try:
        got = function(numbers)
    except StudentError as error:
        if error.kind == "ValueError" and all(word in error.text for word in words):
            return
        raise CheckFailed(f"{function.name}: expected a ValueError that names {', '.join(words)}, got {error}") from None
    differ(f"{function.name}({numbers})", f"a ValueError that names {', '.join(words)}", repr(got))


def alike(draw, unit):
    conditions = (draw.choice(BENCHMARKS), draw.choice(BUDGETS), draw.choice(COMPARATORS), draw.number(0, 2) == 0)
    return [Reported(draw.number(1, 99), unit, *conditions) for _ in range(draw.number(1, 6))]


OTHERS = {"unit": "points", "benchmark": "another suite", "budget": "4,096 samples", "comparator": "nobody"}


def changed(draw, number, name):
    from dataclasses import replace

    return replace(number, **{name: not number.adjusted if name == "adjusted" else OTHERS[name]})


@invariant("L7.03", home="course.evidence.numbers")
def a_mean_under_the_same_conditions(average, draw):
    """Numbers of one unit, benchmark, budget, comparator and adjustment have a mean, with these conditions."""
    for _ in range(6):
        numbers = alike(draw, draw.choice(RATES))
        got = average(numbers)
        wanted = sum(number.value for number in numbers) / len(numbers)
        if abs(got.value - wanted) > 1e-9 or vars(got) | {"value": 0} != vars(numbers[0]) | {"value": 0}:
            differ(f"average({numbers})", wanted, repr(got))


@invariant("L7.03", home="course.evidence.numbers")
def suites_have_no_mean(average, draw):
    """OSWorld 38.1, WebArena 58.1 and WebVoyager 87 stay three numbers; what differs is named."""
    suites = [Reported(value, "% of tasks", name) for value, name in ((38.1, "OSWorld"), (58.1, "WebArena"), (87, "WebVoyager"))]
    expect_refusal(average, suites, ("benchmark",))
    expect_refusal(average, [], ("none",))
    for name in ("unit", "benchmark", "budget", "comparator", "adjusted"):
        numbers = alike(draw, draw.choice(RATES))
        expect_refusal(average, draw.shuffled([*numbers, changed(draw, numbers[0], name)]), (name,))


@invariant("L7.05", home="course.evidence.numbers")
def units_are_never_added(total, draw):
    """Counts of one unit have a sum; prompts and episodes have none, and rates have none at all."""
    unit, other = draw.shuffled(COUNTS)[:2]
    numbers = alike(draw, unit)
    if total(numbers).value != sum(number.value for number in numbers):
        differ(f"total({numbers})", sum(number.value for number in numbers), repr(total(numbers)))
    expect_refusal(total, [Reported(256_000, unit), Reported(31_144, other)], ("unit",))
    for rate in (*RATES, "points"):
        expect_refusal(total, [Reported(30, rate), Reported(40, rate)], ("unit",))
