"""Tables that are split: a sink with a record for each range of keys, and what a run does with it.

The records, how a range's place follows from them, and what a commit compares are the real ones. What the sink holds
is kept key by key, for as many keys as there may be ranges: each stands where the last commit left it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from iscp.engine.apply_run import IterationRetriever
from iscp.engine.iteration_ports import JobRun, applied, reconciled, unchanged
from iscp.engine.range_staging import RangePosition, read_position
from iscp.model.job.iteration import DataType, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.job.watermark_record import Piece, WatermarkRecord, parse_record, record_key
from iscp.model.rows import key_ranges
from iscp.model.values.errors import Conflict, ErrorCode, Superseded
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import NOTHING_APPLIED, Position, Watermark, later
from iscp.ports.consumer import Consumed, Needs
from iscp.ports.source import SourceRange
from tests.simulation.engine import Run, failed
from tests.simulation.violation import expect

KEYS = range(key_ranges.RANGES_MAX)

_KIND: Any = SimpleNamespace(needs=Needs(), sharded=True)
_PORTS: Any = SimpleNamespace(engine=None, failpoints=SimpleNamespace(reach=lambda name: None))
_ASKED_BEFORE: Any = SimpleNamespace(check=lambda: None)


class RangedSink:
    """`texts` are its records. `content`, `registrations`: of each key, how far it has come and for which job."""

    def __init__(self, key: JobKey) -> None:
        self.name = f"{key.table_id}.{key.job_name}"
        self.texts: dict[str, str] = {}
        self.content = [NOTHING_APPLIED for _ in KEYS]
        self.registrations = ["" for _ in KEYS]
        self.job_ids = ["" for _ in KEYS]
        self.refused = 0

    def records(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        return {key: self.texts.get(key) for key in keys}

    def land(self, work: JobRun, record: WatermarkRecord, kind: DataType) -> bool:
        """One transaction, in which the real retriever puts its record; whether it was taken."""
        changed: dict[str, str] = {}
        txn: Any = SimpleNamespace(get=self.texts.get, put=changed.__setitem__)
        try:
            self.put(work, IterationRetriever(kind, work, record, _PORTS, _ASKED_BEFORE), txn)
        except Conflict:
            self.refused += 1
            return False
        self.texts.update(changed)
        self._apply(work.row, record, kind)
        return True

    def put(self, work: JobRun, retriever: IterationRetriever, txn: Any) -> None:
        """Raises Conflict."""
        retriever.update_watermark(txn)

    def _apply(self, row: JobRow, record: WatermarkRecord, kind: DataType) -> None:
        for key in keys_of(row.key.range_id):
            former = self.job_ids[key]
            expect(row.job_id >= former, "{} of {} lands in {} after {} began", record, row.job_id, self.name, former)
            if kind is DataType.TAIL:
                at, registration = self.content[key], self.registrations[key]
                expect(record.from_version == at, "{} leaves a gap or doubles: {} is at {}", record, self.name, at)
                expect(registration == row.registration, "{} goes on from rows of {}", record, registration)
            self.content[key] = record.watermark.version
            self.registrations[key], self.job_ids[key] = row.registration, row.job_id


class RangeOfSink:
    """What the checks see of a row's range: as `Sink`. The row's, where all its keys are of its registration."""

    def __init__(self, sink: RangedSink, row: JobRow) -> None:
        keys = keys_of(row.key.range_id)
        text = sink.texts.get(record_key(row.key, row.spec.consumer.target))
        record = parse_record(text) if text else None
        self.name = f"{sink.name}#{row.key.range_id}"
        self.seq = record.seq if record is not None and record.job_id == row.job_id else row.seq
        self.job_id = row.job_id if {sink.registrations[key] for key in keys} == {row.registration} else ""
        self.content = min(sink.content[key] for key in keys)


def keys_of(range_id: int) -> range:
    return key_ranges.parts(range_id, key_ranges.RANGES_MAX)


class RangedRun(Run):
    """As `_open_run` of `iscp/engine/applier.py` goes on from where the sink's records say."""

    _reached: dict[int, Watermark]

    def on_row(self, row: JobRow) -> None:
        self._reached = {}
        self._go_on(row)

    def _go_on(self, row: JobRow) -> None:
        sink = self._world.ranged_sink(row.key)
        consumer: Any = sink
        try:
            found = read_position(row, consumer, self._reached)
            if (part := found.lagging(self._reached)) is not None:
                self._catch_up(row, sink, part, found)
            elif found.apart:
                position = replace(found.position, job_id=row.job_id)
                self._settle(unchanged(row, position, _span(row, later(row.watermark, position.watermark))))
            else:
                self._apply_whole(row, sink, reconciled(JobRun(row, _KIND, consumer, found.position, found.takeover)))
        except Superseded:
            self._settle(failed(row, None, ErrorCode.SUPERSEDED))

    def _apply_whole(self, row: JobRow, sink: RangedSink, work: JobRun) -> None:
        newest, to = self._world.sources[row.key.table_id], self.iteration.to_version
        to, kind = newest if to is None else min(to, newest), work.data_type
        since = work.position.watermark.version if kind is DataType.TAIL else NOTHING_APPLIED
        if to <= since:
            self._settle(unchanged(row, work.position, _span(row, work.position.watermark)))
            return
        record = self._record(work, since, to)

        def landed(taken: bool) -> None:
            if not taken:
                self.conflict(row)
            else:
                self._settle(self._told(row, record, kind), self.committed)

        self._work(lambda: self.commit_by(row, sink.name, lambda: sink.land(work, record, kind), landed))

    def _catch_up(self, row: JobRow, sink: RangedSink, part: Piece, found: RangePosition) -> None:
        """One part of a merged range, up to where all its parts can go on together."""
        of_part, record = row._replace(key=row.key.of_range(part.range_id)), part.record
        consumer: Any = sink
        seq = max(found.position.seq, row.seq)
        position = Position(seq, record.watermark, row.job_id, record.source_id)
        work = JobRun(of_part, _KIND, consumer, position, found.takeover, whole=False)
        since, to = record.watermark.version, min(found.goal, self._world.sources[row.key.table_id])
        if to <= since:
            self._reached[part.range_id] = record.watermark
            self._go_on(row)
            return
        ours = self._record(work, since, to)

        def landed(taken: bool) -> None:
            if not taken:
                self.conflict(row)
            else:
                self._reached[part.range_id] = ours.watermark
                self._go_on(row)

        self._work(lambda: self.commit_by(row, sink.name, lambda: sink.land(work, ours, DataType.TAIL), landed))

    def _record(self, work: JobRun, since: int, to: int) -> WatermarkRecord:
        row, world = work.row, self._world
        return WatermarkRecord(
            seq=work.position.seq + 1,
            watermark=Watermark(to, world.committed_s(row.key.table_id, to)),
            job_id=row.job_id,
            source_id=row.key.table_id,
            from_version=since,
            epoch=self.iteration.epoch,
            attempt=uuid.UUID(int=world.number()).hex,
            origin=row.origin,
        )

    def _told(self, row: JobRow, record: WatermarkRecord, kind: DataType) -> JobOutcome:
        return applied(row, Consumed(record.position, 1, 100), kind, record.from_version, "")


def _span(row: JobRow, to: Watermark) -> SourceRange:
    return SourceRange(to.version, to, row.key.table_id)
