"""The harness itself: a node that is killed and one that is frozen beyond its lease leave an equal target."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from tests.e2e.harness import Cluster, append, assert_equal, delete, read, upsert


def rows(first: int, count: int, text: str) -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "text": [text] * count})


@pytest.mark.spark
@pytest.mark.full
def test_a_node_is_killed_and_another_frozen_beyond_its_lease(cluster: Cluster) -> None:
    source = cluster.table("numbers", rows(0, 100, "a"))
    cluster.start()
    job = cluster.replica("copy", source, key=("id",))
    cluster.settle(job)

    cluster.node.kill()
    upsert(source, rows(50, 100, "b"), ("id",))
    cluster.start_node()
    cluster.settle(job)
    assert_equal(job.target, read(source))

    cluster.node.freeze()
    delete(source, "id < 10")
    time.sleep(6.0)  # twice the lease of the tests
    cluster.node.thaw()
    append(source, rows(1_000, 5, "c"))
    if not cluster.node.alive:
        cluster.start_node()
    cluster.settle(job)
    assert_equal(job.target, read(source))
    with pytest.raises(AssertionError, match="rows differ"):
        assert_equal(job.target, rows(0, 100, "a"))
