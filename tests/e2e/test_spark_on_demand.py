"""A node whose tables are small runs without a JVM, until something needs Spark."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tests.e2e.evidence import admin_process
from tests.e2e.harness import Cluster, append, assert_equal, read


def events(cluster: Cluster) -> list[str]:
    lines = cluster.node.log.read_text().splitlines()
    return [json.loads(line)["event"] for line in lines if line.startswith("{")]


@pytest.mark.spark
def test_small_tables_need_no_jvm_and_a_comparison_starts_one(cluster: Cluster) -> None:
    cluster.start()
    source = cluster.table("orders", pa.table({"id": [1, 2], "text": ["a", "b"]}))
    copy, archive = cluster.replica("copy", source, key=("id",)), cluster.replica("archive", source)
    cluster.settle(copy)
    cluster.settle(archive)
    version = append(source, pa.table({"id": [3], "text": ["c"]}))
    for job in copy, archive:
        assert cluster.settle(job).applied_version == version
        assert_equal(job.target, read(source))
    assert events(cluster).count("selftest.passed") == 1
    assert "spark.started" not in events(cluster)

    verified = admin_process(cluster.endpoint, "job", "verify", source, "copy")
    assert (verified.status, verified.err) == (0, "")
    assert events(cluster).count("selftest.passed") == 2, "by Spark as well, before it compares"
    assert "spark.started" in events(cluster)
