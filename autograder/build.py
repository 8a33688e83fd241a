"""From a hand-written lab (py:percent) to the instructor's notebook and the students' release, the same bytes every time.

Cell headers carry the nbgrader role in short form; what can be derived is derived:

    # %% ng="solution:log_softmax"        an answer cell (its grade id is the function's name)
    # %% ng="test:log_softmax"            its check cell: grade id check_log_softmax, points from the checks
    # %% [markdown] ng="manual:why:3"     an answer marked by hand, 3 points
    # %% ng="locked:setup"                a read-only cell
    # %% tags=["experiment"]              skipped when a submission is graded
    {{card log_softmax}}                  in markdown: heading and card, from the exercise and its checks
    {{measured}}                          in markdown: time and memory, from measured.json beside the lab
"""

import contextlib
import hashlib
import io
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOLUTIONS, LEVELS = ROOT / "solutions", ROOT / "levels"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
ROLES = {  # grade, solution, locked
    "solution": (False, True, False),
    "test": (True, False, True),
    "manual": (True, True, False),
    "locked": (False, False, True),
}


class BuildError(ValueError):
    pass


def sources() -> list[Path]:
    return sorted(p for p in SOLUTIONS.glob("*/*.py") if not p.name.startswith("_"))


def notebook(source: Path) -> Any:
    """The nbformat notebook of one hand-written file: stable cell ids, no outputs, validated."""
    import jupytext
    import nbformat
    from nbgrader.nbgraderformat import MetadataValidator

    built = jupytext.read(source)
    seen: dict[str, int] = {}
    for index, cell in enumerate(built.cells):
        where = f"{source.relative_to(ROOT)}, cell {index}"
        metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        if "ng" in cell.metadata:
            metadata["nbgrader"] = _role(cell.metadata["ng"], source, where)
        if cell.cell_type == "markdown":
            cell.source = _expand(cell.source, source, where)
        else:
            cell["outputs"], cell["execution_count"] = [], None
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:10]
        identity = metadata.get("nbgrader", {}).get("grade_id") or f"{cell.cell_type}-{digest}"
        seen[identity] = seen.get(identity, 0) + 1
        if seen[identity] > 1:
            if "nbgrader" in metadata:
                raise BuildError(f"{where}: grade id {identity!r} is used twice")
            identity = f"{identity}-{seen[identity]}"
        cell["id"] = identity
        cell["metadata"] = nbformat.from_dict(metadata)
    built.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    built.nbformat, built.nbformat_minor = 4, 5
    nbformat.validate(built)
    MetadataValidator().validate_nb(built)
    return built


def _role(text: str, source: Path, where: str) -> dict[str, Any]:
    kind, _, rest = text.partition(":")
    if kind not in ROLES:
        raise BuildError(f"{where}: the role must be one of {sorted(ROLES)}; got {text!r}")
    name, _, points = rest.partition(":")
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,58}", name):
        raise BuildError(f"{where}: {name!r} is not a grade id (letters, digits, - and _)")
    grade, solution, locked = ROLES[kind]
    role = {"grade": grade, "solution": solution, "locked": locked, "task": False, "grade_id": name, "schema_version": 3}
    if kind == "test":
        from autograder.levels import load

        value = load(_level_number(source, where)).points_of(name)
        if value <= 0:
            raise BuildError(f"{where}: {name} has no check with points")
        role["grade_id"], role["points"] = f"check_{name}", int(value) if float(value).is_integer() else value
    elif kind == "manual":
        role["points"] = int(points)
    elif points:
        raise BuildError(f"{where}: a {kind} cell has no points of its own; got {text!r}")
    return role


def _level_number(source: Path, where: str) -> int:
    match = re.fullmatch(r"level(\d+)", source.parent.name)
    if match is None:
        raise BuildError(f"{where}: only a notebook in solutions/levelN can hold graded exercises")
    return int(match[1])


def _expand(text: str, source: Path, where: str) -> str:
    def card(match: re.Match) -> str:
        return exercise_card(_level_number(source, where), match[1])

    text = re.sub(r"\{\{card (\w+)\}\}", card, text)
    return text.replace("{{measured}}", measured(source)) if "{{measured}}" in text else text


def exercise_card(number: int, function: str) -> str:
    from autograder.levels import load

    level = load(number)
    exercise = level.exercise(function)
    invariants = sorted({check.invariant for check in level.checks_of(function)})
    banned = ", ".join(f"`{name}`" for name in exercise.banned) or "nothing"
    return (
        f"## {exercise.id} · {exercise.title}\n\n| minutes | difficulty | points | checks | not allowed here |\n|---|---|---|---|---|\n"
        f"| {exercise.minutes} | {exercise.difficulty} of 5 | {level.points_of(function):g} | {', '.join(invariants)} | {banned} |"
    )


