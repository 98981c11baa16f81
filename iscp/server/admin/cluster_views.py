"""Show what the whole cluster does: the owner's view of nodes and shards, and what the nodes report themselves.

Read lines of the nodes' logs for users: of one node, or what all nodes have logged of one job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from iscp.cluster.membership.assignments import Holder
from iscp.cluster.membership.term import Peer, PeerPhase, Term
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.requests.job_views import JobLookup
from iscp.model.api.api_requests import JobName, JobOfLines, LogPage, LogPlace, LogQuery
from iscp.model.api.api_views import ClusterView, LeftOutJob, NodeView, ShardView
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.messages import SourceSeen
from iscp.model.values.errors import InvalidRequest, IscpError, no_etcd, no_owner
from iscp.model.values.ids import NodeRecord, ShardId
from iscp.ports.cluster import Membership
from iscp.ports.system import Clock
from iscp.schedule.lag import counts, lag_of

LEFT_OUT_SHOWN_MAX = 100
"""Jobs named that the global checkpoint leaves out; of others only their number."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A `_Seen` is what the owner's loop knows at one moment."""

    owner: str
    owner_rev: int
    records: tuple[NodeRecord, ...]
    nodes: tuple[NodeView, ...]
    shards: tuple[ShardView, ...]
    looks: Mapping[ShardId, SourceSeen]
    checkpoint_at_s: float
    catching_up: frozenset[str]
    moving: int


class ClusterViews:
    """The cluster as the owner sees it in its term."""

    def __init__(self, owner: OwnerLoop, membership: Membership, nodes: NodeClients, clock: Clock) -> None:
        self._owner = owner
        self._membership = membership
        self._nodes = nodes
        self._clock = clock

    def view(self, writer: LogWriter) -> ClusterView:
        """Return the view of the cluster; `writer` has the book with the jobs.

        Raises NotOwner where the term has ended meanwhile, Unavailable where etcd does not answer: then nobody knows
        whether what this node has seen is still so.
        """
        seen = self._owner.query(self._read)
        if not seen.owner:
            raise no_owner(self._owner.log_fault())
        counters, ages_s = self._nodes.counters(seen.records), self._lease_ages_s(seen.records)
        nodes = [_completed(node, counters.get(node.node_id), ages_s.get(node.node_id, -1.0)) for node in seen.nodes]
        rows = [row for row in writer.read(lambda book: book.rows()) if row.drop_at_s is None]
        left_out, left_out_count = _left_out(rows, seen.catching_up)
        now_s = self._clock.now_s()
        lags = [lag_of(row, seen.looks.get(row.key.shard), now_s) for row in rows]
        return ClusterView(
            owner=seen.owner,
            owner_rev=seen.owner_rev,
            nodes=tuple(nodes),
            shards=seen.shards,
            jobs=writer.read(lambda book: book.count()),
            lag_max_s=max((lag.most_s for lag in lags), default=-1.0),
            lag_max_least_s=max((lag.least_s for lag in lags), default=-1.0),
            counters=_summed(counters.values()),
            checkpoint_at_s=seen.checkpoint_at_s,
            left_out=left_out,
            left_out_count=left_out_count,
            moving=seen.moving,
        )

    def _lease_ages_s(self, records: tuple[NodeRecord, ...]) -> dict[str, float]:
        try:
            return self._membership.lease_ages_s(records)
        except IscpError as error:
            raise no_etcd(error) from error

    def _read(self, loop: OwnerLoop) -> _Seen:
        term = loop.machine.term
        shards = []
        for assignment in loop.machine.assignments:
            shard, jobs = assignment.shard, assignment.jobs
            holder = assignment.holder.node_id if assignment.holder else ""
            table = jobs[0].table_name if jobs else ""
            shards.append(ShardView(shard.table_id, table, holder, assignment.state.value, len(jobs), shard.range_id))
        return _Seen(
            owner=loop.machine.node_id if loop.writer is not None else "",
            owner_rev=loop.machine.owner_rev,
            records=loop.members,
            nodes=tuple(_node(record, term) for record in loop.members),
            shards=tuple(shards),
            looks=loop.sources.all_dated(),
            checkpoint_at_s=loop.checkpoint.at_s,
            catching_up=loop.checkpoint.catching_up,
            moving=len(term.moving) if term else 0,
        )


