"""Try once for each kind of place whether commits of two processes exclude each other there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from iscp.adapters.delta.selftest.self_test import kind_of, self_test, self_test_directly
from iscp.adapters.delta.sessions.deferred_spark import DeferredSpark, SparkAccess
from iscp.adapters.delta.storage.locations import place
from iscp.core.access.authorization import TARGET_FIELD
from iscp.core.settings.config import NodeConfig

log = logging.getLogger(__name__)


def run_self_tests(config: NodeConfig, spark: SparkAccess) -> set[str]:
    """Return the kinds of places where the self-test has passed. Raises if one does not, so that the node does not
    start.
    """
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
    """Tests each kind of place once. Where Spark is deferred, it is tested without Spark, and with it at its start."""

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
        kind = kind_of(place(uri), TARGET_FIELD)
        if kind not in self._passed:
            self._test(place(uri))
            self._passed.add(kind)
        return uri

    def _test(self, uri: str) -> None:
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
        with self._lock:
            self._spark, untried = spark, [*self._untried]
        for uri in untried:
            self_test(spark.root, uri, field=TARGET_FIELD)
