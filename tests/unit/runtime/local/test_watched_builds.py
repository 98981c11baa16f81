"""The first snapshots that a watch builds: which jobs are built together, and how far they are."""

from __future__ import annotations

from iscp.core.build.api_builds import BuildStage
from iscp.core.job.job_row import JobRow, JobState, JobStatus
from iscp.core.values.ids import JobKey
from iscp.core.values.progress import UNKNOWN, RunProgress
from iscp.core.values.watermark import Watermark
from iscp.runtime.local.watched_builds import watched_builds

PROGRESS = RunProgress("apply", 100.0, 4.0, rows_read=300, rows_written=30, rows_total=120, left_s=8.0)


def row(name: str, state: JobState, table: str = "t-1", version: int = -1, at_s: float = 100.0) -> JobRow:
    status = JobStatus(to_version=7, start_at_s=at_s).to_json()
    made = JobRow(JobKey("acme", table, name), f"id-{name}", "{}", table, f"/lake/{table}", state)
    return made._replace(watermark=Watermark(version, 1.0), status_json=status)


def test_jobs_that_are_built_together_are_one_build() -> None:
    rows = [row("b", JobState.RUNNING), row("a", JobState.RUNNING), row("later", JobState.RUNNING, at_s=200.0)]
    built, later = watched_builds(rows, lambda job_id: PROGRESS if job_id == "id-b" else None)
    assert (built.table, built.jobs, built.version, built.state) == ("/lake/t-1", ("a", "b"), 7, BuildStage.BUILDING)
    assert (built.done_share, built.rows_done, built.rows_total, built.left_s) == (0.25, 30, 120, 8.0)
    assert (later.jobs, later.done_share, later.rows_done) == (("later",), 0.0, UNKNOWN)


def test_what_runs_comes_before_what_waits() -> None:
    rows = [row("waits", JobState.PENDING), row("runs", JobState.RUNNING, "t-2")]
    found = watched_builds(rows, lambda job_id: PROGRESS)
    assert [(build.jobs, build.state, build.version) for build in found] == [
        (("runs",), BuildStage.BUILDING, 7),
        (("waits",), BuildStage.WAITING, -1),
    ]
    assert found[1].done_share == 0.0


def test_no_other_job_is_built() -> None:
    rows = [row("built", JobState.RUNNING, version=0), row("failed", JobState.ERROR), row("new", JobState.COMPLETED)]
    assert watched_builds(rows, lambda job_id: PROGRESS) == []


def test_of_a_query_it_is_not_known_how_much_there_is_to_write() -> None:
    progress = RunProgress("apply", 1.0, 4.0, rows_read=30, rows_written=5, rows_per_s=7.5)
    (build,) = watched_builds([row("totals", JobState.RUNNING)], lambda job_id: progress)
    assert (build.done_share, build.rows_done, build.rows_total, build.rows_per_s) == (0.0, UNKNOWN, UNKNOWN, 7.5)


def test_no_more_is_done_than_there_is() -> None:
    progress = RunProgress("apply", 1.0, 4.0, rows_written=9, rows_total=6)
    (build,) = watched_builds([row("copy", JobState.RUNNING)], lambda job_id: progress)
    assert (build.done_share, build.rows_done) == (1.0, 6)
    (empty,) = watched_builds(
        [row("copy", JobState.RUNNING)], lambda job_id: RunProgress("apply", 1.0, 4.0, rows_total=0)
    )
    assert (empty.done_share, empty.rows_done) == (0.0, 0)
