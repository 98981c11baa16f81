"""How long a change takes through five views on views: `python -m benchmarks.view_chain [--json]`.

A node as `iscp up` starts it; nobody notifies it. Each round commits 1,000 rows to the table below all of them, one
commit at a time. `chain_lag_s` is the time from that commit to the commit of the last view that covers it; `links_s` is
the part of it from the commit of the first view on, in which nothing waits for a probe.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from benchmarks.progress import report_progress
from iscp.cli.node.up import start_up
from iscp.client.admin_client import Client
from iscp.delta.log.commits import newest_version, read_commit
from iscp.system.threads import SystemClock

CHAIN = (
    ("cleaned", "SELECT id, g, x FROM base WHERE x >= 0"),
    ("by_group", "SELECT g, count(*) AS n, sum(x) AS s FROM cleaned GROUP BY g"),
    ("filled", "SELECT g, n, s FROM by_group WHERE n > 0"),
    ("by_size", "SELECT n, count(*) AS k, sum(s) AS t FROM filled GROUP BY n"),
    ("sizes", "SELECT n, k, n * k AS rows, t FROM by_size WHERE k > 0"),
)
GROUPS, CHANGED, TABLE_ROWS, WAIT_S, POLL_S = 1_000, 1_000, 100_000, 300.0, 0.02


def rows(first: int, count: int) -> pa.Table:
    draw = np.random.default_rng(first)
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "g": draw.integers(0, GROUPS, count),
            "x": draw.integers(0, 1_000, count),
        }
    )


def create(root: Path, client: Client) -> tuple[str, str, str]:
    """The URIs of the table, of the first view and of the last one."""
    below, uri = "base", str(root / "base")
    write_deltalake(uri, rows(0, TABLE_ROWS), configuration={"delta.enableChangeDataFeed": "true"})
    base = uri
    for name, sql in CHAIN:
        client.create_view(name, sql, target=str(root / name), tables={below: uri})
        client.wait(uri, name, timeout_s=WAIT_S)
        below, uri = name, str(root / name)
    return base, str(root / CHAIN[0][0]), uri


def covered(last: str) -> int:
    """How many rows of the table the last view counts."""
    found = QueryBuilder().register("t", DeltaTable(last)).execute("SELECT sum(rows) AS r FROM t").read_all()
    return int(pa.table(found)["r"][0].as_py())


def committed_at_s(uri: str, version: int) -> float:
    commit = read_commit(uri, version)
    assert commit is not None
    return commit.committed_at_s


def measure(base: str, first: str, last: str, number: int) -> tuple[float, float]:
    """Seconds from the table's commit, and from the first view's, to the last view's."""
    seen, total = newest_version(last), TABLE_ROWS + (number + 1) * CHANGED
    write_deltalake(base, rows(total - CHANGED, CHANGED), mode="append")
    began_s = committed_at_s(base, newest_version(base))
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        newest = newest_version(last)
        if newest > seen and covered(last) == total:
            done_s = committed_at_s(last, newest)
            lag_s, links_s = done_s - began_s, done_s - committed_at_s(first, newest_version(first))
            report_progress("a change", round=number, chain_lag_s=round(lag_s, 2), links_s=round(links_s, 2))
            return lag_s, links_s
        seen = newest
        time.sleep(POLL_S)
    raise TimeoutError(f"{last} does not count {total} rows after {WAIT_S:g} s")


def spread(times: Sequence[float]) -> dict[str, float]:
    return {
        "p50": round(statistics.median(times), 2),
        "p95": round(statistics.quantiles(times, n=20, method="inclusive")[-1], 2),
    }


@click.command()
@click.option("--rounds", type=click.IntRange(min=2), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(rounds: int, as_json: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="iscp-view-chain-") as folder:
        up = start_up(Path(folder) / "iscp", SystemClock(), os.environ, port=0)
        try:
            with Client(up.endpoint) as client:
                uris = create(Path(folder), client)
                times, links = zip(*[measure(*uris, number) for number in range(rounds)], strict=True)
        finally:
            up.stop()
    found: dict[str, Any] = {
        "views": len(CHAIN),
        "rounds": rounds,
        "chain_lag_s": spread(times),
        "links_s": spread(links),
        "range_s": [round(min(times), 2), round(max(times), 2)],
    }
    click.echo(json.dumps(found) if as_json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
