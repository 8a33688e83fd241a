"""Checks that were proven against wrong answers, and the grader that runs them where a submission cannot reach."""

from typing import Any

__all__ = ["check", "statement"]


def __getattr__(name: str) -> Any:
    """`from autograder import check` loads torch and the checks; `import autograder` alone, as nbgrader does, loads neither."""
    if name in __all__:
        from autograder import local

        return getattr(local, name)
    raise AttributeError(f"module 'autograder' has no attribute {name!r}")
