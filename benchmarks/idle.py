"""What idle tables cost a node: `python -m benchmarks.idle [--tables N] [--json]`.

Makes N real Delta tables (each a directory with the first commit of its log) and gives them, one built job each, to
the real scheduler with the real probe, in a process of its own for each of two runs. What is measured begins when every
target has been probed once, as a first probe reads the target:

- `cpu_us_per_table`: CPU of the whole process for a pass in which every table and its job's target is probed once, by
  its own due time, divided by the probes; the median of the passes, and `cpu_us_range`. The interval is fixed for it,
  so that no table backs off.
- `source_probe_us`, `target_probe_us`: what probes take of it, timed in further passes; `rest_us`: all else.
- `steady_cores`: what that comes to when tables stay idle, which are then probed every `interval_max_s`.
- `bytes_per_table`: growth of the resident set from before the rows were made to the end of the passes;
  `python_bytes_per_table`: the same as tracemalloc counts it, in the second run.
- `spark_jobs`: iterations handed to the runner (nothing else reaches Spark), plus any Spark session in the process;
  `etcd_writes`: 0 if the process has no etcd client.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from benchmarks.progress import report_progress
from iscp.app.registry import ConsumerRegistry
from iscp.delta.log.commits import APP_ID
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.sink.sink_position import tag_json
from iscp.delta.source.change_source import DeltaChangeSource, DeltaProbe
from iscp.engine.iteration_ports import SinkPool
from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import ProbeState, TargetLog, TargetSeen
from iscp.model.protocol.events import StartShard
from iscp.model.settings.config import BackoffConfig, ProbeConfig, SchedulerConfig
from iscp.model.spec.spec_parsing import target_of
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.model.values.watermark import Watermark
from iscp.ports.sink import CommitTag
from iscp.ports.system import Guard
from iscp.schedule.executor import Executor
from iscp.schedule.probe_pool import TargetProbes
from iscp.schedule.schedule_events import WorkerNews
from iscp.schedule.schedule_machine import Schedule
from iscp.schedule.scheduler import Scheduler
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock, collect_rarely

AIMS = {"cpu_us_per_table": 20, "bytes_per_table": 2_048, "spark_jobs": 0, "etcd_writes": 0}
PASSES = 5
PASS_TIMEOUT_S = 600.0
INTERVAL_S = 6.0
"""Longer than a pass takes, so that passes do not run into each other."""
TRACED_SLOWER = 10
CLOCK_READINGS = 1_001

_SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
_COMMIT = "\n".join(
    json.dumps(action)
    for action in (
        {"commitInfo": {"timestamp": 1_700_000_000_000, "operation": "CREATE TABLE"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}},
        {
            "metaData": {
                "id": "ID",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(_SCHEMA),
                "partitionColumns": [],
                "configuration": {"delta.enableChangeDataFeed": "true"},
            }
        },
    )
)


def table_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def make_tables(root: Path, count: int) -> None:
    for number in range(count):
        made = row(root, number)
        _write_log(Path(made.table_uri), _COMMIT.replace("ID", table_id(number)))
        _write_log(Path(target_of(made.spec_json)), _target_commit(made))


def _write_log(table: Path, commit: str) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text(commit)


def _target_commit(made: JobRow) -> str:
    """What the job has applied, as one commit of its target."""
    tag = CommitTag(made.seq, made.job_id, made.key.table_id, -1, made.watermark, 1, -1, "attempt", "snapshot")
    about = {"timestamp": 1_700_000_000_000, "operation": "WRITE", "userMetadata": tag_json(tag)}
    ours = [{"commitInfo": about}, {"txn": {"appId": APP_ID, "version": made.seq}}]
    return "\n".join([*(json.dumps(action) for action in ours), *_COMMIT.splitlines()[1:]])


def row(root: Path, number: int) -> JobRow:
    """As it comes out of the job log: no text is shared with another row."""
    spec = {
        "trigger": {"job_type": "default"},
        "iteration": {"consumer": {"kind": "replica", "target": f"{root}/derived/replica-{number:06d}", "key": ["id"]}},
    }
    uri = f"{root}/{number // 1_000:04d}/table-{number:06d}"
    return JobRow(
        key=JobKey("default", table_id(number), "replica"),
        job_id=f"{1_700_000_000_000 + number:012x}",
        spec_json=json.dumps(spec),
        table_name=f"table-{number:06d}",
        table_uri=uri,
        watermark=Watermark(0, time.time()),  # its commit is written already
        seq=1,
    )


class CountingRunner:
    """Port IterationRunner; nothing ought to come here."""

    def __init__(self) -> None:
        self.iterations = 0

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        self.iterations += 1
        raise AssertionError("an idle table was to be run")

    def cancel(self, iteration: Iteration) -> None:
        raise AssertionError("nothing runs")


class Stopwatch:
    """CPU time of one thread between `begin` and `end`, each time they are called; it counts while it is `on`."""

    def __init__(self) -> None:
        self.on = False
        self._spent_ns, self._began_ns = 0, 0

    def begin(self) -> None:
        self._began_ns = time.thread_time_ns() if self.on else 0

    def end(self) -> None:
        if self._began_ns:
            self._spent_ns += time.thread_time_ns() - self._began_ns

    def take_us(self, times: int) -> float:
        """Of one time, without what reading the clock takes; begins at nothing again."""
        spent_ns, self._spent_ns = self._spent_ns, 0
        return max(0.0, spent_ns / times - clock_ns()) / 1e3


def clock_ns() -> float:
    readings = [time.thread_time_ns() for _ in range(CLOCK_READINGS)]
    return statistics.median(after - before for before, after in pairwise(readings))


class CountingProbe(DeltaProbe):
    """The real probe; counts its calls, and times them."""

    def __init__(self) -> None:
        self.looks = 0
        self.watch = Stopwatch()

    def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
        self.looks += 1
        self.watch.begin()
        state = super().probe(table_uri, seen)
        self.watch.end()
        return state


class CountingTargets(TargetProbes):
    """The real ones; counts the targets that were probed for the first time, and times the probes of all others."""

    def __init__(self, kinds: ConsumerRegistry, sinks: SinkPool) -> None:
        super().__init__({TargetLog.DELTA: DeltaProbe()}, kinds.kind, sinks)
        self.known = 0
        self.watch = Stopwatch()

    def probe(self, row: JobRow, seen: TargetSeen | None) -> TargetSeen:
        if seen is None:
            self.known += 1
            return super().probe(row, seen)
        self.watch.begin()
        found = super().probe(row, seen)
        self.watch.end()
        return found


class Node:
    """Scheduler, executor and probe of one node; what it reports is counted and dropped."""

    def __init__(self, probe_config: ProbeConfig) -> None:
        clock = SystemClock()
        self.probe = CountingProbe()
        self.runner = CountingRunner()
        self.told: dict[type, int] = {}
        self.broken: list[Exception] = []
        schedule = Schedule("bench", probe_config, BackoffConfig(), random.random)
        kinds, failpoints = ConsumerRegistry(()), EnvironmentFailpoints({})
        open_sink, source = lambda uri: DeltaSink(uri, failpoints), DeltaChangeSource()
        sinks = SinkPool(open_sink, lambda uri: uri, clock, failpoints, source, cached_max=0)
        self.targets = CountingTargets(kinds, sinks)
        self.scheduler = Scheduler(schedule, self.probe, self.targets, clock, self.broken.append)
        self.scheduler.reports.subscribe(self._tell, *get_args(WorkerNews))
        self.executor = Executor(
            self.runner, clock, SchedulerConfig(), lambda epoch: None, self.scheduler.post, lambda iteration: None
        )
        self.scheduler.start(self.executor)

    def _tell(self, news: WorkerNews) -> None:
        self.told[type(news)] = self.told.get(type(news), 0) + 1

    def wait(self, what: str, count: Callable[[], int], until: int) -> None:
        end_s = time.monotonic() + PASS_TIMEOUT_S
        while count() < until:
            if self.broken or time.monotonic() > end_s:
                raise RuntimeError(f"only {count()} of {until} {what}: {self.broken}")
            time.sleep(0.05)

    def pass_us(self, tables: int) -> float:
        """The process's CPU time of a probe of each table."""
        first, began_s = self.probe.looks, time.process_time()
        self.wait("probes", lambda: self.probe.looks, first + tables)
        return 1e6 * (time.process_time() - began_s) / (self.probe.looks - first)

    def probes_us(self, tables: int) -> tuple[float, float]:
        """What of a pass the probes of sources and of targets take, each of one table."""
        watches, first = (self.probe.watch, self.targets.watch), self.probe.looks
        for watch in watches:
            watch.on = True
        self.wait("probes", lambda: self.probe.looks, first + tables)
        for watch in watches:
            watch.on = False
        looks = self.probe.looks - first
        return watches[0].take_us(looks), watches[1].take_us(looks)

    def close(self) -> None:
        self.executor.close(drain=False, wait_s=1.0)
        self.scheduler.close(wait_s=10.0)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(root: Path, tables: int, interval_s: float, traced: bool) -> dict[str, Any]:
    collect_rarely()  # as a node's process does
    if traced:
        tracemalloc.start()
    interval_s *= TRACED_SLOWER if traced else 1
    node = Node(ProbeConfig(interval_min_s=interval_s, interval_max_s=interval_s))
    before = tracemalloc.get_traced_memory()[0] if traced else rss_bytes()
    for number in range(tables):
        made = row(root, number)
        node.scheduler.post(StartShard(ShardId(made.key.table_id), TableEpoch(1, number), (made,)))
        del made
    node.wait("targets were probed", lambda: node.targets.known, tables)
    passes_us = [node.pass_us(tables) for _ in range(1 if traced else PASSES)]
    grown = (tracemalloc.get_traced_memory()[0] if traced else rss_bytes()) - before
    sources_us, targets_us = zip(*[node.probes_us(tables) for _ in passes_us], strict=True)
    node.close()
    return {
        "passes_us": passes_us,
        "source_probe_us": statistics.median(sources_us),
        "target_probe_us": statistics.median(targets_us),
        "bytes_per_table": grown / tables,
        "iterations": node.runner.iterations + spark_sessions(),
        "etcd_clients": sum(name.startswith("iscp.etcd.client") for name in sys.modules),
        "told": sum(node.told.values()),
    }


