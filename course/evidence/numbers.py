"""Reported numbers with the conditions that make them numbers of something, and what may be computed from them.

The grammar of a reported number, in which read_number reads (a full stop ends it; `[ ]` may be absent, `{ }` any number of times):

    text       :=  [ "On " BENCHMARK ", " ]  SYSTEM  " "  VERB  " "  NUMBER  " "  UNIT  { ", " condition }  "."
    VERB       :=  reaches | scores | wins | solves | gains | loses | uses | costs
    NUMBER     :=  digits, with commas between thousands or without, with decimals or without, [ " thousand" | " million" | " billion" ]
    UNIT       :=  "% of " THINGS           a rate: a share of all of them
                |  "% of the " WHOSE " rate"    relative: a share of another rate
                |  "points"                  a difference of two rates in percent
                |  THINGS                    a count
    condition  :=  "with " BUDGET  |  "against " COMPARATOR  |  "adjusted for length"         each at most once, in any order

BENCHMARK, SYSTEM, THINGS, WHOSE, BUDGET and COMPARATOR are words; numbers may be among them ("On AIME 2024, o1 solves ..."), but no VERB,
and ", " stands only where the grammar has it ("with 1,000 samples" has a comma and no blank behind it).
"""

import re
from dataclasses import dataclass, replace
from math import fsum, isfinite
from typing import Sequence

VERBS = ("reaches", "scores", "wins", "solves", "gains", "loses", "uses", "costs")
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}

COUNTED = {  # plural -> singular
    "prompts": "prompt", "comparisons": "comparison", "rankings": "ranking", "pairs": "pair", "episodes": "episode", "steps": "step",
    "tokens": "token", "labels": "label", "solutions": "solution", "problems": "problem", "marks": "mark", "tasks": "task",
    "demonstrations": "demonstration", "TPU-days": "TPU-day",
}  # fmt: skip


@dataclass(frozen=True)
class Reported:
    """A number as it was reported. Empty text: the report does not say. Percent stay percent: 71, not 0.71."""

    value: float | int
    unit: str  # "% of tasks", "% of the human rate", "points", "episodes"
    benchmark: str = ""
    budget: str = ""  # "1 sample", "1,000 samples and a reranker"
    comparator: str = ""  # whom it is measured against
    adjusted: bool = False  # for length

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isfinite(self.value):
            raise ValueError(f"value must be a finite number; got {self.value!r}")
        if not self.unit.strip():
            raise ValueError(f"unit must be said; got {self.unit!r} for {self.value}")

    @property
    def relative_to(self) -> str:
        """Whose rate this is a share of, "human" for "% of the human rate"; empty if the number is no such share."""
        found = re.fullmatch(r"% of the (.+) rate", self.unit)
        return found[1] if found else ""


def read_number(text: str) -> Reported:
    """The reported number in one sentence of the grammar above, with all its conditions.

    A relative number ("93 % of the human rate") has whose rate it is as its comparator. "loses" makes the number negative.
    Reduces to: a value and a unit, everything else empty, for "The run uses 256,000 episodes."
    Raises: ValueError for text outside the grammar, a condition given twice, or a relative number that is "against" somebody else.
    Source: A 3.8, 5.1, 5.3 (numbers whose conditions change what they say).
    """
    first, *rest = text.strip().removesuffix(".").split(", ")
    if not text.strip().endswith("."):
        raise ValueError(f"text must be one sentence that ends in a full stop; got {text!r}")
    benchmark = ""
    if first.startswith("On ") and rest:
        benchmark, first, rest = first.removeprefix("On "), rest[0], rest[1:]
    found = re.fullmatch(
        rf"(?P<who>\S.*?) (?P<verb>{'|'.join(VERBS)}) (?P<digits>\d{{1,3}}(?:,\d{{3}})+|\d+)(?P<decimals>\.\d+)?"
        rf"(?: (?P<scale>{'|'.join(SCALES)}))? (?P<unit>\S.*)",
        first,
    )
    if not found or any(f" {verb} " in f" {found['unit']} " for verb in VERBS):
        raise ValueError(f"text must say who reaches, scores, ... how many of what; got {text!r}")
    number = found["digits"].replace(",", "")
    value = float(number + found["decimals"]) if found["decimals"] else int(number)
    value = value * SCALES.get(found["scale"], 1) * (-1 if found["verb"] == "loses" else 1)
    read = Reported(value, found["unit"], benchmark)
    if read.unit.startswith("%") and not re.fullmatch(r"% of \S.*", read.unit):
        raise ValueError(f"text must say of what the number is a share; got {text!r}")
    conditions = {"comparator": read.relative_to} if read.relative_to else {}
    for condition in rest:
        for opening, name in (("with ", "budget"), ("against ", "comparator"), ("adjusted for length", "adjusted")):
            if condition == opening or (opening.endswith(" ") and condition.startswith(opening)):
                break
        else:
            raise ValueError(f"condition must begin with 'with' or 'against', or be 'adjusted for length'; got {condition!r}")
        said = condition.removeprefix(opening) or (True if name == "adjusted" else "")
        if name in conditions or not said:
            raise ValueError(f"{name} must be said once, in words; got {text!r}")
        conditions[name] = said
    return replace(read, **conditions)


