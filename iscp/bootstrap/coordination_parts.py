"""Compose what a node coordinates with: its owner's and its worker's loop, its lease, and its streams to other
nodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from iscp import __version__
from iscp.adapters.delta.joblog.delta_job_log import DeltaJobLog
from iscp.adapters.grpc.node.owner_streams import Peers
from iscp.bootstrap.cluster_parts import Cluster
from iscp.bootstrap.foundation import Foundation
from iscp.coordination.owner_machine import OwnerMachine
from iscp.coordination.protocol.messages import NodeMessage, OwnerMessage
from iscp.coordination.protocol.timeouts import CoordinationTimes
from iscp.coordination.worker_machine import WorkerMachine
from iscp.core.settings.config import NodeConfig
from iscp.core.values.ids import ShardId
from iscp.core.values.members import NodeRecord
from iscp.runtime.node.lease_keeper import LeaseKeeper
from iscp.runtime.owner.job_progress import ProgressSignal
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.owner.owner_ports import JobLogAccess, OwnerHooks
from iscp.runtime.worker.worker_loop import WorkerLoop


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listeners are built after the loops, and hear from them once they run. See `OwnerHooks`."""

    send_to_owner: Callable[[str, NodeMessage], None]
    on_tables: Callable[[Iterable[str]], None]
    on_synced: Callable[[NodeRecord], None]
    on_woken: Callable[[ShardId], None]


@dataclass(frozen=True, slots=True)
class Coordination:
    """The parts of the coordination: `record` is what the node registers with, and `progress` wakes those who wait for
    a job.
    """

    record: NodeRecord
    peers: Peers
    progress: ProgressSignal
    owner: OwnerLoop
    worker: WorkerLoop
    keeper: LeaseKeeper


def compose_coordination(foundation: Foundation, cluster: Cluster, listeners: Listeners) -> Coordination:
    config, clock = foundation.config, foundation.clock
    times = replace(CoordinationTimes(), lease_ttl_s=config.etcd.lease_ttl_s, margin_s=config.etcd.margin_s)
    progress = ProgressSignal()
    peers = Peers(
        config.etcd_prefix,
        config.node_id,
        lambda node_id, messages: owner.receive(node_id, messages),
        tls=foundation.tls,
    )

    def send_to_node(to: NodeRecord, message: OwnerMessage) -> None:
        worker.receive([message]) if to.node_id == config.node_id else peers.send(to, message)

    def send_to_owner(owner_id: str, message: NodeMessage) -> None:
        if owner_id == config.node_id:
            owner.receive(config.node_id, [message])
        else:
            listeners.send_to_owner(owner_id, message)

    hooks = OwnerHooks(
        send=send_to_node,
        keep=peers.keep,
        on_progress=progress.notify,
        on_broken=foundation.on_broken,
        on_tables=listeners.on_tables,
        on_synced=listeners.on_synced,
        on_woken=listeners.on_woken,
    )
    machine = OwnerMachine(config.node_id, __version__, times)
    owner = OwnerLoop(machine, _job_log_access(foundation, cluster), cluster.ports, clock, hooks)
    worker = WorkerLoop(
        lambda epoch: WorkerMachine(config.node_id, epoch, __version__, times),
        cluster.election,
        clock,
        send=send_to_owner,
        on_broken=foundation.on_broken,
    )
    record = _record_of(config, clock.now_s())
    keeper = LeaseKeeper(
        cluster.membership,
        record,
        clock,
        on_lost=worker.on_lease_lost,
        on_regained=worker.on_lease_regained,
        on_broken=foundation.on_broken,
    )
    return Coordination(record=record, peers=peers, progress=progress, owner=owner, worker=worker, keeper=keeper)


def _record_of(config: NodeConfig, now_s: float) -> NodeRecord:
    return NodeRecord(
        node_id=config.node_id,
        epoch=0,
        address=config.address,
        pid=os.getpid(),
        version=__version__,
        started_at_s=now_s,
        authenticates=config.security.authentication,
    )


def _job_log_access(foundation: Foundation, cluster: Cluster) -> JobLogAccess:
    log = foundation.config.log

    def open_log() -> DeltaJobLog:
        return DeltaJobLog(
            log.uri,
            foundation.clock,
            foundation.failpoints,
            cluster=foundation.config.cluster,
            reached=cluster.ports.marks.load,
        )

    return JobLogAccess(open_log, log)
