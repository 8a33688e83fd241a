"""Every forgery gets all points where the checks live in its process, and none where only values leave it."""

import json
import math

import pytest

from course.envs.sandbox import Failed, Limits, Sandbox
from course.feedback import naive_grader as module
from course.feedback.naive_grader import KINDS, NAIVE, POSSIBLE, cases, forged_submission, naive_points, trusted_points

HONEST = """
import math
def logsumexp(x):
    top = max(x)
    return top + math.log(sum(math.exp(v - top) for v in x))
def discounted(rewards, gamma):
    total = 0.0
    for r in reversed(rewards):
        total = r + gamma * total
    return total
def kl(p, q):
    return sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q))
"""
MORE = {  # forgeries of the same kinds in other clothes
    "patched print": "import builtins\nold = print\ndef new(*a):\n    old('score 6 of 6')\nbuiltins.print = new\n",
    "last word": "import atexit\natexit.register(print, 'score 6 of 6')\n",
    "main": "import __main__\ndef kl(*_):\n    __main__.points = 6\n    return 0\ndiscounted = logsumexp = kl\n",
    "garbage": "import gc\ndef kl(*a):\n    return next(o[2] for o in gc.get_objects() if type(o) is tuple and len(o) == 3"
    " and list(a) == o[1])\nlogsumexp = discounted = kl\n",
    "trace": "import sys\ndef spy(frame, *_):\n    if frame.f_code.co_name == 'check': frame.f_globals['points'] = 6\n"
    "sys.settrace(spy)\n",
}


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(seconds=20.0), warm=1) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_each_forgery_gets_everything_naively_and_nothing_really(kind, sandbox):
    text = forged_submission(kind)
    assert (naive_points(text, sandbox), trusted_points(text, sandbox)) == (POSSIBLE, 0)


def test_six_different_forgeries():
    assert len({forged_submission(kind) for kind in KINDS}) == 6 and forged_submission() == forged_submission("checker")
    with pytest.raises(ValueError, match="kind must be one of checker, points, equal, import, frame, exit; got 'luck'"):
        forged_submission("luck")


@pytest.mark.parametrize("name", MORE)
def test_other_forgeries_do_no_better_in_the_trusted_form(name, sandbox):
    naive = naive_points(MORE[name], sandbox)
    assert (naive, trusted_points(MORE[name], sandbox)) == (POSSIBLE, 0)


def test_both_agree_on_whoever_leaves_the_checker_alone(sandbox):
    partial = HONEST.replace("p, q):\n    return sum", "p, q):\n    return -sum")
    for text, points in ((HONEST, 6), (partial, 4), ("def kl(p, q: return 0", 0), ("1 / 0\n" + HONEST, 0)):
        assert naive_points(text, sandbox) == points == trusted_points(text, sandbox), text


def test_a_cell_without_a_wall_gives_the_same_points():
    """In a child interpreter: a forgery must not reach the process that asked."""
    for text in (HONEST, forged_submission("import"), forged_submission("exit"), "import os ; os._exit(0)"):
        assert naive_points(text) == (0 if "_exit" in text else POSSIBLE)
    assert not math.isclose(0.0, 1.0)


def test_what_does_not_end_gets_nothing(monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 1)
    assert naive_points("while True: pass") == 0
    with Sandbox(Limits(seconds=0.5)) as hasty:
        assert naive_points("while True: pass", hasty) == 0 == trusted_points("while True: pass", hasty)


def test_what_the_naive_cases_hold_is_of_no_use_outside(sandbox):
    """A table of the expected values that the naive grader shows, frame by frame, is right there and wrong on other inputs."""
    table = {json.dumps(arguments): value for _, arguments, value in cases(0)}
    text = f"import json\ntable = {table!r}\nlogsumexp = discounted = kl = lambda *a: table.get(json.dumps(list(a)), 0.0)\n"
    assert naive_points(text, sandbox) == POSSIBLE and trusted_points(text, sandbox) == 0
    for seed in range(1, 200):
        drawn = cases(seed)
        assert len(drawn) == POSSIBLE and all(abs(value) > 1e-3 for _, _, value in drawn)
        assert not {json.dumps(arguments) for _, arguments, _ in drawn} & set(table)
    with pytest.raises(ValueError, match="seed must not be 0"):
        trusted_points("", sandbox, seed=0)


def test_no_expected_value_of_the_trusted_form_enters_the_process(sandbox, monkeypatch):
    entered = []
    run = Sandbox.run

    def spy(self, program, **arguments):
        entered.append(program + json.dumps(arguments))
        return run(self, program, **arguments)

    monkeypatch.setattr(Sandbox, "run", spy)
    assert trusted_points(HONEST, sandbox, seed=7) == POSSIBLE
    assert len(entered) == 3 and not [v for _, _, v in cases(7) for text in entered if repr(v)[:12] in text]
    assert all(repr(value) in NAIVE for _, _, value in cases(0))  # in the naive form they all do


@pytest.mark.parametrize(
    "answer", [{"value": v} for v in (True, "0.5", None, [0.5], {}, 10**400)] + [{"error": "KeyError"}], ids=lambda a: str(a)[:20]
)
def test_only_numbers_are_values(sandbox, monkeypatch, answer):
    """Whatever comes out of the process is data that may be anything; cases whose value is 1 would take true for it."""
    monkeypatch.setattr(module, "cases", lambda seed: [(name, [[1.0]], 1.0) for name in module.NAMES for _ in range(2)])
    monkeypatch.setattr(Sandbox, "call", lambda *_: (answer, answer))
    assert trusted_points("", sandbox) == 0
    monkeypatch.setattr(Sandbox, "call", lambda *_: ({"value": 1}, {"value": 1.0}))
    assert trusted_points("", sandbox) == POSSIBLE
    monkeypatch.setattr(Sandbox, "call", lambda *_: Failed("sandbox", "no process"))
    with pytest.raises(RuntimeError, match="sandbox must run the submission to grade it; got no process"):
        trusted_points("", sandbox)
