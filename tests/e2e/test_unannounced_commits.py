"""A commit that nobody announces: a node with defaults hears of it from the kernel, and no lag is shown below what is
known.
"""

from __future__ import annotations

import subprocess
import time

import pyarrow as pa
import pytest

from tests.e2e.evidence import admin
from tests.e2e.harness import Cluster, Job, append, assert_equal, read, wait_for

RARELY = {"ISCP_PROBE__INTERVAL_MIN_S": "3600", "ISCP_PROBE__INTERVAL_MAX_S": "3600"}
HOUR_S = 3_600.0
IDLE_S = 3.0
WITHOUT_NOTICES = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_inotify_watches && exec "$@"', "-")


def rows(first: int) -> pa.Table:
    return pa.table({"id": list(range(first, first + 10)), "text": ["a"] * 10})


def built(cluster: Cluster) -> Job:
    """A job whose table is not probed again within the test."""
    job = cluster.replica("copy", cluster.table("orders", rows(0)), key=["id"])
    cluster.client.update(job.source, job.name, target_lag=3 * HOUR_S)
    cluster.settle(job)
    return job


def assert_known(cluster: Cluster, job: Job) -> None:
    """What is shown is as old as the last probe."""
    before_s = time.time()
    view = cluster.status(job)
    assert view.lag_least_s == 0.0
    assert view.lag_s >= before_s - view.checked_at_s - 0.2
    shown = admin(cluster.endpoint, "job", "list").out
    assert "≤" in shown
    assert " 0.0 s" not in shown


@pytest.mark.spark
def test_it_is_applied_though_the_table_is_not_probed(cluster: Cluster) -> None:
    cluster.start(**RARELY)
    job = built(cluster)
    wait_for("the table is followed", lambda: cluster.client.cluster().counters["tables_noticed"] == 1)
    time.sleep(IDLE_S)  # what is under way of the last commit ends
    assert_known(cluster, job)
    version = append(job.source, rows(100))
    wait_for("it is applied", lambda: cluster.status(job).applied_version == version)
    assert_equal(job.target, read(job.source))


@pytest.mark.spark
@pytest.mark.slow
def test_where_the_kernel_notices_nothing_the_lag_is_that_of_the_last_probe(cluster: Cluster) -> None:
    if subprocess.run([*WITHOUT_NOTICES, "true"], capture_output=True, check=False).returncode:
        return  # no user namespaces are allowed here
    cluster.start_etcd()
    cluster.within = WITHOUT_NOTICES
    cluster.start_node(**RARELY)
    job = built(cluster)
    time.sleep(IDLE_S)
    append(job.source, rows(100))
    time.sleep(IDLE_S)
    view = cluster.status(job)
    assert view.applied_version == 0, "nobody has said anything"
    assert_known(cluster, job)
    assert view.lag_s >= IDLE_S
    assert admin(cluster.endpoint, "job", "check", job.source, "--max-lag", "2s").status == 5
    assert cluster.client.cluster().counters["tables_unnoticed"] == 1
    assert cluster.node_events("notices.refused") == 1
