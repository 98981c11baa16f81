"""The arguments and options of commands: what users type is parsed, completed in a shell, and checked.

The module has the types of arguments, the paths of `-o jsonpath`, the completion of names, and the options that stand
anywhere on the line. Nothing here imports gRPC: `--help` is to be there at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from iscp.cli.shell.context_file import Invocation
from iscp.model.job.registration_id import is_pattern
from iscp.model.values.errors import ConfigurationError, IscpError
from iscp.model.values.ids import DEFAULT_ACCOUNT
from iscp.model.values.untrusted_values import SECONDS_MAX

if TYPE_CHECKING:
    from iscp.client.admin_client import Client


# --- completion in a shell --------------------------------------------------------------------------------------------
# Tables, jobs, views, nodes and accounts are completed as the cluster knows them, and contexts as the user's file does.
# A shell waits meanwhile, and shows nothing but what it is given: names that cannot be found in time are no error, and
# are not completed.

COMPLETION_TIMEOUT_S = 1.0
"""Seconds that a shell waits for the cluster's names while it completes a word; then it completes none of them."""

COMPLETION_JOBS_MAX = 1_000
"""Jobs that are looked at to complete a word; names of others are not completed."""

Query = Callable[["Client", click.Context], Iterable[str]]


def script(shell: str, command: click.Command, program: str) -> str:
    """Return what makes a shell complete `program`. Raises click.UsageError for a shell that is not known."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell} cannot be completed")
    return str(kind(command, {}, program, f"_{program.replace('-', '_').upper()}_COMPLETE").source())


def beginning(incomplete: str, values: Iterable[str]) -> list[CompletionItem]:
    """Return the values that begin so, and that a shell would show as they are."""
    shown = (value for value in sorted(set(values)) if value.isprintable())
    return [CompletionItem(value) for value in shown if value.startswith(incomplete)]


class ClusterNameType(click.ParamType):  # type: ignore[type-arg]
    """A text, completed by what the cluster answers."""

    def __init__(self, name: str, query: Query) -> None:
        self.name = name
        self._query = query

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return beginning(incomplete, ask_cluster(ctx, self._query))


def ask_cluster(ctx: click.Context, query: Query) -> list[str]:
    """Return what the cluster answers; nothing if it does not answer in time."""
    from iscp.client.admin_client import Client

    try:
        chosen = ctx.ensure_object(Invocation).chosen().context
        with Client(chosen.endpoint, timeout_s=COMPLETION_TIMEOUT_S, tls=chosen.tls()) as client:
            return list(query(client, ctx))
    except (IscpError, OSError):
        return []


def tables_of(client: Client, ctx: click.Context) -> Iterable[str]:
    return (job.table for job in client.jobs(limit=COMPLETION_JOBS_MAX))


def _jobs_of(client: Client, ctx: click.Context) -> Iterable[str]:
    """Return the names of the jobs of the table that is on the line already."""
    from iscp.model.job.registration_id import is_pattern

    table = ctx.params.get("table") or ctx.params.get("tables") or "*"
    on: dict[str, Any] = {"table_pattern": table} if is_pattern(table) else {"table": table}
    return (job.name for job in client.jobs(**on, limit=COMPLETION_JOBS_MAX))


def _views_of(client: Client, ctx: click.Context) -> Iterable[str]:
    return (job.name for job in client.views())


def _nodes_of(client: Client, ctx: click.Context) -> Iterable[str]:
    return (node.node_id for node in client.cluster().nodes)


def _accounts_of(client: Client, ctx: click.Context) -> Iterable[str]:
    return (job.account for job in client.jobs(limit=COMPLETION_JOBS_MAX))


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the contexts of the user's file."""
    from iscp.cli.shell.context_file import config_path, load_contexts

    try:
        return beginning(incomplete, load_contexts(config_path()).known)
    except IscpError:
        return []


JOB_NAME, VIEW_NAME, NODE, ACCOUNT = (
    ClusterNameType("name", _jobs_of),
    ClusterNameType("view", _views_of),
    ClusterNameType("node", _nodes_of),
    ClusterNameType("account", _accounts_of),
)


