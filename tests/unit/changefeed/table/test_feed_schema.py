"""A feed's table says itself what the feed is; one that does not, or that others have changed, is no feed.

Commits of a feed as other programs read them, and features that are added to a protocol without losing any.

A feed is given the columns and fields that it lacks; of what it has nothing becomes another type.

The ulids computed for many rows at once equal those computed one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import ProtocolVersions
from deltalake.transaction import AddAction, RemoveAction
from hypothesis import given
from hypothesis import strategies as st

from iscp.changefeed.model.ulid import DRAWN_BYTES, NO_ULIDS, TIME_MS_MAX, UlidPlace, begin, ulid_text
from iscp.changefeed.table.feed_schema import (
    FORMAT,
    FORMAT_PROPERTY,
    ROWS_MAX,
    TIMES_WITHOUT_ZONE,
    FeedDescription,
    commit,
    create_feed_table,
    described,
    first_commit,
    lost_names,
    ulid_columns,
    widened,
    with_feature,
)
from iscp.delta.log.commits import COMMIT_ID
from iscp.model.values.errors import ConfigurationError, ErrorCode, InvalidRequest, PermanentError
from tests.fakes.commit_files import commit_path
from tests.fakes.tracing import traceparent

ROWS = {
    "numbers": pa.schema([("a", pa.int8()), ("b", pa.int64()), ("c", pa.float32()), ("d", pa.decimal128(38, 10))]),
    "a name of capitals": pa.schema([("Id", pa.int32()), ("ключ", pa.string())]),
    "times": pa.schema([("t", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us")), ("d", pa.date32())]),
    "nested": pa.schema(
        [
            ("s", pa.struct([("x", pa.int64()), ("l", pa.list_(pa.string()))])),
            ("m", pa.map_(pa.string(), pa.struct([("y", pa.binary())]))),
        ]
    ),
    "no nulls": pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("b", pa.bool_())]),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_feed_is_described_by_its_table(tmp_path: Path, name: str) -> None:
    row, uri = ROWS[name], str(tmp_path / "feed")
    key = (row.names[1], row.names[0]) if len(row) > 1 and name != "nested" else ()
    create_feed_table(uri, row, 8, key)
    found = described(DeltaTable(uri))
    assert (found.shards, found.key, found.row.names) == (8, key, row.names)
    assert [field.nullable for field in found.row] == [field.nullable for field in row]
    assert found.schema.equals(FeedDescription(found.feed_id, 8, row, key).schema)
    assert ("key" in found.schema.names) is bool(key)
    assert [*found.file_schema.names] == [each for each in found.schema.names if each not in ("feed", "shard")]


def test_each_feed_has_an_id_of_its_own_by_which_its_files_lie(tmp_path: Path) -> None:
    feeds = []
    for name in ("a", "b"):
        create_feed_table(str(tmp_path / name), ROWS["numbers"], 2)
        feeds.append(described(DeltaTable(tmp_path / name)))
    assert feeds[0].feed_id != feeds[1].feed_id
    assert feeds[0].partition(1) == {"feed": feeds[0].feed_id, "shard": "1"}
    assert feeds[0].folder(1) == f"feed={feeds[0].feed_id}/shard=1"
    feeds[0].refuse_shard(1)
    for shard in (-1, 2):
        with pytest.raises(InvalidRequest, match=f"has no shard {shard}"):
            feeds[0].refuse_shard(shard)


def change(uri: str, **changed: Any) -> None:
    """Write a commit after the first one, with the table's metadata or protocol changed."""
    actions = [json.loads(line) for line in commit_path(uri, 0).read_text().splitlines()]
    about = {kind: body for action in actions for kind, body in action.items()}
    if "properties" in changed:
        about["metaData"]["configuration"].update(changed["properties"])
    else:
        about["protocol"] = changed["protocol"]
    lines = ({kind: about[kind]} for kind in ("commitInfo", "protocol", "metaData"))
    commit_path(uri, 1).write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"properties": {FORMAT_PROPERTY: str(FORMAT + 1)}}, f"is of format {FORMAT + 1}, this iscp knows {FORMAT}"),
        ({"properties": {"delta.setTransactionRetentionDuration": "interval 7 days"}}, "expires transaction ids"),
        ({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, "do not know: column mapping"),
        (
            {
                "protocol": {
                    "minReaderVersion": 3,
                    "minWriterVersion": 7,
                    "readerFeatures": ["deletionVectors", "timestampNtz"],
                    "writerFeatures": ["deletionVectors", "timestampNtz"],
                }
            },
            "do not know: deletionVectors",
        ),
    ],
)
def test_a_feed_that_others_have_changed_is_refused(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    uri = str(tmp_path / "feed")
    create_feed_table(uri, ROWS["numbers"], 2)
    change(uri, **changed)
    with pytest.raises(ConfigurationError, match=why):
        described(DeltaTable(uri))


def test_a_table_that_is_no_feed_is_refused_and_none_takes_its_place(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"a": [1]}))
    with pytest.raises(ConfigurationError, match="is no changefeed"):
        described(DeltaTable(tmp_path / "t"))
    before = sorted((tmp_path / "t").rglob("*"))
    with pytest.raises(InvalidRequest, match="there is a table"):
        create_feed_table(str(tmp_path / "t"), ROWS["numbers"], 2)
    assert sorted((tmp_path / "t").rglob("*")) == before


