"""Views on views: a change reaches all of a chain at once, though no table is probed within the test.

Only the table below all of them is notified. What is above it can know of a commit by the wake of the job that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.delta.log.commits import newest_version
from tests.e2e.harness import SETTLE_WAIT_S, Cluster, append, read, wait_for
from tests.e2e.many_nodes import ManyNodes
from tests.fakes.s3 import FakeS3, asking, s3_server

NEVER = {"ISCP_PROBE__INTERVAL_MIN_S": "3600", "ISCP_PROBE__INTERVAL_MAX_S": "3600"}
"""Probes that come only when something has a table probed; a test takes far less than an hour."""


class Chain:
    """base → sums → large → copy, a replica; and `names` with `sums` → named, which is not on `sums`, but reads it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.base = cluster.table("base", pa.table({"g": [1, 1, 2], "x": [1, 2, 3]}))
        self.names = cluster.table("names", pa.table({"g": [1, 2, 3], "name": ["ann", "bob", "cyd"]}))
        self.sums, self.large, self.copy, self.named = (
            f"{cluster.derived}/{name}" for name in ("sums", "large", "copy", "named")
        )

    def create(self) -> None:
        self._view("sums", "SELECT g, sum(x) AS s FROM base GROUP BY g", {"base": self.base})
        self._view("large", "SELECT g, s FROM sums WHERE s > 2", {"sums": self.sums})
        sql = "SELECT n.name, s.s FROM names n JOIN sums s ON n.g = s.g"
        self._view("named", sql, {"names": self.names, "sums": self.sums})
        self.cluster.client.register(self.large, "copy", target=self.copy, key=("g",))
        self.cluster.client.wait(self.large, "copy", timeout_s=SETTLE_WAIT_S)

    def _view(self, name: str, sql: str, tables: dict[str, str]) -> None:
        client, first = self.cluster.client, next(iter(tables.values()))
        client.create_view(name, sql, target=f"{self.cluster.derived}/{name}", tables=tables)
        client.wait(first, name, timeout_s=SETTLE_WAIT_S)

    def change(self, x: int) -> None:
        append(self.base, pa.table({"g": [1, 3], "x": [x, x]}))
        assert self.cluster.client.notify(self.base) == 1

    def assert_follows(self) -> None:
        """All of it, with nobody's wait, which would have the tables probed."""
        sums: dict[int, int] = {}
        for row in read(self.base).to_pylist():
            sums[row["g"]] = sums.get(row["g"], 0) + row["x"]
        large = {group: each for group, each in sums.items() if each > 2}
        names = {1: "ann", 2: "bob", 3: "cyd"}
        wait_for("the replica above two views follows", holds(self.copy, "g", large))
        wait_for("the view of two tables follows", holds(self.named, "name", {names[g]: s for g, s in sums.items()}))


def holds(target: str, key: str, expected: dict[int, int] | dict[str, int]) -> Callable[[], bool]:
    return lambda: {row[key]: row["s"] for row in read(target).to_pylist()} == expected


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ManyNodes]:
    with ManyNodes(tmp_path, count=2) as made:
        yield made


def rebuild_and_follow(chain: Chain) -> None:
    """A rebuild of a view is a commit as any other, also where its rows are the same."""
    client = chain.cluster.client
    client.resync(chain.base, "sums")
    built = newest_version(chain.sums)
    wait_for("it is rebuilt", lambda: newest_version(chain.sums) > built + 1)
    wait_for(
        "the view on it has seen that",
        lambda: client.status(chain.sums, "large").applied_version == newest_version(chain.sums),
    )


@pytest.mark.further  # each time: a view on a view in test_views.py, and hints to nodes in test_node_clients.py
@pytest.mark.spark
def test_a_change_reaches_all_of_a_chain_without_a_probe(cluster: Cluster) -> None:
    chain = Chain(cluster)
    cluster.start(**NEVER)
    chain.create()
    chain.change(10)
    chain.assert_follows()
    rebuild_and_follow(chain)


@pytest.mark.spark
@pytest.mark.further  # each time: as on one node above
@pytest.mark.timeout(600)
def test_a_change_reaches_all_of_a_chain_across_nodes_without_a_probe(nodes: ManyNodes) -> None:
    chain = Chain(nodes)
    nodes.start(**NEVER)
    chain.create()
    for table, node in zip((chain.base, chain.sums, chain.large), ("iscp-0", "iscp-1", "iscp-0"), strict=True):
        nodes.client.operator.move(table, node)
        wait_for(f"{node} runs {table}", lambda table=table, node=node: nodes.holder(table) == node)  # type: ignore[misc]
    chain.change(10)
    chain.assert_follows()
    rebuild_and_follow(chain)


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[FakeS3]:
    with s3_server(tmp_path / "s3.log") as server, asking(server):
        yield server


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_change_reaches_all_of_a_chain_whose_views_are_on_s3(cluster: Cluster, s3: FakeS3) -> None:
    cluster.derived = s3.uri("derived")
    chain = Chain(cluster)
    cluster.start(**s3.settings, **NEVER)
    chain.create()
    chain.change(10)
    chain.assert_follows()
