"""A record holds what happened, refuses what cannot have happened, and says in which field, of which record, and what to do."""

import copy
import json
from dataclasses import replace

import pytest
import toy_world as toy

from course.accounting.budget import Cost
from course.envs.evidence import Evidence
from course.envs.kernel import runtime_key
from course.envs.signatures import verify_result
from course.language.serializer import ChatSerializer, CompactSerializer
from course.language.stamp import digest
from course.language.tokenizer import Tokenizer
from course.language.transcript import StopReason
from course.rollout.episodes import KEY, scripted_episodes
from course.rollout.record import Layout, Record, Versions

ACTIONS = ["look a", "done done", "look b", "say 3"]


@pytest.fixture(scope="module")
def record() -> Record:
    made = scripted_episodes(
        [ACTIONS], toy.world(budget=3.5), toy.tasks(1), tokenizer=toy.TOKENIZER, serializer=CompactSerializer(), grader=toy.grade,
        environment_seeds=[5],
    )  # fmt: skip
    return made.records[0]


def test_what_happened(record):
    assert [step.outcome for step in record.steps] == ["executed", "malformed", "executed", "executed"]
    assert [step.observation for step in record.steps] == ["0", "error malformed", "3", "done"]
    assert [step.tool for step in record.steps] == ["look", None, "look", "say"]
    assert [step.arguments for step in record.steps] == [{"letter": "a"}, None, {"letter": "b"}, {"value": 3}]
    assert record.cost == Cost(calls=3.5) and record.ending == "terminated"
    assert record.reward == 0.0 and record.evidence.parsed == 3
    assert record.task == {"id": "t0", "family": "f0", "prompt": "a a", "horizon": 2, "created": 0}
    assert record.task_digest == toy.tasks(1)[0].digest()


def test_spans_are_the_actions(record):
    said = [toy.TOKENIZER.decode(record.tokens[start : stop - 1]) for start, stop in record.action_spans]
    assert said == ACTIONS
    sampled = {t for span in record.encoded.spans if span.kind == "sampled" for t in range(span.start, span.stop)}
    assert sampled == {t for start, stop in record.action_spans for t in range(start, stop)}
    assert record.action_spans[-1][1] == len(record.tokens)


def test_transcript(record):
    turns = record.transcript(toy.TOKENIZER, CompactSerializer()).turns
    assert [turn.role for turn in turns] == ["user", *["assistant", "tool"] * 3, "assistant"]
    assert [turn.text for turn in turns if turn.role == "tool"] == ["0", "error malformed", "3"]
    assert all(turn.stop is StopReason.END for turn in turns if turn.sampled)
    with pytest.raises(ValueError, match="serializer must be the record's"):
        record.transcript(toy.TOKENIZER, ChatSerializer())
    with pytest.raises(ValueError, match="tokenizer must be the record's"):
        record.transcript(Tokenizer.bytes(), CompactSerializer())


def test_every_result_is_signed_for_its_step_of_its_episode(record):
    key = runtime_key(KEY, record.environment_seed)
    for number, step in enumerate(record.steps):
        assert verify_result(key, record.episode, number, step.payload, step.signature)
        assert not verify_result(key, record.episode, number + 1, step.payload, step.signature)
        assert not verify_result(key, "another", number, step.payload, step.signature)
        assert not verify_result(key, record.episode, number, {**step.payload, "observation": "9"}, step.signature)


def test_nothing_hidden_is_in_it():
    task = replace(toy.tasks(1)[0], hidden={"values": dict.fromkeys(toy.LETTERS, 7), "tests": ["unmistakable"]})
    made = scripted_episodes(
        [["look a", "say 7"]], toy.world(), [task], tokenizer=toy.TOKENIZER, serializer=CompactSerializer(), grader=toy.grade,
        environment_seeds=[0],
    ).records[0]  # fmt: skip
    text = json.dumps(made.to_json())
    assert "unmistakable" not in text and "hidden" not in text and "values" not in text


def test_json_round_trip(record):
    again = Record.from_json(json.loads(json.dumps(record.to_json())))
    assert again == record and again.content_hash == record.content_hash and again.to_json() == record.to_json()
    assert [step.latency_ms for step in again.steps] == [step.latency_ms for step in record.steps]


def test_content_hash_is_over_all_but_the_clock(record):
    plain = record.to_json(latency=False)
    assert record.content_hash == digest(plain)
    assert "latency_ms" not in json.dumps(plain)
    slower = replace(record, steps=tuple(replace(step, latency_ms=9.0) for step in record.steps))
    assert slower.content_hash == record.content_hash and slower == record
    changed = {
        "sampling_seed": 1,
        "noise_episode": 7,
        "environment_seed": 6,
        "temperature": 0.5,
        "max_action_tokens": 9,
        "episode": "other",
        "task_digest": "other",
        "ending": "truncated",
        "logprobs": (-1.0, *record.logprobs[1:]),
        "layout": Layout(2, 1, record.layout.columns),
        "versions": replace(record.versions, policy="other"),
        "evidence": replace(record.evidence, reason="other"),
        "steps": (replace(record.steps[0], signature="other"), *record.steps[1:]),
    }
    hashes = [replace(record, **{name: value}).content_hash for name, value in changed.items()]
    assert len({record.content_hash, *hashes}) == len(changed) + 1


