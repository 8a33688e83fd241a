"""The store of records against bare SQLite on the same rows: the same columns and batches, without triggers, chain and hashes.

Both write to the disk that holds the temporary folder and wait for it at each commit, so the clock's time is what counts; the two
take turns, and medians are compared. Once from records, which both must turn into JSON first, once from rows that stand ready.
"""

import json
import sqlite3
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Callable

from course.bench import row
from course.envs.evidence import Evidence
from course.language.serializer import Encoded, Span
from course.language.transcript import StopReason
from course.rollout.record import Layout, Record, Step, Versions, text_hash
from course.rollout.store import Store

BATCH, ROUNDS = 64, 40
ACTIONS, ACTION, OBSERVATION = 3, 8, 4  # tokens of an action and of the observation behind it
TABLE = "number INTEGER PRIMARY KEY, episode TEXT, content_hash TEXT, body TEXT, latency TEXT, before TEXT, chain TEXT"


def rows() -> list[dict]:
    """One row per comparison: {"case", "ours", "other", "other_name", "ratio"}, times in microseconds per record."""
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder, "first.sqlite")
        batches = [[_record(BATCH * n + i) for i in range(BATCH)] for n in range(ROUNDS)]
        with Store(first) as store:
            for batch in batches:
                store.append(batch)
        made = sqlite3.connect(first).execute(f"SELECT {Store.columns()} FROM records ORDER BY number").fetchall()
        ready = [made[BATCH * n : BATCH * (n + 1)] for n in range(ROUNDS)]  # as the store has them

        def written(batch: list[Record]) -> list[tuple]:
            return [(None, record.episode, "", json.dumps(record.to_json()), "", "", "") for record in batch]

        bare = "bare SQLite"
        return [
            _against(Path(folder), "records", Store.append, batches, written, batches, f"{bare} and json.dumps"),
            _against(
                Path(folder), "rows, ready-made", Store._store, [[row[1:5] for row in rows] for rows in ready], list, ready, bare
            ),
        ]


def _against(folder: Path, case: str, store_rows: Callable, ours: list, prepare: Callable, other: list, other_name: str) -> dict:
    times: tuple[list[float], list[float]] = ([], [])
    bare = sqlite3.connect(folder / f"bare {case}.sqlite")
    bare.execute("PRAGMA synchronous = EXTRA")  # the store's promise about the disk
    bare.execute(f"CREATE TABLE records ({TABLE})")
    with Store(folder / f"ours {case}.sqlite") as store:

        def insert(batch: list) -> None:
            with bare:
                bare.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", prepare(batch))

        for batch, twin in zip(ours, other):
            for run, rows, spent in ((partial(store_rows, store), batch, times[0]), (insert, twin, times[1])):
                began = time.perf_counter()
                run(rows)
                spent.append((time.perf_counter() - began) / len(rows))
        if store.verify() is not None or bare.execute("SELECT count(*) FROM records").fetchone() != (len(store),):
            raise RuntimeError("the two have not stored the same rows; a comparison of their speed would mean nothing")
    bare.close()
    mine, theirs = median(times[0]), median(times[1])
    name = f"{case}, {BATCH} a commit"
    return row(name, mine, theirs, other_name)


def _record(i: int) -> Record:
    """An episode as long as those of the three tools."""
    spans, steps, stops, end = [Span(0, 1, "bos", -1), Span(1, 6, "text", 0)], [], [None], 6
    for n in range(ACTIONS):
        start, stop = end + 1, end + 1 + ACTION
        spans += [Span(end, start, "header", 2 * n + 1), Span(start, stop, "sampled", 2 * n + 1)]
        stops.append(StopReason.END)
        end = stop
        if n + 1 < ACTIONS:
            spans += [Span(end, end + 1, "header", 2 * n + 2), Span(end + 1, end + 1 + OBSERVATION, "text", 2 * n + 2)]
            stops.append(None)
            end += 1 + OBSERVATION
        arguments, cost = {"a": i % 10, "op": "+", "b": n}, {"calls": 1, "compute": 2}
        seen = f"{i % 10 + n} and 3 calls left"
        steps.append(
            Step((start, stop), f"calc {i % 10} + {n}", "executed", "calc", arguments, seen, text_hash(seen), cost, f"{i:064x}",
                 "", 0.04 + i / 1e6, f"{n:064x}")
        )  # fmt: skip
    logprobs = tuple(-1.0 / (2 + (7 * i + t) % 97) for t in range(ACTIONS * ACTION))
    return Record(
        {"id": f"t{i}", "family": f"f{i % 9}", "prompt": "add 3 4", "horizon": ACTIONS, "created": i}, f"{i:064x}", f"{i:064d}",
        i, 1, i, 1.0, ACTION, Layout(BATCH, i % BATCH, 8), Versions("p" * 64, "t" * 64, "s" * 64, "tools@" + "e" * 64, "judge@1"),
        Encoded(tuple((3 * i + t) % 40 for t in range(end)), tuple(spans), tuple(stops)), logprobs, tuple(steps), "terminated",
        Evidence("judge", "1", [i], "right", 10.0),
    )  # fmt: skip
