"""Keeps one view: computes how its query's result changed, or all of it, and commits that to the target."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from iscp.adapters.delta.source.change_set import reading_changes
from iscp.adapters.delta.spark.spark_errors import translating
from iscp.consumers.commit_tag import commit_tag
from iscp.consumers.view.bag_commit import commit_changes, merge_groups, merge_held
from iscp.consumers.view.group_state import UnfitGroupsError, key_columns
from iscp.consumers.view.kept_input import KeptInput
from iscp.consumers.view.recent_views import RecentView
from iscp.consumers.view.refresh_parts import measuring
from iscp.consumers.view.view_memory import ViewMemory
from iscp.consumers.view.view_query import Spans, ViewQuery, resolve_spans
from iscp.consumers.view.view_spec import ViewSpec
from iscp.core.errors import InvariantBroken
from iscp.core.job_row import JobRow
from iscp.core.refresh_choice import Policy, RefreshSample, Strategy, choose_strategy
from iscp.core.watermark import NOTHING_APPLIED, Position, SourceMark, SourceMarks, Watermark
from iscp.ports.consumer import ConsumeContext, Consumed, ConsumerEnvironment, Retriever
from iscp.ports.refreshing import Refreshed, RefreshOrder
from iscp.ports.sink import CommitTag
from iscp.ports.source import ChangesUnavailableError, SourceRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


class ViewConsumer:
    """Port RefreshingConsumer (and RenewingConsumer, TidyingConsumer)."""

    def __init__(
        self, view: ViewSpec, row: JobRow, environment: ConsumerEnvironment, memory: ViewMemory, recent: RecentView
    ) -> None:
        target = row.spec.consumer.target
        self._view = view
        self._own = row.table_uri
        self._sink = environment.sink(target)
        self._kept = KeptInput(target, environment)
        self._source = environment.source
        self._clock = environment.clock
        self._memory = memory
        self._recent = recent

    def position(self, row: JobRow) -> Position:
        return self._sink.position(row)

    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        context.guard.check()
        query = self._query(context, self._ends(self._source.newest(self._own)))
        tag = commit_tag(context, "claim", NOTHING_APPLIED, Watermark(), {})
        schema = query.analyzed.columns.json()
        # Others read views as tables, and views on views follow their changes.
        by_key = query.keys is not None and query.keys.unique
        marks_rows = not by_key and query.kept is None  # else rows are merged by key, or all written
        first = context.row.watermark.version < 0
        return self._sink.claim(schema, tag, first=first, with_feed=True, marks_rows=marks_rows)

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        raise InvariantBroken("a view was handed rows, and reads its tables itself")

    def renew(self, context: ConsumeContext, watermark: Watermark) -> Position:
        """As RenewingConsumer has it; the position is that of the versions that the tables have come to."""
        if not self._sink.overtaken:
            return context.position
        context.guard.check()
        tag = commit_tag(context, "renewal", watermark.version, watermark, context.position.sources)
        return self._sink.renew(tag) or context.position

    def tidy(self) -> None:
        self._sink.tidy()

    def refresh(self, context: ConsumeContext, order: RefreshOrder) -> Refreshed:
        with translating("refresh the view"), measuring(self._clock) as parts:
            done = self._refresh(context, order)
        if done.strategy == Strategy.FULL:
            parts.rows_in = self._count_rows(done.consumed.position.sources)
        return replace(done, rows_in=max(parts.rows_in, 0), parts_s=parts.parts_s)

    def _count_rows(self, sources: SourceMarks) -> int:
        """Of all tables, as their logs say; below 0 where one does not."""
        sizes = [self._source.size(uri, mark.watermark.version) for uri, mark in sources.items()]
        return -1 if any(each.rows < 0 for each in sizes) else sum(each.rows for each in sizes)

    def _refresh(self, context: ConsumeContext, order: RefreshOrder) -> Refreshed:
        ends = self._ends(order.to)
        reason = order.full or ("the policy says so" if self._view.policy is Policy.FULL else "")
        if not reason:
            try:
                with reading_changes("follow the tables' changes"):  # old rows too, whose files may be gone
                    spans = resolve_spans(self._source, context.position.sources, ends)
                    return self._follow(context, spans, ends)
            except ChangesUnavailableError as gone:
                reason = str(gone)
                log.warning("view.recomputed", extra={"job": context.row.key.job_name, "reason": reason})
        warn = not order.full and self._view.policy is not Policy.FULL
        return self._recompute(context, ends, reason, warn=warn)

    def _ends(self, own: SourceRange) -> dict[str, SourceRange]:
        uris = sorted(set(self._view.tables.values()))
        return {uri: own if uri == self._own else self._source.newest(uri) for uri in uris}

    def _query(self, context: ConsumeContext, ends: Mapping[str, SourceRange]) -> ViewQuery:
        return ViewQuery(context.session, self._source, self._view, ends, self._recent)

    def _follow(self, context: ConsumeContext, spans: Spans, ends: Mapping[str, SourceRange]) -> Refreshed:
        if not spans.moved:
            position = replace(context.position, sources=_marks(ends))
            return Refreshed(Consumed(position, 0, 0), "unchanged", "no table has changed", committed=False)
        began_s = self._clock.monotonic_s()
        tag = commit_tag(context, "tail", context.position.watermark.version, ends[self._own].to, _marks(ends))
        if (merged := self._follow_groups(context, spans, ends, tag)) is not None:
            return Refreshed(Consumed(*merged, 0), "groups", "few rows of a view of groups have changed")
        choice = choose_strategy(self._view.policy, spans.bytes, self._size(ends), self._memory.samples)
        if choice.strategy is Strategy.FULL:
            return self._recompute(context, ends, choice.reason, warn=False)
        query = self._query(context, ends)
        if not self._sink.schema_matches(query.analyzed.columns.json()):
            raise ChangesUnavailableError("the columns of the result have changed")
        follow = self._follow_kept if query.kept else self._follow_rows
        position, rows = follow(context, query, spans, tag)
        self._memory.remember(RefreshSample(Strategy.INCREMENTAL, spans.bytes, self._clock.monotonic_s() - began_s))
        return Refreshed(Consumed(replace(position, sources=tag.sources), rows, 0), choice.strategy, choice.reason)

    def _follow_groups(
        self, context: ConsumeContext, spans: Spans, ends: Mapping[str, SourceRange], tag: CommitTag
    ) -> tuple[Position, int] | None:
        """Without Spark, but for what has to be kept at first; None: this is for Spark to do."""
        groups = self._memory.groups(lambda: self._query(context, ends).analyzed)
        if groups is None:
            return None
        try:
            found = groups.change(context, self._source, spans, self._kept)
        except UnfitGroupsError:
            self._memory.give_up_groups()
            return None
        if found is None:
            return None
        rows, key = found.view, groups.query.key_names()
        if not len(rows):
            self._kept.follow(context, None, tag.sources)
            return self._renew(context, tag), 0
        self._kept.merge(context, found.kept, key_columns(groups.query), tag.sources)
        return replace(merge_held(context, self._sink, rows, key, tag), sources=tag.sources), len(rows)

    def _follow_rows(
        self, context: ConsumeContext, query: ViewQuery, spans: Spans, tag: CommitTag
    ) -> tuple[Position, int]:
        """By the changes of the result."""
        if query.keys is not None and query.keys.unique:
            return self._follow_result_groups(context, query, spans, tag)
        if query.keys is not None and self._sink.marks_rows(tag):
            with query.key_changes(spans) as held:
                done = None if held is None else self._sink.replace_keys(held.rows, held.keys, tag, context.guard)
            if done is not None:
                return done
        with query.changes(spans) as changed:
            if changed is None:
                return self._renew(context, tag), 0
            return commit_changes(context, self._sink, changed, tag)

    def _follow_result_groups(
        self, context: ConsumeContext, query: ViewQuery, spans: Spans, tag: CommitTag
    ) -> tuple[Position, int]:
        """By the rows of the groups that changed, of which none had to be what it was."""
        with query.group_changes(spans) as changed:
            if changed is None:
                return self._renew(context, tag), 0
            names = [query.columns[place] for place in query.keys.places] if query.keys else []
            return merge_groups(context, self._sink, changed, names, tag)

    def _follow_kept(
        self, context: ConsumeContext, query: ViewQuery, spans: Spans, tag: CommitTag
    ) -> tuple[Position, int]:
        """By the changes of what is kept, of which the result is computed."""
        if not self._kept.is_at(context):
            raise ChangesUnavailableError("what is kept of the query is of other versions than the view")
        with query.changes(spans) as changed:
            self._kept.follow(context, changed, tag.sources)
            if changed is None:
                return self._renew(context, tag), 0
            consumed = self._write(context, query.finished(self._kept.rows(context)), tag)
            return consumed.position, consumed.rows

    def _renew(self, context: ConsumeContext, tag: CommitTag) -> Position:
        """The rows stay as they are, and are those of later versions."""
        context.guard.check()
        position = self._sink.renew(tag)
        if position is None:
            raise ChangesUnavailableError("others have changed what the target is")
        return position

    def _recompute(
        self, context: ConsumeContext, ends: Mapping[str, SourceRange], reason: str, *, warn: bool
    ) -> Refreshed:
        began_s = self._clock.monotonic_s()
        self._memory.forget_query()
        query = self._query(context, ends)
        tag = commit_tag(context, "snapshot", NOTHING_APPLIED, ends[self._own].to, _marks(ends))
        if query.kept is None:
            rows = query.all_rows()
        else:
            self._kept.write(context, query.kept_rows(), tag.sources)
            rows = query.finished(self._kept.rows(context))
        consumed = self._write(context, rows, tag)
        self._memory.remember(RefreshSample(Strategy.FULL, self._size(ends), self._clock.monotonic_s() - began_s))
        warning = f"the view was recomputed: {reason}" if warn else ""
        consumed = replace(consumed, position=replace(consumed.position, sources=tag.sources))
        return Refreshed(consumed, Strategy.FULL, reason, warning=warning)

    def _write(self, context: ConsumeContext, rows: DataFrame, tag: CommitTag) -> Consumed:
        """All rows at once."""
        if not self._sink.schema_matches(rows.schema.json()):
            return Consumed(self._sink.replace(rows, tag, context.guard), 0, 0)
        manifest = self._sink.stage(rows, tag)
        return Consumed(self._sink.publish([manifest], tag, context.guard), manifest.rows, manifest.bytes)

    def _size(self, ends: Mapping[str, SourceRange]) -> int:
        """Bytes of all tables."""
        return sum(self._source.size(uri, end.to.version).bytes for uri, end in ends.items())


def _marks(ends: Mapping[str, SourceRange]) -> SourceMarks:
    return {uri: SourceMark(end.table_id, end.to) for uri, end in ends.items()}
