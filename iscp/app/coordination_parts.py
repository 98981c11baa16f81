"""Composes what a node coordinates with, and what it does and answers for its cluster.

The parts are those that the nodes of a cluster share in etcd, access control, the loops of the owner and the worker,
builds, reads of what jobs maintain, the services of the owner, and metrics.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import grpc

from iscp import __version__
from iscp.app.foundation import Foundation, compose_places
from iscp.app.registry import NodeSearch, TriggerRegistry
from iscp.app.shard_parts import ShardEngine
from iscp.cluster.builds.builder_loop import BuilderAccess, BuilderLoop, BuildWorkerLoop, TracedRangeBuilder, plan_of
from iscp.cluster.metering import (
    FigureSampler,
    MeteredSearch,
    NodeCounts,
    NodeReadings,
    OwnerReadings,
    sampled_feeds,
    sampled_indexes,
)
from iscp.cluster.node import Closes, LeaseKeeper, RunsBesideOwner
from iscp.cluster.owner.checkpoint_saver import ProgressSignal
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.owner.owner_events import JobLogAccess, OwnerHooks
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.read_services import (
    JobSearch,
    NodeFeeds,
    RetentionWatch,
    SourceReleases,
    feed_turns,
    owners_jobs_at,
    search_turns,
)
from iscp.cluster.requests.job_maker import JobMaker
from iscp.cluster.requests.job_views import DeadLetterReader, FigureReader, JobViews, JobWaiter
from iscp.cluster.requests.request_validator import RequestValidator
from iscp.cluster.worker_loop import WorkerLoop
from iscp.cluster.worker_machine import WorkerMachine
from iscp.delta.joblog.delta_job_log import AuditTable, DeltaJobLog
from iscp.delta.source.delta_catalog import DeltaCatalog, DeltaRetentionHold, property_setter
from iscp.delta.source.spark_read import DeltaRangeReader
from iscp.engine.account_turns import PlaceGuard
from iscp.engine.iteration_ports import IterationPorts
from iscp.engine.range_staging import SnapshotRangeBuilder
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys
from iscp.etcd.member_keys import EtcdMembership
from iscp.etcd.owner_keys import EtcdCheckpoint, EtcdDeathBoard, EtcdElection, EtcdLogMarks, EtcdOverrides
from iscp.etcd.server import RELEASE_REMEDY, member_releases, release_fault, release_warning
from iscp.etcd.watched_keys import EtcdBuilds, EtcdTokens, TokenWatch
from iscp.model.access.authorization import RoleAuthorizer
from iscp.model.api.api_requests import ChangePage
from iscp.model.build.build_state import BuildLimits
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import CoordinationTimes
from iscp.model.protocol.messages import NodeMessage, OwnerMessage
from iscp.model.settings.config import NodeConfig
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.ids import NodeRecord, ShardId
from iscp.notices.alert_watch import AlertSettings, AlertWatch, WebhookSender, webhooks_of
from iscp.ports.admin import AdminService, FeedPages
from iscp.ports.cluster import ClusterPorts, NodeCalls
from iscp.ports.engine import NodeDeaths
from iscp.ports.source import Catalog
from iscp.ports.system import Clock, Failpoints
from iscp.schedule.probe_pool import TargetProbes, WaitedTargets
from iscp.schedule.runner import RunGuard
from iscp.server.access.access_interceptor import AccessInterceptor, AccessParts, AccessServer
from iscp.server.access.jwks_keys import HttpJwks
from iscp.server.access.known_callers import AuditWriter, CertificateCaller, KnownCallers, ProviderKeys, TokenService
from iscp.server.admin.admin_server import BuildServer, FeedServer, OperatorServer, SearchServer
from iscp.server.admin.admin_service import ClusterViews, OwnerAdmin, lagging_jobs
from iscp.server.admin.forwarding import Forwarding, OwnersJobs
from iscp.server.admin.operator_service import OwnerBuilds, OwnerOperator, Resharder
from iscp.server.node.owner_streams import Peers
from iscp.spark.jvm_launch import JvmHeap
from iscp.system.child_process import resident_bytes
from iscp.system.threads import THREADS

# --- what the nodes of a cluster share in etcd ------------------------------------------------------------------------

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster's parts in etcd: an owner uses `ports`, and all nodes use `builds` and `deaths`."""

    etcd: EtcdClient
    membership: EtcdMembership
    election: EtcdElection
    ports: ClusterPorts
    builds: EtcdBuilds
    deaths: EtcdDeathBoard

    @classmethod
    def connect(cls, config: NodeConfig, clock: Clock, own_deaths: NodeDeaths) -> Cluster:
        settings = EtcdSettings.of(config.etcd)
        etcd = EtcdClient(settings, clock)
        releases = member_releases(etcd, settings, clock, settings.timeout_s)
        check_releases(releases, config.etcd.accept_faulty_release)
        keys, lease_ttl_s, margin_s = Keys(config.etcd_prefix), config.etcd.lease_ttl_s, config.etcd.margin_s
        election = EtcdElection(etcd, keys, clock, lease_ttl_s=lease_ttl_s, margin_s=margin_s)
        membership = EtcdMembership(etcd, keys, clock, THREADS, lease_ttl_s=lease_ttl_s, margin_s=margin_s)
        ports = ClusterPorts(
            membership=membership,
            election=election,
            overrides=EtcdOverrides(etcd, election, keys),
            checkpoints=EtcdCheckpoint(etcd, election, keys),
            marks=EtcdLogMarks(etcd, election, keys),
        )
        builds = EtcdBuilds(etcd, election, keys, THREADS)
        deaths = EtcdDeathBoard(etcd, keys, config.node_id, THREADS)
        own_deaths.share(deaths)
        return cls(etcd=etcd, membership=membership, election=election, ports=ports, builds=builds, deaths=deaths)


