"""First rows of views by ranges against one snapshot of all rows: `python -m benchmarks.build_views [--json]`.

One process is all nodes, one range after another, so that what the cut costs shows, and not how many nodes there are.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import click
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.build import after, write_source
from benchmarks.progress import report_progress
from iscp.cluster.builds.builder_loop import plan_of
from iscp.consumers.view.view_kind import ViewKind
from iscp.delta.source.spark_read import DeltaRangeReader
from iscp.engine.range_staging import SnapshotRangeBuilder
from iscp.model.build.build_task import RangeBatch
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import BuildConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.schedule.runner import Runner
from iscp.spark.session import SparkRuntime, SparkSettings
from tests.fakes.guards import OpenGuard
from tests.fakes.replica_ports import replica_ports

QUERIES = {
    "rows": "SELECT o.id, o.amount, k.name FROM orders o JOIN codes k ON o.code = k.code WHERE o.amount > 0.1",
    "groups": "SELECT k.name, o.day, count(*) AS n, sum(o.amount) AS s, max(o.text) AS t FROM orders o JOIN codes k "
    "ON o.code = k.code GROUP BY k.name, o.day",
    "totals": "SELECT count(*) AS n, sum(id) AS s, min(day) AS d FROM orders",
}


class ViewBuilds:
    def __init__(self, root: Path, spark: SparkRuntime, rows: int) -> None:
        self._root, self._spark = root, spark
        self._numbers = itertools.count(1)
        self._tables = {name: str(root / name) for name in ("orders", "codes")}
        self.bytes = write_source(self._tables["orders"], rows)
        codes = pa.table(
            {"code": [f"c{each}" for each in range(1000)], "name": [f"n{each % 20}" for each in range(1000)]}
        )
        write_deltalake(self._tables["codes"], codes)

    def build(self, sql: str, range_bytes: int) -> None:
        """From nothing until it is published; 0: as one snapshot."""
        builds = BuildConfig(table_bytes_min=1 if range_bytes else 0, range_bytes=range_bytes or 1)
        ports = replica_ports(self._spark, builds, lambda name: ViewKind())
        runner, builder = Runner(ports, Bounds()), SnapshotRangeBuilder(ports, DeltaRangeReader())
        row = self._job(sql)
        outcome = self._iterate(runner, row)
        if range_bytes:
            row = after(row, outcome)
            plan = plan_of(row)
            assert plan is not None
            for range_id in range(1 << plan.depth, 2 << plan.depth):
                builder.build(RangeBatch(range_id, (plan,)), OpenGuard())
            outcome = self._iterate(runner, row)
        assert outcome.committed, outcome.error_msg

    def _job(self, sql: str) -> JobRow:
        name, own = f"view-{next(self._numbers)}", self._tables["orders"]
        tables = {each: uri for each, uri in self._tables.items() if f" {each}" in sql}
        spec = JobSpec(ConsumerSpec("view", str(self._root / name), options={"sql": sql, "tables": tables}))
        key = JobKey("default", str(DeltaTable(own).metadata().id), name)
        return JobRow(key, f"{next(self._numbers):012x}", spec.to_json(), own, own)

    def _iterate(self, runner: Runner, row: JobRow) -> JobOutcome:
        (outcome,) = runner.run(Iteration(next(self._numbers), row.key.table_id, row.table_uri, (row,)), OpenGuard())
        return outcome


def measure(builds: ViewBuilds, ranges: int, rounds: int) -> dict[str, float]:
    """Medians of seconds; the first round, in which Spark gets warm, does not count."""
    works = {
        f"{name}_{how}_s": (sql, cut) for name, sql in QUERIES.items() for how, cut in (("whole", 0), ("ranges", 1))
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, (sql, cut) in works.items():
            began_s = time.perf_counter()
            builds.build(sql, cut * builds.bytes // ranges)
            times[name].append(time.perf_counter() - began_s)
            report_progress(name.removesuffix("_s"), round=number, seconds=round(times[name][-1], 2))
    return {name: round(statistics.median(each[1:]), 2) for name, each in times.items()}


@click.command()
@click.option("--rows", type=click.IntRange(min=1_000), default=5_000_000, show_default=True)
@click.option("--ranges", type=click.IntRange(min=1), default=8, show_default=True, help="About so many.")
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(rows: int, ranges: int, rounds: int, as_json: bool) -> None:
    """Measure what it costs to compute a view's first rows by ranges."""
    with tempfile.TemporaryDirectory(prefix="iscp-build-views-") as folder:
        spark = SparkRuntime.start(SparkSettings(work_dir=Path(folder, "spark")))
        try:
            builds = ViewBuilds(Path(folder), spark, rows)
            found = measure(builds, ranges, rounds)
            result = {"benchmark": "build_views", "cpus": os.cpu_count(), "rows": rows, "bytes": builds.bytes, **found}
        finally:
            spark.stop()
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
