"""Staged files are published only if readers of the target read from them the rows that were written."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from iscp.adapters.delta.sink.delta_sink import DeltaSink
from iscp.adapters.delta.sink.staging import add_actions
from iscp.core.values.errors import EngineError
from iscp.core.values.watermark import Watermark
from iscp.ports.sink import CommitTag, Manifest
from tests.fakes.guards import OpenGuard, ScriptedFailpoints

ROWS = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us"))])


@pytest.fixture
def target(tmp_path: Path) -> DeltaTable:
    return DeltaTable.create(str(tmp_path / "target"), ROWS)


def manifest(target: DeltaTable) -> Manifest:
    schema = target.schema().to_json()
    add = {
        "path": "iscp-staged-1-abc/part-1.parquet",
        "partitionValues": {},
        "size": 10,
        "modificationTime": 0,
        "dataChange": True,
        "stats": '{"numRecords":3}',
    }
    features = ["timestampNtz", "appendOnly", "invariants"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["timestampNtz"],
        "writerFeatures": features,
    }
    metadata = {"id": "m", "schemaString": schema, "partitionColumns": [], "configuration": {}}
    return Manifest(3, 10, schema, {"adds": (add,), "protocol": protocol, "metadata": metadata})


def test_plain_files_are_published(target: DeltaTable) -> None:
    (add,) = add_actions(manifest(target), target)
    assert (add.path, add.size, add.stats) == ("iscp-staged-1-abc/part-1.parquet", 10, '{"numRecords":3}')


def configured(name: str, value: str) -> Callable[[dict[str, Any]], None]:
    return lambda said: said["files"]["metadata"]["configuration"].update({name: value})


def with_feature(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda said: said["files"]["protocol"]["writerFeatures"].append(name)


def of_version(version: int) -> Callable[[dict[str, Any]], None]:
    def change(said: dict[str, Any]) -> None:
        said["files"]["protocol"] = {"minReaderVersion": 2, "minWriterVersion": version}

    return change


def partitioned(said: dict[str, Any]) -> None:
    said["files"]["metadata"]["partitionColumns"] = ["id"]


def mapped(said: dict[str, Any]) -> None:
    schema = json.loads(said["schema_json"])
    schema["fields"][0]["metadata"] = {"delta.columnMapping.physicalName": "col-1"}
    said["schema_json"] = json.dumps(schema)


def of_another_type(said: dict[str, Any]) -> None:
    said["schema_json"] = said["schema_json"].replace("long", "string")


def without_statistics(said: dict[str, Any]) -> None:
    del said["files"]["adds"][0]["stats"]


def adding(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda said: said["files"]["adds"][0].update({name: 1})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (configured("delta.columnMapping.mode", "name"), "delta.columnMapping.mode = name"),
        (configured("delta.enableRowTracking", "true"), "delta.enableRowTracking = true"),
        (configured("delta.constraints.c", "id > 0"), "delta.constraints.c"),
        (with_feature("columnMapping"), "the features columnMapping"),
        (with_feature("deletionVectors"), "the features deletionVectors"),
        (with_feature("nobodyKnows"), "the features nobodyKnows"),
        (of_version(5), "the features"),
        (partitioned, "partitioned by id"),
        (mapped, "the columns id"),
        (of_another_type, "the columns id"),
        (without_statistics, "without statistics"),
        (adding("deletionVector"), "deletionVector"),
        (adding("baseRowId"), "baseRowId"),
        (adding("something new"), "something new"),
    ],
)
def test_what_would_be_read_otherwise_is_refused_before_anything_is_committed(
    target: DeltaTable, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    good = manifest(target)
    said = deepcopy({name: getattr(good, name) for name in ("schema_json", "files")})
    change(said)
    sink = DeltaSink(target.table_uri, ScriptedFailpoints())
    tag = CommitTag(1, "j", "s", -1, Watermark(0, 1.0), 1, 0, "try", "snapshot")
    with pytest.raises(EngineError, match="cannot be published") as refused:
        sink.publish([replace(good, **said)], tag, OpenGuard())
    assert words in str(refused.value)
    assert DeltaTable(target.table_uri).version() == 0


def test_what_the_target_has_too_is_published(target: DeltaTable) -> None:
    """A protocol version implies all features up to it, without listing them."""
    good = manifest(target)
    with pytest.raises(EngineError, match="timestampNtz"):
        add_actions(good, DeltaTable.create(f"{target.table_uri}-plain", pa.schema([pa.field("id", pa.int64())])))
    old = {"minReaderVersion": 1, "minWriterVersion": 2}
    assert add_actions(replace(good, files={**good.files, "protocol": old}), target)
