"""The commands of `iscp-admin` that are about the cluster as a whole.

They show and change which node has which shard (`node`, `shard`, `ring`, `rebalance`, `events`), show the kinds of
consumers (`consumer`), the worst targets (`top`) and versions (`version`), and name clusters in the user's file
(`context`).
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from iscp import __version__
from iscp.cli.shell import context_file, render
from iscp.cli.shell.arguments import (
    DURATION,
    any_table_argument,
    anywhere,
    anywhere_output,
    complete_context,
    invocation,
    node_argument,
    range_option,
    refuse_bad_endpoint,
    table_argument,
)
from iscp.cli.shell.context_file import Context, Invocation
from iscp.cli.shell.render import show_nodes, show_placement
from iscp.cli.shell.root_group import repeat, watched
from iscp.cli.shell.terminal import pairs, say, table
from iscp.model.api.api_requests import EventView
from iscp.model.values.errors import IscpError, NotAuthorized, TemporaryError, TimedOut

if TYPE_CHECKING:
    from iscp.client.admin_client import Client
    from iscp.model.api.api_requests import ClusterView
    from iscp.server.boards.freshness_board import FreshnessBoard, TimeLine

DRAIN_POLL_S = 0.5
"""Pause between two checks how many shards a drained node still holds."""

FOLLOW_WAIT_S = 20.0
"""Seconds that one call of `events --follow` waits for events; then the next call follows."""

_range = range_option("Only this shard of the table.")


# --- nodes and their shards -------------------------------------------------------------------------------------------


@click.group()
@anywhere
def node() -> None:
    """See the nodes, and say which are to have shards."""


@node.command("list")
@watched
@invocation
def node_list(invocation: Invocation, /) -> None:
    """Show the nodes."""
    with invocation.client() as client:
        cluster = client.cluster()
    if not render.show(render.cluster_row(cluster)["nodes"], invocation.output):
        show_nodes(cluster, wide=invocation.wide)


@node.command()
@node_argument
@invocation
def cordon(invocation: Invocation, /, node_id: str) -> None:
    """Give node N no further shards; it keeps those that it has."""
    _change_node(
        invocation, node_id, lambda client: client.operator.cordon(node_id), "is cordoned", "was cordoned already"
    )


@node.command()
@node_argument
@invocation
def uncordon(invocation: Invocation, /, node_id: str) -> None:
    """Take back `cordon` and `drain`."""
    _change_node(
        invocation, node_id, lambda client: client.operator.uncordon(node_id), "takes shards", "took shards already"
    )


def _change_node(
    invocation: Invocation, node_id: str, change: Callable[[Client], bool], now: str, already: str
) -> None:
    with invocation.client() as client:
        changed = change(client)
    if not render.show({"node": node_id, "changed": changed}, invocation.output):
        say(f"{node_id} {now if changed else already}")


@node.command()
@node_argument
@click.option("--wait", is_flag=True, help="Return when it holds no shard any more.")
@click.option("--timeout", "timeout_s", type=DURATION, default="5m", help="How long to wait; 5m if not given.")
@invocation
def drain(invocation: Invocation, /, node_id: str, wait: bool, timeout_s: float) -> None:
    """Move all shards away from node N, and give it none until `uncordon`."""
    until_s = time.monotonic() + timeout_s
    with invocation.client() as client:
        shards = client.operator.drain(node_id)
        while wait and shards:
            if time.monotonic() >= until_s:
                raise TimedOut(f"{node_id} still holds {shards} shards", remedy="It goes on; see `iscp-admin status`")
            time.sleep(DRAIN_POLL_S)
            with suppress(TemporaryError):  # the owner is changing
                shards = client.operator.drain(node_id)
    if not render.show({"node": node_id, "shards": shards}, invocation.output):
        say(f"{node_id} is drained" if not shards else f"{node_id} gives up {shards} shards")


@click.group()
@anywhere
def shard() -> None:
    """See where shards are, and say where they should be."""


@shard.command("list")
@any_table_argument
@watched
@invocation
def shard_list(invocation: Invocation, /, table: str | None) -> None:
    """Show the shards of table T, or all, with their state and node."""
    _show_placement(invocation, table, ring=False)


@shard.command()
@table_argument
@node_argument
@_range
@invocation
def move(invocation: Invocation, /, table: str, node_id: str, range_id: int) -> None:
    """Bring table T to node N, until the next rebalance (`pin` keeps it there)."""
    with invocation.client() as client:
        moved = client.operator.move(table, node_id, range_id=range_id)
    if not render.show({"table": table, "node": node_id, "moving": moved}, invocation.output):
        say(f"{moved} shards move to {node_id}" if moved else f"{table} is on {node_id} already")


@shard.command()
@table_argument
@node_argument
@_range
@invocation
def pin(invocation: Invocation, /, table: str, node_id: str, range_id: int) -> None:
    """Bring table T to node N and keep it there, whatever the ring says, as long as N is there."""
    with invocation.client() as client:
        changed = client.operator.pin(table, node_id, range_id=range_id)
    if not render.show({"table": table, "node": node_id, "changed": changed}, invocation.output):
        say(f"{table} is pinned to {node_id}" if changed else f"{table} was pinned to {node_id} already")


@shard.command()
@table_argument
@_range
@invocation
def unpin(invocation: Invocation, /, table: str, range_id: int) -> None:
    """Take back `pin`; the table returns to its preferred node with the next rebalance."""
    with invocation.client() as client:
        changed = client.operator.unpin(table, range_id=range_id)
    if not render.show({"table": table, "changed": changed}, invocation.output):
        say(f"{table} is not pinned any more" if changed else f"{table} was not pinned")


@shard.command()
@table_argument
@_range
@invocation
def split(invocation: Invocation, /, table: str, range_id: int) -> None:
    """Cut table T's ranges of keys in two, so that more nodes work on it.

    All its jobs have to be of consumers whose sinks are sharded themselves.
    """
    _reshard(invocation, table, lambda client: client.operator.split(table, range_id=range_id))


@shard.command()
@table_argument
@_range
@invocation
def merge(invocation: Invocation, /, table: str, range_id: int) -> None:
    """Put pairs of table T's ranges together again: the smallest, or the one that is named with its other half."""
    _reshard(invocation, table, lambda client: client.operator.merge(table, range_id=range_id))


