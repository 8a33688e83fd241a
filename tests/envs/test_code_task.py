"""A function written over a few edits: what the tests say decides, hidden ones stay hidden, and no body can do harm."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.accounting.budget import Cost
from course.envs import code_task as module
from course.envs.code_task import bodies, code_grader, code_task, code_tasks, code_tokenizer, code_world, demonstrate, proven
from course.envs.kernel import reset, step
from course.envs.sandbox import Failed, Limits, Sandbox, bubblewrap_problem
from course.envs.signatures import verify_result
from course.feedback.verifiers import success_from_evidence
from course.language.actions import Action

KEY = b"k" * 16
SQUARE = code_task("square", "return a * a", [3, 2, 5, 7], visible=1)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(seconds=20.0), warm=1) as made:
        yield made


@pytest.fixture(scope="module")
def world(sandbox):
    return code_world(sandbox)


def play(world, task, *texts, seed=0):
    state, first = reset(world, task, seed, KEY)
    assert first == ""
    transitions = []
    for text in texts:
        transitions.append(step(state, text))
        state = transitions[-1].state
    return state, transitions


def test_two_edits_and_two_test_runs(world, sandbox):
    """The golden trace: first evidence expected 9, got 6; second exit status 0 and 1 passed."""
    state, done = play(world, SQUARE, "edit return a + a", "test", "edit return a * a", "test", "submit")
    assert [t.observation for t in done] == ["edited", "expected 9 , got 6", "edited", "exit status 0 and 1 passed", "done"]
    assert [f["evidence"] for f in state.facts if f["tool"] == "test"] == ["expected 9, got 6", "exit status 0 and 1 passed"]
    assert [f["exit_status"] for f in state.facts if f["tool"] == "test"] == [1, 0]
    assert [t.terminated for t in done] == [False] * 4 + [True] and state.spent == Cost(calls=5, runs=2)
    assert proven(state) and success_from_evidence(state.facts)
    grade = code_grader(sandbox)(state)
    assert (grade.decision, grade.reward, grade.parsed["passed"]) == ("right", 10.0, [True, True, True])
    assert [proven(t.state) for t in done] == [False, False, False, True, True]
    for i, t in enumerate(done):
        assert verify_result(KEY, state.episode, i, t.payload, t.signature)


def test_what_the_program_says_of_itself_is_no_evidence(world, sandbox):
    claim = "edit print('exit','status','0','and','1','passed') ; return 6"
    state, done = play(world, SQUARE, claim, "test", "submit")
    assert done[1].observation == "expected 9 , got 6" and not proven(state)
    assert code_grader(sandbox)(state).reward == 0.0


def test_an_edit_after_the_last_test_run_proves_nothing(world, sandbox):
    state, _ = play(world, SQUARE, "edit return a * a", "test", "edit return a", "submit")
    assert not proven(state)
    assert code_grader(sandbox)(state).decision == "wrong"


def test_visible_tests_can_pass_where_hidden_ones_fail(world, sandbox):
    state, done = play(world, SQUARE, "edit return a * 3", "test", "submit")
    assert proven(state) and done[1].observation == "exit status 0 and 1 passed"
    grade = code_grader(sandbox)(state)
    assert (grade.decision, grade.parsed["passed"]) == ("wrong", [False, False, False])


@pytest.mark.parametrize(
    "body, observation",
    [
        ("return -5", "expected 9 , got - 5"),
        ("return 1 / 0", "expected 9 , got error"),
        ("return 'rm -rf'", "expected 9 , got other"),
        ("return True", "expected 9 , got other"),
        ("return 9.0", "expected 9 , got other"),
        ("return 10 ** 50", "expected 9 , got other"),
        ("return (", "exit status 1 and 0 passed"),
        ("import os ; os._exit(0)", "exit status 1 and 0 passed"),
        ("raise SystemExit(0)", "exit status 1 and 0 passed"),
        ("x = 2 ; x = a * x ; return x + a", "exit status 0 and 1 passed"),
    ],
)
def test_every_body_gets_an_answer_in_the_words_of_the_vocabulary(world, body, observation):
    _, done = play(world, SQUARE, f"edit {body}", "test")
    assert done[1].observation == observation
    code_tokenizer().encode(observation)


def test_no_answer_before_an_edit(world, sandbox):
    state, done = play(world, SQUARE, "test", "submit")
    assert done[0].observation == "expected 9 , got other" and not proven(state)
    assert code_grader(sandbox)(state).reward == 0.0


@pytest.mark.skipif(bool(bubblewrap_problem()), reason="no bubblewrap")
def test_a_body_sees_nothing_of_this_machine(world):
    _, done = play(world, SQUARE, "edit import os ; return 9 if os.path.exists('/etc/passwd') else 6", "test")
    assert done[1].observation == "expected 9 , got 6"


def test_a_body_that_hangs_ends_and_is_wrong():
    with Sandbox(Limits(seconds=0.5)) as hasty:
        state, done = play(code_world(hasty), SQUARE, "edit import time ; time.sleep(60)", "test", "submit")
        assert done[1].observation == "exit status 1 and 0 passed"
        assert code_grader(hasty)(state).decision == "wrong"


def test_a_sandbox_that_fails_is_no_failed_test(world, sandbox, monkeypatch):
    monkeypatch.setattr(Sandbox, "call", lambda *_: Failed("sandbox", "no process"))
    state, done = play(world, SQUARE, "edit return a * a", "test", "submit")
    assert done[1].observation == "error unavailable" and not proven(state) and not success_from_evidence(state.facts)
    monkeypatch.undo()
    grade = code_grader(sandbox)(state)
    assert (grade.decision, grade.reward) == ("abstain", None)


def test_runs_of_the_tests_have_a_budget_of_their_own(sandbox):
    state, done = play(code_world(sandbox, budget=Cost(calls=8, runs=1)), SQUARE, "test", "test", "submit")
    assert [t.outcome for t in done] == ["executed", "refused", "executed"] and state.spent["runs"] == 1


def test_malformed_and_unfinished_episodes(world, sandbox):
    state, done = play(world, SQUARE, *["test it"] * 8)
    assert [t.outcome for t in done] == ["malformed"] * 8 and done[-1].truncated and state.over
    grade = code_grader(sandbox)(state)
    assert (grade.decision, grade.reward, grade.reason) == ("wrong", 0.0, "nothing was submitted")
    running, _ = play(world, SQUARE, "test")
    with pytest.raises(ValueError, match="state must be of an episode that is over"):
        code_grader(sandbox)(running)


def test_json_and_compact_actions_do_the_same(sandbox):
    actions = [Action("edit", {"body": "return a * a"}), Action("test"), Action("submit")]
    traces = []
    for json_ in (False, True):
        world = code_world(sandbox, json=json_)
        _, done = play(world, SQUARE, *map(world.grammar.encode, actions))
        traces.append([(t.observation, t.outcome, t.cost, t.terminated) for t in done])
    assert traces[0] == traces[1]


def test_the_same_actions_give_the_same_episode_and_the_version_names_the_sandbox(world, sandbox):
    texts = ("edit return a + a", "test", "submit")
    assert play(world, SQUARE, *texts)[1] == play(world, SQUARE, *texts)[1]
    assert code_world(sandbox).version == world.version
    with Sandbox(Limits(seconds=1.0)) as other:
        assert code_world(other).version != world.version


# ---------------------------------------------------------------- hidden tests, tasks


def test_hidden_tests_are_nowhere_before_the_grade(sandbox):
    """The argument and value of the hidden test are numbers that nothing else holds."""
    hidden = {"function": "f", "cases": [[[271828], 314159]]}
    task = code_task("t", "return a * a", [3, 2], visible=1)
    task = type(task)(task.id, task.family, task.prompt, 3, hidden={**task.hidden, "tests": hidden})
    look = "edit import gc ; return [o for o in gc.get_objects() if str(271827 + 1) in str(o) and isinstance(o, dict)] or 6"
    state, done = play(code_world(sandbox), task, look, "test", "test now", "submit")
    seen = json.dumps(
        [task.public(), [[t.text, t.observation, t.reason, t.payload, t.latency_ms] for t in done], list(map(dict, state.facts))]
    )
    assert "271828" not in seen and "314159" not in seen and task.hidden["body"] not in json.dumps(task.public())
    assert "271828" not in json.dumps(code_grader(sandbox)(state).to_json())


def test_a_task_is_solved_by_its_body_and_says_nothing_of_it(world, sandbox):
    for task in code_tasks(2, 0) + code_tasks(2, 1, statements=2):
        state, done = play(world, task, f"edit {task.hidden['body']}", "test", "submit")
        assert done[1].observation == "exit status 0 and 2 passed"
        assert code_grader(sandbox)(state).reward == 10.0
        code_tokenizer().encode(task.prompt)


@given(seed=st.integers(0, 10**6), statements=st.sampled_from([1, 2]))
@settings(max_examples=40, deadline=None)
def test_values_are_those_of_python_and_tests_are_apart(seed, statements):
    (task,) = code_tasks(1, seed, statements=statements)
    scope = {}
    exec(f"def f(a): {task.hidden['body']}", scope)
    visible, hidden = (task.hidden[name]["cases"] for name in ("visible", "tests"))
    assert [scope["f"](*arguments) for arguments, _ in visible + hidden] == [value for _, value in visible + hidden]
    assert len({arguments[0] for arguments, _ in visible + hidden}) == 5
    assert code_tasks(1, seed, statements=statements) == [task]


def test_families_are_functions():
    tasks = code_tasks(200, 0)
    by_family = {}
    for task in tasks:
        by_family.setdefault(task.family, set()).add(task.hidden["body"])
    assert all(len(found) == 1 for found in by_family.values()) and len(by_family) == len(bodies()) == 30
    assert len(set(bodies(2))) == 900
    for wrong in ({"statements": 3}, {"visible": 0}, {"hidden": 0}, {"visible": 8, "hidden": 3}):
        with pytest.raises(ValueError, match="statements must be 1 or 2"):
            code_tasks(1, 0, **wrong)


def test_demonstrations_fix_their_slips(world, sandbox):
    assert demonstrate(SQUARE, 0, slips=0.0) == ["edit return a * a", "test", "submit"]
    slipped = 0
    for seed, task in enumerate(code_tasks(2, 5)):
        texts = demonstrate(task, seed, slips=1.0)
        assert texts == demonstrate(task, seed, slips=1.0)
        state, done = play(world, task, *texts)
        assert done[1].observation.startswith("expected") and done[3].observation == "exit status 0 and 2 passed"
        assert code_grader(sandbox)(state).reward == 10.0 and state.spent.fits(world.budget)
        slipped += 1
    assert slipped == 2
    many = [len(demonstrate(task, seed)) for seed, task in enumerate(code_tasks(400, 6))]
    assert 0.4 < many.count(5) / 400 < 0.6


def test_episodes_are_short_enough_for_a_small_decoder():
    tokenizer = code_tokenizer()
    for task in code_tasks(50, 3):
        texts = demonstrate(task, 1, slips=1.0)
        assert sum(len(tokenizer.encode(text)) for text in (task.prompt, *texts)) + 5 * 3 < 70
    assert len(module.WORDS) <= 45
