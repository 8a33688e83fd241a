"""What is written down about a submission, and that honest work never loses a point to its form."""

import copy
import importlib
import json
import sys

import pytest
import torch
from fake import FULL, LEVEL, NUMBER, RIGHT, SECRET, STUB, WRONG, code, notebook, save, wrap

from autograder import bans, grade, sandbox
from autograder.framework import CheckFailed, expect
from autograder.grade import Report, grade_submission, secret_seed

# everything at once that people do to their notebooks and that says nothing about their answers
NOISE = [
    "import sys, warnings, logging\nprint('a warning', file=sys.stderr)\nwarnings.warn('another')\nlogging.error('and one more')",
    "from tqdm.auto import tqdm\nfor _ in tqdm(range(50)):\n    pass",
    "%matplotlib inline\n!echo a shell command",
    "display({'text/plain': 'x'}, raw=True)\nNone",
    # threads that no fork inherits
    "torch.set_num_threads(2)\nw = torch.randn(300, 300, requires_grad=True)\n(w @ w).sum().backward()",
    "check(helper_that_is_not_there)",
    "def scale(x):\n    return x * 1.0",
    "import ipywidgets\nipywidgets.interact(lambda x: x, x=3)",
]


def graded(folder, submission, student="ann", **more) -> Report:
    return grade_submission(save(folder / student, submission), NUMBER, student, secret=SECRET, **more)


def test_a_right_submission_in_an_untidy_notebook_gets_everything(tiny):
    answers = {
        **RIGHT,
        "log_softmax": "%%time\n"
        + RIGHT["log_softmax"].replace("z = logits", "import sys\n    print(1, file=sys.stderr)\n    z = scale(logits)"),
    }
    cells = notebook(answers, NOISE, after=["log_softmax(torch.zeros(3))"])["cells"]
    copied = copy.deepcopy(next(c for c in cells if c["source"] == answers["log_softmax"]))
    copied["source"] = STUB["log_softmax"]  # copied before it was written, and left standing
    cells.append(cells.pop(-4))  # a moved cell
    cells.append(copied)
    submission = wrap(cells)
    submission["metadata"], submission["nbformat_minor"] = {}, 4
    for cell in submission["cells"]:
        cell.pop("id", None)
    report = graded(tiny, submission)
    assert (report.status, report.points) == ("ok", FULL), report
    assert all(row.reason == "" for row in report.rows) and "uses get_ipython" not in report.flags


def test_answers_without_any_metadata_and_no_kernel_name_count(tiny):
    submission = notebook(RIGHT)
    submission["metadata"] = {"kernelspec": {"name": "no-such-kernel"}}
    for cell in submission["cells"]:
        cell["metadata"] = {}
    report = graded(tiny, submission)
    assert (report.status, report.points, report.max_points) == ("ok", FULL, FULL)


def test_a_report_says_what_was_wrong_and_survives_json(tiny):
    report = graded(tiny, notebook({**WRONG, "masked_mean": RIGHT["masked_mean"]}))
    assert report.points == 4 and report.max_points == FULL and report.by_invariant() == {
        "T.01": (0, 2), "T.02": (0, 2), "T.03": (0, 1), "T.04": (3, 3), "T.05": (1, 1)
    }  # fmt: skip
    first = report.rows[0]
    assert "expected" in first.reason and "the logarithm is missing" in first.reason and first.sentence == "The value is right"
    assert [row.check for row in report.rows if row.hidden] == ["extreme"]
    assert "first the function's value must be right" in report.rows[2].reason
    assert Report.from_json(report.to_json()) == report


def test_a_blank_submission_and_an_empty_notebook_say_that_nothing_was_answered(tiny):
    report = graded(tiny, wrap([]))
    assert (report.status, report.points) == ("nothing answered", 0)
    assert "log_softmax is not defined" in report.rows[0].reason
    report = graded(tiny, notebook(STUB), sandbox=False)
    assert (report.status, report.points, report.flags) == ("nothing answered", 0, (grade.UNISOLATED,))
    assert {row.reason for row in report.rows} == {"not implemented yet"}


def test_bad_submissions_are_reports_too(tiny):
    report = graded(tiny, '{"cells": [')
    assert (
        report.status == "bad submission: not a notebook (JSONDecodeError)" and report.points == 0 and report.max_points == FULL
    )
    assert all(report.status == row.reason for row in report.rows)
    assert grade_submission(tiny / "none.ipynb", NUMBER, "x", secret=SECRET).status == "bad submission: no such notebook"