def spark_sessions() -> int:
    pyspark = sys.modules.get("pyspark")
    return int(pyspark is not None and pyspark.SparkContext._active_spark_context is not None)


def measured_apart(root: Path, tables: int, interval_s: float, traced: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.idle", "--measure", str(root), "--tables", str(tables)]
    command += ["--interval-s", str(interval_s), *(["--traced"] if traced else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    report_progress("with tracemalloc" if traced else "by itself", **found)
    return found


def run(tables: int, pass_interval_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="iscp-idle-") as made:
        make_tables(Path(made), tables)
        report_progress("the tables", tables=tables)
        plain = measured_apart(Path(made), tables, pass_interval_s, traced=False)
        traced = measured_apart(Path(made), tables, pass_interval_s, traced=True)
    cpu_us = statistics.median(plain["passes_us"])
    interval_s = ProbeConfig().interval_max_s
    figures: dict[str, Any] = {
        "tables": tables,
        "passes": PASSES,
        "cpu_us_per_table": round(cpu_us, 2),
        "cpu_us_range": [round(min(plain["passes_us"]), 2), round(max(plain["passes_us"]), 2)],
        "source_probe_us": round(plain["source_probe_us"], 2),
        "target_probe_us": round(plain["target_probe_us"], 2),
        "rest_us": round(cpu_us - plain["source_probe_us"] - plain["target_probe_us"], 2),
        "bytes_per_table": round(plain["bytes_per_table"]),
        "python_bytes_per_table": round(traced["bytes_per_table"]),
        "steady_interval_s": interval_s,
        "steady_cores": round(cpu_us * tables / 1e6 / interval_s, 5),
        "spark_jobs": int(plain["iterations"] + traced["iterations"]),
        "etcd_writes": 0 if not plain["etcd_clients"] else None,
    }
    aims = [
        {"aim": f"{name} <= {aim:g}", "measured": figures[name], "met": figures[name] <= aim}
        for name, aim in AIMS.items()
    ]
    return {**figures, "aims": aims}


def main() -> None:
    parser = argparse.ArgumentParser(description="What idle tables cost a node.")
    parser.add_argument("--tables", type=int, default=100_000)
    parser.add_argument("--interval-s", type=float, default=INTERVAL_S, help="between two probes of a table")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.tables, options.interval_s, options.traced)))
        return
    figures = run(options.tables, options.interval_s)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if name != "aims":
            print(f"{name:24} {value}")
    for aim in figures["aims"]:
        print(f"{'met' if aim['met'] else 'NOT MET':8} {aim['aim']}: {aim['measured']}")


if __name__ == "__main__":
    main()
