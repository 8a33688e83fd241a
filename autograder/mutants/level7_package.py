"""Level 7: mistakes of the package's own functions."""

from dataclasses import replace

from autograder.framework import mutant
from course.evidence.numbers import average as right_average


def _mean(numbers):
    return replace(numbers[0], value=sum(number.value for number in numbers) / len(numbers))


@mutant(of="average", kills="L7.03")
def a_mean_of_anything(numbers):
    """This looks like a mean over suites."""
    return _mean(numbers)


@mutant(of="average", kills="L7.03")
def percent_is_percent(numbers):
    """This looks like a mean over whatever has the same unit."""
    return right_average(numbers) if len({number.unit for number in numbers}) > 1 or not numbers else _mean(numbers)


@mutant(of="total", kills="L7.05")
def a_sum_of_anything(numbers):
    """This looks like a sum over units."""
    return replace(numbers[0], value=sum(number.value for number in numbers))
