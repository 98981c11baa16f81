"""From `iscp up` to the first iteration done: `python -m benchmarks.startup [--runs N] [--json]`.

Each run has a directory of its own and a job on a table of 1,000 rows, registered as soon as the node serves. One run
before them warms the machine's caches (jars, archives of classes) and does not count.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.progress import report_progress
from iscp.cli.node.up import start_up
from iscp.client.admin_client import Client
from iscp.system.threads import SystemClock

AIM_S = 15.0
ROWS = 1_000
RUNS = 3


@dataclass(frozen=True, slots=True)
class Run:
    ready_s: float
    first_iteration_s: float


def measure(root: Path) -> Run:
    source = str(root / "source")
    rows = pa.table({"id": list(range(ROWS)), "text": ["x"] * ROWS})
    write_deltalake(source, rows, configuration={"delta.enableChangeDataFeed": "true"})
    begin_s = time.perf_counter()
    up = start_up(root / "iscp", SystemClock(), os.environ, port=0)
    try:
        ready_s = time.perf_counter() - begin_s
        with Client(up.endpoint) as client:
            client.register(source, "copy", target=str(root / "target"), key=["id"])
            client.wait(source, "copy", timeout_s=120.0)
        return Run(ready_s, time.perf_counter() - begin_s)
    finally:
        up.stop()


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=RUNS, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(runs: int, as_json: bool) -> None:
    """Measure how long a start takes."""
    measured = []
    for number in range(runs + 1):
        with tempfile.TemporaryDirectory(prefix="iscp-startup-") as root:
            run = measure(Path(root))
        if number:
            measured.append(run)
        report_progress("a start" if number else "a start to warm up", run=number, **asdict(run))
    first = [run.first_iteration_s for run in measured]
    median_s = round(statistics.median(first), 2)
    result = {
        "benchmark": "startup",
        "runs": runs,
        "cpus": os.cpu_count(),
        "first_iteration_s": median_s,
        "first_iteration_min_s": round(min(first), 2),
        "first_iteration_max_s": round(max(first), 2),
        "ready_s": round(statistics.median(run.ready_s for run in measured), 2),
        "aims": [{"aim": f"first_iteration_s <= {AIM_S:g}", "measured": median_s, "met": median_s <= AIM_S}],
    }
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
