"""What leads builds, and works on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from iscp.adapters.delta.source.range_read import DeltaRangeReader
from iscp.bootstrap.cluster_parts import Cluster
from iscp.bootstrap.foundation import Foundation
from iscp.coordination.builds.build_limits import BuildLimits
from iscp.core.values.members import NodeRecord
from iscp.ports.cluster import NodeCalls
from iscp.runtime.builds.build_jobs import plan_of
from iscp.runtime.builds.build_worker_loop import BuildWorkerLoop
from iscp.runtime.builds.builder_access import BuilderAccess
from iscp.runtime.builds.builder_loop import BuilderLoop
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.range_staging import SnapshotRangeBuilder
from iscp.runtime.node.lease_keeper import LeaseKeeper
from iscp.runtime.node.node import RunsBesideOwner
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.worker.run_guard import RunGuard

OnTables = Callable[[Iterable[str]], None]


@dataclass(frozen=True, slots=True)
class BuildSide:
    """What a node has for builds. `beside` is started and closed with the owner's loop."""

    worker: BuildWorkerLoop
    access: BuilderAccess
    on_tables: OnTables
    beside: Sequence[RunsBesideOwner]


def compose_builds(
    on: Foundation,
    ports: IterationPorts,
    cluster: Cluster,
    owner: OwnerLoop,
    nodes: NodeClients,
    calls_of: Callable[[NodeRecord], NodeCalls],
    keeper: LeaseKeeper,
) -> BuildSide:
    config, clock, store = on.config, on.clock, cluster.builds

    def guard() -> RunGuard:
        return RunGuard(clock, keeper.check, 0.0, keeper.epoch)

    # Where Spark has machines of its own, ranges are their work.
    reader = DeltaRangeReader() if on.spark.local else DeltaRangeReader(held_bytes_max=0)
    ranges = SnapshotRangeBuilder(ports, reader)
    worker = BuildWorkerLoop(config.node_id, store, ranges, guard, clock, on.on_broken)
    notify = lambda shard: nodes.notify(shard, targets=False)  # noqa: E731
    limits = BuildLimits(config.build.tables_at_once, kept_bytes_max=config.build.kept_bytes_max)
    builder = BuilderLoop(owner, store, calls_of, notify, plan_of, clock, on.on_broken, limits)
    return BuildSide(worker, BuilderAccess(builder, clock), builder.on_tables, (worker, builder))


def both(first: OnTables, second: OnTables) -> OnTables:
    def call(table_ids: Iterable[str]) -> None:
        ids = tuple(table_ids)
        first(ids)
        second(ids)

    return call
