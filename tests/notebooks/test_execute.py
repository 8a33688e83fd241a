"""Every notebook runs from top to bottom in its own kernel, with its experiments, within the time a lab may take."""

import json

import nbformat
import pytest
from typer.testing import CliRunner

from autograder import build
from autograder.execute import NotebookFailed, execute, execute_course, write_outcomes
from autograder.levels import numbers
from autograder.local import MIME
from course.cli import app

MINUTES = 4


def noise(outputs):
    """What stands on stderr besides progress bars."""
    texts = (o["text"] for o in outputs if o.get("name") == "stderr")
    return [text for text in texts if not any(mark in text for mark in ("it/s", "s/it", "%|"))]


def recorded(folder):
    """Seconds and megabytes by name of notebook, as `course run LEVEL --record` found them, one notebook at a time."""
    return json.loads((build.SOLUTIONS / folder / "measured.json").read_text())["notebooks"]


@pytest.fixture(scope="module", params=[f"level{n}" for n in numbers()])
def executed(request, tmp_path_factory):
    target = tmp_path_factory.mktemp(request.param) / "lab.ipynb"
    row = execute(build.SOLUTIONS / request.param / "lab.ipynb", target)
    return request.param, row, nbformat.read(target, 4)


def test_the_lab_runs_in_time_and_memory(executed):
    folder, row, _ = executed
    assert recorded(folder)["lab"]["seconds"] < MINUTES * 60
    assert row["seconds"] < 1.5 * MINUTES * 60  # other tests run beside it and share its cores
    assert 0 < row["megabytes"] < 3000


def test_all_visible_checks_pass_and_leave_their_result_on_disk(executed):
    folder, _, notebook = executed
    results = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if MIME in output.get("data", {}):
                data = output["data"][MIME]
                data = json.loads(data) if isinstance(data, str) else data
                results[data["function"]] = (data["passed"], data["checks"])
    graded = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade") and not c.metadata["nbgrader"]["solution"]]
    assert len(results) == len(graded)
    assert all(passed == checks > 0 for passed, checks in results.values())


def test_every_experiment_ends_in_a_figure_and_computed_words(executed):
    _, _, notebook = executed
    sources = "\n".join(c.source for c in notebook.cells)
    images = sum("image/png" in o.get("data", {}) for c in notebook.cells for o in c.get("outputs", []))
    words = [
        o["data"]["text/markdown"] for c in notebook.cells for o in c.get("outputs", []) if "text/markdown" in o.get("data", {})
    ]
    assert images >= sources.count("### Experiment")
    assert len(words) >= sources.count("### Experiment")
    assert not any("nan" in text.lower().split() for text in words)


def test_nothing_is_written_to_stderr_but_progress(executed):
    _, _, notebook = executed
    assert noise(o for c in notebook.cells for o in c.get("outputs", [])) == []


CASES = sorted(build.SOLUTIONS.glob("level*/case_*.ipynb"))


@pytest.mark.parametrize("case", CASES, ids=[path.stem for path in CASES])
def test_a_case_runs_shows_figures_and_says_what_they_cannot_show(case, tmp_path):
    assert recorded(case.parent.name)[case.stem]["seconds"] < MINUTES / 2 * 60
    row = execute(case, tmp_path / case.name)
    assert row["seconds"] < MINUTES * 60 and 0 < row["megabytes"] < 3000
    cells = nbformat.read(tmp_path / case.name, 4).cells
    outputs = [o for c in cells for o in c.get("outputs", [])]
    assert sum("image/png" in o.get("data", {}) for o in outputs) >= 2
    text = "\n".join(c.source for c in cells) + "\n".join(str(o.get("data", {}).get("text/markdown", "")) for o in outputs)
    for needed in ("**Predict before you run:**", "cannot show", "**[D]**", "**[U]**"):
        assert needed in text, needed
    assert noise(outputs) == []


def test_start_runs(tmp_path):
    row = execute(build.SOLUTIONS / "start" / "start.ipynb", tmp_path / "start.ipynb")
    assert row["seconds"] < 60


def test_a_notebook_that_stops_early_is_not_called_a_success(tmp_path):
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("import sys; sys.exit(0)"), nbformat.v4.new_code_cell("1 + 1")]
    )
    nbformat.write(notebook, tmp_path / "stops.ipynb")
    with pytest.raises(NotebookFailed):
        execute(tmp_path / "stops.ipynb", tmp_path / "out.ipynb")


@pytest.fixture
def small_course(tmp_path, monkeypatch):
    """One notebook that runs, with a process that holds 300 MB for two seconds, beside one whose second cell fails."""
    holds = (
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; x = b\"x\" * 300_000_000; time.sleep(2)'])"
    )
    for name, sources in {"level1": ["x = 1", holds], "level2": ["x = 1", "\n# a comment\nx / 0"]}.items():
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        (tmp_path / name).mkdir()
        nbformat.write(notebook, tmp_path / name / "lab.ipynb")
    monkeypatch.setattr("autograder.execute.SOLUTIONS", tmp_path)


def test_a_run_of_the_whole_course_names_the_failing_cell_and_goes_on(small_course, tmp_path):
    heard = []
    good, bad = execute_course(jobs=2, told=heard.append)
    assert (good.notebook, good.problem) == ("level1/lab.ipynb", "") and 300 < good.megabytes < 1000
    assert (
        0 < bad.megabytes < 300
        and bad.notebook == "level2/lab.ipynb"
        and "cell 2 (# a comment) raised ZeroDivisionError: division by zero" in bad.problem
    )
    assert set(heard) == {good, bad}
    write_outcomes([good, bad], 3.4, tmp_path / "new" / "run.json")
    report = json.loads((tmp_path / "new" / "run.json").read_text())
    assert report["seconds"] == 3 and [row["notebook"] for row in report["notebooks"]] == [good.notebook, bad.notebook]


def test_a_notebook_that_cannot_be_read_costs_the_others_nothing(small_course, tmp_path):
    (tmp_path / "level2" / "lab.ipynb").write_text("{torn")
    good, bad = execute_course(jobs=1)
    assert not good.problem and "level2/lab.ipynb: NotJSONError" in bad.problem


def test_the_command_for_the_whole_course_fails_if_a_notebook_does(small_course, tmp_path, monkeypatch):
    monkeypatch.setattr("course.cli.ROOT", tmp_path)
    monkeypatch.setattr("course.cli._instructor", lambda: None)
    monkeypatch.setattr("course.cli._folder", lambda level: level)
    result = CliRunner().invoke(app, ["run", "--jobs", "1"])
    assert result.exit_code == 1 and "1 at a time" in result.output and "failed" in result.output
    assert (tmp_path / "dist" / "run.json").exists()
    refused = CliRunner().invoke(app, ["run", "all", "--record"])
    assert refused.exit_code == 2 and "--record goes with one level" in refused.output
    for options, words in ((["--record", "--fast"], "--record goes without --fast"), (["--jobs", "2"], "--jobs goes with all")):
        refused = CliRunner().invoke(app, ["run", "level1", *options])
        assert refused.exit_code == 2 and words in refused.output
    failed = CliRunner().invoke(app, ["run", "level2"])
    assert failed.exit_code == 1 and "cell 2 (# a comment) raised ZeroDivisionError" in failed.output
    assert "Traceback" not in failed.output
