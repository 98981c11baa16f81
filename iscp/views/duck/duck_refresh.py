"""The changes of a view's rows computed in this process, by DuckDB, from the plan that the algebra gives of them.

All that may fail does so before anything is written: a refresh that has no result here is left to Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from iscp.algebra.algebra import (
    CLOCK,
    CLOCK_TYPES,
    UNNUMBERED,
    Group,
    Limit,
    Rel,
    Table,
    TableRows,
    TypedColumn,
    UnplannedError,
    Windowed,
)
from iscp.algebra.change_plan import GROUP_ROWS, ChangePlan, SummedRows, shown_keys, summed_functions
from iscp.algebra.duck_engine import DuckCursor, NotComputedError, ReadLimits
from iscp.algebra.duck_text import leaf_name, translate
from iscp.algebra.lookup_plan import ComputedStep, LookupPlan, LookupStep, WholeTableError
from iscp.algebra.result_types import type_for_delta
from iscp.algebra.stored_query import KeptInput, KeptRows, plan_kept_rows
from iscp.delta.rows.net_changes import arrow_schema, weights_of
from iscp.model.rows.key_ranges import Op
from iscp.model.sql.sql_names import OP, WEIGHT
from iscp.ports.source import ChangeSource, RowScan, UnreadRowsError
from iscp.system.late_imports import T, pc
from iscp.views.changes.group_changes import KeyRows, with_op
from iscp.views.changes.signed_rows import Instants
from iscp.views.refresh.table_spans import CHANGED_ROWS_MAX, Part, Spans, count_read, measured_as, reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- tables of a view in one refresh ----------------------------------------------------------------------------------
# Tables are read without Spark: what changed, rows of some keys, and small tables whole.

HELD_ROWS_BYTES_MAX = 256 * 1024**2
"""Bytes of memory that the rows of a table may take which are held for a refresh."""


SCANNED_BYTES_S = 100 * 1024**2
"""Bytes of tables' files of which a scan is expected to read as many a second. As soon as a search for rows has taken
as long as a scan, the scan is next: both together take twice as long as the faster one at most.
"""

SEARCHED_S_LEAST = 2.0
"""Seconds that any search for rows may take."""


@dataclass(frozen=True, slots=True)
class ViewTables:
    """The tables by their names in the query. `columns` are those of each that the query reads, at least one.

    `instants` are the times before and after; `clock_types` the types of the values that the query has of them. `stack`
    releases what is read.
    """

    session: SparkSession
    source: ChangeSource
    uris: Mapping[str, str]
    spans: Spans
    columns: Mapping[str, Sequence[str]]
    stack: ExitStack
    instants: Instants
    clock_types: frozenset[str]
    limits: ReadLimits

    @property
    def changed(self) -> list[str]:
        """Return the names of the tables that have changed, the time too if the query has another value of it."""
        found = [name for name, uri in self.uris.items() if self.spans.by_uri[uri].changes_data]
        if not self.clock_types:
            return found
        old, new = (clock_row(each).select([*self.clock_types]) for each in (self.instants.old_s, self.instants.new_s))
        return found if old.equals(new) else [*found, CLOCK]

    def rows(self, leaf: Table, *, is_shared: bool) -> pa.Table | RowScan:
        """Return the rows that a leaf stands for; of a large table a scan of them, unless they are read several times
        (`is_shared`) and there is room for them. Raises NotComputedError.
        """
        if leaf.at is TableRows.CHANGES:
            return self._changes(leaf.name)
        if leaf.name == CLOCK:
            return clock_row(self.instants.at(leaf.at))
        uri, columns = self.uris[leaf.name], self.columns[leaf.name]
        scan = self.source.scan(uri, self._version(leaf), columns)
        if scan is None or scan.bytes > self.limits.scanned:
            raise NotComputedError(f"all rows of {leaf.name} are too many, or read by Spark alone")
        if scan.bytes > self.limits.held and not is_shared:
            return scan
        rows = _all_of(scan)
        if rows is None and scan.bytes <= self.limits.held:
            raise NotComputedError("the rows of a table take too much memory")
        return scan if rows is None else rows

    def look_up(self, step: LookupStep, keys: pa.Table) -> pa.Table:
        """Return the rows of a step, whose keys are computed. Raises NotComputedError."""
        source = step.source
        by = pa.table({own: keys[key] for own, key in step.pairs})
        uri, columns = self.uris[source.name], self.columns[source.name]
        rows = self.source.rows_with(uri, self._version(source), by, columns, self.limits.looked_up_rows)
        if rows is None:
            raise NotComputedError(f"the rows of {source.name} are too many, or read by Spark alone")
        return rows

    def _version(self, leaf: Table) -> int:
        span = self.spans.by_uri[self.uris[leaf.name]]
        return span.from_version if leaf.at is TableRows.OLD else span.to.version

    @measured_as(Part.CHANGES)
    def _changes(self, name: str) -> pa.Table:
        """Return the changed rows with WEIGHT."""
        if name not in self.uris:
            raise NotComputedError("the time has no rows that change")
        uri, columns = self.uris[name], [*self.columns[name]]
        read = reading(self.session, self.source, uri, self.spans.by_uri[uri], columns, 1)
        rows = self.stack.enter_context(read).table
        if rows is None or len(rows) > CHANGED_ROWS_MAX:
            raise NotComputedError(f"the changes of {name} are too many, or read by Spark alone")
        count_read(len(rows))
        return rows.select(columns).append_column(WEIGHT, weights_of(rows))


def _all_of(scan: RowScan) -> pa.Table | None:
    """Return all rows, or None if they take too much memory. Raises NotComputedError."""
    parts, size = [scan.schema.empty_table()], 0
    try:
        for rows in scan.parts():
            parts.append(rows)
            if (size := size + rows.nbytes) > HELD_ROWS_BYTES_MAX:
                return None
    except UnreadRowsError as error:
        raise NotComputedError(str(error)) from error
    return pa.concat_tables(parts)


def clock_row(at_s: float) -> pa.Table:
    """Return the time as a table has it: one row, of Unix seconds to the millisecond."""
    at = pa.array([round(at_s * 1000)], pa.timestamp("ms", "UTC"))
    values = {"timestamp": at, "timestamp_ntz": at.cast(pa.timestamp("ms")), "date": at.cast(pa.date32())}
    return pa.table({kind: values[kind] for kind in CLOCK_TYPES})


def columns_read(root: Rel, schemas: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the columns of each table that a query reads, and the fields of structs by their paths; `schemas` has the
    columns that there are, in their order.
    """
    needed: dict[str, set[str]] = {}
    for each in (table for table in root.tables() if table.name in schemas):
        needed.setdefault(each.name, set()).update(column.name for column in each.fields)
    found: dict[str, list[str]] = {}
    for name, few in needed.items():
        own = [each for each in schemas[name] if each in few]
        found[name] = [*own, *sorted(few.difference(own))] or [*schemas[name][:1]]
    return found


