"""The first rows of an index, staged by ranges on several nodes, are those that one iteration would have written."""

from __future__ import annotations

import pytest
from deltalake import write_deltalake

from iscp.delta.source.spark_read import DeltaRangeReader
from iscp.engine.range_staging import SnapshotRangeBuilder
from iscp.model.settings.config import BuildConfig
from tests.fakes.build_driver import BuildDriver
from tests.fakes.guards import ScriptedFailpoints

from .conftest import SPARK_IN_FULL, Pipeline
from .indexing import Indexing, documents

pytestmark = pytest.mark.spark

SMALL_RANGES = BuildConfig(table_bytes_min=1, range_bytes=4_000)


class IndexCluster(Indexing):
    """Nodes that share nothing but the storage, and a source of several files."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        for start in range(100, 400, 50):
            write_deltalake(self.source, documents(list(range(start, start + 50))), mode="append")
        self.points = ScriptedFailpoints()
        self.builder_runner = pipeline.new_runner(self.points, small_bytes_max=0, kinds=self.kinds, builds=SMALL_RANGES)
        ports = [pipeline.new_ports(self.points, kinds=self.kinds) for _ in range(3)]
        self.nodes = [SnapshotRangeBuilder(each, DeltaRangeReader(0)) for each in ports]


@SPARK_IN_FULL
@pytest.mark.parametrize("kind", ["fulltext", "vector", "search"])
def test_an_index_that_ranges_were_staged_for_is_that_of_one_snapshot(pipeline: Pipeline, kind: str) -> None:
    cluster = IndexCluster(pipeline)
    job = cluster.job(kind)
    driver = BuildDriver((job,), cluster.nodes, lambda row: cluster.run(row, runner=cluster.builder_runner)[0], 3)
    (waits,) = driver.iterate()
    assert waits.build is not None, waits.error_msg
    assert cluster.index(job).head.version == -1
    for range_id in driver.waiting:
        assert driver.work(range_id) is None
        assert cluster.index(job).head.rows == 0
    (outcome,) = driver.iterate()
    assert outcome.error_msg == ""
    assert cluster.assert_equal(job).head.rows == 340
    write_deltalake(cluster.source, documents([500]), mode="append")
    (followed,) = cluster.run(job)
    assert (followed.error_msg, followed.rows) == ("", 1)
    cluster.assert_equal(job)


def test_rows_of_two_ranges_that_share_a_key_are_found_before_they_are_seen(pipeline: Pipeline) -> None:
    cluster = IndexCluster(pipeline)
    write_deltalake(cluster.source, documents([120], turn=3), mode="append")
    job = cluster.job("fulltext")
    driver = BuildDriver((job,), cluster.nodes, lambda row: cluster.run(row, runner=cluster.builder_runner)[0], 5)
    driver.iterate()
    for range_id in driver.waiting:
        driver.work(range_id)
    (outcome,) = driver.iterate()
    assert (outcome.error_msg, outcome.dead_letters) == ("", 1)
    cluster.assert_sums(cluster.index(job))
