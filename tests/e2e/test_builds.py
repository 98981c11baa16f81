"""First snapshots that the nodes of a cluster build together, range by range, while they are killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.client.admin_client import Client
from iscp.delta.log.readable_files import STAGED
from iscp.delta.rows.net_changes import WRITES
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings
from iscp.model.build.build_progress import BuildStage
from iscp.model.values.errors import InvalidRequest
from iscp.system.threads import SystemClock
from tests.e2e.harness import Job, append, assert_equal, read, upsert, wait_for
from tests.e2e.many_nodes import ManyNodes

FILES, ROWS = 5, 2_000
PER_KIND = (
    "SELECT k.name, count(*) AS n, sum(o.id) AS s FROM orders o JOIN kinds k ON o.id % 3 = k.kind GROUP BY k.name"
)
RANGES = range(8, 16)
"""The ranges into which so many bytes are cut (`BUILDS`)."""

BUILDS = {"ISCP_BUILD__TABLE_BYTES_MIN": "1", "ISCP_BUILD__RANGE_BYTES": "20000", "ISCP_SPARK__DIRECT_BYTES_MAX": "0"}


def rows(first: int, text: str = "a") -> pa.Table:
    return pa.table({"id": list(range(first, first + ROWS)), "text": [f"{text}{n}" for n in range(ROWS)]})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ManyNodes]:
    with ManyNodes(tmp_path, count=2) as made:
        yield made


def keys(cluster: ManyNodes) -> dict[str, bytes]:
    """What etcd has of builds."""
    with EtcdClient(EtcdSettings((f"127.0.0.1:{cluster.ports.etcd_client}",)), SystemClock()) as client:
        listing = client.list_prefix("/iscp/")
    return {kv.key.partition("/builds/")[2]: kv.value for kv in listing.items if "/builds/" in kv.key}


def nodes_of_tasks(cluster: ManyNodes) -> set[str]:
    return {json.loads(value)["node"] for key, value in keys(cluster).items() if key.startswith("tasks/")}


def jobs_of_builds(cluster: ManyNodes, source: str) -> list[tuple[str, ...]]:
    """A job that is registered while others are built joins their build with its own tasks."""
    return [build.jobs for build in cluster.client.builds.list(source)]


def begin(cluster: ManyNodes) -> tuple[str, list[Job]]:
    source = cluster.spread_table("orders", rows(0), RANGES)
    for number in range(1, FILES):
        append(source, rows(number * ROWS))
    cluster.start(**BUILDS)
    kinds = cluster.table("kinds", pa.table({"kind": [0, 1, 2], "name": ["x", "y", "x"]}))
    tables = {"orders": source, "kinds": kinds}
    cluster.client.explain_view(PER_KIND, tables)  # the first query waits for the process that analyzes them
    jobs = [cluster.replica(name, source, key=("id",)) for name in ("one", "two")]
    feed = Job(source, "feed", f"{cluster.derived}/feed")
    cluster.client.register(
        source, "feed", consumer="changefeed", target=feed.target, key=("id",), options={"shards": 2}
    )
    view = Job(source, "view", f"{cluster.derived}/view")
    cluster.client.create_view("view", PER_KIND, target=view.target, tables=tables)
    return source, [*jobs, feed, view]


def assert_replay(feed: Job, source: str) -> None:
    """The first transaction's ulids follow one another in order of the key, and all that was said gives the source."""
    found = sorted(read(feed.target).to_pylist(), key=lambda row: str(row["ulid_text"]))
    held: Counter[tuple[int, str]] = Counter()
    for each in found:
        held[each["row"]["id"], each["row"]["text"]] += 1 if each["operation"] in WRITES else -1
    assert +held == Counter((row["id"], row["text"]) for row in read(source).to_pylist())
    for shard in (0, 1):
        first = [each for each in found if each["shard"] == shard and each["net"]]
        numbers = [int.from_bytes(each["ulid"], "big") for each in first]
        assert numbers == list(range(numbers[0], numbers[0] + len(first)))
        assert [each["row"]["id"] for each in first] == sorted(each["row"]["id"] for each in first)


def assert_node_reads(endpoint: str, feed: Job) -> None:
    """A node, be it the owner or not, reads the feed page by page, and refuses to read what is none."""
    ulids, cursor = list[str](), ""
    with Client(endpoint) as client:
        while (page := client.feeds.read(feed.source, feed.name, cursor, limit=3_000)).changes:
            ulids += [change.ulid for change in page.changes]
            cursor = page.cursor
        with pytest.raises(InvalidRequest, match="writes no feed"):
            client.feeds.read(feed.source, "one")
    assert sorted(ulids) == sorted(read(feed.target)["ulid_text"].to_pylist())


def assert_counts(view: Job, source: str) -> None:
    ids = [row["id"] for row in read(source).to_pylist()]
    of_y = [each for each in ids if each % 3 == 1]
    wanted = {"x": (len(ids) - len(of_y), sum(ids) - sum(of_y)), "y": (len(of_y), sum(of_y))}
    assert {row["name"]: (row["n"], row["s"]) for row in read(view.target).to_pylist()} == wanted


def shown_rows(cluster: ManyNodes, source: str) -> int:
    """How many of them are built of what is, and never more than there are."""
    views = cluster.client.builds.list(source)
    assert all(view.rows_done <= view.rows_total for view in views)
    return max((view.rows_done for view in views), default=FILES * ROWS)


def attempts(job: Job) -> Counter[int]:
    """How often each range of the job's first snapshot was staged, or begun to be: the target's folders of rows."""
    folders = Path(job.target).glob(f"{STAGED}-*/*-*/")
    return Counter(int(folder.name.partition("-")[0]) for folder in folders)


def is_over(cluster: ManyNodes) -> bool:
    return not {key for key in keys(cluster) if key != "head"}


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_nodes_build_together_and_go_on_when_one_of_them_is_killed(cluster: ManyNodes) -> None:
    source, jobs = begin(cluster)
    wait_for("both nodes have tasks", lambda: len(nodes_of_tasks(cluster)) == 2)
    wait_for("all jobs are in one build", lambda: jobs_of_builds(cluster, source) == [("feed", "one", "two", "view")])
    (build,) = cluster.client.builds.list(source)
    assert build.state is BuildStage.BUILDING
    assert {task.node_id for task in build.tasks} == {"iscp-0", "iscp-1"}
    assert (build.rows_total, build.bytes_total > 0) == (FILES * ROWS, True)
    with pytest.raises(InvalidRequest, match="none of the ranges"):
        cluster.client.builds.split(source, range_id=1)
    with pytest.raises(InvalidRequest, match=f"has {FILES} pieces"):
        cluster.client.builds.split(source)
    wait_for("a node says what it has built", lambda: shown_rows(cluster, source) > 0)
    victim = cluster.owner()
    cluster.members[victim].kill()
    cluster.begin(victim, **BUILDS)
    upsert(source, rows(ROWS, "b"), ("id",))
    *replicas, feed, view = jobs
    for job in jobs:
        cluster.settle(job)
    for job in replicas:
        assert_equal(job.target, read(source))
    assert_replay(feed, source)
    for node_id in cluster.members:
        assert_node_reads(cluster.address(node_id), feed)
    assert_counts(view, source)
    *_, first = cluster.client.history(source, view.name)
    assert first.reason.endswith(f"by ranges of {source}")
    wait_for("nothing is left of the builds in etcd", lambda: is_over(cluster))
    empty = cluster.table("empty", rows(0).slice(0, 0))
    job = cluster.replica("empty", empty, key=("id",))
    cluster.settle(job)
    assert_equal(job.target, read(empty))