def check_releases(releases: Mapping[str, str], accepted: bool) -> None:
    """Raise ConfigurationError for a member of etcd whose release can lose or spoil what it was given."""
    for member, version in releases.items():
        if not version:
            log.warning("etcd.release_unknown", extra={"member": member})
            continue
        fault = release_fault(version)
        if fault and not accepted:
            raise ConfigurationError(
                f"names member {member}: {fault}",
                field="etcd.endpoints",
                remedy=f"{RELEASE_REMEDY}. For a trial, set etcd.accept_faulty_release",
            )
        if found := fault or release_warning(version):
            log.warning("etcd.version", extra={"member": member, "warning": f"{found}. {RELEASE_REMEDY}"})


# --- who may call a node, and the record of who did -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AccessSide:
    """The parts of access control: `interceptors` come before all others; `beside` starts before users are served, and
    closes after them. `callers` is None where callers need not be known.
    """

    server: AccessServer
    interceptors: Sequence[grpc.ServerInterceptor] = ()
    beside: Sequence[RunsBesideOwner] = ()
    counters: Callable[[], Mapping[str, int]] = dict
    callers: KnownCallers | None = None


def compose_access(config: NodeConfig, etcd: EtcdClient, clock: Clock) -> AccessSide:
    """Without authentication nothing is decided, and nothing runs."""
    if not config.security.authentication:
        return AccessSide(AccessServer(None))
    keys, cluster_account = Keys(config.etcd_prefix), config.security.cluster_account
    node_name = config.node_name if config.security.tls.used else ""
    if not node_name:
        log.warning("access.nodes_unknown", extra={"why": "there is no TLS: everybody may call what is for nodes"})
    tokens = TokenWatch(etcd, keys, clock, THREADS)
    audit_table = AuditTable(config.log.uri)
    audit = AuditWriter(audit_table)
    certificates = {
        name.lower(): CertificateCaller(account, role)
        for account, each in config.accounts.items()
        for name, role in each.certificates.items()
    }
    oidc = config.security.oidc
    provider = ProviderKeys(HttpJwks(oidc), oidc, cluster_account, clock, THREADS) if oidc.used else None
    callers = KnownCallers(certificates, cluster_account, node_name, tokens, clock, provider)
    authorizer = RoleAuthorizer(cluster_account)
    parts = AccessParts(callers, authorizer, callers.still_valid, audit, clock, config.node_id, node_name)
    service = TokenService(EtcdTokens(etcd, keys, cluster_account), audit_table, clock, secrets.token_hex)
    return AccessSide(
        server=AccessServer(service),
        interceptors=[AccessInterceptor(parts)],
        beside=[tokens, audit, provider] if provider else [tokens, audit],
        counters=audit.counters,
        callers=callers,
    )


# --- loops, the lease, and streams to other nodes ---------------------------------------------------------------------
# The loops are those of a node as owner and as worker.


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


