"""nbgrader's side of a class: the secret, a configuration for any folder of submissions, the database, and calls into nbgrader.

nbgrader is imported once per process and driven through its own API, because starting its command for each student costs seconds.
"""

import hashlib
import logging
import os
import secrets
import shutil
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

NOTEBOOK = "lab"  # the one notebook of a level that is graded

ROOT = Path(__file__).resolve().parents[1]
_generating = threading.Lock()


def class_secret(state: Path) -> bytes:
    """The key from which all secret seeds of a class are derived. Made once, for its owner only; losing it changes regrades."""
    path = state / "secret"
    state.mkdir(parents=True, exist_ok=True)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    secret = path.read_text().strip().encode()
    if len(secret) < 32:
        raise ValueError(
            f"{path} must hold the class secret, at least 32 characters; it has {len(secret)}. Restore it from a backup."
        )
    return secret


def load_nbgrader() -> None:
    """Import nbgrader. A grammar library that its JSON validator may use, but does not need, takes seconds to import: not here.

    nbgrader starts `alembic` by name to make a database; it lies beside this Python, which need not be on the PATH.
    """
    if shutil.which("alembic") is None:
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", "")])
    if "nbformat" not in sys.modules:
        sys.modules.setdefault("rfc3987_syntax", None)
    import nbgrader.apps.api  # noqa: F401

    warnings.filterwarnings("ignore", module=r"nbgrader\.api")  # SQLAlchemy's remarks on nbgrader's own relations


def configuration(state: Path, submitted: Path, *, sandbox: bool) -> Any:
    """nbgrader_config.py, pointed at this state and these submissions: one source for commands, formgrader and `course grade`."""
    load_nbgrader()
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", str(ROOT)).load_config()
    state, submitted = state.resolve(), submitted.resolve()
    for name in ("autograded", "feedback", "solution", "source_with_tests"):
        config.CourseDirectory[f"{name}_directory"] = str(state / name)
    config.CourseDirectory.submitted_directory = str(submitted)
    config.CourseDirectory.db_url = f"sqlite:///{state / 'gradebook.db'}"
    config.TrustedExecute.state, config.TrustedExecute.sandbox = str(state), sandbox
    return config


def open_api(config: Any) -> Any:
    """NbGraderAPI with this configuration, saying only what went wrong."""
    load_nbgrader()
    from nbgrader.apps.api import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    state = Path(config.TrustedExecute.state)
    state.mkdir(parents=True, exist_ok=True)
    log = logging.getLogger("course.nbgrader")
    log.propagate = False
    log.handlers = log.handlers or [logging.NullHandler()]
    config.NbGraderAPI.log_level = logging.WARNING
    course = CourseDirectory(config=config, log=log)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return NbGraderAPI(course, config=config, log=log)


def ensure_assignment(course: Any, level: str) -> None:
    """nbgrader's database knows the level as it is in the source folder now; the release folder is not touched."""
    load_nbgrader()
    from nbgrader.converters import GenerateAssignment
    from nbgrader.converters.base import NbGraderException
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import Config

    source = Path(course.format_path(course.source_directory, ".", level))
    notebook = source / f"{NOTEBOOK}.ipynb"
    if not notebook.exists():
        raise FileNotFoundError(f"{source} holds no {notebook.name}: run `course build` first")
    digest = hashlib.sha256(notebook.read_bytes()).hexdigest()
    database = Path(course.db_url.removeprefix("sqlite:///"))
    known = database.with_name("assignments") / f"{level}.sha256"
    with _generating:
        if database.exists() and known.exists() and known.read_text() == digest:
            return
        database.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            config = Config()
            config.CourseDirectory.course_id, config.CourseDirectory.db_url = course.course_id, course.db_url
            config.CourseDirectory.root = course.root
            config.CourseDirectory.source_directory = course.source_directory
            config.CourseDirectory.release_directory = scratch
            config.CourseDirectory.assignment_id = level
            config.CourseDirectory.notebook_id = NOTEBOOK  # case notebooks are read, not graded
            config.CourseDirectory.ignore = course.ignore
            try:
                GenerateAssignment(coursedir=CourseDirectory(config=config), config=config, log=course.log).start()
            except NbGraderException as error:
                raise RuntimeError(
                    f"nbgrader could not enter {level} into {database}. If graded cells were added or removed since submissions "
                    f"were graded, back the file up and run: nbgrader db assignment remove {level} --force"
                ) from error
        known.parent.mkdir(exist_ok=True)
        known.write_text(digest)


def record(api: Any, level: str, student: str) -> str:
    """nbgrader's own autograde for one student, which finds the verdict already there. Empty, or what went wrong."""
    outcome = api.autograde(level, student, force=True)
    return "" if outcome["success"] else _last_line(outcome)


def record_nothing(api: Any, level: str, student: str) -> None:
    """Zero for a student without a notebook: nbgrader itself would leave such a submission without a score."""
    ensure_assignment(api.coursedir, level)
    with api.gradebook as gradebook:
        gradebook.update_or_create_student(student)
        submission = gradebook.update_or_create_submission(level, student)
        for notebook in submission.notebooks:
            for grade in notebook.grades:
                grade.auto_score, grade.needs_manual_grade = 0, False
        gradebook.db.commit()


def feedback(state: Path, submitted: Path, level: str, student: str | None = None) -> str:
    """nbgrader's feedback pages for one student or all of them. Empty, or what went wrong."""
    api = open_api(configuration(state, submitted, sandbox=True))
    outcome = api.generate_feedback(level, student, force=True)
    return "" if outcome["success"] else _last_line(outcome)


def _last_line(outcome: dict[str, Any]) -> str:
    lines = [line for line in (outcome.get("log", "") + outcome.get("error", "")).splitlines() if line.strip()]
    told = [line.split("] ", 1)[-1] for line in lines if "GradingRefused" in line]
    return (told or lines or ["nbgrader gave no reason"])[-1].strip()[:300]
