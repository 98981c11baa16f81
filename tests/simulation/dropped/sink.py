"""The fences of the sink and of an iteration's commits, each dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from iscp.engine.apply_run import IterationRetriever
from iscp.engine.iteration_ports import JobRun
from iscp.model.job.iteration import DataType, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.job.watermark_record import record_key
from iscp.model.values.errors import ErrorCode
from iscp.model.values.watermark import Position, Watermark
from iscp.ports.consumer import Consumed
from tests.simulation.engine import Run
from tests.simulation.ranged import RangedSink
from tests.simulation.sources import Commit, Kind, Sink


class BlindSink(Sink):
    """Takes whatever comes, as the next."""

    def land(self, commit: Commit) -> bool:
        return super().land(replace(commit, seq=self.seq + 1))


class Unguarded(Run):
    """Commits without a check of the lease."""

    def guard(self) -> ErrorCode:
        code = super().guard()
        return ErrorCode.OK if code is ErrorCode.LEASE_LOST else code


class GuardsAnyEpoch(Run):
    """What was begun under a former epoch passes once the node has registered again."""

    def guard(self) -> ErrorCode:
        code = super().guard()
        confirmed = self._process.registration.confirmed
        return ErrorCode.OK if code is ErrorCode.LEASE_LOST and confirmed else code


class Uncancelled(Run):
    """What was to end commits all the same."""

    def guard(self) -> ErrorCode:
        return ErrorCode.OK if self._process.registration.confirms(self.iteration.epoch) else ErrorCode.LEASE_LOST


class ClaimsNothing(Run):
    """A new registration begins without using up a seq."""

    def claim(self, row: JobRow, commit: Commit) -> None:
        sink = self._world.sink(row.key)
        sink.begun = max(sink.begun, row.job_id)
        newest = self._world.sources[row.key.table_id]
        self._work(lambda: self.commit(row, replace(commit, to=newest, kind=Kind.SNAPSHOT)))


class BelievesTheDispatch(Run):
    """Goes on from the watermark that it was dispatched with."""

    def stand(self, row: JobRow) -> Position:
        position = super().stand(row)
        if position.job_id == row.job_id and row.watermark.version >= 0:
            return replace(position, watermark=Watermark(row.watermark.version, 0.0))
        return position


class BelievesConsumers(Run):
    """What a consumer answers is passed on as it is."""

    def outcome(self, row: JobRow, consumed: Consumed, data_type: DataType, since: int) -> JobOutcome:
        position = consumed.position
        mark, seq = position.watermark, position.seq
        return JobOutcome(row, mark, seq, rows=consumed.rows, data_type=data_type, committed=True)


class BlindRanges(RangedSink):
    """A range's record is put whatever has become of those that it goes on from."""

    def put(self, work: JobRun, retriever: IterationRetriever, txn: Any) -> None:
        txn.put(record_key(work.row.key, work.row.spec.consumer.target), retriever.record.to_json())
