"""The exit of level 4: an episode again from its record, bit for bit and in another process, or the name of what has changed."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toy_world as toy

import course.rollout.replay as replay_module
from course.language.serializer import ChatSerializer
from course.rollout.episodes import LayoutError, collect_episodes
from course.rollout.record import Layout, Record, text_hash
from course.rollout.replay import Archive, Recipe, ReplayReport, differences, replay, replay_many

TASKS = toy.tasks(12)
HERE = Path(__file__).parent


def archive_in(folder, world=None, **changes) -> Archive:
    world = world or toy.world()
    parts = {
        "worlds": {f"{world.name}@{world.version}": world},
        "graders": {"toy@1": toy.grade},
        "tasks": {task.digest(): task for task in TASKS},
    }
    return Archive(folder, **{**parts, **changes})


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Archive:
    made = archive_in(tmp_path_factory.mktemp("archive"))
    made.keep(toy.taught())
    made.keep(toy.taught(), temperature=0.7)
    return made


def collected(n=5, seed=0, **options) -> tuple[Record, ...]:
    options = {"grader": toy.grade, "max_action_tokens": 5, "seed": seed, **options}
    return collect_episodes(toy.taught(), toy.world(), TASKS[:n], **options).records


@pytest.fixture(scope="module")
def record() -> Record:
    return max(collected(8), key=lambda record: len(record.steps))


def fields_of(report: ReplayReport) -> list[str]:
    return [difference.field for difference in report.differences]


def test_equal_whatever_the_batch(archive):
    records = [
        *collected(5),
        *collected(1, seed=1),
        *collected(3, seed=2, group_size=2, first_episode=70),
        *collected(2, seed=3, columns=11, rows=9),
        *collected(4, seed=4, temperature=0.7),
    ]
    reports = replay_many(records, archive)
    assert reports == [ReplayReport(True, (), record.episode) for record in records]
    assert replay_many(records[::-3], archive) == reports[::-3]
    assert replay(records[3], archive=archive) == reports[3]


def test_greedy(archive, tmp_path):
    greedy = archive_in(tmp_path)
    greedy.keep(toy.taught(), temperature=0.0)
    assert all(report.equal for report in replay_many(collected(4, temperature=0.0), greedy))


def test_the_users_word_is_repeated(archive):
    wiper = toy.taught("wipe")
    archive.keep(wiper)
    options = {"grader": toy.grade, "max_action_tokens": 5, "seed": 0}
    records = collect_episodes(wiper, toy.world(), TASKS[:8], confirms=lambda action, task: task.id < "t4", **options).records
    answers = [step.outcome for record in records for step in record.steps if step.text == "wipe" and step.outcome != "waiting"]
    assert {"executed", "denied"} <= set(answers)
    assert all(report.equal for report in replay_many(records, archive))


def with_step(record: Record, **changes) -> Record:
    return replace(record, steps=(replace(record.steps[0], **changes), *record.steps[1:]))


def next_float(p: float) -> float:
    return float(np.nextafter(np.float32(p), np.float32(-9)))


CHANGED = {
    "logprobs": lambda r: replace(r, logprobs=(next_float(r.logprobs[0]), *r.logprobs[1:])),
    "observations": lambda r: with_step(r, observation="9 9", observation_hash=text_hash("9 9")),
    "actions": lambda r: with_step(r, reason="another"),
    "costs": lambda r: with_step(r, cost={"calls": 0.25}),
    "signatures": lambda r: with_step(r, signature="0" * 64),
    "episode": lambda r: replace(r, episode="0" * 64),
    "ending": lambda r: replace(r, ending="truncated" if r.ending == "terminated" else "terminated"),
    "reward": lambda r: replace(r, evidence=replace(r.evidence, decision="right", reward=7.5)),
    "evidence": lambda r: replace(r, evidence=replace(r.evidence, parsed="another")),
    "tokens": lambda r: replace(r, encoded=replace(r.encoded, tokens=(*r.tokens[:-2], (r.tokens[-2] + 1) % 30, r.tokens[-1]))),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_not_as_recorded_is_named(archive, record, name):
    report = replay(CHANGED[name](record), archive=archive)
    assert not report.equal and name in fields_of(report)
    assert set(fields_of(report)) <= {
        name,
        "hashes" if name == "observations" else name,
        "evidence" if name == "reward" else name,
    }
    assert name in str(report) and record.episode[:8] in str(report) or name == "episode"


@pytest.mark.parametrize("name", ["environment_seed", "sampling_seed", "noise_episode"])
def test_another_seed_is_another_episode(archive, record, name):
    report = replay(replace(record, **{name: getattr(record, name) + 1}), archive=archive)
    expected = {"environment_seed": "episode"}.get(name, "logprobs")
    assert expected in fields_of(report)


def test_bits_are_compared_and_not_values(record):
    assert not differences(record, record)
    start = replace(record, logprobs=(0.0, *record.logprobs[1:]))
    other = replace(record, logprobs=(-0.0, *record.logprobs[1:]))
    assert start == other  # as Python compares them
    found = differences(start, other)
    assert [(d.field, d.at) for d in found] == [("logprobs", 0)]
    assert [found[0].recorded[1], found[0].replayed[1]] == ["0x0.0p+0", "-0x0.0p+0"]
    slower = replace(record, steps=tuple(replace(step, latency_ms=1e3) for step in record.steps))
    assert not differences(record, slower)


def test_the_layout_is_part_of_the_record(archive, record):
    moved = replace(record, layout=Layout(record.layout.rows + 3, record.layout.rows, record.layout.columns))
    assert set(fields_of(replay(moved, archive=archive))) <= {"logprobs", "tokens"}  # the same but for sums in another order


def test_a_record_that_cant_be_played_spoils_no_other(archive, record):
    good = collected(4)
    wrong = [
        replace(record, layout=Layout(1, 0, 60)),
        replace(record, layout=Layout(2**50, 3, record.layout.columns)),
        replace(record, layout=replace(record.layout, columns=4096)),
        replace(record, max_action_tokens=500),
    ]
    reports = replay_many([good[0], *wrong, *good[1:]], archive)
    assert [report.equal for report in reports] == [True, False, False, False, False, True, True, True]
    assert all(fields_of(report) == ["layout"] for report in reports[1:5])
    assert [report.episode for report in reports[1:5]] == [record.episode] * 4
    assert "columns must be above" in str(reports[1]) and "rows must be as many" in str(reports[2])
    assert reports[4].differences[0].recorded["max_action_tokens"] == 500


def test_one_row_that_does_not_fit_leaves_its_batch_alone(archive, monkeypatch):
    """A batch is refused as a whole; then each of its records is tried alone."""
    good = collected(4)
    played = replay_module.play_episodes

    def refusing(policy, world, plays, **options):
        if 2 in plays:
            raise LayoutError("row 2 does not fit")
        return played(policy, world, plays, **options)

    monkeypatch.setattr(replay_module, "play_episodes", refusing)
    reports = replay_many(good, archive)
    assert [fields_of(report) for report in reports] == [[], [], ["layout"], []]


def test_a_policy_that_changes_in_memory_is_noticed(record, tmp_path):
    changing = archive_in(tmp_path)
    stamp = changing.keep(toy.taught())
    assert replay(record, archive=changing).equal
    weight = next(changing.policy(stamp).model.parameters())
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1e-3)
    changing.grader = {"toy@1": Forbidden()}.get
    assert fields_of(replay(record, archive=changing)) == ["policy"]
    changing.grader = {"toy@1": toy.grade}.get
    with torch.no_grad():
        weight.copy_(kept)
    counted, original = [], changing.stamp
    changing.stamp = lambda *of: counted.append(of) or original(*of)
    assert all(report.equal for report in replay_many(collected(5), changing))
    assert counted == [(stamp, 1.0)]  # once per call and policy


class Forbidden:
    """A grader and a start that must not be called."""

    def __call__(self, *_):
        raise AssertionError("something was run")


def test_a_changed_version_is_named_and_nothing_is_run(archive, record, tmp_path):
    forbidden = {"toy@1": Forbidden()}
    key = record.versions.environment
    cases = {
        "environment": (archive_in(archive.folder, worlds={}, graders=forbidden), record),
        "grader": (archive_in(archive.folder, graders={"toy@2": Forbidden()}), record),
        "task": (archive_in(archive.folder, tasks={}, graders=forbidden), record),
        "policy": (archive_in(tmp_path, graders=forbidden), record),
    }
    for name, (lacking, wanted) in cases.items():
        report = replay(wanted, archive=lacking)
        assert fields_of(report) == [name] and report.differences[0].replayed == "not in the archive"
    newer = toy.world(corpus="another")
    report = replay(record, archive=archive_in(archive.folder, worlds={key: newer}, graders=forbidden))
    assert fields_of(report) == ["environment"]
    assert report.differences[0].replayed == f"toy@{newer.version}" != report.differences[0].recorded == key
    hidden = replace(TASKS[0], hidden={"values": dict.fromkeys(toy.LETTERS, 1)})
    report = replay(record, archive=archive_in(archive.folder, tasks=lambda digest: hidden, graders=forbidden))
    assert "task" in fields_of(report) and set(fields_of(report)) == {"task"}


def test_changed_policies(record, tmp_path):
    stamp = archive_in(tmp_path).keep(toy.taught())
    assert stamp == record.versions.policy
    weights = tmp_path / stamp / "model.safetensors"
    plain = weights.read_bytes()
    weights.write_bytes(plain[:-1] + bytes([plain[-1] ^ 1]))  # one bit of one weight
    forbidden = {"toy@1": Forbidden()}
    assert fields_of(replay(record, archive=archive_in(tmp_path, graders=forbidden))) == ["policy"]
    weights.write_bytes(plain)
    assert replay(record, archive=archive_in(tmp_path)).equal
    sidecar = tmp_path / stamp / "policy.json"
    sidecar.write_text(sidecar.read_text().replace("compact", "chat"))
    report = replay(record, archive=archive_in(tmp_path, graders=forbidden))
    assert fields_of(report) == ["serializer", "policy"]
    assert report.differences[0].replayed == ChatSerializer().digest()
    other = replace(record, versions=replace(record.versions, tokenizer="another"))
    sidecar.write_text(sidecar.read_text().replace("chat", "compact"))
    assert fields_of(replay(other, archive=archive_in(tmp_path, graders=forbidden))) == ["tokenizer"]
    assert fields_of(replay(replace(record, temperature=0.9), archive=archive_in(tmp_path, graders=forbidden))) == ["policy"]


def test_a_grader_that_changed_its_mind(archive, record):
    def stricter(state):
        return replace(toy.grade(state), version="2")

    assert "versions" in fields_of(replay(record, archive=archive_in(archive.folder, graders={"toy@1": stricter})))


def test_another_key_signs_otherwise(archive, record):
    assert fields_of(replay(record, archive=archive_in(archive.folder, key=b"another key of a runtime"))) == ["signatures"]


def test_report_and_archive_errors(tmp_path):
    with pytest.raises(ValueError, match="equal must be True if and only if"):
        ReplayReport(False)
    with pytest.raises(ValueError, match="folder must hold archive.json"):
        Archive.open(tmp_path)
    with pytest.raises(ValueError, match="make must name something that exists"):
        Recipe("course.envs.kernel:teleport").made()


COLLECT = """
import sys
import toy_world as toy
from course.rollout.episodes import collect_episodes
from course.rollout.replay import Archive, Recipe, write_manifest
from course.rollout.store import Store

