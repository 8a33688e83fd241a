"""solutions/*.ipynb and levels/ are build products: fresh, without orphans, and without anything that gives an answer away."""

import ast
import json
from pathlib import Path

import nbformat
import pytest

from autograder import build
from autograder.levels import load, numbers

LEVELS = [f"level{n}" for n in numbers()]


def test_what_is_committed_is_what_the_sources_give():
    assert build.differences() == []


def _cells(path: Path):
    return nbformat.read(path, 4).cells


def _solution_lines(folder: str) -> set[str]:
    """Lines of the solution regions that say something: long enough not to be in any notebook by chance."""
    lines: set[str] = set()
    inside = False
    for line in (build.SOLUTIONS / folder / "lab.py").read_text().splitlines():
        if "### BEGIN SOLUTION" in line:
            inside = True
        elif "### END SOLUTION" in line:
            inside = False
        elif inside and len(line.strip()) > 25:
            lines.add(line.strip())
    return lines


@pytest.mark.parametrize("folder", LEVELS)
def test_no_solution_line_reaches_the_release(folder):
    lines = _solution_lines(folder)
    assert len(lines) > 20
    for path in (build.LEVELS / folder).glob("*"):
        text = path.read_text()
        cells = [cell.source for cell in _cells(path)] if path.suffix == ".ipynb" else [text]
        code = {line.strip() for source in cells for line in source.splitlines()}
        assert not lines & code
        assert "BEGIN SOLUTION" not in text


@pytest.mark.parametrize("folder", LEVELS)
def test_no_hidden_case_and_no_mutant_reaches_the_release(folder):
    level = load(int(folder.removeprefix("level")))
    text = "\n".join(path.read_text() for path in (build.LEVELS / folder).glob("*"))
    names = [c.name for c in level.checks if c.hidden] + [m.name for m in level.mutants if "_" in m.name]
    found = [name for name in names if name in text]
    assert names and not found


@pytest.mark.parametrize("folder", LEVELS)
def test_the_model_answers_of_manual_questions_stay_with_the_instructor(folder):
    solved = {c.metadata.nbgrader.grade_id: c.source for c in _cells(build.SOLUTIONS / folder / "lab.ipynb") if _manual(c)}
    released = {c.metadata.nbgrader.grade_id: c.source for c in _cells(build.LEVELS / folder / "lab.ipynb") if _manual(c)}
    assert len(solved) in (2, 3) and solved.keys() == released.keys()
    for name, answer in solved.items():
        assert len(answer) > 100 and released[name] == "YOUR ANSWER HERE"


def _manual(cell) -> bool:
    role = cell.metadata.get("nbgrader", {})
    return bool(role.get("grade") and role.get("solution"))


@pytest.mark.parametrize("folder", LEVELS)
def test_every_exercise_has_card_stub_check_and_three_hints(folder):
    level = load(int(folder.removeprefix("level")))
    cells = _cells(build.LEVELS / folder / "lab.ipynb")
    position = {c.metadata.nbgrader.grade_id: i for i, c in enumerate(cells) if "nbgrader" in c.metadata}
    ids = []
    for exercise in level.exercises:
        stub, check = position[exercise.function], position[f"check_{exercise.function}"]
        assert check == stub + 1
        assert "raise NotImplementedError()" in cells[stub].source
        function = next(n for n in ast.parse(cells[stub].source).body if isinstance(n, (ast.FunctionDef, ast.ClassDef)))
        assert function.name == exercise.function and len(ast.get_docstring(function)) > 60
        assert cells[check].source.startswith(f"check({exercise.function})")
        assert cells[check].metadata.nbgrader.points == level.points_of(exercise.function)
        before = "\n".join(c.source for c in cells[max(0, stub - 3) : stub] if c.cell_type == "markdown")
        assert f"## {exercise.id} · {exercise.title}" in before
        assert cells[check + 1].source.count("<details>") == 3
        ids.append((position[exercise.function], [int(part) for part in exercise.id.split(".")]))
    assert [number for _, number in sorted(ids)] == sorted(number for _, number in ids), (
        "exercise numbers follow the notebook's order"
    )


@pytest.mark.parametrize("folder", LEVELS)
def test_every_experiment_is_preceded_by_a_prediction(folder):
    cells = _cells(build.LEVELS / folder / "lab.ipynb")
    headings = [i for i, c in enumerate(cells) if c.cell_type == "markdown" and "### Experiment" in c.source]
    assert len(headings) >= 3
    for start in headings:
        following = cells[start : start + 4]
        assert "**Predict" in "".join(c.source for c in following[:2])
        assert any(c.cell_type == "code" and c.source.startswith("prediction_") for c in following)
        later = cells[start : start + 12]
        assert any("cannot show" in c.source for c in later)


def test_two_builds_give_the_same_bytes():
    for source in build.sources():
        assert build.text_of(build.notebook(source)) == build.text_of(build.notebook(source))


def test_running_the_solutions_prints_nothing_into_a_commands_output(capsys):
    namespace = build.solution_functions(0)
    assert callable(namespace["find_actions"]) and namespace["FAST"] is True
    assert capsys.readouterr().out == ""


def test_a_bad_source_is_refused_with_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    source = tmp_path / "solutions" / "level0" / "lab.py"
    source.parent.mkdir(parents=True)
    source.write_text('# %% ng="test:no_such_function"\ncheck(no_such_function)\n')
    with pytest.raises(build.BuildError, match="level0/lab.py, cell 0: no_such_function has no check with points"):
        build.notebook(source)
    source.write_text('# %% ng="quiz:a"\n1\n')
    with pytest.raises(build.BuildError, match="role must be one of"):
        build.notebook(source)


def test_released_notebooks_hold_no_output():
    for path in build.LEVELS.rglob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None
