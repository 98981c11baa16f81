"""A node put together: its server and its loops, with whom they speak, and the process in which they run.

The page's libraries are loaded only where the page is served.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from iscp import __version__
from iscp.app.coordination_parts import (
    AccessSide,
    Cluster,
    Coordination,
    Listeners,
    compose_access,
    compose_alerts,
    compose_build_worker,
    compose_builder,
    compose_coordination,
    compose_feeds,
    compose_metrics,
    compose_services,
)
from iscp.app.foundation import Foundation
from iscp.app.settings import spark_settings
from iscp.app.shard_parts import compose_engine, compose_iteration_ports, compose_target_probes
from iscp.app.table_access import run_self_tests
from iscp.cluster.metering import NodeCounts
from iscp.cluster.node import Node, NodeParts, RunsBesideOwner, Server
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.owner.owner_events import EventCollector
from iscp.delta.joblog.delta_job_log import refuse_other_cluster
from iscp.engine.account_turns import hanging_reads
from iscp.model.settings.config import NodeConfig
from iscp.model.values.errors import ConfigurationError, IscpError
from iscp.model.values.ids import NODES_MAX, TTL_RATIO_MAX, NodeRecord, ttls_fit, understands
from iscp.model.values.untrusted_values import extra_missing
from iscp.ports.admin import AdminService
from iscp.ports.cluster import Membership, NodeCalls
from iscp.ports.engine import NO_DEATHS, NodeDeaths, NodeLog
from iscp.server.admin.admin_server import AdminServer, Service
from iscp.server.admin.forwarding import Forwarding
from iscp.server.http.gateway_server import GatewayServer
from iscp.server.node.node_server import NodeServer
from iscp.server.node.owner_streams import describe
from iscp.spark.session import SparkRuntime
from iscp.storage.dataset_trial import try_datasets
from iscp.storage.s3_settings import enter_s3
from iscp.system.crash_ledger import CrashLedger
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.small_files import (
    files_needed,
    open_files_limit,
    raise_open_files_limit,
    refuse_too_few_files,
    scratch_directory,
)
from iscp.system.threads import collect_rarely
from iscp.system.tls.tls_files import TlsSource
from iscp.views.analysis.separate_analysis import SeparateAnalysis, settings_apart

log = logging.getLogger(__name__)

# --- the page for browsers --------------------------------------------------------------------------------------------


def compose_page(foundation: Foundation, others: Server, admin_address: Callable[[], str]) -> Server:
    """Return the page's server, with which `others` start and stop; `admin_address` is known once those have started.

    Raises ConfigurationError where its libraries are not installed.
    """
    try:
        from iscp.server.page.page_server import PageServer, PageSettings
    except ModuleNotFoundError as error:
        if not (sentence := extra_missing(error, "page")):
            raise
        raise ConfigurationError(f"is set, and {sentence}", field="page.listen", remedy="Or leave it empty") from error
    config = foundation.config
    settings = PageSettings(
        listen=config.page.listen,
        hosts=config.page.hosts,
        authentication=config.security.authentication,
        cluster=config.cluster,
        node_id=config.node_id,
    )
    return PageServer(others, admin_address, settings, foundation.clock, foundation.tls)


# --- the node ---------------------------------------------------------------------------------------------------------


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


# --- a node's process -------------------------------------------------------------------------------------------------
# Spark and the node are started, supervised, and stopped by a signal.

JVM_LOOK_S = 0.5
"""Pause between two checks whether Spark still runs; when it does not, the node ends."""

KILL_AFTER_S = 8.0
"""Seconds that a node may live beyond the time that an orderly stop may take; then the process ends as it is."""


def run_node(config: NodeConfig, node_log: NodeLog) -> int:
    """Run one node until SIGTERM or SIGINT; the exit status (1: it could not go on and wants to be restarted).

    `node_log`: what this process keeps of its log.
    """
    stop = threading.Event()
    broken = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def on_broken(error: Exception) -> None:
        log.critical("node.broken", extra={"error": str(error)})
        broken.set()
        stop.set()

    _raise_open_files_limit()
    given = nullcontext(Path(config.data_dir)) if config.data_dir else scratch_directory("iscp-node-")
    with given as work_dir:
        enter_s3(config.storage.s3)  # before the JVM and other children: they inherit it
        settings = spark_settings(config, work_dir)
        spark = SparkRuntime.start(settings)
        try:
            analysis = SeparateAnalysis(settings_apart(settings, config.spark.analysis_memory_mb))
            with closing(analysis), _deaths(config) as deaths:
                tested = run_self_tests(config, spark)
                foundation = Foundation.lay(
                    config,
                    spark,
                    failpoints=EnvironmentFailpoints(),
                    on_broken=on_broken,
                    tested=tested,
                    node_log=node_log,
                    deaths=deaths,
                    analysis=analysis,
                )
                _run(compose(foundation), foundation, stop, broken)
        finally:
            spark.stop()
    return 1 if broken.is_set() else 0


def _run(node: Node, foundation: Foundation, stop: threading.Event, broken: threading.Event) -> None:
    collect_rarely()
    try:
        node.start(stop)
    except BaseException:
        _exit_after(KILL_AFTER_S)
        node.stop(0.0)
        raise
    while not stop.wait(JVM_LOOK_S):
        if not foundation.spark.alive():
            foundation.on_broken(RuntimeError("Spark has ended: its JVM, or its application on the cluster"))
    _exit_after(foundation.config.stop_timeout_s + KILL_AFTER_S)
    node.stop(0.0 if broken.is_set() else foundation.config.stop_timeout_s)


@contextmanager
def _deaths(config: NodeConfig) -> Iterator[NodeDeaths]:
    """Yield the jobs' deaths, stored if the node has a directory that it has after a restart too."""
    ledger = None
    try_datasets(Path(config.data_dir) / "index-files" if config.data_dir else None)
    if config.data_dir:
        try:
            ledger = CrashLedger(Path(config.data_dir) / "crashes", time.time)
        except OSError as error:  # it runs without
            log.warning("node.deaths_not_kept", extra={"error": str(error)})
    if ledger is None:
        yield NO_DEATHS
        return
    with closing(ledger):
        yield ledger


