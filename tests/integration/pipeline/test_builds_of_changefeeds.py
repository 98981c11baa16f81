"""A feed's first snapshot that all nodes build is the one that a single iteration writes, in the same order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp import changefeed
from iscp.changefeed.model.ulid import ulid_time_ms
from iscp.cluster.builds.builder_loop import plan_of
from iscp.consumers.changefeed.changefeed_kind import ChangefeedKind
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import BuildConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import EngineError
from iscp.model.values.ids import JobKey
from tests.fakes.build_driver import BuildDriver
from tests.fakes.build_program import kind_of
from tests.selection import in_full

from .conftest import Pipeline
from .odd_tables import READ
from .test_builds import Cluster, add_files, marks
from .test_odd_tables import made

pytestmark = pytest.mark.spark

Changes = dict[int, list[dict[str, Any]]]


LARGER_RANGES = BuildConfig(table_bytes_min=1, range_bytes=5_000)


def feed_job(pipeline: Pipeline, name: str, **consumer: Any) -> JobRow:
    spec = ConsumerSpec("changefeed", pipeline.target(name), **{"key": ("id",), **consumer})
    catalog = DeltaCatalog(s3=True, by_spark=pipeline.by_spark)
    source = catalog.describe(pipeline.source)
    ChangefeedKind().validate(spec, source, catalog)
    key = JobKey("default", source.table_id, name)
    return JobRow(key, f"{name}-1", JobSpec(spec).to_json(), pipeline.source, pipeline.source)


def staged(cluster: Cluster, job: JobRow) -> BuildDriver:
    """All that is left is to publish it."""
    driver = cluster.driver(job)
    (waits,) = driver.iterate()
    assert waits.build is not None, waits.error_msg
    for range_id in driver.waiting:
        assert driver.work(range_id) is None
    return driver


def plan_json(row: JobRow) -> str:
    plan = plan_of(row)
    assert plan is not None
    return json.dumps(asdict(plan))


def changes(pipeline: Pipeline, name: str) -> Changes:
    """By shard, in order of their ulids."""
    found = DeltaTable(pipeline.target(name)).to_pyarrow_table().sort_by("ulid_text").to_pylist()
    return {shard: [each for each in found if each["shard"] == shard] for shard in {each["shard"] for each in found}}


def without_ulids(found: Changes) -> dict[int, list[tuple[Any, ...]]]:
    """All that a feed says, but for the ulids, which are drawn."""
    names = ("key", "operation", "version", "net", "row")
    return {shard: [tuple(map(repr, map(each.get, names))) for each in listed] for shard, listed in found.items()}


def assert_one_transaction(found: Changes) -> None:
    for listed in found.values():
        numbers = [int.from_bytes(each["ulid"], "big") for each in listed]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "they follow one another"
        assert len({ulid_time_ms(each["ulid"]) for each in listed}) == 1


def replayed(pipeline: Pipeline, name: str) -> Counter[str]:
    bag: Counter[str] = Counter()
    for listed in changes(pipeline, name).values():
        for each in listed:
            bag[repr(each["row"])] += 1 if each["operation"] in ("insert", "update_postimage") else -1
    return +bag


def bag_of_source(pipeline: Pipeline) -> Counter[str]:
    return Counter(map(repr, DeltaTable(pipeline.source).to_pyarrow_table().to_pylist()))


def write_random_bag(pipeline: Pipeline, draw: Random) -> None:
    """In files that overlap; keys may be null, and rows that share one are equal, as their order is not said."""
    mode: Any = "overwrite"
    for _ in range(draw.randrange(3, 9)):
        ids = [draw.choice([None, *range(-40, 40)]) for _ in range(draw.randrange(1, 60))]
        texts = [None if each is None else "é" * (each % 4) for each in ids]
        rows = pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(texts), "g": pa.array(ids, pa.int64())})
        write_deltalake(pipeline.source, rows, mode=mode, schema_mode="overwrite" if mode == "overwrite" else None)
        mode = "append"


@pytest.mark.further  # each time: odd tables below, and tests/e2e/test_builds.py
@pytest.mark.parametrize("seed", in_full(range(6)))
def test_it_is_the_snapshot_of_one_iteration(pipeline: Pipeline, seed: int) -> None:
    draw = Random(seed)
    write_random_bag(pipeline, draw)
    consumer = {
        "key": draw.choice([("id",), ("V", "id")]),
        "options": {"shards": draw.choice([1, 4])},
        "columns": draw.choice([(), ("id", "v")]),
        "where": draw.choice(["", "id % 2 = 0 OR v IS NULL"]),
    }
    cluster = Cluster(pipeline, LARGER_RANGES, kinds=kind_of)
    driver = cluster.driver(feed_job(pipeline, "built", **consumer), seed=seed)
    (waits,) = driver.iterate()
    assert waits.build is not None, waits.error_msg
    assert changes(pipeline, "built") == {}
    driver.finish()
    (alone,) = pipeline.run(
        feed_job(pipeline, "alone", **consumer), runner=pipeline.new_runner(pipeline.failpoints, kinds=kind_of)
    )
    assert driver.rows[0].watermark == alone.watermark
    built = changes(pipeline, "built")
    assert without_ulids(built) == without_ulids(changes(pipeline, "alone"))
    assert_one_transaction(built)
    assert marks(pipeline, "built") == []
    assert list(Path(pipeline.target("built")).rglob("*staged*")) == [], "its rows are others' by now"


@pytest.mark.further  # each time: tests/e2e/test_builds.py
def test_a_feed_and_a_replica_are_built_together_and_then_followed(pipeline: Pipeline) -> None:
    add_files(pipeline)
    cluster = Cluster(pipeline, kinds=kind_of)
    jobs = [feed_job(pipeline, "feed", options={"shards": 2}), pipeline.job("target", key=("id",))]
    driver = cluster.driver(*jobs)
    outcomes = driver.iterate()
    assert all(outcome.build for outcome in outcomes)
    pipeline.upsert(range(90, 110), "later")
    ranges = driver.waiting
    for range_id in ranges:
        assert driver.work(range_id) is None
    assert cluster.failpoints.reached.count("range.before") == len(ranges), "one read for both"
    (built, _) = driver.iterate()
    assert (built.data_type, built.seq, built.rows, built.watermark.version) == (DataType.SNAPSHOT, 1, 150, 5)
    tail, _ = (pipeline.run(row, runner=cluster.runner)[0] for row in driver.rows)
    assert (tail.data_type, tail.seq) == (DataType.TAIL, 2)
    assert replayed(pipeline, "feed") == bag_of_source(pipeline)
    pipeline.assert_equal("target")
    with changefeed.open(pipeline.target("feed")) as feed:
        page = feed.read(None, limit=1_000)
    assert page.rows["ulid_text"].to_pylist() == sorted(page.rows["ulid_text"].to_pylist())


def fails() -> None:
    raise EngineError("told to fail")


@pytest.mark.parametrize("point", in_full(["commit.before", "feed.commit", "report.before"], but=["feed.commit"]))
def test_publishing_that_fails_leaves_all_or_nothing(pipeline: Pipeline, point: str) -> None:
    add_files(pipeline)
    cluster = Cluster(pipeline, LARGER_RANGES, kinds=kind_of)
    driver = staged(cluster, feed_job(pipeline, "feed"))
    read = cluster.failpoints.reached.count("range.before")
    cluster.failpoints.once(point, fails)
    assert not driver.iterate()[0].ok
    assert bool(changes(pipeline, "feed")) == (point == "report.before")
    assert driver.iterate()[0].ok
    assert cluster.failpoints.reached.count("range.before") == read, "the source is not read again"
    assert_one_transaction(changes(pipeline, "feed"))
    assert replayed(pipeline, "feed") == bag_of_source(pipeline)


@pytest.mark.full
def test_a_process_that_is_killed_while_it_publishes_has_published_nothing(pipeline: Pipeline, tmp_path: Path) -> None:
    add_files(pipeline)
    cluster = Cluster(pipeline, LARGER_RANGES, kinds=kind_of)
    driver = staged(cluster, feed_job(pipeline, "feed"))
    plan = plan_json(driver.rows[0])
    killed = subprocess.run(
        [sys.executable, "-m", "tests.fakes.build_program", str(tmp_path / "spark"), plan, "publish"],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"ISCP_FAILPOINTS": "feed.commit=kill"},
        timeout=120,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert changes(pipeline, "feed") == {}
    assert driver.iterate()[0].seq == 1
    assert_one_transaction(changes(pipeline, "feed"))
    assert replayed(pipeline, "feed") == bag_of_source(pipeline)


def test_what_another_writer_has_put_into_the_feed_meanwhile_counts(pipeline: Pipeline) -> None:
    """Two iterations of one job, as where a node was taken for dead: the second finds the shard's state moved."""
    add_files(pipeline)
    cluster = Cluster(pipeline, LARGER_RANGES, kinds=kind_of)
    driver = staged(cluster, feed_job(pipeline, "feed"))
    zombie = driver.rows[0]
    others: list[Any] = []
    cluster.failpoints.once("commit.before", lambda: others.extend(driver.iterate()))
    (late,) = pipeline.run(zombie, runner=cluster.runner)
    assert [each.committed for each in others] == [True]
    assert (late.committed, late.seq) == (False, 1), "it looks again, and finds that nothing is left to be done"
    built = changes(pipeline, "feed")
    assert_one_transaction(built)
    assert replayed(pipeline, "feed") == bag_of_source(pipeline)


