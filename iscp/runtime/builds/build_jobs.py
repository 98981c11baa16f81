"""Read from the rows of jobs what they say of builds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from iscp.coordination.builds.builder_events import BuildOver, BuildWanted, ShowFault
from iscp.core.build.build_task import BuildPlan
from iscp.core.job.job_row import JobReport, JobRow, JobState, Reason
from iscp.core.values.errors import ErrorCode
from iscp.core.values.watermark import NOTHING_APPLIED

PlanOf = Callable[[JobRow], BuildPlan | None]
"""The build that the job's status requests; None: it requests none, or has not said so yet."""


def plan_of(row: JobRow) -> BuildPlan | None:
    """Return the build that the row requests, as PlanOf does."""
    request, key = row.build, row.key
    if request is None:
        return None
    return BuildPlan(
        row.job_id,
        key.account,
        key.table_id,
        key.job_name,
        row.table_uri,
        request.version,
        row.spec_json,
        request.piece_bytes,
        request.depth,
        request.size,
        request.pin,
    )


def wanted_builds(rows: Iterable[JobRow], plan_of: PlanOf) -> tuple[list[BuildPlan], list[str]]:
    """Return the builds that are wanted, and all jobs that may want one, as they have nothing published."""
    open_rows = [row for row in rows if _may_want(row)]
    plans = [plan for row in open_rows if (plan := plan_of(row)) is not None]
    return plans, [row.job_id for row in open_rows]


def news_of(rows: Iterable[JobRow], known: Collection[str], plan_of: PlanOf) -> list[BuildWanted | BuildOver]:
    """Return the news of a table's jobs as they are now; `known` has those of them that are being built, or wait for
    it.
    """
    wanted, unbuilt = wanted_builds(rows, plan_of)
    over = sorted(set(known).difference(unbuilt))
    return [*map(BuildOver, over), *map(BuildWanted, wanted)]


def fault_report(row: JobRow, shown: ShowFault) -> JobReport | None:
    """Return the report of a build that does not go on, or does again; None if the job waits for none.

    A permanent fault would end the job: its own iteration finds out whether its rows can be built at all.
    """
    if not _may_want(row) or row.build is None:
        return None
    code = ErrorCode(shown.code) if ErrorCode(shown.code).temporary else ErrorCode.INTERNAL
    if shown.code == ErrorCode.OK:
        state, reason, code = JobState.PENDING, Reason.BUILDING, ErrorCode.OK
    else:
        state, reason = JobState.ERROR, Reason.RETRYING
    status = replace(row.status, error_code=code, error_msg=shown.fault)
    return JobReport(row.key, row.job_id, row.watermark, row.seq, state, reason, status)


def _may_want(row: JobRow) -> bool:
    """Return whether the job may want a build. One that is paused or has failed for good wants none: when it is resumed
    it requests it again, and what is staged is there.
    """
    stopped = row.paused or row.failed_for_good or row.drop_at_s is not None
    return row.watermark.version == NOTHING_APPLIED and not stopped
