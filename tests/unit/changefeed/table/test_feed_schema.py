"""A feed's table says itself what the feed is; one that does not, or that others have changed, is no feed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.changefeed.table.feed_schema import (
    FORMAT,
    FORMAT_PROPERTY,
    FeedDescription,
    create_feed_table,
    described,
)
from iscp.core.values.errors import ConfigurationError, InvalidRequest
from tests.fakes.commit_files import commit_path

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