def test_without_a_sandbox_untrusted_work_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(sandbox, "sandbox_problem", lambda: "bwrap not found")
    with pytest.raises(sandbox.NoSandbox, match="bwrap not found"):
        graded(tiny, notebook(RIGHT))
    report = graded(tiny, notebook(RIGHT), sandbox=False)
    assert report.points == FULL and report.flags == (grade.UNISOLATED,)


def test_the_seed_is_secret_and_the_same_at_every_regrade():
    seed, digest = secret_seed(SECRET, "ann", 0)
    assert secret_seed(SECRET, "ann", 0) == (seed, digest) and 0 <= seed < 2**31
    others = [secret_seed(SECRET, "bob", 0), secret_seed(SECRET, "ann", 1), secret_seed(b"other", "ann", 0)]
    assert all(other[0] != seed and other[1] != digest for other in others)
    assert str(seed) not in digest and len(digest) == 16
    assert secret_seed(SECRET, "s\udcff", 0)  # a folder name that is not UTF-8


def test_reasons_hold_no_control_characters():
    assert grade.printable("a\x1b[2Jb\nc\ud800d\u202ee") == "a\ufffd[2Jb\ufffdc\ufffdd\ufffde"
    assert grade.printable("a\nb", keep="\n") == "a\nb" and grade.printable("größer ≤ 1") == "größer ≤ 1"


@pytest.mark.parametrize(
    "cells",
    [
        ["def log_softmax(x):\n    return torch.log_softmax(x, -1)"],
        ["def log_softmax(x):\n    return x.log_softmax(-1)"],
        ["%%time\ndef log_softmax(x):\n    return x.log_softmax(-1)"],
        ["%matplotlib inline\ndef log_softmax(x):\n    return x.log_softmax(-1)"],
        ["%time log_softmax = torch.nn.LogSoftmax(dim=-1)"],
        ["files = !ls\nlog_softmax?\nlog_softmax = torch.nn.LogSoftmax(dim=-1)"],
        ["log_softmax = torch.nn.LogSoftmax(dim=-1)"],
        ["log_softmax = lambda x: x.log_softmax(-1)"],
        ["from functools import partial\nlog_softmax = partial(torch.log_softmax, dim=-1)"],
        ["from torch import log_softmax"],
        ["from torch import log_softmax as soft", "def log_softmax(x):\n    return soft(x, -1)"],
        ["soft = torch.log_softmax", "def log_softmax(x):\n    return soft(x, -1)"],
        ["def helper(x):\n    return x.log_softmax(-1)", "def log_softmax(x):\n    return helper(x)"],
        ["class Soft:\n    def __call__(self, x):\n        return x.log_softmax(-1)", "log_softmax = Soft()"],
        ["if True:\n    def log_softmax(x):\n        return x.log_softmax(-1)"],
        ["def log_softmax(x):\n    return getattr(torch, 'log_softmax')(x, -1)"],
        ["import course.prob as p\ndef log_softmax(x):\n    return p.log_softmax(x)"],
        ["from course.prob import log_softmax"],
        ["from course.prob import *\nfrom course.prob import log_softmax as a\nlog_softmax = a"],
    ],
)
def test_banned_calls_are_found_however_they_are_named(cells):
    assert bans.veto(LEVEL.exercise("log_softmax"), [grade._as_python(cell) for cell in cells])


@pytest.mark.parametrize(
    "cells",
    [
        [RIGHT["log_softmax"]],
        [
            "expected = torch.log_softmax(torch.zeros(3), -1)",
            "def log_softmax(x):\n    expected = x - x.exp().sum(-1, True).log()\n    return expected",
        ],
        ["def log_softmax(x):\n    return x.log_softmax(-1)", RIGHT["log_softmax"]],  # a first try that was replaced
        ["z = torch.nn.functional.cross_entropy(a, b)", RIGHT["log_softmax"]],
        ["-" * 100_000 + "1", RIGHT["log_softmax"]],
        ["x = " + "+".join(["1"] * 20_000), RIGHT["log_softmax"]],
        ["!ls\n" * 50_000, "?" * 100_000 + "x", " " * 100_000 + "%", RIGHT["log_softmax"]],
    ],
)
def test_honest_code_is_not_vetoed(cells):
    exercise = LEVEL.exercise("log_softmax")
    assert bans.veto(exercise, [grade._as_python(cell) for cell in cells]) == ""
    bans.copies_reference(exercise, LEVEL.reference("log_softmax"), cells)