STEP = "steps[1]."
WRONG = {  # field: (what is put there, what the message must say)
    ("schema",): (2, "schema must be 1; got 2; read it with the package that wrote it"),
    ("episode",): ("", "task_digest and episode must be non-empty text"),
    ("task", "hidden"): ({}, "task must hold the public"),
    ("sampling_seed",): (True, "sampling_seed must be an integer"),
    ("environment_seed",): ("5", "environment_seed must be an integer"),
    ("evidence", "decision"): ("perhaps", "evidence.decision must be 'right' or 'wrong' or 'abstain'"),
    ("evidence", "reason"): (None, "evidence.reason must be text; got None"),
    ("steps", 0, "tool"): (3, "steps[0].tool must be text or null; got 3"),
    ("steps", 0, "cost"): ([], "steps[0].cost must be an object; got []"),
    ("encoded", "tokens", 0): (True, "encoded.tokens must be a list of int"),
    ("temperature",): (-1.0, "temperature must be finite"),
    ("max_action_tokens",): (0, "max_action_tokens must be at least 1; got 0"),
    ("noise_episode",): (2**70, "noise_episode must fit in 64 bits"),
    ("ending",): ("lost", "ending must be"),
    ("layout", "row"): (7, "layout must have its row"),
    ("layout", "columns"): (3, "layout.columns must hold"),
    ("versions", "policy"): ("", "versions.policy must be non-empty text"),
    ("versions", "environment"): ("toy", "versions.environment must be name@version"),
    ("versions", "grader"): ("toy@2", "versions.grader must be the verifier of the evidence"),
    ("evidence", "reward"): (None, "reward must be None if and only if"),
    ("encoded", "tokens"): ([1, 2], "spans must cover"),
    ("encoded", "stops"): (["soon"], "encoded.stops must hold"),
    ("logprobs",): ([0.0], "logprobs must be one finite number"),
    ("logprobs", 0): (0.5, "logprobs must be one finite number"),
    ("steps",): ([], "spans of steps must be those of the sampled turns"),
    ("steps", 1, "outcome"): ("lucky", "steps[1].outcome must be one of"),
    ("steps", 1, "arguments"): ({}, "steps[1].arguments must be None"),
    ("steps", 1, "observation"): ("3", "steps[1].observation_hash must be the hash of the observation"),
    ("steps", 1, "result_hash"): ("3", "steps[1].result_hash must be there for executed"),
    ("steps", 1, "latency_ms"): (-1.0, "steps[1].latency_ms must be finite"),
    ("steps", 1, "span"): ([0, 1], "spans of steps must be those of the sampled turns"),
}


@pytest.mark.parametrize("path", WRONG, ids=lambda path: ".".join(map(str, path)))
def test_wrong_fields(record, path):
    value, message = WRONG[path]
    data = json.loads(json.dumps(record.to_json()))
    place = data
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(ValueError) as error:
        Record.from_json(data)
    assert message in str(error.value)
    assert str(error.value).startswith(f"record {data['episode'][:12]}: ")


def _paths(data, place=()):
    for name, value in data.items():
        yield (*place, name)
        if isinstance(value, dict) and name not in ("task", "arguments", "cost"):
            yield from _paths(value, (*place, name))


def test_every_missing_and_every_foreign_field_is_named(record):
    data = record.to_json()
    paths = [*_paths(data), *[("steps", 1, name) for name in data["steps"][1]]]
    assert len(paths) > 40
    for path in paths:
        broken = copy.deepcopy(data)
        place = broken
        for name in path[:-1]:
            place = place[name]
        place["strange"] = place.pop(path[-1])
        with pytest.raises(ValueError, match="is missing; collect|is no field of a record; take it out|must be") as error:
            Record.from_json(broken)
        first = min(path[-1], "strange") if path[-1] not in ("policy", "reward") else None
        assert first is None or first in str(error.value)


@pytest.mark.parametrize("data", [None, [], "text", 3, {}])
def test_what_is_no_record(data):
    with pytest.raises(ValueError, match="record (unknown|None): .* is missing"):
        Record.from_json(data)


def test_parts_check_themselves(record):
    for wrong in ((0, 0, 4), (2, 2, 4), (2, -1, 4), (2, 0, 0)):
        with pytest.raises(ValueError, match="layout must"):
            Layout(*wrong)
    with pytest.raises(ValueError, match="versions.grader must be name@version"):
        Versions("p", "t", "s", "e@1", "@1")
    with pytest.raises(ValueError, match="record .*: logprobs must"):
        replace(record, logprobs=(float("nan"), *record.logprobs[1:]))


def test_an_abstention_is_no_reward(record):
    silent = Evidence("toy", "1", None, "abstain", None, "too slow")
    assert replace(record, evidence=silent).reward is None
