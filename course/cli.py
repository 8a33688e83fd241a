"""The commands. Each says what it did and where the result lies; what it needs and does not find is named with the remedy."""

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Optional

import typer

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Agentic reinforcement learning for language models: the course's commands."
)
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    app()


@app.command()
def doctor() -> None:
    """What was found on this machine, and what each lack means."""
    from course.doctor import findings
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "found", "what it means", title="course doctor")
    for row in findings(ROOT):
        table.add_row(row.what, f"[green]{row.found}[/]" if row.good else f"[yellow]{row.found}[/]", row.meaning)
    Console().print(table)


@app.command()
def lab(no_open: Annotated[bool, typer.Option("--no-open", help="only copy, do not start JupyterLab")] = False) -> None:
    """Copy levels/ to work/ (never overwriting what is there) and open JupyterLab there."""
    import os
    import shutil

    work, copied = ROOT / "work", 0
    for source in sorted((ROOT / "levels").rglob("*")):
        target = work / source.relative_to(ROOT / "levels")
        if source.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            copied += 1
    print(f"{copied} new files in {work}; files that were already there are untouched")
    if not no_open:
        jupyter = Path(sys.executable).parent / "jupyter"
        os.chdir(work)
        # `course doctor` in a JupyterLab terminal, or `!course doctor` in a cell, finds this environment's command
        os.environ["PATH"] = os.pathsep.join(filter(None, (str(jupyter.parent), os.environ.get("PATH"))))
        os.execv(
            str(jupyter),
            [str(jupyter), "lab", "--LabApp.default_url=/lab/tree/start/start.ipynb"]
            + (["--allow-root"] if getattr(os, "geteuid", lambda: 1)() == 0 else []),
        )


@app.command()
def build(check: Annotated[bool, typer.Option("--check", help="change nothing; exit 1 if something is stale")] = False) -> None:
    """Build solutions/*.ipynb and levels/ from the hand-written labs."""
    _instructor()
    from autograder.build import build as write, differences

    if check:
        stale = differences()
        print("\n".join(stale) or "solutions/ and levels/ are up to date")
        raise typer.Exit(bool(stale))
    for path in write():
        print(path.relative_to(ROOT))


@app.command()
def run(
    level: Annotated[str, typer.Argument(help="a level's number, start, or all, which is every lab and case")] = "all",
    fast: Annotated[bool, typer.Option(help="skip experiments, as the grader does")] = False,
    record: Annotated[bool, typer.Option(help="keep time and memory in solutions/<level>/measured.json")] = False,
    output: Annotated[Optional[Path], typer.Option(help="where to keep the executed notebooks")] = None,
    jobs: Annotated[Optional[int], typer.Option(min=1, help="with all: notebooks at a time; as many as fit if absent")] = None,
) -> None:
    """Execute the solution notebooks from top to bottom: all of them, or those of one level, as in `course run 1` or `course run start`."""
    _instructor()
    from autograder.execute import NotebookFailed, execute_folder, jobs_that_fit

    if record and fast:
        _stop("--record goes without --fast: the times of a lab are those with its experiments")
    if level == "all":
        if record:
            _stop("--record goes with one level: beside others a notebook takes longer than it does alone")
        raise typer.Exit(_run_all(jobs or jobs_that_fit(), fast, output))
    if jobs is not None:
        _stop(f"--jobs goes with all: the notebooks of one level run one after another; got {jobs} for {level}")
    try:
        rows = execute_folder(_folder(level), fast=fast, record=record, output=output)
    except NotebookFailed as failure:
        print(failure, file=sys.stderr)
        raise typer.Exit(1) from None
    for row in rows:
        print(
            f"{row['notebook']}: {row['seconds']:.0f} s, {row['megabytes']:.0f} MB"
            + (f", kept in {row['output']}" if output else "")
        )


