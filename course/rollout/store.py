"""Records in one SQLite file that only grows: triggers refuse changes, and a hash chain shows those made around them.

Each row holds the canonical JSON of a record without its wall-clock times, and these apart, so that the body's SHA-256 is the
record's content_hash. before = the chain value of the row before; chain = SHA-256 of it and of everything else in the row. So a
row can be checked alone, also behind one that is lost.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Iterator, Sequence

from course.accounting.append_only import GENESIS, PAGE, AppendOnly
from course.language.stamp import canonical_json
from course.rollout.record import Record


@dataclass(frozen=True)
class CorruptRow:
    """Stands where a record can't be trusted. number: its place in the store, from 0."""

    number: int
    episode: str  # "" if it can't be read
    problem: str

    def __str__(self) -> str:
        who = f"row {self.number}, record {self.episode[:12] or 'unknown'}"
        return f"{who}: {self.problem}; export the others with to_parquet, and collect this episode again from its task and seeds"


class Store(AppendOnly):
    """Records in order of arrival. Several processes may open one file; open it anew in a child process.

    What append has returned from is on the disk: neither a killed process nor a full disk takes it back.
    Raises: ValueError for a file that is no store, or one of another layout.
    """

    KIND, TABLE, OWN = "a store of records", "records", ("episode", "content_hash", "body", "latency")
    APPLICATION, LAYOUT = 0x4550_5331, 2  # layout 1 had no column `before`
    RESCUE = "export the rest with to_parquet into a new store"

    @staticmethod
    def _chain(before: str, number: int, episode: str, content_hash: str, body: str, latency: str) -> str:
        """body is in it by its hash."""
        return _sha256(canonical_json([before, number, episode, content_hash, latency]))

    def append(self, records: Iterable[Record]) -> range:
        """Store all of these or, if anything fails, none. Returns their numbers.

        Raises: ValueError for anything but Records, or if rows are missing at the end; OSError if the file can't take them, did
        not keep them as they are, or has triggers that are not the store's.
        """
        return self._store([_row(record, i) for i, record in enumerate(records)])

    def records(self, first: int = 0) -> Iterator[Record | CorruptRow]:
        """Every row from `first` on in order, as the record or as what is wrong with it. Row i of the store is item i - first."""
        links: tuple[str, ...] = () if first else (GENESIS,)
        for number, row in self._rows(first):
            if isinstance(row, str):
                links = ()  # the row behind it can't be checked against it, only by its own `before`
                yield CorruptRow(number, "", row)
                continue
            yield _read(row, links)
            links = (row[6], self._chain(row[5], *row[:5]))  # as stored, and as it should be

    def problems(self) -> tuple[CorruptRow, ...]:
        return tuple(row for row in self.records() if isinstance(row, CorruptRow))

    def verify(self) -> int | None:
        """The number of the first row that can't be trusted; None if all can.

        Somebody who rewrites the whole file makes a valid one: keep `head` elsewhere to see that.
        """
        return next((row.number for row in self.records() if isinstance(row, CorruptRow)), None)

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


Row = tuple[int, str, str, str, str, str, str]  # number, own columns, before, chain


def _row(record: Record, i: int) -> tuple[str, str, str, str]:
    """The columns of a record, without its number and chain."""
    if not isinstance(record, Record):
        raise ValueError(f"records[{i}] must be a Record; got {type(record).__name__}")
    body = canonical_json(record.to_json(latency=False))
    return record.episode, _sha256(body), body, canonical_json([step.latency_ms for step in record.steps])


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
        if links is not None and chain != Store._chain(before, *row[:5]):
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
