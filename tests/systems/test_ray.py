"""Ray actors are one more engine: the same records and weights, whoever is killed.

All tests that need the cluster are here, one behind the other, so that pytest-xdist's worksteal, which deals out and steals whole runs
of neighbours, seldom parts them. Parted they need two clusters, which don't meet. --dist loadgroup would keep a group together, but
deals out all other tests singly, and nearly every module's fixtures (a lab's execution, trained policies) would be made by each worker.
"""

import contextlib
import os
import signal
import time
from types import SimpleNamespace

import pytest
from kills import killing

from course.feedback.events import evidence_event
from course.rollout.episodes import Play, episode_seed
from course.rollout.replay import Recipe
from course.rollout.write_ahead import forget
from course.systems.engine import InProcess, LostWorker, Shard, WrongRecord, tool_workload
from course.systems.ray_cluster import RayActors, start_ray
from course.systems.ray_rewards import RayRewardService
from course.systems.reward_service import Retry
from course.systems.run import problems, run, tool_plan
from course.training.tool_agent import blank_policy, lookups

EVIDENCE = Recipe("course.systems.reward_service:recorded_evidence")
SAID = {"source": "verify_answer", "version": "1"}
PLAYS = [Play(task, episode_seed(2, i), 2, i) for i, task in enumerate(lookups(8, 2))]


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
def engine(cluster, tmp_path_factory):
    with RayActors(tool_workload(rows=4), tmp_path_factory.mktemp("logs"), actors=2) as made:
        yield made


@pytest.fixture
def fresh(engine, policy):
    engine.publish(policy)
    forget(engine.logs, PLAYS)
    return engine


