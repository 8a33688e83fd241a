"""A run in a folder that may be killed at any time: every admitted play is recorded once, and going on gives the undisturbed run.

    plan.json       what the run is; it does not change
    records.sqlite  every episode, as soon as its shard is done
    logs/           write-ahead logs of episodes that are being played
    checkpoints/    the state before the round that comes next
    ledger.sqlite   the rounds that are committed

A round is committed by its entry in the ledger, and the checkpoint of what it commits is on the disk before that. So a run goes on
from the checkpoint that the ledger asks for; records behind the ledger's last round belong to the round that was under way, and are
used and not made again.
"""

import errno
import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import torch

from course.accounting.budget import Cost
from course.accounting.ledger import Entry, LedgerFile, verify_ledger
from course.language.stamp import canonical_json
from course.models.policy import Policy
from course.rollout.episodes import Episodes, Play, plays_of
from course.rollout.record import Record
from course.rollout.replay import Recipe
from course.rollout.store import CorruptRow, Store
from course.rollout.write_ahead import forget, lock
from course.systems.engine import Engine, InProcess, Workload
from course.systems.processes import Processes, context, end_with_parent
from course.systems.reward_service import Retry, RewardService
from course.tasks.agent import AgentTask
from course.training.grpo import GrpoConfig
from course.training.learner import Learner
from course.training.round import Operators, run_rounds, tool_round
from course.training.tool_agent import LR, blank_policy

PATIENCE = 10.0  # seconds that a run's folder may still be held by a learner which is about to die
PLAN, RECORDS, LEDGER, LOGS, CHECKPOINTS, LOCK = "plan.json", "records.sqlite", "ledger.sqlite", "logs", "checkpoints", "lock"


class BrokenRun(ValueError):
    """A folder whose parts do not belong together."""


