"""The command `iscp-admin view explain`: how a query is maintained, operator by operator."""

from __future__ import annotations

import dataclasses
from typing import assert_never

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import TABLE, account_option, invocation
from iscp.cli.shell.completion import VIEW_NAME
from iscp.cli.shell.drawing import pairs
from iscp.cli.shell.drawing import table as draw_table
from iscp.cli.shell.error_words import options_named
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.cli.view.view_lookup import find_view, refreshes_of, show_refreshes
from iscp.cli.view.view_options import (
    NAMED_TABLE,
    OWN_OPTIONS,
    REFRESH_OPTION,
    SQL_FILE_OPTION,
    SQL_OPTION,
    named_tables,
    read_query,
    view_fields,
)
from iscp.core.job.iteration import HistoryEntry
from iscp.core.query.query_explanation import (
    CHANGED_ROWS,
    ChangeCost,
    ExplainedOperator,
    OperatorUpkeep,
    QueryExplanation,
)
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.progress import TableSize

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
