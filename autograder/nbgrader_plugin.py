"""nbgrader with an untrusted submission: how it is read, and what takes the place of executing it.

`nbgrader autograde`, the formgrader's button and `course grade` all pass here: nbgrader_config.py names these two classes.
- SubmissionReader gives nbgrader the released notebook with the student's answers in it. A copied cell, a missing id, another
  kernel, an old format, a deleted check or a file that is no notebook can't stop it, and no other file is opened or copied.
- TrustedExecute runs nothing here: it asks the grader for its verdict and writes it into the check cells, where nbgrader looks.

Answers are shown as text. Written answers could hold HTML, scripts, links or formulas with links, which the formgrader and the
feedback pages would render; they become an inert block of text. Code is shown as text by both; nothing a cell printed is kept.
"""

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autograder.gradebook import NOTEBOOK, ensure_assignment, load_nbgrader

load_nbgrader()

import nbformat  # noqa: E402
from nbconvert.exporters import NotebookExporter  # noqa: E402
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output  # noqa: E402
from nbgrader.preprocessors import NbGraderPreprocessor  # noqa: E402
from traitlets import Bool, Unicode  # noqa: E402

from autograder.batch import verdict  # noqa: E402
from autograder.grade import Report, Row  # noqa: E402
from autograder.rebase import BadSubmission, Cell, read_submission, rebase  # noqa: E402
from autograder.report import plain  # noqa: E402
from autograder.sandbox import sandbox_problem  # noqa: E402

ADDED = "**Cells that the student added.** They ran in the order in which the student placed them, not here."


class GradingRefused(RuntimeError):
    """nbgrader logs it, leaves this submission without a score and goes on with the next."""


class SubmissionReader(NotebookExporter):
    """Reads a submission for nbgrader's first pass; the second pass reads what the first one wrote."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        course = copy.copy(self.parent.coursedir)
        ensure_assignment(course, course.assignment_id)
        # Files beside the notebook are never copied: a link could point at the solutions, a page could script the formgrader.
        course.ignore = ["*", ".*"]
        self.parent.coursedir = course

    def from_filename(self, filename: str, resources: Any = None, **kw: Any) -> Any:
        course, meta = self.parent.coursedir, resources["nbgrader"]
        folder = course.format_path(course.submitted_directory, meta["student"], meta["assignment"])
        if Path(filename) != Path(folder, f"{meta['notebook']}.ipynb"):
            return super().from_filename(filename, resources=resources, **kw)
        released = Path(course.format_path(course.release_directory, ".", meta["assignment"]), f"{meta['notebook']}.ipynb")
        try:
            cells = read_submission(Path(filename))
        except BadSubmission:
            cells = []  # the verdict says why it gets nothing
        return self.from_notebook_node(answers_in_release(nbformat.read(released, 4), cells), resources=resources, **kw)


class TrustedExecute(NbGraderPreprocessor):
    state = Unicode(help="Folder of the class secret and of the kept verdicts.").tag(config=True)
    sandbox = Bool(True, help="Run submissions in a sandbox. False is for code that you trust.").tag(config=True)
    sealed = Bool(True, help="Withhold the level's own functions from submissions. False is for open courseware.").tag(
        config=True
    )

    def preprocess(self, nb: Any, resources: Any) -> Any:
        course, meta = self.parent.parent.coursedir, resources["nbgrader"]
        match = re.fullmatch(r"level(\d+)", meta["assignment"])
        if match is None or meta["notebook"] != NOTEBOOK:
            raise GradingRefused(f"GradingRefused: there are no checks for {meta['assignment']}/{meta['notebook']}")
        if self.sandbox and sandbox_problem():
            raise GradingRefused(
                f"GradingRefused: {sandbox_problem()}. Submissions are untrusted and are not run without a sandbox. For code "
                "that you trust, add --TrustedExecute.sandbox=False, or --no-sandbox to `course grade`"
            )
        notebook = Path(
            course.format_path(course.submitted_directory, meta["student"], meta["assignment"]), f"{meta['notebook']}.ipynb"
        )
        kept = verdict(int(match[1]), meta["student"], notebook, Path(self.state), sandbox=self.sandbox, sealed=self.sealed)
        write_verdict(nb, kept)
        return nb, resources


def answers_in_release(released: Any, submitted: Sequence[Cell]) -> Any:
    """The released notebook with the answers of a submission: code as it is, written answers as inert text, no outputs."""
    found = rebase(released, list(submitted))
    built = copy.deepcopy(released)
    for cell in built.cells:
        role = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if role.get("solution"):
            parts = [part for part in dict.fromkeys(found.answers.get(role["grade_id"], ())) if part != cell.source]
            if parts:  # an untouched answer keeps its text, by which nbgrader knows it and gives it zero
                text = "\n\n".join(parts)
                cell.source = text if cell.cell_type == "code" else as_text(text)
    if found.extras:
        built.cells.append(new_markdown_cell(ADDED, id="student-added"))
        built.cells += [new_code_cell(source, id=f"student-added-{n}") for n, source in enumerate(found.extras)]
    return built


def as_text(source: str) -> str:
    """One line of HTML that shows any text and does nothing: what markdown, HTML or MathJax could read is a numbered entity."""
    shown = "".join(
        ch if (ch.isascii() and ch.isalnum()) or ch == " " else f"&#{ord(ch)};" for ch in source if ch in "\n\t" or ch >= " "
    )
    return f'<pre style="white-space: pre-wrap">{shown}</pre>'


def write_verdict(nb: Any, report: Report) -> None:
    """Points and reasons into the check cells. Hidden checks are counted, never named: feedback pages show these cells."""
    for cell in nb.cells:
        role = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if cell.cell_type == "code" and role.get("grade") and not role.get("solution"):
            rows = [row for row in report.rows if f"check_{row.function}" == role["grade_id"]]
            got, most = sum(row.points for row in rows), sum(row.max for row in rows)
            share = min(max(got / most, 0.0), 1.0) if most else 0.0
            score = float(role["points"]) * share
            cell.execution_count = 1
            cell.outputs = [
                new_output("stream", name="stdout", text=verdict_text(rows, report.status)),
                new_output("execute_result", data={"text/plain": repr(round(score, 6))}, execution_count=1),
            ]


def verdict_text(rows: Sequence[Row], status: str) -> str:
    if not rows:
        return f"{plain(status)}\nNo check of this cell was run.\n"
    lines = []
    for row in rows:
        if not row.hidden:
            mark = "ok   " if row.passed else "WRONG"
            lines.append(f"{mark} {row.invariant} {plain(row.sentence)} ({row.points:g} of {row.max:g})")
            lines += [f"      {plain(row.reason)}"] if row.reason else []
    hidden = [row for row in rows if row.hidden]
    if hidden:
        got, most = sum(row.points for row in hidden), sum(row.max for row in hidden)
        lines.append(f"{sum(row.passed for row in hidden)} of {len(hidden)} further checks pass ({got:g} of {most:g} points)")
    return "\n".join(lines) + "\n"
