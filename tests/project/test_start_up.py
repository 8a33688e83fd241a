"""What importing costs, what it sets, and what the commands say to somebody who types the wrong thing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autograder.levels import numbers
from course.cli import app

ROOT = Path(__file__).resolve().parents[2]


def _python(code: str, **env: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_importing_the_package_is_cheap_and_loads_nothing_heavy():
    heavy = "transformers ray tokenizers matplotlib ipywidgets nbgrader papermill IPython jupytext nbformat pyarrow rich typer".split()
    code = (
        "import sys, time, torch; before = time.perf_counter(); import course; cost = time.perf_counter() - before; "
        f"print(cost, [m for m in {heavy!r} if m in sys.modules])"
    )
    costs = []
    for _ in range(3):
        cost, loaded = _python(code).split(" ", 1)
        costs.append(float(cost))
        assert loaded == "[]"
    assert min(costs) < 0.3


def test_the_rooms_of_the_exercises_do_not_load_transformers():
    loaded = _python(
        "import sys, course.exercises; print([m for m in ('transformers', 'matplotlib', 'nbgrader') if m in sys.modules])"
    )
    assert loaded == "[]"


def test_one_thread_is_the_default_and_the_choice_is_visible():
    assert _python("import course, torch; print(torch.get_num_threads())") == "1"
    assert _python("import course, torch; print(torch.get_num_threads())", COURSE_THREADS="2") == "2"
    out = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "200"}).stdout
    for word in ("Python", "torch", "device", "threads", "sandbox", "nbgrader", "memory"):
        assert word in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["grade", "9"], "LEVEL must be one of"),
        (["grade", "start"], f"LEVEL must be one of {list(numbers())}; got 'start'"),
        (["grade", "0", "--submitted", "docs"], "no submission found"),
        (["evidence", "0"], "NAME must be a level's number, 1, 2, 3, 4, 5, 6, or a case's name"),
        (["demo", "--folder", "docs"], "holds other files"),
        (["grade", "0", "--submitted", "/nowhere"], "--submitted must be a folder"),
        (["verify-checks", "--level", "9"], "--level must be among"),
        (["bench", "nothing"], "there is no bench named"),
        (["bench", "../sampler"], "there is no bench named"),
        (["run", "level77"], "LEVEL must be one of"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_expected(arguments, words):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_every_command_has_help():
    names = ["doctor", "lab", "build", "run", "grade", "report", "release", "verify-checks", "evidence", "bench", "demo"]
    listed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    for name in names:
        assert name in listed


def test_every_name_of_the_levels_is_re_exported_from_its_room():
    import course.exercises as exercises

    from autograder.levels import load, numbers

    own = {"lore", "claims_table", "audit_report", "audit_run"}  # tables that a reader fills: nothing to import
    for number in numbers():
        for exercise in load(number).exercises:
            if not exercise.function.startswith("test_") and exercise.function not in own:
                function = getattr(exercises, exercise.function)
                assert function.__module__.startswith("course.") and function.__module__ != "course.exercises"