def _reshard(invocation: Invocation, table: str, change: Callable[[Client], int]) -> None:
    with invocation.client() as client:
        ranges = change(client)
    if not render.show({"table": table, "ranges": ranges}, invocation.output):
        say(f"{table} is in {ranges} ranges now" if ranges > 1 else f"{table} is whole now")


@click.command()
@any_table_argument
@watched
@invocation
def ring(invocation: Invocation, /, table: str | None) -> None:
    """Show where the ring wants the shards of T, or all, where they are, and why that is not the same."""
    _show_placement(invocation, table, ring=True)


def _show_placement(invocation: Invocation, table: str | None, *, ring: bool) -> None:
    with invocation.client() as client:
        shards = client.operator.placement(table or "")
    if not render.show([dataclasses.asdict(each) for each in shards], invocation.output):
        show_placement(shards, ring=ring, wide=invocation.wide)


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would move.")
@invocation
def rebalance(invocation: Invocation, /, dry_run: bool) -> None:
    """Move shards to their preferred nodes now; it happens by itself once the nodes have settled."""
    with invocation.client() as client:
        moves = client.operator.rebalance(dry_run=dry_run)
    if not render.show([dataclasses.asdict(each) for each in moves], invocation.output):
        show_placement(moves, ring=True, wide=invocation.wide)
        say(f"{len(moves)} shards {'would move' if dry_run else 'move'}")


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on as they come, over changes of the owner too, until Ctrl-C.")
@invocation
def events(invocation: Invocation, /, follow: bool) -> None:
    """Show what owners have seen and decided, and why; with `-o json` one object a line."""
    with invocation.client() as client:
        for some in _following(client) if follow else [client.operator.events()]:
            _show_events(some, invocation.output)


def _following(client: Client) -> Iterator[list[EventView]]:
    last: EventView | None = None
    while True:
        some: list[EventView] = []
        with suppress(TemporaryError):  # the owner is changing: the next one's follow
            some = client.operator.events(last, wait_s=FOLLOW_WAIT_S if last else 0.0)
        if not some:
            time.sleep(DRAIN_POLL_S)
        last = some[-1] if some else last
        yield some


def _show_events(some: list[EventView], output: str) -> None:
    for event in some:
        if not render.show_line(dataclasses.asdict(event), output):
            say(render.event_line(event))


# --- kinds of consumers -----------------------------------------------------------------------------------------------


@click.group()
@anywhere
def consumer() -> None:
    """See what kinds of jobs there are."""


@consumer.command("list")
@invocation
def list_consumers(invocation: Invocation, /) -> None:
    """Show the kinds that `job register --consumer` takes, iscp's own and others, and what each does.

    They are those of the owner; all nodes of a cluster should have the same.
    """
    with invocation.client() as client:
        kinds = client.operator.consumers()
    if not render.show([dataclasses.asdict(each) for each in kinds], invocation.output):
        rows = [(each.name, each.fault or each.about, "" if each.own else each.package) for each in kinds]
        table(("KIND", "ABOUT", "PACKAGE"), rows, wide=invocation.wide)


# --- the worst targets ------------------------------------------------------------------------------------------------
# `iscp-admin top` shows the worst targets, what the nodes ran, and the cluster, by the same boards as the page.

JOBS_MAX = 20_000
"""Jobs among which the worst are found; those beyond are not seen."""

