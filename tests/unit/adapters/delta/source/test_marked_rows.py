"""Rows that a commit takes away, or puts back, by deletion vectors alone are read from the files and the vectors."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.adapters.delta.log.commits import read_changed_files
from iscp.adapters.delta.log.deletion_vectors import pack_vectors, vectors_path
from iscp.adapters.delta.source.arrow_read import NotDirectError, Shape, read_changes
from iscp.adapters.delta.storage.bounded_parquet import Allowance, TooLargeError

FEED = {"delta.enableChangeDataFeed": "true"}
MEMORY = 1_000_000


class MarkedTable:
    """A table of one file with the rows 0, 1, …, 9, of which each commit marks others as gone."""

    def __init__(self, root: Path) -> None:
        self.uri = str(root / "t")
        rows = pa.table({"id": pa.array(range(10), pa.int64()), "v": [f"v{each}" for each in range(10)]})
        write_deltalake(self.uri, rows, configuration=FEED)
        self.version = 0
        actions = self.commit_path(0).read_text().splitlines()
        self.add: dict[str, Any] = next(json.loads(each)["add"] for each in actions if '"add"' in each)

    def commit_path(self, version: int) -> Path:
        return Path(self.uri, "_delta_log", f"{version:020d}.json")

    def vector(self, places: Sequence[int]) -> dict[str, Any] | None:
        if not places:
            return None
        content, (descriptor,) = pack_vectors(name := uuid.uuid4(), [np.array(places, np.int64)])
        Path(self.uri, vectors_path(name)).write_bytes(content)
        return descriptor

    def mark(self, *places: int, changes: tuple[bool, bool] = (True, True), put_back: bool = True) -> None:
        """Commit that these rows of the file are gone; `changes` are what its two actions say of that."""
        names = ("path", "partitionValues", "size", "deletionVector")
        remove = {name: self.add[name] for name in names if self.add.get(name) is not None}
        actions: list[dict[str, Any]] = [{"remove": remove | {"dataChange": changes[0]}}]
        if put_back:
            self.add = {**self.add, "deletionVector": self.vector(places), "dataChange": changes[1]}
            actions.append({"add": {name: value for name, value in self.add.items() if value is not None}})
        self.commit(actions)

    def commit(self, actions: Sequence[dict[str, Any]]) -> None:
        self.version += 1
        self.commit_path(self.version).write_text("\n".join(map(json.dumps, actions)))

    def changes(self, version: int, memory: int = MEMORY, columns: Sequence[str] = ("id", "v")) -> list[Any]:
        commit = read_changed_files(self.uri, version)
        assert commit is not None
        shape = Shape.of(DeltaTable(self.uri, version=0))
        table = read_changes(self.uri, [commit], shape, columns, True, Allowance(memory))
        return [(*(row[name] for name in columns), row["_change_type"]) for row in table.to_pylist()]


@pytest.fixture
def table(tmp_path: Path) -> MarkedTable:
    return MarkedTable(tmp_path)


def test_rows_go_and_come_back_by_what_two_vectors_differ_in(table: MarkedTable) -> None:
    table.mark(2, 7)
    assert table.changes(1) == [(2, "v2", "delete"), (7, "v7", "delete")]
    table.mark(2, 3, 9)
    assert table.changes(2) == [(3, "v3", "delete"), (9, "v9", "delete"), (7, "v7", "insert")]
    table.mark()
    assert table.changes(3) == [(each, f"v{each}", "insert") for each in (2, 3, 9)]
    assert table.changes(2, columns=["id"]) == [(3, "delete"), (9, "delete"), (7, "insert")]


def test_a_file_that_comes_or_goes_with_a_vector_has_the_other_rows(table: MarkedTable) -> None:
    table.mark(0, 1, 2, 3, 4, 5)
    table.mark(put_back=False)
    assert table.changes(2) == [(each, f"v{each}", "delete") for each in (6, 7, 8, 9)]
    table.commit([{"add": table.add}])
    assert table.changes(3) == [(each, f"v{each}", "insert") for each in (6, 7, 8, 9)]


def test_vectors_that_change_no_rows_by_their_commits_word_are_no_changes(table: MarkedTable) -> None:
    table.mark(2, changes=(False, False))
    assert table.changes(1) == []


@pytest.mark.parametrize("changes", [(True, False), (False, True)])
def test_a_commit_that_says_both_is_left_to_spark(table: MarkedTable, changes: tuple[bool, bool]) -> None:
    table.mark(2, changes=changes)
    with pytest.raises(NotDirectError):
        table.changes(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"storageType": "p", "pathOrInlineDv": "file:///elsewhere"},
        {"cardinality": 2},
        {"offset": 3},
        {"sizeInBytes": -1},
        {"pathOrInlineDv": "0" * 20},
    ],
    ids=lambda wrong: min(wrong),
)
def test_a_vector_that_is_not_what_it_should_be_is_left_to_spark(table: MarkedTable, wrong: dict[str, Any]) -> None:
    table.mark(4)
    table.add["deletionVector"] = {**table.add["deletionVector"], **wrong}
    table.mark(put_back=False)
    with pytest.raises(NotDirectError):
        table.changes(2)


@pytest.mark.parametrize("kind", ["add", "remove"])
def test_a_commit_that_names_a_file_twice_is_left_to_spark(table: MarkedTable, kind: str) -> None:
    first, second = ({**table.add, "deletionVector": table.vector([place]), "dataChange": True} for place in (3, 5))
    before = {name: table.add[name] for name in ("path", "partitionValues", "size")} | {"dataChange": True}
    table.commit([{"remove": before}, {"add": first}, {kind: second}])
    with pytest.raises(NotDirectError):
        table.changes(1)


def test_a_vector_beyond_the_file_is_left_to_spark(table: MarkedTable) -> None:
    table.mark(4, 10)
    with pytest.raises(NotDirectError):
        table.changes(1)


def test_vectors_count_against_the_memory_that_changes_may_take(table: MarkedTable) -> None:
    table.mark(4)
    size = table.add["deletionVector"]["sizeInBytes"]
    assert size > 1
    with pytest.raises(TooLargeError):
        table.changes(1, memory=size - 1)


def test_a_random_history_of_vectors_has_the_changes_of_the_rows_that_are_left(table: MarkedTable) -> None:
    """What a reader sees before and after each commit differs by its changes (Delta protocol, "Deletion Vectors")."""
    draw, live, restored = random.Random(5), {*range(10)}, 0
    for _ in range(60):
        gone = sorted(draw.sample(range(10), draw.randint(0, 9)))
        if gone == sorted({*range(10)} - live):
            continue  # the same vector twice is no commit
        table.mark(*gone)
        now = {*range(10)} - {*gone}
        changes = [(id_, change) for id_, _, change in table.changes(table.version)]
        assert sorted(changes) == sorted(
            [*((each, "delete") for each in live - now), *((each, "insert") for each in now - live)]
        )
        restored += len(now - live)
        live = now
    assert restored > 50
