"""Execute the course's own notebooks from top to bottom, and say how long they took and how much memory."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autograder.build import SOLUTIONS

MINUTES = 15  # a notebook that needs more is broken, not slow


class NotebookFailed(RuntimeError):
    pass


def execute_folder(folder: str, *, fast: bool = False, record: bool = False, output: Path | None = None) -> list[dict[str, Any]]:
    """Every notebook of solutions/<folder>; with record, the lab's time and memory go to measured.json."""
    rows = []
    for notebook in sorted((SOLUTIONS / folder).glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as scratch:
            target = (output or Path(scratch)) / f"{folder}-{notebook.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            rows.append(execute(notebook, target, fast=fast))
        if record and notebook.stem in ("lab", "start"):
            _record(notebook.parent, rows[-1])
    return rows


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
    if process.returncode != 0 or not target.exists():
        raise NotebookFailed(f"{notebook}: {log.decode('utf-8', 'replace')[-3000:]}")
    executed = nbformat.read(target, 4)
    silent = [
        cell.id for cell in executed.cells if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None
    ]
    if silent:
        raise NotebookFailed(f"{notebook}: cells that never ran: {silent}")
    return {"notebook": notebook.name, "seconds": seconds, "megabytes": _peak(executed), "output": str(target)}


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
