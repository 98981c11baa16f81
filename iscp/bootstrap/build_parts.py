"""Compose what leads builds, and works on them."""

from __future__ import annotations

from collections.abc import Callable

from iscp.adapters.delta.source.range_read import DeltaRangeReader
from iscp.bootstrap.cluster_parts import Cluster
from iscp.bootstrap.foundation import Foundation
from iscp.coordination.builds.build_limits import BuildLimits
from iscp.core.values.members import NodeRecord
from iscp.ports.cluster import NodeCalls
from iscp.runtime.builds.build_jobs import plan_of
from iscp.runtime.builds.build_worker_loop import BuildWorkerLoop
from iscp.runtime.builds.builder_loop import BuilderLoop
from iscp.runtime.builds.traced_ranges import TracedRangeBuilder
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.range_staging import SnapshotRangeBuilder
from iscp.runtime.node.lease_keeper import LeaseKeeper
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.worker.run_guard import RunGuard


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
