"""`iscp-admin context`: clusters by name, in a file of the user's own.

`iscp-admin version`: of this program, and of the nodes that it speaks to.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from iscp import __version__
from iscp.cli.shell import context_file, render
from iscp.cli.shell.arguments import anywhere, anywhere_output, complete_context, invocation, refuse_bad_endpoint
from iscp.cli.shell.context_file import Context, Invocation
from iscp.cli.shell.terminal import pairs, say, table
from iscp.model.values.errors import IscpError

_FILE = click.Path(dir_okay=False, exists=True, resolve_path=True)
_name = click.argument("name", metavar="NAME", shell_complete=complete_context)


@click.group()
@anywhere
def context() -> None:
    """Name clusters, and choose the one that commands go to.

    They are kept in iscp/config.toml below $XDG_CONFIG_HOME, or ~/.config. --endpoint, --context and ISCP_ENDPOINT win
    over what is chosen here.
    """


@context.command("list")
@invocation
def list_contexts(invocation: Invocation, /) -> None:
    """Show the contexts; the current one has a star."""
    contexts = context_file.load_contexts(context_file.config_path())
    known = sorted(contexts.known.items())
    rows = [{"name": name, "current": name == contexts.current, **asdict(each)} for name, each in known]
    if render.show(rows, invocation.output):
        return
    drawn = [("*" if name == contexts.current else "", name, each.endpoint, each.ca_file) for name, each in known]
    table(("", "NAME", "ENDPOINT", "AUTHORITY"), drawn, wide=invocation.wide)


@context.command()
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_context)
@invocation
def show(invocation: Invocation, /, name: str | None) -> None:
    """Show a context, or without NAME where commands go, and what says so."""
    chosen = context_file.choose(None, name) if name else invocation.chosen()
    row = {"name": chosen.name, "source": "context" if name else chosen.source, **asdict(chosen.context)}
    if not render.show(row, invocation.output):
        pairs({each.replace("_", " "): value for each, value in row.items()})


@context.command("set")
@_name
@click.option("--endpoint", metavar="HOST:PORT", callback=refuse_bad_endpoint, help="Its nodes, with commas between.")
@click.option("--ca-file", type=_FILE, metavar="FILE", help="Authorities to trust (PEM): TLS is used.")
@click.option("--cert-file", type=_FILE, metavar="FILE", help="The client's certificate (PEM).")
@click.option("--key-file", type=_FILE, metavar="FILE", help="The certificate's key (PEM).")
@click.option("--server-name", metavar="NAME", help="What the nodes' certificates name, where that is not the host.")
@click.option("--token-file", type=_FILE, metavar="FILE", help="The token that the user is known by.")
@anywhere_output
def set_context(invocation: Invocation, /, name: str, **given: str | None) -> None:
    """Make a context, or change what is given of one; the first one is the current one."""
    path = context_file.config_path()
    contexts = context_file.load_contexts(path)
    changes = {field: value for field, value in given.items() if value is not None}
    after = context_file.with_context(contexts, name, replace(contexts.known.get(name, Context("")), **changes))
    if not contexts.known:
        after = replace(after, current=name)
    context_file.save_contexts(path, after)
    if not render.show({"name": name, "file": str(path), "current": after.current == name}, invocation.output):
        say(f"{name} is kept in {path}" + (", and is the current one" if after.current == name else ""))


@context.command()
@_name
@anywhere_output
def use(invocation: Invocation, /, name: str) -> None:
    """Choose the context that commands go to."""
    path = context_file.config_path()
    contexts = context_file.load_contexts(path)
    chosen = contexts.get(name)
    context_file.save_contexts(path, replace(contexts, current=name))
    if not render.show({"name": name, "endpoint": chosen.endpoint}, invocation.output):
        say(f"commands go to {name} now: {chosen.endpoint}")


@context.command()
@_name
@anywhere_output
def delete(invocation: Invocation, /, name: str) -> None:
    """Delete a context; if it is the current one, none is."""
    path = context_file.config_path()
    contexts = context_file.load_contexts(path)
    contexts.get(name)
    context_file.save_contexts(path, context_file.with_context(contexts, name, None))
    if not render.show({"deleted": True}, invocation.output):
        say(f"{name} is deleted" + (", and no context is current" if contexts.current == name else ""))


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
