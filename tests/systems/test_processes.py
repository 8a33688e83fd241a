"""Workers as processes: the same records as in this process, whoever is killed."""

import os
import resource
import signal
import threading
import time

import pytest
from kills import killing

from course.envs import kernel
from course.rollout.episodes import Play, episode_seed
from course.rollout.replay import Recipe
from course.rollout.write_ahead import forget
from course.systems.engine import (
    InProcess,
    LostWorker,
    Setting,
    Shard,
    Workload,
    WrongRecord,
    policy_of,
    tool_setting,
    tool_workload,
)
from course.systems.processes import Processes, context
from course.training.tool_agent import blank_policy, lookups

PLAYS = [Play(task, episode_seed(2, i), 2, i) for i, task in enumerate(lookups(12, 2))]


def hashes(records):
    return [record.content_hash for record in records]


@pytest.fixture(scope="module")
def policy():
    return blank_policy(0)


@pytest.fixture(scope="module")
def expected(policy):
    engine = InProcess(tool_workload(rows=4))
    engine.publish(policy)
    return engine.collect(PLAYS)


@pytest.fixture(scope="module")
def engine(tmp_path_factory, policy):
    with Processes(tool_workload(rows=4), tmp_path_factory.mktemp("logs"), workers=2) as made:
        yield made


@pytest.fixture
def fresh(engine, policy):
    engine.publish(policy)
    forget(engine.logs, PLAYS)
    return engine


def test_equal_records(fresh, expected):
    shown = []
    assert hashes(fresh.collect(PLAYS, seen=shown.append)) == hashes(expected)
    assert sorted(map(len, shown)) == [4, 4, 4] and fresh.finished(0) == []


def test_workers_that_are_killed_all_the_time(fresh, expected):
    with killing(8, lambda draw: fresh.pids, [fresh.logs]) as kills:
        while len(kills) < 8:
            assert hashes(fresh.collect(PLAYS)) == hashes(expected)
            forget(fresh.logs, PLAYS)


def test_policies_change_between_shards(fresh, policy, expected):
    shards = fresh.workload.shards(PLAYS)
    fresh.start(shards[0])
    fresh.publish(blank_policy(1))
    fresh.start(shards[1])
    found = {}
    while len(found) < 2:
        found |= {shard.number: records for shard, records in fresh.finished()}
    assert hashes(found[0].values()) == hashes(expected[:4])
    assert found[1][0].versions.policy == blank_policy(1).stamp()
    forget(fresh.logs, PLAYS)


def test_a_worker_ends_with_its_parent(tmp_path):
    process = context().Process(target=_parent, args=(tmp_path / "pids",))
    process.start()
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text().endswith("\n"):
        time.sleep(0.02)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    process.kill()
    until = time.monotonic() + 5
    while alive := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < until, alive
        time.sleep(0.02)


def _parent(path):
    engine = Processes(tool_workload(), workers=2)
    path.write_text(" ".join(map(str, engine.pids)) + "\n")
    time.sleep(60)


def _runs(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---------------------------------------------------------------- bad input


def setting(flag: str, what: str) -> Setting:
    """The tools, which do `what` at each step while the file `flag` exists."""
    made = tool_setting()

    def step(state, text):
        there = os.path.exists(flag)
        if what == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (600 if there else resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        elif there and what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif there and what == "hang":
            time.sleep(60)
        elif there:
            raise KeyError(what)
        return kernel.step(state, text)

    return Setting(made.world, made.grader, made.max_action_tokens, step)


@pytest.fixture
def troubled(tmp_path, policy):
    (tmp_path / "logs").mkdir()
    made = []

    def build(what, **options):
        (tmp_path / "flag").touch()
        workload = Workload(Recipe(f"{__name__}:setting", {"flag": str(tmp_path / "flag"), "what": what}), 4, 16)
        made.append(Processes(workload, tmp_path / "logs", **options))
        made[0].publish(policy)
        return made[0], tmp_path / "flag"

    yield build
    made[0].close()


def test_a_full_disk_stops_the_collection_and_loses_nothing(troubled, expected):
    engine, flag = troubled("full", workers=2)
    known = {}
    with pytest.raises(OSError, match=r"was not logged .*are kept: mend that and play the episode again"):
        engine.collect(PLAYS, seen=lambda records: known.update({r.noise_episode: r for r in records}))
    flag.unlink()
    assert hashes(engine.collect(PLAYS, known=known)) == hashes(expected)


def test_an_error_of_the_environment_is_told(troubled, expected):
    engine, flag = troubled("a fault", workers=1)
    with pytest.raises(KeyError, match="a fault"):
        engine.collect(PLAYS)
    flag.unlink()
    assert hashes(engine.collect(PLAYS)) == hashes(expected)


def test_workers_that_always_die(troubled, expected, monkeypatch):
    monkeypatch.setattr("course.systems.engine.PATIENCE", 3)
    engine, flag = troubled("die", workers=1)
    with pytest.raises(LostWorker, match=r"4 in a row died over shard 0 \(exit code -9\): nothing is lost"):
        engine.collect(PLAYS)
    flag.unlink()
    assert hashes(engine.collect(PLAYS)) == hashes(expected)


def test_a_worker_that_hangs_is_replaced(troubled, expected):
    engine, flag = troubled("hang", workers=1, deadline=3.0)

    def mend() -> None:
        while not engine.replaced:
            time.sleep(0.01)
        flag.unlink()

    threading.Thread(target=mend).start()
    assert hashes(engine.collect(PLAYS)) == hashes(expected)
    assert engine.replaced >= 1


def test_a_policy_that_arrives_changed(fresh):
    fresh.publish(blank_policy(3))
    spec, weights = fresh.law.parts
    weights["model.norm.weight"][0] += 1
    with pytest.raises(WrongRecord, match="must have the stamp it was published under"):
        policy_of(fresh.law)
    fresh.start(Shard(0, {0: PLAYS[0]}))
    with pytest.raises(WrongRecord, match="publish again"):
        while not fresh.finished():
            pass
    fresh.abandon()
    with pytest.raises(ValueError, match="workers must be at least 1"):
        Processes(tool_workload(), workers=0)
