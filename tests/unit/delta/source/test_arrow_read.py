"""Changes read directly from the files of commits equal those of the change data feed, or are left to Spark.

Rows that a commit takes away, or puts back, by deletion vectors alone are read from the files and the vectors.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from iscp.delta.log.commits import read_changed_files
from iscp.delta.log.readable_files import pack_vectors, vectors_path
from iscp.delta.source.arrow_read import NotDirectError, Shape, read_changes
from iscp.ports.source import ChangesUnavailableError
from iscp.storage.bounded_parquet import Allowance, TooLargeError

MEMORY = 1_000_000
FEED = {"delta.enableChangeDataFeed": "true"}


def rows(*ids: int, **more: object) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{i}" for i in ids], **more})


def read(uri: str, versions: range, *columns: str, new_schema: bool = True) -> list[tuple[object, ...]]:
    commits = [read_changed_files(uri, version) for version in versions]
    shape = Shape.of(DeltaTable(uri))
    found, names = [commit for commit in commits if commit], columns or ("id", "v")
    table = read_changes(uri, found, shape, names, True, Allowance(MEMORY), new_schema=new_schema)
    assert table.schema.names[-3:] == ["_change_type", "_commit_version", "_commit_timestamp"]
    return [tuple(row.values())[:-1] for row in table.to_pylist()]


def test_every_kind_of_commit(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, rows(1, 2), configuration=FEED)
    write_deltalake(uri, rows(3), mode="append")
    DeltaTable(uri).update(new_values={"v": "new"}, predicate="id = 1")
    DeltaTable(uri).delete("id = 2")
    DeltaTable(uri).optimize.compact()
    write_deltalake(uri, rows(9), mode="overwrite")
    assert read(uri, range(1, 2)) == [(3, "v3", "insert", 1)]
    assert {*read(uri, range(2, 3))} == {(1, "v1", "update_preimage", 2), (1, "new", "update_postimage", 2)}
    assert read(uri, range(3, 5), "id") == [(2, "delete", 3)]
    gone = {(1, "new", "delete", 5), (3, "v3", "delete", 5), (9, "v9", "insert", 5)}
    assert {*read(uri, range(5, 6))} == gone


def test_partition_columns_and_columns_younger_than_a_file(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(
        uri, rows(1, 2, p=["a b", None], n=pa.array([7, 8], pa.int32())), partition_by=["p", "n"], configuration=FEED
    )
    write_deltalake(uri, rows(3, p=["c"], n=pa.array([9], pa.int32()), late=[1.5]), mode="append", schema_mode="merge")
    write_deltalake(uri, rows(4, p=["c"], n=pa.array([9], pa.int32())), mode="append", schema_mode="merge")
    with pytest.raises(NotDirectError):
        read(uri, range(1, 2), "id", "late")  # that commit made the column
    assert read(uri, range(2, 3), "id", "p", "n", "late") == [(4, "c", 9, None, "insert", 2)]
    DeltaTable(uri).delete("id < 3")
    assert {*read(uri, range(3, 4), "id", "p", "n")} == {(1, "a b", 7, "delete", 3), (2, None, 8, "delete", 3)}


def test_a_property_is_no_reason_for_spark_and_a_column_is(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, rows(1), configuration=FEED)
    DeltaTable(uri).alter.set_table_properties({"touched": "1"}, raise_if_not_exists=False)
    DeltaTable(uri).alter.add_columns(Field("late", PrimitiveType("long")))
    write_deltalake(uri, rows(2, late=[5]), mode="append")
    assert read(uri, range(1, 2), new_schema=False) == []
    for versions, new_schema in ((range(1, 3), True), (range(2, 3), True), (range(1, 4), False)):
        with pytest.raises(NotDirectError):
            read(uri, versions, new_schema=new_schema)


def test_a_table_without_a_feed_or_with_deletion_vectors_is_left_to_spark(tmp_path: Path) -> None:
    uri = str(tmp_path / "plain")
    write_deltalake(uri, rows(1))
    write_deltalake(uri, rows(2), mode="append")
    with pytest.raises(NotDirectError):
        read(uri, range(1, 2))
    uri = str(tmp_path / "masked")
    write_deltalake(uri, rows(1), configuration=FEED)
    write_deltalake(uri, rows(2), mode="append")
    commit = Path(uri, "_delta_log", f"{1:020d}.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"] = {
                "storageType": "u",
                "pathOrInlineDv": "x",
                "sizeInBytes": 1,
                "cardinality": 1,
            }
    commit.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(NotDirectError):
        read(uri, range(1, 2))


def test_types_that_arrow_has_otherwise_are_left_to_spark_unless_nobody_wants_them(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for mode in ("error", "append"):
        write_deltalake(uri, rows(1, tags=[["a"]], more=[[["a"]]]), mode=mode, configuration=FEED)
    with pytest.raises(NotDirectError):
        read(uri, range(1, 2), "id", "more")
    assert read(uri, range(1, 2), "id") == [(1, "insert", 1)]
    assert read(uri, range(1, 2), "tags") == [(["a"], "insert", 1)]


def test_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for mode in ("error", "append"):
        write_deltalake(uri, rows(1), mode=mode, configuration=FEED)
    for file in Path(uri).glob("*.parquet"):
        file.unlink()
    with pytest.raises(ChangesUnavailableError):
        read(uri, range(1, 2))


MARK = "org.apache.spark.legacyDateTime"
VERSION = "org.apache.spark.version"


@pytest.mark.parametrize(
    ("told", "is_certain"),
    [
        ({}, False),  # whatever Spark is set to
        ({VERSION: "2.4.8"}, False),
        ({VERSION: "3.0.3"}, False),
        ({VERSION: "3.1.0"}, True),
        ({VERSION: "4.1.1"}, True),
        ({VERSION: "4.1.1", MARK: ""}, False),
        ({VERSION: "3.5.0", "org.apache.spark.legacyINT96": ""}, False),
    ],
)
@pytest.mark.parametrize(("day", "is_early"), [(-25_568, True), (-25_567, False), (None, False)])
@pytest.mark.parametrize("type_", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")])
def test_dates_that_may_be_of_the_old_calendar_are_left_to_spark(
    told: dict[str, str], is_certain: bool, day: int | None, is_early: bool, type_: pa.DataType, tmp_path: Path
) -> None:
    uri = str(tmp_path / "t")
    days = pa.array([None, day], pa.int32()).cast(pa.date32())
    at = days if type_ == pa.date32() else days.cast(pa.timestamp("us")).cast(type_)
    for mode in ("error", "append"):
        write_deltalake(uri, rows(1, 2, at=at), mode=mode, configuration=FEED)
    for file in Path(uri).glob("*.parquet"):
        pq.write_table(pq.read_table(file).replace_schema_metadata(told), file)
    assert len(read(uri, range(1, 2), "id", "v")) == 2  # nobody wants the dates
    if is_certain or not is_early:
        assert len(read(uri, range(1, 2), "id", "at")) == 2
    else:
        with pytest.raises(NotDirectError):
            read(uri, range(1, 2), "id", "at")


def test_old_timestamps_and_strings_that_are_no_text(tmp_path: Path) -> None:
    """Spark writes timestamps of 96 bits unless configured otherwise, which as nanoseconds would overflow."""
    uri = str(tmp_path / "t")
    at = pa.array([-62_135_596_800_000_000], pa.timestamp("us", "UTC"))
    for mode in ("error", "append"):
        write_deltalake(uri, rows(1, at=at), mode=mode, configuration=FEED)
    for file in Path(uri).glob("*.parquet"):
        table = pq.read_table(file).replace_schema_metadata({VERSION: "3.5.0"})
        pq.write_table(table, file, use_deprecated_int96_timestamps=True)
    (row,) = read(uri, range(1, 2), "id", "at")
    assert str(row[1]).startswith("0001-01-01 00:00:00")
    for file in Path(uri).glob("*.parquet"):
        wrong = pa.table({"id": pa.array([1], pa.int64()), "v": pa.array([b"\xff"]).view(pa.string()), "at": at})
        pq.write_table(wrong, file)
    with pytest.raises(NotDirectError):
        read(uri, range(1, 2), "v")


def test_a_merge_that_says_that_it_changed_nothing_is_not_believed(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    for mode in ("error", "append"):
        write_deltalake(uri, rows(1), mode=mode, configuration=FEED)
    commit = Path(uri, "_delta_log", f"{1:020d}.json")
    for counts in (("0", "0", "0"), ("1", "0", "0")):
        metrics = {
            f"numTargetRows{what}": n for what, n in zip(("Inserted", "Updated", "Deleted"), counts, strict=True)
        }
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"] |= {"operation": "MERGE", "operationMetrics": metrics}
        commit.write_text("\n".join(map(json.dumps, actions)))
        assert read(uri, range(1, 2)) == [(1, "v1", "insert", 1)]


def test_a_file_of_unknown_size_is_left_to_spark(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, rows(1), configuration=FEED)
    DeltaTable(uri).delete()
    commit = Path(uri, "_delta_log", f"{1:020d}.json")
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        action.get("remove", {}).pop("size", None)
    commit.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(NotDirectError):
        read(uri, range(1, 2))


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
