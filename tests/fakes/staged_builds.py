"""Builds by ranges in memory: rows of a fake source by ranges, and consumers whose targets stage them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from iscp.model.build.build_task import NO_TERMS, BuildId, BuildTerms, depth, piece_range
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import PlanOutdated
from iscp.model.values.progress import TableSize
from iscp.ports.consumer import ConsumeContext, Consumed, ConsumerEnvironment, Retriever
from iscp.ports.sink import BuildEnd, Manifest, StagedState
from iscp.ports.source import ChangesUnavailableError
from iscp.ports.source import Rows as SinkRows
from tests.fakes.pipeline import FakeConsumer, FakeKind, FakeSource, FakeTarget, Rows

ROW_BYTES = 50


def sink_rows(rows: Rows) -> SinkRows:
    return SinkRows(lambda: rows)  # type: ignore[arg-type,return-value]


def rows_in_range(rows: Rows, range_id: int) -> Rows:
    """Each row is a piece."""
    return {i: value for i, value in rows.items() if piece_range(str(i), depth(range_id)) == range_id}


class FakeRangeReader:
    """Port RangeReader of `source`. `reads` are the ranges whose rows were evaluated, `once` those read for several.

    `small`: whether it reads rows without Spark. `faults` are raised by the next reads of rows,
    `lists`: whether files can be listed.
    """

    def __init__(self, source: FakeSource) -> None:
        self._source = source
        self.reads: list[int] = []
        self.once: list[Rows] = []
        self.faults: list[Exception] = []
        self.small = False
        self.lists = True

    def rows(self, session: Any, uri: str, version: int, range_id: int, piece_bytes: int) -> SinkRows | None:
        if self.faults:
            raise self.faults.pop(0)
        found: Any = rows_in_range(self._source.states[version], range_id)

        def read() -> Any:
            self.reads.append(range_id)
            return found

        return SinkRows(read, read if self.small else lambda: None) if found else None

    def size(self, session: Any, uri: str, version: int, range_id: int, piece_bytes: int) -> TableSize:
        if not self.lists:
            raise ChangesUnavailableError(f"the log of version {version} was cleaned")
        rows = len(rows_in_range(self._source.states[version], range_id))
        return TableSize(rows, ROW_BYTES * rows)

    @contextmanager
    def read_once(self, rows: SinkRows) -> Iterator[SinkRows]:
        def cache() -> Any:
            self.once.append(rows.frame)  # type: ignore[arg-type]
            return rows.frame

        yield SinkRows(cache, lambda: rows.table)


@dataclass
class FakeStagedRanges:
    """Port StagedRanges. `faults` are raised by the next stagings, `before_stage` comes before each.

    `direct`: ranges that were staged without Spark. `lost`: its files are gone. `stuck`: it cannot be removed.
    """

    begun: bool = False
    agreed: BuildTerms = NO_TERMS
    ended: BuildEnd | None = None
    rows: dict[int, Rows] = field(default_factory=dict)
    direct: list[int] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    before_stage: Callable[[], object] = lambda: None
    lost: bool = False
    stuck: Exception | None = None
    describes: bool = True

    def state(self) -> StagedState:
        return StagedState(self.begun, self.ended, frozenset(self.rows))

    def begin(self, terms: BuildTerms = NO_TERMS) -> None:
        if not self.begun:
            self.begun, self.agreed = True, terms

    def terms(self) -> BuildTerms | None:
        return self.agreed if self.begun else None

    def stage(self, range_id: int, rows: SinkRows | None) -> None:
        self.before_stage()
        if self.faults:
            raise self.faults.pop(0)
        if not self.begun:
            raise PlanOutdated("the build was removed")
        direct = rows is not None and self.describes and rows.table is not None
        found: Any = {} if rows is None else rows.table if direct else rows.frame
        self.rows.setdefault(range_id, dict(found))
        if direct:
            self.direct.append(range_id)

    def manifests(self, ranges: Sequence[int]) -> list[Manifest] | None:
        if self.lost:
            return None
        return [Manifest(len(self.rows[each]), 0, files={"rows": self.rows[each]}) for each in ranges]

    def end(self, why: BuildEnd) -> None:
        self.ended = self.ended or why

    def remove(self) -> None:
        if self.stuck is not None:
            raise self.stuck
        self.begun, self.ended, self.rows = False, None, {}


class FakeRangeConsumer(FakeConsumer):
    """Port RangeBuilt, if its kind is built by ranges: its target holds what `keeps` lets through."""

    def __init__(self, target: FakeTarget, kind: FakeRangeKind, row: JobRow) -> None:
        super().__init__(target)
        self._goal = target
        self._kind = kind
        self._path = row.spec.consumer.target

    @property
    def range_built(self) -> FakeRangeConsumer | None:
        return self if self._kind.is_built_by_ranges else None

    def takes_ranges(self, context: ConsumeContext, source: Any) -> bool:
        return self._kind.takes_ranges

    def ranges(self, build: BuildId) -> FakeStagedRanges:
        return self._kind.staged(self._path)

    def wanted(self, rows: SinkRows) -> SinkRows:
        def choose(rows: Any) -> Any:
            return {i: value for i, value in rows.items() if self._kind.keeps(i)}

        return rows.transformed(choose, None if self._kind.by_spark else choose)

    def publish(self, context: ConsumeContext, manifests: Sequence[Manifest], retriever: Retriever) -> Consumed | None:
        if self._kind.shares_keys:
            return None
        rows: Rows = {}
        for each in manifests:
            found: Any = each.files["rows"]
            assert not rows.keys() & found.keys(), "of two ranges"
            rows |= found
        position = self._goal.commit("publish", retriever.seq, context, retriever.to, rows)
        return Consumed(position, len(rows), 0)


class FakeRangeKind(FakeKind):
    """Of consumers that are built by ranges; of each target one build at a time, by its path."""

    def __init__(self) -> None:
        super().__init__()
        self.is_built_by_ranges = True
        self.takes_ranges = True
        self.by_spark = False
        self.shares_keys = False
        self.keeps: Callable[[int], bool] = lambda i: True
        self._staged: dict[str, FakeStagedRanges] = {}

    def staged(self, path: str) -> FakeStagedRanges:
        return self._staged.setdefault(path, FakeStagedRanges())

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> FakeRangeConsumer:
        return FakeRangeConsumer(self.target(row.spec.consumer.target), self, row)