@dataclass(frozen=True)
class Parts:
    """Where a run starts, and its operators; rollout and feedback may be carried out elsewhere. group_size: episodes of each task."""

    learner: Learner
    operators: Operators
    group_size: int
    budget: Cost | None = None
    bound: Cost | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run. make: gives the Parts in any process."""

    make: Recipe
    workload: Workload
    seed: int

    def to_json(self) -> dict[str, Any]:
        return {"make": vars(self.make), "workload": {**vars(self.workload), "make": vars(self.workload.make)}, "seed": self.seed}


Engines = Callable[[Workload, Path], Engine]  # (workload, folder of logs)
Feedback = Callable[[Sequence[Record], int], Sequence[Any]]


def run(
    folder: str | os.PathLike, plan: Plan, rounds: int, *, engine: Engines = InProcess, feedback: Feedback | None = None
) -> Iterator[Entry]:
    """Begin the run in the folder, or go on with it, up to round number `rounds`; yields each entry once it is committed.

    feedback: in place of the plan's, for instance RewardService.feedback; it must say the same.
    Reduces to: run_rounds in memory, with the same records, weights and ledger, for every engine and however often it was killed.
    Raises: BrokenRun if the folder is of another plan or something in it is missing; OSError if it can't be written (a full disk) or
    another learner has it; what the engine raises. Everything that was stored counts: mend what the error names and call again.
    """
    with ExitStack() as opened:
        here = _Folder(Path(folder), plan, opened)
        workers = opened.enter_context(engine(plan.workload, here.path / LOGS))
        parts = here.parts
        rollout = _rollout(here, workers, parts.group_size)
        shape = f"shards of {plan.workload.rows} x {plan.workload.columns}@1"
        operators = replace(
            parts.operators, rollout=rollout, feedback=feedback or parts.operators.feedback,
            versions={**parts.operators.versions, "rollout": shape},
        )  # fmt: skip
        entries = run_rounds(
            parts.learner, operators, rounds=rounds, seed=plan.seed, budget=parts.budget, bound=parts.bound,
            ledger=here.ledger.entries(),
        )  # fmt: skip
        for entry in entries:
            here.commit(entry, parts.learner)
            yield entry


class _Folder:
    """An opened run: its files, its parts in the state that the ledger commits, and how many records belong to finished rounds."""

    def __init__(self, path: Path, plan: Plan, opened: ExitStack):
        self.path = path
        for name in (LOGS, CHECKPOINTS):
            (path / name).mkdir(parents=True, exist_ok=True)
        opened.enter_context(_alone(path / LOCK))
        said = canonical_json(plan.to_json())
        if not (path / PLAN).exists():
            _write(path / PLAN, said)
        elif (found := (path / PLAN).read_text(encoding="utf-8")) != said:
            raise BrokenRun(f"plan must be that of {path}, {found[:200]}; got {said[:200]}: take another folder for another run")
        self.store = opened.enter_context(Store(path / RECORDS))
        self.ledger = opened.enter_context(LedgerFile(path / LEDGER))
        self.parts: Parts = plan.make.made()
        self.plays: list[Play] = []
        entries = self.ledger.entries()
        self.recorded = sum(len(entry.round.trajectory) for entry in entries)
        if len(self.store) < self.recorded:
            raise BrokenRun(f"{RECORDS} must hold the {self.recorded} records of the ledger's rounds; got {len(self.store)}")
        checkpoint = self._checkpoint(len(entries))
        if not entries and not checkpoint.exists():
            self._save(self.parts.learner, 0)
        if not checkpoint.exists():
            raise BrokenRun(f"{CHECKPOINTS} must hold {checkpoint.name}, which the ledger's last round committed: restore it")
        self.parts.learner.load(checkpoint)

    def known(self, plays: Sequence[Play], stamp: str) -> dict[int, Record]:
        """Records of these plays that were stored before the learner died."""
        numbers = {_key(play.task.digest(), play): number for number, play in enumerate(plays)}
        found: dict[int, Record] = {}
        for place, record in enumerate(self.store.records(self.recorded), self.recorded):
            if isinstance(record, CorruptRow):
                raise BrokenRun(f"{self.path / RECORDS}: {record}")
            number = numbers.get(_key(record.task_digest, record))
            if number is None or number in found or record.versions.policy != stamp:
                raise BrokenRun(
                    f"row {place} of {RECORDS} must be an episode of the round under way, once; got record {record.episode[:12]} of "
                    f"policy {record.versions.policy[:12]}: was the plan's code changed?"
                )
            found[number] = record
        return found

    def commit(self, entry: Entry, learner: Learner) -> None:
        """The checkpoint first, then the entry that asks for it; what only the round needed goes last."""
        done = entry.round.index + 1
        try:
            self._save(learner, done)
            self.ledger.append(entry.round)
        except OSError as error:
            raise OSError(
                error.errno or errno.EIO,  # SQLite's have no number
                f"round {done - 1} is not committed ({error}): its records are kept; mend that and go on, it is made again",
            ) from error
        self.recorded += len(entry.round.trajectory)
        forget(self.path / LOGS, self.plays)
        for old in sorted((self.path / CHECKPOINTS).iterdir()):
            if old.name < self._checkpoint(done).name:
                old.unlink()

    def _checkpoint(self, rounds: int) -> Path:
        return self.path / CHECKPOINTS / f"{rounds:06d}.safetensors"

    def _save(self, learner: Learner, rounds: int) -> None:
        path = self._checkpoint(rounds)
        try:
            learner.save(path)
        except Exception as error:  # safetensors has an error of its own for a full disk
            path.with_name(path.name + ".partial").unlink(missing_ok=True)
            number = error.errno if isinstance(error, OSError) else errno.EIO
            raise OSError(number, f"{path} was not written: {error}") from error
        _sync(path)
        _sync(path.parent)


def _rollout(here: _Folder, engine: Engine, group_size: int) -> Callable[[Policy, Sequence[AgentTask], int], Episodes]:
    """rollout= of a round: play what is not recorded yet, and record each shard as it comes."""

    def rollout(policy: Policy, tasks: Sequence[AgentTask], seed: int) -> Episodes:
        here.plays = plays_of(tasks, group_size, seed)
        stamp = engine.publish(policy)
        records = engine.collect(here.plays, known=here.known(here.plays, stamp), seen=here.store.append)
        if len(here.store) != here.recorded + len(records):
            raise BrokenRun(
                f"{RECORDS} must have grown by {len(records)}; got {len(here.store) - here.recorded}: who else writes?"
            )
        group_id = torch.arange(len(tasks)).repeat_interleave(group_size)
        return Episodes(tuple(records), group_id, policy.tokenizer.pad_id)

    return rollout


def problems(folder: str | os.PathLike) -> list[str]:
    """What is wrong with a run's folder; [] if the ledger verifies and each of its rounds' records is stored exactly once."""
    with LedgerFile(Path(folder) / LEDGER) as file, Store(Path(folder) / RECORDS) as store:
        if (bad := file.verify()) is not None:
            return [f"round {bad} of the ledger can't be trusted"]
        ledger, rows = file.entries(), list(store.records())
    found = [str(row) for row in rows if isinstance(row, CorruptRow)]
    if (bad := verify_ledger(ledger)) is not None:
        found.append(f"round {bad} of the ledger can't be trusted")
    hashes = [row.content_hash for row in rows if isinstance(row, Record)]
    begin = 0
    for entry in ledger:
        asked, there = list(entry.round.trajectory), hashes[begin : begin + len(entry.round.trajectory)]
        if sorted(asked) != sorted(there):
            found.append(
                f"round {entry.round.index} must have its {len(asked)} records in rows {begin} to {begin + len(asked) - 1}"
            )
        begin += len(asked)
    if len(set(hashes)) < len(hashes):
        found.append(f"{len(hashes) - len(set(hashes))} records are stored more than once")
    if not (Path(folder) / CHECKPOINTS / f"{len(ledger):06d}.safetensors").exists():
        found.append(f"the checkpoint of {len(ledger)} rounds is missing")
    return found


# ---------------------------------------------------------------- a learner that is started again when it dies


def supervise(
    folder: str | os.PathLike, plan: Plan, rounds: int, *, workers: int = 2, service: Recipe | None = None, patience: int = 100
) -> Iterator[int]:
    """Run a learner in a process of its own, with its workers and reward service, until the run is done.

    Yields the process id of each learner as it starts: the next one comes when that one has died. service: gives a RewardService.
    Raises: RuntimeError with the text of what the learner raised, or after `patience` learners that died without a round between.
    """
    deaths, before = 0, -1
    while True:
        made = context("tokenizers", "torch._dynamo")  # which an optimiser imports; seconds, in each new learner
        pipe, theirs = made.Pipe()
        arguments = (Path(folder), plan, rounds, workers, service, theirs)
        process = made.Process(target=_learn, args=arguments, name="learner")  # no daemon: it has children
        process.start()
        theirs.close()
        try:
            yield process.pid
            process.join()
        finally:
            process.kill()
            process.join()
        try:
            said = pipe.recv() if pipe.poll() else None
        except (EOFError, OSError):
            said = None
        pipe.close()
        if said == "done":
            return
        if said is not None:
            raise RuntimeError(f"the learner stopped: {said}")
        with LedgerFile(Path(folder) / LEDGER) as file:
            now = len(file)
        deaths, before = (deaths + 1 if now == before else 0), now
        if deaths > patience:
            raise RuntimeError(
                f"the learner must finish a round now and then; {deaths} died in round {now}, the last with exit code "
                f"{process.exitcode}: nothing is lost, look for what kills them and go on"
            )


def _learn(folder: Path, plan: Plan, rounds: int, workers: int, service: Recipe | None, pipe: Any) -> None:
    torch.set_num_threads(1)
    end_with_parent()
    try:
        rewards: RewardService | None = service and service.made()
        for _ in run(
            folder, plan, rounds, engine=lambda workload, logs: Processes(workload, logs, workers=workers),
            feedback=rewards and rewards.feedback,
        ):  # fmt: skip
            pass
        said = "done"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    pipe.send(said)


# ---------------------------------------------------------------- the three tools as a run


def tool_parts(policy_seed: int = 0, groups: int = 4, group_size: int = 4, lr: float = LR) -> Parts:
    """GRPO on the three tools with a fresh policy: small enough to be killed two hundred times in a minute."""
    config = GrpoConfig(group_size, beta=0.0, how="token")
    return Parts(Learner({"actor": blank_policy(policy_seed)}, lr=lr), tool_round(groups=groups, config=config), group_size)


def tool_service(workers: int = 1, attempts: int = 100) -> RewardService:
    """The verifier's word on each record, from processes. A killed process has failed an attempt, which says nothing of the record."""
    retry = Retry(attempts, timeout=30, backoff=0.01, factor=1)
    return RewardService(
        Recipe("course.systems.reward_service:recorded_evidence"), "verify_answer", "1", retry=retry, workers=workers
    )


def tool_plan(seed: int, workload: Workload, **arguments: Any) -> Plan:
    """arguments: those of tool_parts."""
    return Plan(Recipe(f"{__name__}:tool_parts", arguments), workload, seed)


# ---------------------------------------------------------------- files


def _key(task: str, seeds: Play | Record) -> tuple:
    return task, seeds.environment_seed, seeds.sampling_seed, seeds.noise_episode


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    _sync(partial)
    os.replace(partial, path)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One learner at a time."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        lock(file, PATIENCE, f"{path.parent}: folder must be free; another learner has held it")
        yield
    finally:
        os.close(file)
