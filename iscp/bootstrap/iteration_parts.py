"""Compose what iterations are carried out with: on a node, and in a process that has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from iscp.adapters.delta.sessions.deferred_spark import DeferredEngine, DeferredSpark
from iscp.adapters.delta.sessions.spark_access import SparkAccess
from iscp.adapters.delta.sink.delta_sink import DeltaSink
from iscp.adapters.delta.source.change_source import DeltaChangeSource
from iscp.adapters.delta.source.commit_probe import DeltaProbe
from iscp.adapters.delta.source.spark_read import file_lister, state_loader, table_opener
from iscp.adapters.delta.source.table_properties import property_setter
from iscp.adapters.delta.source.table_retention import DeltaRetentionHold
from iscp.adapters.delta.spark.spark_engine import SparkEngine
from iscp.core.job.target_state import TargetLog
from iscp.index.lance.version_probe import VersionProbe
from iscp.ports.catalog import LogProbe
from iscp.ports.consumer import ConsumerKind
from iscp.ports.engine import Engine
from iscp.ports.retention_hold import RetentionHold
from iscp.ports.system import Clock, Failpoints
from iscp.runtime.iteration.sink_pool import SINKS_CACHED_MAX, SinkPool
from iscp.runtime.worker.target_probe import TargetProbes

LOG_PROBES: Mapping[TargetLog, LogProbe] = {TargetLog.DELTA: DeltaProbe(), TargetLog.LANCE: VersionProbe()}
"""The probe for each kind of log that a target may have."""


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

    def target_probes(self, kinds: Callable[[str], ConsumerKind]) -> TargetProbes:
        """Return probes on sinks that are only probed, now and then: no place has to be tried before, and no sink is
        cached.
        """
        return TargetProbes(LOG_PROBES, kinds, self.sinks(self.source(), lambda uri: uri, cached_max=0))

    def holds(self, source: DeltaChangeSource) -> RetentionHold:
        return DeltaRetentionHold(source.properties, property_setter(self.spark.root))
