"""A change of millions of rows against a tuned streaming query: `python -m benchmarks.large [--json]`.

As `benchmarks.iteration`, with one commit that updates a twentieth of its rows and inserts the rest. Measured is the
time from the source's commit to the target's.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from benchmarks.iteration import FEED, WAIT_S, Contender, await_version, elapsed_s, stream
from benchmarks.progress import report_progress
from iscp.cli.node.up import start_up
from iscp.client.admin_client import Client
from iscp.spark.session import SparkRuntime, SparkSettings
from iscp.system.threads import SystemClock

AIM_RATIO = 1.1
UPDATED = 20
"""One row of so many is there already."""


def rows(ids: np.ndarray, text: str) -> pa.Table:
    numbers = pa.array(ids)
    texts = pc.binary_join_element_wise(text, numbers.cast(pa.string()), " ")
    return pa.table({"id": numbers, "text": texts, "amount": pc.multiply(numbers.cast(pa.float64()), 0.5)})


def change(source: str, size: int, table_rows: int, round_number: int) -> None:
    """One commit: keys that are there already are updated, the others are new."""
    updated = min(size // UPDATED, table_rows)
    first = table_rows + round_number * size
    ids = np.concatenate([np.arange(updated), np.arange(first, first + size - updated)])
    (
        DeltaTable(source)
        .merge(rows(ids, f"round {round_number}"), "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )


def measure(contender: Contender, size: int, table_rows: int, round_number: int) -> float:
    """Seconds."""
    before = DeltaTable(contender.target).version()
    change(contender.source, size, table_rows, round_number)
    took_s = elapsed_s(contender, before + 1)
    # All of it in that one commit, and not a part.
    held, wanted = DeltaTable(contender.target).count(), DeltaTable(contender.source).count()
    assert held == wanted, (contender.name, held, wanted)
    return took_s


def run(root: Path, client: Client, spark: SparkRuntime, size: int, table_rows: int, rounds: int) -> dict[str, Any]:
    ours, theirs = str(root / "ours"), str(root / "theirs")
    for source in (ours, theirs):
        write_deltalake(source, rows(np.arange(table_rows), "first"), configuration=FEED)
    copy = f"{theirs}-copy"
    write_deltalake(copy, rows(np.arange(1), "first").slice(0, 0))
    client.register(ours, "copy", target=f"{ours}-copy", key=["id"], trigger="greedy")
    client.wait(ours, "copy", timeout_s=WAIT_S)
    query = stream(spark.root, theirs, copy, root / "checkpoint")
    await_version(query, copy, 1)
    contenders = (
        Contender("iscp", ours, f"{ours}-copy", lambda: client.notify(ours)),
        Contender("streaming", theirs, copy, lambda: None),
    )
    times: dict[str, list[float]] = {"iscp": [], "streaming": []}
    try:
        for number in range(rounds):
            for contender in contenders if number % 2 else contenders[::-1]:
                seconds = measure(contender, size, table_rows, number)
                times[contender.name].append(seconds)
                report_progress(contender.name, round=number, seconds=round(seconds, 1))
    finally:
        query.stop()
    return figures(times, size, table_rows)


def figures(times: dict[str, list[float]], size: int, table_rows: int) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = round(medians["iscp"] / medians["streaming"], 3)
    return {
        "benchmark": "large",
        "cpus": os.cpu_count(),
        "changed_rows": size,
        "table_rows": table_rows,
        **{f"{name}_s": round(median, 1) for name, median in medians.items()},
        **{f"{name}_range_s": [round(min(values), 1), round(max(values), 1)] for name, values in times.items()},
        "rows_per_s": round(size / medians["iscp"]),
        "ratio": ratio,
        "aims": [{"aim": f"ratio <= {AIM_RATIO:g}", "measured": ratio, "met": ratio <= AIM_RATIO}],
    }


@click.command()
@click.option("--rows", "size", type=click.IntRange(min=100), default=10_000_000, show_default=True)
@click.option("--table", "table_rows", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(size: int, table_rows: int, rounds: int, as_json: bool) -> None:
    """Measure a large change beside a streaming query."""
    with tempfile.TemporaryDirectory(prefix="iscp-large-") as folder:
        root = Path(folder)
        up = start_up(root / "iscp", SystemClock(), os.environ, port=0)
        spark = SparkRuntime.start(SparkSettings(work_dir=root / "spark"))
        try:
            with Client(up.endpoint) as client:
                result = run(root, client, spark, size, table_rows, rounds)
        finally:
            spark.stop()
            up.stop()
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
