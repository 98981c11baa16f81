"""A cluster, its nodes and its shards, as they are drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from iscp.cli.shell import render
from iscp.cli.shell.drawing import pairs, table
from iscp.core.api.api_views import ClusterView, PlacedShard

LEFT_OUT_SHOWN_MAX = 5
"""Jobs shown that the global checkpoint leaves out; of others their number is shown."""


def show_cluster(cluster: ClusterView, *, wide: bool = False) -> None:
    row = render.cluster_row(cluster)
    pairs(
        {
            "owner": f"{cluster.owner}  (owner_rev {cluster.owner_rev})",
            "jobs": str(cluster.jobs),
            "shards": _shards_by_state(cluster),
            "greatest lag": render.lag_text(cluster.lag_max_s, cluster.lag_max_least_s),
            "checkpoint": f"{render.moment(cluster.checkpoint_at_s)}  {render.seconds(row['checkpoint_lag_s'])} behind",
            "left out of it": _left_out(cluster),
            "queue": ", ".join(f"{count} {name}" for name, count in row["queue"].items()),
        }
    )
    show_nodes(cluster, wide=wide)


def _shards_by_state(cluster: ClusterView) -> str:
    states = Counter(shard.state for shard in cluster.shards)
    parts = [f"{count} {state}" for state, count in sorted(states.items())]
    return ", ".join([*parts, *([f"{cluster.moving} of them moving"] if cluster.moving else [])]) or "0"


def _left_out(cluster: ClusterView) -> str:
    some = ", ".join(f"{job.table} {job.name} ({job.why})" for job in cluster.left_out[:LEFT_OUT_SHOWN_MAX])
    more = cluster.left_out_count - min(len(cluster.left_out), LEFT_OUT_SHOWN_MAX)
    return f"{some} and {more} more" if more else some


def show_nodes(cluster: ClusterView, *, wide: bool = False) -> None:
    table(
        ("NODE", "STATE", "ADDRESS", "PID", "EPOCH", "VERSION", "LEASE", "SHARDS", "IN FLIGHT", "WAITING", "RUNNING"),
        [
            (
                node.node_id + (" *" if node.node_id == cluster.owner else ""),
                node.state,
                node.address,
                str(node.pid),
                str(node.epoch),
                node.version,
                render.seconds(node.lease_age_s),
                str(node.shards),
                str(node.in_flight),
                render.version(node.queue_waiting),
                render.version(node.queue_running),
            )
            for node in cluster.nodes
        ],
        spare=("VERSION", "EPOCH", "PID", "IN FLIGHT", "LEASE", "ADDRESS"),
        wide=wide,
    )


def show_placement(shards: Sequence[PlacedShard], *, ring: bool, wide: bool = False) -> None:
    """Show where shards are; with `ring` also where they should be."""
    columns = ("TABLE", "RANGE", "STATE", "NODE", *(("PREFERRED", "PINNED", "WHY") if ring else ()))
    rows = [
        (
            shard.table or shard.table_id,
            str(shard.range_id),
            shard.state,
            shard.node_id or "-",
            *((shard.preferred, shard.pinned, shard.why) if ring else ()),
        )
        for shard in shards
    ]
    table(columns, rows, spare=("RANGE", "PREFERRED", "STATE"), wide=wide)
