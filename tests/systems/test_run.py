"""A run in a folder: killed at any time, on any engine, it is the run that nothing happened to."""

import contextlib
import errno
import functools
import multiprocessing.forkserver
import os
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from kills import killing

import course.systems.engine as engine_module
import course.systems.run as run_module
import course.training.round as round_module
from course.accounting.budget import Cost
from course.accounting.ledger import LedgerFile
from course.rollout.replay import Recipe
from course.rollout.store import Store
from course.rollout.write_ahead import EpisodeLog
from course.systems.engine import InProcess, tool_workload
from course.systems.processes import Processes
from course.systems.run import (
    CHECKPOINTS, LEDGER, LOGS, RECORDS, BrokenRun, Parts, Plan, problems, run, supervise, tool_parts, tool_plan, tool_service,
)  # fmt: skip
from course.training.learner import Learner
from course.training.round import run_rounds

PLAN = tool_plan(3, tool_workload(rows=4), groups=2, group_size=4)
SMALL = tool_plan(7, tool_workload(rows=4), groups=2, group_size=4)


@pytest.fixture
def folder():
    """In memory where that is possible: what is asked here is what survives a kill, not how fast a disk is."""
    made = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The entries of two rounds, the records in their order and the last checkpoint."""
    folder = tmp_path_factory.mktemp("undisturbed")
    entries = list(run(folder, PLAN, 2))
    return entries, recorded(folder), weights(folder)


def recorded(folder):
    with Store(folder / RECORDS) as store:
        return sorted(record.content_hash for record in store.records())


def weights(folder):
    (checkpoint,) = (folder / CHECKPOINTS).iterdir()
    return checkpoint.name, checkpoint.read_bytes()


def same(folder, undisturbed):
    assert problems(folder) == []
    assert (recorded(folder), weights(folder)) == undisturbed[1:]


def test_a_run_in_a_folder_is_the_run_in_memory(undisturbed):
    parts = tool_parts(groups=2, group_size=4)
    entries = list(run_rounds(parts.learner, parts.operators, rounds=2, seed=3))
    mine = undisturbed[0]
    assert [e.round.instance for e in mine] == [e.round.instance for e in entries]
    assert [e.round.seeds for e in mine] == [e.round.seeds for e in entries]
    # the batches are cut otherwise, so equality of bits is not promised, and the first round's policy is the same
    assert mine[0].round.stamp == entries[0].round.stamp and mine[0].round.cost == entries[0].round.cost


def test_processes_and_services_give_the_same_ledger(folder, undisturbed):
    service = tool_service()
    try:
        made = list(run(folder, PLAN, 2, engine=functools.partial(Processes, workers=2), feedback=service.feedback))
    finally:
        service.close()
    assert made == undisturbed[0]
    same(folder, undisturbed)
    assert list((folder / LOGS).iterdir()) == []


def test_going_on_with_other_engines(folder, undisturbed):
    entries = []
    for rounds, engine in ((1, InProcess), (1, InProcess), (2, functools.partial(Processes, workers=1))):
        entries += run(folder, PLAN, rounds, engine=engine)
    assert entries == undisturbed[0]
    same(folder, undisturbed)


class Stop(BaseException):
    """As a kill: nobody catches it."""


# the n-th call of each does not return: between a shard and its record, a record and the next, before proposal, checkpoint and
# entry in the ledger, behind it, and at a token
STAGES = [
    (engine_module, "play_shard", 2), (Store, "append", 3), (round_module, "propose", 1), (Learner, "save", 3),
    (LedgerFile, "append", 1), (run_module, "forget", 1), (EpisodeLog, "token", 300),
]  # fmt: skip


@pytest.mark.parametrize("owner, name, call", STAGES)
def test_stopped_at_every_stage(folder, undisturbed, monkeypatch, owner, name, call):
    real, calls = getattr(owner, name), []

    def stopping(*arguments, **options):
        calls.append(1)
        if len(calls) == call:
            raise Stop
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, stopping)
        with pytest.raises(Stop):
            list(run(folder, PLAN, 2))
    list(run(folder, PLAN, 2))
    same(folder, undisturbed)


def test_no_round_gives_the_start(folder):
    assert list(run(folder, PLAN, 0)) == [] and problems(folder) == []
    assert tool_parts(groups=2).learner.load(next((folder / CHECKPOINTS).iterdir())).step == 0


def budgeted() -> Parts:
    parts = tool_parts(groups=2, group_size=4)
    return Parts(parts.learner, parts.operators, 4, Cost(episodes=20, **LARGE), Cost(episodes=8, **LARGE_BOUND))


LARGE_BOUND = {
    name: 10**4 for name in ("calls", "compute", "price", "sampled_tokens", "judged_tokens", "trained_tokens", "updates")
}
LARGE = {name: 10 * value for name, value in LARGE_BOUND.items()}


def test_a_budget_holds_over_interruptions(folder):
    plan = Plan(Recipe(f"{__name__}:budgeted"), tool_workload(rows=4), 3)
    assert len(list(run(folder, plan, 1))) == 1
    assert len(list(run(folder, plan, 9))) == 1 and list(run(folder, plan, 9)) == []


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("owner, name", [(Learner, "save"), (LedgerFile, "append"), (Store, "append"), (EpisodeLog, "token")])
def test_a_full_disk(folder, undisturbed, monkeypatch, owner, name):
    """Whatever could not be written, the run goes on when there is room."""
    real, calls = getattr(owner, name), []

    def full(*arguments):
        calls.append(1)
        if len(calls) >= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        with pytest.raises(OSError, match="No space left") as error:
            list(run(folder, PLAN, 2))
        assert error.value.errno == errno.ENOSPC
        if owner in (Learner, LedgerFile):
            assert "its records are kept; mend that and go on" in str(error.value)
    list(run(folder, PLAN, 2))
    same(folder, undisturbed)


def test_a_full_disk_under_the_ledger_has_a_number(folder, undisturbed):
    """SQLite's errors have none, and `[Errno None]` would tell nobody anything."""
    list(run(folder, PLAN, 1))
    entries = run(folder, PLAN, 2)
    with sqlite3.connect(folder / LEDGER) as file:
        file.execute("CREATE TRIGGER foreign_one AFTER INSERT ON rounds BEGIN SELECT 1; END")
    with pytest.raises(OSError, match=r"\[Errno 5\] round 1 is not committed .*drop foreign_one"):
        list(entries)
    with sqlite3.connect(folder / LEDGER) as file:
        file.execute("DROP TRIGGER foreign_one")
    list(run(folder, PLAN, 2))
    same(folder, undisturbed)


