"""`iscp-admin job history`: a job's iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import WholeNumber, account_option, invocation, job_arguments
from iscp.cli.shell.history_lines import show_history
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.watch_option import watched
from iscp.core.api.api_requests import JobName

if TYPE_CHECKING:
    from iscp.client.admin_client import Client

limit_option = click.option("--limit", type=WholeNumber(1, 10_000), default=20, show_default=True)
"""The option that says how many iterations are shown."""


@click.command()
@job_arguments
@limit_option
@account_option
@watched
@invocation
def history(invocation: Invocation, /, table: str, name: str, limit: int, account: str) -> None:
    """Show a job's iterations, the newest first."""
    with invocation.client() as client:
        show_iterations(invocation, client, JobName(table, name, account), limit)


def show_iterations(invocation: Invocation, client: Client, job: JobName, limit: int) -> None:
    entries = client.history(job.table, job.name, limit=limit, account=job.account)
    if not render.show([render.history_row(entry) for entry in entries], invocation.output):
        show_history(entries, wide=invocation.wide)
