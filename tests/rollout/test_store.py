"""The store only grows, shows what was changed around it, and loses nothing that it took."""

import dataclasses
import hashlib
import json
import os
import resource
import signal
import sqlite3
import time

import pytest

from course.language.stamp import canonical_json
from course.rollout.record import Record
from course.rollout.store import CorruptRow, Store
from written_records import written_record


@pytest.fixture
def path(tmp_path):
    return tmp_path / "episodes.sqlite"


def filled(path, count=6):
    with Store(path) as store:
        store.append(written_record(i) for i in range(count))
    return path


def behind_its_back(path, *statements, free=True):
    """Change the file as somebody who knows SQL would: drop the triggers first."""
    with sqlite3.connect(path) as db:
        if free:
            for name in ("no_update", "no_delete", "in_order"):
                db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)


def test_what_comes_out_is_what_went_in_with_its_times_and_stamps(path):
    records = [written_record(i, abstains=i == 2, latency=i / 7) for i in range(5)]
    with Store(path) as store:
        assert (store.append(records[:2]), store.append([]), store.append(records[2:])) == (range(0, 2), range(2, 2), range(2, 5))
        assert len(store) == 5 and store.verify() is None and store.problems() == ()
    with Store(path) as store:
        again = list(store.records())
    assert again == records
    assert [r.to_json() for r in again] == [r.to_json() for r in records]  # equality leaves times out, this does not
    assert [r.content_hash for r in again] == [r.content_hash for r in records]


def test_reading_may_begin_anywhere(path):
    """And finds what was changed from there on, as reading from the start does."""
    with Store(filled(path, 6)) as store:
        whole = list(store.records())
        assert all(list(store.records(first)) == whole[first:] for first in range(8))
    behind_its_back(path, "UPDATE records SET latency = '[]' WHERE number IN (1, 4)")
    with Store(path) as store:
        assert [isinstance(record, CorruptRow) for record in store.records(3)] == [False, True, False]


def test_an_empty_store_is_a_store(path):
    for _ in range(2):
        with Store(path) as store:
            assert (len(store), list(store.records()), store.verify(), store.head) == (0, [], None, "0" * 64)


def test_the_chain_is_what_the_documentation_says(path):
    """An independent reader: bare SQL, hashlib and json."""
    filled(path, 3)
    last = "0" * 64
    rows = (
        sqlite3.connect(path)
        .execute("SELECT number, episode, content_hash, body, latency, before, chain FROM records")
        .fetchall()
    )
    for i, (number, episode, content_hash, body, latency, before, chain) in enumerate(rows):
        text = json.dumps([before, number, episode, content_hash, latency], separators=(",", ":"))
        assert before == last and chain == hashlib.sha256(text.encode()).hexdigest()
        assert content_hash == hashlib.sha256(body.encode()).hexdigest() == written_record(i).content_hash
        assert number == i and body == canonical_json(written_record(i).to_json(latency=False))
        last = chain
    assert Store(path).head == last


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET body = '{}' WHERE number = 1", "UPDATE OR REPLACE records SET number = 0 WHERE number = 1",
        "UPDATE OR IGNORE records SET chain = '' WHERE number = 1", "DELETE FROM records WHERE number = 5", "DELETE FROM records",
        "INSERT OR REPLACE INTO records SELECT 1, episode, content_hash, '{}', latency, before, chain FROM records WHERE number = 1",
        "REPLACE INTO records SELECT number, episode, content_hash, '{}', latency, before, chain FROM records",
        "INSERT OR IGNORE INTO records SELECT number + 7, episode, content_hash, '{}', latency, before, chain FROM records",
        "INSERT INTO records SELECT NULL, episode, content_hash, '{}', latency, before, chain FROM records",
        "INSERT INTO records SELECT -1, episode, content_hash, '{}', latency, before, chain FROM records LIMIT 1",
        "INSERT INTO records SELECT number, episode, content_hash, '{}', latency, before, chain FROM records WHERE number = 1 "
        "ON CONFLICT DO UPDATE SET body = excluded.body",
    ],
)  # fmt: skip
def test_triggers_refuse_every_change(path, statement):
    filled(path)
    before = sqlite3.connect(path).execute("SELECT * FROM records").fetchall()
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        behind_its_back(path, statement, free=False)
    assert sqlite3.connect(path).execute("SELECT * FROM records").fetchall() == before


