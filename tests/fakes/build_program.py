"""A node that builds ranges and dies where `ISCP_FAILPOINTS` says: the arguments are a directory, and a plan as JSON.

Builds each of the ranges on its standard input, a number a line, and writes each that is done.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from iscp.adapters.delta.source.range_read import DeltaRangeReader
from iscp.adapters.delta.spark.session import SparkRuntime, SparkSettings
from iscp.core.build_task import BuildPlan, RangeBatch
from iscp.runtime.iteration.range_staging import SnapshotRangeBuilder
from tests import quick_spark
from tests.fakes.guards import OpenGuard
from tests.fakes.replica_ports import replica_ports


def main(work_dir: str, plan_json: str) -> None:
    spark = SparkRuntime.start(SparkSettings(work_dir=Path(work_dir), conf=quick_spark.QUICKER_CONF))
    node, plan = SnapshotRangeBuilder(replica_ports(spark), DeltaRangeReader()), BuildPlan(**json.loads(plan_json))
    for line in sys.stdin:
        node.build(RangeBatch(int(line), (plan,)), OpenGuard())
        print(line.strip(), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
