"""The table of a changefeed: every commit takes the state that the one before it left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures
from deltalake.transaction import RemoveAction
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from iscp.changefeed.model.ulid import NO_ULIDS, UlidPlace, begin
from iscp.changefeed.table.feed_log import CHECKPOINT_COMMITS
from iscp.changefeed.table.feed_schema import create_feed_table
from iscp.changefeed.table.feed_table import (
    FAILPOINT_COMMIT,
    FAILPOINT_COMMITTED,
    LONG_S,
    SLEPT_S,
    FeedShardState,
    FeedTable,
)
from iscp.changefeed.table.file_writer import FeedRows
from iscp.changefeed.table.page_reader import READ_ROWS_MAX, PageReader
from iscp.model.values.errors import ConfigurationError, Conflict, InvalidRequest, OutcomeUnknown, StorageError
from iscp.system.threads import SystemClock
from tests.fakes.clock import FakeClock
from tests.fakes.feed_program import ROWS, SCHEMA, rows_of
from tests.integration.changefeed.table.feed_tables import DRAWN, INSERTS, append, bounds_and_paths, opened, read, told


def test_rows_come_in_the_order_of_their_ulids_with_all_that_was_appended(uri: str) -> None:
    feed = opened(uri)
    assert feed.state(0) == FeedShardState(0, NO_ULIDS)
    states = [append(feed, 0, "a", n) for n in range(3)]
    assert [state.seq for state in states] == [1, 2, 3]
    assert opened(uri).state(0) == states[-1] != opened(uri).state(1)
    rows = read(uri).rows
    assert told(rows) == [("a", n, number) for n in range(3) for number in range(ROWS)]
    ulids = rows["ulid"].to_pylist()
    assert ulids == sorted(ulids)
    assert set(rows["shard"].to_pylist()) == {0}
    assert set(rows["operation"].to_pylist()) == {"insert"}


def test_half_a_ulid_is_kept_whatever_its_sign(uri: str) -> None:
    for drawn in (b"\xff" * 10, b"\x00" * 10):
        feed = opened(uri)
        seen = feed.state(1)
        place = begin(seen.place, seen.place.time_ms + 1, drawn)
        feed.append(1, seen, place, FeedRows(rows_of("a", 0), INSERTS))
        assert opened(uri).state(1).place == place.after(ROWS)


def test_who_was_not_first_commits_nothing_and_leaves_no_file(uri: str) -> None:
    one, other = opened(uri), opened(uri)
    seen = other.state(0)
    append(one, 0, "one")
    with pytest.raises(Conflict, match="has had commit 1 since commit 0"):
        other.append(0, seen, begin(seen.place, 9_000, DRAWN), FeedRows(rows_of("other", 0), INSERTS))
    assert {who for who, _, _ in told(read(uri).rows)} == {"one"}
    assert len(list(Path(uri).rglob("*.parquet"))) == 1
    append(other, 0, "other")
    assert len(read(uri).rows) == 2 * ROWS


def test_other_shards_commits_between_cost_an_attempt_and_nothing_else(uri: str) -> None:
    one, other = opened(uri), opened(uri)
    seen = other.state(1)
    for n in range(5):
        append(one, 0, "one", n)
    other.append(1, seen, begin(seen.place, 9_000, DRAWN), FeedRows(rows_of("other", 0), INSERTS))
    assert Counter(who for who, _, _ in told(read(uri).rows)) == {"one": 5 * ROWS, "other": ROWS}


def test_a_clock_that_steps_back_does_not_put_a_transaction_before_another(uri: str) -> None:
    feed = opened(uri)
    for number, now_ms in enumerate([5_000, 4_000, 4_000, 6_000]):
        append(feed, 0, "a", number, now_ms)
    assert [number for _, number, _ in told(read(uri).rows)][::ROWS] == [0, 1, 2, 3]


def test_a_cursor_goes_on_from_the_last_row_of_each_shard(uri: str) -> None:
    feed = opened(uri)
    seen: list[tuple[str, int, int]] = []
    cursor: dict[int, str] = {}
    for number in range(4):
        append(feed, number % 2, "a", number)
        if number == 1:
            page = read(uri, cursor)
            seen, cursor = told(page.rows), dict(page.cursor)
            assert not len(read(uri, cursor).rows)
    while len(page := read(uri, cursor, limit=7).rows):
        assert len(page) <= 7
        seen += told(page)
        cursor = dict(read(uri, cursor, limit=7).cursor)
    assert Counter(seen) == Counter(told(read(uri).rows))


@pytest.mark.parametrize("limit", [0, READ_ROWS_MAX + 1])
def test_a_page_has_a_limit(uri: str, limit: int) -> None:
    with pytest.raises(InvalidRequest, match="a page has"):
        read(uri, limit=limit)


def test_files_that_lie_before_the_cursor_are_not_read(uri: str) -> None:
    feed = opened(uri)
    append(feed, 0, "old")
    cursor = dict(read(uri).cursor)
    for file in Path(uri).rglob("*.parquet"):
        file.unlink()
    append(feed, 0, "new", now_ms=2_000)
    assert {who for who, _, _ in told(read(uri, cursor).rows)} == {"new"}


@pytest.mark.parametrize(
    ("rows", "shard"),
    [
        (pa.table({"who": ["a"]}), 0),
        (rows_of("a", 0).cast(pa.schema([("who", pa.string()), ("append", pa.int32()), ("number", pa.int64())])), 0),
        (rows_of("a", 0), 2),
        (rows_of("a", 0), -1),
    ],
    ids=["columns", "types", "shard", "negative shard"],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(uri: str, rows: pa.Table, shard: int) -> None:
    feed, before = opened(uri), sorted(Path(uri).rglob("*"))
    with pytest.raises(InvalidRequest) as refused:
        feed.append(shard, FeedShardState(0, NO_ULIDS), UlidPlace(1 << 16, 0), FeedRows(rows, INSERTS[: len(rows)]))
    assert refused.value.remedy
    assert sorted(Path(uri).rglob("*")) == before


@pytest.mark.parametrize(
    ("rows", "operations"),
    [
        (rows_of("a", 0), INSERTS[1:]),
        (rows_of("a", 0), pa.array([None] * ROWS, pa.string())),
        (rows_of("a", 0), pa.array([1] * ROWS)),
        (rows_of("a", 0)[:0], INSERTS[:0]),
    ],
    ids=["too few", "null", "no text", "no rows"],
)
def test_what_every_reader_would_stumble_over_is_refused(uri: str, rows: pa.Table, operations: pa.Array) -> None:
    feed = opened(uri)
    with pytest.raises(InvalidRequest):
        feed.append(0, feed.state(0), UlidPlace(1 << 16, 0), FeedRows(rows, operations))
    assert feed.state(0).seq == 0


def test_a_column_that_takes_no_nulls_gets_none(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    create_feed_table(str(tmp_path / "feed"), schema, 1)
    feed = opened(str(tmp_path / "feed"))
    with pytest.raises(InvalidRequest, match="column a has nulls"):
        feed.append(0, feed.state(0), UlidPlace(1 << 16, 0), FeedRows(pa.table([[None]], schema=schema), INSERTS[:1]))


def test_files_that_overlap_after_a_compaction_are_read_in_order(uri: str) -> None:
    """The first and the third commit in one file, the second in another."""
    feed = opened(uri)
    for number in range(3):
        append(feed, 0, "a", number)
    files, folder = SubTreeFileSystem(uri, LocalFileSystem()), feed.description.folder(0)
    paths = [path for _, path in sorted(bounds_and_paths(uri))]
    merged = pa.concat_tables([pq.read_table(path, filesystem=files, partitioning=None) for path in paths[::2]])
    pq.write_table(merged, f"{folder}/merged.parquet", filesystem=files)
    texts = merged["ulid_text"].to_pylist()
    stats = {"numRecords": len(merged), "minValues": {"ulid_text": min(texts)}, "maxValues": {"ulid_text": max(texts)}}
    size = files.get_file_info(f"{folder}/merged.parquet").size
    common = {"partitionValues": feed.description.partition(0), "size": size, "dataChange": False}
    add = {"path": f"{folder}/merged.parquet", "modificationTime": 0, "stats": json.dumps(stats), **common}
    actions = [{"add": add}, *({"remove": {"path": path, "deletionTimestamp": 0, **common}} for path in paths[::2])]
    version = DeltaTable(uri).version() + 1
    Path(uri, "_delta_log", f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    seen: list[tuple[str, int, int]] = []
    cursor: dict[int, str] = {}
    while len((page := read(uri, cursor, limit=ROWS + 5)).rows):
        seen += told(page.rows)
        cursor = dict(page.cursor)
    assert seen == [("a", n, number) for n in range(3) for number in range(ROWS)]


def test_a_reader_that_goes_back_in_a_compacted_file_gets_all_again(uri: str) -> None:
    feed = opened(uri)
    for number in range(3):
        append(feed, 0, "a", number)
    DeltaTable(uri).optimize.compact()
    pages, table = PageReader(feed.uri), DeltaTable(uri)
    first = pages.page(table, {}, 5)
    second = pages.page(table, first.cursor, 5)
    assert told(pages.page(table, {}, 10).rows) == told(first.rows) + told(second.rows)
    assert told(pages.page(table, first.cursor, 5).rows) == told(second.rows)


class LosesAnAnswer:
    """Port Failpoints. Of the first commit the answer is lost, after others have followed it."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = [meanwhile]

    def reach(self, name: str) -> None:
        if name == FAILPOINT_COMMITTED and self._meanwhile:
            self._meanwhile.pop()()
            raise OSError("the answer is lost")


