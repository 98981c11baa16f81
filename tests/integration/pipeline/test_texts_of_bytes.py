"""Texts whose bytes are no UTF-8, which Spark makes and writes: targets have them as Spark has them in the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from iscp.consumers.replica.replica_consumer import dead_letter_uri
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from tests.fakes.guards import OpenGuard

from .conftest import DIRECTLY, SPARK_IN_FULL, Pipeline
from .feeding import Feed
from .test_builds import Cluster
from .test_retained_commits import batch, tail
from .test_verify import verify

pytestmark = pytest.mark.spark

FEED_ON = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
TABLE = f"CREATE TABLE SOURCE (id BIGINT, k STRING, v STRING) USING delta {FEED_ON}"
ROWS = "INSERT INTO SOURCE SELECT /*+ COALESCE(1) */ id, concat('k', id), 'x' FROM range(20)"


def text(code: str) -> str:
    """In SQL a text of these bytes."""
    return f"CAST(X'{code}' AS STRING)"


BAD, CUT, LONE = text("FFFE41"), text("E282"), text("80")
FAR = text("F09F9880")
"""UTF-8, which in bytes lies beyond the character that is shown in the place of such as are none."""
ODD_TEXTS = [f"(101, {BAD}, 'a')", f"(102, {FAR}, {CUT})", f"(103, 'k103', {LONE})", f"(104, {text('FF')}, 'b')"]


def inserted(*rows: str) -> str:
    """Into one file."""
    return f"INSERT INTO SOURCE SELECT /*+ COALESCE(1) */ * FROM VALUES {', '.join(rows)}"


CHANGES = [
    inserted(*ODD_TEXTS),
    inserted("(150, 'z', 'z')"),
    f"UPDATE SOURCE SET v = {CUT} WHERE id IN (3, 101)",
    "UPDATE SOURCE SET v = 'right' WHERE id IN (3, 102)",
    "UPDATE SOURCE SET v = 'others' WHERE id IN (4, 5)",
    f"UPDATE SOURCE SET k = {LONE} WHERE id = 6",
    "UPDATE SOURCE SET k = 'k6' WHERE id = 6",
    "DELETE FROM SOURCE WHERE id IN (101, 7, 104)",
    inserted("(201, 'last', 'of all')"),
]


def as_bytes(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    """Rows as Spark has them, and texts as their bytes."""
    shown = [
        F.col(field.name).cast("binary") if field.dataType.simpleString() == "string" else F.col(field.name)
        for field in frame.schema.fields
    ]
    found = frame.select(*shown).collect()
    return Counter(tuple(bytes(each) if isinstance(each, bytearray) else each for each in row) for row in found)


def held(pipeline: Pipeline, uri: str, *columns: str) -> Counter[tuple[Any, ...]]:
    with pipeline.engine.session() as session:
        return as_bytes(session.read.format("delta").load(uri).selectExpr(*(columns or ("id", "k", "v"))))


def assert_same(pipeline: Pipeline, *names: str, columns: Sequence[str] = ()) -> None:
    expected = held(pipeline, pipeline.source, *columns)
    for name in names:
        assert held(pipeline, pipeline.target(name), *columns) == expected, name


def run(pipeline: Pipeline, *jobs: JobRow) -> list[DataType]:
    outcomes = pipeline.run(*jobs)
    assert [outcome.error_msg for outcome in outcomes] == [""] * len(jobs)
    return [outcome.data_type for outcome in outcomes]


def engine_of(pipeline: Pipeline, name: str) -> str:
    """Who wrote the target last."""
    return str(DeltaTable(pipeline.target(name)).history(1)[0]["engineInfo"])


@SPARK_IN_FULL
@pytest.mark.slow
def test_replicas_follow_changes_of_such_texts(pipeline: Pipeline) -> None:
    """As keys and as values: inserted, updated to and from, deleted, and beside rows of whole texts in one file."""
    pipeline.create(TABLE, ROWS)
    keys = {"by_text": ("k",), "by_id": ("id",)}
    jobs = [pipeline.job(name, key=key) for name, key in keys.items()]
    run(pipeline, *jobs)
    for change in CHANGES:
        pipeline.sql(change)
        assert {*run(pipeline, *jobs)} == {DataType.TAIL}, change
        assert_same(pipeline, *keys)
    assert all(verify(pipeline, job).comparison.equal for job in jobs)


@DIRECTLY
def test_a_character_beyond_such_bytes_is_found_in_their_file(pipeline: Pipeline) -> None:
    """Statistics have another character in the place of the bytes, which comes before it: no merge goes by them."""
    pipeline.create(TABLE, inserted(f"(1, {FAR}, 'far')", f"(2, {text('FF')}, 'bytes')"))
    job = pipeline.job("copy", key=("k",), columns=("k", "v"))
    run(pipeline, job)
    pipeline.sql("UPDATE SOURCE SET v = 'farther' WHERE id = 1")
    assert run(pipeline, job) == [DataType.TAIL]
    assert_same(pipeline, "copy", columns=("k", "v"))


@DIRECTLY
@pytest.mark.slow
def test_a_target_that_has_lost_such_texts_is_written_without_spark_again(pipeline: Pipeline) -> None:
    pipeline.create(TABLE, ROWS)
    job = pipeline.job("copy", key=("id",))
    run(pipeline, job)
    for change, engine in (
        (f"UPDATE SOURCE SET v = {BAD} WHERE id = 1", "Spark"),
        ("UPDATE SOURCE SET v = 'y' WHERE id = 2", "Spark"),
        ("UPDATE SOURCE SET v = 'y' WHERE id = 1", "Spark"),
        ("UPDATE SOURCE SET v = 'z' WHERE id = 2", "delta-rs"),
    ):
        pipeline.sql(change)
        run(pipeline, job)
        assert engine in engine_of(pipeline, "copy"), change
        assert_same(pipeline, "copy")


@SPARK_IN_FULL
@pytest.mark.slow
def test_without_a_key_and_by_difference_such_texts_are_not_confused(pipeline: Pipeline) -> None:
    pipeline.create(TABLE, ROWS, inserted(*ODD_TEXTS))
    jobs = (
        pipeline.job("appended"),
        pipeline.job("compared", key=("k",)),
        pipeline.job("some", key=("k",), where="id > 9"),
    )
    run(pipeline, *jobs)
    assert_same(pipeline, "appended", "compared")
    pipeline.sql(inserted(f"(301, {text('FFFE42')}, {BAD})", f"(302, 'k302', {BAD})"))
    run(pipeline, *jobs)
    assert_same(pipeline, "appended", "compared")
    before = held(pipeline, pipeline.target("appended"))
    DeltaTable(pipeline.source).delete("id = 1")
    pipeline.sql(f"UPDATE SOURCE SET v = {CUT} WHERE id = 302")
    DeltaTable(pipeline.target("compared")).delete("id = 2")  # the position is void by it
    assert run(pipeline, *jobs) == [DataType.TAIL, DataType.DIFFERENCE, DataType.TAIL]
    assert_same(pipeline, "compared")
    assert held(pipeline, pipeline.target("appended")) == before + Counter({(302, b"k302", b"\xe2\x82"): 1})
    expected = Counter({row: times for row, times in held(pipeline, pipeline.source).items() if row[0] > 9})
    assert held(pipeline, pipeline.target("some")) == expected


@SPARK_IN_FULL
@pytest.mark.slow
def test_nested_texts_and_partitions_are_as_spark_has_them(pipeline: Pipeline) -> None:
    """A partition's value is a text of the log, in which such bytes are another character: Spark itself reads that."""
    kinds = "id BIGINT, p STRING, s STRUCT<a: STRING>, l ARRAY<STRING>, m MAP<STRING, STRING>"
    pipeline.create(f"CREATE TABLE SOURCE ({kinds}) USING delta PARTITIONED BY (p) {FEED_ON}")
    nested = "SELECT {id}, {value}, named_struct('a', {value}), array('x', {value}), map({value}, 'v', 'k', {value})"
    pipeline.sql("INSERT INTO SOURCE " + nested.format(id=1, value="'fine'"))
    jobs = (
        pipeline.job("by_id", key=("id",)),
        pipeline.job("by_part", key=("p",)),
        pipeline.job("parts", columns=("p",)),
    )
    run(pipeline, *jobs)
    pipeline.sql("INSERT INTO SOURCE " + nested.format(id=2, value=BAD))
    run(pipeline, *jobs)
    pipeline.sql(f"UPDATE SOURCE SET s = named_struct('a', {CUT}), p = {text('41FF')} WHERE id = 1")
    run(pipeline, *jobs)
    within = ("id", "p", "s.a", "l[0]", "l[1] l1", "CAST(map_keys(m)[0] AS BINARY) k", "m['k'] mk")
    assert_same(pipeline, "by_id", "by_part", columns=within)
    assert held(pipeline, pipeline.target("parts"), "p").keys() >= held(pipeline, pipeline.source, "p").keys()


