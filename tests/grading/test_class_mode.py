"""Levels as they are handed in: in the sandbox, with the level's functions sealed, the reference earns every point and a blank notebook none.

The demo's tests do the same for the first two levels.
"""

import pytest

from autograder import demo
from autograder.batch import grade_class
from autograder.levels import load, numbers
from autograder.sandbox import sandbox_problem


@pytest.mark.skipif(bool(sandbox_problem()), reason=f"no sandbox: {sandbox_problem()}")
@pytest.mark.parametrize("number", numbers()[2:])
def test_the_reference_earns_every_point_and_a_blank_notebook_none(number, tmp_path):
    submissions = (
        demo.Submission("right", demo.solution_sources(load(number)), "all", written=demo.WRITTEN),
        demo.Submission("blank", {}, "none"),
    )
    for submission in submissions:
        demo._write(submission, number, tmp_path / "submitted")
    reports = {report.student: report for report in grade_class(number, tmp_path / "submitted", 1, True, tmp_path)}
    assert [text for s in submissions if (text := demo._surprise(s, reports[s.student]))] == []
