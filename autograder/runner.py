"""One submission: run it where it can do no harm, and bring back its answers as data."""

import functools
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder import sandbox, seal
from autograder.inside.run_notebook import KERNEL_DIED
from autograder.plan import Plan, read_answers
from autograder.rebase import Rebased

CALL_SECONDS = 6  # of processor time, so that a busy machine costs nobody a point
FUNCTION_SECONDS = 20  # of the clock, for all calls of one function
CELL_SECONDS = 30  # for a cell of the student's: what must be trained for a grade trains in 5 s, students are told 15, and a busy machine gets the rest
GIVEN_SECONDS = 30  # for the notebook's own cells: the first imports torch, which must not be interrupted on a busy machine
PARAMETERS = {
    "SEED": 0,
    "DEVICE": "cpu",
    "FAST": True,
}  # the seed that the solution is proven with; the secret one draws the inputs


@dataclass(frozen=True)
class Outcome:
    """answers: one per call of the plan, a value or a StudentError. status: ok, or why some or all answers are missing."""

    answers: list[Any]
    status: str
    seconds: float
    log: str


def run(rebased: Rebased, plan: Plan, *, sealed: bool, isolated: bool, limits: sandbox.Limits) -> Outcome:
    """Raises NoSandbox where the machine can't hold it, never because of what the submission did."""
    with tempfile.TemporaryDirectory(prefix=f"grade-{os.getpid()}-") as scratch:
        folder = Path(scratch)
        code, inputs, results, home = (folder / name for name in ("site", "in", "results", "home"))
        for made in (inputs, results, home):
            made.mkdir()
        seal.write_site(code, plan.level, sealed=sealed)
        plan.write(inputs, call_seconds=CALL_SECONDS, function_seconds=FUNCTION_SECONDS)
        outside = {"site": code, "in": inputs, "out": home / "out"}
        inside = {name: f"/{name}" if isolated else str(path) for name, path in outside.items()}
        if not isolated:
            outside["out"].mkdir()
        # Under another name, so that a submission's own `export` stays what it is.
        last = f"from autograder.inside.export import export as hand_over\n\nhand_over(globals(), {inside['in']!r}, {inside['out']!r})"
        (inputs / "run.ipynb").write_text(rebased.notebook(last))
        settings = {
            "notebook": f"{inside['in']}/run.ipynb",
            "outputs": inside["out"],
            "parameters": PARAMETERS,
            "student_seconds": CELL_SECONDS,
            "given_seconds": GIVEN_SECONDS,
            "limits": limits.resource_limits(isolated),
        }
        (inputs / "settings.json").write_text(json.dumps(settings))
        for path in (inputs, *inputs.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        finished = sandbox.run(
            "autograder.inside.run_notebook",
            [f"{inside['in']}/settings.json"],
            folders={"/site": code, "/in": inputs},
            environment=_environment(inside["site"], "/tmp" if isolated else str(home)),
            limits=limits,
            results=results,
            names=[f"{number}.safetensors" for number in range(len(plan.calls))] + ["done"],
            scratch=home,
            isolated=isolated,
            final="done",
        )
        if not finished.started:
            raise sandbox.NoSandbox(f"the sandbox did not start: {finished.log.strip() or f'exit status {finished.returncode}'}")
        status = _status(finished, (results / "done").exists(), limits)
        missing = "no answer came back: the process that called it died" if status == "ok" else f"no answer came back ({status})"
        for name in finished.refused:  # said in the reader's own words: a folder is no plain file of reasonable size
            (results / name).mkdir(exist_ok=True)
        answers = read_answers(results, len(plan.calls), missing)
    peak = f"peak memory {finished.peak_mib} MiB\n" if finished.peak_mib is not None else ""
    return Outcome(answers, status, finished.seconds, peak + finished.log)


@functools.cache
def library_mib() -> int:
    """What a process that imports torch maps without using memory of its own: up to gigabytes in builds for a GPU."""
    import torch

    home = Path(torch.__file__).parent
    libraries = [*home.rglob("*.so*"), *(home.parent / "nvidia").rglob("*.so*")]
    return 512 + sum(path.stat().st_size for path in libraries if not path.is_symlink()) // (1 << 20)


def _status(finished: sandbox.Finished, done: bool, limits: sandbox.Limits) -> str:
    if done:  # can be forged, and gains nothing: it only chooses words
        return "ok"
    if finished.timed_out:
        return f"wall-clock limit of {limits.wall_seconds:g} s"
    if finished.out_of_memory:
        return f"memory limit of {limits.memory_mib} MiB"
    return "kernel died" if finished.returncode == KERNEL_DIED else "stopped before its answers were collected"


def _environment(site: str, home: str) -> dict[str, str]:
    return {
        "PYTHONPATH": site, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "HOME": home,
        "IPYTHONDIR": f"{home}/ipython", "JUPYTER_RUNTIME_DIR": f"{home}/runtime", "JUPYTER_CONFIG_DIR": f"{home}/jupyter",
        "MPLCONFIGDIR": f"{home}/matplotlib", "MPLBACKEND": "Agg", "XDG_CACHE_HOME": f"{home}/cache",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COURSE_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PIP_NO_INDEX": "1", "USER": "grader",
        "JUPYTER_PLATFORM_DIRS": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **{name: os.environ[name] for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if name in os.environ},
    }  # fmt: skip
