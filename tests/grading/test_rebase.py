"""Only answers and added code cells survive, whatever else a submission holds."""

import copy
import json
import os

import pytest
from fake import PRISTINE, RIGHT, STUB, WRONG, code, notebook, save, text, wrap

from autograder import rebase


def rebased(submission, tmp_path):
    return rebase.rebase(PRISTINE, rebase.read_submission(save(tmp_path, submission)))


def sources(result):
    return [cell["source"] for cell in result.cells]


def refusal(content, tmp_path):
    with pytest.raises(rebase.BadSubmission) as caught:
        rebase.read_submission(save(tmp_path, content))
    return str(caught.value)


def test_answers_enter_and_solutions_checks_and_experiments_do_not(tmp_path):
    result = rebased(notebook(RIGHT), tmp_path)
    assert sources(result) == [
        "SEED = 1\nFAST = False",
        PRISTINE["cells"][2]["source"],
        RIGHT["log_softmax"],
        RIGHT["masked_mean"],
        "curve = [1.0, 2.0]",
    ]
    assert result.sources == [RIGHT["log_softmax"], RIGHT["masked_mean"]] and result.changed == () and result.extras == ()


def test_an_empty_submission_leaves_nothing_of_the_solution(tmp_path):
    result = rebased(wrap([]), tmp_path)
    assert result.sources == [] and "a solution reached the sandbox" not in result.notebook("pass")


def test_edited_check_cells_and_stripped_metadata(tmp_path):
    cells = notebook(RIGHT)["cells"]
    cells[4]["source"] = "print('5 of 5 points')"
    cells[4]["metadata"]["nbgrader"]["points"] = 500
    result = rebased(wrap(cells), tmp_path)
    assert result.changed == ("check_log_softmax",) and "5 of 5" not in result.notebook("pass")
    for cell in cells:
        cell["metadata"] = {}
    result = rebased(wrap(cells), tmp_path)  # the answers are then cells that the student added
    assert RIGHT["log_softmax"] in result.extras and RIGHT["masked_mean"] in result.extras


def test_metadata_outputs_and_kernel_name_do_not_survive(tmp_path):
    submission = notebook(RIGHT)
    submission["metadata"] = {
        "kernelspec": {"name": "evil", "display_name": "evil"},
        "widgets": {"x": "evil"},
        "papermill": {"parameters": "evil"},
    }
    for cell in submission["cells"]:
        cell["metadata"]["evil"] = "evil"
        cell["metadata"].setdefault("tags", []).append("evil")
        cell["outputs"] = [{"output_type": "display_data", "data": {"text/html": "<script>evil</script>"}, "metadata": {}}]
        cell["id"] = "evil" + cell["id"]
    assert "evil" not in rebased(submission, tmp_path).notebook("pass")


def test_flipped_flags_change_nothing(tmp_path):
    submission = notebook(WRONG)
    for cell in submission["cells"]:
        role = cell["metadata"].get("nbgrader", {})
        if role:
            role["solution"], role["grade"], role["locked"] = not role["solution"], not role["grade"], not role["locked"]
    assert rebased(submission, tmp_path).sources == [WRONG["log_softmax"], WRONG["masked_mean"]]


def test_copied_and_split_cells(tmp_path):
    cells = notebook(RIGHT)["cells"]
    for position in (3, 8):  # an untouched copy before and after an answer
        extra = copy.deepcopy(notebook(RIGHT)["cells"][3])
        extra["source"] = STUB["log_softmax"]
        cells.insert(position, extra)
    assert rebased(wrap(cells), tmp_path).answers["log_softmax"].count(STUB["log_softmax"]) == 2
    assert rebased(wrap(cells), tmp_path).sources == [RIGHT["log_softmax"], RIGHT["masked_mean"]]
    cells = notebook(RIGHT)["cells"]
    second = copy.deepcopy(cells[3])
    cells[3]["source"], second["source"] = "shift = 1", RIGHT["log_softmax"]
    cells.insert(4, second)
    assert rebased(wrap(cells), tmp_path).sources[:2] == ["shift = 1", RIGHT["log_softmax"]]
    cells = notebook(RIGHT)["cells"]
    cells.append(copy.deepcopy(cells[4]))  # a copied check cell, and a copied setup cell
    cells.append(copy.deepcopy(cells[2]))
    assert rebased(wrap(cells), tmp_path).sources == [RIGHT["log_softmax"], RIGHT["masked_mean"]]


