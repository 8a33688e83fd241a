"""Where a student stands, read from the notebooks on disk: the check cells' own outputs, as they were last saved."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder.judge import full_points
from autograder.levels import load, numbers
from autograder.local import MIME


@dataclass(frozen=True)
class Standing:
    level: int
    function: str
    title: str
    points: float
    state: str  # "right", "not right yet", "not run yet", or "notebook not found"


def standings(work: Path) -> list[Standing]:
    """work is the folder that holds level0/, level1/, ... A notebook that cannot be read counts as not found, and says so."""
    rows = []
    for number in numbers():
        level = load(number)
        results = _saved_results(Path(work, level.name, "lab.ipynb"))
        for exercise in level.exercises:
            state = "notebook not found" if results is None else _state(results.get(exercise.function))
            rows.append(Standing(number, exercise.function, exercise.title, full_points(level, exercise.function), state))
    return rows


def _state(result: dict[str, Any] | None) -> str:
    if result is None:
        return "not run yet"
    return "right" if result["passed"] == result["checks"] else "not right yet"


def _saved_results(path: Path) -> dict[str, dict[str, Any]] | None:
    try:
        cells = json.loads(path.read_text("utf-8"))["cells"]
        found = {}
        for cell in cells:
            for output in cell.get("outputs", []):
                data = output.get("data", {}).get(MIME)
                if data is not None:
                    data = json.loads("".join(data)) if isinstance(data, (str, list)) else data
                    found[data["function"]] = data
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
