"""The students' zip works by itself and holds nothing that is the instructor's."""

import ast
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from autograder.checks.level7 import ALGORITHMS_SAID
from autograder.levels import load, numbers
from autograder.release import KEYED
from course.evidence.corrections import REFUTES
from course.evidence.excerpt_labels import TRUTH

# An environment that was made from the checkout with `pip install -e` finds there what the edition lacks, hidden checks and all.
ALONE = "import sys\nsys.meta_path[:] = [finder for finder in sys.meta_path if 'editable' not in repr(finder).lower()]\n"
ROWS_TOLD = [TRUTH[name][0].text for name in ALGORITHMS_SAID]


@pytest.fixture(scope="module")
def two_zips(tmp_path_factory):
    """Written by two processes, as by two instructors: one known mistake remembers what it was asked, and is fresh once in a process."""
    folder = tmp_path_factory.mktemp("release")
    program = (
        "import sys; from pathlib import Path; from autograder.release import write_release; write_release(Path(sys.argv[1]))"
    )
    targets = [folder / "a.zip", folder / "b.zip"]
    runs = [subprocess.Popen([sys.executable, "-c", program, str(target)]) for target in targets]
    assert [run.wait() for run in runs] == [0, 0]
    return targets


@pytest.fixture(scope="module")
def edition(two_zips, tmp_path_factory):
    folder = tmp_path_factory.mktemp("edition")
    zipfile.ZipFile(two_zips[0]).extractall(folder)
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


def test_no_key_of_a_table_is_in_it(edition):
    """The rows that only grading looks at can't be read off a file, nor guesses at them confirmed by a hash."""
    known = json.loads((edition / "autograder" / "known_mistakes.json").read_text())
    checks = [check for check in load(7).checks if check.function in KEYED and not check.hidden]
    assert len(checks) == 8 and not {check.name for check in checks} & set(known)
    for function in KEYED:
        assert known["hidden"][function] == sum(check.hidden for check in load(7).checks_of(function))
    text = "\n".join(p.read_text(errors="ignore") for p in (edition / "course").rglob("*") if p.is_file())
    text += (edition / "autograder" / "checks" / "level7.py").read_text()
    given_away = [
        *(
            claim
            for claim in ("rlaif", "sparrow", "alphaproof", "alphaevolve", "robots", "tools", "benchmarks", "weights")
            if f'"{claim}": "{REFUTES[claim]}"' in text
        ),
        *(why for claim, why in TRUTH.values() if claim.text not in ROWS_TOLD and why in text),
    ]
    assert given_away == []


def alone(edition, code):
    """A process that finds this edition and nothing of the checkout."""
    where = {**os.environ, "PYTHONPATH": str(edition)}
    return subprocess.run([sys.executable, "-c", ALONE + code], cwd=edition, capture_output=True, text=True, env=where)


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
    run = alone(edition, code)
    assert run.returncode == 0, run.stderr
    assert "RAISED" in run.stdout and "This looks like" in run.stdout and "more run when it is graded" in run.stdout


def test_instructor_commands_say_what_is_missing(edition):
    code = "from course.cli import app; app(['grade', '0'])"
    run = alone(edition, code)
    assert run.returncode == 2 and "students' edition" in run.stderr


def test_start_counts_the_points_that_the_cards_say(edition):
    """Hidden checks are not there, but their points are: a student's total is the one of cards and README."""
    code = """
from pathlib import Path
from autograder.progress import standings
print({row.function: row.points for row in standings(Path("work"))})
"""
    run = alone(edition, code)
    assert run.returncode == 0, run.stderr
    said = ast.literal_eval(run.stdout)
    assert said == {e.function: load(n).points_of(e.function) for n in numbers() for e in load(n).exercises}
    card = json.loads((edition / "levels" / "level0" / "lab.ipynb").read_text())["cells"][4]["source"]
    assert float(re.search(r"\| \d+ \| \d of 5 \| ([\d.]+) \|", "".join(card))[1]) == said["log_softmax"]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["demo", "test", "build"])
def test_what_needs_the_checkout_says_so_before_it_installs_anything(edition, target):
    run = subprocess.run(["make", target], cwd=edition, capture_output=True, text=True)
    assert run.returncode == 2 and "students' edition" in run.stdout and "make lab" in run.stdout
    assert not (edition / ".venv").exists()


def test_a_terminal_of_the_lab_finds_the_command(monkeypatch, tmp_path):
    """start.ipynb says `course doctor` in a terminal: JupyterLab hands its own PATH to terminals and kernels."""
    from course import cli

    (tmp_path / "levels").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("PATH", "/usr/bin")
    started = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append((program, os.environ["PATH"])))
    cli.lab(no_open=False)
    ((program, path),) = started
    assert path.split(os.pathsep) == [os.path.dirname(program), "/usr/bin"]


def test_the_same_checkout_gives_the_same_zip(two_zips):
    assert sorted(_different(*two_zips)) == []
    assert filecmp.cmp(*two_zips, shallow=False)


def _different(*targets):
    """The files that differ, so that nobody has to look for them."""
    one, other = (zipfile.ZipFile(target) for target in targets)
    return [name for name in {*one.namelist(), *other.namelist()} if _read(one, name) != _read(other, name)]


def _read(archive, name):
    return archive.read(name) if name in archive.namelist() else None