# --- builds -----------------------------------------------------------------------------------------------------------
# A node works on builds, and leads them while it is the owner.


def compose_build_worker(
    foundation: Foundation, cluster: Cluster, ports: IterationPorts, keeper: LeaseKeeper
) -> BuildWorkerLoop:
    def guard() -> RunGuard:
        return RunGuard(foundation.clock, keeper.check, 0.0, keeper.epoch)

    # Where Spark has machines of its own, ranges are their work.
    reader = DeltaRangeReader() if foundation.spark.local else DeltaRangeReader(bytes_max=0)
    return BuildWorkerLoop(
        node_id=foundation.config.node_id,
        store=cluster.builds,
        builder=TracedRangeBuilder(SnapshotRangeBuilder(ports, reader), ports.tracer),
        guard=guard,
        clock=foundation.clock,
        on_broken=foundation.on_broken,
    )


def compose_builder(
    foundation: Foundation,
    cluster: Cluster,
    owner: OwnerLoop,
    nodes: NodeClients,
    calls_of: Callable[[NodeRecord], NodeCalls],
) -> BuilderLoop:
    build = foundation.config.build
    return BuilderLoop(
        owner=owner,
        store=cluster.builds,
        calls_of=calls_of,
        notify=lambda shard: nodes.notify(shard, targets=False),
        plan_of=plan_of,
        clock=foundation.clock,
        on_broken=foundation.on_broken,
        limits=BuildLimits(build.tables_at_once, retained_bytes_max=build.kept_bytes_max),
    )


# --- reads of what jobs maintain --------------------------------------------------------------------------------------
# The reads are searches of indexes, and pages of feeds.


def compose_search(
    foundation: Foundation, owner: OwnerLoop, catalog: Catalog, waiter: JobWaiter, places: PlaceGuard
) -> SearchServer:
    turns, search = search_turns(foundation.config.search, foundation.clock), NodeSearch(foundation.indexes)
    jobs_at = owners_jobs_at(owner)
    service = JobSearch(jobs_at, catalog, search, turns, places, foundation.deaths, waiter.wait)
    return SearchServer(MeteredSearch(service, foundation.meter, foundation.clock))


def compose_feeds(foundation: Foundation, admin: AdminService, forwarding: Forwarding) -> FeedServer:
    clock = foundation.clock
    pages = feed_pages(clock, foundation.failpoints)
    service = NodeFeeds(pages, feed_turns(clock), clock, compose_places(foundation.config), foundation.deaths)
    return FeedServer(service, OwnersJobs(admin, forwarding).job)


def feed_pages(clock: Clock, failpoints: Failpoints) -> FeedPages:
    """Return what reads the feeds of any jobs; the library is loaded for the first one, as most nodes read none."""
    found = cache(lambda: _library(clock, failpoints))

    def page(row: JobRow, cursor: str, limit: int) -> ChangePage:
        return found()(row, cursor, limit)

    return page


def _library(clock: Clock, failpoints: Failpoints) -> FeedPages:
    from iscp.consumers.changefeed.feed_pages import JobFeedPages

    return JobFeedPages(clock, failpoints).page


# --- services and alerts of the owner ---------------------------------------------------------------------------------
# A node does this as the owner of its cluster, and answers it then.


@dataclass(frozen=True, slots=True)
class Services:
    """The requests of users and operators, as the owner answers them."""

    admin: OwnerAdmin
    operator: OperatorServer
    builds: BuildServer
    search: SearchServer
    retention: RetentionWatch


