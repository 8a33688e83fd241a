"""All that belongs to one level: its exercises, checks, known mistakes and right alternatives, read from the modules that declare them."""

import functools
import importlib
import importlib.util
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from autograder.framework import Alternative, Check, Exercise, Mutant

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Statement:
    """One line of the contract."""

    id: str
    title: str
    must: str


@functools.cache
def contract() -> dict[str, Statement]:
    rows = tomllib.loads((HERE / "invariants.toml").read_text())["invariant"]
    return {row["id"]: Statement(row["id"], row["title"], row["must"]) for row in rows}


@dataclass(frozen=True)
class Level:
    number: int
    exercises: tuple[Exercise, ...]
    checks: tuple[Check, ...]
    mutants: tuple[Mutant, ...]
    alternatives: tuple[Alternative, ...]

    @property
    def name(self) -> str:
        return f"level{self.number}"

    def checks_of(self, function: str) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.function == function)

    def points_of(self, function: str) -> float:
        return sum(check.points for check in self.checks_of(function))

    def exercise(self, function: str) -> Exercise:
        for exercise in self.exercises:
            if exercise.function == function:
                return exercise
        raise KeyError(f"{self.name} has no exercise named {function!r}; it has {[e.function for e in self.exercises]}")

    def reference(self, function: str) -> Callable:
        """The package's own implementation; for a test that students write, the first right alternative."""
        for check in self.checks_of(function):
            if check.home is not None:
                return getattr(importlib.import_module(check.home), function)
        exercises = importlib.import_module("course.exercises")
        if hasattr(exercises, function):
            return getattr(exercises, function)
        return next(alternative.run for alternative in self.alternatives if alternative.function == function)


def numbers() -> list[int]:
    """The levels that have checks here. level3.py makes a level; level3_package.py only adds checks on the package to it."""
    names = (path.stem.removeprefix("level") for path in (HERE / "checks").glob("level*.py"))
    return sorted(int(name) for name in names if name.isdecimal())


@functools.cache
def load(number: int) -> Level:
    if number not in numbers():
        raise ValueError(f"level must be one of {numbers()}; got {number}")
    checks = _module("checks", f"level{number}")
    found = {kind: [] for kind in (Check, Mutant, Alternative)}
    for name in (f"level{number}", f"level{number}_package"):
        for package in ("checks", "hidden", "mutants", "alternatives"):
            for declared in _declared(_module(package, name)):
                found[type(declared)].append(declared)
    names = [check.name for check in found[Check]]
    if len(set(names)) != len(names):
        raise ValueError(f"level {number}: two checks bear one name: {sorted({n for n in names if names.count(n) > 1})}")
    return Level(number, tuple(checks.EXERCISES), tuple(found[Check]), tuple(found[Mutant]), tuple(found[Alternative]))


def level_of(function: str) -> Level:
    for number in numbers():
        level = load(number)
        if any(exercise.function == function for exercise in level.exercises):
            return level
    raise ValueError(f"function must be an exercise of the course; got {function!r}")


def _module(package: str, name: str) -> Any:
    """None where this edition of the course has no such file: the student's has neither hidden checks nor mutants."""
    name = f"autograder.{package}.{name}"
    if importlib.util.find_spec(f"autograder.{package}") is None or importlib.util.find_spec(name) is None:
        return None
    return importlib.import_module(name)


def _declared(module: Any) -> list[Any]:
    values = vars(module).values() if module is not None else ()
    return [v.declared for v in values if hasattr(v, "declared") and getattr(v, "__module__", "") == module.__name__]
