"""`iscp-admin version`: of this program, and of the nodes that it speaks to."""

from __future__ import annotations

import click

from iscp import __version__
from iscp.cli.shell import render
from iscp.cli.shell.arguments import invocation
from iscp.cli.shell.drawing import table
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.core.values.errors import IscpError


@click.command()
@click.option("--client", "client_alone", is_flag=True, help="Only of this program; no node is called.")
@invocation
def version(invocation: Invocation, /, client_alone: bool) -> None:
    """Show the version of this program and of each node.

    If no node answers, the version of this program is shown all the same, and the exit status is 1.
    """
    row: render.Row = {"client": __version__}
    fault: IscpError | None = None
    if not client_alone:
        try:
            with invocation.client() as client:
                cluster = client.cluster()
            row["owner"] = cluster.owner
            row["nodes"] = [{"id": node.node_id, "version": node.version} for node in cluster.nodes]
        except IscpError as error:
            fault = error
    if not render.show(row, invocation.output):
        _draw(row)
    if fault is not None:
        raise fault


def _draw(row: render.Row) -> None:
    say(f"client {row['client']}")
    if nodes := row.get("nodes"):
        say()
        table(
            ("NODE", "VERSION"),
            [(each["id"] + (" *" if each["id"] == row["owner"] else ""), each["version"]) for each in nodes],
        )
