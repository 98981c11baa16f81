"""etcd is killed or stopped for longer than the lease: the node stops writing, and resumes by itself afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from iscp.model.values.errors import NotOwner
from tests.e2e.evidence import sink_commits
from tests.e2e.harness import QUICK, Cluster, wait_for
from tests.e2e.load import Load

LEASE_S = float(QUICK["ISCP_ETCD__LEASE_TTL_S"]) - float(QUICK["ISCP_ETCD__MARGIN_S"])
COMMIT_S = 4.0
"""What was allowed to commit at the last moment may take so long until its commit is in the log."""


def stopped(cluster: Cluster) -> Callable[[], None]:
    cluster.etcd.freeze()
    return cluster.etcd.thaw


def killed(cluster: Cluster) -> Callable[[], None]:
    cluster.etcd.kill()
    return cluster.start_etcd


def outage(load: Load, fault: Callable[[Cluster], Callable[[], None]], wait_s: float) -> None:
    """etcd is away for `wait_s`, while the sources change all the time."""
    cluster = load.cluster
    node = cluster.node.pid
    versions = {job: load.cluster.status(job).applied_version for job in load.jobs}
    begun_s = time.time()
    mend = fault(cluster)
    time.sleep(wait_s)
    # An owner that cannot say that no other was elected does not answer: what it knows may be old.
    for read in (partial(cluster.client.status, load.full.source, load.full.name), cluster.client.cluster):
        with pytest.raises(NotOwner):
            read()
    mend()
    mended_s = time.time()

    commits = [commit for job in load.jobs for commit in sink_commits(job.target)]
    late = [commit for commit in commits if begun_s + LEASE_S + COMMIT_S < commit.at_s < mended_s]
    assert late == [], "commits after the lease could not be confirmed any more"
    assert any(begun_s - 10.0 < commit.at_s < begun_s + LEASE_S for commit in commits), "there was work before"

    wait_for(
        "every job goes on",
        lambda: all(cluster.status(job).applied_version > versions[job] for job in load.jobs),
    )
    assert cluster.node.alive
    assert cluster.node.pid == node


@pytest.mark.further  # each time: test_partitions.py
@pytest.mark.spark
@pytest.mark.parametrize("wait_s", [8.0, pytest.param(30.0, marks=pytest.mark.full)])
def test_without_etcd_nothing_is_committed_and_with_it_the_node_goes_on_by_itself(
    cluster: Cluster, wait_s: float
) -> None:
    load = Load.make(cluster)
    cluster.start()
    load.register()
    for job in load.jobs:
        cluster.settle(job)
    with load.writing(seed=1):
        time.sleep(3.0)
        for fault in (stopped, killed):
            outage(load, fault, wait_s)
    load.assert_right()
