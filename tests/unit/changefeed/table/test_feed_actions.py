"""Commits of a feed as other programs read them, and features that are added to a protocol without losing any."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deltalake.table import ProtocolVersions
from deltalake.transaction import AddAction, RemoveAction

from iscp.adapters.delta.log.commits import COMMIT_ID
from iscp.changefeed.table.feed_actions import TIMES_WITHOUT_ZONE, commit, first_commit, with_feature
from tests.fakes.tracing import traceparent

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
