"""`iscp-admin top`: the worst targets, what the nodes ran, and the cluster, as the page's boards have them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from iscp.cli.shell import render
from iscp.cli.shell.arguments import invocation
from iscp.cli.shell.drawing import table
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.cli.shell.watch_option import repeat
from iscp.core.values.errors import NotAuthorized

if TYPE_CHECKING:
    from iscp.core.api.api_views import ClusterView
    from iscp.page.boards.freshness_board import FreshnessBoard
    from iscp.page.boards.time_line import TimeLine

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
    from iscp.page.boards.freshness_board import FreshnessFilter, freshness_board
    from iscp.page.boards.job_facts import all_facts
    from iscp.page.boards.time_line import time_line

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
    from iscp.page.boards.time_line import busy_lanes

    busy = {node.node_id: list(busy_lanes(node, SLOTS)) for node in line.nodes}
    known = {node.node_id: node for node in (cluster.nodes if cluster is not None else ())}
    return [
        {
            "id": node_id,
            "owner": cluster is not None and node_id == cluster.owner,
            "state": node.state if (node := known.get(node_id)) else "",
            "shards": node.shards if node else -1,
            "queue_running": node.queue_running if node else -1,
            "queue_waiting": node.queue_waiting if node else -1,
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