def _raise_open_files_limit() -> None:
    """Raise the limit before the cluster has grown so far: one that is too large by now refuses the node as it
    starts.
    """
    limit, needed = raise_open_files_limit(), files_needed(NODES_MAX)
    if limit < needed:
        log.warning("node.open_files_low", extra={"limit": limit, "needed": needed, "nodes": NODES_MAX})


def _exit_after(seconds: float) -> None:
    """However a stop may hang, the process ends: its lease then runs out like a dead node's."""

    def end() -> None:
        log.critical("node.stop_hangs")
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def refuse_misfit(config: NodeConfig, record: NodeRecord, membership: Membership, tls: TlsSource | None) -> None:
    """Raise ConfigurationError where this node would do harm, or could not be spoken to, before anybody knows it.

    Its server runs by now.
    """
    members, _ = membership.members()
    refuse_too_few_files(open_files_limit(), len({each.node_id for each in members} | {config.node_id}))
    refuse_other_cluster(config.log.uri, config.cluster)
    for each in members:
        if not understands(each.wire_format, record.wire_format):
            raise ConfigurationError(
                f"{each.node_id} speaks wire format {each.wire_format}, and this node {record.wire_format}",
                about="version",
                remedy="Upgrade the nodes so that no two of them are more than one wire format apart",
            )
        if not ttls_fit(each.ttl_s, config.etcd.lease_ttl_s):
            raise ConfigurationError(
                f"{each.node_id} has a lease of {each.ttl_s:g} s, and this node one of {config.etcd.lease_ttl_s:g} s",
                about="etcd.lease_ttl_s",
                remedy=f"Give all nodes about the same; none may be more than {TTL_RATIO_MAX:g} times another's",
            )
        if each.authenticates != record.authenticates and each.node_id != record.node_id:
            it, this = (
                "knows its callers" if on else "lets everybody in" for on in (each.authenticates, record.authenticates)
            )
            raise ConfigurationError(
                f"{each.node_id} {it}, and this node {this}",
                about="security.authentication",
                remedy="Give all nodes the same. To change it, stop all first; those of earlier versions let all in",
            )
    try:
        found = describe(record.address, tls=tls)
    except IscpError as error:
        raise ConfigurationError(
            f"this node is not reached at {record.address} ({error.message})",
            about="advertise",
            remedy="Give the address at which the other nodes reach this one",
        ) from error
    if (found.cluster, found.node_id) != (config.etcd_prefix, config.node_id):
        raise ConfigurationError(
            f"{record.address} leads to {found.node_id} of {found.cluster}",
            about="advertise",
            remedy="Give the address at which the other nodes reach this one",
        )
