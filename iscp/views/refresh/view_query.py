"""A view's query at versions of its tables, and its changes between two of them.

A table that a view reads, in one refresh: its rows before and after, what changed, and rows that have some keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.algebra.algebra import TableRows, UnplannedError
from iscp.delta.rows.net_changes import weights_of
from iscp.delta.rows.row_search import beyond, row_codes
from iscp.model.query_plan import NamedQuery, undecided_reason
from iscp.model.sql.sql_names import OP, TimeDependence
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.model.values.watermark import NO_TOTALS, QueryTotals
from iscp.ports.source import ChangeSource, ChangesUnavailableError, SourceRange
from iscp.spark.spark_engine import without_rules
from iscp.spark.spark_frames import frame_of_arrow
from iscp.system.late_imports import T, pc
from iscp.views.analysis.query_analysis import AnalyzedQuery
from iscp.views.catalyst.algebra_reader import ResultKeys
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.group_changes import (
    GroupSums,
    KeyRows,
    StoredSums,
    all_sums,
    changed_groups,
    changed_sums,
    collected_keys,
    learn_totals,
    sums_finished,
)
from iscp.views.changes.signed_rows import WEIGHT, ChangedRows, FoundRows, Instants, TableChange
from iscp.views.changes.spark_plans import KnownTotals, SparkPlans, adding_up, totals_before
from iscp.views.ranges.range_ways import GivenRows
from iscp.views.refresh.refresh_choice import ScanEstimator, Scans
from iscp.views.refresh.table_spans import (
    CHANGED_ROWS_MAX,
    Part,
    RefreshEnd,
    Spans,
    WeightedRows,
    measured_as,
    read_weighted,
)
from iscp.views.refresh.view_memory import RecentView, TableSizes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


FOUND_ROWS_MAX = 50_000
"""Rows of a table that are looked up by the values of changed rows; more are for Spark to find."""


@dataclass
class ChangedTable:
    """A table in a refresh. `to_version` is that of the rows afterwards; `columns` are those, of `schema`, that the
    result follows from.

    `opened` gives all rows at one of both versions. `stack` releases what is read.
    """

    session: SparkSession
    source: ChangeSource
    uri: str
    span: SourceRange
    to_version: int
    schema: T.StructType
    columns: Sequence[str]
    opened: Callable[[TableRows], DataFrame]
    stack: ExitStack
    _changes: WeightedRows | None = None
    _found: list[tuple[pa.Table, pa.Table]] = field(default_factory=list)

    def as_change(self, size: int) -> TableChange:
        return TableChange(self.opened, self.changes, size, self.arrow, self.find)

    def changes(self) -> DataFrame | None:
        changes = self._read()
        return None if changes is None else changes.frame

    def arrow(self) -> pa.Table | None:
        changes = self._read()
        return None if changes is None else changes.arrow

    def _read(self) -> WeightedRows | None:
        if self._changes is None and self.span.changes_data:
            self._changes = read_weighted(self.stack, self.session, self.source, self.uri, self.span, self.columns)
        return self._changes

    def find(self, at: TableRows, keys: pa.Table) -> FoundRows | None:
        """Return the rows that have one of these keys before or after the changes, or None if they are not few."""
        rows = self._rows_before(keys) if at is TableRows.OLD else self._rows_now(keys)
        if rows is None:
            return None
        schema = T.StructType([self.schema[each] for each in self.columns])
        return FoundRows(frame_of_arrow(self.session, rows, schema), rows)

    def _rows_now(self, keys: pa.Table) -> pa.Table | None:
        for known, rows in self._found:
            if known.equals(keys):
                return rows
        rows = self._search(self.to_version, keys)
        if rows is not None:
            self._found.append((keys, rows))
        return rows

    def _rows_before(self, keys: pa.Table) -> pa.Table | None:
        """Return the rows before: those of now without what came, and with what went."""
        changed = self.arrow()
        if changed is not None and not any(map(_is_told_apart_by_more, changed.select(self.columns).schema.types)):
            now = self._rows_now(keys)
            rows = None if now is None else rows_before(now, changed, keys)
            if rows is not None:
                return rows
        return self._search(self.span.from_version, keys)

    def _search(self, version: int, keys: pa.Table) -> pa.Table | None:
        return self.source.rows_with(self.uri, version, keys, self.columns, FOUND_ROWS_MAX)


def _is_told_apart_by_more(kind: pa.DataType) -> bool:
    """Return whether something distinguishes values of the type that are equal."""
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


def rows_before(rows: pa.Table, changed: pa.Table, keys: pa.Table) -> pa.Table | None:
    """Return the rows that have one of the keys before they were `changed`, or None if `rows` are not those
    afterwards.
    """
    names, weights = keys.schema.names, weights_of(changed)
    theirs, wanted = row_codes(changed.select(names), keys)
    mine = pa.array(pc.is_in(pa.array(theirs), value_set=pa.array(wanted)))
    changed, weights = changed.select(rows.schema.names).cast(rows.schema).filter(mine), weights.filter(mine)
    came = changed.filter(pc.greater(weights, 0))
    every = pa.concat_tables([rows, changed.filter(pc.less(weights, 0))])
    left = beyond(*row_codes(every, came))
    before = every.filter(pa.array(left))
    return before if len(before) == len(every) - len(came) else None


SMALL_BYTES_MAX = 16 * 1024**2
"""Bytes of the tables' changes up to which no more than CHANGED_ROWS_MAX rows of the result are expected to change."""

