"""One job's part in an iteration, before it is carried out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from iscp.core.job.iteration import ChangeDetail, DataType
from iscp.core.job.job_row import JobRow
from iscp.core.job.logged_jobs import logged_job
from iscp.core.job.registration_id import superseded
from iscp.core.values.watermark import Position, later
from iscp.ports.consumer import Consumer, ConsumerKind

log = logging.getLogger(__name__)
Netted = tuple[tuple[str, ...], tuple[str, ...], bool, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class JobRun:
    """One job's part: the position of its sink, and what it therefore needs.

    `takeover` means the same as in RangePosition. `whole`: the part is for all of the row's range, and not for a piece
    that lags.
    """

    row: JobRow
    kind: ConsumerKind
    consumer: Consumer
    position: Position
    takeover: Mapping[str, str | None] = field(default_factory=dict)
    whole: bool = True

    @property
    def data_type(self) -> DataType:
        if self.position.job_id != self.row.job_id or self.position.watermark.version < 0:
            return DataType.SNAPSHOT
        return DataType.DIFFERENCE if self.position.void else DataType.TAIL


def log_rebuild(job_run: JobRun, table_uri: str) -> str:
    """Log that the target of a job that was built is rebuilt, and return why.

    Return an empty text if it is not rebuilt, or is built for the first time.
    """
    if job_run.data_type is not DataType.SNAPSHOT or job_run.row.watermark.version < 0:
        return ""
    why = job_run.position.void or "it holds nothing of this job's"
    log.warning("target.rebuilt", extra=logged_job(job_run.row, table_uri) | {"reason": why})
    return why


def reconciled(job_run: JobRun) -> JobRun:
    """Return the job with the position that it goes on from, in view of what the job log knows.

    Raises Superseded if the sink is a later registration's.
    """
    row, position = job_run.row, job_run.position
    if position.job_id > row.job_id:
        raise superseded("the target", position.job_id)
    ours = position.job_id == row.job_id and not position.void and position.watermark.version >= 0
    if ours and position.seq == row.seq:
        # The sink got nothing of versions that passed without a row; there may be any number of them.
        position = replace(position, watermark=later(position.watermark, row.watermark))
    # A target that is gone says nothing: its seq goes on from what the job log knows.
    return replace(job_run, position=replace(position, seq=max(position.seq, row.seq)))


def netted(job_run: JobRun) -> Netted | None:
    """Return how the job's changes are netted, or None if it takes every change."""
    needs, spec = job_run.kind.needs, job_run.row.spec.consumer
    if needs.changes is not ChangeDetail.NET:
        return None
    return spec.key, job_run.row.conditions, needs.stamped, () if spec.key else spec.columns
