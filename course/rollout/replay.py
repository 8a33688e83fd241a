"""An episode made again from its record: the same bits on the same machine, or the name of what has changed.

    python -m course.rollout.replay FOLDER STORE

reads the archive in FOLDER and replays every record of STORE, in a process that knows nothing else.
"""

import importlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence, TypeVar

from course.envs.kernel import World
from course.language.serializer import LAYOUTS
from course.models.policy import Policy
from course.rollout.episodes import KEY, Grader, LayoutError, Play, play_episodes
from course.rollout.record import Record
from course.tasks.agent import AgentTask

T = TypeVar("T")
By = Mapping[str, T] | Callable[[str], T | None]  # something by its version, None if there is no such version
MANIFEST, SIDECAR = "archive.json", "policy.json"


@dataclass(frozen=True)
class Difference:
    """One thing that is not as recorded. at: the first token or step at which it is not."""

    field: str
    recorded: Any
    replayed: Any
    at: int | None = None

    def __str__(self) -> str:
        place = self.field if self.at is None else f"{self.field}[{self.at}]"
        return f"{place}: recorded {str(self.recorded)[:80]}, now {str(self.replayed)[:80]}"


@dataclass(frozen=True)
class ReplayReport:
    """What a replay found. A changed version is the only difference named, and so is a layout that can't be: nothing ran then."""

    equal: bool
    differences: tuple[Difference, ...] = ()
    episode: str = ""

    def __post_init__(self) -> None:
        if self.equal != (not self.differences):
            raise ValueError(f"equal must be True if and only if there is no difference; got {self.equal}, {self.differences}")

    def __str__(self) -> str:
        return f"episode {self.episode[:12]}: {'; '.join(map(str, self.differences)) or 'equal'}"


class Archive:
    """Everything that records name, by version: policies on disk, worlds and graders as code, tasks with their hidden parts.

    worlds by name@version, graders by verifier@version, tasks by digest: mappings, or functions that give None for what they do
    not have. key: the runtime's, without which no signature can be made again.
    """

    def __init__(
        self, folder: str | os.PathLike, *, worlds: By[World], graders: By[Grader], tasks: By[AgentTask], key: bytes = KEY
    ):
        self.folder, self.key = Path(folder), key
        self.world, self.grader, self.task = (x.get if isinstance(x, Mapping) else x for x in (worlds, graders, tasks))
        self._policies: dict[str, Policy] = {}

    def keep(self, policy: Policy, temperature: float = 1.0) -> str:
        """Write a policy in the Hugging Face format into a folder that is named by its stamp; returns the stamp."""
        stamp = policy.stamp(temperature)
        folder = self.folder / stamp
        policy.save_pretrained(folder)
        plain = {"serializer": policy.serializer.name, "device": policy.device.type}
        (folder / SIDECAR).write_text(json.dumps(plain), encoding="utf-8")
        return stamp

    def policy(self, stamp: str) -> Policy | None:
        """The policy that was kept under a stamp, None if none was. stamp() tells whether it still has that stamp."""
        if stamp not in self._policies:
            folder = self.folder / stamp
            if not (folder / SIDECAR).is_file():
                return None
            plain = json.loads((folder / SIDECAR).read_text(encoding="utf-8"))
            found = Policy.from_pretrained(folder, device=plain["device"])
            self._policies[stamp] = Policy(found.model, found.tokenizer, LAYOUTS[plain["serializer"]]())
        return self._policies[stamp]

    def stamp(self, stamp: str, temperature: float) -> str:
        """The stamp that the policy kept under a stamp really has, now: it may have been changed in memory since it was read."""
        return self.policy(stamp).stamp(temperature)

    @classmethod
    def open(cls, folder: str | os.PathLike, key: bytes = KEY) -> "Archive":
        """An archive whose worlds, graders and tasks are made as write_manifest noted."""
        path = Path(folder) / MANIFEST
        if not path.is_file():
            raise ValueError(f"folder must hold {MANIFEST}; {folder} has none: write it with write_manifest")
        found = json.loads(path.read_text(encoding="utf-8"))
        worlds = [Recipe(**recipe).made() for recipe in found["worlds"]]
        tasks = [task for recipe in found["tasks"] for task in Recipe(**recipe).made()]
        return cls(
            folder,
            worlds={f"{world.name}@{world.version}": world for world in worlds},
            graders={version: Recipe(**recipe).made() for version, recipe in found["graders"].items()},
            tasks={task.digest(): task for task in tasks},
            key=key,
        )


