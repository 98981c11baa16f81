"""Compose the Spark of a process without a node: one that starts once it is needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from iscp.adapters.delta.sessions.deferred_spark import DeferredSpark
from iscp.adapters.system.scratch_directory import scratch_directory
from iscp.core.settings.config import NodeConfig, is_local_master

if TYPE_CHECKING:
    from iscp.adapters.delta.spark.session import SparkRuntime


class LocalSpark:
    """Starts Spark in a temporary directory, and removes that at the end."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._closing = ExitStack()

    def deferred(self) -> DeferredSpark:
        """Return Spark that has not started."""
        local = is_local_master(self._config.spark.master)
        spark = DeferredSpark(lambda: self._start(lambda: spark.given_up), local=local)
        return spark

    def _start(self, given_up: Callable[[], bool]) -> SparkRuntime:
        from iscp.adapters.delta.spark.session import SparkRuntime
        from iscp.bootstrap.configuration.spark_settings import spark_settings

        work_dir = self._closing.enter_context(scratch_directory("iscp-run-"))
        return SparkRuntime.start(spark_settings(self._config, work_dir), given_up)

    def close(self) -> None:
        """Remove what Spark has left, once it has stopped."""
        self._closing.close()
