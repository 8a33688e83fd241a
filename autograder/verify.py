"""The proof of the checks: every known mistake is caught, every right alternative passes, every stub fails, every invariant is covered."""

from dataclasses import dataclass, field
from typing import Any, Callable

from autograder.framework import Check, Direct
from autograder.judge import judge, run_check, signature
from autograder.levels import Level, contract, load

SEEDS = (11, 12)
MUTANTS_PER_INVARIANT = 3
ALTERNATIVES_PER_FUNCTION = 2
COUNTS = (  # of a level's row
    "invariants", "covered", "mutants", "killed", "alternatives", "accepted", "stub_points", "solution_points", "max_points",
)  # fmt: skip


@dataclass
class Matrix:
    """Filled level by level; `ok` is the exit status of `course verify-checks`."""

    levels: dict[str, dict[str, Any]] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # of the checks themselves
    kills: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # invariant -> mutant -> checks that caught it

    @property
    def ok(self) -> bool:
        full = all(row["stub_points"] == 0 and row["solution_points"] == row["max_points"] for row in self.levels.values())
        return full and not (self.survivors or self.rejected or self.uncovered or self.faults)

    @property
    def total(self) -> dict[str, float]:
        """The counts and points of all levels of this matrix together."""
        return {name: sum(row[name] for row in self.levels.values()) for name in COUNTS}

    def as_json(self) -> dict[str, Any]:
        data = {"levels": self.levels, "all": self.total}
        data |= {"survivors": self.survivors, "rejected": self.rejected, "uncovered": self.uncovered}
        return {**data, "faults": self.faults}


def verify(numbers: list[int], solutions: Callable[[int], dict[str, Callable]]) -> Matrix:
    """solutions(level) gives the functions that the level's own solution notebook defines."""
    matrix = Matrix()
    for number in numbers:
        _verify_level(load(number), solutions(number), matrix)
    return matrix


def _verify_level(level: Level, solution: dict[str, Callable], matrix: Matrix) -> None:
    statements = [id for id in contract() if id.startswith(f"L{level.number}.")]
    killed = _mutants(level, matrix)
    accepted = _alternatives(level, matrix)
    _references(level, matrix)
    covered = 0
    for id in statements:
        checks = [c for c in level.checks if c.invariant == id]
        proven = [m for m in level.mutants if id in m.kills]
        if not checks:
            matrix.uncovered.append(f"{id}: no check")
        elif len(proven) < MUTANTS_PER_INVARIANT:
            matrix.uncovered.append(f"{id}: {len(proven)} mutants, {MUTANTS_PER_INVARIANT} needed")
        else:
            covered += 1
    for exercise in level.exercises:
        count = sum(a.function == exercise.function for a in level.alternatives)
        if count < ALTERNATIVES_PER_FUNCTION:
            matrix.uncovered.append(f"{exercise.function}: {count} alternatives, {ALTERNATIVES_PER_FUNCTION} needed")
        if level.points_of(exercise.function) <= 0:
            matrix.uncovered.append(f"{exercise.function}: no points")
    matrix.levels[str(level.number)] = {
        "invariants": len(statements), "covered": covered,
        "mutants": len(level.mutants), "killed": killed,
        "alternatives": len(level.alternatives), "accepted": accepted,
        "stub_points": _points(level, lambda name: _stub),
        "solution_points": _points(level, lambda name: solution.get(name, _stub)),
        "max_points": sum(level.points_of(e.function) for e in level.exercises),
    }  # fmt: skip


def _stub(*_: Any, **__: Any) -> None:
    raise NotImplementedError


def _points(level: Level, function_of: Callable[[str], Callable]) -> float:
    total = 0.0
    for exercise in level.exercises:
        name = exercise.function
        verdicts = judge(level, name, lambda _: Direct(name, function_of(name)), SEEDS[0], hidden=True)
        total += sum(v.points for v in verdicts)
    return total


def _mutants(level: Level, matrix: Matrix) -> int:
    killed = 0
    for mutant in level.mutants:
        survived = []
        for id in mutant.kills:
            checks = [c for c in level.checks_of(mutant.function) if c.invariant == id]
            caught = [c.name for c in checks if run_check(c, Direct(mutant.function, mutant.run), SEEDS[0])]
            matrix.kills.setdefault(id, {})[mutant.name] = caught
            if not caught:
                survived.append(id)
        matrix.survivors += [f"{mutant.function}: mutant {mutant.name} survives {id}" for id in survived]
        killed += not survived
    return killed


def _alternatives(level: Level, matrix: Matrix) -> int:
    accepted = 0
    for alternative in level.alternatives:
        reasons = []
        for seed in SEEDS:
            for check in level.checks_of(alternative.function):
                reason = run_check(check, Direct(alternative.function, alternative.run), seed)
                if reason:
                    reasons.append(
                        f"{alternative.function}: alternative {alternative.name} fails {check.name} at seed {seed}: {reason}"
                    )
        matrix.rejected += reasons
        accepted += not reasons
    return accepted


def _references(level: Level, matrix: Matrix) -> None:
    """The package passes its own checks, each function has an anchor, and no check's calls depend on what was answered."""
    for function in dict.fromkeys(check.function for check in level.checks):
        reference, checks = level.reference(function), level.checks_of(function)
        if checks[0].home is None and not any(c.anchor for c in checks):
            matrix.faults.append(f"{function}: no check is an anchor")
        for check in checks:
            for seed in SEEDS:
                direct = Direct(function, reference)
                reason = run_check(check, direct, seed)
                if reason:
                    matrix.faults.append(f"{function}: the package's own fails {check.name} at seed {seed}: {reason}")
            matrix.faults += _dependent_calls(level, check, direct)


def _dependent_calls(level: Level, check: Check, planned: Direct) -> list[str]:
    for mutant in level.mutants:
        if mutant.function == check.function and check.home is None:
            direct = Direct(check.function, mutant.run)
            run_check(check, direct, SEEDS[-1])
            pairs = zip(direct.calls, planned.calls)
            if len(direct.calls) > len(planned.calls) or any(_inputs(a) != _inputs(b) for a, b in pairs):
                return [f"{check.name}: its calls depend on earlier answers (seen with mutant {mutant.name})"]
    return []


def _inputs(call: Any) -> str:
    return signature([list(call.args), call.kwargs, list(call.wrt or ()), call.pick, call.weight])
