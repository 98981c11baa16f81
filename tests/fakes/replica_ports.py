"""What jobs, replicas first, are iterated and built with, without a node: real tables and a real Spark."""

from __future__ import annotations

from collections.abc import Callable

from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.engine.iteration_ports import NO_BUILDS, IterationPorts, SinkPool
from iscp.model.settings.config import BuildConfig
from iscp.ports.consumer import ConsumerKind
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_engine import SparkEngine
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock


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
