"""Texts whose bytes are no UTF-8: deltalake neither gets them nor meets them, and no statistics are made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import types as T

from iscp.delta.rows.net_changes import inserts_of
from iscp.delta.rows.row_keys import TableKeys
from iscp.delta.sink.bag_write import VECTORS, BagWriter
from iscp.delta.sink.target_write import DirectWriter, create_target, is_described
from iscp.model.sql.sql_names import WEIGHT
from iscp.model.values.watermark import Watermark
from iscp.ports.sink import CommitTag
from iscp.ports.source import Rows
from tests.fakes.text_bytes import texts

BAD, FAR = b"\xff\xfeA", "\U0001f600".encode()
"""The second one is UTF-8, and in bytes beyond the character that statistics have in the place of the first."""


def properties(seq: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction("iscp", seq)], max_commit_retries=0)


def rows(*values: tuple[int, bytes, str]) -> pa.Table:
    ids, keys, ops = zip(*values, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "k": texts(*keys), "_iscp_op": pa.array(ops)})


def put(uri: str, table: pa.Table, ends: Mapping[str, Mapping[str, object]] | None = None) -> int:
    """A commit of somebody who takes such texts, with these statistics; the new version."""
    version = DeltaTable(uri).version() + 1
    path = Path(uri, f"part-{version}.parquet")
    pq.write_table(table, path)
    stats = {"numRecords": len(table), "nullCount": dict.fromkeys(table.column_names, 0), **(ends or {})}
    add = {"path": path.name, "partitionValues": {}, "size": path.stat().st_size, "modificationTime": 0}
    action = {"add": {**add, "dataChange": True, "stats": json.dumps(stats)}}
    Path(uri, "_delta_log", f"{version:020d}.json").write_text(json.dumps(action))
    return version


@pytest.fixture
def uri(tmp_path: Path) -> str:
    write_deltalake(str(tmp_path / "t"), pa.table({"id": [1, 2], "k": ["a", "b"]}))
    return str(tmp_path / "t")


def writer(uri: str) -> DirectWriter:
    return DirectWriter(uri, TableKeys(uri))


def test_rows_that_have_them_are_left_to_spark(uri: str) -> None:
    given = rows((1, b"c", "u"), (3, BAD, "i"))
    assert not is_described(given)
    assert not writer(uri).append(inserts_of(Rows(pytest.fail, lambda: given)).table, 0, properties(1))
    for key in (["id"], ["k"], ["id", "k"]):
        assert not writer(uri).merge(given, key, 0, properties(1))
    assert DeltaTable(uri).version() == 0


@pytest.mark.parametrize("op", ["u", "d", "i"])
def test_a_merge_that_would_meet_them_in_the_target_is_left_to_spark(uri: str, op: str) -> None:
    version = put(uri, rows((5, BAD, ""), (6, b"c", "")).drop_columns(["_iscp_op"]))
    kept = writer(uri)
    given = rows((7, b"z", op) if op == "i" else (6, b"c", op))
    for key in (["id"], ["k"]):
        assert not kept.merge(given, key, version, properties(1))
    assert DeltaTable(uri).version() == version


def test_one_that_does_not_meet_them_is_not(uri: str) -> None:
    ends = {"minValues": {"id": 5, "k": "c"}, "maxValues": {"id": 6, "k": "\ufffd\ufffdA"}}
    version = put(uri, rows((5, BAD, ""), (6, b"c", "")).drop_columns(["_iscp_op"]), ends)
    assert writer(uri).merge(rows((2, b"new", "u")), ["id"], version, properties(1))
    assert DeltaTable(uri).version() == version + 1


def test_no_merge_leaves_out_files_by_statistics_of_them(uri: str) -> None:
    """Deltalake would take the key for one that the file cannot have, and insert it again."""
    ends = {"minValues": {"k": FAR.decode()}, "maxValues": {"k": "\ufffd"}}
    version = put(uri, rows((5, FAR, ""), (6, b"\xff", "")).drop_columns(["_iscp_op"]), ends)
    assert not writer(uri).merge(rows((5, FAR, "u")), ["k"], version, properties(1))
    assert not writer(uri).merge(rows((5, FAR, "i")), ["K"], version, properties(1))


def tag(base: int) -> CommitTag:
    return CommitTag(base + 2, "j", "s", -1, Watermark(), 1, base, f"a{base}", "tail")


class Bag:
    """A table whose rows deletion vectors take out; one of its files has such a text."""

    def __init__(self, root: Path) -> None:
        self.uri = str(root / "bag")
        columns = T.StructType([T.StructField("id", T.LongType()), T.StructField("k", T.StringType())])
        properties = {"delta.enableChangeDataFeed": "true", **VECTORS}
        create_target(self.uri, json.loads(columns.json()), properties, tag(-1))
        self.version = put(self.uri, rows((5, BAD, ""), (6, b"c", ""), (7, b"d", "")).drop_columns(["_iscp_op"]))
        self.writer = BagWriter(self.uri)

    def change(self, *changed: tuple[int, bytes, int]) -> int | None:
        ids, keys, weights = zip(*changed, strict=True)
        given = pa.table({"id": pa.array(ids, pa.int64()), "k": texts(*keys), WEIGHT: pa.array(weights, pa.int64())})
        return self.writer.change(given, tag(self.version))

    def stats(self) -> list[dict[str, object]]:
        lines = Path(self.uri, "_delta_log", f"{self.version + 1:020d}.json").read_text().splitlines()
        return [json.loads(action["add"]["stats"]) for line in lines if "add" in (action := json.loads(line))]


@pytest.mark.parametrize("changed", [(8, BAD, 1), (5, BAD, -1)])
def test_such_rows_neither_come_into_a_bag_nor_go_without_spark(
    tmp_path: Path, changed: tuple[int, bytes, int]
) -> None:
    bag = Bag(tmp_path)
    assert bag.change(changed) is None
    assert bag.writer.rows_with(pa.table({"k": texts(BAD)}), bag.version) is None
    assert bag.writer.replace_all(pa.table({"id": [5], "k": texts(BAD)}), tag(bag.version), 10) is None
    assert DeltaTable(bag.uri).version() == bag.version


def test_a_file_that_is_written_with_rows_that_were_there_has_no_bounds_of_them(tmp_path: Path) -> None:
    """What is left of a small file is written beside the rows that come."""
    bag = Bag(tmp_path)
    assert bag.change((6, b"c", -1), (7, b"d", -1), (9, b"e", 1)) == 3
    (merged,) = bag.stats()
    assert merged["numRecords"] == 2
    assert (merged["minValues"], merged["maxValues"]) == ({"id": 5}, {"id": 9})
    found = bag.writer.few_rows(bag.version + 1, 10)
    assert found is not None
    assert sorted(found["k"].cast(pa.binary()).to_pylist()) == [b"e", BAD]
