"""The knowledge that a node caches of a view between its refreshes; all of it can be found out again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.rows.joined_rows import changed_join
from iscp.adapters.delta.rows.net_changes import weights_of
from iscp.adapters.system.late_imports import A, T
from iscp.core.algebra.algebra import Rel
from iscp.core.query.direct_ways import DirectWays
from iscp.core.query.group_query import GroupQuery, key_columns
from iscp.core.query.join_query import CHANGED_TABLES_MAX, JoinQuery, JoinStep
from iscp.core.query.refresh_choice import RefreshSample, with_sample
from iscp.core.sql.sql_names import WEIGHT
from iscp.core.sql.time_dependence import TimeDependence, next_refresh_at_s
from iscp.core.values.watermark import SourceMark
from iscp.ports.source import ChangeSource, SourceRange
from iscp.ports.work_timer import leave_to_spark
from iscp.views.changes.plan_leaves import BuildTimer
from iscp.views.direct.group_state import GROUPS_MAX, GroupChanges, change_groups, stored_frame, sum_up
from iscp.views.refresh.refresh_parts import Part, count_read, measured_as
from iscp.views.refresh.stored_ways import StoredWays
from iscp.views.refresh.table_spans import CHANGED_ROWS_MAX, Spans, reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SERVED_LEAST = 3
"""Refreshes that stored groups have to serve, on average, to be written again where they are of other versions: they
are computed of all rows, which views whose changes are now few and now many would pay each time.
"""


BUILDS_MAX = 24
"""Refreshes of a view in which the time of building plans does not count, as it is taken once. After so many, a node
with many views drops its plans again and again, and the time counts as all other.
"""


@dataclass(frozen=True, slots=True)
class ViewRows:
    """Rows of tables that are joined without Spark where few changed. `uris` are those of the tables, in the query's
    order.

    `columns` are the names of the rows' columns.
    """

    query: JoinQuery
    uris: tuple[str, ...]
    columns: tuple[str, ...]

    @measured_as(Part.CHANGES)
    def changes(self, session: SparkSession, source: ChangeSource, spans: Spans) -> pa.Table | None:
        """Return the changed rows with WEIGHT, +1 for each that came and -1 for each that went.

        The result is None if they are not few, or may come out otherwise.
        """

        def find(step: JoinStep, keys: pa.Table) -> pa.Table:
            uri, columns = self.uris[step.place], self.query.tables[step.place].columns
            found = source.rows_with(uri, spans.by_uri[uri].to.version, keys, columns, CHANGED_ROWS_MAX)
            if found is None:
                raise NotReadableHere
            return found

        changed_spans = {place: span for place, uri in enumerate(self.uris) if (span := spans.by_uri[uri]).changes_data}
        # None has changed if it is a table that the query names, though no row depends on it.
        if not 0 < len(changed_spans) <= CHANGED_TABLES_MAX:
            return None
        with suppress(NotReadableHere), ExitStack() as stack:
            changed = {
                place: self._changed_rows(session, source, place, span, stack) for place, span in changed_spans.items()
            }
            found = changed_join(self.query, changed, find, CHANGED_ROWS_MAX)
            count_read(sum(map(len, changed.values())))
            return found.rename_columns([*self.columns, WEIGHT])
        return None

    def _changed_rows(
        self, session: SparkSession, source: ChangeSource, place: int, span: SourceRange, stack: ExitStack
    ) -> pa.Table:
        """Return the changed rows of a table with WEIGHT. Raises NotReadableHere."""
        uri, columns = self.uris[place], self.query.tables[place].columns
        rows = stack.enter_context(reading(session, source, uri, span, columns, 1)).table
        if rows is None or len(rows) > CHANGED_ROWS_MAX:
            raise NotReadableHere
        return rows.select(columns).append_column(WEIGHT, weights_of(rows))


@dataclass
class StoringWorth:
    """The decision whether stored groups save more than it costs to write them, once other refreshes have come
    between.
    """

    written: int = 0
    served: int = 0

    def write(self) -> bool:
        """Return whether they are to be written; that counts as done."""
        if self.served < SERVED_LEAST * self.written:
            return False
        self.written += 1
        return True


@dataclass(frozen=True, slots=True)
class StoredGroups:
    """The stored groups of a view. `is_at_hand` says whether they are those that the view's rows were made of.

    `find` gives the groups with these keys, and perhaps others.
    """

    is_at_hand: Callable[[], bool]
    write: Callable[[DataFrame], None]
    find: Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class ViewGroups:
    """A view that is refreshed group by group; `columns` are those of its result."""

    query: GroupQuery
    rows: ViewRows
    columns: pa.Schema
    worth: StoringWorth

    @measured_as(Part.CHANGES)
    def change(self, changes: pa.Table, stored: StoredGroups, before: Callable[[], DataFrame]) -> GroupChanges | None:
        """Return how the groups change by `changes` of the rows; `before` gives all former rows, as `c0`, `c1`, …

        The result is None if too many have changed, or what is stored is not at hand. Raises UnfitGroupsError.
        """
        deltas = sum_up(self.query, changes)
        if len(deltas) > GROUPS_MAX:
            return None
        if not stored.is_at_hand():
            if not self.worth.write():
                return None
            leave_to_spark("the groups of all its rows are stored, for later changes")
            stored.write(stored_frame(self.query, before()))
        self.worth.served += 1
        keys = deltas.select(key_columns(len(self.query.keys)))
        return change_groups(self.query, deltas, stored.find(keys), self.columns)


@dataclass
class TableSizes:
    """The bytes of a view's tables, each as it was last; most are as they were from one refresh to the next."""

    _known: dict[str, tuple[SourceMark, int]] = field(default_factory=dict)

    def of_all(self, source: ChangeSource, tables: Mapping[str, SourceRange]) -> int:
        return sum(self.of(source, uri, each) for uri, each in tables.items())

    def of(self, source: ChangeSource, uri: str, at: SourceRange) -> int:
        mark = SourceMark(at.table_id, at.to)
        if uri not in self._known or self._known[uri][0] != mark:
            self._known[uri] = mark, source.size(uri, at.to.version).bytes
        return self._known[uri][1]


