"""What all parts of a node are built on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from iscp.adapters.delta.spark.spark_on_demand import SparkOnDemand
from iscp.adapters.system.clock import SystemClock
from iscp.bootstrap.self_tests import SelfTests
from iscp.consumers.registry import ConsumerRegistry
from iscp.core.config import NodeConfig
from iscp.ports.node_log import NodeLog
from iscp.ports.system import Failpoints

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Foundation:
    """`on_broken` ends the node."""

    config: NodeConfig
    spark: SparkOnDemand
    clock: SystemClock
    kinds: ConsumerRegistry
    failpoints: Failpoints
    self_tests: SelfTests
    on_broken: Callable[[Exception], None]
    node_log: NodeLog

    @classmethod
    def lay(
        cls,
        config: NodeConfig,
        spark: SparkOnDemand,
        failpoints: Failpoints,
        on_broken: Callable[[Exception], None],
        self_tests: SelfTests,
        node_log: NodeLog,
    ) -> Foundation:
        kinds = ConsumerRegistry(config.consumers.allow)
        if kinds.absent:
            log.warning("consumers.not_installed", extra={"names": ", ".join(kinds.absent)})
        return cls(config, spark, SystemClock(), kinds, failpoints, self_tests, on_broken, node_log)
