"""States of tables with deletion vectors, behind a checkpoint: from deltalake and the commits, or not read here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from iscp.adapters.delta.log.action_fields import FileKey, key_of_action
from iscp.adapters.delta.log.commits import read_commit
from iscp.adapters.delta.log.deletion_vectors import read_vector
from iscp.adapters.delta.log.live_files import (
    NotReadableHere,
    StateReader,
    TableState,
    list_files_here,
    load_plain_state,
    load_state_here,
)
from iscp.adapters.delta.log.live_paths import LivePaths
from iscp.adapters.delta.sink.bag_write import VECTORS, BagWriter
from iscp.adapters.delta.sink.target_creation import create_target
from iscp.core.sql.sql_names import WEIGHT
from iscp.core.values.watermark import Watermark
from iscp.ports.sink import CommitTag
from tests.fakes.commit_files import commit_path

COLUMNS = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}


def tag(version: int) -> CommitTag:
    return CommitTag(version, "j", "s", -1, Watermark(), 1, version - 1, f"a{version}", "tail")


@pytest.fixture
def states(tmp_path: Path) -> dict[int, TableState]:
    """The states of a table of ten versions, followed from its beginning, when there was no checkpoint."""
    uri = str(tmp_path)
    create_target(uri, COLUMNS, {**VECTORS, "delta.enableChangeDataFeed": "true"}, tag(0))
    writer, reader = BagWriter(uri), StateReader(uri, load_plain_state)
    for version in range(1, 10):
        weights = {version * 10 + each: 1 for each in range(4)}
        weights |= {10: -1} if version == 2 else {(version - 2) * 10 + 1: -1} if version > 2 else {}
        rows = pa.table({"id": pa.array([*weights]), WEIGHT: pa.array([*weights.values()], pa.int64())})
        assert writer.change(rows, tag(version))
    return {version: reader.read_state(version) for version in range(10)}


def vectors(adds: Mapping[FileKey, Mapping[str, Any]]) -> dict[str, Any]:
    return {add["path"]: add.get("deletionVector") for add in adds.values()}


def test_behind_a_checkpoint_it_is_the_state_that_commits_had_come_to(
    tmp_path: Path, states: dict[int, TableState]
) -> None:
    uri = str(tmp_path)
    DeltaTable(uri).create_checkpoint()
    for version, followed in states.items():
        assert load_state_here(uri, version).adds == followed.adds
        assert dict(list_files_here(uri, version)) == vectors(followed.adds)
    state = StateReader(uri, load_state_here).read_state(9)
    assert any(vectors(state.adds).values())
    assert (state.adds, state.features, state.configuration) == (
        states[9].adds,
        states[9].features,
        states[9].configuration,
    )
    table = QueryBuilder().register("t", DeltaTable(uri)).execute("SELECT count(*) c FROM t").read_all()
    assert state.rows == pa.table(table)["c"][0].as_py()
    gone = sum(len(read_vector(uri, each)) for each in vectors(state.adds).values() if each)
    assert gone == sum(each["cardinality"] for each in vectors(state.adds).values() if each)


def test_commits_before_the_oldest_file_may_be_gone_and_no_others(
    tmp_path: Path, states: dict[int, TableState]
) -> None:
    uri = str(tmp_path)
    DeltaTable(uri).create_checkpoint()
    oldest = min(
        version
        for version in range(10)
        for action in map(json.loads, commit_path(uri, version).read_text().splitlines())
        if "add" in action and states[9].adds.get(key_of_action(action["add"])) == action["add"]
    )
    for version in range(oldest):
        commit_path(uri, version).unlink()
    assert load_state_here(uri, 9).adds == states[9].adds
    commit_path(uri, oldest).unlink()
    with pytest.raises(NotReadableHere):
        load_state_here(uri, 9)


def test_the_last_action_of_a_file_counts_that_no_other_takes_back(
    tmp_path: Path, states: dict[int, TableState]
) -> None:
    """A file that is added with a vector while it is there without one is there twice, until one of both goes."""
    uri = str(tmp_path)
    plain = next(each for each in states[9].adds.values() if not each.get("deletionVector"))
    vector = next(each for each in vectors(states[9].adds).values() if each)
    marked = {**plain, "deletionVector": vector, "dataChange": True}
    commit_path(uri, 10).write_text(json.dumps({"add": marked}))
    gone = {name: marked[name] for name in ("path", "partitionValues", "deletionVector", "dataChange")}
    commit_path(uri, 11).write_text(json.dumps({"remove": gone}))
    with pytest.raises(NotReadableHere):
        load_state_here(uri, 10)
    followed = StateReader(uri, lambda *_: states[9])
    assert [len(followed.read_state(version).adds) - len(states[9].adds) for version in (9, 10, 11)] == [0, 1, 0]
    assert load_state_here(uri, 11).adds == states[9].adds
    commit_path(uri, 12).write_text(json.dumps({"future": {}}))
    with pytest.raises(NotReadableHere):
        load_state_here(uri, 12)


def test_a_process_that_begins_behind_a_checkpoint_goes_on_with_the_table(
    tmp_path: Path, states: dict[int, TableState]
) -> None:
    uri = str(tmp_path)
    DeltaTable(uri).create_checkpoint()
    writer, weights = BagWriter(uri, load_state=load_state_here), {90: -1, 50: -1, 100: 1}
    assert writer.marks_rows(9)
    rows = pa.table({"id": pa.array([*weights]), WEIGHT: pa.array([*weights.values()], pa.int64())})
    assert writer.change(rows, tag(10)) == 3
    commits = [commit for version in range(1, 11) if (commit := read_commit(uri, version)) is not None]
    assert LivePaths(list_files_here).find_odd(uri, 9, commits[-1:]) is None
    assert LivePaths(list_files_here).find_odd(uri, 3, commits[3:]) is None
    held = pa.table(QueryBuilder().register("t", DeltaTable(uri)).execute("SELECT id FROM t").read_all())
    there = {number * 10 + each for number in range(1, 10) for each in range(4)} | {100}
    assert sorted(held["id"].to_pylist()) == sorted(there - {10, 90, 50, *(each * 10 + 1 for each in range(1, 8))})
