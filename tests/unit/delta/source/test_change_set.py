"""Changes as delta-rs writes them, against the rows before and after, many of which are equal."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.source.change_set import DeltaChangeSet
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.model.job.iteration import Bounds
from iscp.model.values.watermark import Watermark
from iscp.ports.source import ChangeSet, ChangesUnavailableError

COLUMNS = ("a", "b")
ROWS = 12
WRITTEN = ("insert", "update_postimage")
UNBOUNDED = Bounds(sys.maxsize, sys.maxsize, sys.maxsize)


def rows(draw: random.Random, most: int) -> pa.Table:
    """Few values, so that many rows are equal."""
    found = [(draw.choice([None, 1, 2, 3]), draw.choice([None, "p", "q"])) for _ in range(draw.randint(1, most))]
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    return pa.table(dict(zip(COLUMNS, map(list, zip(*found, strict=True)), strict=True)), schema)


def merge(table: DeltaTable, draw: random.Random) -> None:
    source = pa.table({"a": [1, 2], "b": ["p", "z"]})
    merging = table.merge(source, "s.a = t.a", source_alias="s", target_alias="t")
    merging.when_matched_update(updates={"b": "s.b"}).when_not_matched_insert_all().execute()


CHANGES: Mapping[str, Callable[[DeltaTable, random.Random], Any]] = {
    "update": lambda table, draw: table.update(updates={"a": "3"}, predicate="a = 1"),
    "update by its own value": lambda table, draw: table.update(updates={"a": "a + 1"}),
    "exchange": lambda table, draw: table.update(updates={"a": "CASE WHEN a = 1 THEN 2 WHEN a = 2 THEN 1 ELSE a END"}),
    "delete": lambda table, draw: table.delete("a = 1"),
    "merge": merge,
    "append": lambda table, draw: write_deltalake(table, rows(draw, 3), mode="append"),
}


LOSING = ("update", "update by its own value", "exchange")


@pytest.mark.parametrize("name", CHANGES)
def test_what_change_data_lack_is_taken_from_the_files_that_were_rewritten(tmp_path: Path, name: str) -> None:
    lacking = 0
    for seed in range(12):
        uri, draw = str(tmp_path / str(seed)), random.Random(seed)
        write_deltalake(uri, rows(draw, ROWS), configuration={"delta.enableChangeDataFeed": "true"})
        before = bag(uri)
        CHANGES[name](DeltaTable(uri), draw)
        if DeltaTable(uri).version() == 0:  # no row met the condition
            continue
        changes = changes_of(uri)
        exact = changes.with_equal_rows()
        lacking += exact is not changes
        moved = Counter(bag(uri))
        moved.subtract(before)
        assert net(exact) == {row: times for row, times in moved.items() if times}, seed
        assert exact.with_equal_rows() is exact
    assert bool(lacking) is (name in LOSING)


def test_what_of_these_is_written_is_counted_without_a_key(tmp_path: Path) -> None:
    """One row becomes equal to one that is there: it is written once more."""
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"a": [1, 3], "b": ["p", "p"]}), configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(uri).update(updates={"a": "3"}, predicate="a = 1")
    assert net(changes_of(uri)) == {(1, "p"): -1}
    found = changes_of(uri).net(()).net.table
    assert found is not None
    assert [(row["a"], row["b"]) for row in found.to_pylist()] == [(3, "p")]


def test_files_that_are_gone_are_no_changes(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write_deltalake(uri, pa.table({"a": [1, 3], "b": ["p", "p"]}), configuration={"delta.enableChangeDataFeed": "true"})
    (old,) = DeltaTable(uri).file_uris()
    DeltaTable(uri).update(updates={"a": "3"}, predicate="a = 1")
    Path(old).unlink()
    with pytest.raises(ChangesUnavailableError):
        changes_of(uri).with_equal_rows()


def test_an_update_of_different_rows_is_read_from_its_change_data(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = pa.table({"a": [1, 2, 3], "b": ["p", "q", "r"]})
    write_deltalake(uri, table, configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(uri).update(updates={"b": "'z'"}, predicate="a < 3")
    changes = changes_of(uri)
    assert changes.with_equal_rows() is changes
    assert net(changes) == {(1, "p"): -1, (2, "q"): -1, (1, "z"): 1, (2, "z"): 1}


def vectors(*values: Sequence[float | None] | None) -> pa.Array:
    return pa.array(values, pa.list_(pa.float32()))


def test_arrays_of_reals_are_read_here_and_handed_to_whoever_takes_them(tmp_path: Path) -> None:
    """Nothing else takes these rows for a table, as arrays are not compared here."""
    uri = str(tmp_path / "t")
    old, new = [1.5, 2.5], [0.5, None]
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(uri, pa.table({"a": [1, 2, 3], "b": vectors(old, None, [])}), configuration=feed)
    merging = DeltaTable(uri).merge(
        pa.table({"a": [1, 4], "b": vectors(new, old)}), "s.a = t.a", source_alias="s", target_alias="t"
    )
    merging.when_matched_update_all().when_not_matched_insert_all().execute()
    DeltaTable(uri).delete("a = 2")
    changes = changes_of(uri)
    assert changes.table is None
    found = changes.net(("a",))
    assert found.net.table is None
    assert found.with_arrays is not None
    assert found.rows == 3
    rows = {row["a"]: (row["_iscp_op"], row["b"]) for row in found.with_arrays.to_pylist()}
    assert rows == {1: ("u", new), 2: ("d", None), 4: ("i", old)}


def bag(uri: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in DeltaTable(uri).to_pyarrow_table().select(COLUMNS).to_pylist())


def changes_of(uri: str) -> DeltaChangeSet:
    source = DeltaChangeSource()
    span = source.resolve(uri, Watermark(0), None, UNBOUNDED)
    return source.read_cdf(None, uri, span, COLUMNS, 1)  # type: ignore[arg-type]


def net(changes: ChangeSet) -> dict[tuple[Any, ...], int]:
    assert changes.table is not None
    found: Counter[tuple[Any, ...]] = Counter()
    for row in changes.table.to_pylist():
        found[row["a"], row["b"]] += 1 if row["_change_type"] in WRITTEN else -1
    return {row: times for row, times in found.items() if times}
