"""A query over two tables in memory: how many rows each of them has, kept by a consumer that reads them itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.watermark import Position, SourceMark, Watermark
from iscp.ports.consumer import ConsumeContext, Consumed, Consumer, ConsumerEnvironment, Refreshed, RefreshOrder
from iscp.ports.source import SourceRange
from tests.fakes.pipeline import FakeKind, FakeSource, FakeTarget


class FakeTables(FakeSource):
    """Port ChangeSource, of more than one table: `others` by their URIs, and itself at every other."""

    def __init__(self, others: dict[str, FakeSource]) -> None:
        super().__init__()
        self.others = others

    def newest(self, uri: str) -> SourceRange:
        return self.others[uri].newest(uri) if uri in self.others else super().newest(uri)

    def at(self, uri: str, version: int) -> SourceRange:
        return self.others[uri].at(uri, version) if uri in self.others else super().at(uri, version)

    def snapshot(self, session: Any, uri: str, version: int, *, listed: bool = False) -> Any:
        other = self.others.get(uri)
        return other.snapshot(session, uri, version) if other else super().snapshot(session, uri, version)


class CountingConsumer(Consumer):
    """Row number n of the target is the count of table number n.

    `orders` are those there were, `faults` are raised by the next refreshes, `renew` makes of a renewal a commit.
    `waits` says what it waits for, and how long at most.
    """

    def __init__(self, target: FakeTarget, source: FakeSource) -> None:
        self._target, self._source = target, source
        self.orders: list[RefreshOrder] = []
        self.faults: list[Exception] = []
        self.renews = False
        self.waits = "", 0.0
        self.before_read: Callable[[], object] = lambda: None

    def position(self, row: JobRow) -> Position:
        return self._target.position

    def claim(self, context: ConsumeContext, source: Any) -> Position:
        return self._target.commit("claim", context.position.seq + 1, context, Watermark(), self._target.rows)

    def consume(self, context: ConsumeContext, retriever: object) -> Consumed:
        raise AssertionError("it is handed no rows")

    def renew(self, context: ConsumeContext, watermark: Watermark) -> Position:
        position = context.position
        if not self.renews:
            return position
        seq, rows = position.seq + 1, self._target.rows
        return self._target.commit("renewal", seq, context, watermark, rows, position.sources)

    def refresh(self, context: ConsumeContext, order: RefreshOrder) -> Refreshed:
        self.orders.append(order)
        self.before_read()
        if self.faults:
            raise self.faults.pop(0)
        own, held = context.row.table_uri, context.position
        if self.waits[0]:
            there = Consumed(held, 0, 0)
            return Refreshed(there, "none", "it waits", False, waits_for=self.waits[0], wait_s=self.waits[1])
        spans = {uri: self._source.newest(uri) for uri in context.row.spec.consumer.options["tables"].values()}
        spans[own] = order.to
        marks = {uri: SourceMark(span.table_id, span.to) for uri, span in spans.items()}
        rows = {
            n: str(len(self._source.snapshot(context.session, uri, span.to.version)))
            for n, (uri, span) in enumerate(sorted(spans.items()))
        }
        if rows == self._target.rows and not order.full:
            return Refreshed(Consumed(replace(held, sources=marks), 0, 0), "none", "no count has changed", False)
        strategy = "full" if order.full else "incremental"
        position = self._target.commit(strategy, held.seq + 1, context, order.to.to, rows, marks)
        return Refreshed(Consumed(position, len(rows), 0), strategy, order.full)


class CountingKind(FakeKind):
    """A kind of views; of others in the same iteration it makes replicas."""

    def __init__(self, source: FakeSource) -> None:
        super().__init__()
        self._source = source
        self.consumers: dict[str, CountingConsumer] = {}

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        return ()

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> CountingConsumer:  # type: ignore[override]
        target = row.spec.consumer.target
        if target not in self.consumers:
            self.consumers[target] = CountingConsumer(self.target(target), self._source)
        return self.consumers[target]
