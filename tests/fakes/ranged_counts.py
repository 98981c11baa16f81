"""Views that count rows by ranges: what is staged of a range is how many rows it has, beside the other table's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from iscp.model.build.build_task import NO_TERMS, BuildId, BuildTerms
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.watermark import SourceMark
from iscp.ports.consumer import ConsumeContext, Consumed, ConsumerEnvironment, Refreshed, RefreshOrder
from iscp.ports.sink import Manifest
from tests.fakes.pipeline import FakeSource, FakeTarget
from tests.fakes.refreshing import CountingConsumer, CountingKind
from tests.fakes.staged_builds import FakeStagedRanges


@dataclass
class _StagedCounts(FakeStagedRanges):
    """`others`: all builds of its target, which are removed together."""

    others: Callable[[], list[FakeStagedRanges]] = list

    def begin(self, terms: BuildTerms = NO_TERMS) -> None:
        for each in self.others():
            each.begun = each is self and self.begun
        super().begin(terms)

    def remove(self) -> None:
        for each in self.others():
            each.begun, each.ended, each.rows = False, None, {}


class RangedCounter(CountingConsumer):
    """Port RangeRefreshed."""

    def __init__(self, target: FakeTarget, source: FakeSource, kind: RangedCountingKind, path: str) -> None:
        super().__init__(target, source)
        self._goal, self._tables, self._kind, self._path = target, source, kind, path

    @property
    def range_refreshed(self) -> RangedCounter:
        return self

    def range_terms(self, context: ConsumeContext, order: RefreshOrder) -> BuildTerms | None:
        if not self._kind.takes_ranges:
            return None
        spans = {uri: self._tables.newest(uri) for uri in context.row.spec.consumer.options["tables"].values()}
        spans[context.row.table_uri] = order.to
        return BuildTerms({uri: SourceMark(span.table_id, span.to) for uri, span in spans.items()}, way="counts")

    def ranges(self, build: BuildId) -> FakeStagedRanges:
        return self._kind.staged(self._path, build)

    def range_rows(self, rows: Any, terms: BuildTerms) -> Any:
        """By the table's URI; of each other table all rows that it has at the version of the terms."""
        self._kind.computed.append(terms)
        if self._kind.faults:
            raise self._kind.faults.pop(0)
        return {"range": len(rows)} | {
            uri: len(self._tables.snapshot(None, uri, mark.watermark.version)) for uri, mark in terms.sources.items()
        }

    def publish_ranges(
        self, context: ConsumeContext, order: RefreshOrder, manifests: Sequence[Manifest], terms: BuildTerms
    ) -> Refreshed | None:
        if self._kind.faults:
            raise self._kind.faults.pop(0)
        found: list[Any] = [each.files["rows"] for each in manifests]
        staged = [each for each in found if each]
        if self._kind.misfits:
            return None
        counts = {uri: {each[uri] for each in staged} for uri in terms.sources}
        assert all(len(each) == 1 for each in counts.values()), "all of one version"
        own = sum(each["range"] for each in staged)
        assert counts[context.row.table_uri] == {own}
        rows = {n: str(*each) for n, (_, each) in enumerate(sorted(counts.items()))}
        seq, to = context.position.seq + 1, order.to.to
        position = self._goal.commit("ranges", seq, context, to, rows, terms.sources)
        return Refreshed(Consumed(position, len(rows), 0), "full", f"{order.full}, by ranges")


class RangedCountingKind(CountingKind):
    """`computed`: the terms of each range that was; `faults` are raised by the next ranges and publications.

    `misfits`: what is staged does not make up the rows.
    """

    def __init__(self, source: FakeSource) -> None:
        super().__init__(source)
        self.takes_ranges = True
        self.misfits = False
        self.computed: list[BuildTerms] = []
        self.faults: list[Exception] = []
        self._own = source
        self._staged: dict[tuple[str, BuildId], FakeStagedRanges] = {}

    def staged(self, path: str, build: BuildId) -> FakeStagedRanges:
        if (path, build) not in self._staged:
            self._staged[path, build] = _StagedCounts(others=lambda: self._of(path))
        return self._staged[path, build]

    def _of(self, path: str) -> list[FakeStagedRanges]:
        return [each for (where, _), each in self._staged.items() if where == path]

    @property
    def builds(self) -> list[FakeStagedRanges]:
        """Those that were begun or looked for, in order."""
        return list(self._staged.values())

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        return ()

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> RangedCounter:  # type: ignore[override]
        path = row.spec.consumer.target
        return RangedCounter(self.target(path), self._own, self, path)
