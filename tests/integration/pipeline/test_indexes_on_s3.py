"""An index and its source on S3, in buckets with keys of their own: iterations, two writers, searches and a check."""

from __future__ import annotations

import pytest

from iscp.index.search.search_library import search
from iscp.model.job.iteration import DataType
from iscp.spark.session import SparkRuntime
from tests.fakes.s3 import WITH_TOKEN, FakeS3

from .conftest import Pipeline
from .indexing import Indexing, documents

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("bucket", ["acme", WITH_TOKEN])
@pytest.mark.slow(but=1)
def test_a_job_builds_and_follows_an_index_that_two_nodes_try_to_write(
    s3: FakeS3, spark_runtime: SparkRuntime, bucket: str
) -> None:
    indexing = Indexing(Pipeline(s3.uri(f"indexed-{bucket}", bucket), spark_runtime))
    job = indexing.job("search")
    (built,) = indexing.run(job)
    assert (built.error_msg, built.data_type) == ("", DataType.SNAPSHOT)
    indexing.assert_equal(job)

    indexing.upsert(documents([1, 2, 3, 77], turn=1))
    indexing.delete("id BETWEEN 20 AND 24")
    other = indexing.other_runner()
    indexing.failpoints.once("index.commit.before", lambda: indexing.run(job, runner=other))
    indexing.run(job)
    index = indexing.assert_equal(job)
    assert index.head.rows == 36

    found = search(job.spec.consumer.target, "delta lake", k=40)
    assert {hit.key["id"] for hit in found.hits} <= {*indexing.rows()}
    assert found.hits
    compared = indexing.verify(job).comparison
    assert (compared.missing, compared.different, compared.extra, compared.rows_target) == (0, 0, 0, 36)