SLOTS = 40
"""Parts of the last ten minutes, each drawn as one character."""

_LEVELS = " ▁▂▃▄▅▆▇█"


@click.command()
@click.option("--rows", type=click.IntRange(1, 1_000), default=15, help="Targets that are shown, the worst ones.")
@click.option("--once", is_flag=True, help="Show it once. It is also shown once where stdout is no terminal.")
@invocation
def top(invocation: Invocation, /, rows: int, once: bool) -> None:
    """Show the worst targets and what the nodes run, until Ctrl-C."""
    if once or not sys.stdout.isatty():
        _show(invocation, rows)
    else:
        repeat(lambda: _show(invocation, rows), invocation)


def _show(invocation: Invocation, rows: int) -> None:
    from iscp.server.boards.freshness_board import FreshnessFilter, freshness_board, time_line
    from iscp.server.boards.job_board import all_facts

    cluster: ClusterView | None = None
    with invocation.client() as client:
        jobs = all_facts(client.jobs(limit=JOBS_MAX))
        try:
            cluster = client.cluster()
        except NotAuthorized:  # it is for those who act for all accounts
            cluster = None
    board = freshness_board(jobs, FreshnessFilter(), rows)
    line = time_line(jobs, {}, time.time())
    answer = {"counts": dict(board.counts), "targets": _targets(board), "nodes": _nodes(cluster, line)}
    if not render.show(answer, invocation.output):
        _draw(answer, invocation.wide)


def _targets(board: FreshnessBoard) -> list[dict[str, Any]]:
    return [
        {
            "target": job.title,
            "lag_s": job.lag_s,
            "lag_least_s": job.lag_least_s,
            "target_lag_s": job.target_lag_s,
            "condition": job.condition,
            "kind": job.kind,
            "account": job.account,
            "table": job.table,
            "name": job.name,
            "node_id": job.node_id,
        }
        for job in board.rows
    ]


def _nodes(cluster: ClusterView | None, line: TimeLine) -> list[dict[str, Any]]:
    """Return the nodes, those that are only known by what they ran too, with how many iterations they had at a time."""
    from iscp.server.boards.freshness_board import busy_lanes

    busy = {node.node_id: list(busy_lanes(node, SLOTS)) for node in line.nodes}
    known = {node.node_id: node for node in (cluster.nodes if cluster is not None else ())}
    return [
        {
            "id": node_id,
            "owner": cluster is not None and node_id == cluster.owner,
            "state": there.state if (there := known.get(node_id)) else "",
            "shards": there.shards if there else -1,
            "queue_running": there.queue_running if there else -1,
            "queue_waiting": there.queue_waiting if there else -1,
            "busy": busy.get(node_id, [0] * SLOTS),
        }
        for node_id in sorted(known.keys() | busy.keys())
    ]


def _draw(answer: Mapping[str, Any], wide: bool) -> None:
    say(", ".join(f"{number} {condition}" for condition, number in answer["counts"].items()) or "no jobs")
    say("")
    table(
        ("TARGET", "LAG", "TARGET LAG", "STATE", "KIND", "ACCOUNT", "NODE"),
        [
            (
                row["target"],
                render.lag_text(row["lag_s"], row["lag_least_s"]),
                render.seconds(row["target_lag_s"]),
                row["condition"],
                row["kind"],
                row["account"],
                row["node_id"],
            )
            for row in answer["targets"]
        ],
        spare=("ACCOUNT", "KIND", "NODE"),
        wide=wide,
    )
    say("")
    table(
        ("NODE", "STATE", "SHARDS", "RUNNING", "WAITING", "LAST 10 MIN"),
        [
            (
                row["id"] + (" *" if row["owner"] else ""),
                row["state"],
                render.version(row["shards"]),
                render.version(row["queue_running"]),
                render.version(row["queue_waiting"]),
                levels(row["busy"]),
            )
            for row in answer["nodes"]
        ],
        wide=wide,
    )


def levels(counts: Sequence[int]) -> str:
    """Return a character for each count, the higher the greater it is among them; a blank for 0."""
    most = max(counts, default=0)
    return "".join(_LEVELS[-(-each * (len(_LEVELS) - 1) // most) if most else 0] for each in counts)


# --- contexts ---------------------------------------------------------------------------------------------------------
# The contexts are clusters by name, in a file of the user's own.

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


# --- versions ---------------------------------------------------------------------------------------------------------


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
        _draw_contexts(row)
    if fault is not None:
        raise fault


def _draw_contexts(row: render.Row) -> None:
    say(f"client {row['client']}")
    if nodes := row.get("nodes"):
        say()
        table(
            ("NODE", "VERSION"),
            [(each["id"] + (" *" if each["id"] == row["owner"] else ""), each["version"]) for each in nodes],
        )
