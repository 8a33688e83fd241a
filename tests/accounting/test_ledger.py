"""A ledger only grows, in memory and on disk, and shows every change made to what it holds."""

import copy
import dataclasses
import hashlib
import json
import os
import pickle
import resource
import sqlite3

from hypothesis import given, settings, strategies as st
import pytest
from rounds import written_round, written_rounds

from course.accounting.budget import Cost
from course.accounting.ledger import GENESIS, Entry, LedgerFile, Round, append_round, chained, total_cost, verify_ledger


def ledger_of(decisions):
    ledger = ()
    for round in written_rounds(decisions):
        ledger = append_round(ledger, round)
    return ledger


def slow_hash(before, plain):
    """Against the documentation, with the standard library alone."""
    text = json.dumps([before, plain], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


@settings(deadline=None, max_examples=30)
@given(st.text("ar", max_size=6).filter(lambda s: not s.startswith("r")))
def test_the_chain_is_what_the_documentation_says(decisions):
    ledger, before = ledger_of(decisions), "0" * 64
    for entry in ledger:
        assert entry.before == before and entry.hash == slow_hash(before, entry.round.to_json())
        before = entry.hash
    assert verify_ledger(ledger) is None
    assert total_cost(ledger) == Cost(tokens=sum(3 + i for i in range(len(ledger))), updates=len(ledger))  # rejected ones too


def test_an_empty_ledger_costs_nothing():
    assert verify_ledger(()) is None and total_cost(()) == Cost()


def test_appending_leaves_the_old_ledger_as_it_was():
    ledger = ledger_of("ar")
    longer = append_round(ledger, written_round(2, before="state 1"))
    assert len(ledger) == 2 and longer[:2] == ledger and verify_ledger(longer) is None


FIELDS = {
    "task": "another", "instance": ("other",), "stamp": "other", "environment": "world@2", "trajectory": ("record 1", "x"),
    "feedback": ("event 1", "x"), "credit": "other", "seeds": {"credit": 1, "feedback": 2, "rollout": 3, "task": 4, "update": 99},
    "operators": {n: f"{n}@2" for n in ("accounting", "credit", "feedback", "rollout", "sampler", "update")},
    "cost": {"tokens": 3, "updates": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", [*FIELDS, "states", "decision"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_change_of_any_field_of_any_round_is_found_there(name, place):
    """If a field were not in the hash, its change would pass."""
    ledger = ledger_of("aaa")
    old = ledger[place].round
    changes = {"states": {"proposed": "x", "committed": "x"}, "decision": {"decision": "reject"}}.get(name)
    new = dataclasses.replace(old, **(changes or {name: FIELDS[name]}))
    assert new != old or name == "cost" and place == 0
    if new == old:
        return
    changed = (*ledger[:place], Entry(new, ledger[place].before, ledger[place].hash), *ledger[place + 1 :])
    assert verify_ledger(changed) == place


def test_what_is_taken_out_moved_or_chained_anew_is_found():
    ledger = ledger_of("aara")
    assert verify_ledger((*ledger[:1], *ledger[2:])) == 1
    assert verify_ledger((ledger[0], ledger[2], ledger[1], ledger[3])) == 1
    assert verify_ledger(ledger[1:]) == 0
    assert verify_ledger((*ledger, ledger[-1])) == 4
    forged = dataclasses.replace(ledger[1].round, cost={"tokens": 1})
    new = Entry(forged, ledger[1].before, slow_hash(ledger[1].before, forged.to_json()))
    assert verify_ledger((ledger[0], new, *ledger[2:])) == 2  # it is right by itself, and the next one does not follow
    shifted = dataclasses.replace(ledger[0].round, index=5)
    assert verify_ledger((Entry(shifted, GENESIS, slow_hash(GENESIS, shifted.to_json())),)) == 0


def test_what_a_round_says_is_not_verified():
    """As the docstring says: a rejected round that commits another state can't be appended, and passes in a chain made without append."""
    ledger, bad = ledger_of("aa"), written_round(2, decision="reject", before="another")
    before = ledger[-1].hash
    assert verify_ledger((*ledger, Entry(bad, before, chained(before, bad)))) is None
    assert verify_ledger((*ledger, Entry(bad, before, before))) == 2


@pytest.mark.parametrize(
    "round, words",
    [
        (lambda: written_round(1), "index of the round must be 2"),
        (lambda: written_round(3), "index of the round must be 2"),
        (lambda: written_round(2, decision="reject", before="another"), "must be the state before it"),
    ],
)
def test_what_append_refuses(round, words, tmp_path):
    ledger = ledger_of("aa")
    with pytest.raises(ValueError, match=words):
        append_round(ledger, round())
    with LedgerFile(tmp_path / "l") as file:
        for entry in ledger:
            file.append(entry.round)
        with pytest.raises(ValueError, match=words):
            file.append(round())
        assert len(file) == 2 and file.verify() is None


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"index": -1}, "index must be at least 0"),
        ({"stamp": ""}, "stamp of round 0"),
        ({"trajectory": []}, "trajectory of round 0"),
        ({"feedback": [""]}, "feedback of round 0"),
        ({"decision": "maybe"}, "decision of round 0"),
        ({"committed": "another"}, "committed of round 0"),
        ({"seeds": {"task": 1}}, "seeds of round 0 .* got task"),
        ({"operators": {}}, "operators of round 0 .* got nothing"),
        ({"cost": {"tokens": -1}}, "cost of round 0: tokens must be"),
        ({"cost": {"tokens": float("nan")}}, "cost of round 0: tokens must be"),
    ],
)
def test_what_a_round_refuses(changes, words):
    with pytest.raises(ValueError, match=words):
        Round.from_json({**written_round(0).to_json(), **changes})


