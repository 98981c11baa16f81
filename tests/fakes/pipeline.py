"""The pipeline in memory: a source with a history, sinks that compare and set, and what stands between them.

Rows are a plain dict, id → value; a "frame" is such a dict. `before_commit` is called at the moment of a commit.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa

from iscp.consumers.validation import wanted_columns
from iscp.engine.account_turns import ANYWHERE
from iscp.engine.iteration_ports import HoldPlacer, IterationPorts
from iscp.model.build.build_task import count_pieces
from iscp.model.job.iteration import Bounds, DataType, UsagePart
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import Comparison
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import Conflict, InvalidRequest
from iscp.model.values.progress import SnapshotSize, StageWork, TableSize
from iscp.model.values.watermark import ColumnIds, Position, SourceMarks, Watermark
from iscp.ports.consumer import (
    AdoptingCheck,
    ConsumeContext,
    Consumed,
    Consumer,
    ConsumerEnvironment,
    ConsumerKind,
    Needs,
    NothingRetained,
    RetainedCommits,
    Retriever,
)
from iscp.ports.engine import NO_DEATHS, JobDeaths, charged_as
from iscp.ports.sink import Compared
from iscp.ports.source import (
    Catalog,
    Changes,
    ChangesUnavailableError,
    CommitOrigin,
    KeyedRows,
    NothingHeld,
    RetentionHold,
    SourceRange,
    TableDescription,
)
from iscp.ports.source import Rows as SinkRows
from iscp.ports.system import NO_TRACER, Clock, Failpoints, Tracer
from tests.fakes.clock import FakeClock
from tests.fakes.guards import ScriptedFailpoints

Rows = dict[int, str]


class FakeSession:
    """Of an engine: distinct from any other."""


class FakeEngine:
    """Port Engine. `labels` are those of each thread that named one; `open_sessions` are lent out now. `works`
    are its stages for every caller, and `looked` the labels of the calls that read them.

    A session that is given back is handed out again, to the next caller.
    """

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.cancelled: list[str] = []
        self.works: dict[int, StageWork] = {}
        self.looked: list[str] = []
        self.before_look: Callable[[], object] = lambda: None
        self.lent: set[FakeSession] = set()
        self._idle: list[FakeSession] = []
        self._lock = threading.Lock()

    @property
    def open_sessions(self) -> int:
        return len(self.lent)

    @contextmanager
    def session(self) -> Iterator[Any]:
        with self._lock:
            session = self._idle.pop() if self._idle else FakeSession()
            self.lent.add(session)
        try:
            yield session
        finally:
            with self._lock:
                self.lent.discard(session)
                self._idle.append(session)

    def label(self, label: str) -> None:
        self.labels[threading.current_thread().name] = label

    def spent_s(self) -> tuple[float, float]:
        return 0.0, 0.0

    def batches(self, frame: Any, rows_max: int) -> Iterator[Any]:
        return batches(frame, rows_max)

    def stages(self, label: str) -> dict[int, StageWork]:
        self.looked.append(label)
        self.before_look()
        return dict(self.works)

    def cancel(self, label: str) -> None:
        self.cancelled.append(label)


def batches(frame: Any, rows_max: int) -> Iterator[Any]:
    """Of a frame that is a list of numbers."""
    table = pa.table({"n": pa.array(frame, pa.int64())})
    yield from (table.slice(start, rows_max) for start in range(0, max(len(table), 1), rows_max))


class FakeFeed:
    """Port Feed. `nets` are the requested keys; those in the source's `net_faults` are refused."""

    def __init__(self, source: FakeSource, span: SourceRange) -> None:
        self.span = span
        self.nets: list[tuple[str, ...]] = []
        self.released = False
        self._source = source

    def net(
        self, key: Sequence[str], where: Sequence[str] = (), stamped: bool = False, columns: Sequence[str] = ()
    ) -> Changes:
        self.nets.append(tuple(key))
        if fault := self._source.net_faults.get(tuple(key)):
            raise fault
        before, after = (self._source.states[v] for v in (self.span.from_version, self.span.to.version))
        changed = {i: after.get(i) for i in before.keys() | after.keys() if before.get(i) != after.get(i)}
        deletes = [*changed.values()].count(None)
        return Changes(SinkRows(lambda: changed), 0, len(changed) - deletes, deletes)  # type: ignore[arg-type,return-value]

    def of_keys(self, key: Sequence[str]) -> KeyedRows:
        raise ChangesUnavailableError("all rows of this source show alone")

    def all(self, key: Sequence[str]) -> Any:
        span, states = range(self.span.from_version + 1, self.span.to.version + 1), self._source.states
        return [(v, i, states[v].get(i)) for v in span for i in sorted(states[v - 1].keys() | states[v].keys())]

    def ordered(self, key: Sequence[str], where: Sequence[str], *, hashed: bool) -> None:
        """All of its changes are for Spark to put in order."""

    def every(self) -> Any:
        return self.all(())

    def batches(self, frame: Any, rows_max: int) -> Iterator[Any]:
        return batches(frame, rows_max)

    def with_equal_rows(self) -> FakeFeed:
        return self

    @property
    def table(self) -> pa.Table | None:
        return None

    def release(self) -> None:
        self.released = True


