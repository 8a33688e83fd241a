"""A class is graded to its end whatever a worker does, and a verdict is kept as long as nothing that decides it changes."""

import json
import stat
import sys

import pytest
from moody import moody
from toy_class import CALLS, NAME, RIGHT

from autograder import batch, gradebook
from autograder.batch import WorkerDied, Workers, grade_class, stored_reports
from autograder.sandbox import NoSandbox


def test_a_worker_that_dies_raises_or_sleeps_costs_only_its_own_submission(tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "PATIENCE", 2.0)

    def job(student):
        return (tmp_path / "lab.ipynb", 9, student, b"x" * 32, False, True)

    with Workers(1, moody) as workers:
        assert workers.run(*job("ann")).points == 3
        with pytest.raises(WorkerDied, match="status 7"):
            workers.run(*job("dies"))
        with pytest.raises(RuntimeError, match="disk full"):
            workers.run(*job("raises"))
        assert workers.run(*job("ben")).points == 3
        with pytest.raises(WorkerDied, match="no verdict within"):
            workers.run(*job("sleeps"))
        assert workers.run(*job("cem")).points == 3


def test_a_failing_grader_is_told_and_nothing_of_it_is_kept(toys, monkeypatch):
    good = batch.Workers.run

    def run(self, notebook, level, student, *rest):
        if student == "dies":
            raise WorkerDied("the grading process ended with status -9")
        return good(self, notebook, level, student, *rest)

    monkeypatch.setattr(batch.Workers, "run", run)
    for student in ("ann", "dies", "zoe"):
        toys.submit(student, toys.submission(double=RIGHT))
    reports = grade_class(9, toys.submitted, 2, False, toys.state)
    assert [r.student for r in reports] == ["ann", "dies", "zoe"] and [r.points for r in reports] == [3, 0, 3]
    assert reports[1].status == "not graded: the grading process ended with status -9"
    assert [r.student for r in stored_reports(9, toys.state)] == ["ann", "zoe"]
    monkeypatch.setattr(batch.Workers, "run", good)
    assert [r.points for r in grade_class(9, toys.submitted, 1, False, toys.state)] == [3, 3, 3]


def test_a_verdict_is_kept_until_the_answer_the_checks_or_the_secret_change(toys, monkeypatch):
    def again():
        grade_class(9, toys.submitted, 1, False, toys.state)
        return len(CALLS)

    path = toys.submit("ann", toys.submission(double=RIGHT))
    assert again() == 1 and again() == 1
    notebook = json.loads(path.read_text())
    notebook["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "ran again"}]
    path.write_text(json.dumps(notebook))
    assert again() == 1  # an output says nothing about the answer
    toys.submit("ann", toys.submission(double=RIGHT + "  # twice"))
    assert again() == 2
    monkeypatch.setattr(batch, "judging_sources", lambda level: "another edition of the checks")
    assert again() == 3
    (toys.state / "secret").write_text("another secret, as long as it has to be\n")
    assert again() == 4
    (toys.state / "results" / "level9" / "ann.json").write_text("{")
    assert again() == 5


def test_judging_sources_hold_the_checks_and_the_package():
    assert batch.judging_sources(0) == batch.judging_sources(0) and len(batch.judging_sources(0)) == 64


def test_odd_folders_are_told_and_cost_nobody_else_anything(toys):
    toys.submit("ann", toys.submission(double=RIGHT))
    toys.submit("<img src=x onerror=alert(1)>", toys.submission(double=RIGHT))
    (toys.submitted / "copy").symlink_to(toys.submitted / "ann")
    (toys.submitted / "empty" / NAME).mkdir(parents=True)
    (toys.submitted / "note.txt").write_text("not a student")
    reports = {r.student: r for r in grade_class(9, toys.submitted, 2, False, toys.state)}
    assert reports.pop("ann").points == 3
    assert set(reports) == {"<img src=x onerror=alert(1)>", "copy", "empty"}
    assert all(r.points == 0 and r.status.startswith("bad submission") for r in reports.values())
    assert CALLS == ["ann"]


def test_what_cannot_be_recorded_is_flagged_and_the_batch_goes_on(toys):
    toys.submit("ann", toys.submission(double=RIGHT)).with_name("timestamp.txt").write_text("never")
    toys.submit("zoe", toys.submission(double=RIGHT))
    reports = grade_class(9, toys.submitted, 1, False, toys.state)
    assert [r.points for r in reports] == [3, 3]
    assert "not in the gradebook" in reports[0].flags[0] and reports[1].flags == ()
    assert toys.scores("zoe")["check_double"] == (3.0, False)


def test_bad_arguments_name_themselves(toys, monkeypatch):
    with pytest.raises(ValueError, match="jobs must be at least 1; got 0"):
        grade_class(9, toys.submitted, 0, False, toys.state)
    with pytest.raises(ValueError, match="submitted must be a folder"):
        grade_class(9, toys.root / "nowhere", 1, False, toys.state)
    monkeypatch.setattr(batch, "sandbox_problem", lambda: "bwrap not found")
    with pytest.raises(NoSandbox, match="bwrap not found"):
        grade_class(9, toys.submitted, 1, True, toys.state)


def test_the_secret_is_made_once_and_is_the_owners_alone(tmp_path):
    secret = gradebook.class_secret(tmp_path / "grading")
    path = tmp_path / "grading" / "secret"
    assert len(secret) == 64 and secret == gradebook.class_secret(tmp_path / "grading")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    gradebook.class_secret(tmp_path / "grading")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("short")
    with pytest.raises(ValueError, match="at least 32 characters"):
        gradebook.class_secret(tmp_path / "grading")


def test_nbgrader_loads_without_the_grammar_library_it_does_not_need():
    gradebook.load_nbgrader()
    assert sys.modules.get("nbgrader.apps.api") is not None
