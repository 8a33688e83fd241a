"""A kill or a deadline ends an episode in the same way every time, no file changes before somebody confirms, and the log is out of reach."""

import dataclasses
import json
from types import FunctionType, MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course.accounting.budget import Cost
from course.envs.authority import START, AuditLog, Staged, Supervised, act, answer, kill, staging_world, verify_log
from course.envs.kernel import reset, step
from course.envs.signatures import verify_result
from course.language.actions import Action
from course.tasks.agent import AgentTask

KEY, PATHS = b"k" * 16, ("bill", "letter", "log")
FILES = {"bill": "pay 3", "letter": "dear ann"}
TASK = AgentTask("office", "office", "pay the bill", 3, hidden={"files": FILES})
WORLD = staging_world(PATHS)


def text(tool, **arguments):
    return WORLD.grammar.encode(Action(tool, arguments))


ACTIONS = (
    text("read", file="bill"), text("write", file="bill", text="pay 9"), text("read", file="bill"), text("remove", file="letter"),
    text("write", file="log", text="new"), text("commit"), "nonsense",
)  # fmt: skip


def begin(deadline=1000):
    return Supervised(reset(WORLD, TASK, 0, KEY)[0], deadline)


def counting(start=0):
    """A clock that is one later whenever it is read."""
    return iter(range(start, 10**6)).__next__


def play(texts, run=None, clock=None):
    run, clock, done = run or begin(), clock or counting(), []
    for each in texts:
        run, transition = act(run, each, clock)
        done.append(transition)
    return run, done


# ---------------------------------------------------------------- writes that wait


def test_writes_are_seen_by_the_agent_and_by_nobody_else_until_confirmed():
    run, done = play(ACTIONS[:6])
    assert [t.observation for t in done] == ["pay 3", "staged", "pay 9", "staged", "staged", "error waiting"]
    assert run.state.inner.files == FILES and run.state.waiting.tool == "commit"
    refused, t = answer(run, False, counting())
    assert t.outcome == "denied" and refused.state.inner.files == FILES
    agreed, t = answer(run, True, counting())
    assert t.outcome == "executed" and agreed.state.inner.files == {"bill": "pay 9", "log": "new"}
    assert agreed.state.inner.writes == {} and agreed.state.facts[-1]["staged"] == run.state.inner.digest


def test_what_is_confirmed_is_what_was_staged_when_it_was_asked_for():
    run, _ = play([*ACTIONS[1:2], text("commit"), text("write", file="bill", text="pay 999")])
    assert run.state.waiting is None
    with pytest.raises(ValueError, match="run must have an action that waits for a confirmation; got none"):
        answer(run, True, counting())
    assert run.state.inner.files == FILES
    assert Staged(FILES).write("bill", "pay 9").digest != Staged(FILES).write("bill", "pay 999").digest


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), max_size=10))
def test_no_sequence_of_actions_writes_without_a_confirmation(texts):
    run, _ = play(texts)
    assert run.state.inner.files == FILES


# ---------------------------------------------------------------- kill and deadline


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), max_size=8), st.data())
def test_a_kill_ends_it_where_it_is_and_the_same_way_each_time(texts, data):
    at = data.draw(st.integers(0, len(texts)))
    ends = []
    for _ in range(2):
        run, done = play(texts[:at])
        ends.append(kill(run, "operator", counting(50)))
    assert ends[0] == ends[1] and ends[0][0].log.head == ends[1][0].log.head
    killed, last = ends[0]
    assert (last.truncated, last.terminated, last.reason) == (True, False, "killed: operator")
    # What was done before is what is done without the kill.
    assert done == play(texts)[1][:at] and killed.state.inner == run.state.inner and killed.state.spent == run.state.spent
    assert killed.state.over and killed.state.waiting is None and killed.state.inner.files == FILES
    for go in (
        lambda: act(killed, ACTIONS[0], counting()),
        lambda: kill(killed, "again", counting()),
        lambda: step(killed.state, "x"),
    ):
        with pytest.raises(ValueError, match="must be"):
            go()
    assert verify_result(KEY, killed.state.episode, run.state.step, last.payload, last.signature)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 14))
