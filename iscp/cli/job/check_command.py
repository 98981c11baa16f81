"""`iscp-admin job check`: whether jobs are fresh, as an exit status for cron and CI."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import click

from iscp.cli.job.bulk import MATCHES_MAX, job_words
from iscp.cli.shell import render
from iscp.cli.shell.arguments import DURATION, invocation, jobs_arguments, matching, of_account
from iscp.cli.shell.drawing import table
from iscp.cli.shell.error_words import show_error
from iscp.cli.shell.exit_status import ExitStatus
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.core.api.api_views import JobView
from iscp.core.job.job_row import JobState, Reason
from iscp.core.values.errors import PERMANENT_FROM, JobNotFound

UNPROBED_MAX_S = 600.0
"""Seconds since a source may have been probed last for `job check`, if --max-lag is not longer; then its jobs are
late.
"""


class Freshness(StrEnum):
    """A `Freshness` says in which way a job is not fresh."""

    LATE = "late"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """A job that is not fresh, and why."""

    account: str
    table: str
    name: str
    freshness: Freshness
    lag_s: float
    why: str


@click.command()
@jobs_arguments
@click.option("--max-lag", "max_lag_s", type=DURATION, metavar="D", help="As in 5m.  [default: each job's target lag]")
@of_account
@invocation
def check(invocation: Invocation, /, tables: str, names: str, max_lag_s: float | None, account: str) -> None:
    """Check that jobs, all or those that match, are fresh: for cron and CI.

    Exit status 0 if all are, 5 if one is late or failed; 1 if none matches or no node can be reached. T and N may be
    patterns, as 'sales.*'.
    """
    with invocation.client() as client:
        jobs = client.jobs(**matching(tables, names), account=account, limit=MATCHES_MAX)
    now_s = time.time()
    findings = [found for job in jobs if (found := finding_of(job, max_lag_s, now_s))]
    counts = Counter(found.freshness for found in findings)
    late, failed = counts[Freshness.LATE], counts[Freshness.FAILED]
    _show(invocation, findings, {"checked": len(jobs), "late": late, "failed": failed})
    if not jobs:
        none = JobNotFound("no job matches", about="T", remedy="See `iscp-admin job list`")
        show_error(none, invocation.output)
        click.get_current_context().exit(ExitStatus.FAILED)
    if findings:
        click.get_current_context().exit(ExitStatus.NOT_FRESH)


def finding_of(job: JobView, max_lag_s: float | None, now_s: float) -> Finding | None:
    """Return the finding, or None if the job is fresh. A temporary error, or a pause, is no fault as long as the job is
    not late by it.

    `max_lag_s` None: its own target lag is what counts.
    """

    def found(freshness: Freshness, why: str) -> Finding:
        return Finding(job.account, job.table, job.name, freshness, job.lag_s, why)

    status = job.status
    fault = f": {status.error_code} {status.error_msg}" if status.error_code else ""
    if job.state is JobState.ERROR and status.error_code >= PERMANENT_FROM:
        return found(Freshness.FAILED, f"it waits for somebody to act{fault}")
    if job.reason is Reason.QUARANTINED:
        return found(Freshness.FAILED, f"it is quarantined{fault}")
    paused = ", and it is paused" if job.reason is Reason.PAUSED else fault
    if job.applied_version < 0:
        return found(Freshness.LATE, f"it is not built yet{paused}")
    if job.lag_s < 0:
        return found(Freshness.LATE, f"its lag is not known{paused}")
    if job.late if max_lag_s is None else job.lag_s > max_lag_s:
        return found(Freshness.LATE, f"it lags by {render.lag_text(job.lag_s, job.lag_least_s)}{paused}")
    unprobed_s = now_s - job.checked_at_s
    if unprobed_s > max(max_lag_s or 0.0, UNPROBED_MAX_S):
        return found(Freshness.LATE, f"its source was last probed {render.seconds(unprobed_s)} ago")
    return None


def _show(invocation: Invocation, findings: Sequence[Finding], counts: dict[str, int]) -> None:
    fresh = counts["checked"] - len(findings)
    shown = {**counts, "fresh": fresh, "findings": [asdict(found) for found in findings]}
    if render.show(shown["findings"] if invocation.output == "name" else shown, invocation.output):
        return
    if findings:
        rows = [(found.table, found.name, found.freshness.value, found.why) for found in findings]
        table(("TABLE", "NAME", "STATE", "WHY"), rows, wide=invocation.wide)
    late = f"{counts['late']} late, {counts['failed']} failed"
    say(f"{job_words(counts['checked'])}: {fresh} fresh, {late}")
