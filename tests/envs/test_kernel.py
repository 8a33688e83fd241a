"""A step reads, permits, admits, runs and signs, in this order; what does not run is answered, paid for and kept."""

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings, strategies as st
import pytest

from course.accounting.budget import Cost
from course.envs.authorisation import Grant
from course.envs.kernel import Result, Tool, World, confirm, reset, runtime_key, step
from course.envs.signatures import verify_result
from course.language.actions import Action, CompactGrammar, Malformed, Parameter, ToolSchema
from course.language.stamp import digest
from course.tasks.agent import AgentTask

KEY = runtime_key(b"secret", 0)
TASK = AgentTask("t0", "f0", "add up", 2, hidden={"answer": 41})
SCHEMAS = (
    ToolSchema("add", (Parameter("n", "number", high=9),)),  # costs n of at most 9
    ToolSchema("wipe"),
    ToolSchema("peek"),  # not granted
    ToolSchema("lie"),  # costs more than it says
    ToolSchema("stop"),
)


def world(runs=None, **changes):
    """A counter. runs collects what was executed, for the tests alone."""
    runs = [] if runs is None else runs

    def run(tool, cost, ends=False):
        def do(inner, arguments):
            runs.append(tool)
            n = arguments.get("n", 0)
            return Result(f"at {inner + n}", inner + n, cost(arguments), {"n": n}, ends)

        return do

    call = lambda arguments: Cost(calls=1)  # noqa: E731
    adds = lambda arguments: Cost(calls=1, compute=arguments["n"])  # noqa: E731
    at_most = {"add": Cost(calls=1, compute=9)}
    does = {
        "add": run("add", adds), "wipe": run("wipe", call), "peek": run("peek", call), "lie": run("lie", lambda _: Cost(calls=2)),
        "stop": run("stop", call, ends=True),
    }  # fmt: skip
    tools = {
        schema.tool: Tool(schema, does[schema.tool], lambda inner, arguments, t=schema.tool: at_most.get(t, Cost(calls=1)))
        for schema in SCHEMAS
    }
    parts = dict(
        name="counter", grammar=CompactGrammar(SCHEMAS), tools=tools,
        grants={"add": Grant("allow"), "wipe": Grant("ask"), "lie": Grant("allow"), "stop": Grant("allow")},
        budget=Cost(calls=6, compute=20), reset_cost=Cost(compute=2), idle_cost=Cost(calls=1), max_actions=8,
        start=lambda task, seed: (seed, f"from {seed}"), parts={"code": 1},
    )  # fmt: skip
    return World(**{**parts, **changes})


def started(runs=None, **changes):
    return reset(world(runs, **changes), TASK, 3, KEY)[0]


def taken(state, *texts):
    transitions = []
    for text in texts:
        transitions.append(step(state, text))
        state = transitions[-1].state
    return transitions


def test_reset_pays_and_shows_the_first_observation():
    state, observation = reset(world(), TASK, 3, KEY)
    assert observation == "from 3" and state.spent == Cost(compute=2) and (state.step, state.facts, state.over) == (0, (), False)


def test_the_five_outcomes_what_they_cost_and_what_runs():
    runs = []
    done, broken, denied, waiting, end = taken(started(runs), "add 4", b"add \xff", "peek", "wipe", "stop")
    assert [t.outcome for t in (done, broken, denied, waiting, end)] == ["executed", "malformed", "denied", "waiting", "executed"]
    assert runs == ["add", "stop"]
    assert [t.observation for t in (done, broken, denied, waiting)] == [
        "at 7",
        "error malformed",
        "error denied",
        "error waiting",
    ]
    assert [t.cost for t in (done, broken, denied, waiting)] == [Cost(calls=1, compute=4), *[Cost(calls=1)] * 3]
    assert end.state.spent == Cost(calls=5, compute=6) and end.state.step == 5
    assert (end.terminated, end.truncated, end.state.over) == (True, False, True)
    assert end.state.facts == ({"n": 4}, {"n": 0})
    assert (
        isinstance(broken.action, Malformed)
        and broken.action.reason == broken.reason == "not UTF-8"
        and broken.text == "add \ufffd"
    )
    assert done.action == Action("add", {"n": 4}) and denied.action == Action("peek") and denied.reason == "peek is not granted"
    with pytest.raises(ValueError, match="state must be of a running episode; episode [0-9a-f]{12} is over"):
        step(end.state, "add 1")


def test_bytes_and_text_are_the_same_action():
    state = started()
    assert step(state, b"add 4") == step(state, "add 4")