def test_ways_around_the_syntax_tree_are_flagged(tiny):
    answers = {
        "log_softmax": "def log_softmax(x):\n    return eval('x.log_' + 'softmax(-1)')",
        "masked_mean": RIGHT["masked_mean"],
    }
    submission = notebook(answers)
    submission["cells"].append(code("check(log_softmax) or print('mine')", "log_softmax", kind="test"))
    submission["cells"].append(code("from autograder.inside.codec import Candidate\nfrom autograder.inside import drivers"))
    report = graded(tiny, submission)
    assert {"uses Candidate", "uses drivers"} <= set(report.flags)
    assert {"uses eval", "the check cell check_log_softmax was edited; the original was used"} <= set(report.flags)
    json.dumps(report.flags)


@pytest.mark.parametrize(
    "cells",
    [
        ["D = {}\nD.update(f=torch.log_softmax)\ndef log_softmax(x):\n    return D['f'](x, -1)"],
        ["for f in [torch.log_softmax]:\n    pass", "def log_softmax(x):\n    return f(x, -1)"],
        ["(f := torch.log_softmax)", "def log_softmax(x):\n    return f(x, -1)"],
        ["def start():\n    global f\n    f = torch.log_softmax\nstart()", "def log_softmax(x):\n    return f(x, -1)"],
        ["from course.prob import *", "g = log_softmax\ndef log_softmax(x):\n    return g(x)"],
        ["from torch.nn.functional import *", "def log_softmax(x):\n    return -cross_entropy(x, x)"],
        ["from torch.log_softmax import whatever", "def log_softmax(x):\n    return whatever(x)"],
    ],
)
def test_a_banned_call_under_another_name_is_vetoed(cells):
    assert bans.veto(LEVEL.exercise("log_softmax"), cells)


@pytest.mark.parametrize(
    "cell, banned",
    [
        ("soft = torch.log_softmax", True),
        ("from torch.nn.functional import log_softmax as soft", True),
        ("from course.prob import log_softmax as soft", True),
        ("soft = torch.nn.LogSoftmax(-1)\nx = 0", False),  # an object says no more than its class; the grader reads the cell
        ("from torch import logsumexp as soft", False),
        ("soft = lambda x, axis: x", False),
    ],
)
def test_what_a_cell_fetched_is_seen_in_a_live_function(cell, banned, tmp_path, monkeypatch):
    """`check` has the function and no cells; the grader, which has them, says the same of those that are banned here."""
    (tmp_path / "student.py").write_text(f"import torch\n{cell}\ndef log_softmax(x):\n    torch = 0\n    return soft(x, -1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "student", raising=False)
    module = importlib.import_module("student")
    module.log_softmax.__module__ = "__main__"
    assert bool(bans.veto_of_function(LEVEL.exercise("log_softmax"), module.log_softmax)) == banned
    assert not banned or bans.veto(LEVEL.exercise("log_softmax"), [(tmp_path / "student.py").read_text()])


def test_a_comparison_with_the_library_and_a_docstring_are_no_ban():
    cells = [
        "def log_softmax(x):\n    'log_softmax'\n    return x - x.exp().sum(-1, keepdim=True).log()",
        "results = []\nresults.append(torch.log_softmax(torch.ones(2), -1))\nfor x in [torch.log_softmax(torch.ones(2), -1)]: print(x)",
        "torch.testing.assert_close(log_softmax(torch.ones(2)), torch.log_softmax(torch.ones(2), -1))",
    ]
    assert bans.veto(LEVEL.exercise("log_softmax"), cells) == ""


def test_a_path_of_the_graders_is_flagged():
    assert bans.paths(["import glob\nglob.glob('/in/*.safetensors')", "x = '/usr/in'"]) == {"/in/*.safetensors"}


@pytest.mark.parametrize("name, bound", [("finite", ()), ("at_least", (0,)), ("at_most", (0,)), ("equals", (0.0,))])
def test_an_empty_answer_has_no_property(name, bound):
    with pytest.raises(CheckFailed):
        getattr(expect(torch.zeros(0)), name)(*bound)
