"""What a check, a mutant and an alternative are, and what a check sees of the function it judges.

A check takes the implementation as its first argument (the argument's name is the function's name) and a source of random inputs as its
second. It is written once and runs in four places: in a student's notebook, in the proof of the checks, when a submission's calls are
planned, and when the sandbox's answers are judged. For that to work its calls may depend on the drawn inputs but never on what an
earlier call returned; `course verify-checks` proves it.
"""

import inspect
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch

from autograder.inside.execute import Call, StudentError, execute


class CheckFailed(AssertionError):
    """A statement about the implementation is false; the text says expected and got."""


@dataclass(frozen=True)
class Exercise:
    """The card of one exercise. Points and invariants are not written here: they follow from its checks."""

    function: str
    id: str
    title: str
    minutes: int
    difficulty: int
    banned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.difficulty <= 5:
            raise ValueError(f"difficulty must be 1 to 5; got {self.difficulty} for {self.function}")


@dataclass(frozen=True)
class Check:
    """One statement about one function. anchor: compares with a reference value; the function's other points wait for its anchors."""

    name: str
    invariant: str
    points: float
    hidden: bool
    anchor: bool
    function: str
    home: str | None
    run: Callable

    @property
    def sentence(self) -> str:
        return (inspect.getdoc(self.run) or self.name.replace("_", " ")).split("\n")[0].rstrip(".")


@dataclass(frozen=True)
class Mutant:
    """A known mistake. Its docstring is what a learner is told when their function behaves like it."""

    name: str
    function: str
    kills: tuple[str, ...]
    run: Callable

    @property
    def message(self) -> str:
        return inspect.getdoc(self.run) or ""


@dataclass(frozen=True)
class Alternative:
    name: str
    function: str
    run: Callable


def invariant(id: str, *, points: float = 0, anchor: bool = False, hidden: bool = False, home: str | None = None):
    """Declare a check. home: module of the implementation where it is a function of the package and not an exercise (no points)."""
    if home is not None and points:
        raise ValueError(f"{id}: a check on the package carries no student points; got points={points}")

    def declare(function: Callable) -> Callable:
        of = next(iter(inspect.signature(function).parameters))
        function.declared = Check(function.__name__, id, points, hidden, anchor, of, home, function)
        return function

    return declare


def mutant(*, of: str, kills: str | tuple[str, ...]):
    def declare(function: Callable) -> Callable:
        function.declared = Mutant(function.__name__, of, (kills,) if isinstance(kills, str) else tuple(kills), function)
        return function

    return declare


def alternative(*, of: str):
    def declare(function: Callable) -> Callable:
        function.declared = Alternative(function.__name__, of, function)
        return function

    return declare


