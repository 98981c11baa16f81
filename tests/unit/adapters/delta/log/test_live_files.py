"""States of tables, from deltalake and commit by commit: equal to what deltalake says of each version, or not read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.adapters.delta.log.action_fields import key_of_file
from iscp.adapters.delta.log.live_files import (
    NotReadableHere,
    StateReader,
    TableState,
    list_live_files,
    load_plain_state,
)
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
