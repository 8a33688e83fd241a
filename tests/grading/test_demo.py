"""The demo class is made from the levels themselves; a part of it is graded here as an instructor would."""

import importlib.util
import sys

import pytest

from autograder import batch, demo, gradebook
from autograder.batch import grade_class
from autograder.framework import Exercise
from autograder.levels import Level, load
from autograder.sandbox import sandbox_problem

MODULE = '''
import math
import torch.nn.functional as F
from autograder.framework import expect, mutant
from course.exercises import entropy

SCALE = 2

def helper(x):
    """Kept, without this sentence."""
    return SCALE * math.exp(x)

@mutant(of="double", kills="L0.01")
def wrong_double(x):
    """You double the wrong thing."""
    return helper(x) + unused_name

def leans_on_an_exercise(x):
    return entropy(x)

def leans_on_the_grader(x):
    return expect(x)
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    path = tmp_path / "mistakes_of_a_test.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, made)
    spec.loader.exec_module(made)
    return made


def test_a_known_mistake_becomes_an_answer_cell_that_stands_alone(module):
    level = Level(0, (Exercise("entropy", "0.1", "Entropy", 5, 1),), (), (), ())
    source = demo.standalone(module.wrong_double, "double", level)
    namespace = {"unused_name": 1}
    exec(source, namespace)
    assert namespace["double"](0) == 3
    assert "mutant" not in source and "wrong thing" not in source and "autograder" not in source and "import F" not in source
    assert demo.standalone(module.leans_on_an_exercise, "double", level) == ""
    assert demo.standalone(module.leans_on_the_grader, "double", level) == ""


def test_only_an_earlier_demo_is_ever_emptied(tmp_path):
    mine = tmp_path / "work"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="holds other files"):
        demo._emptied(mine)
    assert (mine / "thesis.txt").read_text() == "x"
    made = demo._emptied(tmp_path / "demo")
    (made / "old").write_text("x")
    assert not (demo._emptied(made) / "old").exists()


def test_part_of_the_class_gets_what_it_deserves(tmp_path):
    isolated = not sandbox_problem()
    state = tmp_path / "grading"
    chosen = [s for s in demo.class_of(load(0)) if s.student in ("right-otherwise", "classic-mistakes", "scripting")]
    for submission in chosen:
        demo._write(submission, 0, state / "submitted")
    reports = {report.student: report for report in grade_class(0, state / "submitted", 1, isolated, state)}
    assert [text for s in chosen if (text := demo._surprise(s, reports[s.student]))] == []
    config = gradebook.configuration(state, state / "submitted", sandbox=isolated)
    with gradebook.open_api(config).gradebook as book:
        for student, report in reports.items():
            assert book.find_submission("level0", student).code_score == pytest.approx(report.points, abs=1e-4)
    assert gradebook.feedback(state, state / "submitted", "level0") == ""
    page = (state / "feedback" / "scripting" / "level0" / f"{batch.NOTEBOOK}.html").read_text()
    assert "<script>fetch" not in page and "onerror=" not in page.split("<body")[1] and "fetch" in page
    hidden = [check.sentence for check in load(0).checks if check.hidden]
    page = (state / "feedback" / "classic-mistakes" / "level0" / f"{batch.NOTEBOOK}.html").read_text()
    assert hidden and not [sentence for sentence in hidden if sentence in page]
