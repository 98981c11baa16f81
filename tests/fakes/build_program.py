"""A node that builds ranges and dies where `ISCP_FAILPOINTS` says: the arguments are a directory, and a plan as JSON.

Builds each of the ranges on its standard input, a number a line, and writes each that is done.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from iscp.adapters.delta.sink.delta_sink import DeltaSink
from iscp.adapters.delta.source.change_source import DeltaChangeSource
from iscp.adapters.delta.source.range_read import DeltaRangeReader
from iscp.adapters.delta.spark.session import SparkRuntime, SparkSettings
from iscp.adapters.delta.spark.spark_engine import SparkEngine
from iscp.adapters.system.clock import SystemClock
from iscp.adapters.system.failpoints import EnvironmentFailpoints
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.core.build_task import BuildPlan, RangeBatch
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.range_staging import SnapshotRangeBuilder
from iscp.runtime.iteration.sink_pool import SinkPool
from tests import quick_spark
from tests.fakes.guards import OpenGuard


def main(work_dir: str, plan_json: str) -> None:
    spark = SparkRuntime.start(SparkSettings(work_dir=Path(work_dir), conf=quick_spark.QUICKER_CONF))
    source, clock, failpoints = DeltaChangeSource(), SystemClock(), EnvironmentFailpoints()
    ports = IterationPorts(
        SparkEngine(spark.root, spark.new_session),
        source,
        lambda name: ReplicaKind(),
        SinkPool(lambda uri: DeltaSink(uri, failpoints), lambda uri: uri, clock, failpoints, source),
        clock,
        failpoints,
        epoch=lambda: 1,
    )
    node, plan = SnapshotRangeBuilder(ports, DeltaRangeReader()), BuildPlan(**json.loads(plan_json))
    for line in sys.stdin:
        node.build(RangeBatch(int(line), (plan,)), OpenGuard())
        print(line.strip(), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