def test_moved_cells_and_helpers_keep_what_they_follow(tmp_path):
    cells = notebook(RIGHT, ["helper = 1"], after=["late = 1"], top=["early = 1"])["cells"]
    result = sources(rebased(wrap(cells), tmp_path))
    assert result[0] == "early = 1" and result[-1] == "late = 1"
    assert result.index("helper = 1") < result.index(RIGHT["log_softmax"])
    moved = wrap(cells[:5] + cells[6:] + [cells[5]])
    assert RIGHT["masked_mean"] in rebased(moved, tmp_path).sources


def test_experiments_and_injected_parameters_of_a_submission_never_run(tmp_path):
    cells = notebook(RIGHT)["cells"]
    cells[5]["source"] = "train_for_an_hour()"
    cells.append(code("FAST = False", tags=["injected-parameters"]))
    assert rebased(wrap(cells), tmp_path).sources == [RIGHT["log_softmax"], RIGHT["masked_mean"]]


def test_old_formats_and_odd_forms(tmp_path):
    submission = notebook(RIGHT)
    submission["nbformat_minor"] = 4
    submission.pop("metadata")
    for cell in submission["cells"]:
        cell.pop("id")
        cell["source"] = cell["source"].splitlines(keepends=True)
    submission["cells"] += [
        None,
        7,
        [],
        {},
        {"cell_type": "code", "source": 5},
        {"cell_type": "code", "metadata": [], "source": ["a", 1]},
    ]
    submission["cells"].append(
        {"cell_type": "code", "metadata": {"nbgrader": {"grade_id": ["log_softmax"]}, "tags": "x"}, "source": "\ud800"}
    )
    result = rebased(submission, tmp_path)
    assert result.sources[:2] == [RIGHT["log_softmax"], RIGHT["masked_mean"]]
    json.loads(result.notebook("pass").encode("utf-8"))
    assert rebase.read_submission(save(tmp_path, "\ufeff" + json.dumps(notebook(RIGHT))))


def test_what_is_no_notebook_says_so(tmp_path):
    assert "JSONDecodeError" in refusal('{"cells": [', tmp_path)
    assert "not a notebook" in refusal("", tmp_path)
    assert "no list of cells" in refusal("[]", tmp_path) and "no list of cells" in refusal('{"cells": 3}', tmp_path)
    assert "RecursionError" in refusal("[" * 200_000 + "]" * 200_000, tmp_path)
    assert "not a notebook" in refusal('{"cells": ' + "1" * 10_000 + "}", tmp_path)
    assert "too many cells" in refusal(wrap([{} for _ in range(rebase.MAX_CELLS + 1)]), tmp_path)
    assert "too much text" in refusal(wrap([code("#" * (rebase.MAX_SOURCE_CHARACTERS + 1))]), tmp_path)
    (tmp_path / "bytes.ipynb").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(rebase.BadSubmission, match="UnicodeDecodeError"):
        rebase.read_submission(tmp_path / "bytes.ipynb")


def test_what_is_no_plain_file_is_never_opened_for_reading(tmp_path):
    with pytest.raises(rebase.BadSubmission, match="no such notebook"):
        rebase.read_submission(tmp_path / "renamed.ipynb")
    os.symlink(save(tmp_path, notebook(RIGHT), "other.ipynb"), tmp_path / "link.ipynb")
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "folder.ipynb").mkdir()
    with open(tmp_path / "huge.ipynb", "wb") as file:
        file.truncate(rebase.MAX_NOTEBOOK_BYTES + 1)
    for name in ("link", "pipe", "folder"):
        with pytest.raises(rebase.BadSubmission, match="not a plain file"):
            rebase.read_submission(tmp_path / f"{name}.ipynb")
    with pytest.raises(rebase.BadSubmission, match="clear its outputs"):
        rebase.read_submission(tmp_path / "huge.ipynb")


def test_markdown_in_the_place_of_an_answer_does_not_run(tmp_path):
    submission = notebook(RIGHT)
    submission["cells"].append(text("<script>alert(1)</script>"))
    assert "script" not in rebased(submission, tmp_path).notebook("pass")
