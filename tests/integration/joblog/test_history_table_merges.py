"""The history's files are merged, however often the owner changes who appends to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.delta.joblog.delta_job_log import SMALL_FILES_MAX, HistoryTable, small_files
from iscp.model.job.iteration import HistoryEntry
from iscp.system.threads import SystemClock

APPENDS_OF_AN_OWNER = 60
OWNERS = 5


def entry(seq: int, end_at_s: float) -> HistoryEntry:
    ends = ("default", "t-1", "copy", "job-1", seq, seq - 1, seq, end_at_s - 1.0, end_at_s, end_at_s - 2.0)
    return HistoryEntry(*ends, error_code=0, error_msg="", rows=1, bytes=1, data_type="tail", node_id="n-1")


@pytest.mark.slow
def test_files_are_merged_though_no_owner_lasts_for_so_many_appends(tmp_path: Path) -> None:
    uri, clock, seq = str(tmp_path / "iscp_history"), SystemClock(), 0
    counts = list[int]()
    for _ in range(OWNERS):
        table = HistoryTable(uri, clock)
        for _ in range(APPENDS_OF_AN_OWNER):
            seq += 1
            table.append([entry(seq, clock.now_s())])
        counts.append(small_files(DeltaTable(uri)))
    # 60, 120, 180; of the fourth owner's appends the twentieth makes the 200th file, which are then one.
    assert counts == [60, 120, 180, 41, 101]
    assert max(counts) < SMALL_FILES_MAX < APPENDS_OF_AN_OWNER * OWNERS
    found = HistoryTable(uri, clock).read("job-1", 1_000)
    assert [each.seq for each in found] == list(range(seq, 0, -1))
