"""`iscp-admin view explain`: how a query is kept, operator by operator."""

from __future__ import annotations

import dataclasses

import click

from iscp.cli import render
from iscp.cli.admin.error_words import options_named
from iscp.cli.arguments import TABLE, Invocation, anywhere, invocation
from iscp.cli.completion import VIEW_NAME
from iscp.cli.drawing import pairs
from iscp.cli.drawing import table as draw_table
from iscp.cli.view.view_lookup import find_view
from iscp.cli.view.view_options import (
    ACCOUNT_OPTION,
    NAMED_TABLE,
    OWN_OPTIONS,
    REFRESH_OPTION,
    SQL_FILE_OPTION,
    SQL_OPTION,
    named_tables,
    read_query,
    view_fields,
)
from iscp.core.errors import InvalidRequest
from iscp.core.query_explanation import ExplainedOperator, OperatorUpkeep, QueryExplanation

UPKEEP_WORDS = {
    OperatorUpkeep.LINEAR: "from the changed rows alone",
    OperatorUpkeep.JOINED: "changed rows joined with the other side",
    OperatorUpkeep.STATE: "groups kept, and changed by the changed rows",
    OperatorUpkeep.TOUCHED: "recomputed for the keys that changed",
    OperatorUpkeep.WHOLE: "recomputed as a whole",
}
COLUMNS = ("OPERATOR", "KEPT", "STATE NEEDED", "WHY", "REMEDY")


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
@ACCOUNT_OPTION
@anywhere
@invocation
def explain_view(
    invocation: Invocation,
    /,
    name: str,
    sql: str | None,
    sql_file: str | None,
    given: tuple[str, ...],
    refresh: str | None,
    account: str,
) -> None:
    """Explain how a view is kept, or would be: a tree of operators, each with its upkeep, why, and the remedy.

    NAME is a view that is there; otherwise give its query by --sql or --sql-file, and its tables. Writes nothing.
    """
    with invocation.client() as client, options_named(own=OWN_OPTIONS):
        if name:
            _refuse_both(sql, sql_file, refresh, given)
            job, _ = find_view(client, name, TABLE.convert(given[0], None, None) if given else None, account)
            explained = client.explain(job.table_id, job.name, account=job.account)
        else:
            if sql is None and sql_file is None:
                raise InvalidRequest("is missing", field="NAME", remedy="Name a view, or give a query by --sql")
            context = click.get_current_context()
            tables = named_tables(context, None, tuple(NAMED_TABLE.convert(each, None, context) for each in given))
            fields = view_fields(read_query(sql, sql_file), tables, "", refresh)
            explained = client.explain_view(fields.sql, fields.tables, refresh=fields.refresh)
    if not render.show(dataclasses.asdict(explained), invocation.output):
        show_explanation(explained, wide=invocation.wide)


def _refuse_both(sql: str | None, sql_file: str | None, refresh: str | None, given: tuple[str, ...]) -> None:
    for option, value in (("--sql", sql), ("--sql-file", sql_file), ("--refresh", refresh)):
        if value is not None:
            raise click.UsageError(f"{option} cannot go with the NAME of a view that is there")
    if len(given) > 1:
        raise click.UsageError("With NAME give --table once: the table that the view is on")


def show_explanation(explained: QueryExplanation, *, wide: bool = False) -> None:
    """As a tree, then what the result is; columns in which nothing would stand are left out."""
    rows = [_row(each) for each in explained.operators]
    filled = [number for number in range(len(COLUMNS)) if number < 2 or any(row[number] for row in rows)]
    draw_table([COLUMNS[number] for number in filled], [[row[number] for number in filled] for row in rows], wide=wide)
    click.echo()
    columns = ", ".join(f"{name} {kind}" for name, kind in explained.columns.items())
    pairs({"columns": columns, **{f"table {name}": uri for name, uri in explained.tables.items()}})
    for note in explained.notes:
        click.echo(f"note: {note}")


def _row(each: ExplainedOperator) -> tuple[str, ...]:
    return "  " * each.depth + each.operator, UPKEEP_WORDS[each.upkeep], each.state, each.reason, each.remedy
