"""What a node remembers of a view between its refreshes; all of it can be found out again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from iscp.adapters.delta.query.group_plan import find_group_query
from iscp.adapters.delta.query.query_analysis import AnalyzedQuery
from iscp.consumers.view.group_state import GROUPS_MAX, GroupChanges, change_groups, kept_frame, sum_up
from iscp.consumers.view.kept_input import KeptInput
from iscp.consumers.view.refresh_parts import Part, count_read, measured_as
from iscp.consumers.view.view_query import Spans
from iscp.core.group_query import GroupQuery
from iscp.core.refresh_choice import RefreshSample, with_sample
from iscp.core.time_dependence import TimeDependence
from iscp.ports.consumer import ConsumeContext
from iscp.ports.source import ChangeSource


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


class ViewMemory:
    """Of one view. Not safe for threads: a job is in one iteration at a time."""

    def __init__(self, tables: dict[str, str]) -> None:
        """`tables`: the URIs by their names in the query. `by_time`: as the query was when it was analyzed last."""
        self._tables = tables
        self._groups: ViewGroups | None = None
        self._analyzed = False
        self.by_time: TimeDependence | None = None
        self.samples: tuple[RefreshSample, ...] = ()

    def remember(self, sample: RefreshSample) -> None:
        self.samples = with_sample(self.samples, sample)

    def groups(self, analyze: Callable[[], AnalyzedQuery]) -> ViewGroups | None:
        """How the view is kept group by group, if it can be; found out once, while no table's columns change."""
        if not self._analyzed:
            analyzed = analyze()
            query = find_group_query(analyzed.catalyst, analyzed.root, analyzed.columns)
            if query is not None:
                schema = to_arrow_schema(analyzed.columns)
                self._groups = ViewGroups(query, self._tables[query.table], schema)
            self._analyzed = True
        return self._groups

    def give_up_groups(self) -> None:
        """Until the view is computed from all rows again."""
        self._groups = None

    def forget_query(self) -> None:
        """The tables' columns may be others."""
        self._groups, self._analyzed = None, False
