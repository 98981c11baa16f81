"""A node that leaves every change to Spark (`spark.direct_bytes_max = 0`): the same rows, and nothing read directly."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.e2e.harness import Cluster, append, assert_equal, delete, read, upsert


def rows(ids: range, text: str) -> pa.Table:
    return pa.table({"id": list(ids), "text": [text] * len(ids)})


@pytest.mark.spark
def test_jobs_come_to_the_same_rows_when_spark_reads_every_change(cluster: Cluster) -> None:
    source = cluster.table("source", rows(range(50), "old"))
    cluster.start(ISCP_SPARK__DIRECT_BYTES_MAX="0")
    keyed = cluster.replica("keyed", source, key=("id",), where="text <> 'hidden'")
    archive = cluster.replica("archive", source)
    for job in (keyed, archive):
        cluster.settle(job)
    append(source, rows(range(100, 110), "new"))
    upsert(source, rows(range(45, 55), "changed"), ("id",))
    upsert(source, rows(range(3), "hidden"), ("id",))
    delete(source, "id = 7")
    for job in (keyed, archive):
        cluster.settle(job)
    held = read(source)
    assert_equal(keyed.target, held.filter(pc.not_equal(held["text"], "hidden")))
    assert read(archive.target).num_rows == 50 + 10 + 10 + 3
    done = [json.loads(line) for line in cluster.node.log.read_text().splitlines() if '"iteration.done"' in line]
    assert done
    assert all(each["direct_s"] == 0 for each in done)
