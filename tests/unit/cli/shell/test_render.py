"""What people and scripts are shown of jobs, of progress and of the cluster: no unknown number is shown as one.

Rows that a job leaves out, as the command prints them.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cli.shell import render
from iscp.cli.shell.render import show_history, show_left_out, usage_words
from iscp.model.api.api_requests import (
    ClusterView,
    EventView,
    JobName,
    JobView,
    LeftOutRow,
    LeftOutRows,
    NodeView,
    RegisterRequest,
    RegisterResult,
)
from iscp.model.job.iteration import HistoryEntry, JobMaintenance, MaintenanceFigures, Usage
from iscp.model.job.job_row import Deletion, JobState, JobStatus, Reason
from iscp.model.values.progress import UNKNOWN, RunProgress

JOB = JobView(
    "acme",
    "id-t",
    "/t",
    "copy",
    "j1",
    '{"a":1}',
    JobState.ERROR,
    Reason.RETRYING,
    -1,
    0.0,
    7,
    0.0,
    2.5,
    3,
    JobStatus(),
    0.0,
)
RUN = RunProgress("apply", 0.0, 12.0)
NODE = NodeView("n1", 1, "n1:1", 1, "1", "ready", 0, 3, 1)


def output(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (2_500_000, "2.5 MB"),
        (1e12, "1.0 TB"),
        (5e15, "5,000.0 TB"),
    ],
)
def test_a_size_has_the_unit_in_which_it_is_short(count: float, text: str) -> None:
    assert render.size(count) == text


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (render.version(-1), "-"),
        (render.version(0), "0"),
        (render.seconds(-1), "-"),
        (render.seconds(0.04), "0.0 s"),
        (render.moment(0), "-"),
        (render.moment(86_399.9), "1970-01-01 23:59:59Z"),
        (render.lag(replace(JOB, late=True, lag_least_s=2.5)), "2.5 s late"),
        (render.lag(replace(JOB, lag_least_s=2.5)), "2.5 s"),
        (render.lag(JOB), "≤ 2.5 s"),
        (render.lag(replace(JOB, lag_s=-1.0, lag_least_s=-1.0)), "-"),
    ],
)
def test_what_is_not_known_is_a_dash(shown: str, text: str) -> None:
    assert shown == text


@given(
    st.builds(
        replace,
        st.just(RUN),
        **dict.fromkeys((each.name for each in fields(RunProgress)[3:9]), st.sampled_from([0, 7, 12_345_678])),
        **dict.fromkeys((each.name for each in fields(RunProgress)[9:]), st.sampled_from([UNKNOWN, 0, 7, 12_345_678])),
    )
)
def test_of_progress_only_what_was_measured_is_shown(progress: RunProgress) -> None:
    lines = render.progress_lines(progress)
    assert lines[0] == "applying for 12.0 s"
    assert "-1" not in "\n".join(lines)
    assert any("left" in line for line in lines) == (progress.left_s >= 0)
    assert any("/s" in line for line in lines[1:]) <= (progress.rows_per_s >= 0 <= progress.bytes_per_s)


def test_figures_of_one_part_are_in_one_line_and_what_cannot_be_read_says_why() -> None:
    figures = {"rows": 1_200.0, "faults": 2.0, "key.segments": 1.0, "key.fresh_rows": 40.0, "bytes": 2_000.0}
    assert render.figure_lines(replace(JOB, figures=figures)) == [
        "1,200 rows, 2 faults, 2.0 kB",
        "key: 1 segments, 40 fresh rows",
    ]
    assert render.figure_lines(replace(JOB, figures_fault="it hangs")) == ["not known: it hangs"]
    assert render.figure_lines(JOB) == []


def test_rows_that_are_left_out_of_an_index_are_such_as_cannot_be_indexed() -> None:
    job = replace(JOB, status=JobStatus(dead_letters=2))
    assert render.dead_letters(job) == "2 rows share a key"
    assert render.dead_letters(replace(job, figures={"faults": 2.0})) == "2 rows cannot be indexed"
    assert render.dead_letters(JOB) == ""


def test_progress_says_what_is_read_and_written_and_of_how_much() -> None:
    run = replace(
        RUN, tasks=4, tasks_done=1, rows_read=1_000, bytes_read=2_000, rows_per_s=10, bytes_per_s=20, left_s=3
    )
    assert render.progress_lines(replace(run, rows_written=5, rows_total=9, bytes_written=1_500))[1:] == [
        "1 of 4 tasks of Spark that are known so far",
        "1,000 rows, 2.0 kB read, 10 rows/s, 20 bytes/s",
        "5 of 9 rows, 1.5 kB written",
        "about 3.0 s left",
    ]
    assert render.progress_lines(replace(RUN, bytes_total=3_000, rows_total=9))[1:] == ["9 rows, 3.0 kB to be read"]
    assert render.progress_lines(replace(RUN, rows_written=9, rows_total=5))[1] == "9 rows, 0 bytes written"


@pytest.mark.parametrize(
    ("due_s", "failures", "text"),
    [
        (100.0, 1, "at 1970-01-01 00:01:40Z (in 40.0 s), after 1 failure"),
        (60.0, 3, "due now, after 3 failures in a row"),
        (1.0, 2, "due now, after 2 failures in a row"),
    ],
)
def test_a_retry_says_when_it_comes(due_s: float, failures: int, text: str) -> None:
    assert render.next_retry(JobStatus(retry_at_s=due_s, failures=failures), 60.0) == text


@pytest.mark.parametrize(
    ("shard", "table", "subject"),
    [
        ("", "", "n1"),
        ("id", "", "n1 id"),
        ("id", "/t", "n1 /t"),
        ("id/3", "/t", "n1 /t range 3"),
        ("id/3", "", "n1 id/3"),
    ],
)
def test_an_event_names_the_table_and_its_range(shard: str, table: str, subject: str) -> None:
    line = render.event_line(EventView(4, 2, 60.0, "dispatch", "n1", shard, "new", table))
    assert line == f"1970-01-01 00:01:00Z  4.2      dispatch {subject}  new"


@pytest.mark.parametrize(
    ("spec", "shown"), [('{"a":1}', {"a": 1}), ("", {}), ("{", "{"), ("[" * 100_000, "[" * 100_000)]
)
def test_a_job_is_a_row_of_plain_values_though_its_spec_was_damaged(spec: str, shown: object) -> None:
    row = render.job_row(replace(JOB, spec_json=spec))
    assert row["spec"] == shown
    assert (row["state"], row["reason"], row["status"]["from_version"]) == ("error", "retrying", -1)
    assert json.loads(json.dumps(row)).keys() == {each.name for each in fields(JobView)} - {"spec_json"} | {"spec"}


def test_the_queue_of_a_cluster_leaves_out_nodes_that_did_not_answer() -> None:
    silent = replace(NODE, node_id="n2", queue_waiting=-1, queue_running=-1)
    row = render.cluster_row(ClusterView("n1", 1, (NODE, silent), (), 0, -1.0, {"rejected": 2}))
    assert row["queue"] == {"waiting": 3, "running": 1, "rejected": 2}
    assert [each["id"] for each in row["nodes"]] == ["n1", "n2"]


def test_counters_of_a_cluster_have_the_same_order_each_time() -> None:
    for names in (("rejected", "completed", "failed"), ("failed", "rejected", "completed")):
        row = render.cluster_row(ClusterView("n1", 1, (NODE,), (), 0, -1.0, dict.fromkeys(names, 1)))
        assert list(row["queue"]) == ["waiting", "running", "completed", "failed", "rejected"]
    assert row["checkpoint_lag_s"] == -1.0


def test_a_checkpoint_of_a_clock_that_is_ahead_is_not_behind() -> None:
    assert render.checkpoint_lag_s(ClusterView("", 0, (), (), 0, -1.0, {}, checkpoint_at_s=1e12)) == 0.0


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([{"table": "/t", "name": "a"}, {"table": "/u", "name": "b"}], "/t\ta\n/u\tb\n"),
        ({"id": "n1", "table": "/t"}, "n1\n"),
        ({"table": "/t"}, "/t\n"),
    ],
)
def test_a_name_is_what_commands_take(capsys: pytest.CaptureFixture[str], value: Any, names: str) -> None:
    assert render.show(value, "name")
    assert output(capsys) == names


def test_an_answer_without_a_name_or_part_is_refused() -> None:
    with pytest.raises(click.UsageError, match="of no job, node or table"):
        render.show({"version": 1}, "name")
    with pytest.raises(click.UsageError, match=r"-o jsonpath=\.b: "):
        render.show({"a": 1}, "jsonpath=.b")
    assert not render.show({}, "table")


def test_rows_that_follow_each_other_are_lines_of_json_or_items_of_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"a": Reason.NONE, "b": [1]}
    for form in ("json", "yaml", "jsonpath=.b[0]"):
        assert render.show_line(row, form)
    assert output(capsys) == '{"a": "none", "b": [1]}\n- a: none\n  b:\n  - 1\n1\n'


def test_a_registration_is_shown_by_its_job() -> None:
    request = RegisterRequest(JobName("/t", "copy", "acme"), "{}")
    row = render.register_row(request, RegisterResult(True, "j1", "id-t", "odd"))
    assert row == {
        "account": "acme",
        "table": "/t",
        "name": "copy",
        "created": True,
        "job_id": "j1",
        "table_id": "id-t",
        "warning": "odd",
    }


def test_jobs_are_shown_though_their_specs_were_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    good = replace(JOB, spec_json='{"iteration":{"consumer":{"target":"/x"}},"tags":["team:a","b"]}', node_id="n1")
    for damaged in ("{", "[]", "[" * 100_000, '{"iteration":3}', '{"tags":3}'):
        render.show_jobs([good, replace(JOB, name="odd", spec_json=damaged)], wide=True)
        first, second = output(capsys).splitlines()[1:]
        assert ("team:a, b" in first, "/x" in first, "odd" in second) == (True, True, True)


def test_a_job_is_shown_with_its_maintenance_and_retry(capsys: pytest.CaptureFixture[str]) -> None:
    figures = MaintenanceFigures(completed=2, failed=1, hanging=True, error_code=5, error_msg="no room")
    upkeep = JobMaintenance(refresh=figures, purge=MaintenanceFigures())
    status = JobStatus(error_code=5, error_msg="gone", retry_at_s=1.0, failures=2)
    render.show_job(replace(JOB, upkeep=upkeep, status=status, ranges=2))
    shown = output(capsys)
    assert "2 completed, 1 failed, hanging  error 5 no room" in shown
    assert "due now, after 2 failures in a row" in shown
    assert "2, of which this is the one that lags most" in shown
    for other in (replace(JOB, status=status, reason=Reason.PAUSED), JOB):
        render.show_job(other)
        assert "due now" not in output(capsys)


def test_a_job_that_ends_with_its_target_is_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    ending = replace(JOB, reason=Reason.PAUSED, status=JobStatus(deletion=Deletion.WANTED))
    render.show_jobs([ending])
    render.show_job(ending)
    assert output(capsys).count("deleting") == 2


TAIL = HistoryEntry("a", "t", "j", "id", 7, 1, 2, 10.0, 12.5, 9.0, 0, "", 3, 4_096, "tail", "n-1")
USED = Usage(wait_s=1.5, read_s=0.25, compute_s=0.001, commit_s=2.0, rows_read=5, retries=1, conflicts=2)


def test_the_words_are_of_what_took_long_or_stood_in_the_way() -> None:
    assert usage_words(USED) == "wait 1.50 s, read 0.25 s, commit 2.00 s, 1 retry, 2 conflicts"
    assert usage_words(Usage(retries=3, conflicts=1)) == "3 retries, 1 conflict"
    assert usage_words(Usage()) == usage_words(None) == ""


def test_columns_stand_where_an_iteration_has_something_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    show_history([TAIL])
    plain = capsys.readouterr().out.splitlines()[0].split()
    assert plain == ["SEQ", "KIND", "FROM", "TO", "ENDED", "TOOK", "ROWS", "BYTES", "NODE", "ERROR"]
    show_history([replace(TAIL, usage=USED), TAIL])
    first, measured, unmeasured = capsys.readouterr().out.splitlines()
    assert first.split() == [*plain[:6], "READ", *plain[6:8], "USAGE", *plain[8:]]
    assert "wait 1.50 s, read 0.25 s" in measured
    assert " 5 " in measured
    assert " - " in unmeasured, "nobody has counted what a node of an earlier release has read"


def test_a_line_for_each_row_with_why(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (LeftOutRow({"id": 1, "tags": ["a"]}, "shared"), LeftOutRow({"id": None}, "no vector"))
    show_left_out(LeftOutRows(rows, "/copy_dead_letter"), wide=False)
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()] == [
        ["id", "tags", "WHY"],
        ["1", '["a"]', "shared"],
        ["no", "vector"],
    ]
    assert "/copy_dead_letter" in shown.err


def test_no_row_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    show_left_out(LeftOutRows(), wide=False)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "no row is left out\n")