@pytest.mark.parametrize("follows", [False, True])
def test_a_commit_whose_answer_is_lost_is_found_and_not_made_twice(uri: str, follows: bool) -> None:
    other = opened(uri)
    meanwhile = (lambda: [append(other, shard, "other") for shard in (0, 1)]) if follows else (lambda: None)
    feed = FeedTable(uri, SystemClock(), LosesAnAnswer(meanwhile))
    assert append(feed, 0, "a").seq == 1
    assert append(feed, 0, "b").seq == 2 + follows
    others = {"other": 2 * ROWS} if follows else {}
    assert Counter(who for who, _, _ in told(read(uri).rows)) == {"a": ROWS, "b": ROWS, **others}


def test_a_commit_into_a_version_that_was_cleaned_away_does_not_count(uri: str) -> None:
    """The version is the last of those that were cleaned away: all later ones are there."""
    clock, other = FakeClock(), opened(uri)
    seen = other.state(0)
    log = Path(uri) / "_delta_log"

    class Sleeps:
        def reach(self, name: str) -> None:
            if name == FAILPOINT_COMMIT:
                for number in range(3):
                    append(other, 1, "other", number)
                DeltaTable(uri).create_checkpoint()
                for version in (0, 1):
                    (log / f"{version:020d}.json").unlink()
                clock.advance(LONG_S + 1)

    with pytest.raises(Conflict, match="was cleaned while a commit slept"):
        FeedTable(uri, clock, Sleeps()).append(0, seen, UlidPlace(1 << 16, 0), FeedRows(rows_of("a", 0), INSERTS))


