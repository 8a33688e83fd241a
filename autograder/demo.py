"""A small class for `course demo`: right, partial, wrong, blank, broken and hostile submissions, graded as any class is.

The submissions are made from the released notebooks: answers come from the solutions, from the right alternatives and from the
known mistakes by which the checks are proven, so that they stay true to the levels.
"""

import ast
import inspect
import json
import shutil
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from autograder import gradebook
from autograder.batch import grade_class
from autograder.grade import Report
from autograder.gradebook import NOTEBOOK
from autograder.levels import Level, load
from autograder.report import print_table, write_html
from autograder.sandbox import sandbox_problem

LEVELS = (0, 1)
MARKER = ".course-demo"  # only a folder with this file in it is ever emptied
CONFIGURATION = '''"""The demo class for nbgrader and the formgrader: the course's configuration, on this folder's gradebook."""

c = get_config()  # noqa: F821
load_subconfig("nbgrader_config.py", path={root!r})  # noqa: F821
c.CourseDirectory.root = {here!r}
c.CourseDirectory.source_directory = {root!r} + "/solutions"
c.CourseDirectory.release_directory = {root!r} + "/levels"
c.CourseDirectory.db_url = "sqlite:///" + {here!r} + "/grading/gradebook.db"
c.TrustedExecute.state = {here!r} + "/grading"
'''

DECLARING = ("mutant", "alternative")
CRASHING = "import os\n\nos._exit(1)"
HANGING = """import time

while True:
    try:
        time.sleep(1)
    except BaseException:  # swallows the interrupt
        pass"""
FORGING = """import json, os
import torch
from safetensors.torch import save_file

print("score: 100 / 100")
get_ipython().displayhook(100.0)

class Agreeable(torch.Tensor):  # equal to everything, if one asks it
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return True

for number in range(400):  # answers of its own instead of the function's
    for folder in ("/out", os.getcwd()):
        try:
            tree = json.dumps({"dict": [["value", {"tensor": "0"}]]})
            save_file({"0": torch.zeros(())}, f"{folder}/{number}.safetensors", metadata={"tree": tree})
        except OSError:
            pass

import builtins
builtins.float = lambda *_: 100"""
PRYING = """import os
import urllib.request

loot = []
for folder, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if os.path.join(folder, f) not in ("/proc", "/sys", "/usr", "/dev")]
    loot += [os.path.join(folder, f) for f in files if f in ("gradebook.db", "secret", "lab.ipynb") or "hidden" in folder]
for path in loot:
    try:
        text = open(path, errors="ignore").read()
        if "BEGIN SOLUTION" in text:
            exec("\\n".join("".join(c["source"]) for c in __import__("json").loads(text)["cells"] if c["cell_type"] == "code"))
        open(path, "a").write("was here")
    except Exception:
        pass
try:
    urllib.request.urlopen("http://192.0.2.1/", timeout=2)
except Exception:
    pass"""
SCRIPTING = """My answer <script>fetch("/formgrader/api/grades").then(r => alert(document.cookie))</script>
<img src=x onerror="document.querySelectorAll('.full-credit').forEach(b => b.click())">
<svg onload=alert(1)></svg> [a link](javascript:alert(1)) $\\href{javascript:alert(1)}{formula}$"""
WRITTEN = "I would measure it on data that neither model was trained on, and compare the two numbers with an interval."


@dataclass(frozen=True)
class Submission:
    """expected: "all", "some" or "none" of the points. hostile: made to do harm, so never run without a sandbox."""

    student: str
    answers: dict[str, str]
    expected: str
    hostile: bool = False
    written: str = ""
    extras: list[str] = field(default_factory=list)
    rough: bool = False  # copied cells, another kernel's name, an old format


