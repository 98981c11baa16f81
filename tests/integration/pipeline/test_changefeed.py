"""A table's changes as a feed: whatever happens to the table, the job or its ranges, a replay of it is the table."""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.consumers.changefeed.changefeed_kind import ChangefeedKind
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.job.iteration import DataType
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import EngineError, ErrorCode, InvalidRequest
from tests.fakes.guards import ScriptedFailpoints
from tests.selection import in_full

from .conftest import BOTH_WAYS, SPARK_IN_FULL, Pipeline, rows
from .feeding import SHARDS, Feed

pytestmark = pytest.mark.spark


def fails() -> None:
    raise EngineError("told to fail")


@BOTH_WAYS
def test_every_change_is_reported_in_order_with_what_was_before(pipeline: Pipeline) -> None:
    feed = Feed(pipeline)
    first = feed.run()
    assert (first.data_type, first.seq, first.error_msg) == (DataType.SNAPSHOT, 1, "")
    feed.assert_equal()
    before = len(feed.changes())
    assert {(change["operation"], change["net"], change["version"]) for change in feed.changes()} == {
        ("insert", True, 0)
    }
    pipeline.upsert([1, 90], "one")
    pipeline.upsert([1], "two")
    pipeline.delete("id = 1")
    assert feed.run().data_type is DataType.TAIL
    later = [change for change in feed.changes() if not change["net"]]
    assert len(later) == len(feed.changes()) - before
    of_1 = [(each["operation"], each["row"]["v"], each["version"]) for each in later if each["row"]["id"] == 1]
    assert [(operation, version) for operation, _, version in of_1] == [
        ("update_preimage", 1),
        ("update_postimage", 1),
        ("update_preimage", 2),
        ("update_postimage", 2),
        ("delete", 3),
    ]
    assert [value for _, value, _ in of_1[1:]] == ["one", "one", "two", "two"]
    feed.assert_equal()


def test_what_single_changes_are_lost_of_is_published_as_net_changes(pipeline: Pipeline) -> None:
    feed = Feed(pipeline)
    feed.run()
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    pipeline.upsert([1, 2, 91], "one")
    pipeline.upsert([2], "two")
    pipeline.delete("id IN (3, 4)")
    before = len(feed.changes())
    outcome = feed.run()
    assert (outcome.data_type, outcome.error_msg) == (DataType.DIFFERENCE, "")
    told = feed.told()
    by_id: dict[int, list[tuple[str, Any]]] = {}
    for change in sorted(feed.changes(), key=lambda each: each["ulid"]):
        if change["version"] == outcome.watermark.version:
            by_id.setdefault(change["row"]["id"], []).append((change["operation"], change["row"]["v"]))
            assert change["net"]
    assert {number: [kind for kind, _ in each] for number, each in by_id.items()} == {
        1: ["update_preimage", "update_postimage"],
        2: ["update_preimage", "update_postimage"],
        3: ["delete"],
        4: ["delete"],
        91: ["insert"],
    }
    assert by_id[2][1][1] == "two"
    assert len(told) == before + 7
    feed.assert_equal()


@pytest.mark.further  # each time: lost single changes, published as net ones
def test_a_job_registered_again_on_its_feed_publishes_only_what_has_changed_meanwhile(pipeline: Pipeline) -> None:
    feed = Feed(pipeline)
    feed.run()
    before = len(feed.changes())
    late = feed.row()
    pipeline.delete("id = 7")
    assert feed.run(feed.registered(2), told=False).data_type is DataType.SNAPSHOT
    assert [(kind, number) for kind, number, _, _ in feed.told() if kind == "delete"] == [("delete", 7)]
    assert len(feed.changes()) == before + 1
    assert feed.run(late, told=False).error_code == ErrorCode.SUPERSEDED
    feed.assert_equal()


def test_rows_that_share_a_key_are_published_as_often_as_they_are_there(pipeline: Pipeline) -> None:
    pipeline.insert([1, 1, 2], "again")
    feed = Feed(pipeline)
    feed.run()
    feed.assert_equal()
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    pipeline.insert([1, 1], "again")
    pipeline.delete("id = 2 AND v = 'again'")
    assert feed.run().data_type is DataType.DIFFERENCE
    feed.assert_equal()


def test_a_filter_lets_rows_in_and_out(pipeline: Pipeline) -> None:
    feed = Feed(pipeline, where="v <> 'hidden'", columns=("id", "v"))
    feed.run()
    pipeline.upsert([1, 2], "hidden")
    pipeline.upsert([2], "back")
    feed.run()
    assert [(kind, number) for kind, number, _, net in feed.told() if not net and number == 1] == [
        ("update_preimage", 1)
    ]
    feed.assert_equal(lambda row: row["v"] != "hidden")