def subject(text: str) -> str:
    """SYSTEM of a sentence that read_number reads: whose number it is."""
    clause = re.sub(r"^\s*On .*?, ", "", text)
    return re.split(rf" (?:{'|'.join(VERBS)}) ", clause.strip())[0]


def differences(numbers: Sequence[Reported]) -> tuple[str, ...]:
    """Which of unit, benchmark, budget, comparator and adjustment are not the same in all."""
    names = ("unit", "benchmark", "budget", "comparator", "adjusted")
    return tuple(name for name in names if len({getattr(number, name) for number in numbers}) > 1)


def average(numbers: Sequence[Reported]) -> Reported:
    """The mean of numbers of one unit, benchmark, budget, comparator and adjustment.

    Raises: ValueError for none, or for numbers that differ in a condition, which it names: 38.1 on OSWorld and 58.1 on WebArena have
    no mean.
    Source: A 3.8.
    """
    return replace(_alike(numbers)[0], value=fsum(number.value for number in numbers) / len(numbers))


def total(numbers: Sequence[Reported]) -> Reported:
    """The sum of counts of one unit, under the same conditions.

    Raises: ValueError as average; and for rates and differences of rates, which have no sum.
    Source: A 3.3 (prompts are not labels).
    """
    for number in _alike(numbers):
        if number.unit not in COUNTED:
            raise ValueError(f"unit must be one that can be counted, {', '.join(COUNTED)}; got {number.unit!r}")
    return replace(numbers[0], value=sum(number.value for number in numbers))


def _alike(numbers: Sequence[Reported]) -> Sequence[Reported]:
    if not numbers:
        raise ValueError("numbers must be at least one; got none")
    if differing := differences(numbers):
        told = "; ".join(f"{name}: {', '.join(repr(getattr(n, name)) for n in numbers)}" for name in differing)
        raise ValueError(f"numbers must agree in their conditions; they differ in {told}")
    return numbers


def implied_human_rate(absolute: Reported, relative: Reported) -> float:
    """The rate of the one whom `relative` is a share of, in %.

        absolute = relative / 100 * implied,   so   implied = 100 * absolute / relative

    Shapes and units: both in percent; absolute "% of episodes", say, relative "% of the human rate".
    Reduces to: the absolute rate itself where the relative one is 100.
    Raises: ValueError if absolute is no rate or relative is not a share of a rate, if benchmark, budget or adjustment differ, relative is
    not above 0, or the rate would be above 100 %: then the two numbers are not of one experiment.
    Source: A 5.1 (89 % success, 93 % of the human rate: a human rate of about 95.7 %, and not 93 % success).
    """
    if not absolute.unit.startswith("% of ") or absolute.relative_to:
        raise ValueError(f"absolute must be a rate, '% of' something; got {absolute.unit!r}")
    if not relative.relative_to:
        raise ValueError(f"relative must be '% of the ... rate'; got {relative.unit!r}")
    differing = [name for name in differences((absolute, relative)) if name not in ("unit", "comparator")]
    if differing or relative.value <= 0:
        raise ValueError(f"absolute and relative must be of one experiment, relative above 0; got {absolute} and {relative}")
    implied = 100 * absolute.value / relative.value
    if implied > 100:
        raise ValueError(f"the implied rate must be at most 100 %; {absolute.value} and {relative.value} give {implied:.4g} %")
    return implied


def per_unit(count: Reported, per: Reported) -> Reported:
    """How many of one thing there are for each of another: 256,000 episodes over 31,144 prompts are 8.2 episodes per prompt.

    A mean: whether every prompt had as many is not said. Shapes and units: both counts, with units in COUNTED; the result's unit is
    "episodes per prompt".
    Raises: ValueError if a unit cannot be counted, both are the same (that would be a share), the other conditions differ, or per is not
    above 0.
    Source: A 3.3.
    """
    for name, number in (("count", count), ("per", per)):
        if number.unit not in COUNTED:
            raise ValueError(f"{name} must have a unit that can be counted, {', '.join(COUNTED)}; got {number.unit!r}")
    if differences((count, per)) != ("unit",):
        raise ValueError(f"count and per must differ in their unit and in nothing else; got {count} and {per}")
    if count.value < 0 or per.value <= 0:
        raise ValueError(f"count must not be negative and per be above 0; got {count.value} and {per.value}")
    return replace(count, value=count.value / per.value, unit=f"{count.unit} per {COUNTED[per.unit]}")
