"""Commands of `iscp-admin view` that do what those of `iscp-admin job` do, of a view that is found by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from iscp.cli.job.change_commands import pause_or_resume
from iscp.cli.job.history_command import limit_option, show_iterations
from iscp.cli.job.show_logs import selecting_lines, show_lines_of_job
from iscp.cli.job.verify_command import comparing, verify_job
from iscp.cli.shell.arguments import invocation
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.watch_option import watched
from iscp.cli.view.view_lookup import find_view
from iscp.cli.view.view_options import one_view
from iscp.core.api.api_requests import ChangeVerb, JobName

if TYPE_CHECKING:
    from iscp.client.admin_client import Client


@click.command()
@one_view
@invocation
def pause(invocation: Invocation, /, **named: Any) -> None:
    """Start no more refreshes of a view until it is resumed."""
    _change(invocation, ChangeVerb.PAUSE, **named)


@click.command()
@one_view
@invocation
def resume(invocation: Invocation, /, **named: Any) -> None:
    """Go on with a view that is paused, quarantined or failed, or retry one at once."""
    _change(invocation, ChangeVerb.RESUME, **named)


def _change(invocation: Invocation, verb: ChangeVerb, *, name: str, table: str | None, account: str) -> None:
    with invocation.client() as client:
        job = _job_of(client, name, table, account)
        pause_or_resume(invocation, client, job, verb, f"the view {name}")


@click.command()
@one_view
@limit_option
@watched
@invocation
def history(invocation: Invocation, /, name: str, table: str | None, account: str, limit: int) -> None:
    """Show a view's refreshes, the newest first."""
    with invocation.client() as client:
        show_iterations(invocation, client, _job_of(client, name, table, account), limit)


@click.command()
@one_view
@comparing
@invocation
def verify(
    invocation: Invocation, /, name: str, table: str | None, account: str, repair: bool, timeout_s: float
) -> None:
    """Compare a view's rows with the result of its query, at the versions of its tables that it is at.

    Exit status 0 if they are equal or were made so, 4 if they differ, 1 if they could not be compared, 3 if that takes
    longer than --timeout.
    """
    with invocation.client() as client:
        verify_job(invocation, client, _job_of(client, name, table, account), repair, timeout_s)


@click.command()
@one_view
@selecting_lines
@invocation
def logs(
    invocation: Invocation, /, name: str, table: str | None, account: str, follow: bool, tail: int, **wanted: Any
) -> None:
    """Show the newest lines of all nodes' logs that are about a view."""
    with invocation.client() as client:
        job = _job_of(client, name, table, account)
    show_lines_of_job(invocation, job, follow, tail, **wanted)


def _job_of(client: Client, name: str, table: str | None, account: str) -> JobName:
    job, _ = find_view(client, name, table, account)
    return JobName(job.table_id, job.name, job.account)
