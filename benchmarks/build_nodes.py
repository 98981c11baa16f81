"""One build by one node and by several, on a store that takes its time: the part `nodes` of `benchmarks.build`.

Real nodes, an etcd, and an S3 that waits before each answer; source, target and job log lie there. What takes long is
then the store, as in a data centre, and not the two cores that all nodes share here. By turns one node builds a table,
the others being drained, and all of them; each has done so before, as a node's first build loads classes.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.progress import report_progress
from iscp.model.settings.config import DIRECT_BYTES_MAX
from tests.e2e.harness import wait_for
from tests.e2e.many_nodes import ManyNodes
from tests.fakes.s3 import FakeS3, asking, s3_server

NODES = 3
SPEEDUP_AIM = 2.0
SETTLE_WAIT_S = 600.0


class SlowLake:
    """One source, and nodes that build copies of it, as many at a time as are not drained."""

    def __init__(self, cluster: ManyNodes, source: str) -> None:
        self._cluster = cluster
        self._source = source
        self._numbers = itertools.count(1)

    def build_s(self, nodes: int) -> float:
        """From a job's registration until its target has all rows."""
        names = sorted(self._cluster.members)
        for node_id in names[:nodes]:
            self._cluster.client.operator.uncordon(node_id)
        for node_id in names[nodes:]:
            self._cluster.client.operator.drain(node_id)
        wait_for("nothing is moved any more", lambda: self._placed(names[:nodes]))
        began_s = time.perf_counter()
        self._cluster.settle(
            self._cluster.replica(f"copy-{next(self._numbers)}", self._source), timeout_s=SETTLE_WAIT_S
        )
        return time.perf_counter() - began_s

    def _placed(self, names: list[str]) -> bool:
        ready = [node.node_id for node in self._cluster.client.cluster().nodes if node.state == "ready"]
        shards = self._cluster.client.operator.placement()
        return sorted(ready) == names and all(shard.node_id in names for shard in shards)


@contextmanager
def slow_lake(files: int, rows: int, delay_s: float) -> Iterator[SlowLake]:
    with tempfile.TemporaryDirectory(prefix="iscp-build-nodes-") as folder:
        root = Path(folder)
        with s3_server(root / "s3.log", delay_s=delay_s) as s3, asking(s3):
            cluster = ManyNodes(root, count=NODES)
            try:
                yield SlowLake(cluster, _start(cluster, s3, files, rows))
            finally:
                cluster.stop()


def _start(cluster: ManyNodes, s3: FakeS3, files: int, rows: int) -> str:
    cluster.derived, source = s3.uri("derived"), s3.uri("source")
    draw = np.random.default_rng(7)
    for part in range(files):
        ids = np.arange(part, rows, files)
        table = {"id": pa.array(ids, pa.int64()), "amount": draw.random(len(ids)), "text": [f"t{n}" for n in ids]}
        write_deltalake(source, pa.table(table), mode="append")
    refuse_small(bytes_of(source), "--files")
    report_progress("the table on S3", files=files, rows=rows)
    size = 2 * rows * 8  # of what does not compress
    builds = {"ISCP_BUILD__TABLE_BYTES_MIN": "1", "ISCP_BUILD__RANGE_BYTES": str(size // files)}
    cluster.start(**s3.settings, ISCP_LOG__URI=s3.uri("joblog"), ISCP_SPARK__MASTER="local[1]", **builds)
    report_progress("the nodes serve", nodes=NODES)
    return source


def bytes_of(uri: str) -> int:
    """Of the files of a table."""
    return sum(pa.table(DeltaTable(uri).get_add_actions())["size_bytes"].to_pylist())


def refuse_small(size: int, option: str) -> None:
    """What a node reads directly is built from one snapshot, however small the ranges: nothing would be compared."""
    if size <= DIRECT_BYTES_MAX:
        raise click.UsageError(
            f"{option} makes a table of {size} bytes, and only one of more than {DIRECT_BYTES_MAX} is built by ranges."
            " Give a larger number"
        )


def measure_nodes(files: int, rows: int, delay_s: float, rounds: int) -> dict[str, Any]:
    """Medians of seconds with one node and with all; the first round does not count."""
    times: dict[int, list[float]] = {1: [], NODES: []}
    with slow_lake(files, rows, delay_s) as lake:
        for number in range(rounds + 1):
            for nodes, seconds in times.items():
                seconds.append(lake.build_s(nodes))
                report_progress(f"{nodes} of the nodes", round=number, seconds=round(seconds[-1], 2))
    one, several = (statistics.median(seconds[1:]) for seconds in times.values())
    return {
        "nodes_delay_ms": round(1000 * delay_s),
        "nodes_files": files,
        "one_node_s": round(one, 2),
        f"{NODES}_nodes_s": round(several, 2),
        f"speedup_{NODES}_nodes": round(one / several, 2),
    }
