"""After each disaster the commands of docs/recovery.md, done as they are there, bring all jobs back: row by row.

One cluster goes through all of them, whose tables a writer changes all the time, but where the page has it stopped.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.client.admin_client import Client
from iscp.model.values.errors import ErrorCode
from iscp.system.http_exchange import free_port
from tests.e2e.evidence import assert_feed_holds, assert_watermarks_never_went_back, job_log_rows, sink_commits
from tests.e2e.harness import NODE_ID, SETTLE_WAIT_S, Cluster, Job, assert_equal, read, upsert, wait_for
from tests.e2e.load import writing
from tests.e2e.recovery_page import Operator, sections
from tests.e2e.writer import events, orders

BACKUP = "Backups"
LOG_LOST = "The job log is lost"
ETCD_LOST = "etcd is lost"
BOTH_LOST = "etcd and the job log are lost"
DISK_LOST = "A node's disk is lost"
TARGET_BACK = "A target is restored to an earlier time"
SOURCE_BACK = "A source is restored to an earlier time"

PER_STATE = "SELECT state, count(*) AS n, sum(amount) AS total FROM orders GROUP BY state"

pytestmark = pytest.mark.spark


class Site:
    """A cluster with a keyed replica of `orders` and an append-only one of `events`, and who looks after it."""

    def __init__(self, root: Path) -> None:
        self.cluster = Cluster(root)
        self.operator = Operator(self.cluster)
        self.orders = self.cluster.table("orders", orders(list(range(100)), random.Random(0)))
        self.events = self.cluster.table("events", events(0, 50))
        self.copy = Job(self.orders, "copy", f"{self.cluster.derived}/copy")
        self.appended = Job(self.events, "appended", f"{self.cluster.derived}/appended")
        self._seed = 0

    def start(self) -> None:
        self.cluster.start()
        self.cluster.replica("copy", self.orders, key=["id"])
        self.cluster.replica("appended", self.events)
        for job in (self.copy, self.appended):
            self.cluster.settle(job)

    def writing(self) -> AbstractContextManager[None]:
        self._seed += 1
        return writing(self._seed, self.orders, self.events)

    def back_up(self) -> None:
        """As the page has it, in the place of the last one."""
        shutil.rmtree(self.operator.backups / "iscp")
        (self.operator.backups / "iscp").mkdir()
        assert "is whole" in self.operator.run(BACKUP)

    def lose_job_log(self) -> None:
        """At once, as a disk is lost: while files are removed one by one the nodes write others beside them."""
        lost = self.cluster.layout.job_log.rename(self.cluster.layout.job_log.with_name("lost"))
        shutil.rmtree(lost)

    def assert_right(self, *more: Job) -> None:
        """At rest each target has the rows of its source, each as often, and each seq was committed once."""
        for job in (self.copy, self.appended, *more):
            self.cluster.settle(job)
            assert_equal(job.target, read(job.source))
            # A target that went back leaves out what was lost with it.
            seqs = [commit.seq for commit in sink_commits(job.target)]
            assert seqs == sorted(set(seqs))
        assert_watermarks_never_went_back(job_log_rows(self.cluster.layout.job_log))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"))
    try:
        made.start()
        yield made
    finally:
        made.cluster.stop()


@pytest.mark.slow
def test_jobs_go_on_after_the_job_log_was_lost_and_restored_from_before_requests(site: Site) -> None:
    cluster, run = site.cluster, site.operator.run
    dropped = cluster.replica("dropped", site.orders, key=["id"])
    cluster.settle(dropped)
    with site.writing():
        site.back_up()
        later, tail = cluster.replica("later", site.orders, key=["id"]), cluster.replica("tail", site.events)
        for job in (later, tail):
            cluster.settle(job)
        cluster.client.unregister(site.orders, "dropped")
        cluster.client.resync(site.orders, "copy")
        cluster.settle(site.copy)
        site.lose_job_log()

        assert "appended" in run(LOG_LOST)
        assert {job.name for job in cluster.client.jobs()} == {"copy", "appended", "dropped"}
        wait_for(
            "the target of a later registration is left alone",
            lambda: cluster.status(site.copy).status.error_code == ErrorCode.SUPERSEDED,
        )
        assert "copy" in run(LOG_LOST, 1)
        shown = sink_commits(tail.target)[-1].to
        cluster.client.register(site.events, "tail", target=tail.target, adopt_from=shown)
    assert {job.name for job in cluster.client.jobs()} == {"copy", "appended", "later", "tail"}
    site.assert_right(later, tail)
    for job in (later, tail):
        cluster.client.unregister(job.source, job.name)


@pytest.mark.parametrize("how", ["copied back", pytest.param("RESTORE", marks=pytest.mark.further)])
def test_a_target_that_went_back_is_brought_up_again(site: Site, how: str, tmp_path: Path) -> None:
    target, earlier = Path(site.copy.target), tmp_path / "earlier"
    site.cluster.settle(site.copy)
    shutil.copytree(target, earlier)
    version = DeltaTable(site.copy.target).version()
    for seed in range(3):
        upsert(site.orders, orders(list(range(10 * seed, 10 * seed + 30)), random.Random(seed)), ["id"])
        site.cluster.settle(site.copy)
    if how == "RESTORE":
        DeltaTable(site.copy.target).restore(version)
    else:
        shutil.rmtree(target)
        shutil.move(earlier, target)
    assert "is applied" in site.operator.run(TARGET_BACK)
    site.assert_right()


@pytest.mark.parametrize("how", ["copied back", pytest.param("RESTORE", marks=pytest.mark.further)])
def test_a_source_that_went_back_is_followed(site: Site, how: str, tmp_path: Path) -> None:
    source, earlier = Path(site.orders), tmp_path / "earlier"
    site.cluster.settle(site.copy)
    shutil.copytree(source, earlier)
    version = DeltaTable(site.orders).version()
    for seed in range(3, 6):
        upsert(site.orders, orders(list(range(10 * seed, 10 * seed + 30)), random.Random(seed)), ["id"])
    site.cluster.settle(site.copy)
    if how == "RESTORE":
        DeltaTable(site.orders).restore(version)
        site.assert_right()
        return
    shutil.rmtree(source)
    shutil.move(earlier, source)
    site.cluster.client.notify(site.orders)
    wait_for(
        "the job stops",
        lambda: site.cluster.status(site.copy).status.error_code == ErrorCode.SOURCE_REPLACED,
    )
    assert "is applied" in site.operator.run(SOURCE_BACK)
    site.assert_right()
    upsert(site.orders, orders(list(range(20)), random.Random(7)), ["id"])
    site.assert_right()


@pytest.mark.full
def test_jobs_go_on_with_an_empty_etcd(site: Site) -> None:
    with site.writing():
        site.cluster.etcd.kill()
        shutil.rmtree(site.cluster.layout.etcd)
        site.cluster.layout.etcd.mkdir()
        assert "iscp-0" in site.operator.run(ETCD_LOST)
    site.assert_right()


@pytest.mark.full
def test_jobs_of_all_kinds_go_on_after_etcd_and_the_job_log_were_lost(site: Site) -> None:
    client, derived = site.cluster.client, site.cluster.derived
    view, feed = Job(site.orders, "view", f"{derived}/view"), Job(site.orders, "feed", f"{derived}/feed")
    client.create_view("view", PER_STATE, target=view.target, tables={"orders": site.orders})
    client.register(site.orders, "feed", consumer="changefeed", target=feed.target, key=["id"])
    for job in (view, feed):
        site.cluster.settle(job)
    with site.writing():
        site.back_up()
        upsert(site.orders, orders([1, 2, 3], random.Random(8)), ["id"])
        for job in (site.copy, view, feed):  # the job log does not know of it any more
            site.cluster.settle(job)
        site.cluster.etcd.kill()
        shutil.rmtree(site.cluster.layout.etcd)
        site.cluster.layout.etcd.mkdir()
        site.lose_job_log()
        assert "copy" in site.operator.run(BOTH_LOST)
        assert {job.name for job in client.jobs()} == {"copy", "appended", "view", "feed"}
    site.assert_right()
    for job in (view, feed):
        site.cluster.settle(job)
    rows = read(site.orders)
    assert_equal(
        view.target,
        rows.group_by("state").aggregate([("id", "count"), ("amount", "sum")]).rename_columns(["state", "n", "total"]),
    )
    assert_feed_holds(feed.target, rows)


@pytest.mark.full
def test_another_node_takes_over_from_one_whose_disk_is_lost_and_gives_back(site: Site) -> None:
    cluster, layout = site.cluster, site.cluster.layout
    shutil.copy(layout.config(NODE_ID), site.operator.backups / "node.toml")
    ports = replace(cluster.ports, nodes=(*cluster.ports.nodes, free_port()))
    with site.writing():
        other = cluster.spawn_node("iscp-1", ports, 1)
        try:
            wait_for("both are there", lambda: len(cluster.client.cluster().nodes) == 2)
            cluster.node.kill()
            layout.config(NODE_ID).unlink()
            shutil.rmtree(layout.scratch(NODE_ID), ignore_errors=True)
            at = int(DeltaTable(site.orders).version())
            with Client(f"127.0.0.1:{ports.nodes[1]}") as client:
                client.wait(site.orders, "copy", at, timeout_s=SETTLE_WAIT_S)
            assert "iscp-0" in site.operator.run(DISK_LOST)
        finally:
            assert other.stop() == 0
    site.assert_right()


def test_each_block_of_commands_is_done_by_one_of_these() -> None:
    """By the numbers of blocks below each heading of the page."""
    done = {LOG_LOST: 2, BACKUP: 1, ETCD_LOST: 1, BOTH_LOST: 1, DISK_LOST: 1, TARGET_BACK: 1, SOURCE_BACK: 1}
    assert {heading: len(blocks) for heading, blocks in sections().items() if blocks} == done