# --- the refresh ------------------------------------------------------------------------------------------------------

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StoredGroups:
    """The stored sums of a view. `is_at_hand` says whether they are those that the view's rows were made of, and have
    the columns of a schema.

    `find` gives the groups with these keys, and perhaps others.
    """

    is_at_hand: Callable[[str], bool]
    find: Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The stored part of a view's query. `is_at_hand` is as in StoredGroups; `all_rows` gives all, if they are few."""

    is_at_hand: Callable[[str], bool]
    all_rows: Callable[[], pa.Table | None]


@dataclass(frozen=True, slots=True)
class KeptChange:
    """The changes of a stored part: its rows by these keys, with OP, and all rows of the result."""

    stored: pa.Table
    keys: tuple[str, ...]
    result: pa.Table


@dataclass(frozen=True, slots=True)
class SummedGroups:
    """Groups that changed: with OP as they are `stored` by `keys`, and as rows of the result by their keys."""

    stored: pa.Table
    keys: tuple[str, ...]
    touched: KeyRows


@dataclass(frozen=True, slots=True)
class DuckRefresh:
    """A refresh of the view of a query: `root` over `tables`, of which each has so many `bytes`."""

    root: Rel
    cursor: DuckCursor
    tables: ViewTables
    bytes: Mapping[str, int]
    read: dict[str, pa.Table | RowScan] = field(default_factory=dict)
    """The rows of leaves that were read: each is read once, whichever ways to refresh are tried."""

    is_scanning: bool = False
    """Whether a large table is scanned rather than searched for keys."""

    @property
    def is_small(self) -> bool:
        """Return whether the tables are so small that all rows are computed."""
        return sum(self.bytes.values()) <= self.tables.limits.difference

    @property
    def scanning(self) -> DuckRefresh | None:
        """Return the refresh that scans large tables whole, or None if they are too large, or the result follows from
        stored sums, which Spark keeps up where changes are too many for them here.
        """
        if sum(self.bytes.values()) > self.tables.limits.scanned or is_summed(self.root):
            return None
        return replace(self, is_scanning=True)

    @property
    def _is_scan_faster(self) -> bool:
        """Return whether a scan may be faster than what is left of a search for rows."""
        scan_s = max(SEARCHED_S_LEAST, sum(self.bytes.values()) / SCANNED_BYTES_S)
        return not self.is_scanning and self.cursor.elapsed_s > scan_s and self.scanning is not None

    def all_rows(self) -> pa.Table:
        """Return all rows as they are now. Raises NotComputedError."""
        return self._computation().rows(self.root, self._names)

    def touched_rows(self) -> KeyRows | None:
        """Return all rows of the keys that changes touch, or None if the result has no keys. Raises
        NotComputedError.
        """

        def over_lookups(plan: ChangePlan, lookups: LookupPlan) -> tuple[Rel, Rel] | None:
            touched = plan.keyed_rows()
            if touched is None:
                return None
            lookups.computed(touched.keys.inputs[0])
            return lookups.over_lookups(touched.keys), lookups.over_lookups(touched.rows)

        found, lookups = self._planned_changes(over_lookups)
        if found is None:
            return None
        return self._key_rows(self._computation(lookups), *found)

    def summed_rows(self, stored: StoredGroups) -> SummedGroups | None:
        """Return how groups change that follow from stored sums, or None if the result is none of such groups, or the
        sums are not at hand. Raises NotComputedError.
        """

        def over_lookups(plan: ChangePlan, lookups: LookupPlan) -> SummedRows | None:
            summed = plan.summed_rows()
            if summed is None:
                return None
            moved, leaf = summed.moved
            return replace(summed, moved=(lookups.over_lookups(moved), leaf))

        found, lookups = self._planned_changes(over_lookups)
        if found is None:
            return None
        names = [each.name for each in found.stored.fields]
        computation = self._computation(lookups)
        moved = computation.rows(found.moved[0], names)
        if not stored.is_at_hand(schema_json_of(found.stored.fields)):
            return None
        keys = moved.select([*found.keys])
        computation.define(found.moved[1], moved)
        computation.define(found.stored, stored.find(keys).select(names).cast(moved.schema) if len(moved) else moved)
        now = computation.rows(found.now[0], names)
        if not _can_be(now):
            raise NotComputedError("the stored sums are not those that the changes started from")
        computation.define(found.now[1], now)
        touched = (found.touched.keys, found.touched.rows)
        return SummedGroups(with_op_of_sums(now), found.keys, self._key_rows(computation, *touched))

    def kept_rows(self, kept: KeptInput, stored: StoredRows) -> KeptChange | None:
        """Return how the part of the query that is stored changes, and all rows of the result, or None if Spark has to
        do it. Raises NotComputedError.
        """
        found, lookups = self._planned(lambda changed, large: _kept_over_lookups(kept, changed, large))
        if found is None or not stored.is_at_hand(schema_json_of(found.stored.fields)):
            return None
        rows = stored.all_rows()
        if rows is None:
            raise NotComputedError("the rows that are stored beside the target are too many")
        computation, names = self._computation(lookups), [each.name for each in found.stored.fields]
        moved = computation.rows(found.moved[0], [each.name for each in found.moved[1].fields])
        computation.define(found.moved[1], moved)
        computation.define(found.stored, rows.select(names).cast(arrow_schema_of(found.stored.fields)))
        now = computation.rows(found.now[0], names)
        computation.define(found.now[1], now)
        if kept.summed and not _can_be(now):
            raise NotComputedError("the stored sums are not those that the changes started from")
        keys = moved.select([each.name for each in found.moved[1].fields][: len(found.keys)])
        changed = with_op_of_sums(now) if kept.summed else with_op(KeyRows(keys.rename_columns([*found.keys]), now))
        return KeptChange(changed, found.keys, computation.rows(found.result, self._names))

    def follows(self, kept: KeptInput) -> bool:
        """Return whether there is a plan of how the part of the query that is stored changes."""
        try:
            planned, _ = self._planned(lambda changed, large: _kept_over_lookups(kept, changed, large))
        except NotComputedError:
            return False
        return planned is not None

    def net_rows(self) -> pa.Table:
        """Return the rows that change, each once, with WEIGHT. Raises NotComputedError."""

        def over_lookups(plan: ChangePlan, lookups: LookupPlan) -> Rel | None:
            changes = plan.net_rows()
            return None if changes is None else lookups.over_lookups(changes)

        found, lookups = self._planned_changes(over_lookups)
        columns = (*self.root.columns, TypedColumn(UNNUMBERED, WEIGHT, "long"))
        if found is None:
            return arrow_schema_of(columns).empty_table()
        return self._computation(lookups).rows(found, [each.name for each in columns], by_value=True)

    @property
    def _names(self) -> list[str]:
        return [each.name for each in self.root.columns]

    def _key_rows(self, computation: _Computation, keys: Rel, rows: Rel) -> KeyRows:
        """Return keys, which have the names of the result's columns, and rows of the result."""
        names = [each.name for each in keys.columns]
        return KeyRows(computation.rows(keys, names), computation.rows(rows, self._names))

    def _planned_changes(self, plan_rows: Callable[[ChangePlan, LookupPlan], R]) -> tuple[R, LookupPlan]:
        """Return what is planned of the query's changes, and the steps that go before. Raises NotComputedError."""

        def planned(plan: ChangePlan, large: Collection[str]) -> tuple[R, LookupPlan]:
            lookups = LookupPlan(plan.ids, large)
            return plan_rows(plan, lookups), lookups

        return self._planned(lambda changed, large: planned(ChangePlan(self.root, changed), large))

    def _planned(self, plan: Callable[[Collection[str], Collection[str]], R]) -> R:
        """Return what is planned for the tables that have changed and those that are large. Raises NotComputedError."""
        missing = ""
        limits = self.tables.limits
        for bytes_max in [limits.scanned] if self.is_scanning else [limits.searched, limits.held]:
            large = {name for name, size in self.bytes.items() if size > bytes_max}
            try:
                return plan(self.tables.changed, large)
            except UnplannedError as error:
                raise NotComputedError(str(error)) from error
            except WholeTableError as error:
                missing = str(error)
        raise NotComputedError(missing)

    def _computation(self, lookups: LookupPlan | None = None) -> _Computation:
        computation = _Computation(self.cursor, self.tables, self.read)
        for step in lookups.steps if lookups is not None else ():
            if isinstance(step, ComputedStep):
                computation.define(step.into, computation.rows(step.rows, [each.name for each in step.into.fields]))
            else:
                if self._is_scan_faster:
                    raise NotComputedError("the search for rows takes longer than a scan of the tables may")
                keys = computation.defined[leaf_name(step.keys)]
                assert isinstance(keys, pa.Table)  # a step before has computed them
                computation.define(step.into, self.tables.look_up(step, keys))
        return computation