def test_after_the_deadline_nothing_runs_and_what_ran_across_it_did_not_happen(deadline):
    """The clock is read before and after each action: action i runs from 2i to 2i+1."""
    run, clock, done = begin(deadline), counting(), []
    while not run.state.over and len(done) < 6:
        run, transition = act(run, ACTIONS[len(done) % 5], clock)
        done.append(transition)
    whole = min(deadline // 2, 6)
    assert [t.outcome for t in done[:whole]] == ["executed"] * whole
    if deadline < 12:
        assert len(done) == whole + 1 and done[-1].truncated and not done[-1].terminated
        assert done[-1].reason == f"deadline {deadline} " + ("passed while it ran" if deadline % 2 else "was over")
        assert (done[-1].observation, done[-1].cost) == ("error refused", Cost())
    assert run.state.inner == play(ACTIONS[:5] + ACTIONS[:1], clock=counting())[0].state.inner if whole == 6 else True
    assert run.state.inner == (play(ACTIONS[:whole])[0].state.inner if whole < 6 else run.state.inner)


def test_a_late_confirmation_confirms_nothing():
    run, _ = play(ACTIONS[1:2] + (text("commit"),), begin(deadline=10))
    late, t = answer(run, True, counting(10))
    assert (t.truncated, t.outcome) == (True, "refused") and late.state.inner.files == FILES
    slow, t = answer(run, True, counting(9))  # it began in time, and the commit was over too late
    assert t.truncated and slow.state.inner.files == FILES
    fine, t = answer(run, True, counting(8))
    assert t.outcome == "executed" and fine.state.inner.files["bill"] == "pay 9"


def test_an_episode_is_a_function_of_its_texts_and_its_log():
    run, done = play(ACTIONS, begin(deadline=11), iter([0, 0.5, 1, 1.5, 2, 4, 4, 4, 5, 6, 7, 8, 9, 10]).__next__)
    events = [json.loads(event) for event in run.log.events]
    again, repeated = play([e["text"] for e in events], begin(11), iter([t for e in events for t in e["times"]]).__next__)
    assert repeated == done and again == run


def test_a_kill_needs_a_reason():
    with pytest.raises(ValueError, match="reason non-empty"):
        kill(begin(), "", counting())


# ---------------------------------------------------------------- the log


def filled(n=5):
    log = AuditLog()
    for i in range(n):
        log = log.append({"step": i, "text": f"action {i}"})
    return log


def test_every_action_is_in_the_log_whatever_came_of_it():
    run, done = play([*ACTIONS, "\ud800"])
    run, last = kill(run, "operator", counting())
    events = [json.loads(event) for event in run.log.events]
    assert [e["outcome"] for e in events] == [t.outcome for t in done] + ["refused"] and len(events) == len(ACTIONS) + 2
    assert [e["text"] for e in events] == [*ACTIONS, "?", ""] and verify_log(run.log) is None
    assert events[-1]["reason"] == "killed: operator"


def test_a_changed_a_dropped_and_a_moved_event_are_found_at_their_place():
    log = filled()
    assert verify_log(log) is None and verify_log(log, log.head) is None and verify_log(AuditLog()) is None
    for i in range(5):
        events = list(log.events)
        events[i] = events[i].replace("action", "nothing")
        assert verify_log(dataclasses.replace(log, events=tuple(events))) == i
        dropped = AuditLog(log.events[:i] + log.events[i + 1 :], log.heads[:i] + log.heads[i + 1 :])
        assert verify_log(dropped) == (i if i < 4 else None)
        assert verify_log(dropped, log.head) == (i if i < 4 else 4)
    swapped = AuditLog((log.events[1], log.events[0], *log.events[2:]), (log.heads[1], log.heads[0], *log.heads[2:]))
    assert verify_log(swapped) == 0
    assert verify_log(AuditLog(log.events, log.heads[:-1])) == 4 and verify_log(AuditLog(log.events[:-1], log.heads)) == 4


def test_a_log_that_is_cut_or_written_anew_is_found_by_a_head_kept_elsewhere():
    log, clean = filled(), AuditLog()
    for i in range(5):
        clean = clean.append({"step": i, "text": "nothing to see"})
    assert verify_log(clean) is None and verify_log(clean, log.head) == 5  # a whole chain, of another past
    for n in range(5):
        cut = AuditLog(log.events[:n], log.heads[:n])
        assert verify_log(cut) is None and verify_log(cut, log.head) == n
        assert verify_log(log, cut.head) is None  # a longer log continues an earlier one
    assert AuditLog().head == START and verify_log(log, START) is None


def reachable(value, seen):
    """Everything that Python code can get at from a value: fields, items, and what functions close over."""
    if id(value) in seen or isinstance(value, (str, bytes, int, float, type(None))):
        return seen
    seen[id(value)] = value
    inner = []
    if isinstance(value, (dict, MappingProxyType)):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, (tuple, list, set, frozenset)):
        inner = list(value)
    elif isinstance(value, FunctionType):
        inner = [cell.cell_contents for cell in value.__closure__ or ()] + list(value.__defaults__ or ())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, f.name) for f in dataclasses.fields(value)]
    for item in inner:
        reachable(item, seen)
    return seen


def test_no_tool_has_a_handle_to_the_log_or_the_supervisor():
    run, _ = play(ACTIONS[:5])
    handed = [run.state.inner, *[f for tool in WORLD.tools.values() for f in (tool.run, tool.bound)]]
    found = [v for each in handed for v in reachable(each, {}).values()]
    assert any(isinstance(v, Staged) for v in found)
    assert not [v for v in found if isinstance(v, (AuditLog, Supervised))]
    assert isinstance(reachable(run, {})[id(run.log)], AuditLog)  # the search would find it


def test_writing_a_file_called_log_does_not_touch_the_log():
    run, _ = play([text("write", file="log", text="nothing happened"), text("remove", file="log"), text("commit")])
    before = run.log
    run, _ = answer(run, True, counting())
    assert run.log.events[: len(before.events)] == before.events and len(run.log.events) == len(before.events) + 1
    assert "nothing happened" in run.log.events[0] and verify_log(run.log, before.head) is None
