"""A table's changes as a feed: whatever happens to the table, the job or its ranges, a replay of it is the table."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.adapters.delta.source.delta_catalog import DeltaCatalog
from iscp.consumers.changefeed.changefeed_kind import ChangefeedKind
from iscp.coordination.jobs.job_book import JobBook
from iscp.coordination.jobs.reshard import changes, rows_after
from iscp.core.errors import EngineError, ErrorCode, InvalidRequest
from iscp.core.ids import JobKey
from iscp.core.iteration import DataType, JobOutcome
from iscp.core.job_row import JobReport, JobRow, LogEntry
from iscp.core.spec import ConsumerSpec, JobSpec
from iscp.runtime.iteration.runner import Runner
from tests.fakes.guards import ScriptedFailpoints
from tests.selection import in_full

from .conftest import BOTH_WAYS, SPARK_IN_FULL, Pipeline, rows

pytestmark = pytest.mark.spark

SHARDS = 4


def fails() -> None:
    raise EngineError("told to fail")


class Feed:
    """A job that keeps a feed of the pipeline's source; its rows are those of a book, so that it can be split."""

    def __init__(self, pipeline: Pipeline, policies: dict[str, Any] | None = None, **consumer: Any) -> None:
        self.pipeline, self.number = pipeline, 1
        self.uri = pipeline.target("feed")
        self.spec = ConsumerSpec("changefeed", self.uri, **{"key": ("id",), "options": {"shards": SHARDS}, **consumer})
        source = DeltaCatalog().describe(pipeline.source)
        ChangefeedKind().validate(self.spec, source, DeltaCatalog())
        self.key = JobKey("default", source.table_id, "feed")
        self.job_spec = JobSpec(self.spec, **(policies or {}))
        self.book = JobBook([self.registered(1)])

    def registered(self, number: int) -> JobRow:
        return JobRow(self.key, f"{number:06}", self.job_spec.to_json(), self.pipeline.source, self.pipeline.source)

    def row(self, range_id: int = 1) -> JobRow:
        return next(row for row in self.book.rows_of(self.key) if row.key.range_id == range_id)

    @property
    def ranges(self) -> list[int]:
        return [row.key.range_id for row in self.book.rows_of(self.key)]

    def reshard(self, merge: bool, range_id: int = 0) -> None:
        self.number += 1
        done = changes(self.book.ranges(self.key.table_id), merge, range_id)
        entries = [LogEntry(row) for row in rows_after(self.book.rows_of(self.key), done, f"{self.number:06}", 1.0)]
        self.book.commit(entries)

    def runner(self, **failing: Callable[[], None]) -> Runner:
        failpoints = ScriptedFailpoints()
        for name, what in failing.items():
            failpoints.once(name.replace("_", "."), what)
        return self.pipeline.new_runner(failpoints, kinds=lambda name: ChangefeedKind())

    def run(self, row: JobRow | None = None, runner: Runner | None = None, told: bool = True) -> JobOutcome:
        (outcome,) = self.pipeline.run(row or self.row(), runner=runner or self.runner())
        if outcome.ok and told:
            self.book.apply([JobReport(outcome.row.key, outcome.row.job_id, outcome.watermark, outcome.seq)])
        return outcome

    def finish(self) -> None:
        newest = DeltaTable(self.pipeline.source).version()
        for range_id in self.ranges:
            for _ in range(20):
                outcome = self.run(self.row(range_id))
                assert outcome.ok, outcome.error_msg
                if outcome.watermark.version >= newest:
                    break

    def changes(self) -> list[dict[str, Any]]:
        table = DeltaTable(self.uri).to_pyarrow_table()
        return sorted(table.to_pylist(), key=lambda change: change["ulid"])

    def told(self) -> list[tuple[str, int, Any, bool]]:
        """Operation, id, v, and whether it is net."""
        return [(each["operation"], each["row"]["id"], each["row"]["v"], each["net"]) for each in self.changes()]

    def assert_equal(self, keeps: Callable[[dict[str, Any]], bool] = lambda row: True) -> None:
        """A replay takes away only what is there, and ends as the source."""
        held: Counter[tuple[Any, ...]] = Counter()
        shards: dict[int, set[int]] = {}
        seen: set[bytes] = set()
        for change in self.changes():
            row = tuple(sorted(change["row"].items()))
            held[row] += 1 if change["operation"] in ("insert", "update_postimage") else -1
            assert held[row] >= 0, change
            assert change["ulid"] not in seen
            assert change["key"] == {"id": change["row"]["id"]}
            seen.add(change["ulid"])
            shards.setdefault(change["row"]["id"], set()).add(change["shard"])
        assert all(len(each) == 1 for each in shards.values()), "all changes of a key are in one shard"
        source = DeltaTable(self.pipeline.source).to_pyarrow_table().to_pylist()
        names = sorted(name for name in self.columns if name in source[0])
        expected = Counter(tuple((name, row[name]) for name in names) for row in source if keeps(row))
        lacking = [name for name in self.columns if name not in names]
        got: Counter[tuple[Any, ...]] = Counter()
        for row, count in held.items():
            got[tuple(pair for pair in row if pair[0] not in lacking)] += count
        assert +got == expected
        self.assert_in_order()

    def assert_in_order(self) -> None:
        """What a commit has brought lies behind all that was there of its shard."""
        last: dict[str, str] = {}
        for path in sorted(Path(self.uri, "_delta_log").glob("*.json")):
            adds = [json.loads(line)["add"] for line in path.read_text().splitlines() if line.startswith('{"add"')]
            for add in sorted(adds, key=lambda add: str(json.loads(add["stats"])["minValues"])):
                shard, stats = add["partitionValues"]["shard"], json.loads(add["stats"])
                assert last.get(shard, "") < stats["minValues"]["ulid_text"], path
                last[shard] = stats["maxValues"]["ulid_text"]

    @property
    def columns(self) -> list[str]:
        fields = DeltaTable(self.uri).schema().to_arrow()
        return [field.name for field in pa.schema(fields).field("row").type]


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
