"""start.ipynb reads where a student stands from the notebooks on disk, whatever state those are in."""

import json

import pytest

from autograder.levels import load, numbers
from autograder.local import MIME
from autograder.progress import standings


def _notebook(results):
    outputs = [{"data": {MIME: {"function": f, "passed": p, "checks": n}}} for f, p, n in results]
    return json.dumps({"cells": [{"cell_type": "code", "outputs": outputs}, {"cell_type": "markdown"}]})


def test_states_are_read_from_saved_outputs(tmp_path):
    level = load(numbers()[0])
    first, second, third = (e.function for e in level.exercises[:3])
    folder = tmp_path / level.name
    folder.mkdir()
    (folder / "lab.ipynb").write_text(_notebook([(first, 3, 3), (second, 1, 3)]))
    state = {row.function: row.state for row in standings(tmp_path)}
    assert state[first] == "right" and state[second] == "not right yet" and state[third] == "not run yet"
    assert {row.state for row in standings(tmp_path) if row.level != level.number} <= {"notebook not found"}


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"cells": 3}', '{"cells": [7]}'])
def test_a_broken_notebook_counts_as_not_found(tmp_path, broken):
    folder = tmp_path / "level0"
    folder.mkdir()
    (folder / "lab.ipynb").write_text(broken)
    assert {row.state for row in standings(tmp_path) if row.level == 0} == {"notebook not found"}
