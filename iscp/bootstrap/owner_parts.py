"""Compose what a node does as the owner of its cluster, and what it answers then."""

from __future__ import annotations

import random
from dataclasses import dataclass

from iscp.adapters.delta.source.delta_catalog import DeltaCatalog
from iscp.adapters.delta.source.table_properties import property_setter
from iscp.adapters.delta.source.table_retention import DeltaRetentionHold
from iscp.adapters.grpc.admin.build_server import BuildServer
from iscp.adapters.grpc.admin.operator_server import OperatorServer
from iscp.adapters.grpc.admin.search_server import SearchServer
from iscp.adapters.system.trigger_registry import TriggerRegistry
from iscp.adapters.webhook.http_post import webhooks_of
from iscp.bootstrap.cluster_parts import Cluster
from iscp.bootstrap.coordination_parts import Coordination
from iscp.bootstrap.foundation import Foundation, compose_places
from iscp.bootstrap.read_parts import compose_search
from iscp.runtime.admin.admin_service import OwnerAdmin
from iscp.runtime.admin.build_service import OwnerBuilds
from iscp.runtime.admin.cluster_views import ClusterViews
from iscp.runtime.admin.dead_letter_reader import DeadLetterReader
from iscp.runtime.admin.job_views import JobViews
from iscp.runtime.admin.job_wait import JobWaiter
from iscp.runtime.admin.lagging_jobs import lagging_jobs
from iscp.runtime.admin.operator_service import OwnerOperator
from iscp.runtime.admin.request_validation import RequestValidator
from iscp.runtime.admin.resharder import Resharder
from iscp.runtime.admin.retention_watch import RetentionWatch
from iscp.runtime.admin.source_releases import SourceReleases
from iscp.runtime.admin.target_figures import FigureReader
from iscp.runtime.builds.builder_access import BuilderAccess
from iscp.runtime.builds.builder_loop import BuilderLoop
from iscp.runtime.notify.alert_watch import AlertSettings, AlertWatch
from iscp.runtime.notify.webhook_sender import WebhookSender
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.worker.target_probe import TargetProbes, WaitedTargets


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
    validator = RequestValidator(catalog, kind, TriggerRegistry(config.triggers.allow).check, clock, places)
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
