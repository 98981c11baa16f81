"""SQL that is made to write, or to end or stall what analyzes it: it is refused, and nobody else notices."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.values.errors import InvalidRequest, IscpError
from tests.e2e.harness import Cluster, wait_for
from tests.processes import gone_within

OTHERS_WAIT_S = 2.0
"""How long another account's call may take meanwhile."""

INTO_DIRECTORY = "INSERT OVERWRITE {}DIRECTORY '{}' USING text SELECT 'x' AS value FROM t"
WRITTEN_OUT = "SELECT id, length(repeat('a', 2000000000)) AS n FROM t"
MULTIPLIED = "SELECT id, length(repeat(repeat('a', 1000000), 1000)) AS n FROM t"
"""Each number is one that may be written."""
GROWING = (
    "WITH c0 AS (SELECT id FROM t), "
    + ", ".join(f"c{n} AS (SELECT x.id FROM c{n - 1} x JOIN c{n - 1} y USING (id))" for n in range(1, 25))
    + " SELECT id FROM c24"
)
"""Twice as much to plan with each level."""


class Hostile:
    """The ways in which a tenant hands in a query, and another account that goes on calling meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.table = cluster.table("t", pa.table({"id": [1, 2]}))
        self.target = str(Path(cluster.derived) / "view")

    def explain(self, sql: str) -> None:
        self.cluster.client.explain_view(sql, {"t": self.table})

    def register(self, sql: str) -> None:
        self.cluster.client.create_view("v", sql, target=self.target, tables={"t": self.table})

    def check(self, sql: str) -> None:
        options = {"sql": sql, "tables": {"t": self.table}}
        spec = {"iteration": {"consumer": {"kind": "view", "target": self.target, "options": options}}}
        request = RegisterRequest(JobName(self.table, "v"), json.dumps(spec))
        (checked,) = self.cluster.client.check_many([request])
        if checked.error is not None:
            raise checked.error

    def ways(self) -> list[Callable[[str], None]]:
        return [self.explain, self.check, self.register]


@pytest.fixture
def hostile(cluster: Cluster) -> Hostile:
    cluster.start()
    return Hostile(cluster)


def refusal(way: Callable[[str], None], sql: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        way(sql)
    assert refused.value.field.endswith("sql")
    assert refused.value.remedy
    return refused.value


def longest_call_during(cluster: Cluster, work: Callable[[], object]) -> float:
    """Seconds that the slowest of another account's calls took while `work` was done."""
    slowest, done = [0.0], threading.Event()

    def call() -> None:
        while not done.wait(0.05):
            began_s = time.monotonic()
            cluster.client.jobs(account="other")
            slowest[0] = max(slowest[0], time.monotonic() - began_s)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        work()
    finally:
        done.set()
        caller.join()
    return slowest[0]


def analysis_pid(cluster: Cluster) -> int:
    """Of the process that analyzes SQL; 0: there is none."""
    node = cluster.node.pid
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == node and b"analysis_worker" in (stat.parent / "cmdline").read_bytes():
                return int(stat.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return 0


def end_analysis(hostile: Hostile, way: Callable[[str], None]) -> None:
    """By what Spark computes as it plans; another account's calls are answered meanwhile."""
    refused: list[InvalidRequest] = []
    slowest_s = longest_call_during(hostile.cluster, lambda: refused.append(refusal(way, MULTIPLIED)))
    assert re.search("more than .* MB", refused[0].message)
    assert slowest_s < OTHERS_WAIT_S


def leave_analysis(hostile: Hostile) -> None:
    """The process ends that is of use to nobody any more, and another one comes in its place."""
    cluster = hostile.cluster
    pid = analysis_pid(cluster)
    assert pid
    began_s = time.monotonic()
    with pytest.raises(IscpError):
        cluster.client.explain_view(GROWING, {"t": hostile.table}, timeout_s=2.0)
    assert gone_within(pid, 3.0)
    assert time.monotonic() - began_s < 8.0
    wait_for("another one has come in its place", lambda: analysis_pid(cluster) not in (0, pid))


@pytest.mark.slow
def test_hostile_sql_neither_writes_nor_ends_a_node_nor_outlives_its_call(hostile: Hostile, tmp_path: Path) -> None:
    cluster, pid = hostile.cluster, hostile.cluster.node.pid
    there = tmp_path / "elsewhere"
    there.mkdir()
    (there / "file").write_text("as it was")
    for way in hostile.ways():
        for local in ("", "LOCAL "):
            error = refusal(way, INTO_DIRECTORY.format(local, there))
            assert "is no SELECT, but InsertIntoDir" in error.message
        assert "calls repeat() with 2000000000" in refusal(way, WRITTEN_OUT).message
    assert [(each.name, each.read_text()) for each in there.iterdir()] == [("file", "as it was")]
    deep = f"SELECT {'(' * 100}id{')' * 100} AS n FROM t"
    assert "nested more than" in refusal(hostile.register, deep).message
    many = "SELECT id FROM t " + "QUALIFY row_number() OVER (ORDER BY id) = 1 " * 4_000
    assert "QUALIFY" in refusal(hostile.register, many).message
    leave_analysis(hostile)
    end_analysis(hostile, hostile.register)
    hostile.register("SELECT id, repeat('a', 3) AS s FROM t")
    cluster.client.wait(hostile.table, "v", timeout_s=60)
    assert (cluster.node.pid, cluster.node.alive) == (pid, True)


@pytest.mark.full
def test_each_way_ends_the_analysis_alone(hostile: Hostile) -> None:
    for way in hostile.ways():
        end_analysis(hostile, way)
        assert hostile.cluster.node.alive