def compose_services(
    foundation: Foundation,
    cluster: Cluster,
    coordination: Coordination,
    nodes: NodeClients,
    probes: TargetProbes,
    builder: BuilderLoop,
) -> Services:
    config, clock, kind, owner = foundation.config, foundation.clock, foundation.kinds.kind, coordination.owner
    catalog = DeltaCatalog.of(foundation.spark.root, foundation.analysis, s3=config.storage.s3.used)
    holds = DeltaRetentionHold(lambda uri: catalog.describe(uri).configuration, property_setter(foundation.spark.root))
    places = compose_places(config)
    validator = RequestValidator(JobMaker(catalog, kind, TriggerRegistry(config.triggers.allow).check, clock, places))
    plain = JobViews(owner, nodes, kind, clock)
    retention = RetentionWatch(lagging_jobs(owner, plain, clock), catalog, places, clock)
    figures = FigureReader(kind, places).read
    views = JobViews(owner, nodes, kind, clock, figures, retention.retained_s)
    waiter = JobWaiter(owner, nodes, catalog, views, clock, coordination.progress, WaitedTargets(probes).fault)
    admin = OwnerAdmin(
        owner,
        catalog,
        validator,
        views,
        waiter,
        nodes,
        ClusterViews(owner, cluster.membership, nodes, clock).view,
        SourceReleases(holds, kind),
        DeadLetterReader(kind, places, deaths=foundation.deaths).read,
    )
    resharder = Resharder(owner, catalog, kind, validator)
    operator = OwnerOperator(owner, cluster.ports.overrides, catalog, resharder, nodes, foundation.kinds.described)
    builds = OwnerBuilds(owner, catalog, BuilderAccess(builder, clock), admin.change, clock)
    search = compose_search(foundation, owner, catalog, waiter, places)
    return Services(
        admin=admin,
        operator=OperatorServer(operator),
        builds=BuildServer(builds),
        search=search,
        retention=retention,
    )


def compose_alerts(foundation: Foundation, owner: OwnerLoop, nodes: NodeClients) -> AlertWatch:
    """Raises ConfigurationError where the secret of `notify.secret_file` cannot be read."""
    notify, clock = foundation.config.notify, foundation.clock
    webhooks = webhooks_of(notify.webhooks, notify.secret_file, clock)
    senders = [WebhookSender(each, clock, random.random, foundation.on_broken) for each in webhooks]
    settings = AlertSettings(foundation.config.cluster, notify.late_after_s)
    views = JobViews(owner, nodes, foundation.kinds.kind, clock)
    return AlertWatch(owner, views, senders, settings, clock, foundation.on_broken)


# --- metrics ----------------------------------------------------------------------------------------------------------
# This part composes what is measured of a node, and where its metrics go; nothing where they go nowhere.


@dataclass(frozen=True, slots=True)
class MetricsSide:
    """The parts that metrics need: `beside` serves them, and `connections` are closed last."""

    beside: Sequence[RunsBesideOwner] = ()
    connections: Sequence[Closes] = ()


def compose_metrics(
    foundation: Foundation,
    cluster: Cluster,
    coordination: Coordination,
    engine: ShardEngine,
    builder: BuilderLoop,
    counts: NodeCounts,
    access: AccessSide,
) -> MetricsSide:
    """Raises ConfigurationError if the port of `metrics.listen` cannot be had."""
    config, clock = foundation.config, foundation.clock
    if not config.metrics.used:
        return MetricsSide()
    from iscp.changefeed.client.reader import CursorLags
    from iscp.notices.open_telemetry import OpenTelemetryMeter
    from iscp.server.http.metrics_server import MetricsServer

    meter, heap = foundation.meter, JvmHeap(foundation.spark.root)
    assert isinstance(meter, OpenTelemetryMeter)
    node = NodeReadings(
        counts,
        slots=config.scheduler.concurrency,
        heap=heap.size,
        memory_bytes=resident_bytes,
        lease_s=coordination.keeper.valid_s,
        probes=lambda: engine.scheduler.pool.probed,
        watch_events=lambda: cluster.etcd.watch_events,
    )
    builds = BuilderAccess(builder, clock)
    owner = OwnerReadings(coordination.owner, builds.known, clock, config.metrics.per_job_max)
    meter.observe(node.read)
    meter.observe(owner.read)
    places = compose_places(config)
    figures = FigureReader(foundation.kinds.kind, places)
    # Readers of feeds know no cluster: their cursors are below no cluster's name.
    cursors = CursorLags(cluster.etcd, Keys(config.etcd.prefix), clock, foundation.failpoints)
    sampled = (sampled_indexes(figures.read), sampled_feeds(cursors.read, places, config.metrics.per_job_max))
    sampler = FigureSampler(coordination.owner, sampled, clock, config.metrics.interval_s)
    meter.observe(sampler.read)
    closes: list[Closes] = [meter, heap]
    if not config.metrics.listen:
        return MetricsSide([sampler], closes)
    server = MetricsServer(
        config.metrics.listen,
        meter.registry,
        tls=foundation.tls,
        allowed=access.callers.sees_all if access.callers is not None else lambda credentials: True,
    )
    return MetricsSide([sampler, server], closes)
