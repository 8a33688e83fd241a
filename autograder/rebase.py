"""Put a student's answers into the pristine notebook. Nothing else of a submission survives.

Kept: the source of answer cells, found by grade id, and of code cells that the student added. Dropped: check cells, locked cells,
experiments, outputs, metadata, kernel names, and whatever a notebook may hold besides. The submission is read as JSON and never
through nbformat, so that its form can't choose code paths there.
"""

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder.sandbox import read_plain_file

MAX_NOTEBOOK_BYTES = 32 << 20  # with outputs; a notebook full of figures has a few MiB
MAX_SOURCE_CHARACTERS = 1 << 18  # ten times a long lab; reading code as a syntax tree costs time and memory
MAX_CELLS = 2000
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


class BadSubmission(Exception):
    """The file can't be read as a notebook; the text says why."""


@dataclass(frozen=True)
class Cell:
    kind: str
    grade_id: str
    tags: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Rebased:
    """What will run.

    answers   grade id -> sources, in order
    extras    the student's own cells
    changed   ids of check cells that were edited
    """

    cells: tuple[dict[str, Any], ...]
    answers: dict[str, tuple[str, ...]]
    extras: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def sources(self) -> list[str]:
        """Everything the student wrote that runs, in the order in which it runs."""
        return [cell["source"] for cell in self.cells if "student" in cell["metadata"]["tags"]]

    def notebook(self, last_cell: str) -> str:
        """The notebook as text, with one more cell at its end."""
        cells = [*self.cells, _code_cell("export", last_cell, ["export"])]
        metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
        return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def read_submission(path: Path) -> list[Cell]:
    """The cells of a notebook that nobody trusts. Raises BadSubmission with a reason in words."""
    try:
        raw = json.loads(_read(path).decode("utf-8-sig"))
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadSubmission(f"not a notebook ({type(error).__name__})") from None
    cells = raw.get("cells") if isinstance(raw, dict) else None
    if not isinstance(cells, list):
        raise BadSubmission("not a notebook (it has no list of cells)")
    if len(cells) > MAX_CELLS:
        raise BadSubmission(f"too many cells ({len(cells)}; at most {MAX_CELLS})")
    found = [_cell(cell) for cell in cells if isinstance(cell, dict)]
    if sum(len(cell.source) for cell in found) > MAX_SOURCE_CHARACTERS:
        raise BadSubmission(f"too much text in the cells (at most {MAX_SOURCE_CHARACTERS} characters)")
    return found


def _read(path: Path) -> bytes:
    try:
        return read_plain_file(path, MAX_NOTEBOOK_BYTES)
    except FileNotFoundError:
        raise BadSubmission("no such notebook") from None
    except OSError as error:
        reason = "too large: clear its outputs" if "more than" in str(error) else "not a plain file"
        raise BadSubmission(reason) from None


def _cell(cell: dict[str, Any]) -> Cell:
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    metadata = cell.get("metadata") if isinstance(cell.get("metadata"), dict) else {}
    role = metadata.get("nbgrader") if isinstance(metadata.get("nbgrader"), dict) else {}
    tags = metadata.get("tags") if isinstance(metadata.get("tags"), list) else []
    return Cell(
        kind=str(cell.get("cell_type")),
        grade_id=role["grade_id"] if isinstance(role.get("grade_id"), str) else "",
        tags=tuple(tag for tag in tags if isinstance(tag, str)),
        # half of a surrogate pair is legal in JSON and in no file
        source=(source if isinstance(source, str) else "").encode("utf-8", "replace").decode("utf-8"),
    )


def rebase(pristine: dict[str, Any], submitted: list[Cell]) -> Rebased:
    """pristine: the instructor's notebook as JSON. Of it, solutions, checks and experiments never enter."""
    skeleton = [(_cell(cell), cell) for cell in pristine["cells"]]
    roles = {cell.grade_id: raw["metadata"]["nbgrader"] for cell, raw in skeleton if cell.grade_id}
    place = {cell.grade_id: index for index, (cell, _) in enumerate(skeleton) if cell.grade_id}
    texts = {cell.grade_id: cell.source.strip() for cell, _ in skeleton if cell.grade_id}
    given = {
        cell.source.strip(): index
        for index, (cell, _) in enumerate(skeleton)
        if cell.kind == "code" and not roles.get(cell.grade_id, {}).get("solution")
    }
    answers: dict[str, list[str]] = {}
    extras: dict[int, list[str]] = {}
    changed: list[str] = []
    here = -1  # where in the pristine notebook the submission has got to: the student's own cells follow what they followed
    for cell in submitted:
        if cell.grade_id in roles:
            here = place[cell.grade_id]
            if roles[cell.grade_id].get("solution"):
                answers.setdefault(cell.grade_id, []).append(cell.source)
            elif cell.source.strip() != texts[cell.grade_id]:
                changed.append(cell.grade_id)
        elif cell.kind == "code" and cell.source.strip():
            if cell.source.strip() in given:
                here = given[cell.source.strip()]
            elif not {"experiment", "parameters", "injected-parameters"} & set(cell.tags):
                extras.setdefault(here, []).append(cell.source)

    cells: list[dict[str, Any]] = []

    def student(sources: list[str]) -> None:
        for source in sources:
            cells.append(_code_cell(f"student-{len(cells)}", source, ["student", "raises-exception"]))

    student(extras.get(-1, []))
    for index, (cell, _) in enumerate(skeleton):
        role = roles.get(cell.grade_id, {})
        if cell.kind != "code":
            pass
        elif role.get("solution"):
            student(_without_stubs(answers.get(cell.grade_id, [])))
        elif not role.get("grade") and "experiment" not in cell.tags:
            cells.append(_code_cell(f"given-{index}", cell.source, [tag for tag in cell.tags if tag == "parameters"]))
        student(extras.get(index, []))
    flat = tuple(source for index in sorted(extras) for source in extras[index])
    return Rebased(tuple(cells), {key: tuple(value) for key, value in answers.items()}, flat, tuple(dict.fromkeys(changed)))


def _without_stubs(sources: list[str]) -> list[str]:
    """A copied or split cell bears its grade id twice: all parts run in order, but an untouched copy must not undo an answer."""
    written = [source for source in sources if not _is_stub(source)]
    return written or sources[-1:]


def _is_stub(source: str) -> bool:
    """Every function in the cell does nothing but raise NotImplementedError."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return not source.strip() or (bool(functions) and all(_only_raises(node) for node in functions))


def _only_raises(function: ast.FunctionDef) -> bool:
    rest = [node for node in function.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    if len(rest) != 1 or not isinstance(rest[0], ast.Raise):
        return False
    raised = rest[0].exc.func if isinstance(rest[0].exc, ast.Call) else rest[0].exc
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def _code_cell(id: str, source: str, tags: list[str]) -> dict[str, Any]:
    return {"cell_type": "code", "id": id, "metadata": {"tags": tags}, "source": source, "outputs": [], "execution_count": None}
