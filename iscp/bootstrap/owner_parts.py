"""What a node does as the owner of its cluster, and what it answers then."""

from __future__ import annotations

import random

from iscp import __version__
from iscp.adapters.delta.joblog.delta_job_log import DeltaJobLog
from iscp.adapters.delta.source.delta_catalog import DeltaCatalog
from iscp.adapters.grpc.admin.build_server import BuildServer
from iscp.adapters.grpc.admin.operator_server import OperatorServer
from iscp.adapters.system.trigger_registry import TriggerRegistry
from iscp.adapters.webhook.http_post import webhooks_of
from iscp.bootstrap.access_parts import compose_places
from iscp.bootstrap.cluster_parts import Cluster
from iscp.bootstrap.foundation import Foundation
from iscp.coordination.owner_machine import OwnerMachine
from iscp.coordination.protocol.timeouts import CoordinationTimes
from iscp.runtime.admin.admin_service import OwnerAdmin
from iscp.runtime.admin.build_service import OwnerBuilds, TermBuilds
from iscp.runtime.admin.cluster_views import ClusterViews
from iscp.runtime.admin.job_views import JobViews
from iscp.runtime.admin.job_wait import JobWaiter
from iscp.runtime.admin.operator_service import OwnerOperator
from iscp.runtime.admin.request_validation import RequestValidator
from iscp.runtime.admin.resharder import Resharder
from iscp.runtime.admin.source_releases import SourceReleases
from iscp.runtime.notify.alert_watch import AlertSettings, AlertWatch
from iscp.runtime.notify.webhook_sender import WebhookSender
from iscp.runtime.owner.job_progress import ProgressSignal
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.owner.owner_ports import JobLogAccess, OwnerHooks
from iscp.runtime.worker.target_probe import TargetProbes, WaitedTargets


def compose_owner_loop(on: Foundation, cluster: Cluster, times: CoordinationTimes, hooks: OwnerHooks) -> OwnerLoop:
    config, clock = on.config, on.clock

    def open_log() -> DeltaJobLog:
        return DeltaJobLog(
            config.log.uri, clock, on.failpoints, cluster=config.cluster, reached=cluster.ports.marks.load
        )

    machine = OwnerMachine(config.node_id, __version__, times)
    return OwnerLoop(machine, JobLogAccess(open_log, config.log), cluster.ports, clock, hooks)


def compose_services(
    on: Foundation,
    cluster: Cluster,
    moved: ProgressSignal,
    owner: OwnerLoop,
    nodes: NodeClients,
    probes: TargetProbes,
    builder: TermBuilds,
) -> tuple[OwnerAdmin, OperatorServer, BuildServer]:
    """The requests of users and operators, as the owner answers them."""
    kind = on.kinds.kind
    catalog = DeltaCatalog.of(on.spark.root, on.analysis, s3=on.config.storage.s3.used)
    check_trigger = TriggerRegistry(on.config.triggers.allow).check
    cluster_views = ClusterViews(owner, cluster.membership, nodes, on.clock, on.config.probe)
    intake = RequestValidator(catalog, kind, check_trigger, on.clock, compose_places(on.config))
    views = JobViews(owner, nodes, kind, on.clock, on.config.probe)
    waiter = JobWaiter(owner, nodes, catalog, views, on.clock, moved, WaitedTargets(probes).fault)
    sources = SourceReleases(catalog, kind)
    admin = OwnerAdmin(owner, catalog, intake, views, waiter, nodes, cluster_views.view, sources)
    resharder = Resharder(owner, catalog, kind, intake)
    operator = OwnerOperator(owner, cluster.ports.overrides, catalog, resharder, nodes)
    builds = OwnerBuilds(owner, catalog, builder, admin.change, on.clock)
    return admin, OperatorServer(operator), BuildServer(builds)


def compose_alerts(on: Foundation, owner: OwnerLoop, nodes: NodeClients) -> AlertWatch:
    """Raises ConfigurationError where the secret of `notify.secret_file` cannot be read."""
    notify, clock = on.config.notify, on.clock
    webhooks = webhooks_of(notify.webhooks, notify.secret_file, clock)
    senders = [WebhookSender(each, clock, random.random, on.on_broken) for each in webhooks]
    settings = AlertSettings(on.config.cluster, notify.late_after_s)
    views = JobViews(owner, nodes, on.kinds.kind, clock, on.config.probe)
    return AlertWatch(owner, views, senders, settings, clock, on.on_broken)
