"""How single commit files are parsed, written by deltalake and by hand.

Commits of targets say what the rows are made of; whatever else stands there says nothing.

What a commit says of its trace: anybody may have written anything there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from iscp.delta.log.commits import (
    APP_ID,
    COMMIT_INFO_BYTES_MAX,
    Commit,
    commit_stamp,
    newest_version,
    origin_of,
    read_commit,
    read_commit_trace,
    read_origin,
    table_exists,
)
from iscp.delta.sink.sink_position import tag_json
from iscp.model.values.errors import StorageError, TableNotFound
from iscp.model.values.watermark import NOTHING_APPLIED, SourceMark, Watermark
from iscp.ports.sink import CommitTag
from iscp.ports.source import CommitOrigin
from iscp.storage.locations import commit_name
from iscp.storage.regular_files import Reach
from tests.fakes.commit_files import commit_path
from tests.fakes.tracing import traceparent

CDF = {"delta.enableChangeDataFeed": "true"}


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": ["x"] * len(ids)})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def by_hand(uri: str, *actions: Mapping[str, object]) -> None:
    path = commit_path(uri, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions) + "\n")


def test_what_each_operation_of_a_real_table_did(uri: str) -> None:
    write_deltalake(uri, rows(1, 2, 3), configuration=CDF)
    write_deltalake(uri, rows(4, 5), mode="append")
    DeltaTable(uri).delete("id = 4")
    DeltaTable(uri).optimize.compact()
    DeltaTable(uri).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    write_deltalake(uri, rows(9), mode="overwrite")
    found = [read_commit(uri, version) for version in range(6)]
    told = [(c.operation, c.changes_data, c.only_adds, c.rows_added) for c in found if c]
    assert told[0] == ("CREATE TABLE", True, True, 3) or told[0] == ("WRITE", True, True, 3)
    assert told[1] == ("WRITE", True, True, 2)
    assert told[2][:3] == ("DELETE", True, False)
    assert told[3] == ("OPTIMIZE", False, False, 0)
    assert told[4] == ("SET TBLPROPERTIES", False, False, 0)
    assert told[5][1:] == (True, False, 1)
    with_metadata = [commit.version for commit in found if commit and commit.metadata_id]
    assert with_metadata == [0, 4]
    assert found[0] is not None
    assert found[0].metadata_id == str(DeltaTable(uri).metadata().id)


def test_seq_and_user_metadata_are_reported_of_our_application_id_alone(uri: str) -> None:
    properties = CommitProperties(
        custom_metadata={"userMetadata": "ours"}, app_transactions=[Transaction("other", 5), Transaction(APP_ID, 7)]
    )
    write_deltalake(uri, rows(1), commit_properties=properties)
    write_deltalake(
        uri, rows(2), mode="append", commit_properties=CommitProperties(app_transactions=[Transaction("other", 6)])
    )
    ours, other = read_commit(uri, 0), read_commit(uri, 1)
    assert ours is not None
    assert other is not None
    assert (ours.seq, ours.user_metadata) == (7, "ours")
    assert (other.seq, other.user_metadata) == (None, "")


def test_the_time_of_a_commit_is_its_own_or_that_of_its_file(uri: str) -> None:
    def at_s(*actions: Mapping[str, object]) -> float:
        by_hand(uri, *actions)
        os.utime(commit_path(uri, 0), (5, 5))
        commit = read_commit(uri, 0)
        assert commit is not None
        return commit.committed_at_s

    assert at_s({"commitInfo": {"timestamp": 2_000, "inCommitTimestamp": 3_000}}) == 3.0
    assert at_s({"commitInfo": {"timestamp": 2_000}}) == 2.0
    assert at_s({"commitInfo": {}}) == 5.0
    assert at_s({"add": {"path": "a"}}) == 5.0


def test_bytes_are_what_a_reader_of_the_changes_reads(uri: str) -> None:
    files = ({"add": {"path": "a", "size": 10}}, {"remove": {"path": "b", "size": 20}}, {"remove": {"path": "c"}})
    by_hand(uri, *files)
    commit = read_commit(uri, 0)
    assert commit is not None
    assert commit.bytes == 30
    by_hand(uri, *files, {"cdc": {"path": "d", "size": 3}})
    commit = read_commit(uri, 0)
    assert commit is not None
    assert (commit.bytes, commit.only_adds) == (3, False)


def test_rows_are_not_known_where_one_file_has_no_statistics(uri: str) -> None:
    counted = {"add": {"path": "a", "stats": '{"numRecords": 3}'}}
    for stats in ({}, {"stats": None}, {"stats": "{}"}):
        by_hand(uri, counted, {"add": {"path": "b", **stats}})
        commit = read_commit(uri, 0)
        assert commit is not None
        assert commit.rows_added is None
    by_hand(uri, counted, {"add": {"path": "b", "dataChange": False}})
    commit = read_commit(uri, 0)
    assert commit is not None
    assert commit.rows_added == 3


def test_what_is_not_there_is_none(uri: str) -> None:
    assert read_commit(uri, 0) is None
    assert commit_stamp(uri, 0) is None
    assert not table_exists(uri)
    write_deltalake(uri, rows(1))
    assert table_exists(uri)
    assert read_commit(uri, 1) is None
    assert commit_stamp(uri, 0) is not None


def test_the_newest_version_is_that_of_the_last_commit_file(uri: str) -> None:
    for _ in range(11):
        write_deltalake(uri, rows(1), mode="append")
    DeltaTable(uri).create_checkpoint()
    (commit_path(uri, 0).parent / "00000000000000000099.json.tmp").touch()
    assert newest_version(uri) == 10


@pytest.mark.parametrize("there", ["nothing", "directory", "empty log", "file"])
def test_what_is_not_a_table_is_reported_with_a_remedy(tmp_path: Path, there: str) -> None:
    place = tmp_path / "place"
    if there == "file":
        place.write_text("x")
    elif there != "nothing":
        (place / "_delta_log" if there == "empty log" else place).mkdir(parents=True)
    with pytest.raises(TableNotFound, match="Check the path"):
        newest_version(str(place))
    assert not table_exists(str(place))


def test_another_file_of_the_same_name_has_another_stamp(uri: str) -> None:
    by_hand(uri, {"commitInfo": {}})
    stamp = commit_stamp(uri, 0)
    assert stamp == commit_stamp(uri, 0)
    by_hand(uri, {"commitInfo": {"timestamp": 1}})
    assert commit_stamp(uri, 0) != stamp


def test_a_log_that_cannot_be_read_is_a_fault_of_the_storage(uri: str) -> None:
    commit_path(uri, 0).mkdir(parents=True)
    with pytest.raises(StorageError, match="is a directory, where a regular file belongs"):
        read_commit(uri, 0)


TARGET = "/lake/r"
TAG = CommitTag(4, "job-1", "t-1", 2, Watermark(3, 5.0), 1, 6, "try", "tail", table_uri="/lake/t")
MARKS = {"/lake/t": SourceMark("t-1", Watermark(3, 5.0)), "/lake/u": SourceMark("u-1", Watermark(8, 6.0))}


def commit(metadata: str, *, seq: int | None = 4, changes: bool = False, metadata_id: str | None = None) -> Commit:
    return Commit(7, 9.0, "WRITE", seq, metadata, metadata_id, changes, False, None, 0)


def test_a_target_of_several_tables_names_them_all() -> None:
    found = origin_of(TARGET, commit(tag_json(replace(TAG, sources=MARKS)), changes=True))
    assert found == CommitOrigin(MARKS, changes_data=True)


def test_a_target_of_one_table_names_it() -> None:
    assert origin_of(TARGET, commit(tag_json(TAG))) == CommitOrigin({"/lake/t": MARKS["/lake/t"]}, changes_data=False)
    part = tag_json(replace(TAG, watermark=Watermark(3, 5.0, 1, 4)))
    assert origin_of(TARGET, commit(part)).sources["/lake/t"].watermark == Watermark(3, 5.0, 1, 4)


def test_a_commit_of_an_earlier_release_does_not_say_where_its_table_is() -> None:
    assert origin_of(TARGET, commit(tag_json(replace(TAG, table_uri="")))).sources == {"": MARKS["/lake/t"]}


def test_a_claim_says_nothing_of_the_rows_that_are_there() -> None:
    claim = replace(TAG, kind="claim", watermark=Watermark(NOTHING_APPLIED))
    assert origin_of(TARGET, commit(tag_json(claim))) == CommitOrigin({}, changes_data=False)


@pytest.mark.parametrize(
    "tag",
    [
        *("", "no JSON", "[]", "3", "{}", "null", "[" * 100_000),
        *({"to": 3}, {"to": "3", "at": 1.0, "source_id": "t"}, {"to": 3, "at": 1.0, "source_id": 7}),
        *({"sources": 7}, {"sources": {"/t": []}}, {"sources": {"/t": ["t", "x"]}}),
        {"to": 3, "at": 1.0, "source_id": "t", "table": 9},
    ],
)  # fmt: skip
def test_what_is_no_tag_says_nothing(tag: Any) -> None:
    text = tag if isinstance(tag, str) else json.dumps(tag)
    assert origin_of(TARGET, commit(text, changes=True)) == CommitOrigin({}, changes_data=True)


def test_a_commit_of_others_says_whether_it_has_rows_or_metadata() -> None:
    assert origin_of(TARGET, commit(tag_json(TAG), seq=None)) == CommitOrigin({}, changes_data=False)
    assert origin_of(TARGET, commit("", seq=None, changes=True)) == CommitOrigin({}, changes_data=True)
    assert origin_of(TARGET, commit("", seq=None, metadata_id="t-1")) == CommitOrigin({}, changes_data=True)


def test_a_commit_that_is_gone_has_no_origin(tmp_path: Any) -> None:
    assert read_origin(str(tmp_path), 0) is None


@pytest.mark.parametrize(
    ("source", "followed"),
    [
        *(("/lake/t", True), ("/lake/a/../t", False), ("/other/t", False), ("s3://lake/t", False), ("t", False)),
        *(("/lake/%2e%2e/other/t", False), ("file:///other/t", False), ("http://host/t", False), ("/lake", False)),
    ],
)
def test_a_commit_names_no_place_that_is_read_but_those_of_its_tables_account(source: str, followed: bool) -> None:
    tag = tag_json(replace(TAG, sources={source: MARKS["/lake/t"]}))
    found = origin_of(TARGET, commit(tag), Reach([["/lake"], ["/other"]]))
    assert found.sources == {source: MARKS["/lake/t"]}
    assert found.beyond == (frozenset() if followed else {source})


def written(directory: Path, content: str) -> str:
    log = directory / "_delta_log"
    log.mkdir(exist_ok=True)
    (log / commit_name(0)).write_text(content)
    return str(directory)


def said(metadata: object) -> str:
    return json.dumps({"commitInfo": {"userMetadata": metadata}})


def test_the_trace_that_a_real_writer_gave_is_read(tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    properties = CommitProperties(custom_metadata={"userMetadata": json.dumps({"traceparent": traceparent(3)})})
    write_deltalake(table, pa.table({"a": [1]}), commit_properties=properties)
    write_deltalake(table, pa.table({"a": [1]}), mode="append")
    assert [read_commit_trace(table, version) for version in (0, 1, 2)] == [traceparent(3), "", ""]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "traceparent",
        "{" * 10_000 + "traceparent",
        '{"commitInfo":["traceparent"]}',
        '{"commitInfo":{"userMetadata":{"traceparent":"00"}}}',
        said("traceparent"),
        said('["traceparent"]'),
        said("[" * 60_000 + "traceparent"),
        said(json.dumps({"traceparent": "x"})),
        said(json.dumps({"traceparent": [traceparent(1)]})),
        said(json.dumps({"traceparent": traceparent(1) + "\r\nx: y"})),
        said(json.dumps({"other": {"traceparent": traceparent(1)}})),
        said(json.dumps({"padding": "x" * COMMIT_INFO_BYTES_MAX, "traceparent": traceparent(1)})),
    ],
)
def test_what_is_no_trace_is_none(tmp_path: Path, content: str) -> None:
    assert read_commit_trace(written(tmp_path, content), 0) == ""