class Implementation:
    """The function under test: called like the function; `.gradient(...)` gives gradients. Any exception arrives as StudentError."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, *args, **kwargs) -> Any:
        return self.answer(Call(self.name, args, kwargs))

    def gradient(
        self, *args, wrt: int | tuple[int, ...] = 0, pick: Any = None, weight: torch.Tensor | None = None, **kwargs
    ) -> Any:
        """Gradient of sum(weight * output) with respect to the positional arguments `wrt`."""
        return self.answer(Call(self.name, args, kwargs, (wrt,) if isinstance(wrt, int) else tuple(wrt), pick, weight))

    def through(self, driver: str, *args, **kwargs) -> Any:
        """What a driver of autograder/inside/drivers.py makes of the function: for inputs and results that are objects of the course."""
        return self.answer(Call(self.name, args, kwargs, through=driver))

    def answer(self, call: Call) -> Any:
        raise NotImplementedError


class Direct(Implementation):
    """A function in this process. Keeps its calls and answers, so that known mistakes can be recognised afterwards."""

    def __init__(self, name: str, function: Callable):
        super().__init__(name)
        self.function, self.calls, self.answers = function, [], []

    def answer(self, call: Call) -> Any:
        self.calls.append(call.snapshot())
        try:
            result = execute(self.function, call)
        except Exception as error:
            failure = StudentError.of(error)
            self.answers.append(failure)
            raise failure from error
        self.answers.append(result)
        return result


class Replay(Implementation):
    """Answers that a sandbox has already given, in the order of the plan."""

    def __init__(self, name: str, calls: list[Call], answers: list[Any]):
        super().__init__(name)
        self.calls, self.planned, self.answers, self.next = [], calls, answers, 0

    def answer(self, call: Call) -> Any:
        if self.next >= len(self.answers):
            raise RuntimeError(f"a check of {self.name} makes calls that depend on earlier answers")
        result = self.answers[self.next]
        self.calls.append(call)
        self.next += 1
        if isinstance(result, StudentError):
            raise result
        return result


def rejection(test: Implementation, candidate: Any) -> tuple[str, str]:
    """(why a student's test rejects this candidate, why it accepts it); one of the two is empty."""
    try:
        answer = test(candidate)
    except StudentError as error:
        if error.kind == "NotImplementedError" and not error.text:
            raise  # the exercise has not been begun
        return (" ".join(str(error).split())[:300] or error.kind), ""
    return "", "none" if answer is None else f"none: it returned {_show(answer)}, and a test must raise"


def expect_right(rejected: str) -> None:
    """A right candidate must not be rejected; the learner sees what the test said."""
    if rejected:
        raise CheckFailed(f"your test: expected it to accept a right function, got {rejected}")


def expect_verdicts(test: Implementation, draw: Any, right: Sequence[Callable], wrong: Sequence[Callable]) -> None:
    """The student's test must accept each right function and reject each wrong one, in a secret order."""
    for candidate, function in draw.lineup(right, wrong):
        rejected, accepted = rejection(test, candidate)
        if function in right:
            expect_right(rejected)
        elif accepted:
            raise CheckFailed(f"your test: expected an error for a wrong function, got {accepted}")


# ---------------------------------------------------------------- what a check may say


class expect:
    """`expect(got).close_to(expected)`, `.equals`, `.finite()`, `.at_least`, `.below`; `what` names the quantity in the message."""

    def __init__(self, got: Any, what: str = "the result"):
        self.got, self.what = got, what

    def close_to(self, expected: Any, rtol: float = 1e-6) -> None:
        """Same shape, and |got - expected| <= rtol * the largest |expected|; float32 answers to float64 questions get 2e-5."""
        if isinstance(expected, dict):
            if not isinstance(self.got, dict) or set(self.got) != set(expected):
                self._fail(f"a dict with keys {sorted(map(str, expected))}", _show(self.got))
            for key in expected:
                expect(self.got[key], f"{self.what}[{key!r}]").close_to(expected[key], rtol)
            return
        if isinstance(expected, (tuple, list)):
            if not isinstance(self.got, (tuple, list)) or len(self.got) != len(expected):
                self._fail(f"{len(expected)} values", _show(self.got))
            for i, (g, e) in enumerate(zip(self.got, expected)):
                expect(g, f"{self.what}[{i}]").close_to(e, rtol)
            return
        got = self._numbers()
        wanted = expected if isinstance(expected, torch.Tensor) else torch.as_tensor(expected, dtype=torch.float64)
        if got.shape != wanted.shape:
            self._fail(f"shape {tuple(wanted.shape)}", f"shape {tuple(got.shape)}")
        if got.dtype == torch.float32 and wanted.dtype == torch.float64:
            rtol = max(rtol, 2e-5)
        g, e = got.double(), wanted.double()
        finite = e[e.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        same = (g == e) | ((g - e).abs() <= rtol * (scale or 1.0))
        if not bool(same.all()):
            where = (~same).nonzero()[0].tolist()
            place = f" at {where}" if where else ""
            self._fail(f"{_show(e[tuple(where)])}{place}", _show(g[tuple(where)]))

    def equals(self, expected: Any) -> None:
        if isinstance(expected, (torch.Tensor, int, float, bool)):
            got, wanted = self._numbers(), torch.as_tensor(expected)
            wanted = wanted.expand(got.shape) if wanted.dim() == 0 and got.numel() else wanted
            if got.shape != wanted.shape or not bool((got.double() == wanted.double()).all()):
                self._fail(f"exactly {_show(wanted)}", _show(got))
        elif self.got != expected:
            self._fail(f"exactly {_show(expected)}", _show(self.got))

    def finite(self) -> None:
        if not self._some(self._numbers().double().isfinite()):
            self._fail("finite numbers", _show(self.got))

    def at_least(self, bound: float) -> None:
        if not self._some(self._numbers().double() >= bound):
            self._fail(f"at least {bound:.6g}", _show(self.got))

    def at_most(self, bound: float) -> None:
        if not self._some(self._numbers().double() <= bound):
            self._fail(f"at most {bound:.6g}", _show(self.got))

    def differs_from(self, other: Any, by: float) -> None:
        got, wanted = self._numbers().double(), torch.as_tensor(other).double()
        if got.shape == wanted.shape and bool(((got - wanted).abs() < by).all()):
            self._fail(f"something other than {_show(other)}", _show(self.got))

    def true(self, expected: str) -> None:
        if not isinstance(self.got, (bool, torch.Tensor)) or not bool(self.got):
            self._fail(expected, "not so")

    @staticmethod
    def _some(holds: torch.Tensor) -> bool:
        """What is said of every number must be said of one at least: an empty answer has every property."""
        return holds.numel() > 0 and bool(holds.all())

    def _numbers(self) -> torch.Tensor:
        if isinstance(self.got, torch.Tensor):
            return self.got
        if isinstance(self.got, (bool, int, float)):
            return torch.tensor(self.got, dtype=torch.float64)
        if isinstance(self.got, (list, tuple)) and all(isinstance(x, (bool, int, float)) for x in self.got):
            return torch.tensor(self.got, dtype=torch.float64)
        self._fail("a tensor or a number", "None (is a return missing?)" if self.got is None else type(self.got).__name__)

    def _fail(self, expected: str, got: str) -> None:
        raise CheckFailed(f"{self.what}: expected {expected}, got {got}")


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return f"{value.item():.6g}" if value.is_floating_point() else str(value.item())
        flat = value.flatten()
        head = ", ".join(f"{x:.5g}" for x in flat[:8].tolist())
        more = ", ..." if flat.numel() > 8 else ""
        return f"[{head}{more}]" + (f" of shape {tuple(value.shape)}" if value.dim() > 1 else "")
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
