"""What jobs, replicas first, are iterated and built with, without a node: real tables and a real Spark."""

from __future__ import annotations

from collections.abc import Callable

from iscp.adapters.delta.sink.delta_sink import DeltaSink
from iscp.adapters.delta.source.change_source import DeltaChangeSource
from iscp.adapters.delta.spark.session import SparkRuntime
from iscp.adapters.delta.spark.spark_engine import SparkEngine
from iscp.adapters.system.clock import SystemClock
from iscp.adapters.system.failpoints import EnvironmentFailpoints
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.core.settings.config import BuildConfig
from iscp.ports.consumer import ConsumerKind
from iscp.runtime.iteration.iteration_ports import NO_BUILDS, IterationPorts, SinkPool


def replica_ports(
    spark: SparkRuntime,
    builds: BuildConfig = NO_BUILDS,
    kinds: Callable[[str], ConsumerKind] = lambda name: ReplicaKind(),
) -> IterationPorts:
    source, clock, failpoints = DeltaChangeSource(), SystemClock(), EnvironmentFailpoints()
    sinks = SinkPool(lambda uri: DeltaSink(uri, failpoints), lambda uri: uri, clock, failpoints, source)
    return IterationPorts(
        SparkEngine(spark.root, spark.new_session),
        source,
        kinds,
        sinks,
        clock,
        failpoints,
        epoch=lambda: 1,
        builds=builds,
    )
