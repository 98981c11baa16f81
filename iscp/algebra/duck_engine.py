"""DuckDB within this process: it computes statements over tables of Arrow, and reaches nothing else.

There is one database, in memory and without tables of its own. It opens no file and no connection, loads no extension,
and nobody can change that: its configuration is locked. What it takes beyond its limits raises, and writes nothing. The
library is imported when the first statement is to run, as it takes 45 MB.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from iscp.ports.engine import invested_s
from iscp.ports.source import RowScan
from iscp.system.late_imports import duckdb, pc

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_BYTES_MAX = 512 * 1024**2
"""Bytes of memory that all statements of a process take together for what they sort, group and join; one that needs
more fails, and Spark carries it out. Their inputs and results, which are Arrow's, are counted by those who read them.
"""

STATEMENT_S_MAX = 60.0
"""Seconds that one statement may take; then it is interrupted, and Spark carries it out."""

THREADS = 2
"""Threads that compute one statement; the work of small changes gains nothing by more."""

_SETTINGS: Mapping[str, str | int] = {
    "threads": THREADS,
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # a name is never that of a variable of this program
    "preserve_insertion_order": "false",
    "lock_configuration": "true",
}


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The bytes of files up to which a refresh without Spark reads a table whole, by how much there is to gain, and
    the rows that it looks up.
    """

    looked_up_rows: int = 500_000
    """Rows of a table that are looked up by keys; where more are needed, the table is scanned, or left to Spark."""

    searched: int = 1024**2
    """Bytes of a table that is read whole rather than searched for keys, if it can be searched."""

    held: int = 32 * 1024**2
    """Bytes of a table whose rows are held in memory; those of a larger one are scanned, a few at a time and again by
    each statement.
    """

    scanned: int = 1024**3
    """Bytes of all tables that are scanned, where nothing else is left but Spark, which would read as much. A scan that
    takes longer than a recomputation is given up, and remembered.
    """

    difference: int = 4 * 1024**2
    """Bytes of all tables up to which all rows of a view are computed, and of its target up to which only the
    difference is written.
    """


READ_LIMITS = ReadLimits()


class NotComputedError(Exception):
    """A statement has no result here: DuckDB refuses a value, or a limit was reached. Spark decides."""


class OutOfTimeError(NotComputedError):
    """The refresh has taken as long as it may."""


class DuckEngine:
    """The database of one process; safe for threads. `statement_s` is the limit of one statement, `memory_bytes` that
    of all together, and `limits` are those of what is read for it.
    """

    def __init__(
        self,
        statement_s: float = STATEMENT_S_MAX,
        memory_bytes: int = MEMORY_BYTES_MAX,
        limits: ReadLimits = READ_LIMITS,
    ) -> None:
        self.limits = limits
        self._statement_s = statement_s
        self._settings: dict[str, Any] = {**_SETTINGS, "memory_limit": f"{memory_bytes}B"}
        self._lock = threading.Lock()
        self._database: DuckDBPyConnection | None = None

    @contextmanager
    def cursor(self, refresh_s: float = inf) -> Iterator[DuckCursor]:
        """Yield a cursor for one refresh, which may take so long. One connection in several threads would give wrong
        rows.
        """
        connection, ends_at_s = self._open().cursor(), time.monotonic() + refresh_s
        try:
            yield DuckCursor(connection, self._statement_s, ends_at_s, self._discard)
        finally:
            connection.close()

    def _open(self) -> DuckDBPyConnection:
        with self._lock:
            if self._database is None:
                self._database = duckdb.connect(":memory:", config=self._settings)
                define_functions(self._database)
            return self._database

    def _discard(self) -> None:
        """Open another database for the next refresh: one that has met a fault of its own refuses all statements."""
        with self._lock:
            self._database = None