# It computes expressions over rows in this process one by one, within the optimizer.
_SLOW_RULES = ("ConvertToLocalRelation",)


@dataclass
class ViewQuery:
    """The query of one view in one session, analyzed for its tables' columns at `end`.

    `given` has what is known of its rows at the ends, and is not computed. With `listed` few files of a table are
    listed once for all plans, from the log as it is followed here; otherwise Spark lists them, as a verification wants
    it.
    """

    session: SparkSession
    source: ChangeSource
    view: NamedQuery
    end: RefreshEnd
    recent: RecentView = field(default_factory=RecentView)
    sizes: TableSizes = field(default_factory=TableSizes)
    listed: bool = True
    schemas: dict[str, StructType] = field(init=False)
    analyzed: AnalyzedQuery = field(init=False)
    stored: PlanNode | None = field(init=False)
    keys: ResultKeys | None = field(init=False)
    sums: GroupSums | None = field(init=False)
    stored_keys: ResultKeys | None = field(init=False)
    stores_totals: bool = field(init=False)
    given: GivenRows = field(default_factory=GivenRows)
    _totals: KnownTotals | None = None

    @measured_as(Part.PLAN)
    def __post_init__(self) -> None:
        self.schemas = {
            name: self.source.schema(self.session, uri, self.end.tables[uri].to.version)
            for name, uri in self.view.tables.items()
        }
        written = {name: schema.json() for name, schema in self.schemas.items()}
        try:
            self.analyzed = self.recent.analyze(self.session, self.view.sql, written)
        except InvalidRequest as error:  # it was a query when it was registered
            raise PermanentError(
                f"the view's query {error.message}{self.view.note}, as its tables are now",
                remedy="Bring the columns back and resume the job; or `iscp-admin job resync` it with another query",
                code=ErrorCode.SCHEMA_CHANGED,
            ) from error
        self.stored, self.sums = self.analyzed.stored, self.analyzed.sums
        self.stored_keys, self.keys = self.analyzed.stored_keys, self.analyzed.keys
        self.stores_totals = bool(adding_up(self.analyzed.root))

    @property
    def by_time(self) -> TimeDependence | None:
        return self.analyzed.root.operator.time_dependence()

    @property
    def as_of_s(self) -> float:
        """Return the instant that the rows are of, as in Position."""
        return self.end.instant_s if self.by_time else 0.0

    @property
    def columns(self) -> list[str]:
        return self.analyzed.columns.names

    @property
    def totals(self) -> QueryTotals:
        """Return the totals at the ends, once rows or changes were made."""
        return self._totals.of(self.analyzed.root) if self._totals else NO_TOTALS

    def store_no_totals(self) -> None:
        self.stores_totals, self._totals = False, None

    def all_rows(self) -> DataFrame:
        """Return the result at the ends."""
        return self._at_ends().result(self.analyzed.root, TableRows.NEW).toDF(*self.columns)

    def stored_rows(self) -> DataFrame:
        """Return all rows of the input that is stored, at the ends, as `c0`, `c1`, …, or its sums if it is stored as
        sums.
        """
        assert self.stored is not None
        if self.given.sums is not None:
            return self.given.sums
        if self.sums is not None:
            return all_sums(self._at_ends(), self.sums)
        rows = self._at_ends().result(self.stored, TableRows.NEW)
        return rows.toDF(*_numbered(rows))

    def finished(self, stored_rows: DataFrame) -> DataFrame:
        """Return the result, made of the input that is stored."""
        assert self.stored is not None
        if self.sums is not None:
            return sums_finished(self._at_ends(), self.sums, self.analyzed.root, stored_rows).toDF(*self.columns)
        return self._at_ends().result_over(self.analyzed.root, self.stored, stored_rows).toDF(*self.columns)

    def plans_at_ends(self) -> SparkPlans:
        """Return plans at the ends, with the totals that are known."""
        ends = {name: self.end.tables[uri].to for name, uri in self.view.tables.items()}
        fixed = {name: self._fixed(self.view.tables[name], to.version, to.at_s) for name, to in ends.items()}
        change = {name: TableChange(rows, lambda: None) for name, rows in fixed.items()}
        instants = Instants(self.end.instant_s, self.end.instant_s)
        totals = self._totals or KnownTotals(after=dict(self.given.totals))
        query = self.analyzed
        return SparkPlans(query.catalyst, query.algebra, change, instants, totals=totals, given=self.given.rows)

    def _at_ends(self) -> SparkPlans:
        plans = self.plans_at_ends()
        if self._totals is None:
            self._totals = plans.totals
            if self.stores_totals:
                learn_totals(plans, self.analyzed.root)
        return plans

    def sums_at_top(self, spans: Spans | None = None) -> DataFrame | None:
        """Return the sums that are stored of the groups at the top, now or before the changes of `spans`, or None if
        the query has none.
        """
        sums = self.analyzed.sums_at_top
        if sums is None:
            return None
        if spans is None:
            return all_sums(self.plans_at_ends(), sums)
        query, tables = self.analyzed, {}
        for name, uri in self.view.tables.items():
            span = spans.by_uri[uri]
            tables[name] = TableChange(self._fixed(uri, span.from_version, span.from_at_s), lambda: None)
        return all_sums(SparkPlans(query.catalyst, query.algebra, tables, Instants()), sums)

    @contextmanager
    def changes(self, spans: Spans) -> Iterator[ChangedRows | None]:
        """Yield the distinct changed rows of the result with WEIGHT, by its own names, or None if it stays as it is."""
        with self._between(spans) as plans:
            changed = plans.changes(self.analyzed.root)
            yield None if changed is None else changed.named(*self.columns, WEIGHT)

    @property
    def stored_key(self) -> list[str]:
        """Return the columns that distinguish rows of the input that is stored; empty: none do."""
        if self.sums is not None:
            return self.sums.keys
        keys = self.stored_keys
        return [f"c{place}" for place in keys.places] if keys and keys.unique else []

    @contextmanager
    def follow_stored(self, spans: Spans, before: StoredSums) -> Iterator[ChangedRows | None]:
        """Yield the changes of the input that is stored, with OP where it has a key, else with WEIGHT, or None.

        `before` has its sums before.
        """
        assert self.stored is not None
        with self._between(spans) as plans:
            if self.sums is not None:
                yield changed_sums(plans, self.sums, before)
            elif self.stored_key and self.stored_keys is not None:
                yield changed_groups(plans, self.stored, self.stored_keys)
            else:
                yield plans.changes(self.stored)

    @contextmanager
    def group_changes(self, spans: Spans) -> Iterator[ChangedRows | None]:
        """Yield the result's rows of all groups that changed, with OP, by its own names, or None."""
        assert self.keys is not None
        with self._between(spans) as plans:
            changed = changed_groups(plans, self.analyzed.root, self.keys)
            yield None if changed is None else changed.named(*self.columns, OP)

    @contextmanager
    def key_changes(self, spans: Spans) -> Iterator[KeyRows | None]:
        """Yield the result's rows of all keys that changed, by its own names, or None if they are not few."""
        assert self.keys is not None
        with self._between(spans) as plans:
            found = collected_keys(plans, self.analyzed.root)
            if found is not None:
                named = {f"c{place}": name for place, name in enumerate(self.columns)}
                keys = found.keys.rename_columns([named[each] for each in found.keys.schema.names])
                found = KeyRows(keys, found.rows.rename_columns(self.columns))
            yield found

    @contextmanager
    def _between(self, spans: Spans) -> Iterator[SparkPlans]:
        if self.analyzed.undecided:
            raise ChangesUnavailableError(undecided_reason(self.analyzed.undecided))
        with ExitStack() as stack:
            tables = {name: self._changed_table(name, uri, spans, stack) for name, uri in self.view.tables.items()}
            instants = Instants(spans.as_of_s, self.end.instant_s)
            collected_max = CHANGED_ROWS_MAX if spans.bytes <= SMALL_BYTES_MAX else 0
            if collected_max:
                stack.enter_context(without_rules(self.session, _SLOW_RULES))
            query, totals = self.analyzed, self._totals_since(spans)
            plans = SparkPlans(query.catalyst, query.algebra, tables, instants, collected_max, totals)
            stack.callback(plans.close)
            try:
                learn_totals(plans, query.root)
                self._totals = plans.totals
                yield plans
            except UnplannedError as error:
                raise ChangesUnavailableError(f"no plan of changes is known: {error}") from error

    def scans(self, spans: Spans) -> Scans:
        """Return the bytes that a refresh reads of the tables besides their changes."""
        sizes = {name: self._bytes(uri) for name, uri in self.view.tables.items()}
        changed_tables = [name for name, uri in self.view.tables.items() if spans.by_uri[uri].changes_data]
        estimator = ScanEstimator(sizes, changed_tables)
        keys = self.stored_keys if self.stored else self.keys
        if self.sums is not None:
            read = estimator.changes(self.sums.node.inputs[0].operator)
        elif keys is not None:
            read = estimator.rows_now(keys.node.inputs[0].operator)
        else:
            read = estimator.changes((self.stored or self.analyzed.root).operator)
        return Scans(read, estimator.all_rows(self.analyzed.root.operator))

    def _bytes(self, uri: str) -> int:
        return self.sizes.of(self.source, uri, self.end.tables[uri])

    def _totals_since(self, spans: Spans) -> KnownTotals:
        before = totals_before(self.analyzed.root, spans.totals)
        if before is None:
            raise ChangesUnavailableError("its totals are not kept with the rows")
        return KnownTotals(before)

    def _rows(self, uri: str, version: int, at_s: float) -> DataFrame:
        """Return a table's rows at a version that was committed at `at_s`."""
        where = (uri, self.end.tables[uri].table_id, version, at_s)
        load = partial(self.source.snapshot, self.session, uri, version, listed=self.listed)
        return self.recent.open(self.session, where, load, 2 * len(self.end.tables))

    def _fixed(self, uri: str, version: int, at_s: float) -> Callable[[TableRows], DataFrame]:
        """Return a function for a table that stays as it is at a version."""
        return lambda _: self._rows(uri, version, at_s)

    def _opener(self, uri: str, span: SourceRange) -> Callable[[TableRows], DataFrame]:
        def rows(at: TableRows) -> DataFrame:
            if at is TableRows.OLD:
                return self._rows(uri, span.from_version, span.from_at_s)
            to = self.end.tables[uri].to
            return self._rows(uri, to.version, to.at_s)

        return rows

    def _changed_table(self, name: str, uri: str, spans: Spans, stack: ExitStack) -> TableChange:
        span, schema = spans.by_uri[uri], self.schemas[name]
        columns, to = self.analyzed.columns_read(name, schema.names), self.end.tables[uri].to.version
        opened = self._opener(uri, span)
        table = ChangedTable(self.session, self.source, uri, span, to, schema, columns, opened, stack)
        return table.as_change(self._bytes(uri))


def _numbered(rows: DataFrame) -> list[str]:
    return [f"c{place}" for place in range(len(rows.columns))]