@pytest.mark.further  # each time: what another writer has put there, above
def test_a_feed_that_has_changes_is_compared_and_not_built(pipeline: Pipeline) -> None:
    first = feed_job(pipeline, "feed")
    pipeline.run(first, runner=pipeline.new_runner(pipeline.failpoints, kinds=kind_of))
    add_files(pipeline)
    cluster = Cluster(pipeline, kinds=kind_of)
    again = first._replace(job_id="feed-2")
    (done,) = pipeline.run(again, runner=cluster.runner)
    assert (done.ok, done.build, done.rows) == (True, None, 100)
    assert replayed(pipeline, "feed") == bag_of_source(pipeline)


@pytest.mark.further  # each time: odd tables below
def test_rows_that_a_feed_does_not_take_have_the_same_outcome(pipeline: Pipeline) -> None:
    """A text that is no UTF-8: what is staged of it cannot be published, and the snapshot says so, or takes it."""
    pipeline.create(
        "CREATE TABLE SOURCE (id BIGINT, v STRING) USING delta",
        "INSERT INTO SOURCE SELECT id, 'x' FROM range(50)",
        "INSERT INTO SOURCE SELECT 77, cast(unhex('ff') AS STRING)",
    )
    (alone,) = pipeline.run(feed_job(pipeline, "alone"), runner=pipeline.new_runner(pipeline.failpoints, kinds=kind_of))
    (built,) = staged(Cluster(pipeline, kinds=kind_of), feed_job(pipeline, "built")).iterate()
    assert (built.ok, built.error_msg) == (alone.ok, alone.error_msg)


@pytest.mark.parametrize("name", in_full(READ, but=["decimals and nested"]))
def test_odd_tables_are_built_as_one_iteration_has_them(pipeline: Pipeline, name: str) -> None:
    made(pipeline, READ[name])
    pipeline.run(feed_job(pipeline, "alone"), runner=pipeline.new_runner(pipeline.failpoints, kinds=kind_of))
    driver = Cluster(pipeline, kinds=kind_of).driver(feed_job(pipeline, "built"))
    assert (driver.iterate()[0].build is None) == (name == "no rows")
    driver.finish()
    assert without_ulids(changes(pipeline, "built")) == without_ulids(changes(pipeline, "alone"))
