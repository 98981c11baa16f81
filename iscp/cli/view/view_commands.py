"""The command group `iscp-admin view`: the results of queries over several tables, each maintained by a job of the kind
`view`.

A view is found by its name, which is a job's name, without its table.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

import click

from iscp.cli.job.change_commands import DELETE_TARGET_OPTION, delete_with_target, pause_or_resume
from iscp.cli.job.register_command import show_registered, unlike_of
from iscp.cli.job.status_commands import (
    comparing,
    limit_option,
    next_start,
    selecting_lines,
    show_iterations,
    show_lines_of_job,
    verify_job,
)
from iscp.cli.shell import render
from iscp.cli.shell.arguments import (
    ACCOUNT,
    LIMIT,
    TABLE,
    TARGET,
    VIEW_NAME,
    account_option,
    anywhere,
    invocation,
    timeout_option,
)
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.render import show_history
from iscp.cli.shell.root_group import options_named, watched
from iscp.cli.shell.terminal import pairs, say, table
from iscp.cli.shell.terminal import table as draw_table
from iscp.cli.view.apply_command import apply_views_of_files, import_views
from iscp.cli.view.view_options import (
    HOLD_OPTION,
    NAMED_TABLE,
    OWN_OPTIONS,
    REFRESH_OPTION,
    SQL_FILE_OPTION,
    SQL_OPTION,
    TABLE_OPTION,
    VECTORS_OPTION,
    VERSIONS_OPTION,
    WAITS_FOR_OPTION,
    named_tables,
    one_view,
    read_query,
    run_options_of_views,
    view_fields,
)
from iscp.model.api.api_requests import ChangeVerb, JobFilter, JobName, JobView, RegisterRequest
from iscp.model.job.iteration import HistoryEntry
from iscp.model.query_plan import CHANGED_ROWS, ChangeCost, ExplainedOperator, OperatorUpkeep, QueryExplanation
from iscp.model.spec.cron_schedule import DEFAULT_ZONE
from iscp.model.spec.spec_parsing import ViewFields, shown_tables, view_of
from iscp.model.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.model.values.errors import InvalidRequest, JobNotFound
from iscp.model.values.progress import TableSize

if TYPE_CHECKING:
    from iscp.client.admin_client import Client


# --- a view by its name, and its last refreshes -----------------------------------------------------------------------

REFRESHES_SHOWN = 5
"""Refreshes of a view, the newest, that `view show` and `view explain` show; `view history` shows all."""


def find_view(client: Client, name: str, table: str | None, account: str) -> tuple[JobView, ViewFields]:
    """Return the job of that name that maintains a view. Raises JobNotFound, and InvalidRequest if several are."""
    found = client.views(name, table=table or "", account=account) if name else []
    if len(found) > 1:
        places = ", ".join(sorted(job.table for job in found))
        raise InvalidRequest(f"{name!r} is a view on each of {places}", about="--table", remedy="Name one of them")
    view = view_of(found[0].spec_json) if found else None
    if view is None:
        there = f" on {table}" if table else ""
        raise JobNotFound(f"there is no view {name!r}{there}", about="NAME", remedy="See `iscp-admin view list`")
    return found[0], view


def refreshes_of(client: Client, job: JobView) -> list[HistoryEntry]:
    return client.history(job.table_id, job.name, limit=REFRESHES_SHOWN, account=job.account)


def show_refreshes(refreshes: list[HistoryEntry], *, wide: bool) -> None:
    if refreshes:
        say("\nlast refreshes")
        show_history(refreshes, wide=wide)


# --- explain: how a query is maintained, operator by operator ---------------------------------------------------------

UPKEEP_WORDS = {
    OperatorUpkeep.LINEAR: "from the changed rows alone",
    OperatorUpkeep.JOINED: "changed rows joined with the other side",
    OperatorUpkeep.STATE: "counts and sums stored, and changed by the changed rows",
    OperatorUpkeep.TOUCHED: "recomputed for the keys that changed",
    OperatorUpkeep.WHOLE: "recomputed as a whole",
}
COST = f"COST OF {CHANGED_ROWS:,} ROWS"
COLUMNS = ("OPERATOR", "MAINTAINED", COST, "STATE NEEDED", "WHY", "REMEDY")


@click.command(name="explain")
@click.argument("name", type=VIEW_NAME, metavar="[NAME]", default="")
@SQL_OPTION
@SQL_FILE_OPTION
@click.option(
    "--table",
    "given",
    multiple=True,
    metavar="NAME=URI",
    help="Where a table of the query is; again for each. With NAME: the table that the view is on.",
)
@REFRESH_OPTION
@click.option("--statements", is_flag=True, help="Print the statements that a refresh without Spark runs.")
@account_option
@invocation
def explain_view(
    invocation: Invocation,
    /,
    name: str,
    sql: str | None,
    sql_file: str | None,
    given: tuple[str, ...],
    refresh: str | None,
    statements: bool,
    account: str,
) -> None:
    """Explain how a view is kept, or would be: a tree of operators, each with its upkeep, why, and the remedy.

    NAME is a view that is there; otherwise give its query by --sql or --sql-file, and its tables. Writes nothing.
    """
    from iscp.client.request_parts import EXPLAIN_TIMEOUT_S

    refreshes: list[HistoryEntry] = []
    timeout_s = invocation.within_s(EXPLAIN_TIMEOUT_S)
    with invocation.client() as client, options_named(own=OWN_OPTIONS):
        if name:
            _refuse_both(sql, sql_file, refresh, given)
            job, _ = find_view(client, name, TABLE.convert(given[0], None, None) if given else None, account)
            explained = client.explain(job.table_id, job.name, timeout_s=timeout_s, account=job.account)
            refreshes = refreshes_of(client, job)
        else:
            if sql is None and sql_file is None:
                raise InvalidRequest("is missing", field="NAME", remedy="Name a view, or give a query by --sql")
            context = click.get_current_context()
            tables = named_tables(context, None, tuple(NAMED_TABLE.convert(each, None, context) for each in given))
            fields = view_fields(read_query(sql, sql_file), tables, "", refresh)
            explained = client.explain_view(fields.sql, fields.tables, refresh=fields.refresh, timeout_s=timeout_s)
    shown = dataclasses.asdict(explained) | {"refreshes": [render.history_row(each) for each in refreshes]}
    if render.show(shown, invocation.output):
        return
    if statements:
        for each in explained.statements:
            say(each)
        return
    show_explanation(explained, wide=invocation.wide)
    show_refreshes(refreshes, wide=invocation.wide)


def _refuse_both(sql: str | None, sql_file: str | None, refresh: str | None, given: tuple[str, ...]) -> None:
    for option, value in (("--sql", sql), ("--sql-file", sql_file), ("--refresh", refresh)):
        if value is not None:
            raise click.UsageError(f"{option} cannot go with the NAME of a view that is there")
    if len(given) > 1:
        raise click.UsageError("With NAME give --table once: the table that the view is on")


def show_explanation(explained: QueryExplanation, *, wide: bool = False) -> None:
    """Show the explanation as a tree, then what the result is; columns in which nothing would stand are left out."""
    rows = [_row(each) for each in explained.operators]
    filled = [number for number in range(len(COLUMNS)) if number < 2 or any(row[number] for row in rows)]
    draw_table([COLUMNS[number] for number in filled], [[row[number] for number in filled] for row in rows], wide=wide)
    say()
    columns = ", ".join(f"{name} {kind}" for name, kind in explained.columns.items())
    tables = {f"table {name}": _place(uri, explained.sizes.get(name)) for name, uri in explained.tables.items()}
    stored = {each.holds: _place(each.uri, each.size) for each in explained.kept}
    pairs({"columns": columns, **tables, **stored})
    for note in explained.notes:
        say(f"note: {note}")


def _place(uri: str, size: TableSize | None) -> str:
    if size is None or size.bytes < 0:
        return uri
    return f"{uri}  {rows_words(size.rows)}, {render.size(size.bytes)}"


def _row(each: ExplainedOperator) -> tuple[str, ...]:
    costs = "; ".join(cost_words(each.upkeep, cost) for cost in each.costs)
    return "  " * each.depth + each.operator, UPKEEP_WORDS[each.upkeep], costs, each.state, each.reason, each.remedy


def cost_words(upkeep: OperatorUpkeep, cost: ChangeCost) -> str:
    """Return the cost in words, as `orders: 1,000 rows joined with 150,000 rows`."""
    changed, read = rows_words(cost.changed), rows_words(cost.read)
    match upkeep:
        case OperatorUpkeep.LINEAR:
            words = f"all of {read}" if cost.read else changed  # the value of a subquery has changed
        case OperatorUpkeep.STATE:
            words = f"groups of {changed}"
        case OperatorUpkeep.JOINED:
            words = f"{changed} joined with {read}"
        case OperatorUpkeep.TOUCHED:
            words = f"keys of {changed} among {read}"
        case OperatorUpkeep.WHOLE:
            words = f"all of {read}"
        case _:
            assert_never(upkeep)
    return f"{cost.table}: {words}"


def rows_words(rows: int) -> str:
    return "an unknown number of rows" if rows < 0 else f"{rows:,} rows"


# --- commands as those of jobs ----------------------------------------------------------------------------------------
# The commands do what those of `iscp-admin job` do, for a view that is found by its name.


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


# --- the group, and the commands that views alone have ----------------------------------------------------------------


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
