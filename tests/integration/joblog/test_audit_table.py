"""The table of who changed what, on real files: made by several nodes at once, appended to by all, read by admins."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from iscp.delta.joblog.delta_job_log import AUDIT_TABLE, ROWS_AT_ONCE, SMALL_FILES_MAX, AuditTable
from iscp.model.access.authorization import AuditEntry, AuditQuery
from iscp.model.values.errors import InvalidRequest, StorageError
from iscp.server.access.known_callers import AuditWriter
from tests.fakes.waiting import until

ENTRY = AuditEntry(
    1_700_000_000.5,
    "n0",
    "acme",
    "acme",
    "editor",
    "id",
    "token",
    "ipv4:1.1.1.1:1",
    "/iscp.wire.v1.Admin/Pause",
    "{}",
    "r",
    "OK",
    0,
)
NODES, APPENDS = 6, 15


def test_what_was_appended_is_read_newest_first_and_filtered(tmp_path: Path) -> None:
    table = AuditTable(str(tmp_path))
    assert table.read(AuditQuery()) == []
    other = replace(ENTRY, account="other", at_s=ENTRY.at_s + 1)
    late = replace(ENTRY, at_s=ENTRY.at_s + 2, method="/iscp.wire.v1.Admin/Register", error_code=7, result="NOT_FOUND")
    table.append([ENTRY, other])
    table.append([late])
    assert table.read(AuditQuery()) == [late, other, ENTRY]
    assert table.read(AuditQuery(account="acme")) == [late, ENTRY]
    assert table.read(AuditQuery(since_s=other.at_s)) == [late, other]
    assert table.read(AuditQuery(method="Register")) == [late]
    assert table.read(AuditQuery(method="egister")) == []
    assert table.read(AuditQuery(limit=1)) == [late]


def test_of_a_large_table_few_rows_are_in_memory_at_a_time(tmp_path: Path) -> None:
    table, what, count = AuditTable(str(tmp_path)), "x" * 2_000, 16 * ROWS_AT_ONCE
    for first in range(0, count, count // 4):
        many = [
            replace(ENTRY, at_s=float(number * 7_919 % count), request_id=str(number), what=f"{what}{number}")
            for number in range(first, first + count // 4)
        ]
        table.append(many)
    DeltaTable(str(tmp_path / AUDIT_TABLE)).optimize.compact()
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        found = table.read(AuditQuery(limit=1_000))
    finally:
        pa.set_memory_pool(before)
    assert [each.at_s for each in found] == [float(number) for number in range(count - 1, count - 1_001, -1)]
    assert 0 < (pool.max_memory() or 0) < len(what) * count / 2


@pytest.mark.further  # each time: owners that write at once in test_delta_job_log.py
def test_nodes_that_make_the_table_at_once_and_append_to_it_lose_nothing(tmp_path: Path) -> None:
    begin, faults = threading.Barrier(NODES), list[Exception]()

    def run(node: int) -> None:
        table = AuditTable(str(tmp_path))
        begin.wait()
        try:
            for number in range(APPENDS):
                table.append([replace(ENTRY, node_id=f"n{node}", request_id=f"{node}-{number}")])
        except Exception as error:  # noqa: BLE001  (shown below)
            faults.append(error)

    threads = [threading.Thread(target=run, args=(node,)) for node in range(NODES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    found = sorted(each.request_id for each in AuditTable(str(tmp_path)).read(AuditQuery()))
    assert found == sorted(f"{node}-{number}" for node in range(NODES) for number in range(APPENDS))


def test_small_files_are_merged_and_nothing_is_deleted(tmp_path: Path) -> None:
    table = AuditTable(str(tmp_path))
    for number in range(SMALL_FILES_MAX):
        table.append([replace(ENTRY, request_id=str(number))])
    assert len(DeltaTable(str(tmp_path / AUDIT_TABLE)).file_uris()) == 1
    assert len(table.read(AuditQuery(limit=1_000))) == SMALL_FILES_MAX


def test_a_directory_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    """It may be a disk that is not mounted; the writer keeps what it has, and goes on when it is back."""
    home = tmp_path / "log"
    home.mkdir()
    table, moved = AuditTable(str(home)), tmp_path / "moved"
    writer = AuditWriter(table)
    writer.start()
    writer.add([ENTRY])
    until(lambda: table.read(AuditQuery()) == [ENTRY], within_s=20.0)
    home.rename(moved)
    with pytest.raises(StorageError):
        AuditTable(str(home)).append([ENTRY])
    writer.add([replace(ENTRY, request_id="late")])
    until(lambda: writer.counters()["audit_waiting"] == 1, within_s=5.0)
    assert not home.exists()
    moved.rename(home)
    until(lambda: len(table.read(AuditQuery())) == 2, within_s=20.0)
    writer.close()
    assert writer.lost == 0


def test_what_the_table_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    table = AuditTable(str(tmp_path))
    for spoilt in (replace(ENTRY, at_s=1e18), replace(ENTRY, what="\udcff")):
        with pytest.raises(InvalidRequest):
            table.append([ENTRY, spoilt])
    assert not (tmp_path / AUDIT_TABLE).exists()
