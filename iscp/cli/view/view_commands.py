"""The command group `iscp-admin view`: the results of queries over several tables, each maintained by a job of the kind
`view`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from iscp.cli.job.change_commands import DELETE_TARGET_OPTION, delete_with_target
from iscp.cli.job.next_start import next_start
from iscp.cli.job.register_command import show_registered, unlike_of
from iscp.cli.shell import render
from iscp.cli.shell.arguments import LIMIT, TARGET, account_option, anywhere, invocation, timeout_option
from iscp.cli.shell.completion import ACCOUNT
from iscp.cli.shell.drawing import pairs, table
from iscp.cli.shell.error_words import options_named
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.cli.shell.watch_option import watched
from iscp.cli.view.view_apply import apply_views_of_files, import_views
from iscp.cli.view.view_explain import explain_view
from iscp.cli.view.view_job_commands import history, logs, pause, resume, verify
from iscp.cli.view.view_lookup import find_view, refreshes_of, show_refreshes
from iscp.cli.view.view_options import (
    HOLD_OPTION,
    OWN_OPTIONS,
    REFRESH_OPTION,
    SQL_FILE_OPTION,
    SQL_OPTION,
    TABLE_OPTION,
    VECTORS_OPTION,
    VERSIONS_OPTION,
    WAITS_FOR_OPTION,
    one_view,
    read_query,
    run_options_of_views,
    view_fields,
)
from iscp.core.api.api_requests import JobFilter, JobName, RegisterRequest
from iscp.core.api.api_views import JobView
from iscp.core.spec.cron_schedule import DEFAULT_ZONE
from iscp.core.spec.view_fields import ViewFields, shown_tables, view_of
from iscp.core.sql.sql_names import VIEW_STATE_SUFFIX

if TYPE_CHECKING:
    from iscp.client.admin_client import Client


@click.group()
@anywhere
def view() -> None:
    """Keep the results of queries over several tables: materialized views.

    A view is a job; its name is the job's. The other commands of `iscp-admin job` work on it too, by the first of its
    tables.
    """


for command in (explain_view, apply_views_of_files, import_views, pause, resume, history, verify, logs):
    view.add_command(command)


@view.command()
@click.argument("name", metavar="NAME")
@click.option("--target", type=TARGET, required=True, metavar="URI", help="Where the result is kept.")
@SQL_OPTION
@SQL_FILE_OPTION
@TABLE_OPTION
@REFRESH_OPTION
@VECTORS_OPTION
@HOLD_OPTION
@WAITS_FOR_OPTION
@run_options_of_views
@account_option
@invocation
def create(
    invocation: Invocation,
    /,
    name: str,
    target: str,
    sql: str | None,
    sql_file: str | None,
    tables: dict[str, str],
    refresh: str | None,
    deletion_vectors: bool,
    hold_s: float,
    waits_for_s: float | None,
    account: str,
    **run: object,
) -> None:
    """Create a view; one that is there already is left as it is, and if it is another one, the exit status is 1.

    It is registered on the first table that is named. `iscp-admin view explain` says beforehand how it will be kept.
    """
    fields = view_fields(read_query(sql, sql_file), tables, target, refresh, **run)
    fields = replace(fields, deletion_vectors=deletion_vectors, hold_s=hold_s, waits_for_s=waits_for_s)
    requests = [RegisterRequest(JobName(fields.table, name, account), fields.spec_json())]
    with invocation.client() as client, options_named(own=OWN_OPTIONS):
        results = client.register_many(requests)
        unlike = unlike_of(client, requests, results)
    show_registered(invocation, requests, results, unlike, listed=False)


@view.command(name="list")
@click.option("--account", type=ACCOUNT, metavar="A", default="", help="Only views of this tenant.")
@click.option("--limit", type=LIMIT, default=JobFilter().limit, show_default=True)
@watched
@invocation
def list_views(invocation: Invocation, /, account: str, limit: int) -> None:
    """Show the views, each with its lag and target."""
    with invocation.client() as client:
        found = client.views(account=account)
    first = found[:limit]
    if not render.show([render.job_row(job) for job in first], invocation.output):
        _draw_list(first, wide=invocation.wide)
    if len(found) > limit:
        say(f"shown are the first {limit}; --limit raises it", err=True)


def _draw_list(jobs: list[JobView], *, wide: bool) -> None:
    views = [(job, view_of(job.spec_json) or ViewFields("", {})) for job in jobs]
    rows = [
        (
            job.name,
            job.condition,
            render.reason(job),
            render.lag(job),
            fields.refresh,
            _shown_schedule(fields),
            next_start(job, time.time()),
            fields.target,
            shown_tables(fields.tables),
            job.status.error_msg,
        )
        for job, fields in views
    ]
    columns = ("NAME", "STATE", "REASON", "LAG", "REFRESH", "SCHEDULE", "NEXT", "TARGET", "TABLES", "ERROR")
    table(columns, rows, spare=("NEXT", "TABLES", "REFRESH", "SCHEDULE", "REASON"), wide=wide)


def _shown_schedule(view: ViewFields) -> str:
    """Return in words when a view is refreshed, as its spec says."""
    if cron := view.run.get("cron"):
        return f"cron {cron} in {view.run.get('time_zone') or DEFAULT_ZONE}"
    every_s = view.run.get("every")
    return f"every {render.seconds(every_s)}" if isinstance(every_s, (int, float)) else "on change"


@view.command()
@one_view
@watched
@invocation
def show(invocation: Invocation, /, name: str, table: str | None, account: str) -> None:
    """Show a view: its query, its tables, its target, how far it is, and its last refreshes."""
    with invocation.client() as client:
        job, fields = find_view(client, name, table, account)
        job = client.status(job.table_id, job.name, account=job.account)
        refreshes = refreshes_of(client, job)
    shown = {**render.job_row(job), "refreshes": [render.history_row(each) for each in refreshes]}
    if render.show(shown, invocation.output):
        return
    about = {"target": fields.target, "refresh": fields.refresh, "schedule": _shown_schedule(fields)}
    about["next refresh"] = next_start(job, time.time())
    if fields.hold_s:
        about["tables keep"] = f"what was removed for {render.seconds(fields.hold_s)}, until the view is dropped"
    if fields.waits_for_s is not None:
        about["waits"] = f"for tables that are behind, at most {render.seconds(fields.waits_for_s)}"
    marks = job.status.sources
    at = {uri: f"  version {marks[uri].watermark.version}" for uri in fields.tables.values() if uri in marks}
    pairs({**about, **{f"table {each}": f"{uri}{at.get(uri, '')}" for each, uri in fields.tables.items()}})
    say(f"\n{fields.sql}\n")
    render.show_job(job)
    show_refreshes(refreshes, wide=invocation.wide)


@view.command()
@one_view
@DELETE_TARGET_OPTION
@click.option("--yes", is_flag=True, help="With --delete-target: delete it without a question.")
@invocation
def drop(invocation: Invocation, /, name: str, table: str | None, account: str, delete_target: bool, yes: bool) -> None:
    """Delete a view; its target stays as it is, and so does what is kept beside it, as TARGET_view_state_2.

    With --delete-target both are deleted.
    """
    with invocation.client() as client:
        job, fields = find_view(client, name, table, account)
        if delete_target:
            delete_with_target(invocation, client, job, yes=yes)
            return
        deleted = client.unregister(job.table_id, job.name, account=job.account)
    beside = f"{fields.target}{VIEW_STATE_SUFFIX}"
    stays = f"deleted; {fields.target} stays as it is, and so does {beside}, if more was kept of the view"
    if not render.show({"deleted": deleted}, invocation.output):
        say(stays if deleted else f"there is no view {name}")


@view.command()
@one_view
@VERSIONS_OPTION
@timeout_option("60s", "As in 60s or 2m.")
@invocation
def wait(
    invocation: Invocation, /, name: str, table: str | None, account: str, versions: dict[str, int], timeout_s: float
) -> None:
    """Wait until a view has come to these versions of its tables.

    Exit status 3 if that takes longer than --timeout.
    """
    with invocation.client() as client, options_named(own={"versions": "--version"}):
        job, fields = find_view(client, name, table, account)
        found = client.wait(job.table_id, job.name, versions=versions, timeout_s=timeout_s, account=job.account)
    if not render.show(render.job_row(found), invocation.output):
        say(f"at {_versions(found, fields)}")


def _versions(job: JobView, fields: ViewFields) -> str:
    """Return how far the view is in each of its tables, as `version 7 of orders, 3 of customers`."""
    marks = job.status.sources
    known = {name: marks[uri].watermark.version for name, uri in fields.tables.items() if uri in marks}
    return f"version {', '.join(f'{each} of {name}' for name, each in known.items()) or job.applied_version}"


@view.command()
@one_view
@click.option("--full", is_flag=True, help="Compute all of it, instead of what has changed.")
@invocation
def refresh(invocation: Invocation, /, name: str, table: str | None, account: str, full: bool) -> None:
    """Have a view's tables probed at once, so that it is refreshed where one has moved.

    With --full the target is rebuilt; readers see the old rows until the new ones are published, in one commit.
    `iscp-admin view wait` returns when it is done.
    """
    with invocation.client() as client:
        job, fields = find_view(client, name, table, account)
        if full:
            result = client.resync(job.table_id, job.name, account=job.account)
            shown: render.Row = {"job_id": result.job_id, "table_id": result.table_id, "warning": result.warning}
            message = f"is being rebuilt as {result.job_id}; `iscp-admin view wait` returns when it is done"
        else:
            probed = _probe(client, job, fields)
            shown, message = {"tables": probed}, f"{len(probed)} tables are probed"
    if not render.show(shown, invocation.output):
        say(message)


def _probe(client: Client, job: JobView, fields: ViewFields) -> list[str]:
    """Return the places that the cluster was notified of: the view's own table, and the others."""
    client.notify(job.table_id)
    probed = [job.table]
    for uri in dict.fromkeys(fields.tables.values()):
        if uri != job.table:
            client.notify(uri)
            probed.append(uri)
    return probed
