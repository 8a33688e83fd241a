"""A table in one SQLite file that only grows: triggers refuse changes, and a hash chain shows those made around them.

Each row has its number, its own columns, before = the chain value of the row before, and chain = a hash of it and of everything
else in the row. So a row can be checked alone, also behind one that is lost.
"""

import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, ClassVar, Iterator

GENESIS = "0" * 64
PAGE = 256  # rows read at once; between two pages a writer gets its turn

Row = tuple  # (number, *own columns, before, chain)


class AppendOnly:
    """Rows in order of arrival. Several processes may open one file; open it anew in a child process.

    What _store has returned from is on the disk: neither a killed process nor a full disk takes it back. A subclass names its table
    and columns, and says how a row is hashed.
    Raises: ValueError for a file that is of something else, or of another layout.
    """

    KIND: ClassVar[str]  # "a store of records"
    APPLICATION: ClassVar[int]  # in SQLite's header
    LAYOUT: ClassVar[int]  # of the table
    TABLE: ClassVar[str]  # what its rows are called
    OWN: ClassVar[tuple[str, ...]]  # columns of text
    RESCUE: ClassVar[str]  # what to do if rows are missing at the end

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
            raise ValueError(f"path must be {self.KIND}; got {self.path} ({error}): restore it, or give another path") from None
        except ValueError:
            self.close()
            raise

    @staticmethod
    def _chain(before: str, number: int, *own: str) -> str:
        raise NotImplementedError

    @classmethod
    def columns(cls) -> str:
        return ", ".join(("number", *cls.OWN, "before", "chain"))

    @classmethod
    def _tables(cls) -> tuple[str, ...]:
        # AUTOINCREMENT remembers the last number, so rows taken from the end are missed. REPLACE removes rows without asking the
        # trigger for DELETE; the one for INSERT stops it.
        own = ", ".join(f"{name} TEXT NOT NULL" for name in (*cls.OWN, "before", "chain"))
        return (
            f"""CREATE TABLE IF NOT EXISTS {cls.TABLE} (
        number INTEGER PRIMARY KEY AUTOINCREMENT, {own}) STRICT""",
            f"""CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON {cls.TABLE}
        BEGIN SELECT RAISE(ABORT, '{cls.TABLE} are append-only'); END""",
            f"""CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON {cls.TABLE}
        BEGIN SELECT RAISE(ABORT, '{cls.TABLE} are append-only'); END""",
            f"""CREATE TRIGGER IF NOT EXISTS in_order BEFORE INSERT ON {cls.TABLE}
        WHEN NEW.number IS NOT (SELECT coalesce(max(number), -1) + 1 FROM {cls.TABLE})
        BEGIN SELECT RAISE(ABORT, '{cls.TABLE} are append-only: numbers count up from 0'); END""",
        )

    def _open(self) -> None:
        self._db.execute("PRAGMA synchronous = EXTRA")  # a commit is on the disk, its journal's removal too
        if self._pragma("application_id") != self.APPLICATION:
            with self._writing():  # another process may be making it too
                new = self._pragma("application_id") == 0 and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone()
                if new:
                    self._db.execute(f"PRAGMA application_id = {self.APPLICATION}")
                    self._db.execute(f"PRAGMA user_version = {self.LAYOUT}")
                    self._make_tables()
        if self._pragma("application_id") != self.APPLICATION:
            raise ValueError(f"path must be {self.KIND}; got {self.path}, a database of something else: give another path")
        if (layout := self._pragma("user_version")) != self.LAYOUT:
            raise ValueError(f"layout of {self.path} must be {self.LAYOUT}; got {layout}: read it with the package that wrote it")

    def _store(self, rows: "list[tuple[str, ...]]", check: Callable[[int], None] = lambda last: None) -> range:
        """All of these or, if anything fails, none; returns their numbers. check: sees the last number before them, and may refuse."""
        try:
            with self._writing():
                self._make_tables()  # triggers that somebody dropped
                self._refuse_foreign_triggers()
                last, chain = self._end()
                check(last)
                numbers = range(last + 1, last + 1 + len(rows))
                chained = []
                for number, row in zip(numbers, rows):
                    before, chain = chain, self._chain(chain, number, *row)
                    chained.append((number, *row, before, chain))
                places = ", ".join("?" * (len(self.OWN) + 3))
                self._db.executemany(f"INSERT INTO {self.TABLE} ({self.columns()}) VALUES ({places})", chained)
                query = f"SELECT {self.columns()} FROM {self.TABLE} WHERE number > ? ORDER BY number"
                arrived = sum(a == b for a, b in zip(self._db.execute(query, (last,)), chained))
                if arrived != len(chained) or self._last() != last + len(chained):
                    raise OSError(
                        f"{self.path}: none of {len(rows)} {self.TABLE} was stored (read back, only {arrived} are as they were "
                        f"written); mend that and append them again"
                    )
        except sqlite3.Error as error:
            raise OSError(
                f"{self.path}: none of {len(rows)} {self.TABLE} was stored ({error}); mend that and append them again"
            ) from error
        return numbers

    @property
    def head(self) -> str:
        """The last chain value, which depends on every row."""
        return self._end()[1]

    def __len__(self) -> int:
        return self._last() + 1

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> "AppendOnly":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pragma(self, name: str) -> int:
        return self._db.execute(f"PRAGMA {name}").fetchone()[0]

    def _make_tables(self) -> None:
        for statement in self._tables():
            self._db.execute(statement)

    def _refuse_foreign_triggers(self) -> None:
        """A trigger of somebody else, also under a name of the store's, could drop or copy what is written."""
        own = {statement.replace("IF NOT EXISTS ", "") for statement in self._tables()}
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
        """The highest number that the file ever had; -1 if it has none. Either place may be damaged."""
        found, problem = [], None
        for query in (
            f"SELECT max(seq) FROM sqlite_sequence WHERE name = '{self.TABLE}'",
            f"SELECT max(number) FROM {self.TABLE}",
        ):
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
        row = self._db.execute(f"SELECT chain FROM {self.TABLE} WHERE number = ?", (last,)).fetchone()
        if row is None:
            raise ValueError(f"{self.path}: row {last} is missing at the end; {self.RESCUE}")
        return last, row[0]

    def _rows(self, first: int = 0) -> Iterator[tuple[int, Row | str]]:
        """Each number from `first` on with its row, or with what is wrong where it can't be read."""
        last = self._last()
        for start in range(first, last + 1, PAGE):
            numbers = range(start, min(start + PAGE, last + 1))
            try:
                query = f"SELECT {self.columns()} FROM {self.TABLE} WHERE number BETWEEN ? AND ?"
                found = {row[0]: row for row in self._db.execute(query, (numbers[0], numbers[-1]))}
            except sqlite3.DatabaseError as error:
                _damage(error)  # one of them can't be read: which?
                found = {number: self._alone(number) for number in numbers}
            for number in numbers:
                yield number, found.get(number) or "the row is missing"

    def _alone(self, number: int) -> Row | str | None:
        try:
            return self._db.execute(f"SELECT {self.columns()} FROM {self.TABLE} WHERE number = ?", (number,)).fetchone()
        except sqlite3.DatabaseError as error:
            return f"the file is damaged here ({_damage(error)})"


def _damage(error: sqlite3.DatabaseError) -> sqlite3.DatabaseError:
    """The error again, if it means damage. Raises it if the file is only locked."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        raise error
    return error