@pytest.mark.parametrize(
    "point",
    in_full(["commit.before", "feed.write", "feed.commit", "feed.committed", "report.before"], but=["feed.committed"]),
)
def test_what_fails_in_the_middle_is_done_again_and_reported_once(pipeline: Pipeline, point: str) -> None:
    feed = Feed(pipeline)
    assert not feed.run(runner=feed.runner(**{point.replace(".", "_"): fails})).ok
    assert feed.run().ok
    feed.assert_equal()
    pipeline.upsert(range(10), "one")
    assert not feed.run(runner=feed.runner(**{point.replace(".", "_"): fails}), told=False).ok
    assert feed.run().ok
    feed.assert_equal()


# --- writers that meet -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", in_full(["commit_before", "feed_write", "feed_commit"], but=["feed_commit"]))
def test_of_two_nodes_with_one_range_one_commits_and_the_other_goes_on_from_there(
    pipeline: Pipeline, point: str
) -> None:
    feed = Feed(pipeline)
    feed.run()
    pipeline.upsert(range(10), "one")

    def another() -> None:
        pipeline.upsert(range(5), "two")
        assert feed.run().ok

    assert feed.run(runner=feed.runner(**{point: another})).ok
    feed.finish()
    feed.assert_equal()
    assert sum(not change["net"] for change in feed.changes()) == 2 * (10 + 5)


def test_ranges_that_share_a_shard_do_not_write_over_each_other(pipeline: Pipeline) -> None:
    feed = Feed(pipeline, options={"shards": 1})
    feed.run()
    feed.reshard(merge=False)
    pipeline.upsert(range(20), "taken over")
    feed.finish()
    first, second = feed.ranges

    def another() -> None:
        assert feed.run(feed.row(second)).ok

    for point in ("commit_before", "feed_commit"):
        pipeline.upsert(range(20), point)
        assert feed.run(feed.row(first), feed.runner(**{point: another})).ok
    feed.finish()
    feed.assert_equal()


def test_what_a_filter_ends_with_hides_nothing_of_the_ranges_condition(pipeline: Pipeline) -> None:
    """Spark's comments go on over a line that ends with a backslash."""
    feed = Feed(pipeline, where="id > 2 -- \\")
    feed.run()
    for _ in range(2):
        feed.reshard(merge=False)
    pipeline.upsert(range(20), "changed")
    pipeline.insert(range(900, 903))
    feed.finish()
    assert len(feed.ranges) == SHARDS
    feed.assert_equal(lambda row: row["id"] > 2)


def test_a_watermark_does_not_go_back_where_no_row_was_reported(pipeline: Pipeline) -> None:
    """Then no shard has moved: the record alone says that another writer was there."""
    feed = Feed(pipeline, where="id < 0")
    feed.run()
    pipeline.upsert([1], "one")
    reached: list[int] = []

    def another() -> None:
        reached.append(feed.run().watermark.version)
        pipeline.upsert([1], "two")
        reached.append(feed.run().watermark.version)

    late = feed.run(runner=feed.runner(feed_commit=another), told=False)
    assert reached == [1, 2]
    assert (late.ok, late.watermark.version) == (True, 2)
    again = feed.run(told=False)
    assert (again.ok, again.from_version, again.watermark.version) == (True, 2, 2)


def test_columns_that_come_and_go_are_followed(pipeline: Pipeline) -> None:
    feed = Feed(pipeline)
    feed.run()
    wider = rows([101, 102], "wide").append_column("more", pa.array([1, 2], pa.int64()))
    write_deltalake(pipeline.source, wider, mode="append", schema_mode="merge")
    outcome = feed.run()
    assert outcome.ok, outcome.error_msg
    assert feed.columns[-1] == "more"
    told = {change["row"]["id"]: change["row"]["more"] for change in feed.changes()}
    assert (told[101], told[102], told[1]) == (1, 2, None)
    pipeline.delete("id = 101")
    assert feed.run().ok
    feed.assert_equal()


@pytest.mark.further  # each time: types in test_iterations.py, and columns that come above
@SPARK_IN_FULL
@pytest.mark.parametrize("from_the_start", [True, False])
def test_times_without_a_zone_are_kept(pipeline: Pipeline, from_the_start: bool) -> None:
    feed = Feed(pipeline)
    if not from_the_start:
        feed.run()
    pipeline.sql("ALTER TABLE SOURCE SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')")
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMNS (at TIMESTAMP_NTZ)")
    for value in ("1850-01-01 00:00:01.5", "2020-01-01 00:00:00"):
        pipeline.sql(f"UPDATE SOURCE SET at = timestamp_ntz'{value}' WHERE id < 3")
        outcome = feed.run()
        assert outcome.ok, outcome.error_msg
    feed.assert_equal()
    with pipeline.engine.session() as session:
        rows = session.read.format("delta").load(feed.uri).where("row.id = 1").orderBy("ulid").collect()
    assert [row["row"]["at"] for row in rows][-2:] == [datetime(1850, 1, 1, 0, 0, 1, 500_000), datetime(2020, 1, 1)]