class FakeSource:
    """Port ChangeSource: `states[v]` are the rows at version v, `ids[v]` the table's id.

    `column_ids[v]` are those from version v on. `feeds` and `snapshots` are the reads there were, `snapshot_sessions`
    whose the latter are, `added_ranges` those of them that read added files; versions in
    `gone` can be read no more. `inserts_only` and `cdf_on` are what it says of every range.
    """

    def __init__(self, table_id: str = "t-1") -> None:
        self.states: list[Rows] = [{}]
        self.ids = [table_id]
        self.at_s = [1.0]
        self._clock_s = 1.0
        self.gone: set[int] = set()
        self.net_faults: dict[tuple[str, ...], Exception] = {}
        self.names: tuple[str, ...] = ("id", "v")
        self.column_ids: dict[int, ColumnIds] = {}
        self.feeds: list[FakeFeed] = []
        self.read_columns: list[tuple[str, ...]] = []
        self.snapshots: list[int] = []
        self.snapshot_sessions: list[Any] = []
        self.cdf_on = True
        self.size_of: Callable[[str, int], TableSize] = lambda uri, version: TableSize(len(self.states[version]), 100)
        self.inserts_only = False
        self.added_ranges: list[tuple[int, int]] = []

    @property
    def version(self) -> int:
        return len(self.states) - 1

    def commit(self, changes: Mapping[int, str | None] | None = None, table_id: str = "") -> None:
        """The next version; without `changes` it has no rows, as an OPTIMIZE."""
        state = {**self.states[-1], **(changes or {})}
        self.states.append({i: value for i, value in state.items() if value is not None})
        self.ids.append(table_id or self.ids[-1])
        self.at_s.append(self._clock_s + self.version)

    def restored(self, version: int) -> None:
        """Go on from a backup of `version`, with the same id; the commits that follow have other times."""
        end = version + 1
        self.states, self.ids, self.at_s = self.states[:end], self.ids[:end], self.at_s[:end]
        self._clock_s += 1000.0

    def schema(self, session: Any, uri: str, version: int) -> Any:
        raise AssertionError("whoever reads these rows needs no schema of them")

    def anew(self, table_id: str, rows: Rows) -> None:
        """Dropped and made again, up to the same version; the commits have other times."""
        self._clock_s += 1000.0
        self.states = [dict(rows) for _ in self.states]
        self.ids = [table_id for _ in self.ids]
        self.at_s = [self._clock_s + version for version in range(len(self.states))]

    def resolve(self, uri: str, since: Watermark, to_version: int | None, bounds: Bounds) -> SourceRange:
        from_version = since.version
        if from_version > self.version:
            raise ChangesUnavailableError(f"the log ends at version {self.version}")
        wanted = min(self.version if to_version is None else to_version, from_version + bounds.versions_max)
        if wanted <= from_version:
            return self.at(uri, from_version)
        span = range(from_version + 1, wanted + 1)
        if self.gone & set(span):
            raise ChangesUnavailableError("the log was cleaned")
        moved = any(self.states[v] != self.states[v - 1] for v in span)
        from_at_s = self.at_s[from_version]
        found = replace(self.at(uri, wanted), from_version=from_version, from_at_s=from_at_s, changes_data=moved)
        reshapes = any(v in self.column_ids for v in span)
        return replace(found, inserts_only=self.inserts_only, reshapes=reshapes, changes_data=moved or reshapes)

    def newest(self, uri: str) -> SourceRange:
        return self.at(uri, self.version)

    def origin(self, uri: str, version: int) -> CommitOrigin | None:
        return self.at(uri, version).origin if 0 <= version <= self.version and version not in self.gone else None

    def at(self, uri: str, version: int) -> SourceRange:
        if version in self.gone or version > self.version:
            raise ChangesUnavailableError(f"version {version} is gone")
        at_s = self.at_s[version]
        return SourceRange(
            version,
            Watermark(version, at_s),
            self.ids[version],
            from_at_s=at_s,
            inserts_only=self.inserts_only,
            cdf_on=self.cdf_on,
            column_ids=next(
                (ids for since, ids in sorted(self.column_ids.items(), reverse=True) if since <= version), {}
            ),
        )

    def read_cdf(self, session: Any, uri: str, span: SourceRange, columns: Sequence[str], readers: int) -> FakeFeed:
        self.read_columns.append(tuple(columns))
        self.feeds.append(FakeFeed(self, span))
        return self.feeds[-1]

    def read_appends(self, session: Any, uri: str, span: SourceRange, columns: Sequence[str], readers: int) -> FakeFeed:
        self.added_ranges.append((span.from_version, span.to.version))
        return self.read_cdf(session, uri, span, columns, readers)

    def enable_feed(self, session: Any, uri: str) -> None:
        self.cdf_on = True
        self.commit({})

    def snapshot(self, session: Any, uri: str, version: int, *, listed: bool = False) -> Any:
        self.snapshots.append(version)
        self.snapshot_sessions.append(session)
        return dict(self.states[version])

    def scan(self, uri: str, version: int, columns: Sequence[str]) -> None:
        return None

    def rows_with(self, uri: str, version: int, keys: Any, columns: Sequence[str], rows_max: int) -> None:
        """All is read by Spark."""

    def small_snapshot(self, uri: str, version: int) -> None:
        """All of its snapshots are for Spark to read."""

    def size(self, uri: str, version: int, piece_bytes: int = 0) -> SnapshotSize:
        found = self.size_of(uri, version)
        return SnapshotSize(found.rows, found.bytes, count_pieces([found.bytes], piece_bytes))

    def columns(self, uri: str, version: int) -> tuple[str, ...]:
        return self.names

    def schema_json(self, uri: str, version: int) -> str:
        fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in self.names]
        return json.dumps({"type": "struct", "fields": fields})


