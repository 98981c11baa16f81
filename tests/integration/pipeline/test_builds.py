"""A first snapshot that all nodes build, range by range, is the one that a single iteration would have made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from iscp.cluster.builds.builder_loop import plan_of
from iscp.consumers.replica.replica_consumer import dead_letter_uri
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.delta.source.spark_read import RANGE_BYTES_MAX, DeltaRangeReader
from iscp.engine.range_staging import SnapshotRangeBuilder
from iscp.model.build.build_task import RangeBatch
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import BuildConfig
from iscp.model.spec.spec import OnDuplicate
from iscp.model.values.errors import Canceled, ErrorCode
from iscp.model.values.progress import SnapshotSize, TableSize, total_size
from iscp.ports.consumer import ConsumerKind
from iscp.spark.spark_engine import SparkEngine
from tests.fakes.build_driver import BuildDriver
from tests.fakes.guards import OpenGuard, ScriptedFailpoints
from tests.fakes.waiting import until
from tests.selection import in_full

from .conftest import BY_SPARK, DIRECT_IN_FULL, SPARK_IN_FULL, Pipeline

pytestmark = pytest.mark.spark

SMALL_RANGES = BuildConfig(table_bytes_min=1, range_bytes=2_000)
ODD = (
    "CREATE TABLE SOURCE (id BIGINT, v STRING, p STRING, n STRUCT<a: INT, b: STRING>) USING delta PARTITIONED BY (p) "
    "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name')",
    "INSERT INTO SOURCE SELECT id, repeat(cast(id AS STRING), 9), if(id % 4 = 0, null, if(id % 4 = 1, '', 'a b%')), "
    "named_struct('a', cast(id AS INT), 'b', cast(null AS STRING)) FROM range(400)",
    "INSERT INTO SOURCE SELECT id % 3, null, 'c', null FROM range(9)",
    "INSERT INTO SOURCE SELECT id % 3, null, 'c', null FROM range(9)",
    "DELETE FROM SOURCE WHERE id % 7 = 1",
    "ALTER TABLE SOURCE RENAME COLUMN v TO w",
    "ALTER TABLE SOURCE ADD COLUMN x INT",
    "INSERT INTO SOURCE SELECT id, 'new', 'a b%', null, 7 FROM range(1000, 1040)",
)


class Cluster:
    """Nodes that share nothing but the storage."""

    def __init__(
        self,
        pipeline: Pipeline,
        builds: BuildConfig = SMALL_RANGES,
        nodes: int = 3,
        kinds: Callable[[str], ConsumerKind] = lambda name: ReplicaKind(),
    ) -> None:
        self.pipeline = pipeline
        self.bytes_max = RANGE_BYTES_MAX if pipeline.small_bytes_max else 0
        self.failpoints = ScriptedFailpoints()
        self.kinds = kinds
        self.runner = pipeline.new_runner(self.failpoints, small_bytes_max=0, kinds=kinds, builds=builds)
        self.nodes = [self.new_node() for _ in range(nodes)]

    def new_node(self) -> SnapshotRangeBuilder:
        ports = self.pipeline.new_ports(self.failpoints, kinds=self.kinds)
        return SnapshotRangeBuilder(ports, DeltaRangeReader(self.bytes_max))

    def driver(self, *jobs: JobRow, seed: int = 0) -> BuildDriver:
        return BuildDriver(jobs, self.nodes, lambda row: self.pipeline.run(row, runner=self.runner)[0], seed)


def add_files(pipeline: Pipeline, files: int = 5) -> None:
    for start in range(100, 100 + 20 * files, 20):
        pipeline.insert(range(start, start + 20))


@pytest.fixture
def cluster(pipeline: Pipeline) -> Cluster:
    return Cluster(pipeline)


class LabelledEngine(SparkEngine):
    """One that shares all with another one, and notes by what `labels` work is named."""

    def __init__(self, other: SparkEngine) -> None:
        self.__dict__.update(vars(other))
        self.labels: list[str] = []

    def label(self, label: str) -> None:
        self.labels.append(label)
        super().label(label)

    def busy_stages(self) -> list[int]:
        """Those that have been at work for a second, and are not done."""
        stages = self.stages(self.labels[-1]) if self.labels else {}
        began_s = time.time() - 1.0
        return [
            number
            for number, stage in stages.items()
            if stage.tasks_done < stage.tasks and 0 < stage.began_at_s < began_s
        ]


def is_claimed_alone(pipeline: Pipeline, name: str) -> bool:
    """Whether nobody sees anything of what is staged."""
    return bool(DeltaTable(pipeline.target(name)).to_pyarrow_table().num_rows == 0)


def _differs(number: int, row: dict[str, Any]) -> bool:
    return bool(row["id"] % 3 != number)


def marks(pipeline: Pipeline, name: str) -> list[str]:
    return sorted(path.name for path in Path(pipeline.target(name), "_iscp-build").rglob("*.json"))


@SPARK_IN_FULL
def test_nothing_is_seen_until_all_of_it_is_there(cluster: Cluster, pipeline: Pipeline) -> None:
    add_files(pipeline, 15)
    driver = cluster.driver(pipeline.job("target", key=("id",)))
    (waits,) = driver.iterate()
    assert waits.build is not None
    assert (waits.ok, waits.committed, waits.build.version, waits.build.depth > 1) == (True, False, 15, True)
    for range_id in driver.waiting:
        assert driver.iterate()[0].build == waits.build
        assert is_claimed_alone(pipeline, "target")
        assert driver.work(range_id) is None
    found = SnapshotSize(350, sum(DeltaTable(pipeline.source).get_add_actions()["size_bytes"].to_pylist()), 16)
    assert waits.build.size == found
    assert total_size(driver.done[driver.rows[0].job_id]) == TableSize(found.rows, found.bytes)
    (built,) = driver.iterate()
    assert (built.ok, built.build, built.watermark.version, built.rows) == (True, None, 15, 350)
    assert (built.data_type, built.seq) == (DataType.SNAPSHOT, 2)
    pipeline.assert_equal("target")
    assert [commit.seq for commit in pipeline.commits("target")] == [1, 2], "one commit"
    assert marks(pipeline, "target") == []
    pipeline.upsert(range(90, 110), "later")
    assert pipeline.run(driver.rows[0])[0].data_type is DataType.TAIL
    pipeline.assert_equal("target")


@pytest.mark.parametrize("seed", in_full(range(3)))
@BY_SPARK
def test_in_any_order_with_splits_merges_and_commits_in_the_middle(
    cluster: Cluster, pipeline: Pipeline, seed: int
) -> None:
    """Of a partitioned source with mapped names, deletion vectors, nulls and rows that are equal to others."""
    pipeline.create(*ODD)
    jobs = [
        pipeline.job("bag"),
        pipeline.job("some", columns=("w", "id"), where="id % 2 = 0 OR p IS NULL"),
    ]
    driver = cluster.driver(*jobs, seed=seed)
    driver.iterate()
    for _ in range(2):
        driver.split(driver.draw.choice(driver.waiting))
        driver.work(driver.draw.choice(driver.waiting), lost=True)
        driver.merge(driver.draw.choice(driver.waiting))
    frozen = pipeline.source_by_spark()
    pipeline.sql("UPDATE SOURCE SET w = 'changed' WHERE id % 5 = 0")
    pipeline.sql("DELETE FROM SOURCE WHERE id < 100")
    pipeline.sql("INSERT INTO SOURCE SELECT id, 'late', 'd', null, 1 FROM range(5000, 5010)")
    pipeline.sql("OPTIMIZE SOURCE")
    driver.finish()
    assert {row.watermark.version for row in driver.rows} == {driver.rows[0].watermark.version}
    pipeline.assert_holds("bag", frozen)
    even = frozen.filter([(row["id"] % 2 == 0) or row["p"] is None for row in frozen.to_pylist()])
    pipeline.assert_holds("some", even.select(["w", "id"]))


@BY_SPARK
def test_jobs_of_one_batch_read_the_source_once(cluster: Cluster, pipeline: Pipeline) -> None:
    jobs = [pipeline.job(f"target-{number}", key=("id",), where=f"id % 3 <> {number}") for number in range(3)]
    pipeline.insert(range(100, 5_100))
    driver = cluster.driver(*jobs)
    driver.iterate()
    while driver.waiting != [1]:
        driver.merge(driver.waiting[-1])
    assert driver.work(1) is None
    with pipeline.engine.session() as session:
        label = str(session.sparkContext.getLocalProperty("spark.jobGroup.id"))
    read = sum(stage.rows_read for stage in pipeline.engine.stages(label).values())
    assert 5_050 <= read < 2 * 5_050
    driver.finish()
    for number in range(3):
        pipeline.assert_equal(f"target-{number}", keeps=partial(_differs, number))


@BY_SPARK
@pytest.mark.slow
def test_the_spark_work_of_a_batch_that_is_cancelled_stops(cluster: Cluster, pipeline: Pipeline) -> None:
    """And not only what would come after it: of 90 files, each of which takes a second, most are never read."""
    files = 90
    for start in range(100, 100 + files):
        pipeline.insert([start])
    slowly = "aggregate(sequence(1, 2000000 + id), 0L, (sum, n) -> sum + n) > 0"
    slow, plain = pipeline.job("slow", where=slowly), pipeline.job("plain")
    driver = cluster.driver(slow, plain)
    driver.iterate()
    while driver.waiting != [1]:
        driver.merge(driver.waiting[-1])
    slow_plan, plain_plan = driver.batch(1).plans
    guard, engine = OpenGuard(), LabelledEngine(pipeline.engine)
    node = SnapshotRangeBuilder(replace(pipeline.new_ports(cluster.failpoints), engine=engine), DeltaRangeReader(0))
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(node.build, RangeBatch(1, (slow_plan,)), guard)
        until(lambda: engine.busy_stages() or built.done(), within_s=120)
        guard.shut = True
        node.cancel(guard)
        began_s = time.monotonic()
        with pytest.raises(Canceled):
            built.result(timeout=60)
        assert time.monotonic() - began_s < 30
        (label,) = engine.labels
        assert sum(stage.rows_written for stage in pipeline.engine.stages(label).values()) < files / 2
        assert marks(pipeline, "slow") == ["begun.json"]
        assert pool.submit(node.build, RangeBatch(1, (plain_plan,)), OpenGuard()).result().rows == 50 + files
    assert marks(pipeline, "plain") == ["1.json", "begun.json"]


@DIRECT_IN_FULL
def test_a_source_that_is_vacuumed_in_the_middle_is_built_at_a_newer_version(
    cluster: Cluster, pipeline: Pipeline
) -> None:
    add_files(pipeline)
    driver = cluster.driver(pipeline.job("target", key=("id",)))
    (first,) = driver.iterate()
    pipeline.upsert(range(10), "new")
    DeltaTable(pipeline.source).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    driver.finish()
    assert first.build is not None
    assert driver.rows[0].watermark.version > first.build.version
    pipeline.assert_equal("target")
    assert marks(pipeline, "target") == []


@pytest.mark.further  # each time: a job that is to stop below
@BY_SPARK
def test_rows_of_two_ranges_that_share_a_key_are_dead_lettered_as_ever(cluster: Cluster, pipeline: Pipeline) -> None:
    pipeline.insert(range(40, 60))
    driver = cluster.driver(pipeline.job("target", key=("id",)))
    driver.finish()
    assert DeltaTable(pipeline.target("target")).to_pyarrow_table().num_rows == 50
    assert DeltaTable(dead_letter_uri(pipeline.target("target"))).to_pyarrow_table().num_rows == 20
    assert marks(pipeline, "target") == []


@BY_SPARK
def test_rows_that_share_a_key_stop_a_job_that_says_so(cluster: Cluster, pipeline: Pipeline) -> None:
    pipeline.insert(range(40, 60))
    job = pipeline.job("target", key=("id",), policies={"on_duplicate": OnDuplicate.STOP})
    driver = cluster.driver(job)
    driver.iterate()
    for range_id in driver.waiting:
        driver.work(range_id)
    assert driver.iterate()[0].error_code == ErrorCode.DUPLICATE_KEY
    assert is_claimed_alone(pipeline, "target")
    assert driver.iterate()[0].error_code == ErrorCode.DUPLICATE_KEY, "and does not wait for a build again"


@BY_SPARK
def test_staged_files_that_are_gone_are_noticed(cluster: Cluster, pipeline: Pipeline) -> None:
    """By a VACUUM of the target that keeps nothing."""
    add_files(pipeline)
    driver = cluster.driver(pipeline.job("target", key=("id",)))
    driver.iterate()
    for range_id in driver.waiting:
        driver.work(range_id)
    DeltaTable(pipeline.target("target")).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    (built,) = driver.iterate()
    assert built.ok, built.error_msg
    pipeline.assert_equal("target")


@pytest.mark.further  # each time: staged files that are gone, above
@BY_SPARK
def test_vacuum_of_the_target_takes_what_does_not_count_in_time_and_nothing_else(
    cluster: Cluster, pipeline: Pipeline
) -> None:
    add_files(pipeline)
    driver = cluster.driver(pipeline.job("target", key=("id",)))
    driver.iterate()
    for range_id in driver.waiting:
        driver.work(range_id, lost=True)
    staged = set(Path(pipeline.target("target")).rglob("*.parquet"))
    DeltaTable(pipeline.target("target")).vacuum(dry_run=False, full=True)
    assert set(Path(pipeline.target("target")).rglob("*.parquet")) == staged
    counted = marks(pipeline, "target")
    driver.finish()
    assert "begun.json" in counted
    DeltaTable(pipeline.target("target")).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    pipeline.assert_equal("target")
    named = {Path(pipeline.target("target"), file) for file in DeltaTable(pipeline.target("target")).file_uris()}
    assert set(Path(pipeline.target("target")).rglob("*.parquet")) == named


@pytest.mark.parametrize("point", in_full(["range.before", "range.staged", "range.counted"], but=["range.staged"]))
@BY_SPARK
def test_a_node_that_dies_leaves_a_range_to_be_built_again_or_counted(
    cluster: Cluster, pipeline: Pipeline, point: str
) -> None:
    add_files(pipeline)

    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    driver = cluster.driver(pipeline.job("target"))
    driver.iterate()
    for range_id in driver.waiting:
        cluster.failpoints.once(point, die)
        with pytest.raises(Died):
            driver.work(range_id)
        assert driver.work(range_id) is None
    assert driver.iterate()[0].watermark.version >= 0
    pipeline.assert_equal("target")


@pytest.mark.further  # each time: a lost row below
@BY_SPARK
def test_a_later_registration_has_nothing_of_an_earlier_ones_build(cluster: Cluster, pipeline: Pipeline) -> None:
    add_files(pipeline)
    old = cluster.driver(pipeline.job("target", 1, key=("id",)))
    old.iterate()
    first, *others = old.waiting
    old.work(first)
    new = cluster.driver(pipeline.job("target", 2, key=("id",), where="id < 20"))
    new.iterate()
    assert old.work(others[0]) is None
    assert old.waiting == [], "its plan is outdated"
    assert old.iterate()[0].error_code == ErrorCode.SUPERSEDED
    new.finish()
    pipeline.assert_equal("target", lambda row: row["id"] < 20)


@BY_SPARK
def test_a_row_that_is_lost_requests_the_same_build_again(cluster: Cluster, pipeline: Pipeline) -> None:
    """The node died before its report: what was staged since counts."""
    add_files(pipeline)
    job = pipeline.job("target", key=("id",))
    first = cluster.driver(job)
    first.iterate()
    for range_id in first.waiting:
        first.work(range_id)
    second = cluster.driver(job)
    assert second.iterate()[0].build == first.rows[0].build
    assert second.iterate()[0].watermark.version == 5
    pipeline.assert_equal("target")


@BY_SPARK
def test_tables_below_the_limit_and_rows_that_somebody_holds_are_built_at_once(pipeline: Pipeline) -> None:
    large = Cluster(pipeline, BuildConfig(table_bytes_min=10**9))
    (built,) = large.driver(pipeline.job("small", key=("id",))).iterate()
    assert (built.build, built.watermark.version) == (None, 0)
    cluster = Cluster(pipeline)
    job = pipeline.job("bag")
    pipeline.run(job)
    lost = job._replace(watermark=built.watermark, seq=7)
    outcome = pipeline.run(lost, runner=cluster.runner)[0]
    assert outcome.build is None, "without a key a target that was built once loses no row any more"


@pytest.mark.further  # each time: a node that dies, above, and tests/e2e/test_builds.py
@BY_SPARK
def test_a_process_that_is_killed_has_no_more_done_again_than_its_range(
    cluster: Cluster, pipeline: Pipeline, tmp_path: Path
) -> None:
    add_files(pipeline, 10)
    driver = cluster.driver(pipeline.job("target", key=("id",)))
    driver.iterate()
    plan = plan_of(driver.rows[0])
    assert plan is not None
    ranges = driver.waiting
    assert len(ranges) > 3
    killed = subprocess.run(
        [sys.executable, "-m", "tests.fakes.build_program", str(tmp_path / "spark"), json.dumps(asdict(plan))],
        input="".join(f"{each}\n" for each in ranges),
        env=os.environ | {"ISCP_FAILPOINTS": "range.staged=kill:3"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert (killed.returncode, killed.stdout.split()) == (-signal.SIGKILL, [str(each) for each in ranges[:2]])
    for range_id in ranges:
        assert driver.work(range_id) is None
    assert cluster.failpoints.reached.count("range.before") == len(ranges) - 2
    assert driver.iterate()[0].watermark.version >= 0
    pipeline.assert_equal("target")


def test_a_node_whose_first_work_is_a_range_lists_the_table(pipeline: Pipeline) -> None:
    """Its thread has had no query of Spark before; and what a checkpoint holds is listed in the background."""
    pipeline.upsert(list(range(40)), "a")
    DeltaTable(pipeline.source).create_checkpoint()
    version = DeltaTable(pipeline.source).version()
    spark: Any = pipeline.engine._root._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    spark.delta.DeltaLog.clearCache()

    def first_work() -> TableSize:
        spark.classic.SparkSession.clearActiveSession()
        with pipeline.engine.session() as session:
            return DeltaRangeReader().size(session, pipeline.source, version, 1, 1 << 30)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(first_work).result().rows == 50
