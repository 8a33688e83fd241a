"""Grade one submission: rebase, run, read the answers, judge them, and write down why."""

import ast
import hashlib
import hmac
import inspect
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autograder import bans, rebase, runner
from autograder import sandbox as _sandbox
from autograder.build import SOLUTIONS
from autograder.framework import Exercise
from autograder.inside.execute import StudentError
from autograder.judge import judge
from autograder.levels import Level, load
from autograder.plan import Plan, make_plan

UNISOLATED = "graded without a sandbox"


@dataclass(frozen=True)
class Row:
    """One check. reason: empty if it passed; it may hold text that the student chose, so whoever shows it must escape it."""

    function: str
    invariant: str
    check: str
    sentence: str
    points: float
    max: float
    passed: bool
    hidden: bool
    reason: str


@dataclass(frozen=True)
class Report:
    """status: "ok", "nothing answered", or what went wrong. flags: for a person to look at; they change no point."""

    student: str
    level: int
    status: str
    rows: tuple[Row, ...]
    flags: tuple[str, ...]
    seconds: float
    seed_digest: str
    log: str

    @property
    def points(self) -> float:
        return sum(row.points for row in self.rows)

    @property
    def max_points(self) -> float:
        return sum(row.max for row in self.rows)

    def by_invariant(self) -> dict[str, tuple[float, float]]:
        """Invariant -> (points, most points)."""
        found: dict[str, tuple[float, float]] = {}
        for row in self.rows:
            got, most = found.get(row.invariant, (0.0, 0.0))
            found[row.invariant] = (got + row.points, most + row.max)
        return found

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        data = json.loads(text)
        return cls(**{**data, "rows": tuple(Row(**row) for row in data["rows"]), "flags": tuple(data["flags"])})


def secret_seed(secret: bytes, student: str, level: int) -> tuple[int, str]:
    """The seed of a student's inputs, the same at every regrade, and a digest that tells nothing about it."""
    key = hmac.new(secret, f"{student}/level{level}".encode("utf-8", "surrogateescape"), hashlib.sha256).digest()
    return int.from_bytes(key[:4], "big") >> 1, hashlib.sha256(key).hexdigest()[:16]


def grade_submission(
    notebook: Path,
    level: int,
    student: str,
    *,
    secret: bytes,
    sandbox: bool = True,
    sealed: bool = True,
    wall_seconds: float = 60,
) -> Report:
    """Points for every check of the level. Raises NoSandbox where untrusted code can't be held, unless sandbox=False."""
    started = time.monotonic()
    exercises = load(level)
    seed, digest = secret_seed(secret, student, level)
    flags = () if sandbox else (UNISOLATED,)
    if sandbox and _sandbox.sandbox_problem():
        raise _sandbox.NoSandbox(f"no sandbox: {_sandbox.sandbox_problem()}")
    try:
        rebased = rebase.rebase(pristine(exercises), rebase.read_submission(Path(notebook)))
    except rebase.BadSubmission as problem:
        status = f"bad submission: {problem}"
        return Report(student, level, status, no_rows(exercises, status), flags, time.monotonic() - started, digest, "")
    plan = make_plan(exercises, seed)
    limits = _sandbox.Limits(wall_seconds=wall_seconds, mapped_mib=runner.library_mib())
    outcome = runner.run(rebased, plan, sealed=sealed, isolated=sandbox, limits=limits)
    sources = [_as_python(source) for source in rebased.sources]
    rows = tuple(
        row for exercise in exercises.exercises for row in _judged(exercises, exercise, plan, outcome.answers, seed, sources)
    )
    status = "nothing answered" if outcome.status == "ok" and _unanswered(plan, outcome.answers) else outcome.status
    flags += _flags(exercises, rebased, sources, sealed)
    return Report(student, level, status, rows, flags, time.monotonic() - started, digest, printable(outcome.log, keep="\n"))


def pristine(level: Level) -> dict[str, Any]:
    return json.loads((SOLUTIONS / level.name / "lab.ipynb").read_text("utf-8"))


