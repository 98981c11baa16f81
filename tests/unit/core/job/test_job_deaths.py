"""What Python's fault handler leaves of a crash, and whose work it was."""

from __future__ import annotations

import pytest

from iscp.core.job.job_deaths import (
    ACCOUNT_DEATHS_S,
    AtWork,
    Crash,
    Deaths,
    counted_together,
    deaths_of_account,
    parse_crash,
    suspects,
)
from iscp.core.job.job_row import JobRow, JobStatus
from iscp.core.values.errors import ErrorCode
from iscp.core.values.ids import JobKey

OF_THREAD = """Fatal Python error: Aborted

Thread 0x00007f11c9ffb6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 995 in _bootstrap

Current thread 0x00007f11ca7fc6c0 (most recent call first):
  File "/site/deltalake/table.py", line 2090 in execute
  File "/site/iscp/adapters/delta/sink/arrow_write.py", line 70 in merge

Thread 0x00007f11d0000000 (most recent call first):
  File "/site/iscp/bootstrap/run.py", line 61 in run_node

Extension modules: pyarrow.lib (total: 1)
"""
OF_LIBRARY = "Fatal Python error: Segmentation fault\n\nThread 0x00007f11c9ffb6c0 (most recent call first):\n  File x\n"
OF_POOL = """Fatal Python error: Bus error

Current thread 0x00000000000000ff [iscp-row-search] (most recent call first):
  File "/site/pyarrow/parquet/core.py", line 5 in read
  File "/usr/lib/python3.11/concurrent/futures/thread.py", line 58 in run
"""
OF_CALL = OF_POOL + '  File "/site/grpc/_server.py", line 552 in _call_behavior\n'
ORDERS = AtWork(0x7F11CA7FC6C0, "/lake/orders", {"j1": ("acme", "copy"), "j2": ("acme", "view")})
OTHERS = AtWork(0x7F11C9FFB6C0, "/lake/others", {"j3": ("other", "copy")})


def test_a_crash_is_that_of_the_thread_that_it_was_in() -> None:
    crash = parse_crash(OF_THREAD)
    assert crash is not None
    assert (crash.signal, crash.thread, crash.helps) == ("Aborted", ORDERS.thread, False)
    assert crash.stack.splitlines()[-1].strip().startswith('File "/site/iscp/adapters/delta/sink/arrow_write.py"')
    assert suspects(crash, [ORDERS, OTHERS]) == [ORDERS]


@pytest.mark.parametrize("dump", [OF_LIBRARY, OF_POOL, "Fatal Python error: Aborted"])
def test_of_a_thread_that_works_for_any_of_them_all_are_suspected(dump: str) -> None:
    crash = parse_crash(dump)
    assert crash is not None
    assert suspects(crash, [ORDERS, OTHERS]) == [ORDERS, OTHERS]


@pytest.mark.parametrize("dump", [OF_THREAD.replace("7f11ca7fc6c0", "7f11d1111111"), OF_CALL])
def test_of_a_thread_that_works_for_no_job_none_is(dump: str) -> None:
    crash = parse_crash(dump)
    assert crash is not None
    assert suspects(crash, [ORDERS, OTHERS]) == []


@pytest.mark.parametrize("dump", ["", "\n", "Killed", "Thread 0x1 (most recent call first):\n"])
def test_what_is_no_crash_leaves_nothing(dump: str) -> None:
    assert parse_crash(dump) is None


def test_two_in_a_row_are_too_many() -> None:
    assert [Deaths(count).too_many for count in (0, 1, 2, 3)] == [False, False, True, True]
    said = Deaths(2, 1_700_000_000.0, "Aborted").described
    assert said == "2 times in a row, the last time at 2023-11-14T22:13:20+00:00 (Aborted)"
    assert Crash("Aborted").thread is None


def row(error_code: int, end_at_s: float) -> JobRow:
    status = JobStatus(end_at_s=end_at_s, error_code=error_code)
    return JobRow(JobKey("acme", "t1", "j"), "j", "{}", "/lake/t1", "/lake/t1", status_json=status.to_json())


def test_deaths_at_other_nodes_count_unless_the_job_has_run_well_since_or_was_forgiven() -> None:
    own, elsewhere = Deaths(1, 5.0, "Aborted"), [Deaths(1, 7.0, "Bus error", kills=2), Deaths(forgiven_at_s=9.0)]
    together = counted_together(row(ErrorCode.STORAGE, 8.0), own, elsewhere)
    assert together == Deaths(2, 7.0, "Bus error", kills=2)
    assert counted_together(row(ErrorCode.OK, 6.0), own, elsewhere) == together
    assert counted_together(row(ErrorCode.OK, 8.0), own, elsewhere) == own
    forgiven = Deaths(forgiven_at_s=8.0)
    assert counted_together(row(ErrorCode.NODE_KILLED, 8.0), forgiven, elsewhere) == forgiven
    assert counted_together(row(ErrorCode.NODE_KILLED, 8.0), Deaths(forgiven_at_s=6.0), elsewhere).count == 1


def test_a_death_counts_once_for_an_account_for_a_day_and_a_single_kill_not_at_all() -> None:
    now_s = 2 * ACCOUNT_DEATHS_S
    known = [
        Deaths(1, now_s - 1.0, "Aborted", account="acme"),
        Deaths(2, now_s - 1.0, "Aborted", account="acme"),  # another job that was at work then
        Deaths(1, now_s - 2.0, "Aborted", account="acme"),
        Deaths(1, now_s - 3.0, "Aborted", account="other"),
        Deaths(0, now_s - 4.0, "Killed", kills=1, account="acme"),
        Deaths(0, now_s - 5.0, "Killed", kills=2, account="acme"),
        Deaths(2, now_s - ACCOUNT_DEATHS_S, "Aborted", account="acme"),
    ]
    assert [deaths_of_account(account, known, now_s) for account in ("acme", "other", "third")] == [3, 1, 0]
