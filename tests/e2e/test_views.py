"""Views on a real cluster: of several tables and of other views, through kills of the node within a refresh."""

from __future__ import annotations

import signal
from collections import Counter, defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from iscp.model.values.errors import InvalidRequest, IscpError
from tests.e2e.harness import SETTLE_WAIT_S, Cluster, append, delete, read, upsert, wait_for

PER_NAME = (
    "SELECT c.name, count(*) AS n, sum(o.total) AS s FROM orders o JOIN customers c ON o.cust = c.cust GROUP BY c.name"
)
TOP = "SELECT name, s FROM per_name ORDER BY s DESC, name LIMIT 2"
AT = ("commit.before", "commit.after", "report.before")
"""Where the node is killed: before and after the view's commit, and before anybody knows of it."""


def orders(ids: range, cust: int, total: int) -> pa.Table:
    return pa.table({"id": list(ids), "cust": [cust] * len(ids), "total": [total] * len(ids)})


def customers(names: dict[int, str]) -> pa.Table:
    return pa.table({"cust": list(names), "name": list(names.values())})


def expected(sources: tuple[str, str]) -> list[tuple[str, int, int]]:
    """The view's rows, computed from its tables."""
    names = {row["cust"]: row["name"] for row in read(sources[1]).to_pylist()}
    count, total = Counter[str](), defaultdict[str, int](int)
    for row in read(sources[0]).to_pylist():
        if (name := names.get(row["cust"])) is not None:
            count[name] += 1
            total[name] += row["total"]
    return sorted((name, count[name], total[name]) for name in count)


