"""One small iteration against a tuned streaming query: `python -m benchmarks.iteration [--json]`.

Both keep a copy of a table, by key, from its change data feed, each of a source of its own with the same rows; they
take the same changes in turns, in one run, both warm. Measured is the time from the source's commit to the target's.
iscp runs as a node of its own (`iscp up`) and is notified; the streaming query runs in this process with the same
settings of Spark, polls as often as it can, reduces each batch to the last change of a key, and merges it.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from benchmarks.progress import report_progress
from iscp.cli.node.up import start_up
from iscp.client.admin_client import Client
from iscp.spark.session import SparkRuntime, SparkSettings
from iscp.system.threads import SystemClock

AIM_MIXED, AIM_INSERT_ONLY, AIM_OVERHEAD_MS = 0.7, 0.4, 20.0
SMALL = (10, 1_000)
POLL_S = 0.002
WAIT_S = 900.0
FEED = {"delta.enableChangeDataFeed": "true"}


@dataclass(frozen=True, slots=True)
class Case:
    table_rows: int
    changed_rows: int
    insert_only: bool

    @property
    def kind(self) -> str:
        return "insert_only" if self.insert_only else "mixed"


@dataclass(frozen=True, slots=True)
class Contender:
    """`wake` is called right after the source's commit."""

    name: str
    source: str
    target: str
    wake: Callable[[], object]


def rows(ids: range, text: str) -> pa.Table:
    values = {"id": list(ids), "text": [f"{text} {i}" for i in ids], "amount": [i * 0.5 for i in ids]}
    return pa.table(values)


