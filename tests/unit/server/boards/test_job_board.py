"""The board of one job: why it waits, its iterations as bars, what is wrong with it.

What boards know of a job, whatever its spec and status hold.

Numbers, spans and times as short texts, nonsense included.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from iscp.model.job.iteration import JobMaintenance, MaintenanceFigures, Usage
from iscp.model.job.job_row import Deletion, JobState, JobStatus, Reason
from iscp.model.values.progress import RunProgress
from iscp.model.values.watermark import SourceMark, Watermark
from iscp.server.boards import job_board as shown
from iscp.server.boards.job_board import (
    BAR_UNITS,
    ITERATIONS_MAX,
    SOURCES_MAX,
    SPARK_BARS,
    SPARK_HEIGHT,
    TEXT_CHARS_MAX,
    UNKNOWN_KIND,
    UNKNOWN_TEXT,
    actions_of,
    error_name,
    facts_of,
    job_board,
    sparkline,
    spec_text,
    why_it_waits,
)
from tests.fakes.viewed_cluster import NOW_S, history_entry, job_view

RETRYING = JobStatus(failures=3, retry_at_s=NOW_S + 40)
ENDING = JobStatus(deletion=Deletion.WANTED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"progress": RunProgress("verify", NOW_S - 30, 30.0)}, "It runs: verify, for 30 s"),
        ({"reason": Reason.PAUSED}, "paused"),
        ({"reason": Reason.PAUSED, "status": ENDING}, "Its target is being deleted"),
        ({"reason": Reason.PAUSED, "status": ENDING, "state": JobState.ERROR}, "Its target was not deleted"),
        ({"state": JobState.ERROR}, "has failed"),
        ({"node_id": ""}, "No node has its table"),
        ({"reason": Reason.QUARANTINED}, "tried rarely"),
        ({"reason": Reason.RETRYING, "status": RETRYING}, "3 iterations failed; it is tried again in 40 s"),
        ({"reason": Reason.RETRYING}, "Its last iteration failed; it is tried again."),
        ({"reason": Reason.QUOTA}, "its account has used".capitalize()),
        ({"reason": Reason.BUILDING}, "range by range"),
        ({"state": JobState.RUNNING}, "It runs since"),
        ({"state": JobState.PENDING}, "slot"),
        ({"state": JobState.CANCELED}, "cancelled"),
        ({"source_version": 9}, "2 versions are not applied yet"),
        ({"status": JobStatus(waits_for="b (of t)", waits_until_s=NOW_S + 5)}, "for b (of t), and runs in 5.0 s"),
        ({"status": JobStatus(due_at_s=NOW_S + 20)}, "in 20 s, as its rows depend on the time"),
        ({"applied_version": -1}, "not run yet"),
        ({}, "next commit of its source"),
    ],
)
def test_it_says_why_it_waits(changes: dict[str, Any], words: str) -> None:
    assert words in why_it_waits(job_view(**changes), NOW_S)


def test_bars_have_the_parts_in_their_order_and_the_rest() -> None:
    parts = {"commit": 1.0, "read": 2.0, "compute": 0.5, "wait": 4.0, "merge": 0.5}
    long = history_entry(5, start_at_s=NOW_S, end_at_s=NOW_S + 4, parts_s=parts)
    short = history_entry(4, start_at_s=NOW_S, end_at_s=NOW_S + 2)
    first, second = job_board(job_view(), [long, short], NOW_S).bars
    assert [part.name for part in first.parts] == ["wait", "read", "compute", "commit", "other"]
    assert [part.width for part in first.parts] == [500, 250, 62, 125, 62]
    assert [part.begin for part in first.parts] == [0, 500, 750, 812, 937]
    # Nothing is known of its parts: one bar, in the scale of the longest.
    assert [(part.name, part.width) for part in second.parts] == [("other", BAR_UNITS // 4)]


def test_bars_are_drawn_of_what_an_iteration_cost() -> None:
    usage = Usage(wait_s=4.0, read_s=2.0, compute_s=0.5, commit_s=1.0, rows_read=1234, retries=2, conflicts=1)
    entry = history_entry(5, start_at_s=NOW_S, end_at_s=NOW_S + 4, usage=usage, parts_s={"merge": 3.0})
    (bar,) = job_board(job_view(), [entry], NOW_S).bars
    # It waits before it begins: half a second of the four is nobody's.
    assert [(part.name, part.seconds) for part in bar.parts] == [
        *(("wait", 4.0), ("read", 2.0), ("compute", 0.5), ("commit", 1.0), ("other", 0.5))
    ]
    assert (bar.rows_in, bar.trials, bar.took) == ("1,234", "2 retries, 1 conflicts", "4.0 s")


def test_bars_of_nonsense_stay_in_their_drawing() -> None:
    odd = [
        history_entry(1, parts_s={"read": -5.0, "wait": float("nan")}),
        history_entry(2, start_at_s=NOW_S, end_at_s=NOW_S - 50),
        history_entry(3, parts_s={"read": float("inf")}),
    ]
    for bar in job_board(job_view(), odd, NOW_S).bars:
        assert all(0 <= part.begin <= BAR_UNITS and 0 <= part.width <= BAR_UNITS for part in bar.parts)


def test_iterations_say_strategy_reason_error_and_lag() -> None:
    entry = history_entry(
        7, error_code=10_001, error_msg="no table", data_type="incremental", reason="few rows", rows_in=99
    )
    (bar,) = job_board(job_view(), [entry], NOW_S).bars
    assert (bar.strategy, bar.reason, bar.rows_in, bar.lag) == ("incremental", "few rows", "99", "5.0 s")
    assert (bar.error, bar.error_msg, bar.took, bar.range) == ("TABLE_NOT_FOUND", "no table", "2.0 s", "7 → 8")
    assert len(job_board(job_view(), [entry] * 99, NOW_S).bars) == ITERATIONS_MAX


def test_faults_say_what_to_do() -> None:
    status = JobStatus(error_code=9, error_msg="disk", warning="careful", dead_letters=12, doubted_at_s=NOW_S - 9)
    upkeep = JobMaintenance(refresh=MaintenanceFigures(completed=2, failed=1, error_code=10, error_msg="spark"))
    board = job_board(job_view(status=status, upkeep=upkeep, figures_fault="gone"), [], NOW_S)
    assert [fault.what for fault in board.faults] == [
        *("STORAGE", "warning", "dead letters", "in doubt", "refresh: ENGINE", "figures")
    ]
    assert "/lake/copies/c0_dead_letter" in board.faults[2].remedy
    assert board.figures == {"refreshes": "2 done, 1 failed"}


def test_progress_is_a_share_where_it_is_known() -> None:
    def progress_share(**figures: int) -> float:
        return job_board(job_view(progress=RunProgress("apply", 1.0, 2.0, **figures)), [], NOW_S).progress_share

    assert progress_share(rows_read=5, rows_total=20) == 0.25
    assert progress_share(bytes_read=50, bytes_total=100) == 0.5
    assert progress_share(rows_read=5) == 0.0


def test_positions_and_the_query_of_a_view() -> None:
    options = {"sql": "select * from a", "tables": {"a": "/lake/t0"}}
    spec = {"iteration": {"consumer": {"kind": "view", "target": "/lake/v", "options": options}}}
    mark = SourceMark("id-9", Watermark(3, NOW_S))
    board = job_board(job_view(0, spec, status=JobStatus(sources={"/lake/b": mark})), [], NOW_S)
    assert board.sql == "select * from a"
    assert [(each.uri, each.version) for each in board.positions] == [("/lake/b", 3)]
    assert '"sql": "select * from a"' in board.spec


def test_actions_are_those_that_make_sense() -> None:
    assert actions_of(job_view()) == ("pause", "resync")
    assert actions_of(job_view(reason=Reason.PAUSED)) == ("resume", "resync")
    assert actions_of(job_view(state=JobState.ERROR))[0] == "retry"


def test_a_sparkline_goes_from_old_to_new() -> None:
    history = [history_entry(seq, end_at_s=NOW_S, source_commit_at_s=NOW_S - seq) for seq in range(30, 0, -1)]
    spark = sparkline(history)
    assert len(spark.bars) == SPARK_BARS
    assert spark.bars[-1] == (4 * (SPARK_BARS - 1), SPARK_HEIGHT, False)  # seq 30 had the greatest lag
    assert spark.bars[0][1] < SPARK_HEIGHT
    assert "at most 30 s" in spark.text
    assert sparkline([]).text == "no iterations yet"
    assert sparkline([history_entry(error_code=9, source_commit_at_s=0.0)]).bars == [(0, 1, True)]


def test_the_spec_says_kind_target_and_target_lag() -> None:
    facts = facts_of(job_view(3))
    assert (facts.kind, facts.target, facts.target_lag_s) == ("replica", "/lake/copies/c3", 60.0)
    assert facts.sources == ("/lake/t3",)
    assert facts.title == "/lake/copies/c3"


def test_a_view_reads_the_tables_of_its_query_and_those_of_its_status() -> None:
    options = {"sql": "select 1", "tables": {"a": "/lake/t0", "b": "/lake/other"}}
    spec = {"iteration": {"consumer": {"kind": "view", "target": "/lake/v", "options": options}}}
    mark = SourceMark("id-9", Watermark(3, 1.0))
    facts = facts_of(job_view(0, spec, status=JobStatus(sources={"/lake/third": mark})))
    assert facts.sources == ("/lake/t0", "/lake/other", "/lake/third")
    assert facts.target_lag_s == -1.0


@pytest.mark.parametrize(
    "spec_json",
    ["", "{", "[]", "null", '{"iteration": 5}', '{"iteration": {"consumer": {"kind": 7, "target": {}}}}', "[" * 9999],
)
def test_a_damaged_spec_hides_no_job(spec_json: str) -> None:
    facts = facts_of(job_view(1, spec_json=spec_json))
    assert facts.kind in (UNKNOWN_KIND, "7")
    assert facts.target == ""
    assert facts.title == "copy1"


def test_what_a_tenant_writes_is_bounded() -> None:
    tables = {str(number): f"/lake/{number}" for number in range(1000)}
    spec = {"iteration": {"consumer": {"kind": "k" * 9999, "options": {"tables": tables}}}}
    facts = facts_of(job_view(0, spec, status=JobStatus(error_code=1, error_msg="e" * 9999, warning="w" * 9999)))
    assert {len(facts.kind), len(facts.error_msg), len(facts.warning)} == {TEXT_CHARS_MAX}
    assert len(facts.sources) == SOURCES_MAX


def test_errors_of_later_versions_are_numbers() -> None:
    assert error_name(10_001) == "TABLE_NOT_FOUND"
    assert error_name(77_777) == "error 77777"
    assert spec_text('{"a": 1}') == '{\n  "a": 1\n}'
    assert spec_text("{") == "{"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-1.0, UNKNOWN_TEXT), (math.nan, UNKNOWN_TEXT), (math.inf, UNKNOWN_TEXT), (0.0, "0 s"), (0.0004, "1 ms")),
        *((0.25, "250 ms"), (1.5, "1.5 s"), (59.6, "60 s"), (119.0, "119 s"), (180.0, "3 min")),
        *((7_199.0, "120 min"), (7_200.0, "2 h"), (86_400.0, "24 h"), (172_800.0, "2 d")),
    ],
)
def test_spans_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert shown.span(seconds) == text


def test_times_are_ages_and_moments() -> None:
    assert shown.age(0.0, 100.0) == UNKNOWN_TEXT
    assert shown.age(90.0, 100.0) == "10 s ago"
    assert shown.age(105.0, 100.0) == "now"  # of a clock that is ahead
    assert shown.until(130.0, 100.0) == "in 30 s"
    assert shown.until(90.0, 100.0) == "now"
    assert shown.moment(1_800_000_000.0) == "2027-01-15 08:00:00 UTC"
    assert shown.moment(0.0) == shown.moment(1e30) == shown.moment(math.inf) == UNKNOWN_TEXT


def test_counts_and_sizes() -> None:
    assert shown.count(1234567) == "1,234,567"
    assert shown.count(-1) == shown.size(-1) == shown.size(math.nan) == UNKNOWN_TEXT
    assert [shown.size(each) for each in (0, 1023, 1536, 5 * 1024**3, 2.0**70)] == [
        *("0 B", "1023 B", "1.5 KiB", "5.0 GiB", "1048576 PiB")
    ]
    assert shown.version(-1) == UNKNOWN_TEXT
    assert shown.version(0) == "0"
    assert (shown.share(1, 0), shown.share(3, 2), shown.share(-1, 2), shown.share(1, 4)) == (0.0, 1.0, 0.0, 0.25)


def test_long_texts_are_cut() -> None:
    assert shown.short("abcdef", 4) == "abc…"
    assert shown.short("abcd", 4) == "abcd"
    assert shown.last_part("s3://bucket/lake/orders/") == "orders"
    assert shown.last_part("db.orders") == "db.orders"
    assert shown.last_part("/" + "x" * 70 + "end", 10) == "…xxxxxxend"
    assert shown.last_part("/") == "/"
