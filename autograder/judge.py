"""Verdicts: run the checks of a function against an implementation, and say which known mistake it behaves like."""

import functools
import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch

from autograder.draw import Draw
from autograder.framework import Check, CheckFailed, Direct, Implementation, Mutant
from autograder.inside.execute import StudentError
from autograder.levels import Level

PUBLIC_SEED = 2026
KNOWN_MISTAKES = Path(__file__).parent / "known_mistakes.json"  # written by `course release`; absent in the full edition


@dataclass(frozen=True)
class Verdict:
    """passed counts; waiting means that the check itself may hold, but the function's anchor does not, so that no point is given."""

    check: Check
    passed: bool
    reason: str = ""
    waiting: bool = False

    @property
    def points(self) -> float:
        return self.check.points if self.passed else 0.0


def run_check(check: Check, implementation: Implementation, seed: int) -> str:
    """Empty if the statement holds, else the reason in words."""
    try:
        check.run(implementation, Draw(seed, check.name))
    except CheckFailed as failure:
        return str(failure)
    except StudentError as error:
        if error.kind == "NotImplementedError" and not error.text:
            return "not implemented yet"
        return f"{check.function} raised {error}"
    except Exception as error:  # arithmetic on an answer of the wrong form
        return f"the result has the wrong form ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"
    return ""


def judge(
    level: Level, function: str, implement: Callable[[Check], Implementation], seed: int, *, hidden: bool, veto: str = ""
) -> list[Verdict]:
    """All verdicts on one function. implement gives each check its implementation; veto is a reason why nothing counts at all."""
    verdicts = []
    for check in level.checks_of(function):
        if check.hidden and not hidden:
            continue
        implementation = implement(check)
        reason = run_check(check, implementation, seed)
        if reason:
            hint = likely_mistake(level, check, implementation, seed)
            reason += f". {hint}" if hint else ""
        verdicts.append(Verdict(check, not reason and not veto, reason or veto))
    if any(v.check.anchor and not v.passed for v in verdicts):
        verdicts = [_wait(v) if v.passed else v for v in verdicts]
    return verdicts


def _wait(verdict: Verdict) -> Verdict:
    reason = "not counted: first the function's value must be right"
    return Verdict(verdict.check, False, reason, waiting=True)


# ---------------------------------------------------------------- known mistakes


def signature(answers: list[Any]) -> str:
    """A digest of what a function answered, to about five digits: two functions with the same signature behave alike on these calls."""
    return hashlib.sha256(json.dumps([_rounded(a) for a in answers]).encode()).hexdigest()[:24]


def _rounded(value: Any) -> Any:
    if isinstance(value, StudentError):
        return ["error", value.kind]
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        value = value.item()  # a number is the same mistake in either form
    if isinstance(value, torch.Tensor) and value.numel() > 20_000:
        return [list(value.shape), "too large to be a known mistake"]  # an answer can be made large to cost time
    if isinstance(value, torch.Tensor):
        x = value.detach().double()
        finite = x[x.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 0.0
        numbers = [repr(v) if v != v or abs(v) == float("inf") else round(v / (scale or 1.0) * 2e5) for v in x.flatten().tolist()]
        return [list(x.shape), f"{scale:.5g}", numbers]
    if isinstance(value, (list, tuple)):
        return [_rounded(v) for v in value]
    if isinstance(value, dict):
        return sorted([str(k), _rounded(v)] for k, v in value.items())
    if isinstance(value, float):
        return f"{value:.5g}"
    return repr(value)


def likely_mistake(level: Level, check: Check, implementation: Implementation, seed: int) -> str:
    answers = getattr(implementation, "answers", [])[: len(getattr(implementation, "calls", []))]
    if not answers or all(isinstance(a, StudentError) for a in answers):
        return ""
    return known_mistakes(level, check, seed).get(signature(answers), "")


def known_mistakes(level: Level, check: Check, seed: int) -> dict[str, str]:
    """Signature -> message, for the mistakes that this check catches."""
    if KNOWN_MISTAKES.exists():
        return _released().get(check.name, {})
    return _live_mistakes(level.number, check.name, seed)


@functools.cache
def _released() -> dict[str, Any]:
    """What `course release` wrote for an edition without hidden checks and known mistakes; empty where these are at hand."""
    return json.loads(KNOWN_MISTAKES.read_text()) if KNOWN_MISTAKES.exists() else {}


@functools.lru_cache(maxsize=1024)
def _live_mistakes(number: int, name: str, seed: int) -> dict[str, str]:
    from autograder.levels import load

    level = load(number)
    return mistakes(level, next(c for c in level.checks if c.name == name), seed)


def mistakes(level: Level, check: Check, seed: int) -> dict[str, str]:
    """Left out: mistakes that draw their own random numbers, and answers that more than two mistakes share (all NaN, say)."""
    found: dict[str, set[str]] = {}
    for mutant in level.mutants:
        if mutant.function == check.function:
            first, again = (_signature(check, mutant, seed) for _ in range(2))
            if first and first == again:
                found.setdefault(first, set()).add(mutant.message)
    return {answers: " Or: ".join(sorted(said)) for answers, said in found.items() if len(said) <= 2}


def _signature(check: Check, mutant: Mutant, seed: int) -> str:
    """What the mistake answers on this check, as a hash; empty if the check does not catch it."""
    direct = Direct(check.function, mutant.run)
    return signature(direct.answers) if run_check(check, direct, seed) else ""


def hidden_count(level: Level, function: str) -> int:
    if not _has_hidden_checks():
        return _released().get("hidden", {}).get(function, 0)
    return sum(check.hidden for check in level.checks_of(function))


def full_points(level: Level, function: str) -> float:
    """What the exercise's card says: hidden checks count, also where this edition has none of them."""
    told = {} if _has_hidden_checks() else _released().get("points", {})
    return told.get(function, level.points_of(function))


def _has_hidden_checks() -> bool:
    """Not in the students' edition, nor where only an empty folder is left of them."""
    found = importlib.util.find_spec("autograder.hidden")
    return found is not None and found.origin is not None