@dataclass(frozen=True)
class Recipe:
    """How another process makes something: make, as "module:name", is called with the arguments; without any, it is the thing."""

    make: str
    arguments: Mapping[str, Any] | None = field(default_factory=dict)  # None: do not call

    def made(self) -> Any:
        module, _, name = self.make.partition(":")
        found = getattr(importlib.import_module(module), name, None) if name else None
        if found is None:
            raise ValueError(f"make must name something that exists as module:name; got {self.make!r}")
        return found if self.arguments is None else found(**self.arguments)


def write_manifest(
    folder: str | os.PathLike, *, worlds: Sequence[Recipe], graders: Mapping[str, Recipe], tasks: Sequence[Recipe]
) -> None:
    """Note how to make worlds, graders (by verifier@version) and lists of tasks, for Archive.open in another process."""
    plain = {
        "worlds": [vars(recipe) for recipe in worlds],
        "graders": {version: vars(recipe) for version, recipe in graders.items()},
        "tasks": [vars(recipe) for recipe in tasks],
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / MANIFEST).write_text(json.dumps(plain, indent=1), encoding="utf-8")


def replay(record: Record, *, archive: Archive) -> ReplayReport:
    """Make an episode again from its record and say whether it is the same, bit for bit.

    First the versions: a policy, world, grader or task that is not the recorded one is named, and nothing is run. Then the
    episode is decoded in its own row of a batch of the recorded shape, since sums depend on that.
    """
    return replay_many([record], archive)[0]


def replay_many(records: Sequence[Record], archive: Archive) -> list[ReplayReport]:
    """replay() of each; episodes of different rows share one batch. A record that can't be played spoils no other's replay."""
    stamps: Stamps = {}
    reports: dict[int, ReplayReport] = {}
    batches: dict[tuple, list[dict[int, int]]] = {}  # by everything that a batch shares: which record is in which row
    for number, record in enumerate(records):
        if changed := changed_versions(record, archive, stamps):
            reports[number] = ReplayReport(False, changed, record.episode)
            continue
        shared = (record.versions, record.temperature, record.max_action_tokens, record.layout.rows, record.layout.columns)
        waiting = batches.setdefault(shared, [])
        batch = next((batch for batch in waiting if record.layout.row not in batch), None)
        if batch is None:
            waiting.append(batch := {})
        batch[record.layout.row] = number
    for waiting in batches.values():
        for batch in waiting:
            again = _again({row: records[number] for row, number in batch.items()}, archive)
            for row, number in batch.items():
                made = again[row]
                found = differences(records[number], made) if isinstance(made, Record) else (made,)
                reports[number] = ReplayReport(not found, found, records[number].episode)
    return [reports[number] for number in range(len(records))]


def _again(batch: Mapping[int, Record], archive: Archive) -> dict[int, Record | Difference]:
    """Records by row, of one batch, played again; a Difference where the layout can't be."""
    first = next(iter(batch.values()))
    try:
        again, _ = play_episodes(
            archive.policy(first.versions.policy),
            archive.world(first.versions.environment),
            {row: _play(record, archive) for row, record in batch.items()},
            grader=archive.grader(first.versions.grader),
            max_action_tokens=first.max_action_tokens, temperature=first.temperature, key=archive.key,
            rows=first.layout.rows, columns=first.layout.columns,
        )  # fmt: skip
        return dict(again)
    except LayoutError as error:
        if len(batch) == 1:  # otherwise it may be due to one of them
            recorded = {**vars(first.layout), "max_action_tokens": first.max_action_tokens}
            return {row: Difference("layout", recorded, str(error)) for row in batch}
    return {row: made for row, record in batch.items() for made in _again({row: record}, archive).values()}


