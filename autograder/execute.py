"""Execute the course's own notebooks from top to bottom, and say how long they took and how much memory."""

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from autograder.build import SOLUTIONS

MINUTES = 15  # a notebook that needs more is broken, not slow
LOOK = 1.0  # seconds between two looks at its memory
GIGABYTES = 2.0  # that a notebook may need: its kernel, and the workers that some of them start


class NotebookFailed(RuntimeError):
    """A notebook that did not run to its end; says which cell it was, and why. megabytes: the most it had held by then."""

    def __init__(self, message: str, megabytes: float = 0.0):
        super().__init__(message)
        self.megabytes = megabytes


@dataclass(frozen=True)
class Outcome:
    """What became of one notebook. problem: empty if it ran to its end."""

    notebook: str  # level4/lab.ipynb
    seconds: float
    megabytes: float
    problem: str = ""


def execute_course(
    *, jobs: int, fast: bool = False, output: Path | None = None, told: Callable[[Outcome], None] = lambda outcome: None
) -> list[Outcome]:
    """Every notebook of solutions/, jobs at a time, in the order of their names. A failure costs the others nothing.

    told: is shown each outcome as soon as it is there. The longest labs begin first, so that none is left over at the end.
    """

    def one(notebook: Path) -> Outcome:
        name, started = f"{notebook.parent.name}/{notebook.name}", time.monotonic()
        try:
            row = _kept_or_not(notebook, output, fast)
        except NotebookFailed as failure:
            return Outcome(name, time.monotonic() - started, failure.megabytes, str(failure))
        except Exception as failure:  # a full disk, a notebook that is torn: the others still want to run
            return Outcome(name, time.monotonic() - started, 0.0, f"{notebook}: {type(failure).__name__}: {failure}")
        return Outcome(name, row["seconds"], row["megabytes"])

    found = []
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(one, notebook) for notebook in _longest_first()]):
            found.append(future.result())
            told(found[-1])
    return sorted(found, key=lambda outcome: outcome.notebook)


def write_outcomes(outcomes: list[Outcome], seconds: float, path: Path) -> None:
    """The report on a run of the whole course, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {"seconds": round(seconds), "notebooks": [asdict(outcome) for outcome in outcomes]}
    path.write_text(json.dumps(plain, indent=1) + "\n", "utf-8")


def jobs_that_fit() -> int:
    """As many notebooks at a time as there are cores, and memory for."""
    return max(1, min(os.cpu_count() or 1, int(psutil.virtual_memory().available / 1e9 / GIGABYTES)))


def _longest_first() -> list[Path]:
    def recorded(notebook: Path) -> float:
        path = notebook.with_name("measured.json")  # by `course run LEVEL --record`
        found = json.loads(path.read_text("utf-8"))["notebooks"] if path.exists() else {}
        return found.get(notebook.stem, {"seconds": 0})["seconds"]

    return sorted(sorted(SOLUTIONS.glob("*/*.ipynb")), key=recorded, reverse=True)


def execute_folder(folder: str, *, fast: bool = False, record: bool = False, output: Path | None = None) -> list[dict[str, Any]]:
    """Every notebook of solutions/<folder>, one after another; with record, their times and memory go to measured.json."""
    rows = [_kept_or_not(notebook, output, fast) for notebook in sorted((SOLUTIONS / folder).glob("*.ipynb"))]
    if record:
        _record(SOLUTIONS / folder, rows)
    return rows


def _kept_or_not(notebook: Path, output: Path | None, fast: bool) -> dict[str, Any]:
    """Execute a notebook of solutions/; what came out is kept in output, by level and name, or thrown away if that is None."""
    with tempfile.TemporaryDirectory() as scratch:
        target = (output or Path(scratch)) / f"{notebook.parent.name}-{notebook.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        return execute(notebook, target, fast=fast)


def execute(notebook: Path, target: Path, *, fast: bool = False) -> dict[str, Any]:
    """papermill in a process of its own. Success means that every code cell ran, not that papermill did not complain."""
    import nbformat

    command = [
        sys.executable,
        "-m",
        "papermill",
        str(notebook),
        str(target),
        "--cwd",
        str(notebook.parent),
        "--no-progress-bar",
        "-k",
        "python3",
    ]
    tagged = any("parameters" in cell.metadata.get("tags", []) for cell in nbformat.read(notebook, 4).cells)
    command += ["-p", "FAST", str(fast)] if tagged else []
    started = time.monotonic()
    log, code, peak = _watched(psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT), notebook)
    seconds = time.monotonic() - started
    executed = nbformat.read(target, 4) if target.exists() else None
    if code != 0 or executed is None:
        raise NotebookFailed(f"{notebook}: {_failing_cell(executed) or log.decode('utf-8', 'replace')[-3000:]}", peak)
    silent = [
        cell.id for cell in executed.cells if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None
    ]
    if silent:
        raise NotebookFailed(f"{notebook}: cells that never ran: {silent}", peak)
    return {"notebook": notebook.name, "seconds": seconds, "megabytes": peak, "output": str(target)}


def _watched(process: psutil.Popen, notebook: Path) -> tuple[bytes, int, float]:
    """What a process says until it ends, its exit status, and the most that it and all it started held at a time, in megabytes."""
    peak, until = 0.0, time.monotonic() + MINUTES * 60
    while True:
        try:
            log, _ = process.communicate(timeout=LOOK)
            return log, process.returncode, peak
        except subprocess.TimeoutExpired:
            peak = max(peak, _megabytes(process))
        if time.monotonic() > until:
            for started in [*process.children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    started.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
            raise NotebookFailed(f"{notebook}: still running after {MINUTES} minutes", peak)


def _megabytes(process: psutil.Process) -> float:
    """What a process and all it started hold now. Memory that several share is counted once, where the system tells that (Linux)."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # ended meanwhile
            try:
                held = one.memory_full_info()
            except psutil.AccessDenied:  # macOS lets only root ask that of another process
                held = one.memory_info()
            total += getattr(held, "pss", held.rss)
    return total / 1e6


def _failing_cell(executed: Any) -> str:
    """The cell that raised, by number and first line, and what it raised; empty if no cell did."""
    added = {"papermill-error-cell-tag", "injected-parameters"}  # by papermill, and not in anybody's notebook
    own = [cell for cell in (executed.cells if executed else ()) if not added & set(cell.metadata.get("tags", []))]
    for number, cell in enumerate(own, 1):
        for out in cell.get("outputs", []):
            if out.get("output_type") == "error":
                line = next((line for line in cell.source.splitlines() if line.strip()), "")
                return f"cell {number} ({line[:80]}) raised {out['ename']}: {out['evalue']}"
    return ""


def _record(folder: Path, rows: list[dict[str, Any]]) -> None:
    import torch

    data = {
        "notebooks": {
            Path(row["notebook"]).stem: {"seconds": round(row["seconds"]), "megabytes": round(row["megabytes"])} for row in rows
        },
        "device": f"a {os.cpu_count()}-core {platform.machine()} CPU",  # where the labs run, also beside a GPU
        "threads": torch.get_num_threads(),
    }
    (folder / "measured.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