def demo(workdir: Path) -> int:
    """Build the class in workdir, grade it, print one table and say where all lies. 0 if each submission got what it deserves."""
    workdir = _emptied(workdir).resolve()
    state = workdir / "grading"
    problem = sandbox_problem()
    if problem:
        print(
            f"No sandbox on this machine: {problem}.\nThe honest submissions are graded without one, the hostile ones skipped.\n"
        )
    reports: list[Report] = []
    surprises: list[str] = []
    started = time.monotonic()
    for number in LEVELS:
        submissions = [s for s in class_of(load(number)) if not (problem and s.hostile)]
        for submission in submissions:
            _write(submission, number, state / "submitted")
        print(f"level {number}: grading {len(submissions)} submissions with two jobs ...", flush=True)
        graded = grade_class(number, state / "submitted", 2, not problem, state)
        by_student = {report.student: report for report in graded}
        reports += [by_student[s.student] for s in submissions]
        surprises += [text for s in submissions if (text := _surprise(s, by_student[s.student]))]
        failure = gradebook.feedback(state, state / "submitted", f"level{number}")
        surprises += [f"level {number}: feedback pages: {failure}"] if failure else []
    write_html(reports, workdir / "class-report.html")
    (workdir / "nbgrader_config.py").write_text(CONFIGURATION.format(root=str(gradebook.ROOT), here=str(workdir)))
    print_table(reports, f"{len(reports)} submissions in {time.monotonic() - started:.0f} s")
    if problem:
        print("Skipped without a sandbox: " + ", ".join(s.student for s in class_of(load(LEVELS[0])) if s.hostile))
    print(f"gradebook      {state / 'gradebook.db'}  (nbgrader's; open the formgrader in {workdir})")
    print(f"feedback pages {state / 'feedback'}/STUDENT/LEVEL/{NOTEBOOK}.html")
    print(f"class report   {workdir / 'class-report.html'}")
    for text in surprises:
        print(f"not as expected: {text}")
    return 1 if surprises else 0