@SPARK_IN_FULL
@pytest.mark.slow
def test_rows_that_share_such_a_key_are_dead_lettered(pipeline: Pipeline) -> None:
    pipeline.create(TABLE, ROWS, inserted(f"(101, {BAD}, 'a')", f"(102, {BAD}, {CUT})", f"(103, {LONE}, 'c')"))
    job = pipeline.job("copy", key=("k",))
    run(pipeline, job)
    letters = held(pipeline, dead_letter_uri(pipeline.target("copy")))
    assert letters == Counter({(101, b"\xff\xfeA", b"a"): 1, (102, b"\xff\xfeA", b"\xe2\x82"): 1})
    assert held(pipeline, pipeline.target("copy")) + letters == held(pipeline, pipeline.source)
    pipeline.sql(f"UPDATE SOURCE SET v = {BAD} WHERE id = 103")
    run(pipeline, job)
    pipeline.sql("DELETE FROM SOURCE WHERE id = 101")
    run(pipeline, job)
    assert_same(pipeline, "copy")
    assert not held(pipeline, dead_letter_uri(pipeline.target("copy")))


@SPARK_IN_FULL
@pytest.mark.slow
def test_what_is_built_by_ranges_and_kept_meanwhile_has_such_texts(pipeline: Pipeline) -> None:
    parts = [
        inserted(f"({number}, {text(f'FF{number}')}, 'x')", f"({number}0, 'k{number}', {CUT})")
        for number in (11, 12, 13)
    ]
    pipeline.create(TABLE, *parts)
    jobs, cluster = [pipeline.job("by_text", key=("k",)), pipeline.job("by_id", key=("id",))], Cluster(pipeline)
    driver = cluster.driver(*jobs)
    assert all(outcome.build is not None for outcome in driver.iterate())
    since = DeltaTable(pipeline.source).version()
    pipeline.sql(inserted(f"(21, {BAD}, {BAD})", f"(22, 'k22', {LONE})"))
    pipeline.sql(f"UPDATE SOURCE SET v = {BAD} WHERE id = 11")
    kept = cluster.nodes[0].build(batch(pipeline, driver.rows, since, since + 2), OpenGuard())
    assert kept.rows == 4
    for file in Path(pipeline.source, "_change_data").rglob("*.parquet"):
        file.unlink()
    driver.finish()
    for row in driver.rows:
        assert {outcome.data_type for outcome in tail(cluster, row, since + 2)} == {DataType.TAIL}
    assert_same(pipeline, "by_text", "by_id")


@SPARK_IN_FULL
@pytest.mark.slow
def test_a_feed_has_such_texts_as_they_are(pipeline: Pipeline) -> None:
    pipeline.create(TABLE, ROWS, inserted(*ODD_TEXTS))
    feed = Feed(pipeline, key=("k",))
    feed.finish()
    for change in (*CHANGES[2:4], "DELETE FROM SOURCE WHERE id IN (101, 104)", inserted(f"(105, {text('FE')}, {BAD})")):
        pipeline.sql(change)
        feed.finish()
    told = held(pipeline, feed.uri, "row.id", "row.k", "row.v", "operation IN ('insert', 'update_postimage') AS came")
    rows: Counter[tuple[Any, ...]] = Counter()
    for (*row, came), times in told.items():
        rows[tuple(row)] += times if came else -times
    assert +rows == held(pipeline, pipeline.source)
    assert not -rows
