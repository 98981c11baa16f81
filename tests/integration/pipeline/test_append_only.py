"""An append-only target keeps every row that a commit has written, whatever becomes of its source and its columns."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import ErrorCode
from iscp.model.values.watermark import Watermark

from .conftest import DIRECTLY, SPARK_IN_FULL, Pipeline, rows

pytestmark = pytest.mark.spark

FEED = "ALTER TABLE SOURCE SET TBLPROPERTIES (delta.enableChangeDataFeed = {})"


def run(pipeline: Pipeline, job: JobRow, expected: DataType | None = None) -> None:
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, outcome.error_msg) == (0, "")
    assert expected is None or outcome.data_type is expected


def held(pipeline: Pipeline, *columns: str) -> Counter[tuple[Any, ...]]:
    with pipeline.engine.session() as session:
        found = session.read.format("delta").load(pipeline.target("log")).selectExpr(*columns).collect()
    return Counter(map(tuple, found))


def shrunk_to(pipeline: Pipeline, *ids: int) -> None:
    pipeline.delete(f"id NOT IN ({', '.join(map(str, ids))})")


@pytest.mark.further  # each time: test_schema_histories.py
@SPARK_IN_FULL
def test_a_new_column_leaves_the_archive_as_it_is(pipeline: Pipeline) -> None:
    job = pipeline.job("log")
    pipeline.build(job)
    shrunk_to(pipeline, 1, 2)
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMN w STRING")
    pipeline.sql("INSERT INTO SOURCE VALUES (100, 'x', 1, 'there')")
    run(pipeline, job)
    expected = Counter({(id_, None): 1 for id_ in range(50)} | {(100, "there"): 1})
    assert held(pipeline, "id", "w") == expected
    pipeline.sql("INSERT INTO SOURCE VALUES (101, 'x', 1, 'tail')")
    run(pipeline, job, DataType.TAIL)
    assert held(pipeline, "id", "w") == expected + Counter([(101, "tail")])


@pytest.mark.further  # each time: test_schema_histories.py
@SPARK_IN_FULL
def test_a_column_that_the_source_drops_stays_in_the_archive(pipeline: Pipeline) -> None:
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    job = pipeline.job("log")
    run(pipeline, job)
    shrunk_to(pipeline, 1)
    pipeline.sql("ALTER TABLE SOURCE DROP COLUMN v")
    run(pipeline, job)
    pipeline.sql("INSERT INTO SOURCE (id, g) VALUES (100, 1)")
    run(pipeline, job, DataType.TAIL)
    assert held(pipeline, "id", "v") == Counter({(id_, "x"): 1 for id_ in range(50)} | {(100, None): 1})


@DIRECTLY
def test_an_archive_without_a_column_goes_on_without_spark(pipeline: Pipeline) -> None:
    """The source is replaced by one that has neither the column nor mapped names."""
    job = pipeline.job("log")
    pipeline.build(job)
    write_deltalake(pipeline.source, rows([100]).select(["id", "g"]), mode="overwrite", schema_mode="overwrite")
    run(pipeline, job)
    write_deltalake(pipeline.source, rows([101]).select(["id", "g"]), mode="append")
    run(pipeline, job, DataType.TAIL)
    assert "delta-rs" in json.dumps(DeltaTable(pipeline.target("log")).history(1))
    assert held(pipeline, "id", "v") == Counter({(id_, "x"): 1 for id_ in range(50)} | {(100, None): 1, (101, None): 1})


@pytest.mark.further  # each time: test_schema_histories.py
@SPARK_IN_FULL
def test_types_become_as_wide_as_old_and_new_rows_need(pipeline: Pipeline) -> None:
    pipeline.create(
        "CREATE TABLE SOURCE (id BIGINT, n INT, s STRUCT<x:SMALLINT,y:STRING>, m MAP<STRING,ARRAY<INT>>) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed=true, delta.enableTypeWidening=true)",
        "INSERT INTO SOURCE VALUES (1, 1, named_struct('x', 1S, 'y', 'a'), map('k', array(1, null)))",
    )
    job = pipeline.job("log")
    pipeline.build(job)
    pipeline.sql("DELETE FROM SOURCE")
    for change in ("COLUMN n TYPE BIGINT", "COLUMN s.x TYPE INT", "COLUMN m.value.element TYPE BIGINT"):
        pipeline.sql(f"ALTER TABLE SOURCE ALTER {change}")
    pipeline.sql(
        "INSERT INTO SOURCE VALUES (2, 5000000000, named_struct('x', 70000, 'y', 'b'), map('k', array(6000000000)))"
    )
    run(pipeline, job)
    assert held(pipeline, "id", "n", "s.x", "to_json(m)") == Counter(
        [(1, 1, 1, '{"k":[1,null]}'), (2, 5000000000, 70000, '{"k":[6000000000]}')]
    )
    run(pipeline, job)
    pipeline.sql("INSERT INTO SOURCE VALUES (3, 1, null, null)")
    run(pipeline, job, DataType.TAIL)
    pipeline.sql("RESTORE TABLE SOURCE TO VERSION AS OF 1")
    run(pipeline, job)
    assert held(pipeline, "id") == Counter([(1,), (2,), (3,)])


@SPARK_IN_FULL
def test_types_of_which_none_holds_both_stop_the_job_and_keep_the_archive(pipeline: Pipeline) -> None:
    job = pipeline.job("log")
    pipeline.build(job)
    before = held(pipeline, "id", "g")
    other = rows(range(3)).set_column(2, "g", [["text"] * 3])
    write_deltalake(pipeline.source, other, mode="overwrite", schema_mode="overwrite")
    (outcome,) = pipeline.run(job)
    assert outcome.error_code == ErrorCode.SCHEMA_CHANGED
    assert "the column g is string now and bigint in the target" in outcome.error_msg
    assert "job resync" in outcome.error_msg
    assert held(pipeline, "id", "g") == before


UNEQUAL = {
    "MAP<STRING,INT>": ("map('a', 1, 'b', 2)", "map('a', 1)"),
    "VARIANT": ("parse_json('{\"a\": 1}')", 'parse_json(\'{"a": "1"}\')'),
    "TIMESTAMP_NTZ": ("timestamp_ntz'2020-01-01 00:00:00'", "timestamp_ntz'2020-01-02 00:00:00'"),
    "BINARY": ("X'00'", "X'0000'"),
    "ARRAY<STRUCT<x:MAP<INT,INT>>>": ("array(named_struct('x', map(1, 1)))", "array(named_struct('x', map(1, 2)))"),
}
"""Two values of each type."""


@pytest.mark.further  # each time: test_schema_histories.py
def test_a_difference_adds_what_is_missing_whatever_the_types(pipeline: Pipeline) -> None:
    """Rows of which each differs from what is there in one column alone, and some that are there already."""
    first = [one for one, _ in UNEQUAL.values()]
    others = [[*first[:place], other, *first[place + 1 :]] for place, (_, other) in enumerate(UNEQUAL.values())]
    shutil.rmtree(pipeline.source)
    columns = ", ".join(f"w{place} {kind}" for place, kind in enumerate(UNEQUAL))
    pipeline.sql(f"CREATE TABLE SOURCE (id BIGINT, {columns}) USING delta")
    pipeline.sql(f"INSERT INTO SOURCE SELECT 1, {', '.join(first)}")
    job = pipeline.job("log")
    run(pipeline, job)
    pipeline.sql("DELETE FROM SOURCE")
    unequal = " UNION ALL ".join(f"SELECT {2 + place}, {', '.join(other)}" for place, other in enumerate(others))
    pipeline.sql(f"INSERT INTO SOURCE SELECT 1, {', '.join(first)} FROM range(2) UNION ALL {unequal}")
    run(pipeline, job, DataType.DIFFERENCE)
    expected = Counter({(1,): 2} | {(2 + place,): 1 for place in range(len(UNEQUAL))})
    assert held(pipeline, "id") == expected
    run(pipeline, job)
    pipeline.sql("DELETE FROM SOURCE")
    run(pipeline, job)
    assert held(pipeline, "id") == expected


@pytest.mark.further  # each time: types in test_iterations.py
def test_variants_that_print_alike_are_not_equal(pipeline: Pipeline) -> None:
    shutil.rmtree(pipeline.source)
    pipeline.sql("CREATE TABLE SOURCE (w VARIANT) USING delta")
    pipeline.sql("INSERT INTO SOURCE SELECT to_variant_object(array(date'2020-01-01'))")
    job = pipeline.job("log")
    run(pipeline, job)
    pipeline.sql("DELETE FROM SOURCE")
    pipeline.sql("INSERT INTO SOURCE SELECT parse_json('[\"2020-01-01\"]')")
    run(pipeline, job)
    assert sum(held(pipeline, "to_json(w)").values()) == 2


@pytest.mark.further  # each time: updated rows of an archive in test_iterations.py
@pytest.mark.parametrize(
    ("feed", "pipeline"),
    [("true", "direct"), ("true", "spark"), ("false", "direct")],
    indirect=["pipeline"],
)
def test_updated_rows_are_new_rows_with_the_feed_on_and_off(pipeline: Pipeline, feed: str) -> None:
    """Without the feed they are found by comparisons alone, which are Spark's whatever the size."""
    pipeline.sql(FEED.format(feed))
    job, some = pipeline.job("log", where="g <> 3"), pipeline.job("some", columns=("id", "g"))
    pipeline.run(job, some)
    before = held(pipeline, "id", "v")
    pipeline.sql("UPDATE SOURCE SET v = 'new' WHERE id = 1")
    run(pipeline, job)
    pipeline.sql("UPDATE SOURCE SET v = v WHERE id = 2")  # as it was: nothing new
    run(pipeline, job)
    pipeline.sql("UPDATE SOURCE SET g = 4 WHERE id = 3")  # it had been refused by the filter
    run(pipeline, job)
    pipeline.sql("UPDATE SOURCE SET g = 3 WHERE id = 4")
    run(pipeline, job)
    pipeline.sql("INSERT OVERWRITE SOURCE SELECT * FROM SOURCE WHERE id < 40")
    pipeline.insert([1, 1], "twice")
    run(pipeline, job)
    expected = before + Counter({(1, "new"): 1, (3, "x"): 1, (1, "twice"): 2})
    assert held(pipeline, "id", "v") == expected
    # A change of a column that it does not keep is none to a job.
    assert [outcome.error_msg for outcome in pipeline.run(some)] == [""]
    kept = DeltaTable(pipeline.target("some")).to_pyarrow_table().to_pylist()
    kept_before = Counter((id_, id_ % 7) for id_ in range(50))
    assert Counter((row["id"], row["g"]) for row in kept) == kept_before + Counter({(3, 4): 1, (4, 3): 1, (1, 1): 2})


