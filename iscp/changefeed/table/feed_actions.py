"""The actions that a feed's commits write to its log (Delta protocol, "Actions")."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deltalake.table import ProtocolVersions
from deltalake.transaction import AddAction, RemoveAction

from iscp import __version__
from iscp.adapters.delta.log.commits import COMMIT_ID
from iscp.core.values.trace_context import TRACE_KEY, is_sampled

TIMES_WITHOUT_ZONE = "timestampNtz"
"""The feature that a table needs for them, of its readers and of its writers."""

_FEATURES_READER, _FEATURES_WRITER = 3, 7
"""Versions from which on a table names its features; a writer's earlier ones imply some."""

_IMPLIED = {
    "appendOnly": 2,
    "invariants": 2,
    "checkConstraints": 3,
    "changeDataFeed": 4,
    "generatedColumns": 4,
}
"""The versions of writers from which on features are implied, by features."""

_PLAIN = ProtocolVersions(1, 2, None, None)

Action = AddAction | RemoveAction | Mapping[str, Any]


def commit(actions: Sequence[Action], numbers: Mapping[str, int], commit_id: str, at_ms: int, trace: str = "") -> bytes:
    """Return the content of a commit file; `numbers` are stored in it by name (`txn`), and a `trace` for who follows
    it.
    """
    removes = any(isinstance(action, RemoveAction) for action in actions)
    about = {
        "timestamp": at_ms,
        "operation": "DELETE" if removes else "WRITE",
        "operationParameters": {} if removes else {"mode": "Append"},
        "isBlindAppend": not removes,
        "engineInfo": f"iscp:{__version__}",
        COMMIT_ID: commit_id,
        **({"userMetadata": json.dumps({TRACE_KEY: trace})} if is_sampled(trace) else {}),
    }
    txns = ({"appId": app, "version": value, "lastUpdated": at_ms} for app, value in numbers.items())
    return _lines([{"commitInfo": about}, *({"txn": txn} for txn in txns), *map(_action, actions)])


def first_commit(metadata: Mapping[str, Any], times_without_zone: bool, at_ms: int) -> bytes:
    """Return the commit of a table without rows."""
    protocol = with_feature(_PLAIN, TIMES_WITHOUT_ZONE) if times_without_zone else _plain_protocol()
    about = {"timestamp": at_ms, "operation": "CREATE TABLE", "operationParameters": {}}
    return _lines([{"commitInfo": {**about, "engineInfo": f"iscp:{__version__}"}}, protocol, metadata])


def with_feature(now: ProtocolVersions, feature: str) -> Mapping[str, Any]:
    """Return the protocol with one more feature of readers and writers, and with all that the versions so far imply.

    deltalake leaves those out, and Spark does not open a table with a column that takes no nulls then.
    """
    implied = [name for name, since in _IMPLIED.items() if since <= now.min_writer_version < _FEATURES_WRITER]
    return {
        "protocol": {
            "minReaderVersion": _FEATURES_READER,
            "minWriterVersion": _FEATURES_WRITER,
            "readerFeatures": sorted({*(now.reader_features or ()), feature}),
            "writerFeatures": sorted({*(now.writer_features or ()), *implied, feature}),
        }
    }


def _plain_protocol() -> Mapping[str, Any]:
    return {"protocol": {"minReaderVersion": _PLAIN.min_reader_version, "minWriterVersion": _PLAIN.min_writer_version}}


def _lines(actions: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)


def _action(action: Action) -> Mapping[str, Any]:
    if isinstance(action, Mapping):
        return action
    about = {
        "path": action.path,
        "partitionValues": action.partition_values,
        "size": action.size,
        "dataChange": action.data_change,
    }
    if isinstance(action, AddAction):
        return {"add": {**about, "modificationTime": action.modification_time, "stats": action.stats}}
    return {"remove": {**about, "deletionTimestamp": action.deletion_timestamp, "extendedFileMetadata": True}}
