"""Commits whose actions do not show their changes: what is not known is named, and nothing is passed over."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.log.actions import find_unclear, key_of_file
from iscp.delta.log.commits import read_actions, read_commit
from tests.fakes.commit_files import commit_path

ADD = {"path": "p=1/a.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
REMOVE = {"path": "p=1/a.parquet", "partitionValues": {}, "size": 1, "deletionTimestamp": 1, "dataChange": True}
CDC = {"path": "_change_data/c.parquet", "partitionValues": {}, "size": 1, "dataChange": False}
VECTOR = {"storageType": "u", "pathOrInlineDv": "x" * 20, "offset": 1, "sizeInBytes": 3, "cardinality": 1}
METADATA = {"id": "i", "format": {"provider": "parquet"}, "schemaString": "{}", "partitionColumns": []}


def without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


@pytest.mark.parametrize(
    "actions",
    [
        [{"commitInfo": {"anything": [1]}}, {"add": ADD}],
        [{"add": ADD | {"tags": {"a": "b"}, "stats": "{}", "baseRowId": 1, "defaultRowCommitVersion": 2}}],
        [{"add": ADD | {"clusteringProvider": "liquid", "of tomorrow": None}}],
        [{"remove": REMOVE | {"extendedFileMetadata": True}}],
        [{"remove": REMOVE}, {"add": ADD | {"deletionVector": VECTOR}}],
        [{"add": ADD | {"deletionVector": VECTOR | {"pathOrInlineDv": "ab/c" + "x" * 20}}}],
        [{"remove": REMOVE | {"deletionVector": VECTOR}}, {"add": ADD | {"deletionVector": VECTOR | {"offset": 9}}}],
        [{"remove": without(REMOVE, "partitionValues")}, {"cdc": CDC}],
        [{"remove": without(REMOVE, "partitionValues") | {"dataChange": False}}],
        [{"add": ADD | {"path": "/elsewhere/a"}}, {"add": ADD | {"path": "s3://bucket/a"}}],
        [{"metaData": METADATA | {"configuration": {"a": "b"}, "createdTime": 1}}, {"protocol": {}}],
        [
            {"txn": {"appId": "a", "version": 1}},
            {"domainMetadata": {"domain": "d", "configuration": "", "removed": False}},
        ],
    ],
)
def test_what_the_protocol_has_is_clear(actions: list[dict[str, Any]]) -> None:
    assert find_unclear(actions) == ""


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ([{"future": {"a": 1}}], "an action future that is not known"),
        ([{"add": ADD | {"of tomorrow": 0}}], "with a field of tomorrow that is not known"),
        ([{"protocol": {"minEngine": 1}}], "a field minEngine"),
        *(([{"add": without(ADD, name)}], f"add without {name}") for name in ("partitionValues", "size", "dataChange")),
        ([{"remove": without(REMOVE, "dataChange")}], "remove without dataChange"),
        ([{"remove": without(REMOVE, "partitionValues")}], "remove without partitionValues"),
        ([{"cdc": without(CDC, "partitionValues")}], "cdc without partitionValues"),
        *(([{"add": ADD | {"path": path}}], "none below") for path in ("../a", "p/..%2F..%2Fa", "a//b", "./a", "a/")),
        ([{"add": ADD | {"deletionVector": VECTOR | {"storageType": "z"}}}], "a deletion vector"),
        ([{"add": ADD | {"deletionVector": VECTOR | {"more": 1}}}], "a deletion vector"),
        ([{"add": ADD | {"deletionVector": []}}], "a deletion vector"),
        *(
            ([{"add": ADD | {"deletionVector": VECTOR | {"pathOrInlineDv": folder + "x" * 20}}}], "a deletion vector")
            for folder in ("..", "../a", "/a", "a/../../b")
        ),
        ([{"metaData": METADATA | {"format": {"provider": "orc"}}}], "not Parquet"),
        ([{"metaData": METADATA | {"partitionColumns": [1]}}], "not a list of names"),
        ([{"add": ADD}, {"add": ADD | {"path": "p%3D1/a.parquet"}}], "two actions add"),
        ([{"remove": REMOVE}, {"remove": REMOVE}], "two actions remove"),
        ([{"remove": REMOVE}, {"add": ADD}], "adds a file that it removes"),
        ([{"metaData": METADATA}, {"metaData": METADATA}], "twice"),
    ],
)
def test_what_is_not_known_is_named(actions: list[dict[str, Any]], why: str) -> None:
    assert why in find_unclear(actions)


def test_one_file_has_one_key_however_it_is_spelled() -> None:
    assert key_of_file("p=a%20b/x") == key_of_file("p=a b/x") != key_of_file("p=a%2520b/x")


def test_what_deltalake_writes_is_clear(tmp_path: Any) -> None:
    uri = str(tmp_path)
    configuration = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(uri, pa.table({"id": [1, 2], "p": ["a b", None]}), partition_by=["p"], configuration=configuration)
    table = DeltaTable(uri)
    table.update(updates={"id": "id + 1"})
    table.delete("id = 2")
    write_deltalake(table, pa.table({"id": [7], "p": ["x/y"]}), mode="overwrite")
    table.optimize.compact()
    for version in range(table.version() + 1):
        assert find_unclear(read_actions(uri, version) or ()) == ""


def test_a_commit_says_why_its_changes_are_not_known(tmp_path: Any) -> None:
    write_deltalake(str(tmp_path), pa.table({"id": [1]}))
    path = commit_path(str(tmp_path), 0)
    path.write_text(path.read_text() + "\n" + json.dumps({"future": {}}))
    found = read_commit(str(tmp_path), 0)
    assert found is not None
    assert "future" in found.unclear
