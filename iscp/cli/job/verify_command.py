"""`iscp-admin job verify`: a job's target against its source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import account_option, invocation, job_arguments, timeout_option
from iscp.cli.shell.drawing import pairs, table
from iscp.cli.shell.exit_status import ExitStatus
from iscp.cli.shell.invocation import Invocation
from iscp.core.api.api_requests import JobName
from iscp.core.job.verification import VerifyReport

if TYPE_CHECKING:
    from iscp.client.admin_client import Client


F = TypeVar("F", bound=Callable[..., Any])


def comparing(command: F) -> F:
    """Give a command the options of a comparison, as `verify_job` takes them."""
    repair = click.option("--repair", is_flag=True, help="Make the target equal, by one commit of what differs.")
    return repair(timeout_option("10m", "As in 60s or 10m.")(command))


@click.command()
@job_arguments
@comparing
@account_option
@invocation
def verify(invocation: Invocation, /, table: str, name: str, repair: bool, timeout_s: float, account: str) -> None:
    """Compare a job's target with its source.

    Exit status 0 if they are equal or were made so, 4 if they differ, 1 if they could not be compared, 3 if that takes
    longer than --timeout.
    """
    with invocation.client() as client:
        verify_job(invocation, client, JobName(table, name, account), repair, timeout_s)


def verify_job(invocation: Invocation, client: Client, job: JobName, repair: bool, timeout_s: float) -> None:
    """Compare one job's target with its source, and show the report; ends the command if they differ."""
    report = client.verify(job.table, job.name, repair=repair, timeout_s=timeout_s, account=job.account)
    if not render.show(report_row(report), invocation.output):
        show_report(report)
    if not (report.equal or report.repaired):
        click.get_current_context().exit(ExitStatus.DIFFERS)


def report_row(report: VerifyReport) -> render.Row:
    return {
        "version": report.version,
        "seq": report.seq,
        "equal": report.equal,
        "repaired": report.repaired,
        "void": report.void,
        **dataclasses.asdict(report.comparison),
    }


def show_report(report: VerifyReport) -> None:
    comparison = report.comparison
    verdict = "equal" if report.equal else "repaired" if report.repaired else "different"
    pairs(
        {
            "verdict": f"{verdict}, at version {report.version}",
            "rows": f"{comparison.rows_source} in the source, {comparison.rows_target} in the target",
            "ranges": f"{comparison.ranges_differing} of {comparison.ranges} differ",
            "missing": str(comparison.missing or ""),
            "too many": str(comparison.extra or ""),
            "different": str(comparison.different or ""),
            "sharing a key": f"{comparison.shared} keys of the source, left out" if comparison.shared else "",
            "in doubt before": report.void,
            "repaired by": f"iteration {report.seq}" if report.repaired else "",
        }
    )
    if comparison.samples:
        rows = [(sample.fault, sample.key, ", ".join(sample.columns)) for sample in comparison.samples]
        table(("FAULT", "KEY", "COLUMNS"), rows)