@dataclass(frozen=True, slots=True)
class _Computation:
    """Statements over leaves, each of which is read once."""

    cursor: DuckCursor
    tables: ViewTables
    defined: dict[str, pa.Table | RowScan]

    def define(self, leaf: Table, rows: pa.Table | RowScan) -> None:
        self.defined[leaf_name(leaf)] = rows
        self.cursor.define(leaf_name(leaf), rows)

    def rows(self, relation: Rel, names: Sequence[str], *, by_value: bool = False) -> pa.Table:
        """Return a relation's rows. With `by_value` they are found in a table by all of their values.

        Raises NotComputedError.
        """
        translation = translate(relation, names)
        if translation.text is None:
            raise NotComputedError("; ".join(translation.gaps))
        if by_value and translation.by_order:
            raise NotComputedError("the last digits of sums of doubles depend on the order of rows")
        for each in relation.tables():
            if (name := leaf_name(each)) not in self.defined:
                self.define(each, self.tables.rows(each, is_shared=translation.reads[name] > 1))
        fields = [TypedColumn(each.id, name, each.type) for each, name in zip(relation.columns, names, strict=True)]
        rows = self.cursor.rows(f"{translation.text} LIMIT {CHANGED_ROWS_MAX + 1}", arrow_schema_of(fields))
        if len(rows) > CHANGED_ROWS_MAX:
            raise NotComputedError(f"there are more than {CHANGED_ROWS_MAX:,} rows")
        return rows