def test_what_could_exceed_the_budget_is_refused_before_it_runs():
    runs = []
    state = started(runs)  # compute: 2 of 20 spent, add may take 9 more and takes what it adds
    first, second, third = taken(state, "add 9", "add 0", "add 0")
    assert [t.outcome for t in (first, second, third)] == ["executed", "executed", "executed"]
    assert third.state.spent["compute"] == 11
    fourth, refused = taken(third.state, "add 1", "add 0")  # 12 + 9 > 20, though it would have cost nothing
    assert (fourth.outcome, refused.outcome) == ("executed", "refused") and runs == ["add"] * 4
    assert refused.observation == "error refused" and refused.cost == Cost(calls=1) and not refused.truncated
    assert refused.state.inner == fourth.state.inner and refused.state.facts == fourth.state.facts


def test_when_not_even_the_idle_cost_is_left_the_episode_is_cut_off_and_the_action_is_in_the_answer():
    last, cut = taken(started(budget=Cost(calls=1, compute=20)), "nonsense", "nonsense")
    assert (last.cost, last.truncated) == (Cost(calls=1), False)
    assert (cut.outcome, cut.cost, cut.truncated, cut.terminated) == ("malformed", Cost(), True, False)
    assert cut.state.over and cut.state.step == 2 and cut.state.spent == Cost(calls=1, compute=2)


def test_the_last_action_truncates_unless_it_ends_the_task():
    assert [(t.truncated, t.terminated) for t in taken(started(max_actions=2), "add 1", "add 1")] == [
        (False, False),
        (True, False),
    ]
    assert [(t.truncated, t.terminated) for t in taken(started(max_actions=2), "add 1", "stop")] == [
        (False, False),
        (False, True),
    ]
    assert taken(started(max_actions=1), "?")[0].truncated


TEXTS = st.lists(st.sampled_from(["add 9", "add 1", "add 0", "wipe", "peek", "?", "", b"\xff", "yes", "no"]), max_size=10)


@settings(deadline=None, max_examples=30)
@given(TEXTS, st.integers(0, 6), st.integers(2, 24), st.integers(0, 2))
def test_budgets_bind_in_every_component_and_all_is_accounted_for(texts, calls, compute, reset_cost):
    runs = []
    state = started(runs, budget=Cost(calls=calls, compute=compute), reset_cost=Cost(compute=reset_cost))
    total, executed = Cost(compute=reset_cost), 0
    for number, text in enumerate(texts):
        if state.over:
            break
        if text in ("yes", "no"):
            if state.waiting is None:
                continue
            transition = confirm(state, text == "yes")
        else:
            transition = step(state, text)
        total, executed = total + transition.cost, executed + (transition.outcome == "executed")
        assert transition.state.spent == total and total.fits(state.world.budget)
        assert len(runs) == executed == len(transition.state.facts)
        assert transition.cost or transition.truncated  # nothing is free but the end
        assert transition.state.step == state.step + 1
        assert verify_result(KEY, state.episode, state.step, transition.payload, transition.signature)
        if transition.outcome != "executed":
            assert transition.state.inner == state.inner and transition.observation == f"error {transition.outcome}"
        state = transition.state


def test_a_confirmation_runs_what_waited_once_and_counts_as_a_step():
    runs = []
    waiting = step(started(runs), "wipe")
    assert waiting.state.waiting == Action("wipe") and waiting.reason == "run wipe?" and runs == []
    yes, no = confirm(waiting.state, True), confirm(waiting.state, False)
    assert (yes.outcome, yes.action, yes.text, runs) == ("executed", Action("wipe"), "wipe", ["wipe"])
    assert (no.outcome, no.observation, no.cost) == (
        "denied",
        "error denied",
        Cost(calls=1),
    ) and no.state.step == yes.state.step == 2
    for state in (yes.state, no.state, started()):
        with pytest.raises(ValueError, match="an action that waits for a confirmation"):
            confirm(state, True)


@pytest.mark.parametrize("text", ["?", "peek", "add 1", "stop"])
def test_another_action_withdraws_the_one_that_waits(text):
    after = taken(started(), "wipe", text)[-1].state
    assert after.waiting is None
    with pytest.raises(ValueError, match="an action that waits"):
        confirm(after, True)
    assert taken(started(), "wipe", "wipe")[-1].state.waiting == Action("wipe")


def test_a_confirmed_action_is_admitted_when_it_runs_and_not_when_it_was_asked_for():
    runs = []
    waiting = step(started(runs, budget=Cost(calls=1, compute=20)), "wipe")
    refused = confirm(waiting.state, True)
    assert refused.outcome == "refused" and refused.truncated and runs == []


def test_every_observation_begins_with_the_status_where_there_is_one():
    state, observation = reset(world(status=lambda state: f"{state.world.max_actions - state.step} left"), TASK, 3, KEY)
    assert observation == "8 left from 3"
    assert [t.observation for t in taken(state, "add 1", "?")] == ["7 left at 4", "6 left error malformed"]
    one = taken(state, "add 1")[0]
    assert verify_result(KEY, state.episode, 0, one.payload, one.signature) and one.payload["observation"] == one.observation


def test_a_tool_that_costs_more_than_it_declared_is_an_error_of_the_world():
    with pytest.raises(RuntimeError, match=r"lie cost Cost\(calls=2\), more than the Cost\(calls=1\) it declared"):
        step(started(), "lie")


