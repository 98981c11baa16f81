"""Find what is known of a job's tables, and of which columns its target's are made: for events, never for its rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from iscp.core.job.job_row import JobRow
from iscp.core.lineage.run_events import InputColumn, KnownTables, source_uris
from iscp.core.spec.view_fields import ViewFields, view_of
from iscp.ports.system import Clock
from iscp.views.analysis.column_lineage import find_lineage

V = TypeVar("V")

REMEMBERED_MAX = 1_000
"""Tables, and jobs, whose columns are remembered for events; beyond them the oldest are read again."""

REMEMBERED_S = 600.0
"""Seconds for which columns are remembered for events: those that have changed meanwhile are shown as they were."""

MISSING_S = 10.0
"""Seconds for which it is remembered that the columns of a table could not be read."""

ReadColumns = Callable[[str], Mapping[str, str]]
"""Returns the types of a table's columns, by their names, by its URI; empty where they cannot be read."""


class _Remembered(Generic[V]):
    """Values by keys, for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: OrderedDict[object, tuple[float, V]] = OrderedDict()

    def get(self, key: object, find: Callable[[], V], whole: Callable[[V], bool]) -> V:
        now_s = self._clock.monotonic_s()
        until_s, value = self._values.pop(key, (0.0, None))
        if value is None or until_s <= now_s:
            value = find()
            until_s = now_s + (REMEMBERED_S if whole(value) else MISSING_S)
        self._values[key] = until_s, value
        if len(self._values) > REMEMBERED_MAX:
            self._values.popitem(last=False)
        return value


class JobLineage:
    """For one thread, which may wait for the storage."""

    def __init__(self, read_columns: ReadColumns, clock: Clock) -> None:
        self._read_columns = read_columns
        self._tables: _Remembered[Mapping[str, str]] = _Remembered(clock)
        self._jobs: _Remembered[KnownTables] = _Remembered(clock)

    def known_tables(self, row: JobRow, target: str) -> KnownTables:
        """Return what is known of the tables of a job that writes `target`."""
        uris = (*source_uris(row), *([target] if target else []))
        columns = {uri: self._tables.get(uri, lambda uri=uri: self._read_columns(uri), bool) for uri in uris}  # type: ignore[misc]
        missing = not all(columns.values())
        key = row.job_id, row.spec_json, target
        return self._jobs.get(key, lambda: _known(row, target, columns), lambda _: not missing)


def _known(row: JobRow, target: str, columns: Mapping[str, Mapping[str, str]]) -> KnownTables:
    view = view_of(row.spec_json)
    if view is None:
        return KnownTables(columns, _copied(row, columns.get(target, {}), columns[row.table_uri]))
    return _of_view(view, target, columns)


def _copied(row: JobRow, made: Mapping[str, str], source: Mapping[str, str]) -> Mapping[str, tuple[InputColumn, ...]]:
    """Return the columns that other kinds take over as they are: those of the same name."""
    return {name: (InputColumn(row.table_uri, name),) for name in made if name in source}


def _of_view(view: ViewFields, target: str, columns: Mapping[str, Mapping[str, str]]) -> KnownTables:
    tables = view.tables
    found = find_lineage(view.sql, {name: columns.get(uri, {}) for name, uri in tables.items()})
    real = {name.lower(): name for name in columns.get(target, {})}
    made_of = {
        real.get(name.lower(), name): tuple(
            InputColumn(tables[table], column, "DIRECT", how) for (table, column), how in origins.items()
        )
        for name, origins in found.columns.items()
    }
    rows = tuple(InputColumn(tables[table], column, "INDIRECT", how) for (table, column), how in found.rows.items())
    return KnownTables(columns, made_of, rows)
