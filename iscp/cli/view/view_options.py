"""The options of `iscp-admin view …`: a query, where its tables are, and which view is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from iscp.cli.shell.arguments import DURATION, TABLE, VERSION, VIEW_NAME, absolute_table, account_option
from iscp.model.spec.spec import PRIORITY_MAX, PRIORITY_MIN
from iscp.model.spec.spec_parsing import OPTIONS_FIELD, REFRESH_POLICIES, WAITS_FOR_S, ViewFields, view_text
from iscp.model.values.errors import InvalidRequest

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

SQL_CHARS_MAX = 200_000
"""Characters of a query in a file; a longer one is refused, as no job_spec may hold it."""

OWN_OPTIONS: Mapping[str, str] = {
    f"{OPTIONS_FIELD}.sql": "--sql",
    f"{OPTIONS_FIELD}.tables": "--table",
    f"{OPTIONS_FIELD}.refresh": "--refresh",
    f"{OPTIONS_FIELD}.deletion_vectors": "--no-deletion-vectors",
    f"{OPTIONS_FIELD}.hold_s": "--hold",
    f"{OPTIONS_FIELD}.waits_for_s": "--waits-for",
    "job.name": "NAME",
}
"""The names of a view's options on the command line, by the paths that a node names."""


class NamedTableType(click.ParamType):  # type: ignore[type-arg]
    """A name of the query with the place that it stands for."""

    name = "name=uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, uri = str(value).partition("=")
        if not (name.strip() and equals and uri.strip()):
            self.fail(f"{value!r} is not NAME=URI. Give it as in orders=/lake/orders", param, ctx)
        return name.strip(), absolute_table(uri.strip())


class NamedVersionType(click.ParamType):  # type: ignore[type-arg]
    """A table of the query with a version of it."""

    name = "table=version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, equals, version = str(value).rpartition("=")
        if not (name.strip() and equals):
            self.fail(f"{value!r} is not TABLE=VERSION. Give it as in orders=7", param, ctx)
        return name.strip(), VERSION(version, param, ctx)


NAMED_TABLE = NamedTableType()


def named_tables(ctx: click.Context, param: click.Parameter | None, given: tuple[tuple[str, T], ...]) -> dict[str, T]:
    """Return what is given of each, in the order of the line. Raises click.BadParameter for a name that is given
    twice.
    """
    tables: dict[str, T] = {}
    for name, each in given:
        if tables.setdefault(name, each) != each:
            raise click.BadParameter(f"{name!r} is given twice: {tables[name]} and {each}")
    return tables


TABLE_OPTION = click.option(
    "--table",
    "tables",
    type=NAMED_TABLE,
    multiple=True,
    metavar="NAME=URI",
    callback=named_tables,
    help="Where a table of the query is; again for each.",
)
VERSIONS_OPTION = click.option(
    "--version",
    "versions",
    type=NamedVersionType(),
    multiple=True,
    metavar="TABLE=VERSION",
    callback=named_tables,
    help="Of a table, by its name in the query; again for each.  [default: the newest at the call]",
)
SQL_OPTION = click.option("--sql", metavar="SELECT", help="The query.")
SQL_FILE_OPTION = click.option(
    "--sql-file", type=click.Path(allow_dash=True), metavar="FILE", help="The query, in a file; - is stdin."
)
REFRESH_OPTION = click.option(
    "--refresh", type=click.Choice(REFRESH_POLICIES), help="How it may be refreshed.  [default: auto]"
)

VECTORS_OPTION = click.option(
    "--deletion-vectors/--no-deletion-vectors",
    default=True,
    show_default=True,
    help="The target may have them, so that a change rewrites none of its files; not all readers know them.",
)

HOLD_OPTION = click.option(
    "--hold",
    "hold_s",
    type=DURATION,
    default=0.0,
    metavar="D",
    help="Alter the tables to keep removed files and old commits for D, as in 7d, until the view is dropped.",
)

WAITS_FOR_OPTION = click.option(
    "--waits-for",
    "waits_for_s",
    type=DURATION,
    metavar="D",
    help="Wait for D at most until tables that follow from one table have come to one version of it.  "
    f"[default: {WAITS_FOR_S:.0f}s]",
)

_RUN_OPTIONS = (
    click.option("--every", type=DURATION, metavar="D", help="Refresh at most once in D, as in 10m.  [on change]"),
    click.option("--cron", metavar="CRON", help="Refresh at these times, as in '30 6 * * *'."),
    click.option("--time-zone", metavar="ZONE", help="Of --cron, as Europe/Berlin.  [default: UTC]"),
    click.option("--target-lag", type=DURATION, metavar="D", help="By how much the view may lie behind, as in 30s."),
    click.option("--priority", type=click.IntRange(PRIORITY_MIN, PRIORITY_MAX), metavar="P", help="Higher goes first."),
)
_ONE_VIEW = (
    click.argument("name", type=VIEW_NAME, metavar="NAME"),
    click.option("--table", type=TABLE, metavar="URI", help="Where several have the name: on this table."),
    account_option,
)


def run_options_of_views(command: F) -> F:
    """Give a command the options that say when and how a view is refreshed."""
    return _with(command, _RUN_OPTIONS)


def one_view(command: F) -> F:
    """Give a command the argument NAME and the options that single out the view; handed on as name, table, account."""
    return _with(command, _ONE_VIEW)


def _with(command: F, options: tuple[Callable[[F], F], ...]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def read_query(sql: str | None, sql_file: str | None) -> str:
    """Return the query, from the line or a file. Raises click.UsageError if both are given, InvalidRequest if none is.

    The text is handed on as it is: the node decides what it may be.
    """
    if sql is not None and sql_file is not None:
        raise click.UsageError("--sql and --sql-file cannot go together")
    given = view_text(read_text(sql_file, "--sql-file", SQL_CHARS_MAX) if sql_file is not None else sql)
    if not given:
        field = "--sql" if sql_file is None else "--sql-file"
        raise InvalidRequest("holds no query", field=field, remedy="Give one by --sql or --sql-file")
    return given


def read_text(path: str, field: str, chars_max: int) -> str:
    """Raises InvalidRequest of `field` for a file that cannot be read, is no UTF-8, or is longer than `chars_max`."""
    try:
        with click.open_file(path, encoding="utf-8") as stream:
            text = str(stream.read(chars_max + 1))
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or error
        raise InvalidRequest(f"{path} cannot be read: {why}", about=field, remedy="Name a text file") from error
    if len(text) > chars_max:
        raise InvalidRequest(f"{path} has more than {chars_max} characters", about=field, remedy="Split it")
    return text


def view_fields(sql: str, tables: Mapping[str, str], target: str, refresh: str | None, **run: Any) -> ViewFields:
    """Raises InvalidRequest where no table is named."""
    if not tables:
        raise InvalidRequest(
            "is missing", field="--table", remedy="Say where each table of the query is, as in --table orders=/lake/o"
        )
    return ViewFields(sql, tables, target, refresh or "", run)
