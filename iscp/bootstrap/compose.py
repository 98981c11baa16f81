"""A node put together: its server and its loops, with whom they speak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from iscp import __version__
from iscp.adapters.gateway.gateway_server import GatewayServer
from iscp.adapters.grpc.admin.admin_server import AdminServer, Service
from iscp.adapters.grpc.admin.forwarding import Forwarding
from iscp.adapters.grpc.node.node_server import NodeServer
from iscp.bootstrap.access_parts import AccessSide, compose_access
from iscp.bootstrap.build_parts import compose_build_worker, compose_builder
from iscp.bootstrap.cluster_parts import Cluster
from iscp.bootstrap.coordination_parts import Coordination, Listeners, compose_coordination
from iscp.bootstrap.foundation import Foundation
from iscp.bootstrap.metric_parts import compose_metrics
from iscp.bootstrap.owner_parts import compose_alerts, compose_services
from iscp.bootstrap.page_parts import compose_page
from iscp.bootstrap.preflight import refuse_misfit
from iscp.bootstrap.read_parts import compose_feeds
from iscp.bootstrap.shard_parts import compose_engine, compose_iteration_ports, compose_target_probes
from iscp.core.values.members import NodeRecord
from iscp.ports.admin import AdminService
from iscp.ports.cluster import NodeCalls
from iscp.runtime.metrics.node_readings import NodeCounts
from iscp.runtime.node.node import Node, NodeParts, RunsBesideOwner, Server
from iscp.runtime.owner.event_collector import EventCollector
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.reads.account_turns import hanging_reads


def compose(foundation: Foundation) -> Node:
    """Compose a node on its adapters, not started. Functions reach the parts that are built later, once all runs."""
    config, clock = foundation.config, foundation.clock

    def notify_of_tables(table_ids: Iterable[str]) -> None:
        ids = tuple(table_ids)
        alerts.on_tables(ids)
        builder.on_tables(ids)

    def quarantined() -> Mapping[str, int]:
        borders = (coordination.worker, coordination.peers, served, coordination.owner)
        return {"quarantined": sum(border.quarantined for border in borders)}

    def calls_of(to: NodeRecord) -> NodeCalls:
        return local_calls if to.node_id == config.node_id else coordination.peers.call(to)

    cluster = Cluster.connect(config, clock, foundation.deaths)
    access = compose_access(config, cluster.etcd, clock)
    listeners = Listeners(
        send_to_owner=lambda owner_id, message: served.send(owner_id, message),
        on_tables=notify_of_tables,
        on_synced=lambda record: collector.collect(record),
        on_woken=lambda shard: nodes.notify(shard, targets=False),
    )
    coordination = compose_coordination(foundation, cluster, listeners)
    owner, worker, keeper = coordination.owner, coordination.worker, coordination.keeper
    ports, target_probes = compose_iteration_ports(foundation, lambda: keeper.epoch), compose_target_probes(foundation)
    engine = compose_engine(foundation, ports, target_probes, keeper, worker)
    build_worker = compose_build_worker(foundation, cluster, ports, keeper)
    counts = NodeCounts(
        [*engine.counters, quarantined, lambda: alerts.counters(), access.counters, foundation.counters, hanging_reads]
    )
    local_calls = engine.answer_calls(foundation.node_log, build_worker, owner.decisions.of_other_terms, counts)
    served = _serve_owners(foundation, coordination, local_calls)
    nodes, collector = NodeClients(owner, calls_of), EventCollector(owner.decisions, calls_of)
    alerts = compose_alerts(foundation, owner, nodes)
    builder = compose_builder(foundation, cluster, owner, nodes, calls_of)
    services = compose_services(foundation, cluster, coordination, nodes, target_probes, builder)
    forwarding = _forward(foundation, coordination)
    metrics = compose_metrics(foundation, cluster, coordination, engine, builder, counts, access)
    feeds = compose_feeds(foundation, services.admin, forwarding)
    others: list[Service] = [served, services.operator, services.builds, services.search, feeds]
    beside: list[RunsBesideOwner] = [cluster.deaths, alerts, services.retention, build_worker]
    parts = NodeParts(
        server=_serve(foundation, services.admin, others, forwarding, access),
        keeper=keeper,
        owner=owner,
        worker=worker,
        scheduler=engine.scheduler,
        executor=engine.executor,
        maintenance=engine.maintenance,
        progress=coordination.progress,
        connections=[
            *(*metrics.connections, engine.notices, nodes, collector, coordination.peers, forwarding, cluster.etcd),
            *foundation.connections,
        ],
        beside_owner=[*beside, builder, *access.beside, *metrics.beside],
    )
    preflight = partial(refuse_misfit, config, coordination.record, cluster.membership, foundation.tls)
    return Node(config.node_id, cluster.membership, cluster.election, parts, preflight)


def _serve_owners(foundation: Foundation, coordination: Coordination, calls: NodeCalls) -> NodeServer:
    config = foundation.config
    return NodeServer(
        node_id=config.node_id,
        epoch=lambda: coordination.keeper.epoch,
        cluster=config.etcd_prefix,
        version=__version__,
        calls=calls,
        heard=coordination.worker.receive,
        node_name=config.node_name if foundation.tls else "",
    )


def _forward(foundation: Foundation, coordination: Coordination) -> Forwarding:
    """Forward what the owner alone can answer."""
    owner, worker, node_id = coordination.owner, coordination.worker, foundation.config.node_id
    return Forwarding(lambda: owner.address_of(worker.owner_id, node_id), log_fault=owner.log_fault, tls=foundation.tls)


def _serve(
    foundation: Foundation,
    admin: AdminService,
    services: Sequence[Service],
    forwarding: Forwarding,
    access: AccessSide,
) -> Server:
    """Return all that the node listens with."""
    config = foundation.config
    server = AdminServer(
        admin,
        config.listen,
        waits=config.waits,
        tls=foundation.tls,
        services=[*services, access.server],
        interceptors=[*access.interceptors, *foundation.tracing.interceptors, forwarding],
        health_address=config.health.listen,
    )
    gateway = config.gateway.listen
    others = GatewayServer(server, gateway, __version__, tls=foundation.tls) if gateway else server
    return compose_page(foundation, others, lambda: server.address) if config.page.listen else others