@pytest.fixture
def service(cluster):
    made = []

    def make(recipe, **options):
        made.append(RayRewardService(recipe, **SAID, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_equal_records(fresh, expected):
    assert hashes(fresh.collect(PLAYS)) == hashes(expected) and fresh.finished(0) == []


def test_a_run_on_ray_that_is_killed_five_times(fresh, service, tmp_path):
    """Rollout actors and reward services on Ray, both among those that are killed."""
    plan = tool_plan(5, tool_workload(rows=4), groups=2, group_size=4)
    with_ray, alone = tmp_path / "ray", tmp_path / "alone"
    engines, rewards = [], service(EVIDENCE, retry=Retry(100, timeout=30, backoff=0.01, factor=1))

    def ray_engine(workload, logs):
        engines.append(RayActors(workload, logs, actors=2))
        return engines[-1]

    def victims(draw):
        return [pid for pid in [*engines[-1].pids, *rewards.pids] if _alive(pid)] if engines else []

    with killing(5, victims, [with_ray / "logs"]) as kills:
        with contextlib.closing(run(with_ray, plan, 1000, engine=ray_engine, feedback=rewards.feedback)) as entries:
            rounds = next(entry.round.index + 1 for entry in entries if len(kills) == 5)
    list(run(alone, plan, rounds))
    assert len(set(kills)) == 5 and problems(with_ray) == [] == problems(alone)
    (mine,), (theirs,) = ((folder / "checkpoints").glob("*") for folder in (with_ray, alone))
    assert mine.read_bytes() == theirs.read_bytes()


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_rewards_from_ray_are_the_verifier_s(service, expected):
    made = service(EVIDENCE)
    assert made.feedback(expected, 0) == [evidence_event(record) for record in expected] and made.desk.requests == {}
    with pytest.raises(ValueError, match="workers must be at least 1"):
        service(EVIDENCE, workers=0)


def test_graders_without_a_place_are_an_error_and_no_silence(service, expected, monkeypatch):
    monkeypatch.setattr("course.systems.ray_rewards.START", 0.5)
    made = service(EVIDENCE, workers=1, cpus=1000)
    with pytest.raises(RuntimeError, match="graders must start within 0.5 s: the cluster needs free CPUs"):
        made.feedback(expected[:1], 0)


def test_actors_without_a_place_are_an_error_and_no_silence(cluster, policy, monkeypatch):
    with RayActors(tool_workload(rows=4), actors=1, cpus=1000) as made:
        made.publish(policy)
        made.start(Shard(0, dict(enumerate(PLAYS[:2]))))
        assert made.finished(timeout=0) == []
        monkeypatch.setattr("course.systems.ray_cluster.START", 0.5)
        with pytest.raises(RuntimeError, match="actors must start within 0.5 s: the cluster needs free CPUs .* nothing is lost"):
            made.finished()


def test_graders_on_ray_that_fail_die_and_are_killed_lose_nothing(service, expected):
    make = Recipe("course.systems.reward_service:unreliable", {"make": EVIDENCE, "seed": 1, "fails": 0.2, "dies": 0.1})
    made = service(make, retry=Retry(attempts=12, timeout=10.0, backoff=0.0))
    until = time.monotonic() + 120
    while not made.pids:
        assert time.monotonic() < until
        time.sleep(0.1)
    os.kill(made.pids[0], signal.SIGKILL)  # with nothing to do: it is found at its first task
    made.ask(expected)
    assert made.settled(expected, timeout=120) == [evidence_event(record) for record in expected] and made.replaced >= 1


def test_a_grader_on_ray_that_is_late_is_missing_and_freed(service, expected):
    make = Recipe("course.systems.reward_service:unreliable", {"make": EVIDENCE, "seed": 1, "hangs": 1.0})
    made = service(make, retry=Retry(attempts=1, timeout=0.5), workers=1)
    (event,) = made.feedback(expected[:1], 0)
    assert event.kind == "abstention" and "no answer in 0.5 s" in event.reason and made.replaced == 1


def test_actors_that_always_die(fresh, expected, monkeypatch):
    monkeypatch.setattr("course.systems.engine.PATIENCE", 0)
    until = time.monotonic() + 120
    while len(fresh.pids) < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    for pid in fresh.pids:
        os.kill(pid, signal.SIGKILL)  # before they are given anything: a shard may be played while the pids are asked for
    fresh.start(fresh.workload.shards(PLAYS)[0])
    with pytest.raises(LostWorker, match="1 in a row died over shard 0 .*nothing is lost"):
        while not fresh.finished():
            pass
    ((_, records),) = fresh.finished()  # the shard is still there, and so are new actors
    assert hashes(records.values()) == hashes(expected[:4])


def test_a_policy_that_arrives_changed(fresh):
    fresh.publish(blank_policy(3))
    fresh.law.parts[1]["model.norm.weight"][0] += 1
    with pytest.raises(WrongRecord, match="publish again"):
        fresh.collect(PLAYS)
    assert not start_ray()


@pytest.mark.parametrize("name", ["OutOfMemoryError", "ObjectLostError", "NodeDiedError"])
def test_whatever_ray_calls_a_lost_actor(name, policy, monkeypatch):
    """No cluster: an actor that the memory monitor killed, or an answer that went with its machine, is no RayActorError."""
    exceptions = pytest.importorskip("ray.exceptions")
    monkeypatch.setattr("course.systems.engine.PATIENCE", 0)
    lost, made = getattr(exceptions, name), []

    def get(reference):
        raise lost.__new__(lost)

    engine = RayActors.__new__(RayActors)
    super(RayActors, engine).__init__(tool_workload(rows=4))
    engine._ray = SimpleNamespace(wait=lambda references, **_: (references, []), get=get, exceptions=exceptions)
    engine._actors, engine._new, engine._up = [None], made.append, True
    engine.publish(policy)
    task = (engine.law, engine.workload.shards(PLAYS)[0])
    engine._tasks = {"reference": (0, task)}
    monkeypatch.setattr(lost, "__str__", lambda error: "gone")
    with pytest.raises(LostWorker, match=r"1 in a row died over shard 0 \(gone\): nothing is lost"):
        engine.finished()
    assert list(engine._queue) == [task] and made == [0]
