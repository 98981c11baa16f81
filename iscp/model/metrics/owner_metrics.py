"""Metrics of the owner: nodes, shards, decisions, the job log and the global checkpoint."""

from __future__ import annotations

from iscp.model.metrics.metric import SECONDS, Attribute, DeclaredMetric, gauge, owner_counter, owner_gauge

STATE = Attribute("iscp.shard.state", "`absent` (no node has it), `dispatching`, `running` or `draining`")
DECISION = Attribute(
    "iscp.decision",
    "As in `iscp-admin events`: `term`, `join`, `sync`, `gone`, `revoke`, `dispatch`, `drain`, `clock`, `resign`",
)

LEADS = gauge("iscp.owner.leads", "{node}", "1 at the node that is the owner, 0 at all others")
NODES = owner_gauge("iscp.owner.nodes", "{node}", "Nodes that are registered")
SHARDS = owner_gauge("iscp.owner.shards", "{shard}", "[Shards](cluster.md) that have jobs", STATE)
MOVING = owner_gauge("iscp.owner.shards.moving", "{shard}", "Shards that are on their way to another node")
DECISIONS = owner_counter("iscp.owner.decisions", "{decision}", "Decisions of this node as the owner", DECISION)
CHECKPOINT_AGE = owner_gauge(
    "iscp.owner.checkpoint.age",
    SECONDS,
    "Age of the global checkpoint, up to which all jobs have applied all",
)
LOG_COMMITS = owner_counter("iscp.owner.log.commits", "{commit}", "Commits to the job log by this node")

METRICS: tuple[DeclaredMetric, ...] = (LEADS, NODES, SHARDS, MOVING, DECISIONS, CHECKPOINT_AGE, LOG_COMMITS)
