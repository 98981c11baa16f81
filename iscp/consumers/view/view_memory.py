"""What a node remembers of a view between its refreshes; all of it can be found out again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.query.group_plan import find_group_query
from iscp.adapters.delta.query.join_plan import find_join_query
from iscp.adapters.delta.query.query_analysis import AnalyzedQuery
from iscp.adapters.delta.rows.joined_rows import changed_join, net_rows
from iscp.adapters.delta.rows.net_changes import weights_of
from iscp.consumers.view.bag_commit import CHANGED_ROWS_MAX
from iscp.consumers.view.group_state import GROUPS_MAX, GroupChanges, change_groups, kept_frame, sum_up
from iscp.consumers.view.kept_input import KeptInput
from iscp.consumers.view.refresh_parts import Part, count_read, measured_as
from iscp.consumers.view.view_query import Spans
from iscp.core.group_query import GroupQuery
from iscp.core.join_query import CHANGED_TABLES_MAX, JoinQuery, JoinStep
from iscp.core.refresh_choice import RefreshSample, with_sample
from iscp.core.sql_names import WEIGHT
from iscp.core.time_dependence import TimeDependence
from iscp.ports.consumer import ConsumeContext
from iscp.ports.source import ChangeSource, SourceRange


@dataclass(frozen=True, slots=True)
class ViewGroups:
    """A view that is kept group by group; `uri`: of its table, `columns`: of its result."""

    query: GroupQuery
    uri: str
    columns: pa.Schema

    @measured_as(Part.CHANGES)
    def change(
        self, context: ConsumeContext, source: ChangeSource, spans: Spans, kept: KeptInput
    ) -> GroupChanges | None:
        """How the groups change; None: too much has changed. Raises UnfitGroupsError."""
        span = spans.by_uri[self.uri]
        read = source.read_cdf if span.cdf_on else source.read_appends
        changes = read(context.session, self.uri, span, self.query.columns, 1)
        try:
            rows = changes.with_equal_rows().held
            if rows is None:
                return None
            deltas = sum_up(self.query, rows)
            if len(deltas.keys) > GROUPS_MAX:
                return None
            if not kept.is_at(context):
                table = source.snapshot(context.session, self.uri, span.from_version)
                kept.write(context, kept_frame(self.query, table), context.position)
            found = change_groups(self.query, deltas, kept.groups(context, deltas.keys), self.columns)
            count_read(len(rows))
            return found
        finally:
            changes.release()


@dataclass(frozen=True, slots=True)
class ViewJoins:
    """A view whose rows are joined without Spark where few changed; `uris`: of each table in the query, `columns`: the
    names of the result's."""

    query: JoinQuery
    uris: tuple[str, ...]
    columns: tuple[str, ...]

    @measured_as(Part.CHANGES)
    def change(self, context: ConsumeContext, source: ChangeSource, spans: Spans) -> pa.Table | None:
        """Each distinct changed row of the result, with WEIGHT. None: they are not few, or may come out otherwise."""

        def find(step: JoinStep, keys: pa.Table) -> pa.Table:
            uri, columns = self.uris[step.place], self.query.tables[step.place].columns
            found = source.rows_with(uri, spans.by_uri[uri].to.version, keys, columns, CHANGED_ROWS_MAX)
            if found is None:
                raise NotReadableHere
            return found

        with suppress(NotReadableHere), ExitStack() as stack:
            changed = {
                place: self._changed_rows(context, source, place, span, stack)
                for place, uri in enumerate(self.uris)
                if (span := spans.by_uri[uri]).changes_data
            }
            if len(changed) <= CHANGED_TABLES_MAX:
                rows = changed_join(self.query, changed, find, CHANGED_ROWS_MAX)
                return net_rows(rows.rename_columns([*self.columns, WEIGHT]))
        return None

    def _changed_rows(
        self, context: ConsumeContext, source: ChangeSource, place: int, span: SourceRange, stack: ExitStack
    ) -> pa.Table:
        """With WEIGHT. Raises NotReadableHere."""
        columns = self.query.tables[place].columns
        read = source.read_cdf if span.cdf_on else source.read_appends
        changes = read(context.session, self.uris[place], span, columns, 1)
        stack.callback(changes.release)
        rows = changes.with_equal_rows().held
        if rows is None or len(rows) > CHANGED_ROWS_MAX:
            raise NotReadableHere
        count_read(len(rows))
        return rows.select(columns).append_column(WEIGHT, weights_of(rows))


class ViewMemory:
    """Of one view. Not safe for threads: a job is in one iteration at a time."""

    def __init__(self, tables: dict[str, str]) -> None:
        """`tables`: the URIs by their names in the query. `by_time`: as the query was when it was analyzed last."""
        self._tables = tables
        self._groups: ViewGroups | None = None
        self._joins: ViewJoins | None = None
        self._analyzed = False
        self.by_time: TimeDependence | None = None
        self.samples: tuple[RefreshSample, ...] = ()

    def remember(self, sample: RefreshSample) -> None:
        self.samples = with_sample(self.samples, sample)

    def groups(self, analyze: Callable[[], AnalyzedQuery]) -> ViewGroups | None:
        """How the view is kept group by group, if it can be; found out once, while no table's columns change."""
        self._find_out(analyze)
        return self._groups

    def joins(self, analyze: Callable[[], AnalyzedQuery]) -> ViewJoins | None:
        """How the view's rows are joined, if they can be here; found out as `groups`."""
        self._find_out(analyze)
        return self._joins

    def _find_out(self, analyze: Callable[[], AnalyzedQuery]) -> None:
        if self._analyzed:
            return
        analyzed = analyze()
        groups = find_group_query(analyzed.catalyst, analyzed.root, analyzed.columns)
        joins = find_join_query(analyzed.catalyst, analyzed.root)
        if groups is not None:
            self._groups = ViewGroups(groups, self._tables[groups.table], to_arrow_schema(analyzed.columns))
        if joins is not None:
            uris = tuple(self._tables[each.name] for each in joins.tables)
            self._joins = ViewJoins(joins, uris, tuple(analyzed.columns.names))
        self._analyzed = True

    def give_up_groups(self) -> None:
        """Until the view is computed from all rows again."""
        self._groups = None

    def forget_query(self) -> None:
        """The tables' columns may be others."""
        self._groups, self._joins, self._analyzed = None, None, False