@dataclass
class FakeTarget:
    """One sink: `commits` says what each commit was, with its seq; `looks` counts how often its position
    was read. `faults` are raised by the next commits. For comparisons: `shared` keys of the source have several rows,
    and with `rows_gone` its rows cannot be read.
    """

    rows: Rows = field(default_factory=dict)
    position: Position = field(default_factory=Position)
    commits: list[tuple[str, int]] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    before_commit: Callable[[], object] = lambda: None
    tidied: Callable[[], None] = lambda: None
    looks: int = 0
    shared: int = 0
    rows_gone: bool = False
    tells_columns: bool = True
    takes_empty_commits: bool = True

    @charged_as(UsagePart.COMMIT)
    def commit(
        self,
        kind: str,
        seq: int,
        context: ConsumeContext,
        watermark: Watermark,
        rows: Rows,
        sources: SourceMarks | None = None,
    ) -> Position:
        self.before_commit()
        context.guard.check()
        if self.faults:
            raise self.faults.pop(0)
        if seq != self.position.seq + 1:
            raise Conflict(f"seq {seq} was won by another writer")
        self.rows = rows
        self.commits.append((kind, seq))
        dead = context.position.dead
        ids = context.column_ids if self.tells_columns else None
        position = Position(seq, watermark, context.row.job_id, context.source_id, dead=dead, column_ids=ids)
        self.position = replace(position, sources=sources or {})
        return self.position