class ViewMemory:
    """The memory of one view. It is not safe for threads: a job is in one iteration at a time."""

    def __init__(self, tables: dict[str, str]) -> None:
        """Begin without knowledge. `tables` are the URIs by their names in the query."""
        self._tables = tables
        self._groups: ViewGroups | None = None
        self._rows: ViewRows | None = None
        self._root: Rel | None = None
        self._known = False
        self.has_direct_way = False
        """Whether small changes of its tables are followed without Spark, as far as is known."""
        self._worth = StoringWorth()
        self._builds = 0
        self.sizes = TableSizes()
        self.stored: StoredWays | None = None
        self.by_time: TimeDependence | None = None
        self.samples: tuple[RefreshSample, ...] = ()

    def remember(self, sample: RefreshSample, built_s: float = 0.0) -> None:
        """Remember what a refresh took. Plans were built for `built_s` of it, as `time_builds` counts."""
        self._builds += built_s > 0
        self.samples = with_sample(self.samples, replace(sample, took_s=sample.took_s - built_s))

    def time_builds(self, timer: BuildTimer) -> Callable[[], float]:
        """Return a function for the seconds that plans were built since now; it gives 0 if that has happened too
        often.
        """
        began_s = timer.spent_s
        return lambda: timer.spent_s - began_s if self._builds < BUILDS_MAX else 0.0

    def due_at_s(self, refreshed_at_s: float, now_s: float, interval_s: float | None) -> float:
        """Return when its rows change as time passes, in Unix seconds; 0: they do not."""
        return 0.0 if self.by_time is None else next_refresh_at_s(self.by_time, refreshed_at_s, now_s, interval_s)

    def groups(self, find: Callable[[], DirectWays]) -> ViewGroups | None:
        """Return how the view is refreshed group by group, if it can be; found out once, while no table's columns
        change.
        """
        self._find_out(find)
        return self._groups

    @property
    def known_groups(self) -> ViewGroups | None:
        """Return the same as `groups` if it was found out before; otherwise None."""
        return self._groups

    def rows(self, find: Callable[[], DirectWays]) -> ViewRows | None:
        """Return how the view's rows are joined, if they can be here; found out as `groups`."""
        self._find_out(find)
        return self._rows

    def algebra(self, find: Callable[[], DirectWays]) -> Rel | None:
        """Return the query's algebra if DuckDB can compute it; found out as `groups`."""
        self._find_out(find)
        return self._root

    def _find_out(self, find: Callable[[], DirectWays]) -> None:
        if not self._known:
            self.learn(find())

    def learn(self, ways: DirectWays) -> None:
        """Take the ways in which the view is refreshed without Spark."""
        if ways.grouped is not None:
            rows = self._joined(ways.grouped.rows, [f"c{place}" for place in range(len(ways.grouped.rows.outputs))])
            columns = A.to_arrow_schema(T.StructType.fromJson(json.loads(ways.schema_json)))
            self._groups = ViewGroups(ways.grouped.query, rows, columns, self._worth)
        if ways.joined is not None:
            self._rows = self._joined(ways.joined, [each.name for each in ways.columns])
        self._root = ways.root
        self.has_direct_way = ways.grouped is not None or ways.joined is not None or ways.root is not None
        self._known = True

    def _joined(self, query: JoinQuery, names: Sequence[str]) -> ViewRows:
        return ViewRows(query, tuple(self._tables[each.name] for each in query.tables), tuple(names))

    def give_up_groups(self) -> None:
        """Refresh no groups until the view is computed from all rows again."""
        self._groups = None

    def forget_query(self) -> None:
        """Forget the analyzed query, as the tables' columns may be others."""
        self._groups, self._rows, self._root, self._known = None, None, None, False
