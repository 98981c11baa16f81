"""Compose what is measured of a node, and where its metrics go; nothing where they go nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iscp.adapters.delta.spark.jvm_heap import JvmHeap
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.system.process_memory import resident_bytes
from iscp.bootstrap.access_parts import AccessSide
from iscp.bootstrap.cluster_parts import Cluster
from iscp.bootstrap.coordination_parts import Coordination
from iscp.bootstrap.foundation import Foundation, compose_places
from iscp.bootstrap.shard_parts import ShardEngine
from iscp.runtime.admin.target_figures import FigureReader
from iscp.runtime.builds.builder_access import BuilderAccess
from iscp.runtime.builds.builder_loop import BuilderLoop
from iscp.runtime.metrics.figure_sampler import FigureSampler, sampled_feeds, sampled_indexes
from iscp.runtime.metrics.node_readings import NodeCounts, NodeReadings
from iscp.runtime.metrics.owner_readings import OwnerReadings
from iscp.runtime.node.node import Closes, RunsBesideOwner


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
    from iscp.adapters.telemetry.metrics_server import MetricsServer
    from iscp.adapters.telemetry.open_telemetry_meter import OpenTelemetryMeter
    from iscp.changefeed.client.cursor_lags import CursorLags

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
