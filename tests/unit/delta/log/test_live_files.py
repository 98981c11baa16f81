"""States of tables, from deltalake and commit by commit: equal to what deltalake says of each version, or not read.

States of tables with deletion vectors, behind a checkpoint: from deltalake and the commits, or not read here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from iscp.delta.log.actions import FileKey, key_of_action, key_of_file
from iscp.delta.log.commits import read_commit
from iscp.delta.log.live_files import (
    LivePaths,
    NotReadableHere,
    StateReader,
    TableState,
    list_files_here,
    list_live_files,
    load_plain_state,
    load_state_here,
)
from iscp.delta.log.readable_files import read_vector
from iscp.delta.sink.bag_write import VECTORS, BagWriter
from iscp.delta.sink.target_write import create_target
from iscp.model.sql.sql_names import WEIGHT
from iscp.model.values.watermark import Watermark
from iscp.ports.sink import CommitTag
from tests.fakes.commit_files import commit_path


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Of ten versions, with a checkpoint of version 6, as which all commits before it are gone."""
    uri = str(tmp_path / "t")
    for number in range(7):
        write_deltalake(uri, pa.table({"id": [number], "v": [f"v{number}"], "d": [0.5]}), mode="append")
    table = DeltaTable(uri)
    table.create_checkpoint()
    for number in range(6):
        commit_path(uri, number).unlink()
    DeltaTable(uri).delete("id = 3")
    write_deltalake(uri, pa.table({"id": [8], "v": [None], "d": [1.5]}), mode="append")
    write_deltalake(uri, pa.table({"id": [9], "v": ["z"], "d": [1.5]}), mode="append")
    return uri


def append_actions(uri: str, version: int, *lines: object) -> None:
    commit_path(uri, version).write_text("\n".join(map(json.dumps, lines)))


def test_states_are_loaded_once_and_then_followed(uri: str) -> None:
    loaded: list[int] = []

    def load(table: str, version: int) -> TableState:
        loaded.append(version)
        return load_plain_state(table, version)

    reader = StateReader(uri, load)
    for version in (6, 7, 9, 9):
        state = reader.read_state(version)
        assert {*state.adds} == {key_of_file(*named) for named in list_live_files(uri, version)}
        assert state.rows == DeltaTable(uri, version=version).count()
    assert loaded == [6]
    assert reader.read_state(9) is reader.read_state(9)


def test_a_loaded_state_has_the_statistics_that_bound_keys(uri: str) -> None:
    state = load_plain_state(uri, 6)
    stats = [json.loads(add["stats"]) for add in state.adds.values()]
    assert sorted((each["minValues"]["id"], each["maxValues"]["v"], each["numRecords"]) for each in stats) == [
        (number, f"v{number}", 1) for number in range(7)
    ]
    assert all("d" not in each["minValues"] for each in stats), "doubles bound nothing here"


@pytest.mark.parametrize("odd", ["added again", "removed and not there", "of an unknown kind"])
def test_a_commit_that_cannot_be_followed_is_not_read_and_the_state_is_loaded_behind_it(uri: str, odd: str) -> None:
    reader = StateReader(uri, load_plain_state)
    add = {**next(iter(reader.read_state(9).adds.values())), "dataChange": True}
    remove = {"path": "gone.parquet", "dataChange": True, "partitionValues": {}}
    line = {"added again": {"add": add}, "removed and not there": {"remove": remove}}.get(odd, {"future": {}})
    append_actions(uri, 10, {"commitInfo": {}}, line)
    with pytest.raises(NotReadableHere):
        reader.read_state(10)
    write_deltalake(uri, pa.table({"id": [11], "v": ["z"], "d": [1.5]}), mode="append")
    assert {*reader.read_state(11).adds} == {key_of_file(*named) for named in list_live_files(uri, 11)}


@pytest.mark.parametrize("what", ["partitions", "deletion vectors"])
def test_tables_of_which_deltalake_does_not_show_all_are_not_read_from_it(tmp_path: Path, what: str) -> None:
    partition_by = ["p"] if what == "partitions" else None
    properties = {"delta.enableDeletionVectors": "true"} if what == "deletion vectors" else {}
    rows = pa.table({"id": [1], "p": ["a"]})
    write_deltalake(str(tmp_path), rows, partition_by=partition_by, configuration=properties)
    with pytest.raises(NotReadableHere):
        load_plain_state(str(tmp_path), 0)
    assert len(StateReader(str(tmp_path), load_plain_state).read_state(0).adds) == 1, "its commits are all there"


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
