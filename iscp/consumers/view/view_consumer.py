"""Refresh one view: compute how its query's result changed, or all of it, and commit that to the target."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from iscp import __version__
from iscp.algebra.duck_engine import READ_LIMITS, DuckEngine, NotComputedError, OutOfTimeError
from iscp.algebra.stored_query import KeptInput, QueryOrigin, StoredQuery
from iscp.consumers.source_rows import commit_tag, takeover_tag
from iscp.consumers.view.bag_commit import (
    FEW_ROWS_MAX,
    StoredInput,
    commit_changes,
    merge_few,
    merge_groups,
    replace_differing,
    replace_few,
)
from iscp.consumers.view.view_spec import ViewSpec
from iscp.delta.rows.row_search import SEARCHED_BYTES_MAX, are_equal
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import logged_job
from iscp.model.sql.sql_names import exact_instant_s
from iscp.model.values.errors import EngineError, InvariantBroken
from iscp.model.values.watermark import NOTHING_APPLIED, Position, Watermark
from iscp.ports.consumer import (
    ConsumeContext,
    Consumed,
    Consumer,
    ConsumerEnvironment,
    Refreshed,
    RefreshOrder,
    Retriever,
)
from iscp.ports.engine import invested_s, investing, leave_to_spark
from iscp.ports.sink import CommitTag
from iscp.ports.source import ChangesUnavailableError, Rows, SourceRange
from iscp.spark.spark_errors import concerns_values, is_of_plan, reading_changes, translating
from iscp.system.late_imports import E
from iscp.views.analysis.session_analysis import analysis_versions
from iscp.views.catalyst.plan_tree import has_limit_above, has_values_above
from iscp.views.changes.group_changes import with_op
from iscp.views.changes.signed_rows import Instants
from iscp.views.duck.duck_refresh import (
    DuckRefresh,
    StoredGroups,
    StoredRows,
    ViewTables,
    columns_read,
    follows_from_all_rows,
    schema_json_of,
)
from iscp.views.refresh.refresh_choice import Policy, RefreshSample, Strategy, choose_strategy, direct_budget_s
from iscp.views.refresh.table_spans import (
    NO_ENDS,
    AgreedEnd,
    RefreshAbandonedError,
    RefreshEnd,
    Spans,
    abandoning_after,
    agree_on_end,
    later_ends,
    measuring,
    newest_until,
    resolve_spans,
    size_of_tables,
)
from iscp.views.refresh.view_memory import QueryNote, RecentView, RefreshNote, ViewMemory, read_query
from iscp.views.refresh.view_query import ViewQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


Writer = Callable[[ConsumeContext, DuckRefresh, CommitTag], Refreshed | None]
"""A way to refresh a view; None: it is none for this one."""

_NO_ROW = "no row of the result has changed"
_NOTHING_BY_TIME = "no row came or went by the time"


class ViewConsumer(Consumer):
    """The consumer of a view."""

    def __init__(
        self,
        view: ViewSpec,
        row: JobRow,
        environment: ConsumerEnvironment,
        memory: ViewMemory,
        recent: RecentView,
        engine: DuckEngine | None = None,
    ) -> None:
        """`engine` computes small changes; None: Spark computes all of them."""
        target = row.spec.consumer.target
        self._view = view
        self._own, self._target = row.table_uri, target
        self._sink = environment.sink(target)
        self._stored = StoredInput(target, environment)
        self._source = environment.source
        self._clock = environment.clock
        self._interval_s = row.spec.trigger.interval_s
        self._memory = memory
        self._recent = recent
        self._engine = engine
        memory.note = memory.note or QueryNote(self._sink, _origin_of(view))
        self._note = memory.note
        memory.refreshes = memory.refreshes or RefreshNote(self._sink)
        self._refreshes = memory.refreshes

    def position(self, row: JobRow) -> Position:
        return self._sink.position(row)

    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        context.guard.check()
        query = self._query(context, self._end(self._source.newest(self._own)))
        tag = commit_tag(context, "claim", NOTHING_APPLIED, Watermark(), {})
        first, marks_rows = context.row.watermark.version < 0, self._view.deletion_vectors
        # Others read views as tables, and views on views follow their changes.
        return self._sink.claim(query.analyzed.columns.json(), tag, first=first, with_cdf=True, marks_rows=marks_rows)

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        raise InvariantBroken("a view was handed rows, and reads its tables itself")

    def renew(self, context: ConsumeContext, watermark: Watermark) -> Position:
        """Renew the target's commit as Consumer says; the position is at the versions that the tables have come
        to.
        """
        if not self._sink.overtaken:
            return context.position
        context.guard.check()
        tag = commit_tag(context, "renewal", watermark.version, watermark)
        return self._sink.renew(tag) or context.position

    def go_on_from(self, context: ConsumeContext) -> Position | None:
        """Take the view over as Consumer says, and before it what is stored beside it.

        A process that dies in between leaves the view as it was, and the next attempt finds that.
        """
        context.guard.check()
        self._stored.go_on_from(context)
        return self._sink.renew(takeover_tag(context))

    def tidy(self) -> None:
        self._sink.tidy()
        self._stored.tidy()

    def refresh(self, context: ConsumeContext, order: RefreshOrder) -> Refreshed:
        with translating("refresh the view"), measuring(self._clock) as parts:
            newest = self._end(order.to, later_ends(order.ends, context.position.sources))
            agreed = self._agreed_end(newest, None if order.full else context.position)
            if (end := agreed.end) is None:
                return agreed.put_off(context.position)
            done = agreed.noted(self._refresh(context, order, end))
            self._note.store()
            self._refreshes.store()
        if done.strategy == Strategy.FULL:
            size = size_of_tables(self._source, done.consumed.position.sources)
            parts.rows_in, parts.bytes_in = size.rows, size.bytes
        due_at_s = self._memory.due_at_s(end.instant_s, self._clock.now_s(), self._interval_s)
        rows_in, bytes_in = max(parts.rows_in, 0), max(parts.bytes_in, 0)
        return replace(done, rows_in=rows_in, bytes_in=bytes_in, parts_s=parts.parts_s, due_at_s=due_at_s)

    def _refresh(self, context: ConsumeContext, order: RefreshOrder, end: RefreshEnd) -> Refreshed:
        reason = order.full or ("the policy says so" if self._view.policy is Policy.FULL else "")
        if not reason:
            try:
                with reading_changes("follow the tables' changes"):  # old rows too, whose files may be gone
                    return self._follow(context, resolve_spans(self._source, context.position, end), end)
            except ChangesUnavailableError as gone:
                reason = str(gone)
            except EngineError as error:
                if not is_of_plan(error):
                    raise
                reason = f"changes give no result ({error.message})"
            if reason:
                log.warning("view.recomputed", extra=logged_job(context.row) | {"reason": reason})
        warn = not order.full and self._view.policy is not Policy.FULL
        return self._recompute(context, end, reason, warn=warn, builds=bool(order.full))

    def _agreed_end(self, newest: RefreshEnd, position: Position | None) -> AgreedEnd:
        """Return an end that mixes no versions of a table as far as that can be; without a position, as where all rows
        are computed anyway, say what the newest versions mix.
        """
        names, memory, limit_s = self._view.query.tables, self._memory.agreement, self._view.waits_for_s
        return agree_on_end(self._source, newest, position, names, memory, limit_s, self._clock.monotonic_s())

    def _end(self, own: SourceRange, ends: Mapping[str, int] = NO_ENDS) -> RefreshEnd:
        uris = sorted(set(self._view.query.tables.values()))
        newest = {uri: own if uri == self._own else newest_until(self._source, uri, ends.get(uri)) for uri in uris}
        return RefreshEnd(newest, exact_instant_s(self._clock.now_s()))

    def _query(self, context: ConsumeContext, end: RefreshEnd) -> ViewQuery:
        query = ViewQuery(context.session, self._source, self._view.query, end, self._recent, self._memory.sizes)
        self._memory.by_time = query.by_time
        return query

    def _query_anew(self, context: ConsumeContext, end: RefreshEnd) -> ViewQuery:
        """Return the query for all rows, as Spark reads it now."""
        self._memory.learn(None)
        query = self._query(context, end)
        self._memory.learn(self._read_query(query, end))
        return query

    def _follow(self, context: ConsumeContext, spans: Spans, end: RefreshEnd) -> Refreshed:
        if not spans.changed and not context.position.as_of_s:
            return self._unchanged(context, end, "no table has changed")
        if (done := self._follow_directly(context, spans, end)) is not None:
            return done
        self._leave_changes_to_spark()
        began_s = self._now_s()
        query, total = self._query(context, end), self._memory.sizes.of_all(self._source, end.tables)
        known = self._refreshes.history
        scans = query.scans(spans)
        choice = choose_strategy(self._view.policy, spans.bytes, total, known.samples, scans, known.changes)
        if choice.strategy is Strategy.FULL:
            self._refreshes.learn("changes", found=False)
            return self._recompute(context, end, choice.reason, warn=False)
        if not self._sink.schema_matches(query.analyzed.columns.json()):
            raise ChangesUnavailableError("the columns of the result have changed")
        tag = self._tail_tag(context, end, query.as_of_s)
        follow = self._follow_stored if query.stored else self._follow_rows
        try:
            with abandoning_after(context.session, context.guard, choice) as guard:
                written = follow(replace(context, guard=guard), query, spans, tag)
        except RefreshAbandonedError:
            return self._abandon(Strategy.INCREMENTAL, context, end, spans, began_s)
        if written is None:
            return self._unchanged(context, end, _NOTHING_BY_TIME)
        position, rows = written
        self._remember(Strategy.INCREMENTAL, spans.bytes, began_s)
        self._refreshes.learn("changes", found=True)
        return Refreshed(Consumed(replace(position, sources=tag.sources), rows, 0), choice.strategy, choice.reason)

    def _follow_directly(self, context: ConsumeContext, spans: Spans, end: RefreshEnd) -> Refreshed | None:
        """Refresh by what DuckDB computes, or by all rows once that has taken as long; None: Spark has to follow.

        What a refresh took is remembered only where it is not far below a recomputation.
        """
        if self._engine is None:
            return None
        total, known = self._memory.sizes.of_all(self._source, end.tables), self._refreshes.history
        budget_s = direct_budget_s(self._view.policy, spans.bytes, total, known.samples, known.changes)
        if not budget_s:
            return None
        query, began_s = self._memory.query(partial(self._find_query, context, end)), self._now_s()
        try:
            done = self._follow_by_duckdb(self._engine, query, context, spans, end, budget_s)
        except OutOfTimeError:
            return self._abandon(Strategy.DIRECT, context, end, spans, began_s)
        if done is None:
            return None
        self._refreshes.learn("changes", found=True)
        is_slow = self._now_s() - began_s >= budget_s / 2
        if is_slow or any(each.strategy is Strategy.DIRECT for each in known.samples):
            self._remember(Strategy.DIRECT, spans.bytes, began_s)
        return done

    def _now_s(self) -> float:
        """Return the time by which refreshes are measured, without what is invested: others would not pay that."""
        return self._clock.monotonic_s() - invested_s()

    def _remember(self, strategy: Strategy, size: int, began_s: float) -> None:
        self._refreshes.remember(RefreshSample(strategy, size, self._now_s() - began_s))

    def _abandon(
        self, strategy: Strategy, context: ConsumeContext, end: RefreshEnd, spans: Spans, began_s: float
    ) -> Refreshed:
        """Recompute the view, and remember all that was taken for refreshes by such changes, as whoever chooses one
        pays it.
        """
        reason = f"changes took {self._now_s() - began_s:.2g} s, as long as a full one, and were given up"
        self._refreshes.learn("changes", found=False)
        done = self._recompute(context, end, reason, warn=False)
        self._remember(strategy, spans.bytes, began_s)
        return done

    def _unchanged(self, context: ConsumeContext, end: RefreshEnd, reason: str) -> Refreshed:
        there = Consumed(replace(context.position, sources=end.marks), 0, 0)
        return Refreshed(there, "unchanged", reason, committed=False)

    def _tail_tag(self, context: ConsumeContext, end: RefreshEnd, as_of_s: float) -> CommitTag:
        from_version, to = context.position.watermark.version, end.tables[self._own].to
        return commit_tag(context, "tail", from_version, to, end.marks, as_of_s)

    def _follow_by_duckdb(
        self,
        engine: DuckEngine,
        query: StoredQuery,
        context: ConsumeContext,
        spans: Spans,
        end: RefreshEnd,
        limit_s: float,
    ) -> Refreshed | None:
        """Refresh by what DuckDB computes in this process; return None if that is for Spark to do. Raises
        OutOfTimeError.
        """
        root, by_time = query.root, query.by_time is not None
        if root is None or by_time != (context.position.as_of_s > 0):
            return None
        self._memory.by_time = query.by_time
        tag = self._tail_tag(context, end, end.instant_s if by_time else 0.0)
        uris = self._view.query.tables
        with ExitStack() as stack:
            names = {name: self._source.columns(uri, end.tables[uri].to.version) for name, uri in uris.items()}
            columns, instants = columns_read(root, names), Instants(spans.as_of_s, end.instant_s)
            source, clock_types, limits = self._source, query.clock_types, engine.limits
            tables = ViewTables(context.session, source, uris, spans, columns, stack, instants, clock_types, limits)
            sizes = {name: self._memory.sizes.of(self._source, uri, end.tables[uri]) for name, uri in uris.items()}
            refresh = DuckRefresh(root, stack.enter_context(engine.cursor(limit_s)), tables, sizes)
            writers: list[Writer] = [] if by_time else [partial(self._write_groups, end)]
            if self._sink.marks_rows(tag):
                writers += [self._write_changes, self._write_difference, partial(self._write_scanned, query.kept)]
                if query.kept is not None:
                    writers.insert(0, partial(self._write_kept, query.kept))
            for write in writers:
                try:
                    if (done := write(context, refresh, tag)) is not None:
                        position = replace(done.consumed.position, sources=tag.sources)
                        return replace(done, consumed=replace(done.consumed, position=position))
                except OutOfTimeError:
                    raise
                except NotComputedError as error:
                    log.debug("view.left_to_spark", extra=logged_job(context.row) | {"reason": str(error)})
        return None

    def _write_groups(
        self, end: RefreshEnd, context: ConsumeContext, refresh: DuckRefresh, tag: CommitTag
    ) -> Refreshed | None:
        """Refresh groups by what changed rows add to their stored sums."""
        has_sums = partial(self._has_sums, context, refresh.tables.spans, end)
        summed = refresh.summed_rows(StoredGroups(has_sums, partial(self._stored.groups, context)))
        if summed is None:
            return None
        self._memory.worth.served += 1
        if not len(summed.stored):
            self._stored.follow(context, None, tag)
            return Refreshed(Consumed(self._renew(context, tag), 0, 0), "groups", _NO_ROW)
        self._stored.merge(context, summed.stored, summed.keys, tag)
        rows = with_op(summed.touched)
        position = merge_few(context, self._sink, rows, summed.touched.keys.schema.names, tag)
        return Refreshed(Consumed(position, len(rows), 0), "groups", "few rows of a view of groups have changed")

    def _has_sums(self, context: ConsumeContext, spans: Spans, end: RefreshEnd, schema_json: str) -> bool:
        """Return whether the sums are stored of which the view's rows were made; they are, where that is worth it."""
        if self._stored.is_at_hand(context, schema_json):
            return True
        if not self._memory.worth.write():
            return False
        leave_to_spark("the groups of all its rows are stored, for later changes")
        with investing(self._clock):
            return self._store_groups(context, self._query(context, end), context.position, spans)

    def _write_kept(
        self, kept: KeptInput, context: ConsumeContext, refresh: DuckRefresh, tag: CommitTag
    ) -> Refreshed | None:
        """Refresh by the changes of the part of the query that is stored, of which the result is computed."""
        stored = StoredRows(partial(self._stored.is_at_hand, context), partial(self._stored.few_rows, context))
        found = refresh.kept_rows(kept, stored)
        if found is None or len(found.result) > FEW_ROWS_MAX:
            return None
        if len(found.stored):
            self._stored.merge(context, found.stored, found.keys, tag)
        else:
            self._stored.follow(context, None, tag)
        done = self._sink.replace_rows(found.result, tag, context.guard, FEW_ROWS_MAX)
        return None if done is None else Refreshed(Consumed(*done, 0), "changes", "few rows of what is kept changed")

    def _write_changes(self, context: ConsumeContext, refresh: DuckRefresh, tag: CommitTag) -> Refreshed | None:
        """Refresh by the rows that change, which are found without all rows.

        Where the search for them had no result, and a scan of the tables may, the scan is next for a while.
        """
        if follows_from_all_rows(refresh.root):
            return None
        if refresh.scanning is None:
            return self._write_net(context, refresh, tag)
        history, done = self._refreshes.history, None
        try:
            if history.searches.is_due or not history.scans.is_due:
                done = self._write_net(context, refresh, tag)
        finally:
            self._refreshes.learn("searches", found=done is not None)
        return done

    def _write_net(self, context: ConsumeContext, refresh: DuckRefresh, tag: CommitTag) -> Refreshed | None:
        touched = refresh.touched_rows()
        rows = touched.keys if touched is not None else refresh.net_rows()
        if not len(rows) and not refresh.tables.spans.changed:
            return Refreshed(Consumed(context.position, 0, 0), "unchanged", _NOTHING_BY_TIME, committed=False)
        if not len(rows):
            return Refreshed(Consumed(self._renew(context, tag), 0, 0), "changes", _NO_ROW)
        if touched is not None:
            replaced = self._sink.replace_keys(touched.rows, touched.keys, tag, context.guard)
        else:
            position = self._sink.change_rows(rows, tag, context.guard)
            replaced = None if position is None else (position, len(rows))
        return None if replaced is None else Refreshed(Consumed(*replaced, 0), "changes", "few rows have changed")

    def _write_difference(self, context: ConsumeContext, refresh: DuckRefresh, tag: CommitTag) -> Refreshed | None:
        """Refresh by all rows of small tables, of which those stay that are there already."""
        if not refresh.is_small or not refresh.tables.changed:
            return None
        return self._write_all_here(context, refresh, tag, "its tables are small")

    def _write_scanned(
        self, kept: KeptInput | None, context: ConsumeContext, refresh: DuckRefresh, tag: CommitTag
    ) -> Refreshed | None:
        """Refresh by scans of whole tables, where nothing else is left but Spark, which would read as much of them.

        The part of the query that is stored is followed by them if it can be, and falls behind otherwise.
        """
        scanning = refresh.scanning
        if scanning is None or not refresh.tables.changed:
            return None
        done = None
        try:
            if self._refreshes.history.scans.is_due:
                scan = partial(self._write_kept, kept) if kept is not None and refresh.follows(kept) else self._scan
                done = scan(context, scanning, tag)
        except OutOfTimeError:  # what it took is remembered
            raise
        except NotComputedError:
            self._refreshes.learn("scans", found=False)
            raise
        self._refreshes.learn("scans", found=done is not None)
        return done

    def _scan(self, context: ConsumeContext, refresh: DuckRefresh, tag: CommitTag) -> Refreshed | None:
        size, done = self._source.size(self._target, context.position.base_version).bytes, None
        if size <= READ_LIMITS.difference:
            done = self._write_all_here(context, refresh, tag, "its result is small")
        return done or self._write_net(context, refresh, tag)

    def _write_all_here(
        self, context: ConsumeContext, refresh: DuckRefresh, tag: CommitTag, reason: str
    ) -> Refreshed | None:
        """Refresh by all rows, computed in this process, of which those stay that are there already."""
        rows = refresh.all_rows()
        if not refresh.tables.spans.changed:
            there = self._sink.few_rows(context.position.base_version, FEW_ROWS_MAX)
            if there is not None and are_equal(there, rows):
                return Refreshed(Consumed(context.position, 0, 0), "unchanged", _NOTHING_BY_TIME, committed=False)
        done = self._sink.replace_rows(rows, tag, context.guard, FEW_ROWS_MAX)
        return None if done is None else Refreshed(Consumed(*done, 0), "difference", reason)

    def _leave_changes_to_spark(self) -> None:
        if self._refreshes.history.changes.pause:
            leave_to_spark("changes without Spark took longer than all rows")
        elif not self._memory.is_computed_here:
            leave_to_spark("changes are computed by Spark for a query like this, however small they are")
        else:
            leave_to_spark("these changes are too many, or of a kind that is computed by Spark", unless_known=True)

    def _find_query(self, context: ConsumeContext, end: RefreshEnd) -> StoredQuery:
        """Return the query that is stored beside the target, or as Spark reads it."""
        query = self._note.read(self._schemas(end))
        if query is not None and (query.root is None or self._sink.schema_matches(schema_json_of(query.root.columns))):
            return query
        leave_to_spark("its query is analyzed, as it is not stored for its tables' columns")
        return self._read_query(self._query(context, end), end)

    def _read_query(self, query: ViewQuery, end: RefreshEnd) -> StoredQuery:
        found = read_query(query.analyzed)
        self._note.learn(found, self._schemas(end))
        return found

    def _schemas(self, end: RefreshEnd) -> dict[str, str]:
        tables = self._view.query.tables.items()
        return {name: self._source.schema_json(uri, end.tables[uri].to.version) for name, uri in tables}

    def _follow_rows(
        self, context: ConsumeContext, query: ViewQuery, spans: Spans, tag: CommitTag
    ) -> tuple[Position, int] | None:
        """Refresh by the changes of the result; return None if there are none, and no table has changed."""
        if query.keys is not None and query.keys.unique:
            return self._follow_result_groups(context, query, spans, tag)
        if query.keys is not None and self._sink.marks_rows(tag):
            with query.key_changes(spans) as found:
                tag = replace(tag, totals=query.totals)
                if found is not None and not len(found.keys) and not spans.changed:
                    return None
                done = None if found is None else self._sink.replace_keys(found.rows, found.keys, tag, context.guard)
            if done is not None:
                return done
        with query.changes(spans) as changed:
            tag = replace(tag, totals=query.totals)
            if changed is None:
                return (self._renew(context, tag), 0) if spans.changed else None
            return commit_changes(context, self._sink, changed, tag)

    def _follow_result_groups(
        self, context: ConsumeContext, query: ViewQuery, spans: Spans, tag: CommitTag
    ) -> tuple[Position, int] | None:
        """Refresh by the rows of the groups that changed, whatever these were before."""
        with query.group_changes(spans) as changed:
            tag = replace(tag, totals=query.totals)
            if changed is None:
                return (self._renew(context, tag), 0) if spans.changed else None
            names = [query.columns[place] for place in query.keys.places] if query.keys else []
            return merge_groups(context, self._sink, changed, names, tag)

    def _follow_stored(
        self, context: ConsumeContext, query: ViewQuery, spans: Spans, tag: CommitTag
    ) -> tuple[Position, int] | None:
        """Refresh by the changes of the stored input, of which the result is computed."""
        if not self._stored.is_at(context):
            raise ChangesUnavailableError("what is kept of the query is of other versions than the view")
        with query.follow_stored(spans, self._stored.sums(context)) as changed:
            if changed is None and not spans.changed:
                return None
            tag = replace(tag, totals=query.totals)
            if changed is not None and query.stored_key:
                self._stored.merge_groups(context, changed, query.stored_key, tag)
            else:
                self._stored.follow(context, changed, tag)
            if changed is None and not has_values_above(query.analyzed.root, query.stored):
                return self._renew(context, tag), 0
            stored, few = self._stored.rows_if_few(context)
            rows = query.finished(stored)
            few = few or has_limit_above(query.analyzed.root, query.stored)
            if few and (done := replace_few(context, self._sink, rows, tag)) is not None:
                return done
            consumed = self._write(context, rows, tag)
            return consumed.position, consumed.rows

    def _renew(self, context: ConsumeContext, tag: CommitTag) -> Position:
        """Commit that the rows stay as they are, and are those of later versions; return the position."""
        context.guard.check()
        position = self._sink.renew(tag)
        if position is None:
            raise ChangesUnavailableError("others have changed what the target is")
        return position

    def _recompute(
        self, context: ConsumeContext, end: RefreshEnd, reason: str, *, warn: bool, builds: bool = False
    ) -> Refreshed:
        """Compute all rows; `builds`: for no target that changes have come to."""
        began_s = self._now_s()
        leave_to_spark(f"all rows are computed ({reason})")
        query = self._query_anew(context, end)
        if builds and self._view.policy is not Policy.FULL:
            self._store_groups(context, query, self._snapshot_tag(context, query, end))
        try:
            consumed = self._write_all(context, query, end, there=not builds)
        except (EngineError, E.PySparkException, Py4JJavaError) as error:
            if not (query.stores_totals and concerns_values(error)):
                raise
            # Totals are of all rows below, of which the query itself may do without some.
            query.store_no_totals()
            consumed = self._write_all(context, query, end, there=not builds)
        self._remember(Strategy.FULL, self._memory.sizes.of_all(self._source, end.tables), began_s)
        warning = f"the view was recomputed: {reason}" if warn else ""
        return Refreshed(consumed, Strategy.FULL, reason, warning=warning)

    def _store_groups(
        self, context: ConsumeContext, query: ViewQuery, view: CommitTag | Position, before: Spans | None = None
    ) -> bool:
        """Store the sums of a view that is refreshed by them, as of the state that its rows have, or will have; return
        whether they are.

        If they are stored as it is built, its first small change, which may be another process's, needs no Spark.
        """
        try:
            sums = query.sums_at_top(before)
            if sums is not None:
                self._stored.write(context, sums, view)
        except (EngineError, E.PySparkException, Py4JJavaError) as error:
            if not concerns_values(error):
                raise
            return False  # a sum has more digits than a decimal
        return sums is not None

    def _snapshot_tag(self, context: ConsumeContext, query: ViewQuery, end: RefreshEnd) -> CommitTag:
        return commit_tag(context, "snapshot", NOTHING_APPLIED, end.tables[self._own].to, end.marks, query.as_of_s)

    def _write_all(
        self, context: ConsumeContext, query: ViewQuery, end: RefreshEnd, *, there: bool = False
    ) -> Consumed:
        """Write all rows. If a refresh has left rows `there`, only the difference is written, if it is not large: those
        who follow the view have no more to read than what is another row now.
        """
        tag = self._snapshot_tag(context, query, end)
        if query.stored is None:
            rows = query.all_rows()
        else:
            self._stored.write(context, query.stored_rows(), tag)
            rows = query.finished(self._stored.rows(context))
        tag = replace(tag, totals=query.totals)
        done = self._write_differing(context, rows, tag) if there else None
        consumed = self._write(context, rows, tag) if done is None else Consumed(*done, 0)
        return replace(consumed, position=replace(consumed.position, sources=tag.sources))

    def _write_differing(self, context: ConsumeContext, rows: DataFrame, tag: CommitTag) -> tuple[Position, int] | None:
        size = self._source.size(self._target, context.position.base_version).bytes
        if not 0 < size <= SEARCHED_BYTES_MAX:
            return None
        if size <= READ_LIMITS.difference:
            return replace_few(context, self._sink, rows, tag)
        is_due = self._refreshes.history.differences.is_due
        done = replace_differing(context, self._sink, rows, tag) if is_due else None
        self._refreshes.learn("differences", found=done is not None)
        return done

    def _write(self, context: ConsumeContext, rows: DataFrame, tag: CommitTag) -> Consumed:
        """Write all rows at once."""
        if not self._sink.schema_matches(rows.schema.json()):
            return Consumed(self._sink.replace(rows, tag, context.guard), 0, 0)
        manifest = self._sink.stage(Rows(lambda: rows), tag)
        return Consumed(self._sink.publish([manifest], tag, context.guard), manifest.rows, manifest.bytes)


def _origin_of(view: ViewSpec) -> QueryOrigin:
    return QueryOrigin(view.query.sql, view.query.tables, {"iscp": __version__, **analysis_versions()})