@pytest.mark.further  # each time: test_targets.py, and a resync below
def test_what_others_do_to_an_archive_takes_nothing_from_it(pipeline: Pipeline) -> None:
    job = pipeline.job("log")
    pipeline.build(job)
    shrunk_to(pipeline, 1, 2)
    run(pipeline, job)
    target = DeltaTable(pipeline.target("log"))
    target.delete("id = 1")
    write_deltalake(pipeline.target("log"), rows([900], "theirs"), mode="append")
    pipeline.insert([100])
    run(pipeline, job, DataType.DIFFERENCE)
    assert held(pipeline, "id") == Counter([(id_,) for id_ in (*range(50), 100, 900)])


@pytest.mark.further  # each time: a cleaned log in test_targets.py
def test_an_archive_whose_own_commits_were_cleaned_away_is_not_rebuilt(pipeline: Pipeline) -> None:
    job = pipeline.job("log")
    pipeline.build(job)
    shrunk_to(pipeline, 1, 2)
    pipeline.insert([100])
    run(pipeline, job)
    target = DeltaTable(pipeline.target("log"))
    target.alter.set_table_properties({"touched": "true"}, raise_if_not_exists=False)
    target.create_checkpoint()
    for version in range(target.version()):
        os.remove(f"{pipeline.target('log')}/_delta_log/{version:020d}.json")
    pipeline.insert([101])
    # The job log lags behind: it knows of the build alone.
    behind = job._replace(seq=1, watermark=Watermark(0, 1.0))
    (outcome,) = pipeline.run(behind, runner=pipeline.new_runner(pipeline.failpoints))
    assert outcome.error_msg == ""
    assert held(pipeline, "id") == Counter([(id_,) for id_ in (*range(50), 100, 101)])


def test_only_a_resync_rebuilds_an_archive(pipeline: Pipeline) -> None:
    job = pipeline.job("log")
    pipeline.build(job)
    shrunk_to(pipeline, 1, 2)
    run(pipeline, job)
    run(pipeline, job._replace(job_id="log-2"), DataType.SNAPSHOT)
    assert held(pipeline, "id") == Counter([(1,), (2,)])
