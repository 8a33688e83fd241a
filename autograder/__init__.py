"""Checks that were proven against wrong answers, and the grader that runs them where a submission cannot reach."""

from autograder.local import check, statement

__all__ = ["check", "statement"]