def class_of(level: Level) -> list[Submission]:
    """Ten students of one level."""
    right = solution_sources(level)
    names = [exercise.function for exercise in level.exercises]
    half = {name: right[name] for name in names[: (len(names) + 1) // 2]}
    first = names[0]
    lonely = names[-2]  # no other answer calls it
    loop = f"def {lonely}(*args, **kwargs):\n" + textwrap.indent(HANGING, "    ")
    package = {name: f"from course.exercises import {name}" for name in names if not name.startswith("test_")}
    agreeable = f"def {first}(*args, **kwargs):\n    return torch.zeros(()).as_subclass(Agreeable)"
    noise = ["import sys\n\nprint('a warning', file=sys.stderr)", "from tqdm import tqdm\n\nfor _ in tqdm(range(3)):\n    pass"]
    return [
        Submission("right", right, "all", written=WRITTEN),
        Submission("right-otherwise", right | alternative_sources(level), "all", written=WRITTEN, extras=noise, rough=True),
        Submission("partial", half, "some", written=WRITTEN),
        Submission("classic-mistakes", right | mutant_sources(level), "some", written=WRITTEN),
        Submission("blank", {}, "none"),
        Submission("crashing", right | {first: CRASHING}, "none"),
        # one level hangs where a cell is run, the other where a function is called, which costs only that function
        Submission("hanging", right | {first: HANGING}, "none")
        if level.number == 0
        else Submission("hanging", right | {lonely: loop}, "some"),
        Submission("forging", {first: f"{FORGING}\n\n\n{agreeable}"}, "none", hostile=True),
        Submission("prying", package | {first: f"{PRYING}\n{package.get(first, '')}"}, "none", hostile=True),
        Submission("scripting", right, "all", hostile=True, written=SCRIPTING),
    ]


# ---------------------------------------------------------------- where the answers come from


def solution_sources(level: Level) -> dict[str, str]:
    """Grade id -> source of the level's own solution cells."""
    notebook = json.loads((gradebook.ROOT / "solutions" / level.name / f"{NOTEBOOK}.ipynb").read_text("utf-8"))
    found = {}
    for cell in notebook["cells"]:
        role = cell["metadata"].get("nbgrader", {})
        if cell["cell_type"] == "code" and role.get("solution"):
            lines = "".join(cell["source"]).splitlines()
            found[role["grade_id"]] = "\n".join(
                line for line in lines if line.strip() not in ("### BEGIN SOLUTION", "### END SOLUTION")
            )
    return found


def alternative_sources(level: Level) -> dict[str, str]:
    """For each function the last right alternative that can stand in a notebook alone."""
    found = {}
    for alternative in level.alternatives:
        source = standalone(alternative.run, alternative.function, level)
        if source:
            found[alternative.function] = source
    return found


def mutant_sources(level: Level, count: int = 5) -> dict[str, str]:
    """One known mistake for each of a few functions, the first for which that is possible."""
    found: dict[str, str] = {}
    for mutant in level.mutants:
        if mutant.function not in found and len(found) < count and any(e.function == mutant.function for e in level.exercises):
            source = standalone(mutant.run, mutant.function, level)
            if source:
                found[mutant.function] = source
    return found


def standalone(function: Callable, name: str, level: Level) -> str:
    """A module's function as an answer cell: renamed, with the imports and helpers it needs. Empty if it leans on an exercise."""
    module = inspect.getmodule(function)
    needed, queue, seen = [], [function.__name__], set()
    defined = _definitions(module)
    while queue:
        current = queue.pop(0)
        if current in seen or current not in defined:
            continue
        seen.add(current)
        node = defined[current]
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autograder"):
            return ""
        if isinstance(node, ast.ImportFrom) and current in {e.function for e in level.exercises}:
            return ""
        needed.append(node)
        bare = _bare(node)
        queue += [part.id for part in ast.walk(bare) if isinstance(part, ast.Name)]
    pieces = []
    for node in sorted({id(n): n for n in needed}.values(), key=lambda n: n.lineno):
        text = ast.unparse(_bare(node))
        pieces.append(text)
    if function.__name__ != name:
        pieces.append(f"{name} = {function.__name__}")
    return "\n\n".join(pieces)


def _definitions(module: ModuleType) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for item in node.names:
                found[(item.asname or item.name).split(".")[0]] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


def _bare(node: ast.stmt) -> ast.stmt:
    """A function or class without the decorators that declare what it is, and without the sentence that says what it gets wrong."""
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node
    clone = ast.parse(ast.unparse(node)).body[0]
    clone.decorator_list = [
        d for d in clone.decorator_list if not (isinstance(d, ast.Call) and getattr(d.func, "id", "") in DECLARING)
    ]
    if ast.get_docstring(clone) is not None and len(clone.body) > 1:
        clone.body = clone.body[1:]
    return clone


# ---------------------------------------------------------------- on disk


def _write(submission: Submission, number: int, submitted: Path) -> None:
    notebook = json.loads((gradebook.ROOT / "levels" / f"level{number}" / f"{NOTEBOOK}.ipynb").read_text("utf-8"))
    cells = notebook["cells"]
    for cell in cells:
        role = cell["metadata"].get("nbgrader", {})
        if role.get("solution"):
            written = submission.written if cell["cell_type"] == "markdown" else submission.answers.get(role["grade_id"], "")
            cell["source"] = written or cell["source"]
    cells += [_code(source) for source in submission.extras]
    if submission.rough:
        cells.append(json.loads(json.dumps(next(c for c in cells if c["metadata"].get("nbgrader", {}).get("solution")))))
        for cell in cells:
            cell.pop("id", None)
        notebook["metadata"] = {"kernelspec": {"name": "my-env", "display_name": "mine", "language": "python"}}
        notebook["nbformat_minor"] = 4
    path = submitted / submission.student / f"level{number}" / f"{NOTEBOOK}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), "utf-8")


def _code(source: str) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "source": source, "outputs": [], "execution_count": None}


class FolderInUse(ValueError):
    """The demo would have to empty a folder that it did not make."""


def _emptied(folder: Path) -> Path:
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise FolderInUse(f"the demo's folder must be new, empty or made by an earlier demo; {folder} holds other files")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER).write_text("made by `course demo`, which empties this folder when it runs again\n")
    return folder


def _surprise(submission: Submission, report: Report) -> str:
    share = report.points / report.max_points
    fits = {"all": share == 1, "some": 0 < share < 1, "none": share == 0}[submission.expected]
    problem = "" if fits else f"expected {submission.expected} of the points, got {report.points:g} of {report.max_points:g}"
    problem = next((flag for flag in report.flags if flag.startswith("not in the gradebook")), problem)
    return f"level {report.level}, {report.student}: {problem} ({report.status})" if problem else ""
