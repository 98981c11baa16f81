"""`iscp-admin`: the commands of operators and users to a cluster.

Starts at once: no JVM, and gRPC, YAML and rich only where a command needs them.
The exit statuses are those of `ExitStatus`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from iscp import __version__
from iscp.cli.changefeed.node_feed import node_feed
from iscp.cli.cluster.backup_commands import backup
from iscp.cli.cluster.build_commands import build
from iscp.cli.cluster.cluster_commands import consumer, context, events, node, rebalance, ring, shard, top, version
from iscp.cli.cluster.token_commands import audit, bootstrap, token
from iscp.cli.index.index_commands import node_search
from iscp.cli.job.explain_command import explain
from iscp.cli.job.job_commands import export, job
from iscp.cli.job.status_commands import job_logs, node_logs
from iscp.cli.shell import render
from iscp.cli.shell.arguments import anywhere, anywhere_output, invocation, table_argument
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.render import show_cluster
from iscp.cli.shell.root_group import (
    RootGroup,
    exit_status,
    pages_argument,
    shell_argument,
    show_script,
    show_written,
    watched,
)
from iscp.cli.shell.terminal import say
from iscp.cli.view.apply_command import apply
from iscp.cli.view.view_commands import view
from iscp.model.values.errors import IscpError

PROGRAM = "iscp-admin"


class _Root(RootGroup):
    """The group of all commands, whose exit statuses are those of `ExitStatus`."""

    def status_of(self, error: IscpError) -> int:
        return exit_status(error)


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
@anywhere
def cli() -> None:
    """Manage the jobs and nodes of an iscp cluster."""


for command in (
    *(job, view, build, context, explain, apply, export, node_search, node_feed, node, shard, ring, rebalance, events),
    *(top, backup, token, audit, version, consumer),
):
    cli.add_command(command)
node.add_command(node_logs)
token.add_command(bootstrap)
job.add_command(job_logs)


@cli.command()
@table_argument
@invocation
def notify(invocation: Invocation, /, table: str) -> None:
    """Report that table T has just changed: it is probed at once."""
    with invocation.client() as client:
        jobs = client.notify(table)
    if not render.show({"jobs": jobs}, invocation.output):
        say(f"{jobs} jobs read {table}")


@cli.command()
@watched
@invocation
def status(invocation: Invocation, /) -> None:
    """Show the nodes, the owner, the shards, the queue and the lag."""
    with invocation.client() as client:
        cluster = client.cluster()
    if not render.show(render.cluster_row(cluster), invocation.output):
        show_cluster(cluster, wide=invocation.wide)


@cli.command()
@shell_argument
@anywhere_output
def completion(invocation: Invocation, /, shell: str) -> None:
    """Print a script that completes this command in a shell.

    As in: eval "$(iscp-admin completion bash)"
    """
    show_script(shell, cli, PROGRAM, invocation.output)


@cli.command()
@pages_argument
@anywhere_output
def man(invocation: Invocation, /, directory: Path) -> None:
    """Write the manual pages of all commands into DIR, as in ~/.local/share/man/man1."""
    show_written(cli, PROGRAM, directory, invocation.output)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point, of `sys.argv` where no arguments are given."""
    cli(arguments, prog_name=PROGRAM)