class FakeConsumer(Consumer):
    def __init__(self, target: FakeTarget) -> None:
        self._target = target

    def position(self, row: JobRow) -> Position:
        self._target.looks += 1
        return self._target.position

    def claim(self, context: ConsumeContext, source: Any) -> Position:
        return self._target.commit("claim", context.position.seq + 1, context, Watermark(), self._target.rows)

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        if retriever.data_type is DataType.TAIL:
            changed: Any = retriever.changes(context.row.spec.consumer.key).frame
            rows = {i: v for i, v in {**self._target.rows, **changed}.items() if v is not None}
        else:
            snapshot: Any = retriever.snapshot
            rows = dict(snapshot)
        position = self._target.commit(retriever.data_type.value, retriever.seq, context, retriever.to, rows)
        return Consumed(position, len(rows), 0)

    def go_on_from(self, context: ConsumeContext) -> Position | None:
        at, target = context.position, self._target
        if not target.takes_empty_commits:
            return None
        return target.commit("takeover", at.seq + 1, context, at.watermark, target.rows, at.sources)

    def tidy(self) -> None:
        self._target.tidied()


class FakeCheck(AdoptingCheck):
    """A target holds what it should where its rows are the source's."""

    def __init__(self, target: FakeTarget) -> None:
        self._target = target

    @contextmanager
    def compare(self, context: ConsumeContext, source: Any) -> Iterator[Compared]:
        if self._target.rows_gone:
            raise ChangesUnavailableError("the source's files are gone")
        held = self._target.rows
        said = Comparison(
            rows_source=len(source),
            rows_target=len(held),
            missing=len(source.keys() - held.keys()),
            extra=len(held.keys() - source.keys()),
            different=sum(source[i] != held[i] for i in source.keys() & held.keys()),
            shared=self._target.shared,
        )
        yield Compared(said, source)

    def repair(self, context: ConsumeContext, compared: Compared, watermark: Watermark) -> Consumed:
        rows: Any = compared.repair
        done = self._target.commit("repair", context.position.seq + 1, context, watermark, dict(rows))
        return Consumed(done, 1, 0)

    def adopt(self, context: ConsumeContext, watermark: Watermark) -> Position:
        return self._target.commit("adopt", context.position.seq + 1, context, watermark, self._target.rows)


class FakeKind(ConsumerKind):
    """One target for each path. `refusals` are raised by `validate`, by target.

    `archives`: targets that hold more than their source.
    """

    name = "replica"

    def __init__(self, needs: Needs | None = None, *, sharded: bool = False) -> None:
        self.needs = needs or Needs()
        self.open_range: Any = self.open if sharded else None
        self.targets: dict[str, FakeTarget] = {}
        self.refusals: dict[str, Exception] = {}
        self.validated: list[str] = []
        self.archives: set[str] = set()

    def target(self, path: str) -> FakeTarget:
        return self.targets.setdefault(path, FakeTarget())

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        self.validated.append(spec.target)
        if refusal := self.refusals.get(spec.target):
            raise copy(refusal)

    def refuse_occupied(self, spec: ConsumerSpec, catalog: Catalog) -> None:
        if spec.target in self.archives:
            raise InvalidRequest("holds rows already", field="spec.iteration.consumer.target")

    @property
    def adopting(self) -> FakeKind:
        return self

    def validate_adoption(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        catalog.describe(spec.target)
        self.validate(spec, source, catalog)

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        return wanted_columns(spec, source)

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> FakeConsumer:
        return FakeConsumer(self.target(row.spec.consumer.target))

    def check(self, row: JobRow, environment: ConsumerEnvironment) -> FakeCheck:
        return FakeCheck(self.target(row.spec.consumer.target))


def fake_ports(
    source: FakeSource,
    kinds: Callable[[str], ConsumerKind],
    engine: FakeEngine | None = None,
    failpoints: Failpoints | None = None,
    clock: Clock | None = None,
    epoch: int = 7,
    retained: RetainedCommits | None = None,
    require_places: Callable[[JobRow], None] = ANYWHERE.require_job,
    deaths: JobDeaths = NO_DEATHS,
    holds: RetentionHold | None = None,
    tracer: Tracer = NO_TRACER,
) -> IterationPorts:
    """Consumers of fakes open no sinks: their environment holds none."""
    environment = cast(ConsumerEnvironment, None)
    return IterationPorts(
        engine or FakeEngine(),
        source,
        kinds,
        environment,
        clock or FakeClock(),
        failpoints or ScriptedFailpoints(),
        lambda: epoch,
        retained=retained or NothingRetained(),
        require_places=require_places,
        deaths=deaths,
        holds=HoldPlacer(holds or NothingHeld()),
        tracer=tracer,
    )