def test_what_fails_after_a_commit_is_not_reported_as_if_nothing_were_there(uri: str) -> None:
    class Unmounts:
        def reach(self, name: str) -> None:
            if name == FAILPOINT_COMMITTED:
                Path(uri).rename(f"{uri}-away")

    feed = FeedTable(uri, SystemClock(), Unmounts())
    with pytest.raises(OutcomeUnknown):
        append(feed, 0, "a")
    assert len(read(f"{uri}-away").rows) == ROWS


@pytest.mark.parametrize(
    ("schema", "shards", "key"),
    [
        (pa.schema([("at", pa.timestamp("ns"))]), 1, ()),
        (pa.schema([("at", pa.struct([("in", pa.duration("us"))]))]), 1, ()),
        (pa.schema([("n", pa.uint8())]), 1, ()),
        (pa.schema([("s", pa.struct([pa.field("in", pa.int32(), nullable=False)]))]), 1, ()),
        (pa.schema([("l", pa.list_(pa.field("in", pa.int32(), nullable=False)))]), 1, ()),
        (pa.schema([("m", pa.map_(pa.string(), pa.field("in", pa.int32(), nullable=False)))]), 1, ()),
        (SCHEMA, True, ()),
        (SCHEMA, 1.5, ()),
        (SCHEMA, "2", ()),
        (SCHEMA, 1, ("who", "who")),
    ],
)
def test_a_feed_that_cannot_be_is_refused_before_anything_is_made(
    tmp_path: Path, schema: pa.Schema, shards: int, key: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidRequest):
        create_feed_table(str(tmp_path / "feed"), schema, shards, key)
    assert not (tmp_path / "feed").exists()


def test_the_directory_that_is_to_hold_a_feed_is_not_made(tmp_path: Path) -> None:
    """It may be a volume's that is not mounted."""
    with pytest.raises(StorageError, match="is not there"):
        create_feed_table(str(tmp_path / "volume" / "feed"), SCHEMA, 1)
    assert not (tmp_path / "volume").exists()


def test_a_feed_stays_where_it_was_opened(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(uri).parent)
    feed = opened("feed")
    monkeypatch.chdir("/")
    append(feed, 0, "a")
    assert len(read(uri).rows) == ROWS


AT = pa.field("at", pa.timestamp("us"))


def test_times_without_a_zone_need_a_feature_which_names_those_that_were_implied(tmp_path: Path) -> None:
    """Spark would not open a table that has columns without nulls, and lacks `invariants`."""
    create_feed_table(str(tmp_path / "feed"), pa.schema([AT]), 1)
    protocol = DeltaTable(tmp_path / "feed").protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ["timestampNtz"]
    assert sorted(protocol.writer_features or ()) == ["appendOnly", "invariants", "timestampNtz"]