@app.command()
def grade(
    level: str,
    submitted: Annotated[Path, typer.Option(help="a folder with <student>/<level>/lab.ipynb")] = Path("grading/submitted"),
    jobs: Annotated[int, typer.Option(min=1, help="submissions graded at the same time")] = 1,
    no_sandbox: Annotated[bool, typer.Option("--no-sandbox", help="grade without isolation: only work that you trust")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Grade every submission of a level; the exit status is 0 when the batch ended, whatever the submissions did."""
    _instructor()
    from autograder.batch import grade_class
    from autograder.report import print_table
    from autograder.sandbox import NoSandbox

    number = _number(level)
    if not submitted.is_dir():
        _stop(f"--submitted must be a folder with <student>/level{number}/lab.ipynb; {submitted} is not one")
    if not any(submitted.glob(f"*/level{number}")):
        _stop(f"no submission found: --submitted must hold <student>/level{number}/lab.ipynb; {submitted} holds none")
    try:
        reports = grade_class(number, submitted, jobs=jobs, sandbox=not no_sandbox, state=ROOT / "grading", told=_counter())
    except NoSandbox as error:
        _stop(f"{error}. Nothing was graded. For work that you trust there is --no-sandbox")
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(json.dumps([json.loads(report.to_json()) for report in reports])) if as_json else print_table(reports)


@app.command()
def report(level: str, output: Annotated[Path, typer.Option()] = Path("grading/report.html")) -> None:
    """The class report (HTML) from the last grading."""
    _instructor()
    from autograder.batch import stored_reports
    from autograder.report import write_html

    reports = stored_reports(_number(level), ROOT / "grading")
    if not reports:
        _stop(f"nothing of level {level} has been graded yet: run `course grade {level}` first")
    output.parent.mkdir(parents=True, exist_ok=True)
    write_html(reports, output)
    print(f"class report: {output.resolve()}")


@app.command()
def release(output: Annotated[Path, typer.Option()] = Path("dist/course-student.zip")) -> None:
    """The students' zip: package, levels, visible checks, hashed outputs of known mistakes; no solutions, no hidden cases."""
    _instructor()
    from autograder.release import write_release

    print(f"{write_release(output)} files in {output.resolve()}")


@app.command()
def cards(output: Annotated[Path, typer.Option()] = Path("dist/cards.html")) -> None:
    """The evidence cards as one HTML page: what is known of each system, with its place, and what the course builds of it."""
    from course.evidence.cards import STATUSES, load_cards, page

    found = load_cards()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page(found), "utf-8")
    for status in STATUSES:
        names = [card.name for card in found if card.status == status]
        print(f"{len(names)} {status}: {'; '.join(names)}")
    print(f"{len(found)} cards: {output.resolve()}")


@app.command("verify-checks")
def verify_checks(
    level: Annotated[Optional[list[int]], typer.Option(help="repeatable; all levels if absent")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Prove the checks: every known mistake caught, every right alternative accepted, every stub at 0, every invariant covered."""
    _instructor()
    from autograder.build import solution_functions
    from autograder.levels import numbers
    from autograder.report import print_matrix
    from autograder.verify import verify

    unknown = set(level or []) - set(numbers())
    if unknown:
        _stop(f"--level must be among {numbers()}; got {sorted(unknown)}")
    matrix = verify(level or numbers(), solution_functions)
    print(json.dumps(matrix.as_json(), indent=1)) if as_json else print_matrix(matrix)
    raise typer.Exit(not matrix.ok)


@app.command()
def evidence(
    name: Annotated[str, typer.Argument(help="a level's number or a case's name")],
    seeds: Annotated[Optional[int], typer.Option(min=1, help="10 for a level and, for a case, as many as its notebook shows, if absent")] = None,
) -> None:
    """Measure what a notebook has no time for: many seeds, a named recipe, kept in solutions/levelN/evidence.json or case_NAME.json."""
    _instructor()
    from course.evidence.measure import recipe_of, write_evidence

    try:
        recipe_of(name)
    except ValueError as error:
        _stop(str(error))
    print(f"kept in {write_evidence(name, seeds, ROOT / 'solutions')}")


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="cluster, episodes, sampler, step or store")],
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Ratios against a named alternative, measured side by side in this process; below 1 is better. `course bench sampler`."""
    import importlib
    import importlib.util

    if not name.isidentifier() or importlib.util.find_spec(f"course.bench.{name}") is None:
        _stop(f"there is no bench named {name!r}; there are: cluster, episodes, sampler, step, store")
    try:
        rows = importlib.import_module(f"course.bench.{name}").rows()
    except ImportError as error:
        _stop(str(error))
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("case", "ours", "other", "other is", "ratio", title=f"course bench {name}")
    for row in rows:
        table.add_row(row["case"], f"{row['ours']:.3g}", f"{row['other']:.3g}", row["other_name"], f"{row['ratio']:.2f}")
    Console().print(table)


@app.command()
def demo(folder: Annotated[Path, typer.Option(help="where the class is built and graded; made anew")] = Path("demo")) -> None:
    """Grade a bundled class: right, partial, wrong, blank, crashing, hanging and hostile submissions."""
    _instructor()
    from autograder.demo import FolderInUse, demo as grade_demo

    try:
        status = grade_demo(folder)
    except FolderInUse as error:
        _stop(str(error))
    raise typer.Exit(status)


def _run_all(jobs: int, fast: bool, output: Path | None) -> int:
    """The whole course; a line for each notebook as it ends, a table, and dist/run.json. 1 if one failed."""
    import time

    from autograder.execute import execute_course, write_outcomes
    from rich.console import Console
    from rich.table import Table

    started, report = time.monotonic(), ROOT / "dist" / "run.json"
    outcomes = execute_course(
        jobs=jobs,
        fast=fast,
        output=output,
        told=lambda o: print(f"{o.notebook}: {o.problem or f'{o.seconds:.0f} s'}", flush=True),
    )
    seconds = time.monotonic() - started
    write_outcomes(outcomes, seconds, report)
    table = Table(
        "notebook", "seconds", "peak MB", "", title=f"{len(outcomes)} notebooks, {jobs} at a time: {seconds / 60:.1f} minutes"
    )
    for o in outcomes:
        table.add_row(
            o.notebook, f"{o.seconds:.0f}", f"{o.megabytes:.0f}" if o.megabytes else "", "[red]failed[/]" if o.problem else ""
        )
    Console().print(table)
    print(f"report: {report}" + (f"; executed notebooks: {output.resolve()}" if output else ""))
    return int(any(o.problem for o in outcomes))


def _counter() -> Callable[[object], None]:
    """Says on a terminal how many submissions are graded: a large class takes a while."""
    done = itertools.count(1)
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda _: print(f"\r{next(done)} graded ", end="", file=sys.stderr, flush=True)


def _instructor() -> None:
    if not (ROOT / "solutions").is_dir():
        _stop(
            "this is the students' edition: it has no solutions and no hidden checks; this command needs the instructor's checkout"
        )


def _folder(level: str) -> str:
    name = f"level{level}" if level.isdigit() else level
    known = sorted(path.name for path in (ROOT / "solutions").iterdir() if path.is_dir())
    if name not in known:
        _stop(f"LEVEL must be one of {known} (or its number); got {level!r}")
    return name


def _number(level: str) -> int:
    from autograder.levels import numbers

    number = level.removeprefix("level")
    if number not in map(str, numbers()):
        _stop(f"LEVEL must be one of {numbers()}; got {level!r}")
    return int(number)


def _stop(message: str) -> None:
    print(message, file=sys.stderr)
    raise typer.Exit(2)