def _judged(level: Level, exercise: Exercise, plan: Plan, answers: list[Any], seed: int, sources: list[str]) -> list[Row]:
    verdicts = judge(
        level, exercise.function, lambda check: plan.replay(check, answers), seed, hidden=True, veto=bans.veto(exercise, sources)
    )
    return [
        Row(
            v.check.function, v.check.invariant, v.check.name, v.check.sentence,
            v.points, v.check.points, v.passed, v.check.hidden, printable(v.reason),
        )
        for v in verdicts
    ]  # fmt: skip


def no_rows(level: Level, reason: str) -> tuple[Row, ...]:
    """Every check of the level, failed for one reason."""
    checks = [check for exercise in level.exercises for check in level.checks_of(exercise.function)]
    return tuple(Row(c.function, c.invariant, c.name, c.sentence, 0.0, c.points, False, c.hidden, reason) for c in checks)


def _unanswered(plan: Plan, answers: list[Any]) -> bool:
    """Every call met a stub, or no function at all."""
    missing = [f"{call.function} is not defined" for _, call in plan.calls]
    errors = [(a.kind, a.text == text) for a, text in zip(answers, missing) if isinstance(a, StudentError)]
    return len(errors) == len(missing) and all(kind == "NotImplementedError" or undefined for kind, undefined in errors)


def printable(text: str, keep: str = "") -> str:
    """Without control characters, which could write over a terminal, or halves of surrogate pairs, which no file can hold."""
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


# ---------------------------------------------------------------- what a person should look at

# names that honest answers have no use for: they can hide a banned call from the syntax tree, or reach around the package
SUSPECT = {
    "exec", "eval", "compile", "__import__", "globals", "get_ipython", "__builtins__", "ast_transformers",
    "input_transformers_post", "__closure__", "__code__", "__globals__", "__wrapped__", "__subclasses__", "_getframe",
    "ctypes", "marshal", "gc", "importlib",
    "getattr", "subprocess", "socket", "fork", "kill", "_exit", "__dict__", "vars", "attrgetter", "methodcaller",
    "safetensors", "safe_open", "codec", "Candidate", "drivers",  # the grader's own code may call what is sealed
}  # fmt: skip


def _flags(level: Level, rebased: rebase.Rebased, sources: list[str], sealed: bool) -> tuple[str, ...]:
    found = [
        f"the check cell {printable(name)} was edited; the original was used"
        for name in rebased.changed
        if name.startswith("check_")
    ]
    written = "\n".join(rebased.sources)  # a line of magic is get_ipython() only once it is translated
    found += [f"uses {name}" for name in sorted(SUSPECT & bans.names(sources)) if name in written]
    found += [f"names the path {printable(path)[:60]}" for path in sorted(bans.paths(sources))]
    shown = _shown(level) if sealed else []
    for exercise in level.exercises:
        if sealed and bans.copies_reference(exercise, level.reference(exercise.function), sources):
            found.append(f"{exercise.function} has the same syntax tree as the package's own")
        elif sealed and bans.copies_any(exercise, shown, sources):
            found.append(f"{exercise.function} has the same syntax tree as a function in the visible checks")
    return tuple(found)


def _shown(level: Level) -> list[Callable]:
    """Functions that students can read in the level's visible checks, such as the right candidates of a bug hunt."""
    names = {check.run.__module__ for check in level.checks if check.run.__module__.startswith("autograder.checks.")}
    own = [f for name in sorted(names) for f in vars(sys.modules[name]).values() if inspect.isfunction(f) and f.__module__ == name]
    return [f for f in own if not hasattr(f, "declared")]  # a check itself answers nothing


def _as_python(source: str) -> str:
    """The cell as Python alone: magic must not hide it from the syntax tree, as `%%time` and `%time` run what follows."""
    if _parses(source):
        return source
    lines = source.split("\n")
    while lines and (not lines[0].strip() or lines[0].lstrip().startswith("%%")):
        lines = lines[1:]
    return "\n".join(_without_magic(line) for line in lines)


def _without_magic(line: str) -> str:
    """`%name code` and `x = %name code` become the code, where it is code; `!command` and `name?` become pass."""
    text = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    target, equals, value = text.partition("=")
    if not (equals and target.strip().isidentifier()):
        target, equals, value = "", "", text
    value = value.strip()
    if value.startswith(("%", "!")):
        code = target + equals + value.lstrip("%!").partition(" ")[2]
        return indent + (code if code and _parses(code.strip()) else "pass")
    return indent + "pass" if text.endswith("?") else line


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
