"""A node put together: its server and its loops, with whom they speak."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

from iscp import __version__
from iscp.adapters.gateway.gateway_server import GatewayServer
from iscp.adapters.grpc.admin.admin_server import AdminServer, Service
from iscp.adapters.grpc.admin.forwarding import Forwarding
from iscp.adapters.grpc.node.node_server import NodeServer
from iscp.adapters.grpc.node.owner_streams import Peers
from iscp.bootstrap.access_parts import AccessSide, compose_access
from iscp.bootstrap.build_parts import both, compose_builds
from iscp.bootstrap.cluster_parts import Cluster
from iscp.bootstrap.foundation import Foundation
from iscp.bootstrap.owner_parts import compose_alerts, compose_owner_loop, compose_services
from iscp.bootstrap.preflight import refuse_misfit
from iscp.bootstrap.shard_parts import compose_engine, compose_iteration_ports, compose_target_probes
from iscp.coordination.protocol.effects import ShardOrder
from iscp.coordination.protocol.messages import OwnerMessage
from iscp.coordination.protocol.timeouts import CoordinationTimes
from iscp.coordination.worker_machine import WorkerMachine
from iscp.core.settings.config import NodeConfig
from iscp.core.values.members import NodeRecord
from iscp.ports.admin import AdminService
from iscp.runtime.node.lease_keeper import LeaseKeeper
from iscp.runtime.node.node import Node, NodeParts
from iscp.runtime.owner.event_collector import EventCollector
from iscp.runtime.owner.job_progress import ProgressSignal
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.owner.owner_ports import OwnerHooks
from iscp.runtime.worker.maintenance import UpkeepOrder
from iscp.runtime.worker.worker_loop import WorkerLoop


def compose(on: Foundation) -> Node:
    """A node on its adapters, not started."""
    config, clock, moved = on.config, on.clock, ProgressSignal()
    cluster = Cluster.connect(config, clock)
    times = replace(CoordinationTimes(), lease_ttl_s=config.etcd.lease_ttl_s, margin_s=config.etcd.margin_s)
    record = _record_of(config, clock.now_s())
    peers = Peers(config.etcd_prefix, config.node_id, lambda node_id, said: owner.receive(node_id, said), tls=on.tls)

    def send(to: NodeRecord, message: OwnerMessage) -> None:
        worker.receive([message]) if to.node_id == config.node_id else peers.send(to, message)

    hooks = OwnerHooks(
        *(send, peers.keep, moved.notify, on.on_broken),
        on_tables=lambda tables: on_tables(tables),
        on_synced=lambda record: collector.collect(record),
        on_woken=lambda shard: nodes.notify(shard, targets=False),
    )
    owner = compose_owner_loop(on, cluster, times, hooks)
    worker = WorkerLoop(
        lambda epoch: WorkerMachine(config.node_id, epoch, __version__, times),
        cluster.election,
        clock,
        send=lambda owner_id, message: (
            owner.receive(config.node_id, [message]) if owner_id == config.node_id else served.send(owner_id, message)
        ),
        on_broken=on.on_broken,
    )
    lease_hooks = worker.on_lease_lost, worker.on_lease_regained, on.on_broken
    keeper = LeaseKeeper(cluster.membership, record, clock, *lease_hooks)
    ports, target_probes = compose_iteration_ports(on, lambda: keeper.epoch), compose_target_probes(on)
    scheduler, executor, upkeep, here = compose_engine(on, ports, target_probes, keeper, worker)
    worker.orders.subscribe(scheduler.post, *get_args(ShardOrder))
    worker.orders.subscribe(upkeep.give, *get_args(UpkeepOrder))
    who = config.node_id, lambda: keeper.epoch, config.etcd_prefix, __version__
    served = NodeServer(*who, here, worker.receive, node_name=config.node_name if on.tls else "")
    here.borders, here.kept_events = (worker, peers, served, owner), owner.decisions.of_other_terms
    calls_of = lambda to: here if to.node_id == config.node_id else peers.call(to)  # noqa: E731
    nodes, collector = NodeClients(owner, calls_of), EventCollector(owner.decisions, calls_of)
    alerts, access = compose_alerts(on, owner, nodes), compose_access(config, cluster.etcd, clock)
    here.further_counters = lambda: {**alerts.counters(), **access.counters()}
    build_side = compose_builds(on, ports, cluster, owner, nodes, calls_of, keeper)
    here.build_worker, on_tables = build_side.worker, both(alerts.on_tables, build_side.on_tables)
    forwarding = _forward_to(owner, worker, on)
    admin, operator, shown = compose_services(on, cluster, moved, owner, nodes, target_probes, build_side.access)
    serving = _serve(on, admin, [served, operator, shown], forwarding, access)
    ends = nodes, collector, peers, forwarding, cluster.etcd
    work = keeper, owner, worker, scheduler, executor, upkeep
    parts = NodeParts(serving, *work, moved, ends, [alerts, *build_side.beside, *access.beside])
    preflight = partial(refuse_misfit, config, record, cluster.membership, on.tls)
    return Node(config.node_id, cluster.membership, cluster.election, parts, preflight)


def _record_of(config: NodeConfig, now_s: float) -> NodeRecord:
    who = config.node_id, 0, config.address, os.getpid(), __version__, now_s
    return NodeRecord(*who, authenticates=config.security.authentication)


def _forward_to(owner: OwnerLoop, worker: WorkerLoop, on: Foundation) -> Forwarding:
    here = on.config.node_id
    return Forwarding(lambda: owner.address_of(worker.owner_id, here), log_fault=owner.log_fault, tls=on.tls)


def _serve(
    on: Foundation,
    admin: AdminService,
    services: Sequence[Service],
    forwarding: Forwarding,
    access: AccessSide,
) -> AdminServer | GatewayServer:
    """All that the node listens with."""
    listen, gateway, health = on.config.listen, on.config.gateway.listen, on.config.health.listen
    all_services, interceptors = (*services, access.server), (*access.interceptors, forwarding)
    server = AdminServer(
        admin,
        listen,
        waits=on.config.waits,
        tls=on.tls,
        services=all_services,
        interceptors=interceptors,
        health_address=health,
    )
    return GatewayServer(server, gateway, __version__, tls=on.tls) if gateway else server