def test_folders_whose_parts_do_not_belong_together(folder, monkeypatch):
    list(run(folder, PLAN, 1))
    with pytest.raises(BrokenRun, match="plan must be that of .* take another folder"):
        list(run(folder, SMALL, 2))
    monkeypatch.setattr(run_module, "PATIENCE", 0.05)
    with run_module._alone(folder / "lock"), pytest.raises(OSError, match="another learner has held it"):
        list(run(folder, PLAN, 2))
    (checkpoint,) = (folder / CHECKPOINTS).iterdir()
    checkpoint.rename(folder / "away")
    assert problems(folder) == ["the checkpoint of 1 rounds is missing"]
    with pytest.raises(BrokenRun, match="must hold 000001.safetensors.*restore it"):
        list(run(folder, PLAN, 2))
    (folder / "away").rename(checkpoint)
    with Store(folder / RECORDS) as store:
        first = next(store.records())
        store.append([first])
    assert problems(folder) == ["1 records are stored more than once"]
    with pytest.raises(BrokenRun, match="row 8 of records.sqlite must be an episode of the round under way"):
        list(run(folder, PLAN, 2))
    (folder / RECORDS).unlink()
    with pytest.raises(BrokenRun, match="must hold the 8 records of the ledger's rounds; got 0"):
        list(run(folder, PLAN, 2))
    assert "round 0 must have its 8 records in rows 0 to 7" in problems(folder)


def test_a_learner_that_raises_is_not_started_again(folder):
    plan = Plan(Recipe("course.systems.run:no_such_parts"), tool_workload(rows=4), 3)
    with pytest.raises(RuntimeError, match="the learner stopped: ValueError: make must name something that exists"):
        list(supervise(folder, plan, 1))


# ---------------------------------------------------------------- two hundred kills


def children(server: int, but: int) -> dict[int, str]:
    """Process ids and names of everything that a fork server has started, but one."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (path / "stat").read_text().partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            if int(parent) == server and state != "Z" and int(path.name) != but:
                found[int(path.name)] = name
    return found


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for processes in /proc")
def test_two_hundred_kills(folder):
    """Of workers, reward services and the learner, at random times over one run: about a minute on two cores.

    Between two kills something must have come on, or a slow machine would never get anywhere.
    """
    plan, learner, names = SMALL, [], {}

    def victims(draw: random.Random) -> list[int]:
        """The learner one time in seven, and the last time, so that it is looked at again; else a worker or a service."""
        if not learner or draw.random() < 0.15 or len(kills) == 199:
            return learner[-1:]
        others = children(multiprocessing.forkserver._forkserver._forkserver_pid, learner[-1])
        names.update(others)
        return [pid for pid, name in others.items() if name != "learner"]

    learners = supervise(folder, plan, 10**6, workers=2, service=Recipe("course.systems.run:tool_service"), patience=200)
    with killing(200, victims, [folder / LOGS, folder / CHECKPOINTS, folder]) as kills:
        for pid in learners:
            learner.append(pid)
            if len(kills) == 200:
                break
    learners.close()
    with contextlib.closing(sqlite3.connect(folder / LEDGER)) as file:
        rounds = file.execute("SELECT count(*) FROM rounds").fetchone()[0] + 1
    counts = Counter(names.get(pid, "learner") for pid in kills)
    print(f"{dict(counts)} killed in {rounds} rounds")
    assert len(kills) == 200 and min(counts[name] for name in ("learner", "rollout worker", "reward service")) > 5
    entries = list(run(folder, plan, rounds))
    assert len(entries) == 1 and problems(folder) == []
    with tempfile.TemporaryDirectory(dir=folder) as other:
        again = list(run(other, plan, rounds))
        assert again[-1] == entries[-1]  # the ledger's chain: everything before it is equal too
        assert recorded(Path(other)) == recorded(folder) and len(recorded(folder)) == 8 * rounds
        assert weights(Path(other)) == weights(folder)