folder, store = sys.argv[1:]
policy, world, tasks = toy.taught(), toy.world(), toy.tasks(400)
Archive(folder, worlds={}, graders={}, tasks={}).keep(policy)
write_manifest(
    folder, worlds=[Recipe("toy_world:world")], graders={"toy@1": Recipe("toy_world:grade", None)},
    tasks=[Recipe("toy_world:tasks", {"n": 400})],
)
options = {"grader": toy.grade, "max_action_tokens": 5}
store = Store(store)
store.append(collect_episodes(policy, world, tasks[:256], seed=0, **options).records)
store.append(collect_episodes(policy, world, tasks[256:], seed=1, group_size=4, **options).records)
store.append(collect_episodes(policy, world, tasks[:168], seed=2, **options).records)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "random"}
    return subprocess.run([sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True)


def test_a_thousand_episodes_in_a_fresh_process(tmp_path):
    made = run(tmp_path, "-c", COLLECT, "archive", "episodes.db")
    assert made.returncode == 0, made.stderr
    done = run(tmp_path, "-m", "course.rollout.replay", "archive", "episodes.db")
    assert done.stdout.startswith("1000 of 1000 episodes equal bit for bit"), done.stdout[:600] + done.stderr
    assert done.returncode == 0

    manifest = tmp_path / "archive" / "archive.json"
    changed = json.loads(manifest.read_text())
    changed["worlds"][0]["arguments"] = {"max_actions": 5}
    manifest.write_text(json.dumps(changed))
    done = run(tmp_path, "-m", "course.rollout.replay", "archive", "episodes.db")
    assert done.returncode == 1 and done.stdout.count("environment: recorded toy@") == 1000
    assert "0 of 1000 episodes" in done.stdout