# --- paths into an answer ---------------------------------------------------------------------------------------------
# The paths are as kubectl's jsonpath has them: `.status.error_code`, `{.nodes[0].id}`, `[*].name`. They have fields,
# indexes and `[*]` only; filters, slices, ranges and functions are not known. A field of a list is that of each of its
# items, and `.items` of a list is the list, so that paths for Kubernetes' lists fit these.

_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(?:(-?\d+)|(\*)|'([^']+)'|\"([^\"]+)\")\]")

Step = str | int | None
"""A field, an index, or all items (None)."""


def parse_path(text: str) -> tuple[Step, ...]:
    """Raises ValueError, which says what is wrong and what would be right."""
    path = text.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1].strip()
    path = path.removeprefix("$").removeprefix("@")
    if path and path[0] not in ".[":
        path = f".{path}"
    steps: list[Step] = []
    at = 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise ValueError(f"{text!r} is not a path: give fields, indexes and [*], as in .status.rows or [*].name")
        field, index, every, *quoted = found.groups()
        steps.append(None if every else int(index) if index else field or quoted[0] or quoted[1])
        at = found.end()
    if not steps:
        raise ValueError(f"{text!r} is an empty path: give fields, indexes and [*], as in .status.rows or [*].name")
    return tuple(steps)


def values_at(value: Any, path: tuple[Step, ...]) -> list[Any]:
    """Return what lies there, in order. Raises LookupError for a field that is not there, which says which are."""
    found = [value]
    for step in path:
        found = [each for one in found for each in _values_of(one, step)]
    return found


def _values_of(value: Any, step: Step) -> list[Any]:
    if isinstance(value, list):
        return _values_of_list(value, step)
    if isinstance(value, dict) and isinstance(step, str):
        if step not in value:
            raise LookupError(f"there is no field {step!r}; there are {', '.join(map(str, value)) or 'none'}")
        return [value[step]]
    if isinstance(value, dict) and step is None:
        return list(value.values())
    raise LookupError(f"{'[*]' if step is None else repr(step)} names a part of {value!r}, which has no parts")


def _values_of_list(value: list[Any], step: Step) -> list[Any]:
    match step:
        case None | "items":
            return value if step is None else [value]
        case int():
            return value[step : step + 1 or None]
        case str():
            return [each for one in value for each in _values_of(one, step)]


# --- types of arguments: durations, tables, columns, forms of the output ----------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])

ACCOUNT_VARIABLE = "ISCP_ACCOUNT"
"""Whose jobs commands name where `--account` does not say it."""

OUTPUTS = ("table", "wide", "json", "yaml", "name")
JSONPATH = "jsonpath="

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_CATALOG_NAME = re.compile(r"\w+(\.\w+){1,2}")
_TABLE_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def parse_duration_s(text: str) -> float:
    """Return the seconds of `60s`, `2m`, `1h30m`, `500ms`, or a bare number of seconds. Raises ValueError, whose text
    goes after `text`.
    """
    try:
        seconds = float(text)
    except ValueError:
        parts = _DURATION_PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError("is not a duration") from None
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if seconds > SECONDS_MAX:
        raise ValueError("is more than a hundred years")
    if not seconds >= 0:
        raise ValueError("is not a duration")
    return seconds


def absolute_table(text: str) -> str:
    """Return a local path made absolute, as the node runs elsewhere; URIs, `db.table` and table ids stay as they are.

    A text that could be both a path and a name of the catalog is a path if it exists.
    """
    if not text or _URI.match(text):
        return text
    path = os.path.abspath(os.path.expanduser(text))
    if os.path.exists(path):
        return path
    return text if _CATALOG_NAME.fullmatch(text) or _TABLE_ID.fullmatch(text) else path


def absolute_target(text: str) -> str:
    """Return a local path made absolute; URIs stay as they are."""
    return text if not text or _URI.match(text) else os.path.abspath(os.path.expanduser(text))


