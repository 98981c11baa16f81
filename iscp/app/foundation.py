"""Compose what all parts of a node are built on, and its meter, which measures or does nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from iscp import __version__
from iscp.app.index_parts import index_services
from iscp.app.observation_parts import LineageSide, TracingSide, compose_lineage, compose_tracing
from iscp.app.registry import ConsumerRegistry
from iscp.consumers.index.index_services import IndexServices
from iscp.delta.source.delta_catalog import SqlAnalysis
from iscp.engine.place_guard import PlaceGuard
from iscp.model.access.authorization import AccountRoots
from iscp.model.settings.config import NodeConfig
from iscp.ports.engine import NodeDeaths, NodeLog
from iscp.ports.system import NO_METER, Clock, Failpoints, Meter
from iscp.spark.deferred_spark import SparkAccess
from iscp.storage.locations import followed_places, followed_root
from iscp.storage.regular_files import REACH
from iscp.system.threads import SystemClock
from iscp.system.tls.certificate_watch import CertificateWatch, certificate_watch

if TYPE_CHECKING:
    from iscp.cluster.node import Closes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Foundation:
    """The foundation of a node: `tested` has the kinds of places where the self-test has passed, and `on_broken` ends
    the node.

    `analysis` takes the SQL of users. `indexes` are made at their first use.
    """

    config: NodeConfig
    spark: SparkAccess
    clock: SystemClock
    kinds: ConsumerRegistry
    failpoints: Failpoints
    tested: Collection[str]
    on_broken: Callable[[Exception], None]
    node_log: NodeLog
    deaths: NodeDeaths
    analysis: SqlAnalysis
    indexes: Callable[[], IndexServices]
    tracing: TracingSide
    lineage: LineageSide
    tls: CertificateWatch | None = None
    meter: Meter = NO_METER

    @classmethod
    def lay(
        cls,
        config: NodeConfig,
        spark: SparkAccess,
        *,
        failpoints: Failpoints,
        on_broken: Callable[[Exception], None],
        tested: Collection[str],
        node_log: NodeLog,
        deaths: NodeDeaths,
        analysis: SqlAnalysis,
    ) -> Foundation:
        """Raises ConfigurationError where the files of TLS cannot be used, or nothing can be traced."""
        clock = SystemClock()
        indexes = cache(lambda: index_services(config, clock, failpoints))
        kinds = ConsumerRegistry(config.consumers.allow, indexes)
        if kinds.absent:
            log.warning("consumers.not_installed", extra={"names": ", ".join(kinds.absent)})
        return cls(
            config=config,
            spark=spark,
            clock=clock,
            kinds=kinds,
            failpoints=failpoints,
            tested=tested,
            on_broken=on_broken,
            node_log=node_log,
            deaths=deaths,
            analysis=analysis,
            indexes=indexes,
            tracing=compose_tracing(config),
            lineage=compose_lineage(config, clock),
            tls=certificate_watch(config),
            meter=node_meter(config, __version__, clock),
        )

    @property
    def connections(self) -> Sequence[Closes]:
        """Return what is to be closed last."""
        return [*self.lineage.connections, *self.tracing.connections]

    def counters(self) -> Mapping[str, int]:
        """Return what is counted of telemetry; empty where nothing is sent."""
        return {**self.tracing.counters(), **self.lineage.counters()}


def compose_places(config: NodeConfig) -> PlaceGuard:
    """Return the guard that restricts the tables of each account's jobs to its roots, and the files that their logs
    name.
    """
    by_account = {account: each.roots for account, each in config.accounts.items() if each.roots}
    REACH.limit([*by_account.values()])
    return PlaceGuard(AccountRoots(by_account, config.security.cluster_account), followed_places, followed_root)


def node_meter(config: NodeConfig, version: str, clock: Clock) -> Meter:
    """Return the meter of this node. Nothing of OpenTelemetry is imported where its metrics go nowhere."""
    if not config.metrics.used:
        return NO_METER
    from iscp.notices.open_telemetry_meter import OpenTelemetryMeter

    identity = {
        "service.name": "iscp",
        "service.namespace": config.cluster,
        "service.instance.id": config.node_id,
        "service.version": version,
    }
    return OpenTelemetryMeter(
        identity,
        version,
        clock,
        otlp_endpoint=config.metrics.otlp_endpoint,
        interval_s=config.metrics.interval_s,
    )