class Views:
    """Two tables, a view of both, and a view on the view."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.orders = cluster.table("orders", orders(range(10), 1, 5))
        self.customers = cluster.table("customers", customers({1: "ann", 2: "bob"}))
        self.view, self.top = (str(Path(cluster.derived) / name) for name in ("per_name", "top"))

    def create(self) -> None:
        client, tables = self.cluster.client, {"orders": self.orders, "customers": self.customers}
        client.create_view("per_name", PER_NAME, target=self.view, tables=tables)
        client.wait(self.orders, "per_name", timeout_s=SETTLE_WAIT_S)
        client.create_view("top", TOP, target=self.top, tables={"per_name": self.view})
        self.assert_right()

    def assert_right(self) -> None:
        """A wait covers what was committed to each table before it."""
        self.cluster.client.wait(self.orders, "per_name", timeout_s=SETTLE_WAIT_S)
        self.cluster.client.wait(self.view, "top", timeout_s=SETTLE_WAIT_S)
        rows = expected((self.orders, self.customers))
        assert sorted((row["name"], row["n"], row["s"]) for row in read(self.view).to_pylist()) == rows
        best = sorted(((name, total) for name, _, total in rows), key=lambda row: (-row[1], row[0]))[:2]
        assert sorted((row["name"], row["s"]) for row in read(self.top).to_pylist()) == sorted(best)

    def delete(self) -> None:
        """Delete both views with their targets: nothing of them is left, and the tables are as they were."""
        for table, name in ((self.view, "top"), (self.orders, "per_name")):
            self.cluster.client.unregister(table, name, delete_target=True)
            wait_for("it is gone", partial(self.is_gone, name))
        # Of a deletion that died at its very end, empty directories may be left.
        assert [path for path in Path(self.cluster.derived).rglob("*") if not path.is_dir()] == []
        assert (len(read(self.orders)), len(read(self.customers))) > (0, 0)

    def is_gone(self, name: str) -> bool:
        return all(job.name != name for job in self.cluster.client.jobs())

    def change(self, number: int) -> None:
        """Both tables, the second one last."""
        append(self.orders, orders(range(100 + 10 * number, 105 + 10 * number), 2 + number, 7 * number))
        delete(self.orders, f"id = {number}")
        upsert(self.customers, customers({2 + number: f"customer {number}", 1: f"ann {number}"}), ("cust",))

    def die_at(self, failpoint: str, number: int) -> None:
        """The node is killed in a refresh after a change, and goes on."""
        self.cluster.node.stop()
        self.change(number)
        self.cluster.launch_node(ISCP_FAILPOINTS=f"{failpoint}=kill:1")
        assert self.cluster.node.wait_end() == -signal.SIGKILL, f"it did not come to {failpoint}"
        self.cluster.start_node()
        self.assert_right()


@pytest.mark.spark
def test_a_view_and_a_view_on_it_follow_both_tables(cluster: Cluster) -> None:
    views = Views(cluster)
    cluster.start()
    views.create()
    upsert(views.customers, customers({2: "zoe", 3: "cyd"}), ("cust",))
    append(views.orders, orders(range(20, 22), 3, 11))
    views.assert_right()
    status = cluster.client.status(views.orders, "per_name").status
    assert set(status.sources) == {views.orders, views.customers}
    with pytest.raises(InvalidRequest, match="which job 'top' reads"):
        cluster.client.unregister(views.orders, "per_name", delete_target=True)
    views.delete()


@pytest.mark.spark
@pytest.mark.further  # each time: test_target_deletion.py
@pytest.mark.parametrize("failpoint", ["deletion.rows_gone", "deletion.beside_gone", "deletion.over"])
def test_a_view_is_deleted_with_its_target_though_its_node_is_killed(cluster: Cluster, failpoint: str) -> None:
    views = Views(cluster)
    cluster.start(ISCP_FAILPOINTS=f"{failpoint}=kill:1")
    views.create()
    with suppress(IscpError):  # the node may be gone before it answers
        cluster.client.unregister(views.view, "top", delete_target=True)
    assert cluster.node.wait_end() == -signal.SIGKILL, f"it did not come to {failpoint}"
    cluster.start_node()
    views.delete()


@pytest.mark.spark
@pytest.mark.further  # each time: test_admin_service_several_tables.py
def test_a_notification_of_a_table_that_only_views_read_has_them_follow_it(cluster: Cluster) -> None:
    views = Views(cluster)
    cluster.start(ISCP_PROBE__INTERVAL_MIN_S="600", ISCP_PROBE__INTERVAL_MAX_S="600")
    views.create()
    upsert(views.customers, customers({2: "zoe", 1: "eve"}), ("cust",))
    assert cluster.client.notify(views.customers) == 1
    rows = expected((views.orders, views.customers))
    wait_for("the view follows", lambda: names_of(views.view) == {name for name, _, _ in rows})


@pytest.mark.further  # each time: tests/integration/views/test_view_holds.py, and test_source_releases.py
@pytest.mark.spark
def test_tables_that_a_view_holds_are_left_as_they_were_when_it_is_dropped(cluster: Cluster) -> None:
    short = {"delta.deletedFileRetentionDuration": "interval 1 hour"}
    source = cluster.table("orders", orders(range(3), 1, 5), **short)
    cluster.start()
    before, target = properties(source), f"{cluster.derived}/paid"
    sql = "SELECT id, total FROM orders WHERE total > 0"
    cluster.client.create_view(
        "paid", sql, target=target, tables={"orders": source}, refresh="incremental", hold=2 * 86_400
    )
    cluster.client.wait(source, "paid", timeout_s=SETTLE_WAIT_S)
    assert properties(source)["delta.deletedFileRetentionDuration"] == "interval 172800 seconds"
    append(source, orders(range(5, 7), 1, 4))
    cluster.client.wait(source, "paid", timeout_s=SETTLE_WAIT_S)
    assert read(target).num_rows == 5
    ran = [entry.data_type for entry in cluster.client.history(source, "paid")]
    assert ran.count("full") == 1
    assert cluster.client.unregister(source, "paid")
    assert properties(source) == before


def properties(table: str) -> dict[str, str]:
    return dict(DeltaTable(table).metadata().configuration)


def names_of(view: str) -> set[str]:
    return {row["name"] for row in read(view).to_pylist()}


@pytest.mark.full
@pytest.mark.spark
def test_a_view_is_right_wherever_the_node_is_killed(cluster: Cluster) -> None:
    views = Views(cluster)
    cluster.start()
    views.create()
    for number, failpoint in enumerate(AT, start=1):
        views.die_at(failpoint, number)
