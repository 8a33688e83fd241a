"""Execute the course's own notebooks from top to bottom, and say how long they took and how much memory."""

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

from autograder.build import SOLUTIONS

MINUTES = 15  # a notebook that needs more is broken, not slow
GIGABYTES = 2.0  # that a notebook may need: its kernel, and the workers that some of them start


class NotebookFailed(RuntimeError):
    """A notebook that did not run to its end; says which cell it was, and why."""


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
            return Outcome(name, time.monotonic() - started, 0.0, str(failure))
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
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    except (ValueError, OSError):  # not told on this system
        free = GIGABYTES
    return max(1, min(os.cpu_count() or 1, int(free / GIGABYTES)))


def _longest_first() -> list[Path]:
    """Labs by their recorded time, then the cases, which have none."""

    def recorded(notebook: Path) -> float:
        measured = notebook.with_name("measured.json")
        return json.loads(measured.read_text())["seconds"] if notebook.stem == "lab" and measured.exists() else 0.0

    return sorted(sorted(SOLUTIONS.glob("*/*.ipynb")), key=recorded, reverse=True)


def execute_folder(folder: str, *, fast: bool = False, record: bool = False, output: Path | None = None) -> list[dict[str, Any]]:
    """Every notebook of solutions/<folder>; with record, the lab's time and memory go to measured.json."""
    rows = []
    for notebook in sorted((SOLUTIONS / folder).glob("*.ipynb")):
        rows.append(_kept_or_not(notebook, output, fast))
        if record and notebook.stem in ("lab", "start"):
            _record(notebook.parent, rows[-1])
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
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        log, _ = process.communicate(timeout=MINUTES * 60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise NotebookFailed(f"{notebook}: still running after {MINUTES} minutes") from None
    seconds = time.monotonic() - started
    executed = nbformat.read(target, 4) if target.exists() else None
    if process.returncode != 0 or executed is None:
        raise NotebookFailed(f"{notebook}: {_failing_cell(executed) or log.decode('utf-8', 'replace')[-3000:]}")
    silent = [
        cell.id for cell in executed.cells if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None
    ]
    if silent:
        raise NotebookFailed(f"{notebook}: cells that never ran: {silent}")
    return {"notebook": notebook.name, "seconds": seconds, "megabytes": _peak(executed), "output": str(target)}


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


def _peak(executed: Any) -> float:
    """The lab's last cell prints the kernel's own peak memory; 0 where a notebook has no such cell."""
    for cell in reversed(executed.cells):
        for out in cell.get("outputs", []):
            text = out.get("text", "")
            if isinstance(text, str) and text.startswith("peak memory "):
                return float(text.split()[2])
    return 0.0


def _record(folder: Path, row: dict[str, Any]) -> None:
    import torch

    data = {
        "seconds": round(row["seconds"]),
        "megabytes": round(row["megabytes"]),
        "device": f"a {os.cpu_count()}-core {platform.machine()} CPU",  # where the labs run, also beside a GPU
        "threads": torch.get_num_threads(),
    }
    (folder / "measured.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
