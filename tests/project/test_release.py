"""The students' zip works by itself and holds nothing that is the instructor's."""

import os
import subprocess
import sys
import zipfile

import pytest

from autograder.levels import load, numbers
from autograder.release import write_release


@pytest.fixture(scope="module")
def edition(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    write_release(folder / "student.zip")
    zipfile.ZipFile(folder / "student.zip").extractall(folder)
    return folder / "course-student"


def test_no_solution_no_hidden_case_no_mutant(edition):
    files = {str(p.relative_to(edition)) for p in edition.rglob("*") if p.is_file()}
    assert not [
        f
        for f in files
        if f.startswith(("solutions", "autograder/hidden", "autograder/mutants", "autograder/alternatives", "tests"))
    ]
    text = "\n".join(p.read_text(errors="ignore") for p in edition.rglob("*") if p.is_file() and "known_mistakes" not in p.name)
    for number in numbers():
        level = load(number)
        assert not [c.name for c in level.checks if c.hidden and f"def {c.name}" in text]
        assert not [m.name for m in level.mutants if m.message and m.message in text]


def test_checks_work_in_the_students_edition_and_name_the_mistake(edition):
    code = """
import torch
from autograder import check
def log_softmax(logits):
    return logits - logits.exp().sum(-1, keepdim=True).log()
try:
    check(log_softmax)
except AssertionError as error:
    print("RAISED", error)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=edition, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(edition)}
    )
    assert run.returncode == 0, run.stderr
    assert "RAISED" in run.stdout and "This looks like" in run.stdout and "more run when it is graded" in run.stdout


def test_instructor_commands_say_what_is_missing(edition):
    code = "from course.cli import app; app(['grade', '0'])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=edition, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(edition)}
    )
    assert run.returncode == 2 and "students' edition" in run.stderr


def test_the_same_checkout_gives_the_same_zip(tmp_path):
    """Two processes, as two instructors have: one known mistake remembers what it was asked, and is fresh once in a process."""
    program = "import sys; from pathlib import Path; from autograder.release import write_release; write_release(Path(sys.argv[1]))"
    runs = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / name)]) for name in ("a.zip", "b.zip")]
    assert [run.wait() for run in runs] == [0, 0]
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
