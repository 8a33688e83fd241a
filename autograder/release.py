"""The students' edition as one zip: package, levels and visible checks; no solution, no hidden case, no mutant.

Known mistakes travel as hashes of what they answer on the visible checks, so that `check` can still name them.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

from autograder.judge import PUBLIC_SEED, hidden_count, mistakes
from autograder.levels import load, numbers
from autograder.seal import ANSWERS

ROOT = Path(__file__).resolve().parents[1]
TOP = ("pyproject.toml", "requirements.lock", "Makefile", "README.md", "LICENSE", "CHANGELOG.md")
KEYED = ("lore", "claims_table", "audit_report")  # tables whose key is the grader's
CHECKS = ("__init__", "local", "framework", "draw", "judge", "levels", "bans", "progress", "sandbox")


def write_release(target: Path) -> int:
    """Write the zip; returns the number of files in it. The same checkout gives the same bytes."""
    files = {name: (ROOT / name).read_bytes() for name in TOP if (ROOT / name).exists()}
    files |= _tree("docs", "*.png") | _tree("docs", "*.md")  # the README links them
    files |= (
        _tree("course", "*.py")
        | _tree("course", "*.toml")
        | _tree("levels", "*")
        | _tree("autograder/inside", "*.py")
        | _tree("autograder/checks", "*.py")
    )
    files |= _tree("autograder/checks", "*.json") | _tree("course", "*.json")  # recorded runs that visible checks and labs read
    files = {name: data for name, data in files.items() if Path(name).name not in ANSWERS}
    files |= {f"autograder/{name}.py": (ROOT / "autograder" / f"{name}.py").read_bytes() for name in CHECKS}
    files["autograder/invariants.toml"] = (ROOT / "autograder" / "invariants.toml").read_bytes()
    files["autograder/known_mistakes.json"] = (json.dumps(known_mistakes(), indent=1, sort_keys=True) + "\n").encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(f"course-student/{name}", (2026, 1, 1, 0, 0, 0)), files[name])
    return len(files)


def known_mistakes() -> dict[str, Any]:
    """Check name -> {signature of the answers: message}, and under "hidden" how many more checks each function has.

    KEYED functions have none: a mistake of theirs is the right answer with something changed, and its hash would confirm guesses at the rest.
    """
    table: dict[str, Any] = {"hidden": {}}
    for number in numbers():
        level = load(number)
        for exercise in level.exercises:
            table["hidden"][exercise.function] = hidden_count(level, exercise.function)
        for check in level.checks:
            if check.hidden or check.home is not None or check.function in KEYED:
                continue
            table[check.name] = mistakes(level, check, PUBLIC_SEED)
    return table


def _tree(folder: str, pattern: str) -> dict[str, bytes]:
    paths = (
        p
        for p in (ROOT / folder).rglob(pattern)
        if p.is_file() and "__pycache__" not in p.parts and ".ipynb_checkpoints" not in p.parts
    )
    return {str(p.relative_to(ROOT)): p.read_bytes() for p in paths}
