"""Complete in a shell: tables, jobs, nodes and accounts as the cluster knows them, contexts, formats and fields.

A shell waits meanwhile, and shows nothing but what it is given: names that cannot be found in time are no error, and
are not completed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from iscp.cli.shell.invocation import Invocation
from iscp.core.values.errors import IscpError

if TYPE_CHECKING:
    from iscp.client.admin_client import Client

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
    from iscp.core.job.name_patterns import is_pattern

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
