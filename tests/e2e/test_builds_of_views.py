"""Views on a large table whose first rows the nodes of a cluster compute together, while they are killed."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.e2e.harness import SETTLE_WAIT_S, Job, append, read, upsert, wait_for
from tests.e2e.many_nodes import ManyNodes
from tests.e2e.test_build_kills import built, killing
from tests.e2e.test_builds import BUILDS, RANGES, is_over, nodes_of_tasks, shown_rows

pytestmark = pytest.mark.spark

FILES, ROWS = 5, 2_000
MANY_FILES, MANY_ROWS = 24, 20_000
MANY_BUILDS = BUILDS | {"ISCP_BUILD__RANGE_BYTES": "100000"}
"""Some 32 ranges, each of which takes a node some seconds."""

ENTRIES_MAX = 1_000
KILLING_S, STEP_S, CHANGES_MAX = 240.0, 2.0, 20
"""How long nodes are killed at the most; pause between two changes of the tables, and how many there are."""

WITHIN_S = 600.0

JOIN = "FROM orders o JOIN customers c ON o.cust = c.cust"
QUERIES = {
    "lines": f"SELECT o.id, c.name {JOIN}",
    "per_name": f"SELECT c.name, count(*) AS n, sum(o.total) AS s {JOIN} GROUP BY c.name",
    "best": f"SELECT c.name, sum(o.total) AS s {JOIN} GROUP BY c.name ORDER BY s DESC, name LIMIT 3",
}


def orders(first: int, rows: int = ROWS) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table({"id": ids, "cust": ids % 7, "total": ids * 31 % 1_000})


def customers(text: str) -> pa.Table:
    return pa.table({"cust": pa.array(range(6), pa.int64()), "name": [f"{text}{n % 4}" for n in range(6)]})


def expected(name: str, tables: dict[str, str]) -> Counter[tuple[Any, ...]]:
    names = {row["cust"]: row["name"] for row in read(tables["customers"]).to_pylist()}
    lines = [(row, names[row["cust"]]) for row in read(tables["orders"]).to_pylist() if row["cust"] in names]
    if name == "lines":
        return Counter((row["id"], each) for row, each in lines)
    counts, sums = Counter[str](), defaultdict[str, int](int)
    for row, each in lines:
        counts[each] += 1
        sums[each] += row["total"]
    if name == "per_name":
        return Counter((each, counts[each], sums[each]) for each in counts)
    return Counter(sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:3])


class BuiltViews:
    def __init__(self, cluster: ManyNodes, files: int, rows: int) -> None:
        self.cluster, self.rows = cluster, rows
        self.tables = {"orders": cluster.spread_table("orders", orders(0, rows), RANGES)}
        for number in range(1, files):
            append(self.tables["orders"], orders(number * rows, rows))
        self.tables["customers"] = cluster.table("customers", customers("a"))
        self.jobs: list[Job] = []

    @property
    def source(self) -> str:
        return self.tables["orders"]

    def create(self, *names: str) -> None:
        for name in names:
            job = Job(self.source, name, str(Path(self.cluster.derived) / name))
            self.cluster.client.create_view(name, QUERIES[name], target=job.target, tables=self.tables)
            self.jobs.append(job)

    def change(self, number: int) -> None:
        upsert(self.tables["customers"], customers(f"b{number}-").slice(number % 6, 1), ("cust",))
        upsert(self.source, orders(number * 10, 10), ("id",))
        append(self.source, orders(1_000_000_000 + number * 10, 10))

    def assert_built(self, within_s: float = SETTLE_WAIT_S) -> int:
        """That they are right by now; returns of how many the history says that they were built by ranges.

        It has no entry of a commit whose node was killed before it could report it.
        """
        reported = 0
        for job in self.jobs:
            self.cluster.settle(job, timeout_s=within_s)
            held = read(job.target)
            columns = [column.to_pylist() for column in held.columns]
            assert Counter(zip(*columns, strict=True)) == expected(job.name, self.tables), job.name
            entries = self.cluster.client.history(job.source, job.name, limit=ENTRIES_MAX)
            reported += any(entry.reason.endswith(f"by ranges of {self.source}") for entry in entries)
        wait_for("nothing is left of the builds in etcd", lambda: is_over(self.cluster))
        return reported


def restart_the_dead(cluster: ManyNodes) -> None:
    for node_id, member in cluster.members.items():
        if not member.alive:
            cluster.begin(node_id, **MANY_BUILDS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ManyNodes]:
    with ManyNodes(tmp_path, count=2) as made:
        yield made


@pytest.mark.further  # each time: test_builds.py, with a view of groups among the jobs
@pytest.mark.timeout(600)
def test_nodes_compute_views_together_and_go_on_when_one_of_them_is_killed(cluster: ManyNodes) -> None:
    views = BuiltViews(cluster, FILES, ROWS)
    cluster.start(**BUILDS)
    views.create("lines", "per_name")
    wait_for("both nodes have tasks", lambda: len(nodes_of_tasks(cluster)) == 2)
    wait_for("a node says what it has built", lambda: shown_rows(cluster, views.source) > 0)
    victim = cluster.owner()
    cluster.members[victim].kill()
    cluster.begin(victim, **BUILDS)
    views.change(1)
    assert views.assert_built() == len(views.jobs)


@pytest.mark.full  # each time: test_builds.py, with one kill
@pytest.mark.timeout(1_800)
def test_they_end_right_though_nodes_are_killed_all_the_time(tmp_path: Path) -> None:
    with ManyNodes(tmp_path, count=3) as cluster:
        views = BuiltViews(cluster, MANY_FILES, MANY_ROWS)
        cluster.start(**MANY_BUILDS)
        views.create(*QUERIES)
        number, until_s = 0, time.monotonic() + KILLING_S
        with killing(cluster) as chaos:
            while not built(cluster, views.jobs) and time.monotonic() < until_s:
                restart_the_dead(cluster)
                if number < CHANGES_MAX:
                    views.change(number := number + 1)
                time.sleep(STEP_S)
        restart_the_dead(cluster)
        print(f"{number} changes, killed: {chaos.kills}")  # noqa: T201
        assert len(chaos.kills) >= 2, chaos.kills
        assert views.assert_built(WITHIN_S) >= 1
