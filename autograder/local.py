"""`check(function)` in a notebook: the visible checks, here and now, with expected, got and the likely mistake."""

import html
from typing import Any, Callable

from autograder import bans
from autograder.framework import Direct
from autograder.judge import PUBLIC_SEED, Verdict, hidden_count, judge
from autograder.levels import contract, level_of

MIME = "application/vnd.course.check+json"


class NotYet(AssertionError):
    """Some visible check fails. Jupyter shows one line instead of a traceback: the table above it says what is wrong."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Result:
    """What Jupyter shows: a small table, the same as text, and the data that start.ipynb reads from the notebook on disk."""

    def __init__(self, function: str, verdicts: list[Verdict], hidden: int):
        self.function, self.verdicts, self.hidden = function, verdicts, hidden
        self.passed = all(v.passed for v in verdicts)

    @property
    def headline(self) -> str:
        good = sum(v.passed for v in self.verdicts)
        more = f"; {self.hidden} more run when it is graded" if self.hidden else ""
        return f"{self.function}: {good} of {len(self.verdicts)} visible checks pass{more}"

    def __str__(self) -> str:
        lines = [self.headline]
        for v in self.verdicts:
            lines.append(f"  {'ok   ' if v.passed else 'wait ' if v.waiting else 'WRONG'} {v.check.invariant} {v.check.sentence}")
            if v.reason:
                lines.append(f"        {v.reason}")
        return "\n".join(lines)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        rows = "".join(
            f"<tr><td>{'✓' if v.passed else '…' if v.waiting else '✗'}</td><td>{v.check.invariant}</td>"
            f"<td style='text-align:left'>{html.escape(v.check.sentence)}"
            + (f"<br><b>{html.escape(v.reason)}</b>" if v.reason else "")
            + "</td></tr>"
            for v in self.verdicts
        )
        data = {"function": self.function, "passed": sum(v.passed for v in self.verdicts), "checks": len(self.verdicts)}
        return {"text/plain": str(self), "text/html": f"<p>{html.escape(self.headline)}</p><table>{rows}</table>", MIME: data}


def check(function: Callable, name: str | None = None) -> None:
    """Run the visible checks of an exercise on your function. Raises if one fails, after showing what was expected and what came."""
    name = name or getattr(function, "__name__", None)
    if not callable(function) or name is None:
        raise TypeError(f"function must be the function you wrote, as in check(log_softmax); got {type(function).__name__}")
    level = level_of(name)
    veto = bans.veto_of_function(level.exercise(name), function)
    verdicts = judge(level, name, lambda _: Direct(name, function), PUBLIC_SEED, hidden=False, veto=veto)
    result = Result(name, verdicts, hidden_count(level, name))
    _show(result)
    if not result.passed:
        raise NotYet(f"{name} is not right yet: the list above says what was expected and what came.")


def statement(id: str) -> str:
    """The contract's own words for an invariant, as in statement('L0.05')."""
    if id not in contract():
        raise ValueError(f"id must be one that a card names, as in statement('L0.05'); got {id!r}")
    row = contract()[id]
    return f"{row.id} {row.title}: {row.must}"


def _show(result: Result) -> None:
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        print(result)
        return
    display(result) if get_ipython() is not None else print(result)
