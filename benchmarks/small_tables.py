"""First snapshots of small tables: `python -m benchmarks.small_tables [--json]`.

A new job on each of many tables of few rows, whose first iterations run a few at a time, as in a node. Says how many a
second there are, and how long one of them waits for Spark, and reads and writes data itself.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.progress import report_progress
from iscp.model.job.iteration import Bounds, Iteration
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.schedule.runner import Runner
from iscp.spark.session import SparkRuntime, SparkSettings
from tests.fakes.guards import OpenGuard
from tests.fakes.replica_ports import replica_ports

AIM_PER_S = 20.0
WARM_UP = 20
REPORT_EVERY = 100


def write_tables(root: Path, count: int, rows: int) -> list[JobRow]:
    ids = list(range(rows))
    table = pa.table(
        {"id": pa.array(ids, pa.int64()), "text": [f"text {each}" for each in ids], "amount": [1.5] * rows}
    )
    jobs = []
    for number in range(count):
        source = str(root / f"source-{number}")
        write_deltalake(source, table, configuration={"delta.enableChangeDataFeed": "true"})
        spec = JobSpec(ConsumerSpec("replica", str(root / f"copy-{number}"), key=("id",)))
        key = JobKey("default", str(DeltaTable(source).metadata().id), "copy")
        jobs.append(JobRow(key, f"{number + 1:012x}", spec.to_json(), source, source))
    return jobs


def run(spark: SparkRuntime, jobs: list[JobRow], at_once: int) -> dict[str, Any]:
    ports = replica_ports(spark)
    runner, engine = Runner(ports, Bounds(), lambda outcome: None), ports.engine

    def build(numbered: tuple[int, JobRow]) -> tuple[float, float, float]:
        number, row = numbered
        began_s, (spark_s, direct_s) = time.perf_counter(), engine.spent_s()
        (outcome,) = runner.run(Iteration(number, row.key.table_id, row.table_uri, (row,)), OpenGuard())
        assert outcome.committed, outcome.error_msg
        spark_now_s, direct_now_s = engine.spent_s()
        return time.perf_counter() - began_s, spark_now_s - spark_s, direct_now_s - direct_s

    with ThreadPoolExecutor(at_once) as pool:
        work = list(enumerate(jobs, 1))
        list(pool.map(build, work[:WARM_UP]))
        began_s, times = time.perf_counter(), []
        for each in pool.map(build, work[WARM_UP:]):
            times.append(each)
            if len(times) % REPORT_EVERY == 0:
                report_progress("snapshots", tables=len(times), seconds=round(time.perf_counter() - began_s, 2))
        took_s = time.perf_counter() - began_s
    per_s = round(len(times) / took_s, 1)
    sums = map(sum, zip(*times, strict=True))
    parts = {name: round(1000 * total / len(times), 1) for name, total in zip(_PARTS, sums, strict=True)}
    aims = [{"aim": f"small_tables_per_s >= {AIM_PER_S:g}", "measured": per_s, "met": per_s >= AIM_PER_S}]
    return {"benchmark": "small_tables", "cpus": os.cpu_count(), "tables": len(times), "small_tables_per_s": per_s} | (
        {**parts, "aims": aims}
    )


_PARTS = ("one_ms", "of_it_in_spark_ms", "of_it_at_data_ms")


@click.command()
@click.option("--tables", type=click.IntRange(min=WARM_UP + 1), default=1_000, show_default=True)
@click.option("--rows", type=click.IntRange(min=1), default=1_000, show_default=True)
@click.option("--at-once", type=click.IntRange(min=1), default=2, show_default=True, help="scheduler.concurrency")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(tables: int, rows: int, at_once: int, as_json: bool) -> None:
    """Measure first snapshots of small tables."""
    with tempfile.TemporaryDirectory(prefix="iscp-small-") as folder:
        spark = SparkRuntime.start(SparkSettings(work_dir=Path(folder, "spark")))
        try:
            jobs = write_tables(Path(folder), tables, rows)
            report_progress("the tables", tables=tables, rows=rows)
            result = run(spark, jobs, at_once)
        finally:
            spark.stop()
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
