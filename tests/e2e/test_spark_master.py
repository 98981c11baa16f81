"""Nodes on an existing engine: what Spark does is done by the executors of a standalone cluster, and not by nodes.

Each time: `tests/integration/test_executors.py`, with executors that Spark starts itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest

from tests import quick_spark
from tests.e2e.harness import append, assert_equal, read, upsert, wait_for
from tests.e2e.many_nodes import ManyNodes
from tests.e2e.test_demo import replayed
from tests.standalone_spark import StandaloneSpark, Work, standalone_spark

pytestmark = [pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(900)]

FILES, ROWS = 12, 5_000


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    with standalone_spark(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ManyNodes]:
    with ManyNodes(tmp_path, count=2) as made:
        yield made


def settings(engine: StandaloneSpark) -> dict[str, str]:
    """Variables of a node on the engine, that has Spark read everything, however small it is."""
    # Each node is an application of its own: with a core of each worker for each there is room for both.
    conf = {**quick_spark.CONF, **engine.conf, "spark.cores.max": "2"}
    return {
        "ISCP_SPARK__MASTER": engine.master,
        "ISCP_SPARK__CONF": json.dumps(conf),
        "ISCP_SPARK__DIRECT_BYTES_MAX": "0",
    }


def rows(first: int, text: str = "a") -> pa.Table:
    return pa.table({"id": list(range(first, first + ROWS)), "text": [f"{text}{n}" for n in range(ROWS)]})


def works(engine: StandaloneSpark) -> list[Work]:
    """What the executors did; nothing may have been done by a driver."""
    found = engine.work()
    assert "driver" not in {executor for _, executor in found}, found
    return list(found.values())


def test_the_demo_runs_on_executors(engine: StandaloneSpark, tmp_path: Path) -> None:
    result = replayed(tmp_path, "--days", "1", timeout_s=600, **settings(engine))
    done = works(engine)
    assert len(done) == 2, "an executor of each worker"
    assert all(work.tasks > 0 for work in done)
    written = sum(job["rows"] for job in result["jobs"] if job["name"] == "all_flights")
    assert sum(work.rows_written for work in done) >= written > 0


def test_a_build_and_a_difference_run_on_executors_though_some_are_lost(
    engine: StandaloneSpark, cluster: ManyNodes
) -> None:
    source = cluster.table("orders", rows(0), **{"delta.enableChangeDataFeed": "false"})
    for number in range(1, FILES):
        append(source, rows(number * ROWS))
    cluster.start(**settings(engine), ISCP_BUILD__TABLE_BYTES_MIN="1", ISCP_BUILD__RANGE_BYTES="20000")
    assert len(engine.applications()) == 2
    job = cluster.replica("copy", source, key=("id",))
    wait_for("it is built", lambda: cluster.client.builds.list(source))
    engine.workers[0].kill()  # its executors end with it
    cluster.settle(job, timeout_s=300)
    assert_equal(job.target, read(source))
    upsert(source, rows(ROWS // 2, "b"), ("id",))
    cluster.settle(job, timeout_s=300)
    (last,) = cluster.client.history(source, "copy", limit=1)
    assert last.data_type == "difference"
    assert_equal(job.target, read(source))
    assert cluster.client.verify(source, "copy").equal
    for member in cluster.members.values():
        member.stop()  # with its application, whose last events are written then
    done = engine.work()
    assert len({application for application, _ in done}) == 2, "both nodes had a part in it"
    assert sum(work.rows_written for work in works(engine)) >= FILES * ROWS


def test_a_node_whose_application_the_master_ends_wants_to_be_restarted(
    engine: StandaloneSpark, cluster: ManyNodes
) -> None:
    cluster.start_etcd()
    cluster.begin("iscp-0", **settings(engine))
    cluster.wait_ready("iscp-0")
    (application,) = engine.applications()
    urlopen(f"{engine.master_page}/app/kill/", f"id={application['id']}&terminate=true".encode()).close()
    assert cluster.members["iscp-0"].wait_end() == 1
    cluster.begin("iscp-0", **settings(engine))
    cluster.wait_ready("iscp-0")