def test_rounds_are_values_that_travel_as_plain_data():
    a = written_round(3)
    for twin in (Round.from_json(json.loads(json.dumps(a.to_json()))), pickle.loads(pickle.dumps(a)), copy.deepcopy(a)):
        assert twin == a and hash(twin) == hash(a)
    with pytest.raises(TypeError):
        a.cost["tokens"] = 0
    for bad, words in (
        ({**a.to_json(), "note": 1}, "note"),
        ({k: v for k, v in a.to_json().items() if k != "stamp"}, "stamp"),
        ({**a.to_json(), "index": True}, "index"),
        ({**a.to_json(), "instance": "abc"}, "instance"),
        ({**a.to_json(), "credit": 3}, "credit"),
        ({**a.to_json(), "seeds": []}, "seeds"),
        ([], "list"),
    ):
        with pytest.raises(ValueError, match=words):
            Round.from_json(bad)


# ---------------------------------------------------------------- on disk


@pytest.fixture
def path(tmp_path):
    with LedgerFile(tmp_path / "ledger") as file:
        for round in written_rounds("aaraa"):
            file.append(round)
    return tmp_path / "ledger"


def test_the_file_holds_the_same_ledger(path):
    with LedgerFile(path) as file:
        assert file.entries() == ledger_of("aaraa") and len(file) == 5 and file.verify() is None
        assert file.head == file.entries()[-1].hash
        added = file.append(written_round(5))
    with LedgerFile(path) as file:
        assert file.entries()[-1] == added and verify_ledger(file.entries()) is None


def test_an_empty_file_is_an_empty_ledger(tmp_path):
    for _ in range(2):
        with LedgerFile(tmp_path / "new") as file:
            assert (file.entries(), len(file), file.verify(), file.head) == ((), 0, None, GENESIS)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rounds SET body = '{}' WHERE number = 1",
        "DELETE FROM rounds WHERE number = 4",
        "REPLACE INTO rounds VALUES (1, '{}', '', '')",
        "INSERT INTO rounds VALUES (9, '{}', '', '')",
    ],
)
def test_triggers_refuse_every_change(path, statement):
    with pytest.raises(sqlite3.IntegrityError, match="append-only"), sqlite3.connect(path) as db:
        db.execute(statement)
    with LedgerFile(path) as file:
        assert file.verify() is None and len(file) == 5


@pytest.mark.parametrize(
    "statement, bad",
    [
        ("UPDATE rounds SET body = replace(body, '\"tokens\":4', '\"tokens\":1') WHERE number = 1", 1),
        ("UPDATE rounds SET body = body || ' ' WHERE number = 3", 3),
        ("UPDATE rounds SET chain = upper(chain) WHERE number = 2", 2),
        ("UPDATE rounds SET before = chain WHERE number = 2", 2),
        ("UPDATE rounds SET body = 'nothing' WHERE number = 0", 0),
        ("DELETE FROM rounds WHERE number = 2", 2),
        ("DELETE FROM rounds WHERE number = 4", 4),
        ("DELETE FROM rounds", 0),
    ],
)
def test_changes_behind_its_back_are_found(path, statement, bad):
    with sqlite3.connect(path) as db:
        for name in ("no_update", "no_delete", "in_order"):
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement)
    with LedgerFile(path) as file:
        assert file.verify() == bad
        with pytest.raises(ValueError, match=f"round {bad}"):
            file.entries()


def test_a_round_forged_with_its_hash_breaks_the_next_link(path):
    with LedgerFile(path) as file:
        entry = file.entries()[2]
    forged = dataclasses.replace(entry.round, cost={"tokens": 1})
    body = json.dumps(forged.to_json(), sort_keys=True, separators=(",", ":"))
    with sqlite3.connect(path) as db:
        db.execute("DROP TRIGGER no_update")
        db.execute("UPDATE rounds SET body = ?, chain = ? WHERE number = 2", (body, slow_hash(entry.before, forged.to_json())))
    with LedgerFile(path) as file:
        assert file.verify() == 3


def test_a_byte_that_was_changed_in_the_file_is_found(path):
    data = bytearray(path.read_bytes())
    at = data.index(b'"stamp":"policy 3"') + 12
    data[at] ^= 1
    path.write_bytes(bytes(data))
    with LedgerFile(path) as file:
        assert file.verify() == 3


def test_files_of_something_else_are_refused_by_name(tmp_path):
    (tmp_path / "text").write_text("no database at all, but long enough to have a header of a hundred bytes" * 3)
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE t (x)")
    for name in ("text", "other"):
        with pytest.raises(ValueError, match="path must be a ledger"):
            LedgerFile(tmp_path / name)


def test_a_full_disk_loses_nothing_and_says_so(tmp_path):
    """In a child whose files can't grow beyond a limit: what append returned from is there, the refused round is not."""
    path, (reading, writing) = tmp_path / "ledger", os.pipe()
    if (child := os.fork()) == 0:
        try:
            file = LedgerFile(path)
            resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
            stored = 0
            try:
                while True:
                    file.append(written_round(stored))
                    stored += 1
            except OSError as error:
                os.write(writing, f"{stored} {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    stored, _, message = os.read(reading, 10_000).decode().partition(" ")
    os.close(reading)
    assert int(stored) > 2 and "none of 1 rounds was stored" in message
    with LedgerFile(path) as file:
        assert len(file) == int(stored) and file.verify() is None
        file.append(written_round(int(stored)))