def _play(record: Record, archive: Archive) -> Play:
    words = zip(record.steps, record.steps[1:])
    confirmed = tuple(after.outcome != "denied" for asked, after in words if asked.outcome == "waiting")
    task = archive.task(record.task_digest)
    return Play(task, record.environment_seed, record.sampling_seed, record.noise_episode, confirmed)


Stamps = dict[tuple[str, float], str]


def changed_versions(record: Record, archive: Archive, stamps: Stamps | None = None) -> tuple[Difference, ...]:
    """What the archive lacks of what the record names, or has under its name in another version.

    stamps: those worked out before, and the new ones; share it among records only while no policy can change.
    """
    versions, found, stamps = record.versions, [], {} if stamps is None else stamps

    def compare(name: str, recorded: str, now: str | None) -> None:
        if recorded != now:
            found.append(Difference(name, recorded, now or "not in the archive"))

    policy = archive.policy(versions.policy)
    if policy is not None:
        compare("tokenizer", versions.tokenizer, policy.tokenizer and policy.tokenizer.digest())
        compare("serializer", versions.serializer, policy.serializer.digest())
    of = (versions.policy, record.temperature)
    if policy is not None and of not in stamps:
        stamps[of] = archive.stamp(*of)
    compare("policy", versions.policy, policy and stamps[of])
    world = archive.world(versions.environment)
    compare("environment", versions.environment, world and f"{world.name}@{world.version}")
    compare("grader", versions.grader, versions.grader if archive.grader(versions.grader) else None)
    task = archive.task(record.task_digest)
    compare("task", record.task_digest, task and task.digest())
    if task is not None and task.public() != dict(record.task):
        found.append(Difference("task", dict(record.task), task.public()))
    return tuple(found)


def differences(record: Record, again: Record) -> tuple[Difference, ...]:
    """What is not equal in two records of an episode, log-probabilities by their float32 bits; wall-clock times are left out."""
    found = []
    for name, part in PARTS.items():
        old, new = part(record), part(again)
        if old == new:
            continue
        if isinstance(old, list) and isinstance(new, list):
            at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
            old, new = (x[at] if at < len(x) else "nothing" for x in (old, new))
            found.append(Difference(name, old, new, at))
        else:
            found.append(Difference(name, old, new))
    if not found and record.content_hash != again.content_hash:
        found.append(Difference("content_hash", record.content_hash, again.content_hash))
    return tuple(found)


PARTS: dict[str, Callable[[Record], Any]] = {
    "episode": lambda r: r.episode,
    "tokens": lambda r: list(r.tokens),
    "spans": lambda r: [tuple(span) for span in r.encoded.spans],
    "stops": lambda r: [stop and stop.value for stop in r.encoded.stops],
    "logprobs": lambda r: [(p, p.hex()) for p in r.logprobs],  # 0.0 equals -0.0, and is not the same number
    "actions": lambda r: [(s.span, s.text, s.tool, s.arguments and dict(s.arguments), s.outcome, s.reason) for s in r.steps],
    "observations": lambda r: [s.observation for s in r.steps],
    "hashes": lambda r: [(s.observation_hash, s.result_hash) for s in r.steps],
    "costs": lambda r: [dict(s.cost) for s in r.steps],
    "signatures": lambda r: [s.signature for s in r.steps],
    "ending": lambda r: r.ending,
    "reward": lambda r: r.reward,
    "evidence": lambda r: r.evidence.to_json(),
    "versions": lambda r: vars(r.versions),
    "layout": lambda r: r.layout,
}


def main(arguments: Sequence[str]) -> int:
    """Replay every record of a store; returns 0 if all are equal."""
    from course.rollout.store import Store

    if len(arguments) != 2:
        print("usage: python -m course.rollout.replay FOLDER STORE")
        return 2
    archive = Archive.open(arguments[0])
    found = list(Store(arguments[1]).records())
    records = [record for record in found if isinstance(record, Record)]
    began = time.perf_counter()
    reports = replay_many(records, archive)
    seconds = time.perf_counter() - began
    for report in reports:
        if not report.equal:
            print(report)
    equal = sum(report.equal for report in reports)
    print(
        f"{equal} of {len(found)} episodes equal bit for bit, in {seconds:.1f} s; {len(found) - len(records)} could not be read"
    )
    return 0 if found and equal == len(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
