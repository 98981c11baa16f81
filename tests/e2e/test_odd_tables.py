"""Tables as other writers leave them, on a real node: kept as they are read elsewhere, or refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from iscp.model.values.errors import InvalidRequest
from iscp.spark.session import SparkRuntime, SparkSettings
from tests import quick_spark
from tests.e2e.harness import Cluster, Job, assert_equal, read
from tests.integration.pipeline.odd_tables import READ, READ_ONLY, REFUSED, Maker

# Each time: tests/integration/pipeline/test_odd_tables.py.
pytestmark = [pytest.mark.spark, pytest.mark.full]

KEPT, GONE = ("no commitInfo", "blank lines", "merged and compacted"), ("a gap in the log", "no protocol")
"""What is made without Spark."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Makes tables, and reads them as somebody does who has nothing to do with the node."""
    runtime = SparkRuntime.start(SparkSettings(work_dir=tmp_path_factory.mktemp("spark"), conf=quick_spark.CONF))
    yield runtime.new_session()
    runtime.stop()


def registered(node: Cluster, source: str, name: str) -> list[Job]:
    """A replica by key and one without."""
    return [node.replica(f"{name}_keyed", source, key=("id",)), node.replica(f"{name}_bare", source)]


def refuse(node: Cluster, source: str, reason: str) -> None:
    target = Path(f"{source}_target")
    with pytest.raises(InvalidRequest) as refused:
        node.client.register(source, "j", target=str(target), key=("id",))
    assert reason in str(refused.value)
    assert refused.value.remedy
    assert not target.exists()


def place(node: Cluster, name: str) -> str:
    node.lake.mkdir(exist_ok=True)
    return str(node.lake / name.replace(" ", "_"))


def make_without_spark(make: Maker, uri: str) -> None:
    make(uri, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", KEPT)
def test_a_table_is_kept_and_followed(node: Cluster, name: str) -> None:
    source = place(node, f"few {name}")
    make_without_spark(READ[name], source)
    jobs = registered(node, source, Path(source).name)
    for job in jobs:
        node.settle(job)
        assert_equal(job.target, read(source))
    DeltaTable(source).delete("id = 3")
    node.settle(jobs[0])
    assert_equal(jobs[0].target, read(source))


@pytest.mark.parametrize("name", GONE)
def test_a_table_that_nobody_reads_is_refused(node: Cluster, name: str) -> None:
    make, reason = REFUSED[name]
    source = place(node, f"gone {name}")
    make_without_spark(make, source)
    refuse(node, source, reason)


@pytest.mark.timeout(1_800)
def test_every_table_is_kept_and_followed_as_spark_reads_it(node: Cluster, spark: SparkSession) -> None:
    made = {name: place(node, name) for name in READ}
    for name, source in made.items():
        READ[name](source, spark)
    jobs = [job for source in made.values() for job in registered(node, source, Path(source).name)]
    for job in jobs:
        node.settle(job)
        assert rows_of(spark, job.target) == rows_of(spark, job.source), job.name
        assert node.client.verify(job.source, job.name).comparison.equal, job.name
    for name in made.keys() - {*READ_ONLY}:
        spark.sql(f"DELETE FROM delta.`{made[name]}` WHERE id = 1")
    for job in jobs:
        node.settle(job)
        if job.name.endswith("_keyed"):
            assert rows_of(spark, job.target) == rows_of(spark, job.source), job.name


@pytest.mark.timeout(1_800)
def test_every_table_that_no_engine_reads_is_refused(node: Cluster, spark: SparkSession) -> None:
    for name, (make, reason) in REFUSED.items():
        source = place(node, f"refused {name}")
        make(source, spark)
        refuse(node, source, reason)


def rows_of(spark: SparkSession, uri: str) -> list[str]:
    frame = spark.read.format("delta").load(uri)
    return sorted(row[0] for row in frame.selectExpr("to_json(struct(*))").collect())
