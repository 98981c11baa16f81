"""A node that builds ranges and dies where `ISCP_FAILPOINTS` says: the arguments are a directory, and a plan as JSON.

Builds each of the ranges on its standard input, a number a line, and writes each that is done; with the argument
`publish` an iteration of the job follows, which publishes what is staged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from iscp.consumers.changefeed.changefeed_kind import ChangefeedKind
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.delta.source.spark_read import DeltaRangeReader
from iscp.engine.range_staging import SnapshotRangeBuilder, row_of
from iscp.model.build.build_task import BuildPlan, BuildRequest, RangeBatch
from iscp.model.job.iteration import Bounds, Iteration
from iscp.model.job.job_row import JobStatus
from iscp.model.values.progress import UNSIZED
from iscp.ports.consumer import ConsumerKind
from iscp.schedule.runner import Runner
from iscp.spark.session import SparkRuntime, SparkSettings
from tests import quick_spark
from tests.fakes.guards import OpenGuard
from tests.fakes.replica_ports import replica_ports


def kind_of(name: str) -> ConsumerKind:
    return ChangefeedKind() if name == "changefeed" else ReplicaKind()


def main(work_dir: str, plan_json: str, then: str = "") -> None:
    spark = SparkRuntime.start(SparkSettings(work_dir=Path(work_dir), conf=quick_spark.QUICKER_CONF))
    ports, plan = replica_ports(spark, kinds=kind_of), BuildPlan(**json.loads(plan_json) | {"size": UNSIZED})
    node = SnapshotRangeBuilder(ports, DeltaRangeReader())
    for line in sys.stdin:
        node.build(RangeBatch(int(line), (plan,)), OpenGuard())
        print(line.strip(), flush=True)  # noqa: T201
    if then == "publish":
        row = row_of(plan)
        status = JobStatus(build=BuildRequest(plan.version, plan.piece_bytes, plan.depth))
        row = row._replace(status_json=status.to_json())
        iteration = Iteration(1, plan.table_id, plan.table_uri, (row,))
        (outcome,) = Runner(ports, Bounds()).run(iteration, OpenGuard())
        print(outcome.error_msg or "published", flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
