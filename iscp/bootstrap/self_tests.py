"""Where commits of two processes are known to exclude each other: tried once for each kind of place."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from iscp.adapters.delta.selftest.self_test import SelfTestReport, kind_of, self_test
from iscp.adapters.delta.storage.locations import place
from iscp.core.config import NodeConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class SelfTests:
    """A place is tried before this node writes there, and by Spark too before Spark does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passed: dict[str, tuple[str, str]] = {}
        self._spark: SparkSession | None = None

    def try_configured(self, config: NodeConfig) -> None:
        """Raises SelfTestError or StorageError where commits do not exclude each other: the node does not start."""
        named = {f"storage.self_test.{n}": uri for n, uri in enumerate(config.storage.self_test)}
        for field, uri in {"log.uri": config.log.uri, **named}.items():
            self._try(f"{place(uri)}/table", field)

    def check_target(self, uri: str) -> str:
        """Lets targets pass: the first on each file system, or in each bucket, after the self-test has passed there."""
        self._try(place(uri), "spec.iteration.consumer.target")
        return uri

    def try_by_spark(self, spark: SparkSession) -> None:
        """Spark has started: wherever the node may write it is to keep others out, and be kept out, as well."""
        with self._lock:
            for table, field in self._passed.values():
                _log(self_test(spark, table, field=field))
            self._spark = spark

    def _try(self, table: str, field: str) -> None:
        kind = kind_of(table)
        with self._lock:
            if kind not in self._passed:
                _log(self_test(self._spark, table, field=field))
                self._passed[kind] = table, field


def _log(report: SelfTestReport) -> None:
    log.info("selftest.passed", extra={"beside": report.directory, "took_s": report.took_s, "wins": report.wins})
