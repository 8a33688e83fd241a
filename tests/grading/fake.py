"""A level of two exercises and its notebook, small enough that a test can say everything about it."""

import json
import sys
import types
from pathlib import Path

import pytest
import torch

import course.masks
import course.prob
from autograder import grade, levels
from autograder.framework import Alternative, Check, Exercise, Mutant, expect, invariant, mutant
from autograder.levels import Level

NUMBER = 97
SECRET = b"the class secret of the tests"


@invariant("T.01", points=2, anchor=True)
def value(log_softmax, draw):
    """The value is right"""
    x = draw.normal(3, 5, scale=4)
    expect(log_softmax(x)).close_to(torch.log_softmax(x, -1))


@invariant("T.02", points=2)
def slope(log_softmax, draw):
    """The gradient is right"""
    x, w = draw.normal(2, 4), draw.normal(2, 4)
    y = x.clone().requires_grad_(True)
    expect(log_softmax.gradient(x, weight=w)).close_to(torch.autograd.grad((torch.log_softmax(y, -1) * w).sum(), y)[0])


@invariant("T.03", points=1, hidden=True)
def extreme(log_softmax, draw):
    """Huge logits give finite numbers: a property that a forged answer can have without any work"""
    expect(log_softmax(draw.normal(4) * 1000)).finite()


@invariant("T.04", points=3, anchor=True)
def mean(masked_mean, draw):
    """The mean counts what the mask counts"""
    x, m = draw.normal(4, 6), draw.mask(4, 6)
    expect(masked_mean(x, m)).close_to((x * m).sum() / m.sum())


@invariant("T.05", points=1)
def shape(masked_mean, draw):
    """A mean is one number"""
    expect(masked_mean(draw.normal(3, 3), draw.mask(3, 3))).finite()


@mutant(of="log_softmax", kills="T.01")
def forgets_the_log(logits):
    """These are probabilities: the logarithm is missing."""
    return torch.softmax(logits, -1)


class Tiny(Level):
    def reference(self, function):
        return {"log_softmax": course.prob.log_softmax, "masked_mean": course.masks.masked_mean}[function]


def _made() -> Level:
    found = {Check: [], Mutant: [], Alternative: []}
    for function in (value, slope, extreme, mean, shape, forgets_the_log):
        found[type(function.declared)].append(function.declared)
    exercises = (
        Exercise("log_softmax", "T.a", "Log-softmax", 10, 1, ("log_softmax", "LogSoftmax", "cross_entropy")),
        Exercise("masked_mean", "T.b", "Masked mean", 10, 1),
    )
    return Tiny(NUMBER, exercises, tuple(found[Check]), tuple(found[Mutant]), ())


LEVEL = _made()

SETUP = "import torch\nfrom autograder import check"
RIGHT = {
    "log_softmax": "def log_softmax(logits):\n    z = logits - logits.amax(-1, keepdim=True)\n"
    "    return z - z.exp().sum(-1, keepdim=True).log()",
    "masked_mean": "def masked_mean(x, mask):\n    keep = mask.to(x.dtype)\n    return (x * keep).sum() / keep.sum()",
}
STUB = {
    "log_softmax": "def log_softmax(logits):\n    # YOUR CODE HERE\n    raise NotImplementedError()",
    "masked_mean": "def masked_mean(x, mask):\n    # YOUR CODE HERE\n    raise NotImplementedError()",
}
WRONG = {
    "log_softmax": "def log_softmax(logits):\n    return torch.softmax(logits, -1)",
    "masked_mean": "def masked_mean(x, mask):\n    return x.mean()",
}
FULL = 9.0  # points of the level; 5 for log_softmax and 4 for masked_mean


def code(source, id="", *, tags=(), kind="", **more):
    """kind: solution, test, locked or none."""
    role = {"solution": (False, True, False), "test": (True, False, True), "locked": (False, False, True)}.get(kind)
    metadata = {"tags": list(tags)} if tags else {}
    if role:
        grade_id = f"check_{id}" if kind == "test" else id
        grade_, solution, locked = role
        metadata["nbgrader"] = {
            "grade": grade_,
            "solution": solution,
            "locked": locked,
            "task": False,
            "grade_id": grade_id,
            "schema_version": 3,
        }
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": [], "execution_count": None, **more}


def text(source):
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def wrap(cells, **more):
    for number, cell in enumerate(cells):
        cell.setdefault("id", f"c{number}")
    return {
        "cells": cells,
        "metadata": {"kernelspec": {"name": "python3", "display_name": "x"}},
        "nbformat": 4,
        "nbformat_minor": 5,
        **more,
    }


def notebook(answers, extra=(), *, after=(), top=()):
    """A submission: answers by function; extra cells before the answers, after them, and above everything."""
    return wrap(
        [
            *[code(source) for source in top],
            text("# The level"),
            code("SEED = 1\nFAST = False", tags=["parameters"]),
            code(SETUP, "setup", kind="locked"),
            *[code(source) for source in extra],
            code(answers["log_softmax"], "log_softmax", kind="solution"),
            code("check(log_softmax)", "log_softmax", kind="test"),
            code("raise SystemExit('an experiment ran')", tags=["experiment"]),
            code(answers["masked_mean"], "masked_mean", kind="solution"),
            code("check(masked_mean)", "masked_mean", kind="test"),
            code("curve = [1.0, 2.0]"),
            *[code(source) for source in after],
        ]
    )


PRISTINE = notebook({name: "raise RuntimeError('a solution reached the sandbox')" for name in RIGHT})


def install(monkeypatch, folder: Path) -> None:
    """Make the tiny level a level of the course for one test."""
    target = folder / "solutions" / LEVEL.name
    target.mkdir(parents=True, exist_ok=True)
    (target / "lab.ipynb").write_text(json.dumps(PRISTINE))
    exercises = types.ModuleType("course.exercises")
    exercises.log_softmax, exercises.masked_mean = course.prob.log_softmax, course.masks.masked_mean
    monkeypatch.setitem(sys.modules, "course.exercises", exercises)
    monkeypatch.setattr(grade, "SOLUTIONS", folder / "solutions")
    monkeypatch.setattr(grade, "load", lambda number: LEVEL)
    monkeypatch.setattr(levels, "load", lambda number: LEVEL)


@pytest.fixture
def tiny(monkeypatch, tmp_path) -> Path:
    """The tiny level, installed; a folder for submissions."""
    install(monkeypatch, tmp_path)
    return tmp_path


def save(folder: Path, content, name="lab.ipynb") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
