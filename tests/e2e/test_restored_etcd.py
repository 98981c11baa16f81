"""etcd is put back from a snapshot under a node that works: it notices, and its jobs go on by themselves."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.e2e.evidence import assert_in_order, assert_watermarks_never_went_back, job_log_rows
from tests.e2e.harness import Cluster, Job, assert_equal, read, upsert
from tests.fakes.etcd_backup import ETCD, restore, save


def rows(ids: range, value: str) -> pa.Table:
    return pa.table({"id": list(ids), "v": [value] * len(ids)})


@pytest.mark.spark
@pytest.mark.full
def test_jobs_go_on_under_an_etcd_that_knows_only_a_former_life_of_their_node(cluster: Cluster, tmp_path: Path) -> None:
    """It has forgotten the node's epoch and lease, the owner's term, and the last commits of the job log.

    And it brings back the lease of a life that is over, as that of the owner.
    """
    source = cluster.table("source", rows(range(10), "a"))
    cluster.start_etcd(ETCD)
    cluster.start_node()
    jobs = [cluster.replica("before", source, key=("id",))]
    cluster.settle(jobs[0])
    snapshot = save(f"127.0.0.1:{cluster.ports.etcd_client}", tmp_path / "snapshot.db")

    cluster.node.kill()
    cluster.start_node()
    node = cluster.node.pid
    jobs.append(cluster.replica("since", source, key=("id",)))
    upsert(source, rows(range(5, 15), "b"), ("id",))
    settle(cluster, jobs)
    cluster.etcd.kill()
    restore(snapshot, cluster.layout.etcd, cluster.ports.etcd_peer)
    cluster.start_etcd(ETCD)

    upsert(source, rows(range(12, 20), "c"), ("id",))
    settle(cluster, jobs)
    jobs.append(cluster.replica("after", source))
    settle(cluster, jobs)
    assert cluster.node_events("etcd.restored") > 0
    assert (cluster.node.alive, cluster.node.pid) == (True, node)
    assert_watermarks_never_went_back(job_log_rows(cluster.layout.job_log))
    for job in jobs:
        assert_in_order(job.target)
    assert [job.name for job in cluster.client.jobs()] == [job.name for job in jobs]
    cluster.node.kill()
    cluster.start_node()
    settle(cluster, jobs)  # whatever its next life finds in etcd


def settle(cluster: Cluster, jobs: list[Job]) -> None:
    for job in jobs:
        cluster.settle(job)
        assert_equal(job.target, read(job.source))
