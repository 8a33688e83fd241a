"""An engine decides when and where an episode is played, never what comes out."""

from dataclasses import replace

import pytest
import torch

from course.envs import kernel
from course.rollout.episodes import Play, collect_episodes, episode_seed
from course.rollout.record import Versions
from course.rollout.replay import Recipe
from course.systems.engine import (
    InProcess,
    Setting,
    Shard,
    Workload,
    WrongRecord,
    accepted,
    slow_step,
    tool_setting,
    tool_workload,
)
from course.training.tool_agent import MAX_ACTION_TOKENS, blank_policy, grade, held_out, lookups, noted, task_world

TASKS = lookups(6, 3)
PLAYS = [Play(task, episode_seed(3, i), 3, i) for i, task in enumerate(TASKS)]


@pytest.fixture(scope="module")
def policy():
    return blank_policy(0)


@pytest.fixture
def engine(policy):
    made = InProcess(tool_workload(rows=4))
    made.publish(policy)
    return made


@pytest.fixture(scope="module")
def expected(policy):
    made = InProcess(tool_workload(rows=4))
    made.publish(policy)
    return made.collect(PLAYS)


def hashes(records):
    return [record.content_hash for record in records]


def test_one_shard_is_what_collect_episodes_gives(policy):
    engine = InProcess(tool_workload(rows=6))
    stamp = engine.publish(policy, 0.7)
    episodes = collect_episodes(
        policy,
        task_world(),
        TASKS,
        grader=grade,
        seed=3,
        max_action_tokens=MAX_ACTION_TOKENS,
        rows=6,
        columns=16,
        temperature=0.7,
    )
    assert hashes(engine.collect(PLAYS)) == hashes(episodes.records)
    assert stamp == policy.stamp(0.7)


def test_logs_and_cuts_change_nothing(policy, expected, tmp_path):
    with InProcess(tool_workload(rows=4), tmp_path) as engine:
        engine.publish(policy)
        assert hashes(engine.collect(PLAYS)) == hashes(expected)
        assert len(list(tmp_path.iterdir())) == len(PLAYS)
    assert [(r.layout.rows, r.layout.row) for r in expected] == [(4, 0), (4, 1), (4, 2), (4, 3), (4, 0), (4, 1)]


def test_what_is_known_is_not_played_again(engine, expected):
    shown = []
    known = {i: expected[i] for i in (0, 2, 4)}
    assert hashes(engine.collect(PLAYS, known=known, seen=shown.extend)) == hashes(expected)
    assert hashes(shown) == hashes([expected[i] for i in (1, 3, 5)])
    assert engine.collect(PLAYS, known=dict(enumerate(expected)), seen=shown.extend) == expected and len(shown) == 3


def test_the_published_policy_is_a_copy(expected):
    policy = blank_policy(0)
    engine = InProcess(tool_workload(rows=4))
    engine.publish(policy)
    with torch.no_grad():
        policy.model.embedding.weight.mul_(2)
    assert hashes(engine.collect(PLAYS)) == hashes(expected)


def test_a_shard_keeps_the_policy_it_was_started_under(engine, expected):
    shards = engine.workload.shards(PLAYS)
    engine.start(shards[0])
    engine.publish(blank_policy(1))
    engine.start(shards[1])
    ((first, made),) = engine.finished()
    assert first == shards[0] and hashes(made.values()) == hashes(expected[:4])
    ((_, later),) = engine.finished()
    assert hashes(later.values()) != hashes(expected[4:]) and engine.finished() == []


# ---------------------------------------------------------------- bad input


def test_records_of_something_else_are_refused(engine, expected):
    plain = expected[0].to_json()
    plain["versions"]["policy"] = ""
    with pytest.raises(WrongRecord, match="versions.policy must be non-empty"):
        accepted(plain, PLAYS[0], 0, engine)
    stale = replace(expected[0], versions=Versions(**{**vars(expected[0].versions), "policy": "0" * 64}))
    with pytest.raises(WrongRecord, match="policy must be .*, got 0000.*was not stored"):
        engine.collect(PLAYS, known={0: stale})
    with pytest.raises(WrongRecord, match="task must be"):
        engine.collect(PLAYS, known={1: expected[0]})
    with pytest.raises(WrongRecord, match="noise_episode must be 4, got 0"):
        engine.collect([*PLAYS[:4], Play(TASKS[0], PLAYS[0].environment_seed, 3, 4)], known={4: expected[0]})


def test_nothing_is_played_under_no_policy():
    with pytest.raises(ValueError, match="must be published"):
        InProcess(tool_workload()).start(Shard(0, {0: PLAYS[0]}))


def _odd_setting():
    return "no setting"


def test_workloads():
    with pytest.raises(ValueError, match="must give a Setting"):
        InProcess(Workload(Recipe(f"{__name__}:_odd_setting"), 4, 16))
    with pytest.raises(ValueError, match="rows must be at least 1"):
        tool_workload(rows=0)
    with pytest.raises(ValueError, match="logs must be a folder"):
        InProcess(tool_workload(), "/nowhere/at/all")
    assert isinstance(tool_setting(), Setting)


def test_columns_hold_every_prompt(policy):
    """Online, held-out and noted tasks in the workload's columns; the longest has a note and a price."""
    tasks = [*lookups(30, 0), *held_out(30), *noted(30, 0)]
    engine = InProcess(tool_workload(rows=90))
    engine.publish(policy)
    engine.start(Shard(0, {i: Play(task, i, 0, i) for i, task in enumerate(tasks)}))
    assert len(engine.finished()[0][1]) == 90


def test_slow_tools_answer_as_ever(policy, expected, monkeypatch):
    """Pareto with shape 1.5: the mean of waits is scale * 3 without a limit, and the same action waits as long again."""
    waited = []
    monkeypatch.setattr("course.systems.engine.time.sleep", waited.append)
    engine = InProcess(tool_workload(rows=4, wait=0.01, longest=100.0))
    engine.publish(policy)
    for _ in range(2):
        assert hashes(engine.collect(PLAYS)) == hashes(expected)
    half = len(waited) // 2
    assert waited[:half] == waited[half:] and min(waited) >= 0.01
    step, waited[:] = slow_step(1, 1.5, 50), []
    state, _ = kernel.reset(task_world(), TASKS[0], 0, b"a key of its own")
    for seed in range(1000):
        step(replace(state, seed=seed), "look ant")
    # mean of min(50, Pareto): 3 - 2 * 50^-0.5
    assert sum(waited) / 1000 == pytest.approx(3 - 2 * 50**-0.5, rel=0.15) and max(waited) == 50
    with pytest.raises(ValueError, match="tail positive"):
        slow_step(1, 0, 2)
