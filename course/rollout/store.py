"""Records in one SQLite file that only grows: triggers refuse changes, and a hash chain shows those made around them.

Each row holds the canonical JSON of a record without its wall-clock times, and these apart, so that the body's SHA-256 is the
record's content_hash. before = the chain value of the row before; chain = SHA-256 of it and of everything else in the row. So a
row can be checked alone, also behind one that is lost.
"""

import hashlib
import json
import os
import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator, Sequence

from course.language.stamp import canonical_json
from course.rollout.record import Record

APPLICATION = 0x4550_5331  # in SQLite's header: a store of episodes
LAYOUT = 2  # of the table; 1 had no column `before`
GENESIS = "0" * 64
PAGE = 256  # rows read or exported at once; between two pages a writer gets its turn

COLUMNS = "number, episode, content_hash, body, latency, before, chain"
# AUTOINCREMENT remembers the last number, so rows taken from the end are missed. REPLACE removes rows without asking the trigger
# for DELETE; the one for INSERT stops it.
TABLES = (
    """CREATE TABLE IF NOT EXISTS records (
        number INTEGER PRIMARY KEY AUTOINCREMENT, episode TEXT NOT NULL, content_hash TEXT NOT NULL, body TEXT NOT NULL,
        latency TEXT NOT NULL, before TEXT NOT NULL, chain TEXT NOT NULL) STRICT""",
    """CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON records
        BEGIN SELECT RAISE(ABORT, 'records are append-only'); END""",
    """CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON records
        BEGIN SELECT RAISE(ABORT, 'records are append-only'); END""",
    """CREATE TRIGGER IF NOT EXISTS in_order BEFORE INSERT ON records
        WHEN NEW.number IS NOT (SELECT coalesce(max(number), -1) + 1 FROM records)
        BEGIN SELECT RAISE(ABORT, 'records are append-only: numbers count up from 0'); END""",
)


@dataclass(frozen=True)
class CorruptRow:
    """Stands where a record can't be trusted. number: its place in the store, from 0."""

    number: int
    episode: str  # "" if it can't be read
    problem: str

    def __str__(self) -> str:
        who = f"row {self.number}, record {self.episode[:12] or 'unknown'}"
        return f"{who}: {self.problem}; export the others with to_parquet, and collect this episode again from its task and seeds"


