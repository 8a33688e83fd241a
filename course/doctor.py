"""`course doctor`: what was found on this machine, and what each lack means for a student or an instructor."""

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Finding:
    what: str
    found: str
    good: bool
    meaning: str


def findings(root: Path) -> list[Finding]:
    return [
        _python(), _torch(), _device(), _threads(), _memory(), _package("nbgrader", "students validate and submit, instructors grade"),
        _package("jupyterlab", "`make lab` opens the notebooks"), _package("transformers", "real checkpoints as policies; load and save"),
        _package("simpy", "level 6 simulates a cluster; in the extra `systems`"),
        _package("ray", "level 6 runs one round on Ray too; in the extra `systems`"), _sandbox(), _browser(), _edition(root),
    ]  # fmt: skip


def _python() -> Finding:
    good = (3, 11) <= sys.version_info[:2] < (3, 14)
    meaning = "" if good else "the course is tested on Python 3.11 to 3.13"
    return Finding("Python", platform.python_version(), good, meaning)


def _torch() -> Finding:
    import torch

    good = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) >= (2, 13)
    return Finding(
        "torch",
        torch.__version__,
        good,
        "" if good else "2.13 or newer is needed; bits are promised for the version in requirements.lock",
    )


def _device() -> Finding:
    from course.models.devices import pick_device

    device = str(pick_device("auto"))
    if device == "cpu":
        return Finding("device", "CPU", True, "everything in the course runs here; a GPU is only needed for real checkpoints")
    return Finding("device", device, True, 'device="auto" takes it')


def _threads() -> Finding:
    import torch

    count = torch.get_num_threads()
    source = "COURSE_THREADS" if "COURSE_THREADS" in os.environ else "the course's default"
    return Finding(
        "threads",
        f"{count} ({source})",
        True,
        "more are slower for the course's small models; bits are promised for one thread count",
    )


def _memory() -> Finding:
    free = psutil.virtual_memory().available / 1e9
    return Finding("free memory", f"{free:.1f} GB", free > 2, "a lab needs about 2 GB, grading 2 GB for each job")


def peak_memory() -> float:
    """The most memory this process has held, in megabytes; 0 where the system does not say (Windows)."""
    try:
        import resource
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3  # bytes there, kilobytes elsewhere


def _package(name: str, use: str) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name), True, use)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "not installed", False, f"missing, so not possible: {use}. `make setup` installs it")


def _sandbox() -> Finding:
    from autograder.sandbox import sandbox_problem

    problem = sandbox_problem()
    if not problem:
        return Finding("sandbox", "bubblewrap works", True, "submissions that nobody trusts can be graded")
    return Finding("sandbox", "none", False, f"{problem}. Untrusted work is refused; honest work can be graded with --no-sandbox")


def chromium() -> str | None:
    """The browser of the browser tests, if the machine has one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _browser() -> Finding:
    found = chromium()
    return Finding(
        "browser", found or "none", True, "" if found else "only the browser tests need Chromium; they are left out without it"
    )


def _edition(root: Path) -> Finding:
    full = (root / "solutions").is_dir()
    return Finding(
        "edition",
        "instructor's" if full else "student's",
        True,
        "with solutions and hidden checks" if full else "visible checks only",
    )