@pytest.mark.parametrize("change_data_feed", [False, True])
def test_a_widened_feed_gets_the_feature_and_keeps_what_it_has(uri: str, change_data_feed: bool) -> None:
    DeltaTable(uri).alter.set_column_metadata("operation", {"comment": "what has been done"})
    if change_data_feed:
        DeltaTable(uri).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    feed, other = opened(uri), opened(uri)
    feed.widen(pa.schema([*SCHEMA, AT]))
    protocol = DeltaTable(uri).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    implied = {"appendOnly", "invariants"} | (
        {"changeDataFeed", "checkConstraints", "generatedColumns"} if change_data_feed else set()
    )
    assert set(protocol.writer_features or ()) == implied | {"timestampNtz"}
    other.widen(pa.schema([*SCHEMA, AT, ("then", pa.timestamp("us"))]))
    assert DeltaTable(uri).protocol() == protocol
    assert opened(uri).description.row.names == [*SCHEMA.names, "at", "then"]
    assert "what has been done" in DeltaTable(uri).schema().to_json()


def alter_deletion_vectors(table: DeltaTable) -> None:
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)


def alter_generated(table: DeltaTable) -> None:
    """As Spark does; deltalake refuses to."""
    log = Path(table.table_uri.removeprefix("file://"), "_delta_log")
    metadata = json.loads((log / f"{0:020d}.json").read_text().splitlines()[-1])
    schema = json.loads(metadata["metaData"]["schemaString"])
    schema["fields"][-1]["metadata"] = {"delta.generationExpression": "named_struct()"}
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    (log / f"{1:020d}.json").write_text(json.dumps(metadata))


def alter_constraints(table: DeltaTable) -> None:
    table.alter.add_constraint({"small": "shard < 100"})


@pytest.mark.parametrize(
    ("alter", "named"),
    [
        (alter_deletion_vectors, "deletionVectors"),
        (alter_generated, "delta.generationExpression"),
        (alter_constraints, "delta.constraints.small"),
    ],
)
def test_a_feed_that_was_given_what_its_commits_do_not_say_is_refused(
    uri: str, alter: Callable[[DeltaTable], None], named: str
) -> None:
    feed = opened(uri)
    alter(DeltaTable(uri))
    for use in (lambda: opened(uri), lambda: append(feed, 0, "a")):
        with pytest.raises(ConfigurationError, match=named) as refused:
            use()
        assert refused.value.remedy


def test_the_log_is_kept_short_by_who_makes_the_commit_after_which_it_is_time(uri: str) -> None:
    one, other = opened(uri), opened(uri)
    for number in range(CHECKPOINT_COMMITS):
        append((one, other)[number % 2], 0, "a", number)
    checkpoints = Path(uri, "_delta_log").glob("*.checkpoint.parquet")
    assert [int(file.name.split(".")[0]) for file in checkpoints] == [CHECKPOINT_COMMITS]
    assert len(read(uri).rows) == CHECKPOINT_COMMITS * ROWS
    assert opened(uri).state(0).seq == CHECKPOINT_COMMITS


def test_nothing_is_taken_from_a_table_that_is_append_only(uri: str) -> None:
    feed = opened(uri)
    append(feed, 0, "a")
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})
    gone = [RemoveAction(path, True, 0) for _, path in bounds_and_paths(uri)]
    append(feed, 0, "b")
    with feed.draft() as draft, pytest.raises(ConfigurationError, match=r"delta\.appendOnly"):
        feed.commit(draft, {}, remove=gone)


def test_a_commit_that_slept_for_too_long_is_given_up(uri: str) -> None:
    """Its file may have been vacuumed away by then."""
    clock = FakeClock()
    seen = opened(uri).state(0)

    class Sleeps:
        def reach(self, name: str) -> None:
            if name == "feed.commit":
                clock.advance(SLEPT_S + 1)

    with pytest.raises(Conflict, match="slept for too long"):
        FeedTable(uri, clock, Sleeps()).append(0, seen, UlidPlace(1 << 16, 0), FeedRows(rows_of("a", 0), INSERTS))
    assert opened(uri).state(0) == seen


def test_a_feed_is_made_once_and_another_table_is_none(uri: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is a table at"):
        create_feed_table(uri, SCHEMA, 1)
    for shards in (0, 1_025):
        with pytest.raises(InvalidRequest, match="shards"):
            create_feed_table(str(tmp_path / "other"), SCHEMA, shards)
    DeltaTable.create(str(tmp_path / "plain"), pa.schema([("a", pa.int64())]))
    with pytest.raises(ConfigurationError, match="is no changefeed"):
        opened(str(tmp_path / "plain"))
