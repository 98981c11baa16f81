"""Staged files are published only if readers of the target read from them the rows that were written.

What is there of a build under its target, and what of it earlier and later builds leave alone.
"""

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

from iscp.delta.log.readable_files import table_around
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.sink.staging import FileStagedRanges, add_actions
from iscp.model.build.build_task import BuildId, BuildRequest, BuildTerms, build_id
from iscp.model.values.errors import EngineError, PlanOutdated
from iscp.model.values.watermark import SourceMark, Watermark
from iscp.ports.sink import BuildEnd, CommitTag, Manifest, StagedState
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


BUILD = BuildId("0000000000a1", 7, "abcd")


def ranges(uri: str, build: BuildId = BUILD) -> FileStagedRanges:
    return FileStagedRanges(uri, build, ScriptedFailpoints())


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "target")


def test_a_build_goes_on_until_it_is_ended_or_removed(uri: str) -> None:
    build = ranges(uri)
    assert build.state() == StagedState()
    build.begin()
    build.begin()
    assert build.state() == StagedState(True)
    build.stage(5, None)
    build.stage(4, None)
    assert ranges(uri).state() == StagedState(True, None, frozenset({4, 5})), "any node sees it"
    assert build.manifests([4, 5]) == [], "without rows there is nothing to publish"
    build.end(BuildEnd.OUTDATED)
    assert build.state().end is BuildEnd.OUTDATED
    assert not build.state().goes_on
    build.remove()
    assert build.state() == StagedState()
    build.remove()


def test_nothing_is_staged_before_it_was_begun_or_after_it_was_removed(uri: str) -> None:
    build = ranges(uri)
    with pytest.raises(PlanOutdated):
        build.stage(1, None)
    build.begin()
    build.remove()
    with pytest.raises(PlanOutdated, match="was removed"):
        build.stage(1, None)
    build.end(BuildEnd.REFUSED)
    assert build.state() == StagedState()


def test_the_first_manifest_of_a_range_counts(uri: str) -> None:
    build = ranges(uri)
    build.begin()
    build.stage(1, None)
    (file,) = Path(uri).rglob("1.json")
    first = file.stat()
    build.stage(1, None)
    assert file.stat() == first


@pytest.mark.parametrize("text", ["", "{", "[]", '{"adds": []}'])
def test_a_manifest_that_cannot_be_read_counts_as_gone(uri: str, text: str) -> None:
    build = ranges(uri)
    build.begin()
    build.stage(1, None)
    (file,) = Path(uri).rglob("1.json")
    file.write_text(text)
    assert build.manifests([1]) is None
    assert build.manifests([2]) is None


def test_another_build_of_the_job_and_earlier_jobs_ones_are_removed(uri: str) -> None:
    newer, earlier, later = (
        replace(BUILD, version=9, digest="ef"),
        replace(BUILD, job_id="0000000000a0"),
        replace(BUILD, job_id="0000000000a2"),
    )
    for build in (BUILD, earlier, later):
        ranges(uri, build).begin()
    ranges(uri, newer).begin()
    assert [ranges(uri, build).state().begun for build in (newer, later)] == [True, True]
    assert [ranges(uri, build).state().begun for build in (BUILD, earlier)] == [False, False]
    ranges(uri, newer).remove()
    assert ranges(uri, later).state().begun, "a later registration's is none of ours"


@pytest.mark.parametrize("passing", [True, False])
def test_rows_that_are_not_published_themselves_go_with_their_build(uri: str, passing: bool) -> None:
    of_others = replace(BUILD, job_id="0000000000a2")
    folders = [Path(uri, f"iscp-staged-{each.job_id}-{each.digest}", "4-x") for each in (BUILD, of_others)]
    for folder in folders:
        folder.mkdir(parents=True)
    build = FileStagedRanges(uri, BUILD, ScriptedFailpoints(), passing=passing)
    ranges(uri, of_others).begin()
    build.begin()
    build.remove()
    assert [folder.exists() for folder in folders] == [not passing, True]
    build.remove()


def test_the_terms_that_it_was_first_begun_with_hold(uri: str) -> None:
    marks = {"/t": SourceMark("t-1", Watermark(3, 5.0)), "/u": SourceMark("t-2", Watermark(7, 6.5))}
    first = BuildTerms(marks, 12.5, "groups", passing=True)
    assert ranges(uri).terms() is None
    ranges(uri).begin(first)
    ranges(uri).begin(BuildTerms({}, 99.0, "rows"))
    assert ranges(uri).terms() == first
    (file,) = Path(uri).rglob("begun.json")
    file.write_text("{")
    assert ranges(uri).terms() is None, "nobody can read them"


@pytest.mark.parametrize("passing", [True, False])
def test_rows_go_with_a_build_whose_terms_say_so(uri: str, passing: bool) -> None:
    folder = Path(uri, f"iscp-staged-{BUILD.job_id}-{BUILD.digest}", "4-x")
    folder.mkdir(parents=True)
    ranges(uri).begin(BuildTerms(way="groups", passing=passing))
    ranges(uri, replace(BUILD, version=9)).remove()
    assert folder.exists() is not passing


def test_a_build_is_taken_for_no_table(uri: str) -> None:
    ranges(uri).begin()
    assert table_around(uri) == ""


def test_only_ranges_of_the_same_rows_are_put_together() -> None:
    request, spec = BuildRequest(7, 100, 2), '{"iteration":{"consumer":{"kind":"replica","target":"/x"}}}'
    first = build_id("j", spec, request, "t-1", 5.0)
    assert first == build_id("j", spec.replace('{"iter', '{"priority":3,"iter'), request, "t-1", 5.0)
    assert first == build_id("j", spec, replace(request, depth=3), "t-1", 5.0), "ranges may be split"
    others = [
        build_id("j", spec.replace("/x", "/y"), request, "t-1", 5.0),
        build_id("j", spec, replace(request, piece_bytes=101), "t-1", 5.0),
        build_id("j", spec, replace(request, version=8), "t-1", 5.0),
        build_id("j", spec, request, "t-2", 5.0),
        build_id("j", spec, request, "t-1", 6.0),
    ]
    assert len({first.digest, *(each.digest for each in others)}) == 6