def with_op_of_sums(now: pa.Table) -> pa.Table:
    """Return stored groups with OP: those without rows are gone."""
    return now.append_column(OP, pc.if_else(pc.equal(now[GROUP_ROWS], 0), Op.DELETE.value, Op.UPDATE.value))


def _kept_over_lookups(
    kept: KeptInput, changed: Collection[str], large: Collection[str]
) -> tuple[KeptRows | None, LookupPlan]:
    """Raises WholeTableError, UnplannedError."""
    planned = plan_kept_rows(kept, changed)
    if planned is None:
        return None, LookupPlan(count(), large)
    plan, rows = planned
    lookups = LookupPlan(plan.ids, large)
    moved, now = ((lookups.over_lookups(each), leaf) for each, leaf in (rows.moved, rows.now))
    return replace(rows, moved=moved, now=now, result=lookups.over_lookups(rows.result)), lookups


def _can_be(groups: pa.Table) -> bool:
    """Return whether rows can come to all of these numbers."""
    rows = groups[GROUP_ROWS]
    holds = [pc.greater_equal(rows, 0)]
    for place in range(sum(name.startswith("c") for name in groups.schema.names)):
        count, total = groups[f"c{place}"], groups[f"s{place}"]
        holds += [pc.greater_equal(count, 0), pc.less_equal(count, rows)]
        holds.append(pc.or_(pc.greater(rows, 0), pc.equal(total, 0)))
    return all(pc.all(each, min_count=0).as_py() for each in holds)


def is_summed(root: Rel) -> bool:
    """Return whether groups at the top of a query follow from stored sums."""
    shown = shown_keys(root)
    return shown is not None and isinstance(shown.top, Group) and summed_functions(shown.top) is not None


def follows_from_all_rows(root: Rel) -> bool:
    """Return whether something in a query is made of all rows of its input, for which a view may have a state."""
    return any(
        isinstance(each, Limit)
        or (isinstance(each, Group) and not each.keys)
        or (isinstance(each, Windowed) and not each.partition)
        for each in root.walk()
    )


def schema_json_of(columns: Sequence[TypedColumn]) -> str:
    """Return the schema of columns, as Spark and Delta write it."""
    fields = [
        {"name": each.name, "type": type_for_delta(each.type), "nullable": True, "metadata": {}} for each in columns
    ]
    return json.dumps({"type": "struct", "fields": fields})


def arrow_schema_of(columns: Sequence[TypedColumn]) -> pa.Schema:
    """Return the columns as Arrow has them."""
    return arrow_schema(T.StructType.fromJson(json.loads(schema_json_of(columns))))
