"""What is said of a table to the builder: its newest version and repair, and how far the last of its jobs has come."""

from __future__ import annotations

from iscp.coordination.builds.builder_events import TableSeen
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.core.values.errors import ErrorCode
from iscp.core.values.ids import ShardId
from iscp.core.values.watermark import NOTHING_APPLIED, Watermark
from iscp.runtime.builds.table_news import table_seen
from tests.fakes.owned_jobs import row

NOBODY = TableSeen("t", 9, None, 6)
FAILED = JobStatus(error_code=ErrorCode.INVALID_REQUEST).to_json()


def at(version: int) -> JobRow:
    return row("t", "j")._replace(watermark=Watermark(version, 1.0))


def seen(*rows: JobRow) -> TableSeen:
    found = (2, 8, 6), (3, 9, 0)
    probed = [SourceSeen(ShardId("t", each), version, 1.0, 0.0, (), repair) for each, version, repair in found]
    return table_seen("t", rows, probed)


def test_the_last_of_those_that_tail_counts() -> None:
    assert seen(at(7), at(5), at(NOTHING_APPLIED)) == TableSeen("t", 9, 5, 6, "/tables/j")


def test_who_goes_on_nobody_knows_when_does_not_count() -> None:
    stopped = at(5)._replace(reason=Reason.PAUSED), at(5)._replace(drop_at_s=1.0)
    failed = at(5)._replace(state=JobState.ERROR, status_json=FAILED)
    assert seen(*stopped, failed) == NOBODY


def test_a_table_that_no_node_has_probed_has_no_version() -> None:
    assert table_seen("t", [at(5)], []) == TableSeen("t", -1, 5, 0, "/tables/j")