CHANGED = [
    ("UPDATE records SET body = replace(body, '\"reward\":10.0', '\"reward\":0.0') WHERE number = 3", [3], "content_hash"),
    ("UPDATE records SET body = cast(x'ff00' AS TEXT) WHERE number = 0", [0], "damaged"),
    ("UPDATE records SET latency = '[0.0,0.0]' WHERE number = 3", [3], "chain"),
    ("UPDATE records SET episode = 'mine' WHERE number = 3", [3], "chain"),
    ("UPDATE records SET chain = '" + "0" * 64 + "' WHERE number = 3", [3], "chain"),
    ("UPDATE records SET before = '" + "0" * 64 + "' WHERE number = 3", [3], "chain"),
    ("UPDATE records SET content_hash = '" + "0" * 64 + "' WHERE number = 3", [3], "content_hash"),
    ("DELETE FROM records WHERE number = 3", [3], "missing"),
    ("DELETE FROM records WHERE number = 0", [0], "missing"),
    ("DELETE FROM records WHERE number >= 4", [4, 5], "missing"),
    ("DELETE FROM records", [0, 1, 2, 3, 4, 5], "missing"),
    ("UPDATE records SET body = 'no json' WHERE number IN (1, 4)", [1, 4], "content_hash"),
]


@pytest.mark.parametrize(("statement", "bad", "word"), CHANGED)
def test_a_changed_row_is_reported_and_the_others_stay_readable(path, statement, bad, word):
    behind_its_back(filled(path), statement)
    with Store(path) as store:
        rows, problems = list(store.records()), store.problems()
        assert [problem.number for problem in problems] == bad and store.verify() == bad[0] and len(store) == 6
        assert [r for i, r in enumerate(rows) if i not in bad] == [written_record(i) for i in range(6) if i not in bad]
        for problem in problems:
            assert isinstance(problem, CorruptRow) and word in str(problem)
            assert f"row {problem.number}, record " in str(problem) and "collect this episode again" in str(problem)


def forged(number, before, record):
    body, latency = canonical_json(record.to_json(latency=False)), canonical_json([step.latency_ms for step in record.steps])
    content = hashlib.sha256(body.encode()).hexdigest()
    chain = hashlib.sha256(canonical_json([before, number, record.episode, content, latency]).encode()).hexdigest()
    return number, record.episode, content, body, latency, before, chain


