"""`iscp-admin view apply`: the views of files of SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from iscp.cli.job.apply import CHECK_TIMEOUT_S
from iscp.cli.shell.arguments import DURATION, TARGET, account_option, anywhere, invocation
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.cli.view.view_options import TABLE_OPTION, read_text
from iscp.core.values.errors import InvalidRequest

if TYPE_CHECKING:
    from iscp.cli.view.view_statements import ViewStatement

F = TypeVar("F", bound=Callable[..., Any])

FILE_CHARS_MAX = 10_000_000
"""Characters of a file of views; a longer one is refused."""

_OPTIONS = (
    TABLE_OPTION,
    click.option(
        "--target-root", type=TARGET, required=True, metavar="DIR", help="Each view is kept in DIR, under its name."
    ),
    click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
    click.option("--resync", is_flag=True, help="Rebuild targets where a query has changed."),
    click.option("--yes", is_flag=True, help="Rebuild what is written CREATE OR REPLACE without a question."),
    click.option(
        "--timeout",
        "timeout_s",
        type=DURATION,
        default="1h",
        show_default=True,
        help="How long to wait for a new view that another one reads, before that one is registered.",
    ),
    account_option,
)


def project_options(command: F) -> F:
    """Give a command the options that say where the tables and targets of views are, and what may be done."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(name="apply")
@click.option(
    "-f",
    "--file",
    "sql_paths",
    type=click.Path(allow_dash=True),
    multiple=True,
    required=True,
    metavar="PATH",
    help="A file of CREATE MATERIALIZED VIEW statements, a directory of *.sql, or -.",
)
@project_options
@anywhere
@invocation
def apply_views_of_files(
    invocation: Invocation,
    /,
    sql_paths: tuple[str, ...],
    tables: dict[str, str],
    target_root: str,
    timeout_s: float,
    account: str,
    **flags: Any,
) -> None:
    """Make the views as files of SQL say: create, update, and leave alone what is so already.

    A view may read another one by its name. All is checked before anything is written, but for a view on a new view: it
    is registered once that one is built. Applying the same files again changes nothing.
    """
    from iscp.cli.view.view_order import TablePlaces, place_views
    from iscp.cli.view.view_plan import PlanOptions, apply_views, targets_of_views

    statements = _statements(sql_paths)
    with invocation.client() as client:
        known = {name.casefold(): uri for name, uri in tables.items()}
        views = place_views(statements, TablePlaces(target_root, known, targets_of_views(client, account)))
        if invocation.output != "json":
            warn_of_unkept(statements)
        check_timeout_s = invocation.within_s(CHECK_TIMEOUT_S)
        options = PlanOptions(account, timeout_s=timeout_s, check_timeout_s=check_timeout_s, **flags)
        apply_views(invocation, client, views, options)


def _statements(paths: Sequence[str]) -> list[ViewStatement]:
    """Raises InvalidRequest for the first that cannot be taken over."""
    from iscp.cli.view.sql_tokens import SqlSource
    from iscp.cli.view.view_statements import STATEMENT, parse_statements

    found: list[ViewStatement] = []
    for path in (file for each in paths for file in _files(each)):
        name = "stdin" if path == "-" else path
        for statement in parse_statements(SqlSource(read_text(path, name, FILE_CHARS_MAX), name)):
            if isinstance(statement, InvalidRequest):
                raise statement
            found.append(statement)
    if not found:
        raise InvalidRequest(
            "holds no view", field="stdin" if paths[0] == "-" else paths[0] or "--file", remedy=f"Write {STATEMENT}"
        )
    return found


def _files(path: str) -> list[str]:
    try:
        if path != "-" and Path(path).is_dir() and path:
            return sorted(str(file) for file in Path(path).rglob("*.sql") if file.is_file())
    except OSError:  # a name that is too long, which reading says
        return [path]
    return [path]


def warn_of_unkept(statements: Sequence[ViewStatement]) -> None:
    """On stderr: what statements say that has no effect here."""
    for each in statements:
        if each.unkept:
            clauses = ", ".join(dict.fromkeys(each.unkept))
            say(f"warning: {each.place}: of {each.name} not kept: {clauses}", err=True)