def _node(record: NodeRecord, term: Term | None) -> NodeView:
    peer = term.peers.get(record.node_id) if term else None
    assigned = term.assignments.assigned_to(Holder(record.node_id, record.epoch)) if term else ()
    return NodeView(
        node_id=record.node_id,
        pid=record.pid,
        address=record.address,
        epoch=record.epoch,
        version=record.version,
        state=_state(record, peer, term),
        shards=sum(1 for _ in assigned),
        queue_waiting=-1,
        queue_running=-1,
        in_flight=len(peer.in_flight) + len(peer.queue) if peer else 0,
    )


def _state(record: NodeRecord, peer: Peer | None, term: Term | None) -> str:
    if record.leaving:
        return "leaving"
    if peer is None or term is None or peer.phase is PeerPhase.ANNOUNCED:
        return "joining"
    if peer.phase is PeerPhase.REVOKED:
        return "revoked"
    overrides = term.placement.overrides
    if record.node_id in overrides.draining:
        return "draining"
    return "cordoned" if record.node_id in overrides.cordoned else "ready"


def _summed(counters: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums, those that are 0 included: a counter is to be seen before it counts."""
    totals: Counter[str] = Counter()
    for each in counters:
        totals.update(each)
    return dict(totals)


def _completed(node: NodeView, counters: dict[str, int] | None, lease_age_s: float) -> NodeView:
    """Return the view with what only the nodes know."""
    if counters is None:
        return replace(node, lease_age_s=lease_age_s)
    waiting, running = counters.get("waiting", 0), counters.get("running", 0)
    return replace(node, queue_waiting=waiting, queue_running=running, lease_age_s=lease_age_s)


def _left_out(jobs: Iterable[JobRow], catching_up: frozenset[str]) -> tuple[tuple[LeftOutJob, ...], int]:
    """Some of the jobs that the checkpoint does not speak for, and how many there are."""
    rows = list({row.registration: row for row in jobs if not counts(row) or row.job_id in catching_up}.values())
    some = tuple(LeftOutJob(row.table_name, row.key.job_name, _why(row)) for row in islice(rows, LEFT_OUT_SHOWN_MAX))
    return some, len(rows)


def _why(row: JobRow) -> str:
    if row.paused:
        return "paused"
    if row.watermark.version < 0:
        return "building"
    return "failed" if row.failed_for_good else "catching up"


class LogReader:
    """A query's `after` and `job` are set here; it gives the rest."""

    def __init__(self, owner: OwnerLoop, nodes: NodeClients, lookup: JobLookup) -> None:
        self._owner = owner
        self._nodes = nodes
        self._lookup = lookup

    def of_node(self, node_id: str, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        """Raises InvalidRequest where there is no such node, NotOwner."""
        self._owner.current_writer()
        records = [record for record in self._owner.members if record.node_id == node_id]
        if not records:
            there = ", ".join(sorted(record.node_id for record in self._owner.members)) or "none"
            raise InvalidRequest(f"there is no node {node_id!r}", about="node", remedy=f"The nodes are: {there}")
        return self._nodes.logs(records, lambda node_id: replace(query, after=after.get(node_id)))

    def of_job(self, job: JobName, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        """Raises JobNotFound, TableNotFound, NotOwner."""
        row = self._lookup.row(self._owner.current_writer(), job)
        tables = tuple(dict.fromkeys((row.key.table_id, row.table_name, row.table_uri)))
        wanted = replace(query, job=JobOfLines(row.job_id, row.key.job_name, row.key.account, tables))
        return self._nodes.logs(self._owner.members, lambda node_id: replace(wanted, after=after.get(node_id)))