def test_a_row_that_was_forged_with_right_hashes_breaks_the_next_link_and_the_head(path):
    filled(path)
    head = Store(path).head
    before = sqlite3.connect(path).execute("SELECT chain FROM records WHERE number = 2").fetchone()[0]
    behind_its_back(path)
    db = sqlite3.connect(path)
    rows = [forged(3, before, written_record(99))]
    for number in (4, 5):
        rows.append(forged(number, rows[-1][-1], written_record(number)))
    db.execute("REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows[0])
    db.commit()
    assert [p.number for p in Store(path).problems()] == [4] and "this row or that one" in str(Store(path).problems()[0])
    db.executemany("REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows[1:])  # and everything behind it too
    db.commit()
    assert Store(path).verify() is None and Store(path).head != head


@pytest.mark.parametrize(
    "lost", ["DELETE FROM records WHERE number = 2", "UPDATE records SET body = cast(x'ff' AS TEXT) WHERE number = 2"]
)
def test_a_row_behind_a_lost_one_is_still_checked(path, lost):
    """Row 3 gets another body with its right SHA-256; only its chain column is as it was."""
    filled(path)
    _, episode, content, body, latency, *_ = forged(3, "", written_record(99))
    behind_its_back(path, lost)
    with Store(path) as store:
        assert [p.number for p in store.problems()] == [2] and list(store.records())[3] == written_record(3)
    with sqlite3.connect(path) as db:
        change = "UPDATE records SET episode = ?, content_hash = ?, body = ?, latency = ? WHERE number = 3"
        db.execute(change, (episode, content, body, latency))
    with Store(path) as store:
        assert [p.number for p in store.problems()] == [2, 3] and "this row was changed" in store.problems()[1].problem
        assert list(store.records())[4:] == [written_record(4), written_record(5)]
    with sqlite3.connect(path) as db:  # its chain too, from the value before that it holds: the next row does not fit it
        (before,) = db.execute("SELECT before FROM records WHERE number = 3").fetchone()
        db.execute("REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", forged(3, before, written_record(99)))
    assert [p.number for p in Store(path).problems()] == [2, 4]


SWALLOWS = "CREATE TRIGGER {} BEFORE INSERT ON records WHEN NEW.number {} BEGIN SELECT RAISE(IGNORE); END"


@pytest.mark.parametrize("which", ["= 7", "= 8", ">= 6", "< 100"])
def test_rows_that_do_not_arrive_are_noticed_before_the_commit(path, which, monkeypatch):
    behind_its_back(filled(path), SWALLOWS.format("quiet", which), free=False)
    monkeypatch.setattr(Store, "_refuse_foreign_triggers", lambda self: None)  # what is read back does not rest on it
    with Store(path) as store:
        with pytest.raises(OSError, match="none of 3 records was stored"):
            store.append(written_record(i) for i in (6, 7, 8))
        assert len(store) == 6 and store.verify() is None


@pytest.mark.parametrize("name", ["quiet", "no_update"])
def test_triggers_that_are_not_the_stores_are_refused_by_name(path, name):
    own = sqlite3.connect(filled(path)).execute("SELECT sql FROM sqlite_master WHERE name = 'no_update'").fetchone()[0]
    if name == "no_update":
        behind_its_back(path, "DROP TRIGGER no_update", free=False)
    behind_its_back(path, SWALLOWS.format(name, "= 7"), free=False)
    with Store(path) as store:
        with pytest.raises(OSError, match=f"nothing was stored; triggers must be the store's: drop {name} and append again"):
            store.append([written_record(6)])
        assert len(store) == 6 and store.verify() is None
    behind_its_back(path, f"DROP TRIGGER {name}", free=False)
    with Store(path) as store:
        assert store.append([written_record(6)]) == range(6, 7)
    found = sqlite3.connect(path).execute("SELECT sql FROM sqlite_master WHERE name = 'no_update'").fetchone()[0]
    assert found == own


def test_two_rows_that_changed_places_are_both_reported(path):
    filled(path)
    swap = "UPDATE records SET number = -1 WHERE number = 2", "UPDATE records SET number = 2 WHERE number = 3"
    behind_its_back(path, *swap, "UPDATE records SET number = 3 WHERE number = -1")
    assert {2, 3} <= {p.number for p in Store(path).problems()} <= {2, 3, 4}


def test_dropped_triggers_come_back_and_a_store_with_a_lost_end_takes_nothing_more(path):
    behind_its_back(filled(path))
    with Store(path) as store:
        store.append([written_record(6)])
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        behind_its_back(path, "DELETE FROM records", free=False)
    behind_its_back(path, "DELETE FROM records WHERE number = 6")
    with Store(path) as store, pytest.raises(ValueError, match="row 6 is missing at the end; export the rest"):
        store.append([written_record(6)])
    assert len(list(Store(path).records())) == 7


@pytest.mark.parametrize("where", ["leaf", "another leaf", "the last", "sqlite_sequence", "records"])
def test_whatever_page_is_damaged_the_rows_elsewhere_stay_readable(path, where):
    """A page of the file is overwritten, not through SQL. The records' root page leads to all of them."""
    filled(path, 60)
    data, size = bytearray(path.read_bytes()), 4096
    with sqlite3.connect(path) as db:
        roots = dict(db.execute("SELECT name, rootpage FROM sqlite_master WHERE rootpage > 0"))
    leaves = [page for page in range(2, len(data) // size + 1) if page not in roots.values()]
    page = {"leaf": leaves[3], "another leaf": leaves[20], "the last": leaves[-1], **roots}[where]
    noise = bytes(size) if where == "leaf" else bytes(i * 37 % 256 for i in range(size))
    data[(page - 1) * size : page * size] = noise
    path.write_bytes(data)
    with Store(path) as store:
        rows = list(store.records())
        bad = [i for i, row in enumerate(rows) if isinstance(row, CorruptRow)]
        assert len(rows) == 60 and store.verify() == (bad[0] if bad else None)
        assert all(rows[i] == written_record(i) for i in range(60) if i not in bad)
        assert len(bad) == 60 if where == "records" else bad == [] if where == "sqlite_sequence" else 1 <= len(bad) <= 8


def test_a_locked_file_is_no_damaged_one(path):
    filled(path)
    with Store(path) as store:
        store._db.execute("PRAGMA busy_timeout = 1")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            list(store.records())
        with pytest.raises(OSError, match="none of 1 records was stored .*locked"):
            store.append([written_record(6)])
        other.execute("ROLLBACK")
        assert store.append([written_record(6)]) == range(6, 7)


def test_files_that_are_no_store_are_refused_by_name_and_left_alone(path, tmp_path):
    other, text, future = tmp_path / "other.db", tmp_path / "notes.txt", filled(tmp_path / "future.sqlite")
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE records (a)")
    text.write_text("not a database " * 100)
    with sqlite3.connect(future) as db:
        db.execute("PRAGMA user_version = 7")
    for file, message in [
        (other, "path must be a store of records; got .*other.db, a database of something else: give another path"),
        (text, "path must be a store of records; got .*notes.txt .*: restore it, or give another path"),
        (future, "layout of .*future.sqlite must be 2; got 7: read it with the package that wrote it"),
        (tmp_path / "nowhere" / "a.sqlite", "path must be in a folder that exists; got .*nowhere"),
        (tmp_path, "path must be a file; got the folder"),
    ]:
        before = file.read_bytes() if file.is_file() else None
        with pytest.raises(ValueError, match=message):
            Store(file)
        assert (file.read_bytes() if file.is_file() else None) == before


def test_what_is_no_record_is_refused_and_nothing_of_its_batch_is_stored(path):
    with Store(path) as store:
        with pytest.raises(Exception, match=r"records\[1\] must be a Record; got dict|Type-check error|violates type hint"):
            store.append([written_record(0), written_record(1).to_json()])
        assert len(store) == 0

        def broken():
            yield written_record(0)
            raise KeyError("the collector failed")

        with pytest.raises(KeyError):
            store.append(broken())
        assert len(store) == 0 and store.append([written_record(0)]) == range(0, 1)


def stored_as(path, change):
    """A store whose one row is sound but holds what another program wrote."""
    data = written_record(0).to_json(latency=False)
    change(data)
    filled(path, 0)
    body = canonical_json(data)
    content, latency = hashlib.sha256(body.encode()).hexdigest(), "[1.5,0.5]"
    chain = hashlib.sha256(canonical_json(["0" * 64, 0, data["episode"], content, latency]).encode()).hexdigest()
    with sqlite3.connect(path) as db:
        db.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", (0, data["episode"], content, body, latency, "0" * 64, chain)
        )
    return Store(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(schema=2), ["schema", "got 2"]),
        (lambda d: d["versions"].pop("policy"), ["versions.policy"]),
        (lambda d: d["versions"].update(policy=""), ["versions.policy"]),
        (lambda d: d.pop("evidence"), ["evidence"]),
        (lambda d: d.update(more=1), ["more"]),
    ],
)
def test_a_missing_stamp_or_another_schema_names_record_field_and_remedy(path, change, words):
    (row,) = stored_as(path, change).records()
    assert isinstance(row, CorruptRow) and row.number == 0
    for word in (*words, "row 0, record 000000000000", "collect this episode again"):
        assert word in str(row)


def test_parquet_and_back(path, tmp_path):
    records = [written_record(i, abstains=i % 2 == 0, latency=i / 7) for i in range(5)]
    with Store(path) as store:
        store.append(records)
        assert store.to_parquet(tmp_path / "a.parquet") == ()
        with Store.from_parquet(tmp_path / "a.parquet", tmp_path / "b.sqlite") as twin:
            assert twin.head == store.head and list(twin.records()) == records
        with pytest.raises(ValueError, match="path must not exist yet; got .*b.sqlite"):
            Store.from_parquet(tmp_path / "a.parquet", tmp_path / "b.sqlite")
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert table["reward"] == [None, 10.0, None, 10.0, None] and table["family"] == ["f0", "f1", "f2", "f0", "f1"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet", "b.sqlite", "episodes.sqlite"]


def test_an_export_leaves_corrupt_rows_out_and_says_which(path, tmp_path):
    behind_its_back(filled(path), "UPDATE records SET body = 'x' WHERE number = 1")
    left_out = Store(path).to_parquet(tmp_path / "a.parquet")
    assert [row.number for row in left_out] == [1]
    with Store.from_parquet(tmp_path / "a.parquet", tmp_path / "b.sqlite") as rest:
        assert rest.verify() is None and list(rest.records()) == [written_record(i) for i in (0, 2, 3, 4, 5)]


def test_a_changed_or_foreign_export_is_refused(path, tmp_path):
    import pyarrow
    from pyarrow import parquet

    Store(filled(path)).to_parquet(tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    body = [text.replace('"reward":10.0', '"reward":9.0') for text in table["body"].to_pylist()]
    changed = table.set_column(table.schema.get_field_index("body"), "body", pyarrow.array(body))
    parquet.write_table(changed, tmp_path / "changed.parquet")
    parquet.write_table(table.drop_columns(["body"]), tmp_path / "foreign.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    for name, message in [
        ("changed", "row 0, record 000000000000: body must have the SHA-256 in content_hash"),
        ("foreign", "parquet_path must be an export of a store; got .*foreign.parquet"),
        ("text", "parquet_path must be an export of a store; got .*text.parquet"),
    ]:
        with pytest.raises(ValueError, match=message):
            Store.from_parquet(tmp_path / f"{name}.parquet", tmp_path / "new.sqlite")
        assert not (tmp_path / "new.sqlite").exists()


def in_a_child(write, *arguments):
    """write(say, *arguments) in a forked process; what it says is read line by line."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            write(lambda *words: os.write(writing, (" ".join(map(str, words)) + "\n").encode()), *arguments)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    return child, os.fdopen(reading)


def write_batches(say, path, seed, batches):
    store = Store(path)
    for n in range(batches):
        say(store.append([written_record(seed * 10_000 + n * 3 + k) for k in range(3)]).stop)


def test_processes_that_write_at_once_make_one_chain(path):
    """They also create the file at once; a reader in between sees whole batches only."""
    writers = [in_a_child(write_batches, path, seed, 12) for seed in (1, 2)]
    for _ in range(5):
        time.sleep(0.02)
        if path.exists():
            with Store(path) as store:
                assert len(store) % 3 == 0 and store.verify() is None
    for child, said in writers:
        assert said.read().count("\n") == 12 and os.waitpid(child, 0)[1] == 0
        said.close()
    with Store(path) as store:
        seeds = [record.environment_seed for record in store.records()]
    for start in (10_000, 20_000):
        assert [s for s in seeds if s // 10_000 == start // 10_000] == list(range(start, start + 36))
    assert len(seeds) == 72 and all(a + 1 == b == c - 1 for a, b, c in zip(seeds[::3], seeds[1::3], seeds[2::3]))


def test_a_killed_writer_loses_nothing_that_was_stored(path):
    for number in range(4):
        child, said = in_a_child(write_batches, path, number, 100_000)
        stored = int(said.readline())
        time.sleep(0.03 * number)
        os.kill(child, signal.SIGKILL)
        stored = max([stored, *map(int, said.read().split())])
        os.waitpid(child, 0)
        said.close()
        with Store(path) as store:
            assert stored <= len(store) <= stored + 3 and len(store) % 3 == 0 and store.verify() is None


def write_until_full(say, path):
    store = Store(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))  # of this child: the disk ends here
    for n in range(1000):
        try:
            say(store.append([written_record(n * 5 + k) for k in range(5)]).stop)
        except OSError as error:
            say(error)
            break
    assert store.verify() is None
    say(len(store))


def test_a_full_disk_loses_nothing_and_says_what_was_not_stored(path):
    child, said = in_a_child(write_until_full, path)
    *numbers, message, left = said.read().splitlines()
    said.close()
    assert os.waitpid(child, 0)[1] == 0
    assert "none of 5 records was stored (" in message and "append them again" in message and len(numbers) > 2
    assert numbers[-1] == left
    with Store(path) as store:  # there is space again
        assert len(store) == int(left) and store.verify() is None
        assert store.append([written_record(0)]).start == int(left)


def test_a_record_is_what_it_says():
    """The store's promise about the body rests on this: the content hash is that of the record without its times."""
    a, b = written_record(1, latency=1.0), written_record(1, latency=2.0)
    assert a == b and a.content_hash == b.content_hash and a.to_json() != b.to_json()
    assert dataclasses.replace(a, sampling_seed=5).content_hash != a.content_hash
    assert Record.from_json(json.loads(json.dumps(a.to_json()))) == a