def change(source: str, case: Case, round_number: int) -> None:
    """One commit: new keys only, or one half updates, a quarter inserts and a quarter deletes."""
    size = case.changed_rows
    new = range(10_000_000 + round_number * size, 10_000_000 + (round_number + 1) * size)
    if case.insert_only:
        write_deltalake(source, rows(new, "new"), mode="append")
        return
    first = (round_number * size) % case.table_rows
    touched = rows(range(first, first + size - size // 4), f"round {round_number}").append_column(
        "op", [["d"] * (size // 4) + ["u"] * (size - 2 * (size // 4))]
    )
    fresh = rows(new[: size // 4], "new").append_column("op", [["u"] * (size // 4)])
    columns = {"id": "s.id", "text": "s.text", "amount": "s.amount"}
    (
        DeltaTable(source)
        .merge(pa.concat_tables([touched, fresh]), "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_delete("s.op = 'd'")
        .when_matched_update(columns)
        .when_not_matched_insert(columns)
        .execute()
    )


def measure(contender: Contender, case: Case, round_number: int) -> tuple[float, float]:
    """Milliseconds from the source's commit to the target's, and when it began (Unix seconds)."""
    before = DeltaTable(contender.target).version()
    change(contender.source, case, round_number)
    began_at_s = time.time()
    return elapsed_s(contender, before + 1) * 1000, began_at_s


def elapsed_s(contender: Contender, version: int) -> float:
    """From now to the target's commit of `version`."""
    waiting_for, began_s = Path(contender.target, "_delta_log", f"{version:020d}.json"), time.perf_counter()
    contender.wake()
    while not waiting_for.exists():
        if time.perf_counter() - began_s > WAIT_S:
            raise TimeoutError(f"{contender.name} did not commit within {WAIT_S} s")
        time.sleep(POLL_S)
    return time.perf_counter() - began_s


def stream(session: SparkSession, source: str, target: str, checkpoint: Path) -> Any:
    def merge(batch: DataFrame, _: int) -> None:
        last = Window.partitionBy("id").orderBy(
            F.col("_commit_version").desc(), (F.col("_change_type") == "delete").asc()
        )
        # Not persisted: Delta keeps what it merges by itself.
        net = (
            batch.where("_change_type <> 'update_preimage'")
            .withColumn("rank", F.row_number().over(last))
            .where("rank = 1")
        )
        values = {name: F.col(f"s.{name}") for name in ("id", "text", "amount")}
        (
            SparkDeltaTable.forPath(batch.sparkSession, target)
            .alias("t")
            .merge(net.alias("s"), "t.id = s.id")
            .whenMatchedDelete("s._change_type = 'delete'")
            .whenMatchedUpdate(set=values)  # type: ignore[arg-type]
            .whenNotMatchedInsert("s._change_type <> 'delete'", values=values)  # type: ignore[arg-type]
            .execute()
        )

    return (
        session.readStream.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 0)
        .load(source)
        .writeStream.foreachBatch(merge)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )


def await_version(query: Any, table: str, version: int) -> None:
    until_s = time.monotonic() + WAIT_S
    while DeltaTable(table).version() < version:
        if query.exception() or time.monotonic() > until_s:
            raise TimeoutError(f"the streaming query has not started: {query.exception()}")
        time.sleep(POLL_S * 10)


def outside_spark_ms(log: Path, table: str, begun_at_s: list[float]) -> tuple[list[float], list[float]]:
    """From each commit to the end of its iteration, less what the iteration waited for Spark, by the node's log.

    The first figures are also without the time in which it read and wrote the data itself; the second with it. The
    end lies behind the target's commit: Spark has something to do after it, which counts on both sides.
    """
    events = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    done = [event for event in events if event["event"] == "iteration.done" and event["table"] == table]
    outside = [
        (datetime.fromisoformat(event["time"]).timestamp() - began_at_s - event["spark_s"], event["direct_s"])
        for began_at_s, event in zip(begun_at_s, done[-len(begun_at_s) :], strict=True)
    ]
    return [(all_s - direct_s) * 1000 for all_s, direct_s in outside], [all_s * 1000 for all_s, _ in outside]


def run_table(
    root: Path, cases: list[Case], client: Client, session: SparkSession, log: Path, rounds: int
) -> Iterator[dict[str, Any]]:
    table_rows = cases[0].table_rows
    ours, theirs = str(root / f"ours-{table_rows}"), str(root / f"theirs-{table_rows}")
    for source in (ours, theirs):
        write_deltalake(source, rows(range(table_rows), "first"), configuration=FEED)
    copy = f"{theirs}-copy"
    write_deltalake(copy, rows(range(1), "first").slice(0, 0))
    name = f"copy-{table_rows}"
    client.register(ours, name, target=f"{ours}-copy", key=["id"], trigger="greedy")
    client.wait(ours, name, timeout_s=WAIT_S)
    query = stream(session, theirs, copy, root / f"checkpoint-{table_rows}")
    await_version(query, copy, 1)  # the table's first rows
    contenders = (
        Contender("iscp", ours, f"{ours}-copy", lambda: client.notify(ours)),
        Contender("streaming", theirs, copy, lambda: None),
    )
    number = 0
    try:
        for case in cases:
            times: dict[str, list[float]] = {"iscp": [], "streaming": []}
            begun_at_s: list[float] = []
            for repeat in range(rounds + 1):
                number += 1
                for contender in contenders if number % 2 else contenders[::-1]:
                    took_ms, began_at_s = measure(contender, case, number)
                    if repeat:  # the first of each case warms both
                        times[contender.name].append(took_ms)
                        begun_at_s += [began_at_s] if contender.name == "iscp" else []
            client.wait(ours, name, timeout_s=WAIT_S)
            yield figures(case, times, *outside_spark_ms(log, ours, begun_at_s))
    finally:
        query.stop()
        client.unregister(ours, name)


def figures(case: Case, times: dict[str, list[float]], overheads: list[float], outside: list[float]) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "table_rows": case.table_rows,
        "changed_rows": case.changed_rows,
        "kind": case.kind,
        **{f"{name}_ms": round(median) for name, median in medians.items()},
        **{f"{name}_range_ms": [round(min(values)), round(max(values))] for name, values in times.items()},
        "overhead_ms": round(statistics.median(overheads), 1),
        "outside_spark_ms": round(statistics.median(outside), 1),
        "ratio": round(medians["iscp"] / medians["streaming"], 3),
    }


def summary(cases: list[dict[str, Any]]) -> dict[str, Any]:
    def ratio(kind: str) -> float:
        small = [case["ratio"] for case in cases if case["kind"] == kind and case["changed_rows"] in SMALL]
        return float(round(statistics.median(small), 3))

    overhead_ms = statistics.median(case["overhead_ms"] for case in cases)
    measured = (
        ("ratio_mixed", ratio("mixed"), AIM_MIXED),
        ("ratio_insert_only", ratio("insert_only"), AIM_INSERT_ONLY),
        ("overhead_ms", overhead_ms, AIM_OVERHEAD_MS),
    )
    return {
        "benchmark": "iteration",
        "cpus": os.cpu_count(),
        **{name: value for name, value, _ in measured},
        "cases": cases,
        "aims": [
            {"aim": f"{name} <= {aim:g}", "measured": value, "met": value <= aim} for name, value, aim in measured
        ],
    }


@click.command()
@click.option("--tables", default="100000,1000000", show_default=True, help="Rows of the source tables.")
@click.option("--changes", default="10,1000,100000", show_default=True, help="Rows that a change has.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(tables: str, changes: str, rounds: int, as_json: bool) -> None:
    """Measure iterations beside a streaming query."""
    sizes, counts = [int(text) for text in tables.split(",")], [int(text) for text in changes.split(",")]
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="iscp-iteration-") as folder:
        root = Path(folder)
        up = start_up(root / "iscp", SystemClock(), os.environ, port=0)
        spark = SparkRuntime.start(SparkSettings(work_dir=root / "spark"))
        try:
            with Client(up.endpoint) as client:
                log = root / "iscp" / "logs" / "iscp-0.log"
                for size in sizes:
                    cases = [Case(size, count, only) for count in counts for only in (True, False)]
                    for case in run_table(root, cases, client, spark.root, log, rounds):
                        report_progress("a case", **case)
                        done.append(case)
        finally:
            spark.stop()
            up.stop()
    result = summary(done)
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
