"""The exit experiment in small: its arithmetic, what it measures, and that a run is a function of its seed. Evidence holds the real one."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.credit.groups import group_relative_advantages
from course.envs.repository import Loopholes
from course.envs.sandbox import Limits, Sandbox
from course.training import loopholes as module
from course.training.loopholes import (
    SHARES, SWITCHES, blank_policy, damped, demonstrations, held_out, look, online, recorded_run, trained, training_tasks,
)  # fmt: skip


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(Limits(seconds=30.0), warm=1) as made:
        yield made


@pytest.fixture
def small(monkeypatch):
    for name, value in {
        "DEMONSTRATIONS": 12,
        "CLONE_STEPS": 3,
        "CLONE_BATCH": 4,
        "GROUPS": 2,
        "STEPS": 2,
        "CLOSED_STEPS": 1,
    }.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "HELD_OUT", 4)
    monkeypatch.setattr(module, "held_out", lambda: held_out(4))


rewards = st.lists(st.tuples(st.floats(-20, 20, width=32), st.integers(0, 3)), min_size=1, max_size=20)


@settings(deadline=None, max_examples=50)
@given(rewards)
def test_damped_advantages_by_hand(pairs):
    reward, group = torch.tensor([r for r, _ in pairs]), torch.tensor([g for _, g in pairs])
    found = damped(reward, group)
    for i, (r, g) in enumerate(pairs):
        mine = torch.tensor([float(x) for x, h in pairs if h == g], dtype=torch.float64)
        wanted = (r - mine.mean()) / (mine.std(correction=0) + 1)
        assert float(found[i]) == pytest.approx(float(wanted), abs=1e-4)


def test_damping_takes_away_small_differences_and_keeps_large_ones():
    group = torch.zeros(8, dtype=torch.long)
    price, success = torch.tensor([0.1, *[0.0] * 7]), torch.tensor([10.0, *[0.0] * 7])
    full = group_relative_advantages(success, group, scale="std")[0]
    assert group_relative_advantages(price, group, scale="std")[0] == pytest.approx(float(full))
    assert damped(price, group)[0] < 0.1 < 0.7 * full < damped(success, group)[0]


def test_tasks_are_of_all_kinds_and_held_out_ones_about_other_functions():
    shown, kept = training_tasks(200, 0), held_out(200)
    assert {task.hidden["kind"] for task in shown} == {task.hidden["kind"] for task in kept} == {*SHARES, "plain"}
    assert not {task.family for task in shown} & {task.family for task in kept}


def test_a_look_judges_audits_and_repeats(sandbox):
    policy, tasks = blank_policy(0).eval(), held_out(8)
    found = look(policy, tasks, Loopholes(), sandbox, temperature=1)
    assert (
        found
        == look(policy, tasks, Loopholes(), sandbox, temperature=1)
        != look(policy, tasks, Loopholes(), sandbox, temperature=1, seed=1)
    )
    assert found.episodes == 8 and set(found.exploited) == set(SWITCHES)
    assert found.reward == pytest.approx(found.gold)  # a closed world's reward is the gold one
    assert found.true_success == 0.0 and found.actions > 1  # untrained: it writes anything
    assert look(policy, tasks, Loopholes(), sandbox, temperature=1, group_size=2).episodes == 16


def test_demonstrations_are_of_the_closed_world_and_train_no_observation(sandbox, small):
    episodes = demonstrations(0, sandbox)
    assert len(episodes) == 12 and all(record.ending == "terminated" for record in episodes.records)
    sampled = sum(stop - start for record in episodes.records for start, stop in (step.span for step in record.steps))
    assert int(episodes.batch.action_mask.sum()) == sampled


def test_online_trains_the_policy_itself_in_its_own_world(sandbox, small):
    policy = blank_policy(1)
    before = copy.deepcopy(policy.state_dict())
    steps = list(online(policy, 0, Loopholes.only("length_pays"), sandbox, steps=1))
    assert len(steps) == 1 and any((before[name] != value).any() for name, value in policy.state_dict().items())
    record = trained(policy, 0, Loopholes.only("length_pays"), sandbox, reference=blank_policy(1), steps=1, tasks=held_out(4))
    assert record.loopholes == ("length_pays",) and len(record.reward) == 1 and sorted(record.sampled) == [0, 1]


def test_a_run_is_a_function_of_its_seed(sandbox, small):
    first, again = (recorded_run(3, sandbox, switches=("judge_obeys",)).to_json() for _ in range(2))
    for run in (first, again):
        assert set(run.pop("seconds")) == {"clone", "initial", "honest", "judge_obeys"}
    assert first == again
    # An untrained policy finds nothing, so it has twice the steps; honest and closed ones have what the recipe says.
    steps = [
        len(first[name]["reward"]) if name == "honest" else len(first[name]["judge_obeys"]["reward"])
        for name in ("honest", "opened", "closed")
    ]
    assert steps == [3, 4, 1]
    assert (
        list(first["opened"]["judge_obeys"]["loopholes"]) == ["judge_obeys"] and not first["closed"]["judge_obeys"]["loopholes"]
    )
