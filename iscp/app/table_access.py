"""Compose the access to tables that iterations have, on a node and in a process that has none.

Try once for each kind of place whether commits of two processes exclude each other there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.delta.source.delta_catalog import DeltaRetentionHold, property_setter
from iscp.delta.source.spark_read import file_lister, state_loader, table_opener
from iscp.engine.iteration_ports import SINKS_CACHED_MAX, SinkPool
from iscp.model.access.authorization import TARGET_FIELD
from iscp.model.settings.config import NodeConfig
from iscp.ports.engine import Engine
from iscp.ports.source import RetentionHold
from iscp.ports.system import Clock, Failpoints
from iscp.spark.deferred_spark import DeferredEngine, DeferredSpark, SparkAccess
from iscp.spark.spark_engine import SparkEngine
from iscp.storage.locations import place

log = logging.getLogger(__name__)


def run_self_tests(config: NodeConfig, spark: SparkAccess) -> set[str]:
    """Return the kinds of places where the self-test has passed. Raises if one does not, so that the node does not
    start.
    """
    from iscp.delta.selftest.self_test import kind_of, self_test

    below = {"log.uri": config.log.uri, **{f"storage.self_test.{n}": u for n, u in enumerate(config.storage.self_test)}}
    passed: set[str] = set()
    for field, uri in below.items():
        table = f"{place(uri)}/table"
        if (kind := kind_of(table, field)) not in passed:
            report = self_test(spark.root, table, field=field)
            log.info("selftest.passed", extra={"beside": report.directory, "took_s": report.took_s})
            passed.add(kind)
    return passed


def check_of_targets(spark: SparkAccess, tested: Collection[str]) -> Callable[[str], str]:
    """Lets targets pass: the first on each file system, or in each bucket, after the self-test has passed there."""
    return TargetCheck(spark, tested).check


class TargetCheck:
    """Tests each kind of place once, and imports the self-test for that: many runs write nothing.

    Where Spark is deferred, it is tested without Spark, and with it at its start.
    """

    def __init__(self, spark: SparkAccess, tested: Collection[str]) -> None:
        self._lock = threading.Lock()
        self._passed = set(tested)
        self._untried: list[str] = []
        """Places of kinds that have passed without Spark."""
        self._spark: SparkAccess | None = spark
        if isinstance(spark, DeferredSpark):
            self._spark = None
            spark.when_started(self._test_by_spark)

    def check(self, uri: str) -> str:
        """Return the target's URI. Raises as `self_test`."""
        from iscp.delta.selftest.self_test import kind_of

        kind = kind_of(place(uri), TARGET_FIELD)
        if kind not in self._passed:
            self._test(place(uri))
            self._passed.add(kind)
        return uri

    def _test(self, uri: str) -> None:
        from iscp.delta.selftest.self_test import self_test, self_test_directly

        if self._spark is None:
            self_test_directly(uri, field=TARGET_FIELD)
        with self._lock:
            spark = self._spark
            if spark is None:
                self._untried.append(uri)
                return
        self_test(spark.root, uri, field=TARGET_FIELD)

    def _test_by_spark(self, spark: SparkAccess) -> None:
        """Test with Spark where it may write from now on. Raises as `self_test`."""
        from iscp.delta.selftest.self_test import self_test

        with self._lock:
            self._spark, untried = spark, [*self._untried]
        for uri in untried:
            self_test(spark.root, uri, field=TARGET_FIELD)


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