def test_a_table_whose_first_commits_were_cleaned_away_is_there(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for number in range(2):
        write_deltalake(uri, pa.table({"a": [number]}), mode="append")
    DeltaTable(uri).create_checkpoint()
    commit_path(uri, 0).unlink()
    with pytest.raises(InvalidRequest, match="there is a table"):
        create_feed_table(uri, ROWS["numbers"], 2)
    assert not commit_path(uri, 0).exists()


ADD = AddAction("f/a b.parquet", 7, {"shard": "0"}, 5, True, '{"numRecords":1}')
REMOVE = RemoveAction("f/old.parquet", True, 9, 6, {"shard": None})


def actions(content: bytes) -> list[dict[str, Any]]:
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def test_a_commit_of_rows_is_an_append_that_nothing_conflicts_with() -> None:
    about, first, second, add = actions(commit([ADD], {"one": 3, "two": 2**62}, "id", 11))
    assert about["commitInfo"].items() >= {"operation": "WRITE", "isBlindAppend": True, COMMIT_ID: "id"}.items()
    assert first == {"txn": {"appId": "one", "version": 3, "lastUpdated": 11}}
    assert second["txn"]["version"] == 2**62
    assert add["add"] == {
        "path": "f/a b.parquet",
        "partitionValues": {"shard": "0"},
        "size": 7,
        "dataChange": True,
        "modificationTime": 5,
        "stats": '{"numRecords":1}',
    }


def test_a_commit_that_takes_files_away_is_no_append() -> None:
    about, remove, own = actions(commit([REMOVE, {"domainMetadata": {"domain": "d"}}], {}, "id", 11))
    assert about["commitInfo"].items() >= {"operation": "DELETE", "isBlindAppend": False}.items()
    assert remove["remove"].items() >= {"path": "f/old.parquet", "deletionTimestamp": 9, "dataChange": True}.items()
    assert remove["remove"].items() >= {"partitionValues": {"shard": None}, "extendedFileMetadata": True}.items()
    assert own == {"domainMetadata": {"domain": "d"}}


@pytest.mark.parametrize("without_zone", [True, False])
def test_a_first_commit_has_the_protocol_that_its_columns_need(without_zone: bool) -> None:
    _, protocol, metadata = actions(first_commit({"metaData": {"id": "m"}}, without_zone, 11))
    assert metadata == {"metaData": {"id": "m"}}
    found = protocol["protocol"]
    assert (TIMES_WITHOUT_ZONE in found.get("readerFeatures", ())) is without_zone
    assert (found["minReaderVersion"], found["minWriterVersion"]) == ((3, 7) if without_zone else (1, 2))


@pytest.mark.parametrize(
    ("writer", "implied"),
    [
        (1, set()),
        (2, {"appendOnly", "invariants"}),
        (3, {"appendOnly", "invariants", "checkConstraints"}),
        (4, {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}),
        (7, set()),
    ],
)
def test_a_feature_is_added_to_all_that_the_protocol_had(writer: int, implied: set[str]) -> None:
    named = ("v2Checkpoint",) if writer == 7 else None
    now = ProtocolVersions(3 if named else 1, writer, [*named] if named else None, [*named] if named else None)
    found = with_feature(now, "vacuumProtocolCheck")["protocol"]
    assert found["readerFeatures"] == sorted({"vacuumProtocolCheck", *(named or ())})
    assert found["writerFeatures"] == sorted({"vacuumProtocolCheck", *(named or ()), *implied})
    assert (found["minReaderVersion"], found["minWriterVersion"]) == (3, 7)


def test_a_commit_says_its_trace_where_somebody_records_it_and_others_are_as_before() -> None:
    plain, recorded, unrecorded = (
        actions(commit([ADD], {}, "id", 11, trace))[0]["commitInfo"]
        for trace in ("", traceparent(7), traceparent(7, sampled=False))
    )
    assert recorded == {**plain, "userMetadata": json.dumps({"traceparent": traceparent(7)})}
    assert plain == unrecorded


Nest = Callable[[pa.DataType], pa.DataType]

NESTS: dict[str, Nest] = {
    "struct": lambda kind: kind,
    "struct within one": lambda kind: pa.struct([("inner", kind)]),
    "list": lambda kind: pa.list_(kind),
    "map": lambda kind: pa.map_(pa.string(), kind),
    "map's key": lambda kind: pa.map_(kind, pa.string()),
    "deep": lambda kind: pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(kind)))])),
}
PATHS = {
    "struct": "c.y",
    "struct within one": "c.inner.y",
    "list": "c.element.y",
    "map": "c.value.y",
    "map's key": "c.key.y",
    "deep": "c.element.m.value.element.y",
}


def struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct([*fields.items()])


def row(kind: pa.DataType, *more: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([("id", pa.int64()), ("c", kind), *more])


@pytest.mark.parametrize("nest", [*NESTS])
def test_fields_that_come_are_taken_behind_those_that_are_there(nest: str) -> None:
    within = NESTS[nest]
    held = row(within(struct(x=pa.int64(), y=pa.string())))
    given = row(within(struct(z=struct(u=pa.int32()), y=pa.string(), x=pa.int32())), ("d", pa.int8()))
    wider = widened(held, given, ["id"])
    assert wider == row(within(struct(x=pa.int64(), y=pa.string(), z=struct(u=pa.int32()))), ("d", pa.int8()))
    assert widened(wider, given, ["id"]) == wider
    assert widened(wider, held, ["id"]) == wider
    assert lost_names(held, given) == ()


@pytest.mark.parametrize("nest", [*NESTS])
def test_fields_that_go_are_named_and_stay_in_the_feed(nest: str) -> None:
    within = NESTS[nest]
    held, given = row(within(struct(x=pa.int64(), y=pa.string()))), row(within(struct(x=pa.int64())))
    assert lost_names(held, given) == (PATHS[nest],)
    assert widened(held, given, ["id"]) == held
    assert lost_names(held, pa.schema([held.field("id")])) == ("c",)


@pytest.mark.parametrize("nest", [*NESTS])
@pytest.mark.parametrize(
    "other",
    [struct(x=pa.string()), struct(X=pa.int64()), struct(x=pa.list_(pa.int64())), struct(x=pa.int64(), Y=pa.string())],
    ids=["another type", "another case", "a list", "another case of what stays"],
)
def test_what_is_another_type_is_refused(nest: str, other: pa.DataType) -> None:
    within = NESTS[nest]
    held = row(within(struct(x=pa.int64(), y=pa.string())))
    with pytest.raises(PermanentError, match=r"column c is of type .* now, the feed has") as refused:
        widened(held, row(within(other)), ["id"])
    assert refused.value.code is ErrorCode.SCHEMA_CHANGED
    assert refused.value.remedy


def test_a_key_has_no_more_fields_as_its_rows_would_be_other_ones() -> None:
    held, given = row(struct(x=pa.int64())), row(struct(x=pa.int64(), y=pa.int64()))
    with pytest.raises(PermanentError, match="column c is of type"):
        widened(held, given, ["c"])
    assert widened(held, row(struct(x=pa.int32())), ["c"]) == held


DRAWN = st.binary(min_size=DRAWN_BYTES, max_size=DRAWN_BYTES)


@given(st.integers(1, TIME_MS_MAX), DRAWN, st.integers(0, 2**36), st.integers(0, 100))
def test_they_are_those_of_one_by_one(now_ms: int, drawn: bytes, before: int, count: int) -> None:
    place = begin(NO_ULIDS, now_ms, drawn).after(before)
    ulids, texts = ulid_columns(place, count)
    for column in (ulids, texts):
        column.validate(full=True)
    assert ulids.to_pylist() == [place.ulid(n) for n in range(count)]
    assert texts.to_pylist() == [ulid_text(place.ulid(n)) for n in range(count)]


def test_many_are_made_in_chunks() -> None:
    place = begin(NO_ULIDS, 2**40, bytes(range(200, 210)))
    ulids, texts = ulid_columns(place, 50_000)
    assert texts.to_pylist() == list(map(ulid_text, ulids.to_pylist()))
    assert ulids[49_999].as_py() == place.ulid(49_999)


@pytest.mark.parametrize("high", [1 << 16, (1 << 16) + 1])
@pytest.mark.parametrize("low", [0x0FFF_FFFF_FFFF_FFFF - 5, -1 - (1 << 62) - 20, (1 << 20) - 10, (1 << 50) - 1])
def test_every_carry_is_in_the_text(high: int, low: int) -> None:
    place = UlidPlace(high, low)
    assert ulid_columns(place, 20)[1].to_pylist() == [ulid_text(place.ulid(n)) for n in range(20)]


def test_more_than_an_array_holds_is_refused_before_anything_is_made() -> None:
    with pytest.raises(InvalidRequest, match="more than one append takes"):
        ulid_columns(begin(NO_ULIDS, 1, b"\x00" * DRAWN_BYTES), ROWS_MAX + 1)