def measured(source: Path) -> str:
    """One sentence from measured.json, which `course run LEVEL --record` writes."""
    path = source.with_name("measured.json")
    found = json.loads(path.read_text("utf-8")) if path.exists() else {"notebooks": {}}
    row = found["notebooks"].get(source.stem)
    if row is None:
        return ""
    return (
        f"Measured: the whole notebook executes in {row['seconds'] / 60:.1f} minutes and {row['megabytes'] / 1000:.1f} GB on "
        f"{found['device']} ({found['threads']} thread)."
    )


def text_of(built: Any) -> str:
    import nbformat

    return nbformat.writes(built, version=4) + "\n"


def build(solutions: Path = SOLUTIONS, levels: Path = LEVELS) -> list[Path]:
    """Write solutions/*/*.ipynb beside their sources and the release under levels/. Returns what was written."""
    written = []
    for source in sources():
        target = solutions / source.parent.name / source.with_suffix(".ipynb").name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text_of(notebook(source)))
        written.append(target)
    for folder in sorted({source.parent.name for source in sources()}):
        written += release(folder, solutions, levels)
    return written


def release(folder: str, solutions: Path, levels: Path) -> list[Path]:
    """nbgrader's own generate_assignment, without a database, into levels/<folder>. An existing release survives a failure."""
    from nbgrader.apps import NbGrader  # noqa: F401  (registers nbgrader's configurables)
    from nbgrader.converters import GenerateAssignment
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import Config

    with tempfile.TemporaryDirectory() as scratch:
        config = Config()
        config.CourseDirectory.root = scratch
        config.CourseDirectory.source_directory = "source"
        config.CourseDirectory.release_directory = "release"
        config.CourseDirectory.assignment_id = folder
        config.CourseDirectory.ignore = ["*.py", "*.pyc", "__pycache__", ".ipynb_checkpoints"]
        config.GenerateAssignment.no_database = True
        config.SaveCells.enabled = False  # it would ask the database that is not there
        config.NbConvertBase.log_level = "WARN"
        shutil.copytree(solutions / folder, Path(scratch, "source", folder), ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        GenerateAssignment(coursedir=CourseDirectory(config=config), config=config).start()
        made = Path(scratch, "release", folder)
        target = levels / folder
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    for path in target.glob("*.ipynb"):  # nbformat's own writer, so that two machines write the same bytes
        path.write_text(_normal(path))
    return sorted(target.glob("*"))


def _normal(path: Path) -> str:
    import nbformat

    built = nbformat.read(path, 4)
    built.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    return text_of(built)


def differences() -> list[str]:
    """What `course build` would change, and files that no source explains. Empty means that what is committed is up to date."""
    with tempfile.TemporaryDirectory() as scratch:
        solutions, levels = Path(scratch, "solutions"), Path(scratch, "levels")
        for folder in {source.parent for source in sources()}:
            shutil.copytree(
                folder, solutions / folder.name, ignore=shutil.ignore_patterns("*.ipynb", "__pycache__", ".ipynb_checkpoints")
            )
        build(solutions, levels)
        return _compare(solutions, SOLUTIONS, "*.ipynb") + _compare(levels, LEVELS, "*")


def _compare(fresh: Path, committed: Path, pattern: str) -> list[str]:
    def files(root: Path) -> dict[str, bytes]:
        found = (p for p in root.rglob(pattern) if p.is_file() and ".ipynb_checkpoints" not in p.parts)
        return {str(p.relative_to(root)): p.read_bytes() for p in found}

    new, old = files(fresh), files(committed)
    stale = [f"{committed.name}/{name} is stale or missing" for name in sorted(new) if old.get(name) != new[name]]
    return stale + [f"{committed.name}/{name} has no source" for name in sorted(set(old) - set(new))]


# ---------------------------------------------------------------- the functions that a solution notebook defines


def solution_functions(number: int) -> dict[str, Any]:
    """Run the solution lab's cells as grading would (no experiments, no check cells) and return its namespace."""
    built = notebook(SOLUTIONS / f"level{number}" / "lab.py")
    namespace: dict[str, Any] = {"__name__": "__solution__"}
    for cell in built.cells:
        role = cell.metadata.get("nbgrader", {})
        if cell.cell_type != "code" or "experiment" in cell.metadata.get("tags", []) or role.get("grade"):
            continue
        with contextlib.redirect_stdout(io.StringIO()):  # what cells print is no part of a command's output
            exec(compile(cell.source, f"level{number}/{cell.id}", "exec"), namespace)
        if "parameters" in cell.metadata.get("tags", []):
            namespace["FAST"] = True
    return namespace