class DuckCursor:
    """The tables of one refresh, and statements over them. Not safe for threads."""

    def __init__(
        self, connection: DuckDBPyConnection, statement_s: float, ends_at_s: float, discard: Callable[[], None]
    ) -> None:
        """`ends_at_s` is the monotonic time at which the last statement is interrupted, and none is begun; what its
        thread invests meanwhile comes on top.
        """
        self._connection = connection
        self._statement_s, self._ends_at_s = statement_s, ends_at_s - invested_s()
        self._began_s = time.monotonic()
        self._discard = discard

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the refresh began."""
        return time.monotonic() - self._began_s

    def define(self, name: str, rows: pa.Table | RowScan) -> None:
        """Have statements read these rows under a name. Times of day lose their zone, which is UTC.

        Raises NotComputedError for a day or time that DuckDB has no place for; of a scan the statements raise it.
        """
        self._connection.register(name, _RowStream(rows) if isinstance(rows, RowScan) else without_zones(rows))

    def rows(self, text: str, schema: pa.Schema) -> pa.Table:
        """Return the rows of a statement as `schema` has them. Raises NotComputedError, and OutOfTimeError at the end
        of the refresh's time.
        """
        left_s = self._ends_at_s + invested_s() - time.monotonic()
        if left_s <= 0:
            raise OutOfTimeError("the refresh has taken as long as a recomputation")
        timer = threading.Timer(min(self._statement_s, left_s), self._connection.interrupt)
        timer.name, timer.daemon = "iscp-duck-limit", True
        timer.start()
        try:
            found = self._connection.execute(text).to_arrow_table()
        except (duckdb.InternalException, duckdb.FatalException) as error:
            self._discard()
            raise NotComputedError(str(error)) from error
        except duckdb.InterruptException as error:
            raise (OutOfTimeError if left_s <= self._statement_s else NotComputedError)(str(error)) from error
        except duckdb.Error as error:
            raise NotComputedError(str(error)) from error
        finally:
            timer.cancel()
        with suppress(pa.ArrowException):
            columns = [each.cast(kind) for each, kind in zip(found.columns, schema.types, strict=True)]
            return pa.table(columns, schema=schema)
        raise NotComputedError(f"the rows have the types {found.schema.types}, and not {schema.types}")


class _RowStream:
    """The rows of a scan, for DuckDB, which takes them a few at a time, and again for each place of a statement."""

    def __init__(self, scan: RowScan) -> None:
        self._scan = scan
        self._schema = without_zones(scan.schema.empty_table()).schema

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches()).__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for rows in self._scan.parts():
            yield from without_zones(rows).to_batches()


def without_zones(rows: pa.Table) -> pa.Table:
    """Return the rows as DuckDB reads them. Raises NotComputedError."""
    if any(map(_is_infinite, rows.columns)):
        raise NotComputedError("a day or time that is infinity to DuckDB")
    columns = [each.cast(pa.timestamp("us")) if pa.types.is_timestamp(each.type) else each for each in rows.columns]
    return pa.table(columns, names=rows.schema.names)


def define_functions(database: DuckDBPyConnection) -> None:
    """Define what the texts of the algebra call besides functions of DuckDB's own."""
    from iscp.algebra.duck_aggregates import FUNCTIONS, MACROS  # with the first statement, as the library is

    for each in MACROS:
        database.execute(f"CREATE MACRO {each}")
    for name, function in FUNCTIONS.items():
        # It stays while any cursor may call it: DuckDB holds it no longer than the connection that has it.
        of_text = _OF_TEXTS.setdefault(name, _of_text(function))
        database.create_function(name, of_text, ["VARCHAR"], "DOUBLE")


def _of_text(function: Callable[..., float]) -> Callable[[str], float]:
    """Return a function of whole numbers as one of a text that lists them."""
    return lambda text: function(*map(int, text.split()))


_OF_TEXTS: dict[str, Callable[[str], float]] = {}
"""The functions of texts, by their names, as they were first defined."""


def _is_infinite(column: pa.ChunkedArray) -> bool:
    """Return whether a day or time is the greatest that its bits have, which DuckDB takes for infinity."""
    if not (pa.types.is_date32(column.type) or pa.types.is_timestamp(column.type)):
        return False
    bits = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
    greatest = pc.max(column.cast(bits)).as_py()
    return greatest is not None and greatest >= 2 ** (bits.bit_width - 1) - 1


DUCK_ENGINE = DuckEngine()
"""The engine of this process."""