class Store:
    """Records in order of arrival. Several processes may open one file; open it anew in a child process.

    What append has returned from is on the disk: neither a killed process nor a full disk takes it back.
    Raises: ValueError for a file that is no store, or one of another layout.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise ValueError(f"path must be in a folder that exists; got {self.path}")
        if self.path.is_dir():
            raise ValueError(f"path must be a file; got the folder {self.path}")
        self._db = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self.close()
            raise ValueError(
                f"path must be a store of records; got {self.path} ({error}): restore it, or give another path"
            ) from None
        except ValueError:
            self.close()
            raise

    def _open(self) -> None:
        self._db.execute("PRAGMA synchronous = EXTRA")  # a commit is on the disk, its journal's removal too
        if self._pragma("application_id") != APPLICATION:
            with self._writing():  # another process may be making it too
                new = self._pragma("application_id") == 0 and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone()
                if new:
                    self._db.execute(f"PRAGMA application_id = {APPLICATION}")
                    self._db.execute(f"PRAGMA user_version = {LAYOUT}")
                    self._make_tables()
        if self._pragma("application_id") != APPLICATION:
            raise ValueError(f"path must be a store of records; got {self.path}, a database of something else: give another path")
        if (layout := self._pragma("user_version")) != LAYOUT:
            raise ValueError(f"layout of {self.path} must be {LAYOUT}; got {layout}: read it with the package that wrote it")

    def append(self, records: Iterable[Record]) -> range:
        """Store all of these or, if anything fails, none. Returns their numbers.

        Raises: ValueError for anything but Records, or if rows are missing at the end; OSError if the file can't take them, did
        not keep them as they are, or has triggers that are not the store's.
        """
        return self._store([_row(record, i) for i, record in enumerate(records)])

    def _store(self, rows: "list[tuple[str, str, str, str]]") -> range:
        try:
            with self._writing():
                self._make_tables()  # triggers that somebody dropped
                self._refuse_foreign_triggers()
                last, chain = self._end()
                numbers = range(last + 1, last + 1 + len(rows))
                chained = []
                for number, row in zip(numbers, rows):
                    before, chain = chain, _chain(chain, number, *row)
                    chained.append((number, *row, before, chain))
                self._db.executemany(f"INSERT INTO records ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", chained)
                query = f"SELECT {COLUMNS} FROM records WHERE number > ? ORDER BY number"
                arrived = sum(a == b for a, b in zip(self._db.execute(query, (last,)), chained))
                if arrived != len(chained) or self._last() != last + len(chained):
                    raise OSError(
                        f"{self.path}: none of {len(rows)} records was stored (read back, only {arrived} are as they were written); "
                        f"mend that and append them again"
                    )
        except sqlite3.Error as error:
            raise OSError(
                f"{self.path}: none of {len(rows)} records was stored ({error}); mend that and append them again"
            ) from error
        return numbers

    def records(self) -> Iterator[Record | CorruptRow]:
        """Every row in order, as the record or as what is wrong with it. Row i of the store is item i."""
        links: tuple[str, ...] = (GENESIS,)
        for number, row in self._rows():
            if isinstance(row, CorruptRow):
                links = ()  # the row behind it can't be checked against it, only by its own `before`
                yield row
                continue
            yield _read(row, links)
            links = (row[6], _chain(row[5], *row[:5]))  # as stored, and as it should be

    def problems(self) -> tuple[CorruptRow, ...]:
        return tuple(row for row in self.records() if isinstance(row, CorruptRow))

    def verify(self) -> int | None:
        """The number of the first row that can't be trusted; None if all can.

        Somebody who rewrites the whole file makes a valid one: keep `head` elsewhere to see that.
        """
        return next((row.number for row in self.records() if isinstance(row, CorruptRow)), None)

    @property
    def head(self) -> str:
        """The last chain value, which depends on every row."""
        return self._end()[1]

    def __len__(self) -> int:
        return self._last() + 1

    def to_parquet(self, path: str | Path) -> tuple[CorruptRow, ...]:
        """Write what can be trusted, with some columns to sort and count by. Returns the rows that were left out."""
        import pyarrow
        from pyarrow import parquet

        left_out: list[CorruptRow] = []
        schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in EXPORT.items()])
        unfinished = Path(f"{path}.unfinished")
        with parquet.ParquetWriter(unfinished, schema) as writer:
            rows: list[dict[str, Any]] = []
            for number, record in enumerate(self.records()):
                if isinstance(record, CorruptRow):
                    left_out.append(record)
                    continue
                rows.append(_exported(number, record))
                if len(rows) == PAGE:
                    writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                    rows = []
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
        os.replace(unfinished, path)
        return tuple(left_out)

    @classmethod
    def from_parquet(cls, parquet_path: str | Path, path: str | Path) -> "Store":
        """A new store at path with the records that to_parquet wrote.

        Raises ValueError if a body is no record or does not have the SHA-256 beside it. Rows that were taken out, times, and a
        body that was changed with its SHA-256 are not noticed: if nothing was left out, compare the new store's `head` with the
        old one's.
        """
        from pyarrow import ArrowInvalid, parquet

        if Path(path).exists():
            raise ValueError(f"path must not exist yet; got {path}")
        try:
            table = parquet.read_table(parquet_path, columns=["number", "episode", "content_hash", "body", "latency"])
        except (ArrowInvalid, KeyError) as error:
            raise ValueError(f"parquet_path must be an export of a store; got {parquet_path} ({error})") from None
        found = [_read((*row.values(), "", ""), None) for row in table.to_pylist()]
        for record in found:
            if isinstance(record, CorruptRow):
                raise ValueError(f"parquet_path {parquet_path}: {record}")
        store = cls(path)
        store.append(found)
        return store

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pragma(self, name: str) -> int:
        return self._db.execute(f"PRAGMA {name}").fetchone()[0]

    def _make_tables(self) -> None:
        for statement in TABLES:
            self._db.execute(statement)

    def _refuse_foreign_triggers(self) -> None:
        """A trigger of somebody else, also under a name of the store's, could drop or copy what is written."""
        own = {statement.replace("IF NOT EXISTS ", "") for statement in TABLES}
        found = self._db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name")
        if foreign := [name for name, sql in found if sql not in own]:
            raise OSError(
                f"{self.path}: nothing was stored; triggers must be the store's: drop {', '.join(foreign)} and append again"
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction. IMMEDIATE: whoever reads the end of the chain is the only one that may write behind it."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _last(self) -> int:
        """The highest number that the store ever had; -1 if it has none. Either place may be damaged."""
        found, problem = [], None
        for query in ("SELECT max(seq) FROM sqlite_sequence WHERE name = 'records'", "SELECT max(number) FROM records"):
            try:
                found.append(self._db.execute(query).fetchone()[0])
            except sqlite3.DatabaseError as error:
                problem = _damage(error)
        if not found:
            raise problem
        return max((number for number in found if number is not None), default=-1)

    def _end(self) -> tuple[int, str]:
        last = self._last()
        if last < 0:
            return -1, GENESIS
        row = self._db.execute("SELECT chain FROM records WHERE number = ?", (last,)).fetchone()
        if row is None:
            raise ValueError(f"{self.path}: row {last} is missing at the end; export the rest with to_parquet into a new store")
        return last, row[0]

    def _rows(self) -> Iterator[tuple[int, "Row | CorruptRow"]]:
        last = self._last()
        for start in range(0, last + 1, PAGE):
            numbers = range(start, min(start + PAGE, last + 1))
            try:
                query = f"SELECT {COLUMNS} FROM records WHERE number BETWEEN ? AND ?"
                found = {row[0]: row for row in self._db.execute(query, (numbers[0], numbers[-1]))}
            except sqlite3.DatabaseError as error:
                _damage(error)  # one of them can't be read: which?
                found = {number: self._alone(number) for number in numbers}
            for number in numbers:
                yield number, found.get(number) or CorruptRow(number, "", "the row is missing")

    def _alone(self, number: int) -> "Row | CorruptRow | None":
        try:
            return self._db.execute(f"SELECT {COLUMNS} FROM records WHERE number = ?", (number,)).fetchone()
        except sqlite3.DatabaseError as error:
            return CorruptRow(number, "", f"the file is damaged here ({_damage(error)})")


Row = tuple[int, str, str, str, str, str, str]  # of COLUMNS


def _damage(error: sqlite3.DatabaseError) -> sqlite3.DatabaseError:
    """The error again, if it means damage. Raises it if the file is only locked."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        raise error
    return error


def _row(record: Record, i: int) -> tuple[str, str, str, str]:
    """The columns of a record, without its number and chain."""
    if not isinstance(record, Record):
        raise ValueError(f"records[{i}] must be a Record; got {type(record).__name__}")
    body = canonical_json(record.to_json(latency=False))
    return record.episode, _sha256(body), body, canonical_json([step.latency_ms for step in record.steps])


def _chain(before: str, number: int, episode: str, content_hash: str, body: str, latency: str) -> str:
    """body is in it by its hash."""
    return _sha256(canonical_json([before, number, episode, content_hash, latency]))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _read(row: Row, links: Sequence[str] | None) -> Record | CorruptRow:
    """links: what the chain may continue from, the row before's value as stored or as it should be; () if that row is lost.

    None: the row comes from no store and has no chain.
    """
    number, episode, content_hash, body, latency, before, chain = row
    try:
        if _sha256(body) != content_hash:
            raise ValueError("body must have the SHA-256 in content_hash; one of them was changed")
        if links is not None and chain != _chain(before, *row[:5]):
            raise ValueError("chain must be that of its row; this row was changed")
        if links and before not in links:
            raise ValueError("chain must continue from the row before; this row or that one was changed")
        data = json.loads(body)
        for step, milliseconds in zip(data["steps"], json.loads(latency), strict=True):
            step["latency_ms"] = milliseconds
        record = Record.from_json(data)
        if record.episode != episode:
            raise ValueError(f"episode must be the body's; got {episode!r}")
        return record
    except Exception as error:  # whatever a damaged row holds, the others stay readable
        return CorruptRow(number, episode if isinstance(episode, str) else "", str(error))


def _exported(number: int, record: Record) -> dict[str, Any]:
    episode, content_hash, body, latency = _row(record, number)
    return {
        "number": number, "episode": episode, "task": record.task["id"], "family": record.task["family"],
        "horizon": record.task["horizon"], "policy": record.versions.policy, "environment": record.versions.environment,
        "grader": record.versions.grader, "ending": record.ending, "decision": record.evidence.decision,
        "reward": record.reward, "actions": len(record.steps), "tokens": len(record.tokens),
        "content_hash": content_hash, "body": body, "latency": latency,
    }  # fmt: skip


# Columns of an export and their types in Arrow. reward is null where the verifier abstained.
EXPORT = {
    "number": "int64", "episode": "string", "task": "string", "family": "string", "horizon": "int64", "policy": "string",
    "environment": "string", "grader": "string", "ending": "string", "decision": "string", "reward": "float64",
    "actions": "int64", "tokens": "int64", "content_hash": "string", "body": "string", "latency": "string",
}  # fmt: skip
