"""Compose what iterations are carried out with: on a node, and in a process that has none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iscp.adapters.delta.sessions.deferred_spark import DeferredEngine, DeferredSpark, SparkAccess
from iscp.adapters.delta.sink.delta_sink import DeltaSink
from iscp.adapters.delta.source.change_source import DeltaChangeSource
from iscp.adapters.delta.source.delta_catalog import DeltaRetentionHold, property_setter
from iscp.adapters.delta.source.spark_read import file_lister, state_loader, table_opener
from iscp.adapters.delta.spark.spark_engine import SparkEngine
from iscp.ports.engine import Engine
from iscp.ports.source import RetentionHold
from iscp.ports.system import Clock, Failpoints
from iscp.runtime.iteration.iteration_ports import SINKS_CACHED_MAX, SinkPool


@dataclass(frozen=True, slots=True)
class TableAccess:
    """The access to sources and sinks. Changes and tables of more than `direct_bytes_max` bytes are read by Spark."""

    spark: SparkAccess
    clock: Clock
    failpoints: Failpoints
    direct_bytes_max: int

    def engine(self) -> Engine:
        """Return the engine of iterations, which starts nothing that was not needed yet."""
        spark = self.spark
        return DeferredEngine(spark) if isinstance(spark, DeferredSpark) else SparkEngine(spark.root, spark.new_session)

    def source(self) -> DeltaChangeSource:
        root = self.spark.root
        return DeltaChangeSource(self.direct_bytes_max, table_opener(root), state_loader(root), file_lister(root))

    def sinks(
        self, source: DeltaChangeSource, check: Callable[[str], str], cached_max: int = SINKS_CACHED_MAX
    ) -> SinkPool:
        """Return the pool of sinks; `check` lets a target pass before anything is opened there, or raises."""
        load_state = state_loader(self.spark.root)
        return SinkPool(
            lambda uri: DeltaSink(uri, self.failpoints, load_state),
            check,
            self.clock,
            self.failpoints,
            source,
            cached_max,
        )

    def holds(self, source: DeltaChangeSource) -> RetentionHold:
        return DeltaRetentionHold(source.properties, property_setter(self.spark.root))
