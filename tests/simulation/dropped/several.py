"""What keeps jobs right that read several tables, each dropped."""

from __future__ import annotations

from dataclasses import replace

from iscp.model.job.iteration import DataType, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.values.watermark import Position
from iscp.ports.consumer import Consumed
from iscp.schedule.lag import FurtherAnswer
from iscp.schedule.schedule_events import Probe
from tests.simulation.engine import Engine, Run


class ProbesItsOwnTable(Engine):
    """Further tables are not probed."""

    def further(self, probe: Probe) -> tuple[FurtherAnswer, ...]:
        return ()


class BelievesRecordedMarks(Run):
    """Goes on from the versions that it was dispatched with, as far as its own table is at that of the sink."""

    def stand(self, row: JobRow) -> Position:
        position = super().stand(row)
        alike = position.job_id == row.job_id and position.watermark.version == row.watermark.version
        return replace(position, sources=row.sources) if alike and row.sources else position


class KeepsMarksToItself(Run):
    """Does not report how far each table was read."""

    def outcome(self, row: JobRow, consumed: Consumed, data_type: DataType, since: int) -> JobOutcome:
        return replace(super().outcome(row, consumed, data_type, since), sources={})
