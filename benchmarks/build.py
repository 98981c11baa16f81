"""First snapshots by ranges against Spark's own copy of a table: `python -m benchmarks.build [--json]`.

One process is all nodes, one range after another, so that what the cut costs shows, and not how many nodes there are.
By turns: `CREATE TABLE … AS SELECT` of the same table, a job built in one piece and in ranges, without a key and with
one, and five jobs, each with other columns or rows, built in one read of each range.

Then real nodes build one table on an S3 that takes 50 ms for each answer, one node and three (`--part nodes`).
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.build_nodes import NODES, SPEEDUP_AIM, bytes_of, measure_nodes, refuse_small
from benchmarks.progress import report_progress
from iscp.cluster.builds.builder_loop import plan_of
from iscp.delta.source.spark_read import DeltaRangeReader
from iscp.engine.range_staging import SnapshotRangeBuilder
from iscp.model.build.build_task import RangeBatch
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow, JobStatus
from iscp.model.settings.config import BuildConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.schedule.runner import Runner
from iscp.spark.session import SparkRuntime, SparkSettings
from iscp.spark.spark_engine import SparkEngine
from tests.fakes.guards import OpenGuard
from tests.fakes.replica_ports import replica_ports

AIMS = {"ratio_one_job": 1.1, "ratio_five_jobs": 0.8, "cut_overhead": 0.1}
FILES = 16
ROWS_OF_FILE = 10_000
"""Of the table on S3."""

SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"where": "amount >= 0"},
    {"columns": ("id", "text", "amount", "day", "code")},
    {"where": "code <> 'x'"},
    {"columns": ("id", "text", "amount", "note", "code")},
)
"""Five jobs that keep nearly all of a table, each in a way of its own."""


class Bench:
    """One table, its copies by Spark, and builds of it."""

    def __init__(self, root: Path, spark: SparkRuntime) -> None:
        self.root = root
        self.source = str(root / "source")
        self._spark = spark
        self._engine = SparkEngine(spark.root, spark.new_session)
        self._numbers = itertools.count(1)

    def copy_by_spark(self) -> None:
        target = self.root / f"ctas-{next(self._numbers)}"
        with self._engine.session() as session:
            session.sql(f"CREATE TABLE delta.`{target}` USING delta AS SELECT * FROM delta.`{self.source}`")

    def build(self, range_bytes: int, *shapes: dict[str, Any]) -> None:
        """Jobs of these shapes, from nothing until they are published."""
        ports = replica_ports(self._spark, BuildConfig(table_bytes_min=1, range_bytes=range_bytes))
        runner = Runner(ports, Bounds(), lambda outcome: None)
        builder = SnapshotRangeBuilder(ports, DeltaRangeReader())
        rows = [after(row, self._iterate(runner, row)) for row in map(self._job, shapes)]
        plans = tuple(plan for row in rows if (plan := plan_of(row)) is not None)
        for range_id in range(1 << plans[0].depth, 2 << plans[0].depth):
            builder.build(RangeBatch(range_id, plans), OpenGuard())
        for row in rows:
            outcome = self._iterate(runner, row)
            assert outcome.committed, outcome.error_msg

    def _job(self, shape: dict[str, Any]) -> JobRow:
        name = f"copy-{next(self._numbers)}"
        spec = JobSpec(ConsumerSpec("replica", str(self.root / name), **shape))
        key = JobKey("default", str(DeltaTable(self.source).metadata().id), name)
        return JobRow(key, f"{next(self._numbers):012x}", spec.to_json(), self.source, self.source)

    def _iterate(self, runner: Runner, row: JobRow) -> JobOutcome:
        (outcome,) = runner.run(Iteration(next(self._numbers), row.key.table_id, self.source, (row,)), OpenGuard())
        return outcome


def after(row: JobRow, outcome: JobOutcome) -> JobRow:
    assert outcome.build is not None, outcome.error_msg
    return row._replace(seq=outcome.seq, status_json=JobStatus(build=outcome.build).to_json())


def write_source(uri: str, rows: int) -> int:
    """Bytes of its files."""
    draw = np.random.default_rng(7)
    for part in range(FILES):
        ids = np.arange(part, rows, FILES)
        table = {
            "id": pa.array(ids, pa.int64()),
            "text": [f"{each:x}" for each in draw.integers(0, 2**60, len(ids))],
            "amount": draw.random(len(ids)),
            "day": pa.array((ids % 3650).astype(np.int32)).cast(pa.date32()),
            "code": [f"c{each}" for each in ids % 1000],
            "note": [f"note {each % 77} of {each}" for each in ids],
        }
        write_deltalake(uri, pa.table(table), mode="append")
    return bytes_of(uri)


def measure(bench: Bench, size: int, ranges: int, rounds: int) -> dict[str, float]:
    """Medians of seconds; the first round, in which Spark gets warm, does not count."""
    works: dict[str, Callable[[], None]] = {
        "ctas_s": bench.copy_by_spark,
        "one_piece_s": lambda: bench.build(size, {}),
        "ranges_s": lambda: bench.build(size // ranges, {}),
        "keyed_s": lambda: bench.build(size // ranges, {"key": ("id",)}),
        "five_jobs_s": lambda: bench.build(size // ranges, *SHAPES),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            began_s = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began_s)
            report_progress(name.removesuffix("_s"), round=number, seconds=round(times[name][-1], 2))
    return {name: round(statistics.median(each[1:]), 2) for name, each in times.items()}


def figures(medians: dict[str, float]) -> dict[str, float]:
    return medians | {
        "ratio_one_job": round(medians["ranges_s"] / medians["ctas_s"], 3),
        "ratio_one_job_with_key": round(medians["keyed_s"] / medians["ctas_s"], 3),
        "ratio_five_jobs": round(medians["five_jobs_s"] / (5 * medians["ctas_s"]), 3),
        "cut_overhead": round(medians["ranges_s"] / medians["one_piece_s"] - 1, 3),
    }


def measure_ratios(rows: int, ranges: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="iscp-build-") as folder:
        spark = SparkRuntime.start(SparkSettings(work_dir=Path(folder, "spark")))
        try:
            bench = Bench(Path(folder), spark)
            size = write_source(bench.source, rows)
            refuse_small(size, "--rows")
            return figures(measure(bench, size, ranges, rounds)) | {"rows": rows, "bytes": size, "ranges": ranges}
        finally:
            spark.stop()


def judged(found: dict[str, Any]) -> dict[str, Any]:
    """With the aims of what was measured."""
    aims = [
        {"aim": f"{name} <= {aim:g}", "measured": found[name], "met": found[name] <= aim}
        for name, aim in AIMS.items()
        if name in found
    ]
    name = f"speedup_{NODES}_nodes"
    if name in found:
        met = found[name] >= SPEEDUP_AIM
        aims.append({"aim": f"{name} >= {SPEEDUP_AIM:g}", "measured": found[name], "met": met})
    return {"benchmark": "build", "cpus": os.cpu_count(), **found, "aims": aims}


@click.command()
@click.option("--rows", type=click.IntRange(min=1_000), default=5_000_000, show_default=True)
@click.option("--ranges", type=click.IntRange(min=1), default=8, show_default=True, help="About so many.")
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--part", type=click.Choice(["all", "ratios", "nodes"]), default="all", show_default=True)
@click.option("--delay-ms", type=click.IntRange(min=0), default=50, show_default=True, help="Of each answer by S3.")
@click.option("--files", type=click.IntRange(min=1), default=128, show_default=True, help="Of the table on S3.")
@click.option("--rows-of-file", type=click.IntRange(min=1), default=ROWS_OF_FILE, show_default=True, help="Of these.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(
    rows: int, ranges: int, rounds: int, part: str, delay_ms: int, files: int, rows_of_file: int, as_json: bool
) -> None:
    """Measure builds by ranges beside Spark's own copy, and by several nodes beside one."""
    found: dict[str, Any] = {}
    if part != "nodes":
        found |= measure_ratios(rows, ranges, rounds)
    if part != "ratios":
        found |= measure_nodes(files, files * rows_of_file, delay_ms / 1000, rounds)
    result = judged(found)
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