class DurationType(click.ParamType):  # type: ignore[type-arg]
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_duration_s(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}. Give it as in 500ms, 60s, 2m or 1h30m", param, ctx)


class TableType(click.ParamType):  # type: ignore[type-arg]
    name = "table"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("must not be empty. Give a path, a URI or db.table", param, ctx)
        return absolute_table(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return tables that have jobs, and directories."""
        here = CompletionItem(incomplete, type="dir")  # first: bash forgets what comes before it
        return [here, *beginning(incomplete, ask_cluster(ctx, tables_of))]


class ListenType(click.ParamType):  # type: ignore[type-arg]
    """The address of an option that may also stand without one, and then takes what follows it for one."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from iscp.system.tls.tls_files import split_address

        try:
            split_address(value)
        except ConfigurationError as error:
            option = param.opts[0] if param is not None else "the option"
            self.fail(
                f"{error.message}. Give it as in {option}=127.0.0.1:7432, or {option} behind all else", param, ctx
            )
        return str(value)


class TargetType(TableType):
    """A place for a table that need not be there yet: never a name of the catalog."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("must not be empty. Give a path or a URI", param, ctx)
        return absolute_target(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="dir")]


class TablesType(TableType):
    """A table, or a shell-style pattern of tables as they were registered."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_pattern(value):
            return super().convert(value, param, ctx)
        # A pattern with a directory in it is of paths, which are absolute in the job.
        relative = "/" in value and not _URI.match(value) and not value.startswith(("/", "*"))
        return os.path.abspath(os.path.expanduser(value)) if relative else str(value)


def matching(tables: str, names: str) -> dict[str, Any]:
    """Return what `Client.jobs` takes for T and N; `*` is all. T without a pattern is one table, by whichever of its
    names.
    """
    on = "table_pattern" if is_pattern(tables) else "table"
    return {on: "" if tables == "*" else tables, "name_pattern": "" if names == "*" else names}


class ColumnsType(click.ParamType):  # type: ignore[type-arg]
    name = "a,b"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        columns = value if isinstance(value, tuple) else split_columns(value)
        if not columns:
            # Without a key a replica is append-only: nobody is to get that by an empty variable of a shell script.
            self.fail(f"{value!r} names no column. Give them as in a,b, or leave the option out", param, ctx)
        return columns


def split_columns(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


class OutputType(click.ParamType):  # type: ignore[type-arg]
    name = "format"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return beginning(incomplete, (*OUTPUTS, JSONPATH))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in OUTPUTS:
            return str(value)
        if value == "text":  # as commands for feeds call it
            return "table"
        if not value.startswith(JSONPATH):
            self.fail(f"{value!r} is not one of {', '.join(OUTPUTS)} and {JSONPATH}PATH", param, ctx)
        try:
            parse_path(value.removeprefix(JSONPATH))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class WholeNumber(click.IntRange):
    """Refuses other text as "not a valid integer", where click's own says "not a valid integer range"."""

    name = "integer"


INT64_MAX, UINT32_MAX = 2**63 - 1, 2**32 - 1
VERSION, RANGE, LIMIT = WholeNumber(0, INT64_MAX), WholeNumber(0, INT64_MAX), WholeNumber(1, UINT32_MAX)
DURATION, TABLE, TABLES, COLUMNS = DurationType(), TableType(), TablesType(), ColumnsType()
TARGET = TargetType()


# --- options that stand anywhere on the line --------------------------------------------------------------------------


def refuse_bad_endpoint(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Raises click.BadParameter unless each address is HOST:PORT."""
    from iscp.system.tls.tls_files import split_addresses

    try:
        if value is not None:
            split_addresses(value)
    except ConfigurationError as error:
        raise click.BadParameter(f"{error.message}. {error.remedy}") from error
    return value


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store the value in the invocation, by the option's name."""
    invocation = ctx.ensure_object(Invocation)
    if value is not None:
        setattr(invocation, str(param.name), value)


def _keep_endpoint(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    _keep(ctx, param, refuse_bad_endpoint(ctx, param, value))


_output_option = click.option(
    "-o",
    "--output",
    type=OutputType(),
    metavar="FORMAT",
    expose_value=False,
    callback=_keep,
    help="table (the default), wide, json, yaml, name, or jsonpath=PATH, as in jsonpath=.status.rows.",
)


def _keep_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Invocation).output = "json"


_json_option = click.option("--json", is_flag=True, hidden=True, expose_value=False, callback=_keep_json)
"""The short form of `-o json`, which some commands had before all had that one."""


def output_options(command: F) -> F:
    """Give a command or group the options that say in which form the answer is printed."""
    return _json_option(_output_option(command))


def anywhere_output(command: F) -> F:
    """Give a command that calls no node the option -o, and the Invocation that has it as its first argument."""
    passing: F = click.make_pass_decorator(Invocation, ensure=True)(command)  # type: ignore[assignment]
    return output_options(passing)


def anywhere(command: F) -> F:
    """Give a command or group the options --endpoint, --context, --request-timeout and -o."""
    for option in (
        click.option(
            "--endpoint",
            metavar="HOST:PORT",
            expose_value=False,
            callback=_keep_endpoint,
            help="The node to speak to, or several with commas; else --context, ISCP_ENDPOINT, the current context, "
            "127.0.0.1:7430.",
        ),
        click.option(
            "--context",
            metavar="NAME",
            expose_value=False,
            callback=_keep,
            shell_complete=complete_context,
            help="The cluster to speak to, by its name in the user's file; see `iscp-admin context`.",
        ),
        click.option(
            "--request-timeout",
            "request_timeout_s",
            type=DURATION,
            expose_value=False,
            callback=_keep,
            help="How long a request may take, with its repetitions; 30s if not given, and more where it takes longer. "
            "What waits has a --timeout of its own.",
        ),
    ):
        command = option(command)
    return output_options(command)


# --- arguments and options that commands share ------------------------------------------------------------------------

table_argument = click.argument("table", type=TABLE, metavar="T")
any_table_argument = click.argument("table", type=TABLE, metavar="[T]", required=False, default=None)
node_argument = click.argument("node_id", type=NODE, metavar="N")


def job_arguments(command: F) -> F:
    """Give a command the arguments T and N, which name a job."""
    return table_argument(click.argument("name", type=JOB_NAME, metavar="N")(command))


def jobs_arguments(command: F) -> F:
    """Give a command the arguments T and N, which may be patterns and match all jobs where they are not given."""
    names = click.argument("names", type=JOB_NAME, metavar="[N]", default="*")
    return click.argument("tables", type=TABLES, metavar="[T]", default="*")(names(command))


def range_option(about: str) -> Callable[[F], F]:
    return click.option("--range", "range_id", type=RANGE, default=0, help=about)


def timeout_option(default: str, about: str) -> Callable[[F], F]:
    return click.option("--timeout", "timeout_s", type=DURATION, default=default, show_default=True, help=about)


def files_option(about: str) -> Callable[[F], F]:
    """Return the option -f, which names files, as `paths`."""
    return click.option(
        "-f",
        "--file",
        "paths",
        type=click.Path(allow_dash=True),
        multiple=True,
        required=True,
        metavar="PATH",
        help=about,
    )


account_option = click.option(
    "--account",
    type=ACCOUNT,
    default=DEFAULT_ACCOUNT,
    show_default=True,
    envvar=ACCOUNT_VARIABLE,
    help=f"The tenant; else {ACCOUNT_VARIABLE}.",
)
"""The option of commands that name a job."""

of_account = click.option("--account", type=ACCOUNT, metavar="A", default="", help="Only jobs of this tenant.")
"""The option of commands that select jobs."""


def invocation(command: F) -> F:
    """Give a command the options of `anywhere`, and the Invocation that they make as its first argument."""
    passing: F = click.make_pass_decorator(Invocation)(command)  # type: ignore[assignment]
    return anywhere(passing)
