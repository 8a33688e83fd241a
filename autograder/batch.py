"""Grade a class: every submission once, in worker processes that may die, with verdicts that every command then reads.

A verdict is kept under a key made of what the submission's cells say, the sources that judge it and the secret seed. So `nbgrader
autograde`, the formgrader's button and `course grade` share one run. Deleting a student's file in results/ forces another.
"""

import functools
import hashlib
import json
import multiprocessing
import os
import re
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from autograder import gradebook
from autograder.gradebook import NOTEBOOK
from autograder.grade import Report, grade_submission, no_rows, secret_seed
from autograder.levels import load
from autograder.rebase import BadSubmission, Cell, read_submission
from autograder.sandbox import NoSandbox, sandbox_problem

STARTUP, PATIENCE = 120.0, 300.0  # seconds after which a worker counts as dead; the sandbox's own limit comes long before
STUDENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


def grade_class(
    level: int, submitted: Path, jobs: int, sandbox: bool, state: Path, told: Callable[[Report], None] = lambda _: None
) -> list[Report]:
    """Grade submitted/<student>/levelN/lab.ipynb of all students and enter the points into nbgrader's gradebook under state.

    jobs     submissions graded at the same time
    sandbox  False only for code you trust; the reports say so
    told     called with each report as it arrives
    returns  one report per student, in alphabetical order, whatever the submissions did
    Raises:  NoSandbox where untrusted code can't be held and sandbox is not False
    """
    name = load(level).name
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1; got {jobs}")
    if not submitted.is_dir():
        raise ValueError(f"submitted must be a folder with submissions (STUDENT/{name}/{NOTEBOOK}.ipynb); {submitted} is none")
    if sandbox and sandbox_problem():
        raise NoSandbox(f"no sandbox: {sandbox_problem()}")
    submitted, state = submitted.resolve(), state.resolve()  # nbgrader changes the working directory while it works
    students = sorted(path.parent.name for path in submitted.glob(f"*/{name}") if path.is_dir())
    gradebook.class_secret(state)  # made before several workers look for it
    config = gradebook.configuration(state, submitted, sandbox=sandbox)
    api = gradebook.open_api(config)
    gradebook.ensure_assignment(api.coursedir, name)
    reports: dict[str, Report] = {}
    with Workers(jobs) as workers, ThreadPoolExecutor(jobs) as pool:
        waiting = {}
        for student in students:
            notebook = submitted / student / name / f"{NOTEBOOK}.ipynb"
            job = (level, student, notebook, state, sandbox, config.TrustedExecute.sealed, workers.run)
            waiting[pool.submit(_safely, *job)] = (student, notebook)
        for future in as_completed(waiting):
            student, notebook = waiting[future]
            reports[student] = _enter(api, name, notebook, future.result())
            told(reports[student])
    return [reports[student] for student in students]