@BOTH_WAYS
def test_a_column_of_another_type_stops_the_job_and_says_so(pipeline: Pipeline) -> None:
    feed = Feed(pipeline)
    feed.run()
    other = rows([1], "x").set_column(1, "v", pa.array([1], pa.int64()))
    write_deltalake(pipeline.source, other, mode="overwrite", schema_mode="overwrite")
    outcome = feed.run()
    assert outcome.error_code == ErrorCode.SCHEMA_CHANGED
    assert "column v is of type int64 now, the feed has" in outcome.error_msg


@pytest.mark.parametrize("steps", in_full([10, 14]))
@pytest.mark.parametrize("seed", in_full(range(3)))
def test_ranges_tail_into_their_shards_whatever_is_split_merged_and_late(
    pipeline: Pipeline, seed: int, steps: int
) -> None:
    chance = random.Random(seed)
    feed = Feed(pipeline)
    late: list[JobRow] = []
    for step in range(steps):
        pipeline.upsert(sorted({chance.randrange(80) for _ in range(5)}), f"v{step}")
        match chance.randrange(5):
            case 0 if len(feed.ranges) < 2 * SHARDS:
                late.append(feed.row(chance.choice(feed.ranges)))
                feed.reshard(merge=False)
            case 1 if len(feed.ranges) > 1:
                late.append(feed.row(chance.choice(feed.ranges)))
                feed.reshard(merge=True)
            case 2:
                point = chance.choice(["commit_before", "feed_commit", "feed_committed"])
                feed.run(feed.row(chance.choice(feed.ranges)), feed.runner(**{point: fails}), told=False)
            case 3 if late:
                feed.run(chance.choice(late), told=False)
            case _:
                feed.run(feed.row(chance.choice(feed.ranges)))
    feed.finish()
    feed.assert_equal()
    assert len({change["shard"] for change in feed.changes()}) == SHARDS


@pytest.mark.parametrize(
    ("consumer", "field", "words"),
    [
        ({"key": ()}, "key", "is missing"),
        ({"options": {"shards": 3}}, "options.shards", "is 3"),
        ({"options": {"shards": 128}}, "options.shards", "is 128"),
        ({"options": {"shard": 1}}, "options", "unknown names"),
        ({"columns": ("id", "none")}, "columns", "names none"),
    ],
)
def test_a_feed_that_cannot_be_is_refused(pipeline: Pipeline, consumer: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        Feed(pipeline, **consumer)
    assert refused.value.field == f"spec.iteration.consumer.{field}"
    assert not Path(pipeline.target("feed")).exists()


def test_a_target_that_is_another_thing_is_refused(pipeline: Pipeline) -> None:
    Feed(pipeline).run()
    for other in ({"options": {"shards": 8}}, {"key": ("id", "g")}):
        with pytest.raises(InvalidRequest, match="is a changefeed with") as refused:
            Feed(pipeline, **other)
        assert refused.value.code == ErrorCode.TARGET_UNUSABLE
    write_deltalake(pipeline.target("plain"), rows([1]))
    with pytest.raises(InvalidRequest, match="is a table, and no changefeed"):
        ChangefeedKind().validate(
            ConsumerSpec("changefeed", pipeline.target("plain"), key=("id",)),
            DeltaCatalog().describe(pipeline.source),
            DeltaCatalog(),
        )


def test_a_source_that_is_vacuumed_while_it_is_read_is_read_at_its_newest_version(pipeline: Pipeline) -> None:
    """Neither its changes are left nor, twice, the rows of the version that was to be compared."""
    feed = Feed(pipeline)
    feed.finish()
    pipeline.upsert([1, 2], "changed")

    def overtake() -> None:
        DeltaTable(pipeline.source).update(updates={"v": f"'version {DeltaTable(pipeline.source).version()}'"})
        DeltaTable(pipeline.source).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    def overtake_again() -> None:
        overtake()
        failpoints.once("snapshot.before", overtake)

    failpoints = ScriptedFailpoints()
    failpoints.once("read.before", overtake)
    failpoints.once("snapshot.before", overtake_again)
    outcome = feed.run(runner=pipeline.new_runner(failpoints, kinds=lambda name: ChangefeedKind()))
    assert (outcome.error_msg, outcome.data_type) == ("", DataType.DIFFERENCE)
    feed.assert_equal()
