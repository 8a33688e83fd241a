"""The reproducibility checklist: what an export of a ledger records, what it doesn't, and what it may leave out."""

import copy
import json

import pytest

from autograder.alternatives.level7 import DECLARED, a_run
from course.evidence.checklist import (
    CHECKLIST,
    MAY_BE_NULL,
    PARTS,
    agreement,
    checklist,
    example_run,
    export,
    read_export,
    right_place,
)

FULL = json.loads(export(a_run(), DECLARED))


def statuses(data):
    return {item.field: item for item in checklist(data)}


def test_a_run_that_records_everything_passes():
    items = statuses(FULL)
    assert list(items) == list(CHECKLIST) and len(items) == 14
    assert {item.status for field, item in items.items() if field != "evaluation"} == {"met"}
    assert items["evaluation"].status == "not applicable" and items["evaluation"].found == "hidden tests decide"
    assert items["counts"].found == "3 tasks; 6 episodes; demonstrations 0" and items["failures"].found.startswith(
        "1 of 3 rounds rejected"
    )
    judged = statuses({**FULL, "declaration": {**DECLARED, "evaluation": {"blinded": True, "by": "two colleagues"}}})
    assert judged["evaluation"].status == "met"


BELONGS = {
    name: field
    for field, (_, places) in CHECKLIST.items()
    for name in [p.split(".")[1] for p in places if p.startswith("declaration")]
}


@pytest.mark.parametrize("name", BELONGS)
def test_what_is_not_declared_is_missing_at_its_place(name):
    declaration = {key: value for key, value in DECLARED.items() if key != name}
    items = statuses({**FULL, "declaration": declaration})
    assert (items[BELONGS[name]].status, items[BELONGS[name]].place) == ("missing", f"declaration.{name}")
    assert sum(item.status == "missing" for item in items.values()) == 1


@pytest.mark.parametrize("name, part", [(name, part) for name, parts in PARTS.items() for part in parts if name != "evaluation"])
def test_a_part_that_is_left_out_is_named(name, part):
    declaration = copy.deepcopy(DECLARED)
    del declaration[name][part]
    assert statuses({**FULL, "declaration": declaration})[BELONGS[name]].place == f"declaration.{name}.{part}"
    declaration[name][part] = None
    status = statuses({**FULL, "declaration": declaration})[BELONGS[name]].status
    assert status == ("met" if part in MAY_BE_NULL.get(name, ()) else "missing")


@pytest.mark.parametrize("name, value, place", [
    ("runs", {"seeds": [3], "interval": [0, 1]}, "declaration.runs.seeds"),
    ("runs", {"seeds": [3, 3], "interval": [0, 1]}, "declaration.runs.seeds"),
    ("runs", {"seeds": 5, "interval": [0, 1]}, "declaration.runs.seeds"),
    ("runs", {"seeds": "01", "interval": [0, 1]}, "declaration.runs.seeds"),
    ("runs", {"seeds": [[1], [2]], "interval": [0, 1]}, "declaration.runs.seeds"),
    ("runs", {"seeds": [0, 1], "interval": "narrow"}, "declaration.runs.interval"),
    ("runs", {"seeds": [0, 1], "interval": [0.5]}, "declaration.runs.interval"),
    ("source", {"revision": " ", "license": "MIT"}, "declaration.source.revision"),
    ("evaluation", {"blinded": False, "by": "me"}, "declaration.evaluation.blinded"),
    ("evaluation", {"not applicable": " "}, "declaration.evaluation.blinded"),
    ("demonstrations", -1, "declaration.demonstrations"),
    ("demonstrations", True, "declaration.demonstrations"),
    ("source", {"not applicable": "it is mine"}, "declaration.source.revision"),
    ("tokenizer", 7, "declaration.tokenizer"),
])  # fmt: skip
def test_what_is_declared_must_say_something(name, value, place):
    item = statuses({**FULL, "declaration": {**DECLARED, name: value}})[BELONGS[name]]
    assert (item.status, item.place) == ("missing", place)


def test_versions_must_be_versions():
    ledger = a_run(1)
    from dataclasses import replace

    from course.accounting.ledger import append_round

    round = replace(ledger[0].round, environment="three_tools")
    item = statuses(export(append_round((), round), DECLARED))["versions"]
    assert (item.status, item.place) == ("missing", "entries.environment")


def test_an_export_is_read_as_it_was_written():
    ledger, declaration = read_export(export(a_run(), DECLARED))
    assert ledger == a_run() and declaration == DECLARED


def test_what_was_changed_afterwards_is_refused():
    changed = copy.deepcopy(FULL)
    changed["entries"][1]["round"]["cost"]["episodes"] = 1
    with pytest.raises(ValueError, match="broken at round 1"):
        checklist(changed)
    for bad in ("", "[]", "{}", '{"entries": [], "declaration": {}}', json.dumps({"entries": FULL["entries"]}), "[" * 100_000):
        with pytest.raises(ValueError, match="export must"):
            checklist(bad)


def test_the_recorded_example_is_real_and_not_all_is_declared():
    items = statuses(example_run())
    missing = {field: item.place for field, item in items.items() if item.status == "missing"}
    assert missing == {
        "checkpoint": "declaration.tokenizer", "rollouts": "declaration.rollouts.horizons", "inference": "declaration.inference",
        "seeds": "declaration.runs.interval", "artifacts": "declaration.store",
    }  # fmt: skip
    ledger, _ = read_export(example_run())
    assert len(ledger) == 4 and sum(len(entry.round.trajectory) for entry in ledger) == 64


def test_agreement_counts_statuses_and_places():
    said = {item.field: (item.status, item.place) for item in checklist(example_run())}
    assert agreement(example_run(), said) == (14, 14) and agreement(example_run(), {}) == (0, 0)
    assert agreement(
        example_run(), {**said, "seeds": ("missing", "declaration.runs"), "counts": ("met", "entries.instance")}
    ) == (14, 14)
    assert agreement(example_run(), {**said, "seeds": ("missing", "entries.seeds")}) == (14, 13)
    assert agreement(example_run(), {**said, "seeds": ("met", "declaration.runs"), "counts": "met", "split": 3}) == (11, 11)


@pytest.mark.parametrize("field, place, right", [
    ("source", "declaration.source.license", True), ("source", "declaration.source.colour", False), ("counts", "entries.instance.0", False),
    ("seeds", "entries.seeds.task", True), ("seeds", "entries.seeds.tasks", False), ("versions", "entries.operators.update", True),
    ("rollouts", "declaration.rollouts.horizons.5", True), ("serialization", "declaration.serializer.name", False),
    ("evaluation", "declaration.evaluation.not applicable", True), ("source", "declaration.sources", False),
])  # fmt: skip
def test_a_part_must_be_one_that_the_place_has(field, place, right):
    assert right_place(statuses(FULL)[field], place) is right


def test_what_is_absent_comes_before_what_is_not_enough():
    item = statuses({**FULL, "declaration": {**DECLARED, "runs": {"seeds": [0]}}})["seeds"]
    assert (item.status, item.place) == ("missing", "declaration.runs.interval")
