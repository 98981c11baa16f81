"""Tables as other writers leave them: built by ranges, a target holds what Spark reads, in columns of its types."""

from __future__ import annotations

import pytest

from tests.integration.pipeline.conftest import DIRECT_IN_FULL, Pipeline
from tests.integration.pipeline.odd_tables import READ, by_sql
from tests.integration.pipeline.test_builds import Cluster
from tests.integration.pipeline.test_odd_tables import assert_equal, made
from tests.selection import in_full

pytestmark = pytest.mark.spark

TABLES = READ | {
    "padded texts": by_sql("id BIGINT, c CHAR(5), v VARCHAR(9)", "VALUES (1, 'a', 'b '), (2, null, '')"),
    "comments, no nulls and defaults": by_sql(
        "id BIGINT NOT NULL COMMENT 'key', s STRUCT<a: INT NOT NULL>", "VALUES (1, named_struct('a', 7))"
    ),
}


@pytest.mark.parametrize("name", in_full(TABLES, but=["values of partitions"]))
@DIRECT_IN_FULL
def test_what_is_built_is_what_spark_reads(pipeline: Pipeline, name: str) -> None:
    made(pipeline, TABLES[name])
    driver = Cluster(pipeline).driver(pipeline.job("keyed", key=("id",)), pipeline.job("bare"))
    outcomes = driver.iterate()
    assert [outcome.error_msg for outcome in outcomes] == ["", ""]
    driver.finish()
    for job in driver.rows:
        assert_equal(pipeline, job.key.job_name)
    built = {outcome.build is not None for outcome in outcomes}
    assert built == {name != "no rows"}
