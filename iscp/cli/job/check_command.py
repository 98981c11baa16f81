"""`iscp-admin job check`: whether jobs are fresh, as an exit status for cron and CI."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

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
from iscp.core.job.job_row import JobCondition, Reason
from iscp.core.values.errors import JobNotFound

UNPROBED_MAX_S = 600.0
"""Seconds since a source may have been probed last for `job check`, if --max-lag is not longer; then its jobs are
late.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A job that is not fresh, and why. `condition` is as everywhere, and `freshness` for scripts the same."""

    account: str
    table: str
    name: str
    condition: str
    freshness: str
    lag_s: float
    why: str


@click.command()
@jobs_arguments
@click.option("--max-lag", "max_lag_s", type=DURATION, metavar="D", help="As in 5m.  [default: each job's target lag]")
@of_account
@invocation
def check(invocation: Invocation, /, tables: str, names: str, max_lag_s: float | None, account: str) -> None:
    """Check that jobs, all or those that match, are fresh: for cron and CI.

    Exit status 0 if all are, 5 if one is late, building, quarantined or failed; 1 if none matches or no node can be
    reached. T and N may be patterns, as 'sales.*'.
    """
    with invocation.client() as client:
        jobs = client.jobs(**matching(tables, names), account=account, limit=MATCHES_MAX)
    now_s = time.time()
    findings = [found for job in jobs if (found := finding_of(job, max_lag_s, now_s))]
    known = {(found.account, found.table, found.name): found.condition for found in findings}
    counts = Counter(known.get((job.account, job.table, job.name), condition_within(job, max_lag_s)) for job in jobs)
    _show(invocation, findings, {"checked": len(jobs), **{each.value: counts[each] for each in JobCondition}})
    if not jobs:
        none = JobNotFound("no job matches", about="T", remedy="See `iscp-admin job list`")
        show_error(none, invocation.output)
        click.get_current_context().exit(ExitStatus.FAILED)
    if findings:
        click.get_current_context().exit(ExitStatus.NOT_FRESH)


def condition_within(job: JobView, max_lag_s: float | None) -> str:
    """Return the job's condition, or what it would be if this was its target lag."""
    return job.condition if max_lag_s is None else job.condition_if(late=job.lag_s > max_lag_s)


def finding_of(job: JobView, max_lag_s: float | None, now_s: float) -> Finding | None:
    """Return the finding, or None if the job is no fault. What is retried or paused is none as long as the job is not
    late by it.

    `max_lag_s` None: its own target lag is what counts.
    """
    condition, status = condition_within(job, max_lag_s), job.status

    def found(why: str) -> Finding:
        word = JobCondition.LATE if condition == JobCondition.FRESH else condition
        return Finding(job.account, job.table, job.name, word, word, job.lag_s, why)

    fault = f": {status.error_code} {status.error_msg}" if status.error_code else ""
    if condition == JobCondition.FAILED:
        return found(f"it waits for somebody to act{fault}")
    if condition == JobCondition.QUARANTINED:
        return found(f"it is quarantined{fault}")
    paused = ", and it is paused" if job.reason is Reason.PAUSED else fault
    if job.applied_version < 0:
        return found(f"it is not built yet{paused}")
    if job.lag_s < 0:
        return found(f"its lag is not known{paused}")
    if job.late if max_lag_s is None else job.lag_s > max_lag_s:
        return found(f"it lags by {render.lag_text(job.lag_s, job.lag_least_s)}{paused}")
    unprobed_s = now_s - job.checked_at_s
    if unprobed_s > max(max_lag_s or 0.0, UNPROBED_MAX_S):
        return found(f"its source was last probed {render.seconds(unprobed_s)} ago")
    return None


def _show(invocation: Invocation, findings: Sequence[Finding], counts: dict[str, int]) -> None:
    shown = {**counts, "findings": [asdict(found) for found in findings]}
    if render.show(shown["findings"] if invocation.output == "name" else shown, invocation.output):
        return
    if findings:
        rows = [(found.table, found.name, found.condition, found.why) for found in findings]
        table(("TABLE", "NAME", "STATE", "WHY"), rows, wide=invocation.wide)
    words = ", ".join(f"{counts[each]} {each}" for each in JobCondition if counts[each])
    say(f"{job_words(counts['checked'])}{': ' if words else ''}{words}")