def test_signatures_are_of_this_step_episode_key_and_payload():
    state = started()
    one, two = taken(state, "add 0", "add 0")
    assert one.payload == two.payload and one.signature != two.signature
    assert verify_result(KEY, state.episode, 0, one.payload, one.signature)
    others = [
        (KEY, state.episode, 1, one.payload), (KEY, reset(world(), TASK, 4, KEY)[0].episode, 0, one.payload),
        (runtime_key(b"secret", 1), state.episode, 0, one.payload),
        (KEY, state.episode, 0, {**one.payload, "observation": "at 4"}),
        (KEY, state.episode, 0, {**one.payload, "outcome": "refused"}), (KEY, state.episode, 0, {**one.payload, "cost": {}}),
    ]  # fmt: skip
    assert not any(verify_result(*other, one.signature) for other in others)


def test_the_episode_is_named_by_world_task_seed_and_attempt():
    def named(task=TASK, seed=3, attempt="", **changes):
        return reset(world(**changes), task, seed, KEY, attempt)[0].episode

    hidden = replace(TASK, hidden={"answer": 42})
    names = [named(), named(seed=4), named(task=hidden), named(parts={"code": 2}), named(max_actions=7)]
    names += [named(attempt="1"), named(attempt="2")]
    assert len(set(names)) == 7 and named() == names[0] and named(attempt="2") == names[-1]


def test_a_result_of_one_attempt_is_none_of_another():
    one, two = (step(reset(world(), TASK, 3, KEY, attempt)[0], "add 1") for attempt in ("one", "two"))
    assert one.payload == two.payload and one.signature != two.signature
    episodes = [t.state.episode for t in (one, two)]
    assert [verify_result(KEY, episode, 0, one.payload, one.signature) for episode in episodes] == [True, False]


def test_every_part_of_the_contract_changes_the_version():
    changes = [
        {"name": "other"}, {"grammar": CompactGrammar((*SCHEMAS[:-1], ToolSchema("stop", version=2)))},
        {"grants": {"add": Grant("allow")}},
        {"grants": {**world().grants, "add": Grant("allow", {"n": frozenset({1})})}}, {"budget": Cost(calls=7, compute=20)},
        {"reset_cost": Cost(compute=1)}, {"idle_cost": Cost(calls=2)}, {"max_actions": 9}, {"parts": {"code": 2}},
        {"status": lambda state: "left"},
    ]  # fmt: skip
    versions = [world(**change).version for change in ({}, *changes)]
    assert len(set(versions)) == len(versions) and world().version == versions[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tools": {}}, "tools must be those of the grammar"),
        ({"max_actions": 0}, "max_actions must be at least 1; got 0"),
        ({"reset_cost": Cost(compute=21)}, "budget must cover reset_cost"),
        ({"idle_cost": Cost()}, "idle_cost must not be 0: actions that do not run would be free"),
    ],
)
def test_worlds_that_contradict_themselves_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        world(**change)


def test_states_and_worlds_do_not_change():
    grants = dict(world().grants)
    made = world(grants=grants)
    grants["peek"] = Grant("allow")
    state = reset(made, TASK, 3, KEY)[0]
    assert step(state, "peek").outcome == "denied"
    first = step(state, "add 4")
    assert step(state, "add 4") == first and (state.step, state.spent, state.inner) == (0, Cost(compute=2), 3)
    with pytest.raises(TypeError):
        made.grants["peek"] = Grant("allow")


def test_latency_is_measured_and_no_part_of_equality():
    slow = world()
    tool = slow.tools["add"]

    def run(inner, arguments):
        time.sleep(0.02)
        return tool.run(inner, arguments)

    state = reset(replace(slow, tools={**slow.tools, "add": replace(tool, run=run)}), TASK, 3, KEY)[0]
    one, two = step(state, "add 4"), step(state, "add 4")
    assert one.latency_ms >= 20 and one.latency_ms != two.latency_ms and one == two
    assert "latency" not in json.dumps(one.payload)


def trace(seed):
    """What must be equal in every process: a run of random actions, some of them confirmed."""
    rng, seen = random.Random(seed), []
    for episode in range(20):
        state, observation = reset(world(), TASK, episode, KEY)
        seen.append([state.episode, observation])
        while not state.over:
            asks = state.waiting is not None and rng.random() < 0.7
            text = rng.choice(["add 9", "add 2", "add 0", "wipe", "peek", "?", "stop"])
            t = confirm(state, rng.random() < 0.5) if asks else step(state, text)
            state = t.state
            seen.append([t.text, t.outcome, t.observation, t.cost.to_json(), t.signature, t.reason, t.terminated, t.truncated])
    return digest(seen)


def test_another_process_gives_the_same_trace():
    code = "import test_kernel; print(test_kernel.trace(5))"
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert other.stdout.strip() == trace(5) != trace(6), other.stderr
