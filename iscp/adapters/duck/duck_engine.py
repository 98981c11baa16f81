"""DuckDB within this process: it computes statements over tables of Arrow, and reaches nothing else.

There is one database, in memory and without tables of its own. It opens no file and no connection, loads no extension,
and nobody can change that: its configuration is locked. What it takes beyond its limits raises, and writes nothing. The
library is imported when the first statement is to run, as it takes 45 MB.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from iscp.adapters.system.late_imports import duckdb

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


class NotComputedError(Exception):
    """A statement has no result here: DuckDB refuses a value, or a limit was reached. Spark decides."""


class DuckEngine:
    """The database of one process; safe for threads. `statement_s` is the limit of one statement, `memory_bytes` that
    of all together.
    """

    def __init__(self, statement_s: float = STATEMENT_S_MAX, memory_bytes: int = MEMORY_BYTES_MAX) -> None:
        self._statement_s = statement_s
        self._settings: dict[str, Any] = {**_SETTINGS, "memory_limit": f"{memory_bytes}B"}
        self._lock = threading.Lock()
        self._database: DuckDBPyConnection | None = None

    @contextmanager
    def cursor(self) -> Iterator[DuckCursor]:
        """Yield a cursor for one refresh. One connection in several threads would give wrong rows."""
        connection = self._open().cursor()
        try:
            yield DuckCursor(connection, self._statement_s, self._discard)
        finally:
            connection.close()

    def _open(self) -> DuckDBPyConnection:
        with self._lock:
            if self._database is None:
                self._database = duckdb.connect(":memory:", config=self._settings)
            return self._database

    def _discard(self) -> None:
        """Open another database for the next refresh: one that has met a fault of its own refuses all statements."""
        with self._lock:
            self._database = None


class DuckCursor:
    """The tables of one refresh, and statements over them. Not safe for threads."""

    def __init__(self, connection: DuckDBPyConnection, statement_s: float, discard: Callable[[], None]) -> None:
        self._connection = connection
        self._statement_s = statement_s
        self._discard = discard

    def define(self, name: str, rows: pa.Table) -> None:
        """Have statements read these rows under a name. Times of day lose their zone, which is UTC."""
        columns = [each.cast(pa.timestamp("us")) if pa.types.is_timestamp(each.type) else each for each in rows.columns]
        self._connection.register(name, pa.table(columns, names=rows.schema.names))

    def rows(self, text: str, schema: pa.Schema) -> pa.Table:
        """Return the rows of a statement as `schema` has them. Raises NotComputedError."""
        timer = threading.Timer(self._statement_s, self._connection.interrupt)
        timer.name, timer.daemon = "iscp-duck-limit", True
        timer.start()
        try:
            found = self._connection.execute(text).to_arrow_table()
        except (duckdb.InternalException, duckdb.FatalException) as error:
            self._discard()
            raise NotComputedError(str(error)) from error
        except duckdb.Error as error:
            raise NotComputedError(str(error)) from error
        finally:
            timer.cancel()
        with suppress(pa.ArrowException):
            columns = [each.cast(kind) for each, kind in zip(found.columns, schema.types, strict=True)]
            return pa.table(columns, schema=schema)
        raise NotComputedError(f"the rows have the types {found.schema.types}, and not {schema.types}")


DUCK_ENGINE = DuckEngine()
"""The engine of this process."""
