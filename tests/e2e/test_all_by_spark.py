"""A node that leaves every change to Spark (`spark.direct_bytes_max = 0`): the same rows, and nothing read directly."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.e2e.harness import Cluster, assert_equal, read, upsert


def rows(ids: range, text: str) -> pa.Table:
    return pa.table({"id": list(ids), "text": [text] * len(ids)})


@pytest.mark.further  # each time: BOTH_WAYS in tests/integration/pipeline
@pytest.mark.spark
def test_a_job_comes_to_the_same_rows_when_spark_reads_every_change(cluster: Cluster) -> None:
    source = cluster.table("source", rows(range(50), "old"))
    cluster.start(ISCP_SPARK__DIRECT_BYTES_MAX="0")
    keyed = cluster.replica("keyed", source, key=("id",), where="text <> 'hidden'")
    cluster.settle(keyed)
    changed = pa.concat_tables([rows(range(45, 55), "changed"), rows(range(3), "hidden")])
    upsert(source, changed, ("id",))
    cluster.settle(keyed)
    held = read(source)
    assert_equal(keyed.target, held.filter(pc.not_equal(held["text"], "hidden")))
    done = [json.loads(line) for line in cluster.node.log.read_text().splitlines() if '"iteration.done"' in line]
    assert done
    assert all(each["direct_s"] == 0 for each in done)
