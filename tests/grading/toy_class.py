"""A level with one exercise and one written question, small enough to send through nbgrader in a test."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder import batch, gradebook
from autograder.framework import Check, Exercise
from autograder.grade import Report, Row
from autograder.levels import Level

NAME = "level9"
RIGHT = "def double(x):\n    return 2 * x"
STUB = "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION"
QUESTION = "Why is it *right*? Assume $a < b$."
HOSTILE = """My answer <script>alert("MARK")</script>
<img src=x onerror="alert('MARK')"> <svg onload=alert('MARK')><a xlink:href="javascript:alert(1)">MARK</a></svg>
[MARK](javascript:alert(1)) ![MARK](https://example.org/MARK.png) <a href="javascript:alert('MARK')">MARK</a> &lt;script&gt;
$\\href{javascript:alert(1)}{MARK}$ `</pre><script>MARK</script>`

```
</code></pre><iframe src="https://example.org/MARK"></iframe>
```
</pre><style>body{display:none}</style><form action=/MARK><button>MARK</button></form>"""


def _check(name: str, points: float, hidden: bool) -> Check:
    def run(double, draw):
        """A sentence about double."""

    return Check(name, "L0.01", points, hidden, True, "double", None, run)


LEVEL = Level(
    9, (Exercise("double", "9.1", "Double", 5, 1),), (_check("open_case", 2, False), _check("secret_case", 1, True)), (), ()
)


def _role(grade_id: str, grade: bool, solution: bool, points: int | None = None) -> dict:
    role = {
        "grade_id": grade_id,
        "grade": grade,
        "solution": solution,
        "locked": not solution,
        "task": False,
        "schema_version": 3,
    }
    return {"nbgrader": role | ({} if points is None else {"points": points})}


def source_notebook() -> nbformat.NotebookNode:
    cells = [
        new_markdown_cell("# A level", id="title"),
        new_code_cell("from autograder import check", id="setup", metadata=_role("setup", False, False)),
        new_code_cell(STUB, id="double", metadata=_role("double", False, True)),
        new_code_cell("check(double)", id="check_double", metadata=_role("check_double", True, False, 3)),
        new_markdown_cell(QUESTION, id="why", metadata=_role("why", True, True, 2)),
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=cells, metadata=kernel)


def graded(notebook: Path, level: int, student: str, *, secret: bytes, sandbox: bool, sealed: bool) -> Report:
    """Stands for the grader: looks at the text alone, and counts how often it was asked."""
    CALLS.append(student)
    text = notebook.read_text()
    right, open_only = "2 * x" in text, "x + x" in text
    rows = (
        Row(
            "double",
            "L0.01",
            "open_case",
            "Doubles",
            2.0 * (right or open_only),
            2.0,
            right or open_only,
            False,
            "" if right else "expected 4",
        ),
        Row(
            "double", "L0.01", "secret_case", "Doubles HIDDENNAME", 1.0 * right, 1.0, right, True, "" if right else "HIDDENREASON"
        ),
    )
    return Report(student, level, "ok", rows, (), 0.1, "digest", "")


CALLS: list[str] = []


class Class:
    """One course folder with a level, submissions and grading state."""

    def __init__(self, root: Path):
        self.root, self.state, self.submitted = root, root / "grading", root / "grading" / "submitted"
        self.config = gradebook.configuration(self.state, self.submitted, sandbox=False)
        self.config.CourseDirectory.root = str(root)
        if not self.submitted.exists():
            self.submitted.mkdir(parents=True)
            (root / "solutions" / NAME).mkdir(parents=True)
            nbformat.write(source_notebook(), root / "solutions" / NAME / "lab.ipynb")
            outcome = gradebook.open_api(self.config).generate_assignment(NAME)
            assert outcome["success"], outcome
        self.released = json.loads((root / "levels" / NAME / "lab.ipynb").read_text())

    def submission(self, **sources: str) -> dict:
        """The released notebook with these answers, as JSON."""
        notebook = json.loads(json.dumps(self.released))
        for cell in notebook["cells"]:
            grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id")
            cell["source"] = sources.get(grade_id, cell["source"])
        return notebook

    def submit(self, student: str, notebook: dict | str) -> Path:
        path = self.submitted / student / NAME / "lab.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(notebook if isinstance(notebook, str) else json.dumps(notebook))
        return path

    def scores(self, student: str) -> dict[str, tuple[float | None, bool]]:
        """Grade id -> (score, needs a person)."""
        with gradebook.open_api(self.config).gradebook as book:
            found = book.find_submission_notebook("lab", NAME, student).grades
            return {g.name: (g.auto_score, g.needs_manual_grade) for g in found}

    def page(self, student: str) -> str:
        return (self.state / "feedback" / student / NAME / "lab.html").read_text()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """The folder with an empty gradebook, made once: nbgrader needs seconds to create a database."""
    return Class(tmp_path_factory.mktemp("class") / "course").root


@pytest.fixture
def toys(tmp_path, monkeypatch, prepared) -> Class:
    made = Class(Path(shutil.copytree(prepared, tmp_path / "course")))
    monkeypatch.setattr(batch, "load", lambda number: LEVEL)
    monkeypatch.setattr(batch.Workers, "run", lambda self, notebook, level, student, secret, sandbox, sealed: graded(
        notebook, level, student, secret=secret, sandbox=sandbox, sealed=sealed))  # fmt: skip
    monkeypatch.setattr(gradebook, "configuration", lambda state, submitted, sandbox: made.config)
    CALLS.clear()
    return made