def stored_reports(level: int, state: Path) -> list[Report]:
    """The kept verdicts of a level, in alphabetical order of students. Files of another edition are passed over."""
    found = []
    for path in (state / "results" / f"level{level}").glob("*.json"):
        try:
            found.append(Report.from_json(json.loads(path.read_text())["report"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(found, key=lambda report: report.student)


def verdict(
    level: int,
    student: str,
    notebook: Path,
    state: Path,
    *,
    sandbox: bool,
    sealed: bool,
    run: Callable[..., Report] | None = None,
) -> Report:
    """The kept verdict on this submission, or a new one. run(*job) grades in another process; without it one is started."""
    secret = gradebook.class_secret(state)
    kept = state / "results" / f"level{level}" / f"{student}.json"
    try:
        cells = submitted_cells(student, notebook)
    except BadSubmission as problem:
        report = no_points(level, student, f"bad submission: {problem}")
        _write(kept, json.dumps({"key": "", "report": report.to_json()})) if STUDENT.fullmatch(student) else None
        return report
    key = _key(level, student, cells, secret, sandbox, sealed)
    try:
        entry = json.loads(kept.read_text())
        if entry["key"] == key:
            return Report.from_json(entry["report"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nothing kept, or kept by another edition: grade
    if run is None:
        with Workers(1) as workers:
            report = workers.run(notebook, level, student, secret, sandbox, sealed)
    else:
        report = run(notebook, level, student, secret, sandbox, sealed)
    _write(kept, json.dumps({"key": key, "report": report.to_json()}))
    return report


def no_points(level: int, student: str, status: str) -> Report:
    """The report on a submission that could not be run at all."""
    return Report(student, level, status, no_rows(load(level), status), flags=(), seconds=0.0, seed_digest="", log="")


def submitted_cells(student: str, notebook: Path) -> list[Cell]:
    """The submission as text. Raises BadSubmission where it may not or cannot be opened: a link could point at the solutions."""
    if not STUDENT.fullmatch(student):
        raise BadSubmission("the folder's name is not a student's id")
    if notebook.parent.is_symlink() or notebook.parent.parent.is_symlink():
        raise BadSubmission("the folder is a link")
    if not os.path.lexists(notebook):
        others = sorted(path.name for path in notebook.parent.glob("*.ipynb"))[:3]
        raise BadSubmission(f"no {notebook.name} was submitted" + (f" (found {', '.join(others)})" if others else ""))
    return read_submission(notebook)


def _safely(level: int, student: str, notebook: Path, state: Path, sandbox: bool, sealed: bool, run: Callable) -> Report:
    try:
        return verdict(level, student, notebook, state, sandbox=sandbox, sealed=sealed, run=run)
    except Exception as error:  # the batch goes on; the reason is told, nothing is kept, and the next run tries again
        return no_points(level, student, f"not graded: {error}"[:300])


def _enter(api: Any, name: str, notebook: Path, report: Report) -> Report:
    try:
        if report.status.startswith("not graded"):
            return report
        if not os.path.lexists(notebook):
            gradebook.record_nothing(api, name, report.student)
            return report
        problem = gradebook.record(api, name, report.student)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"[:300]
    return replace(report, flags=(*report.flags, f"not in the gradebook: {problem}")) if problem else report


def _key(level: int, student: str, cells: list[Cell], secret: bytes, sandbox: bool, sealed: bool) -> str:
    said = json.dumps([(cell.kind, cell.grade_id, cell.tags, cell.source) for cell in cells])
    parts = [said, judging_sources(level), secret_seed(secret, student, level)[1], str(sandbox), str(sealed)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def judging_sources(level: int) -> str:
    """Digest of everything that decides about points: the grader, the package, the checks and the pristine notebook."""
    root = gradebook.ROOT
    files = [
        path for room in ("autograder", "course") for kind in ("py", "json", "toml") for path in (root / room).rglob(f"*.{kind}")
    ]
    files += (root / "solutions" / f"level{level}").glob("*.ipynb")
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _write(path: Path, text: str) -> None:
    """Whole or not at all: another command may be reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(temporary, path)


# ---------------------------------------------------------------- worker processes


class WorkerDied(RuntimeError):
    pass


class Workers:
    """Up to `count` processes, each kept from one submission to the next: what a level needs is loaded once per process."""

    def __init__(self, count: int, grade: Callable[..., Report] = grade_submission):
        self._grade = grade
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._free = threading.Semaphore(count)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self._idle:
            worker.stop()

    def run(self, *job: Any) -> Report:
        """The verdict from a worker. One that dies or stays silent is replaced, and only this submission hears of it."""
        with self._free:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            worker = worker or _Worker(self._grade)
            try:
                report = worker.ask(job)
            except BaseException:
                worker.stop()
                raise
            with self._lock:
                self._idle.append(worker)
            return report


class _Worker:
    def __init__(self, grade: Callable[..., Report]):
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, grade))
        self._process.start()
        theirs.close()
        self._ready = False

    def ask(self, job: tuple) -> Report:
        try:
            if not self._ready:  # it has packages to import first
                self._answer(STARTUP)
                self._ready = True
            self._pipe.send(job)
            kind, value = self._answer(PATIENCE)
        except (EOFError, OSError) as error:
            self._process.join(5)
            raise WorkerDied(f"the grading process ended with status {self._process.exitcode}") from error
        if kind == "error":
            raise RuntimeError(value)
        return Report.from_json(value)

    def _answer(self, seconds: float) -> tuple[str, str]:
        if not self._pipe.poll(seconds):
            raise WorkerDied(f"the grader gave no verdict within {seconds:g} s")
        return self._pipe.recv()

    def stop(self) -> None:
        self._pipe.close()  # a worker that waits for work ends by itself
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Any, grade: Callable[..., Report]) -> None:
    pipe.send(("ready", ""))
    while True:
        try:
            notebook, level, student, secret, sandbox, sealed = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            report = grade(notebook, level, student, secret=secret, sandbox=sandbox, sealed=sealed)
            pipe.send(("report", report.to_json()))
        except Exception as error:
            pipe.send(("error", f"{type(error).__name__}: {error}"[:300]))
