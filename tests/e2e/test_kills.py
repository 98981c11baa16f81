"""The node is killed around each write, at each failpoint and at random, under load: nothing is lost or done twice."""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.e2e.evidence import job_log_rows
from tests.e2e.harness import Cluster, Reader, read
from tests.e2e.load import Load

BUILDING = ("snapshot.before", "snapshot.staged", "publish.before", "publish.after")
TAILING = ("read.before", "read.after", "commit.before", "commit.after", "report.before", "log.commit")
"""The failpoints in the order in which an iteration comes to them."""

SHORT_BUILDING, SHORT_TAILING = ("publish.after",), ("commit.after",)
"""Where something is committed and not recorded yet; a life of the node takes ten seconds and more."""

LIFE_MAX_S = 20.0
"""From the start of a node that is killed at random to its end: as long as a start and some iterations take."""


def assert_killed(cluster: Cluster, failpoint: str) -> None:
    assert cluster.node.wait_end() == -signal.SIGKILL, f"it did not come to {failpoint}"


def dies_at(cluster: Cluster, failpoint: str, nth: int = 1) -> None:
    """Start the node, which is to be killed when it comes to `failpoint` for the `nth` time."""
    cluster.launch_node(ISCP_FAILPOINTS=f"{failpoint}=kill:{nth}")
    assert_killed(cluster, failpoint)


def dies_building(load: Load, failpoint: str, nth: int) -> None:
    """As `dies_at`, with jobs that are registered again, for otherwise there is nothing to build."""
    load.cluster.start_node(ISCP_FAILPOINTS=f"{failpoint}=kill:{nth}")
    with ThreadPoolExecutor(1) as pool:
        registering = pool.submit(load.register_anew)
        assert_killed(load.cluster, failpoint)
        load.cluster.start_node()
        registering.result()


def dies_at_random(cluster: Cluster, chance: random.Random) -> None:
    cluster.launch_node()
    time.sleep(LIFE_MAX_S * chance.random())
    cluster.node.kill()


def assert_right(load: Load) -> None:
    """Nothing writes any more: the node goes on until all is applied, and every registration is there once."""
    load.cluster.start_node()
    load.assert_right()
    assert sorted(job.name for job in load.cluster.client.jobs()) == sorted(job.name for job in load.jobs)
    rows = job_log_rows(load.cluster.layout.job_log)
    live = {row["job_id"] for row in rows} - {row["job_id"] for row in rows if row["drop_at"] is not None}
    assert len(live) == len(load.jobs)


@pytest.mark.further  # each time: test_cluster.py, and crashes around commits in tests/integration/pipeline
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_killed_before_and_after_each_write_under_load(cluster: Cluster) -> None:
    load = Load.make(cluster)
    # The log's first commit is that of the registrations: killed in the middle of it, and requested again.
    cluster.start(ISCP_FAILPOINTS="log.commit=kill:1")
    with ThreadPoolExecutor(1) as pool:
        registering = pool.submit(load.register)
        assert_killed(cluster, "log.commit")
        survives_building_and_tailing(load, registering)


def survives_building_and_tailing(load: Load, registering: Future[None]) -> None:
    """The first job may be built before the others are registered: that goes on whenever there is a node."""
    for failpoint in SHORT_BUILDING:
        dies_at(load.cluster, failpoint)
    load.cluster.start_node()
    registering.result()
    load.cluster.node.kill()
    with load.writing(seed=2):
        for failpoint in SHORT_TAILING:
            dies_at(load.cluster, failpoint)
    assert_right(load)


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(900)
def test_killed_in_the_middle_of_a_resync_readers_see_the_old_rows_or_the_new_ones(cluster: Cluster) -> None:
    source = cluster.table("source", pa.table({"id": list(range(50)), "text": ["a"] * 50}))
    cluster.start(ISCP_FAILPOINTS="snapshot.staged=kill:2")
    job = cluster.replica("copy", source, key=("id",))
    cluster.settle(job)
    old = Reader.rows(read(job.target))
    with Reader(job.target) as reader:
        spec = {"iteration": {"consumer": {"kind": "replica", "target": job.target, "key": ["id"], "where": "id > 9"}}}
        made = cluster.client.resync(source, job.name, spec=spec)
        assert_killed(cluster, "snapshot.staged")
        for failpoint in ("publish.before", "publish.after"):
            dies_at(cluster, failpoint)
        cluster.start_node()
        assert cluster.settle(job).job_id == made.job_id
    assert reader.seen == [old, Reader.rows(read(source).filter(pc.field("id") > 9))]


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_killed_at_each_failpoint_again_and_again(cluster: Cluster) -> None:
    load = Load.make(cluster)
    cluster.start()
    load.register()
    with load.writing(seed=3):
        for nth in (1, 2, 3):
            cluster.node.kill()
            for failpoint in TAILING:
                dies_at(cluster, failpoint, nth)
            for failpoint in BUILDING:
                dies_building(load, failpoint, nth)
                cluster.node.kill()
            cluster.start_node()
    cluster.node.kill()
    assert_right(load)


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_under_load(cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)
    load = Load.make(cluster)
    cluster.start()
    load.register()
    with load.writing(seed):
        time.sleep(LIFE_MAX_S * chance.random())
        cluster.node.kill()
        for _ in range(15):
            dies_at_random(cluster, chance)
    assert_right(load)
