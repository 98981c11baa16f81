"""A merge or an append without Spark leaves the rows that Spark's would, and commits at exactly the next version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from iscp.delta.rows.net_changes import inserts_of
from iscp.delta.rows.row_keys import TableKeys
from iscp.delta.sink.target_write import MERGED_COLUMNS_MAX, DirectWriter
from iscp.model.values.errors import Conflict
from iscp.ports.source import ChangesUnavailableError, Rows


def properties(seq: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction("iscp", seq)], max_commit_retries=0)


def target(path: Path, ids: list[int | None], configuration: dict[str, str] | None = None) -> str:
    rows = pa.table({"Id": pa.array(ids, pa.int64()), "a.b": pa.array([f"old {i}" for i in ids], pa.string())})
    write_deltalake(str(path), rows, configuration=configuration)
    return str(path)


def changes(*rows: tuple[int | None, str, str]) -> pa.Table:
    ids, values, ops = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {"Id": pa.array(ids, pa.int64()), "a.b": pa.array(values, pa.string()), "_iscp_op": pa.array(ops, pa.string())}
    )


def inserts(rows: pa.Table) -> pa.Table:
    return inserts_of(Rows(pytest.fail, lambda: rows)).table


def held(uri: str) -> dict[int, str]:
    table = DeltaTable(uri).to_pyarrow_table()
    assert len({*table["Id"].to_pylist()}) == len(table)
    return dict(zip(table["Id"].to_pylist(), table["a.b"].to_pylist(), strict=True))


@pytest.fixture(params=[MERGED_COLUMNS_MAX, 0], ids=["merged", "replaced"])
def writer(request: pytest.FixtureRequest) -> Callable[[str], DirectWriter]:
    """Writes into tables of few columns, and into these as into tables of many."""
    return lambda uri: DirectWriter(uri, TableKeys(uri), merged_columns_max=request.param)


def test_a_merge_inserts_updates_and_deletes_by_key_whatever_the_columns_are_called(
    writer: Callable[[str], DirectWriter], tmp_path: Path
) -> None:
    uri = target(tmp_path / "t", [1, 2, 3])
    written = writer(uri)
    assert written.merge(
        changes((1, "new", "u"), (2, "", "d"), (9, "", "d"), (4, "new", "i")), ["id"], 0, properties(1)
    )
    assert held(uri) == {1: "new", 3: "old 3", 4: "new"}
    assert written.merge(changes((5, "new", "u")), ["id"], 1, properties(2))
    assert held(uri) == {1: "new", 3: "old 3", 4: "new", 5: "new"}
    assert DeltaTable(uri).transaction_version("iscp") == 2


def test_keys_that_are_structs_or_lists_are_left_to_spark(
    writer: Callable[[str], DirectWriter], tmp_path: Path
) -> None:
    for number, (kind, value) in enumerate(((pa.struct([("p", pa.int64())]), {"p": 1}), (pa.list_(pa.int64()), [1]))):
        uri = str(tmp_path / str(number))
        write_deltalake(uri, pa.table({"k": pa.array([value], kind), "v": [1]}))
        rows = pa.table({"k": pa.array([value], kind), "v": [2], "_iscp_op": ["u"]})
        assert not writer(uri).merge(rows, ["k"], 0, properties(1))
        assert DeltaTable(uri).version() == 0


def test_a_merge_that_changes_nothing_is_a_commit_all_the_same(
    writer: Callable[[str], DirectWriter], tmp_path: Path
) -> None:
    uri = target(tmp_path / "t", [1])
    written = writer(uri)
    for version, rows in enumerate((changes((7, "", "d")), changes())):
        assert written.merge(rows, ["Id"], version, properties(version + 1))
        assert DeltaTable(uri).version() == version + 1
        assert DeltaTable(uri).transaction_version("iscp") == version + 1
    assert written.append(inserts(changes((8, "x", "i"))), 2, properties(3))
    assert held(uri) == {1: "old 1", 8: "x"}


def test_an_append_of_no_rows_is_a_commit(writer: Callable[[str], DirectWriter], tmp_path: Path) -> None:
    uri = target(tmp_path / "t", [1])
    assert writer(uri).append(inserts(changes()), 0, properties(1))
    assert DeltaTable(uri).transaction_version("iscp") == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda written, rows, *rest: written.append(inserts(rows), *rest),
        lambda written, rows, *rest: written.merge(rows, ["Id"], *rest),
    ],
)
def test_who_read_before_another_commit_is_refused(
    writer: Callable[[str], DirectWriter], write: Callable[..., bool], tmp_path: Path
) -> None:
    uri = target(tmp_path / "t", [1])
    kept = writer(uri)
    assert write(kept, changes((2, "x", "i")), 0, properties(1))
    write_deltalake(uri, DeltaTable(uri).to_pyarrow_table().slice(0, 0), mode="append")
    with pytest.raises(Conflict):
        write(kept, changes((3, "x", "i")), 1, properties(2))
    assert 3 not in held(uri)


def test_a_key_that_is_new_but_there_already_is_found_before_anything_is_written(
    writer: Callable[[str], DirectWriter], tmp_path: Path
) -> None:
    uri = target(tmp_path / "t", [1, 5, 9])
    with pytest.raises(ChangesUnavailableError):
        writer(uri).merge(changes((5, "new", "i"), (1, "new", "u")), ["Id"], 0, properties(1))
    assert DeltaTable(uri).version() == 0
    assert writer(uri).merge(changes((6, "new", "i"), (1, "new", "u")), ["Id"], 0, properties(1))
    assert held(uri) == {1: "new", 5: "old 5", 9: "old 9", 6: "new"}


def test_a_key_that_came_and_went_is_not_written_and_must_not_be_there(
    writer: Callable[[str], DirectWriter], tmp_path: Path
) -> None:
    uri = target(tmp_path / "t", [1, 3])
    written = writer(uri)
    assert written.append(inserts(changes((8, "new", "i"), (9, "gone", "p"))), 0, properties(1))
    assert written.merge(changes((2, "gone", "p"), (3, "new", "u")), ["Id"], 1, properties(2))
    assert written.merge(changes((2, "gone", "p")), ["Id"], 2, properties(3))
    assert held(uri) == {1: "old 1", 3: "new", 8: "new"}
    with pytest.raises(ChangesUnavailableError, match="is in the target already"):
        written.merge(changes((1, "gone", "p")), ["Id"], 3, properties(4))
    assert DeltaTable(uri).version() == 3


def test_a_key_of_two_columns_is_taken_as_a_whole(writer: Callable[[str], DirectWriter], tmp_path: Path) -> None:
    uri = target(tmp_path / "t", [1, 2])
    assert writer(uri).merge(changes((1, "other", "i"), (2, "old 2", "d")), ["Id", "a.b"], 0, properties(1))
    table = DeltaTable(uri).to_pyarrow_table().to_pylist()
    assert sorted(row["a.b"] for row in table) == ["old 1", "other"]
    with pytest.raises(ChangesUnavailableError):
        writer(uri).merge(changes((1, "other", "i")), ["Id", "a.b"], 1, properties(2))


def test_what_is_not_certain_to_come_out_the_same_is_left_to_spark(
    writer: Callable[[str], DirectWriter], tmp_path: Path
) -> None:
    masked = target(tmp_path / "masked", [1], {"delta.enableDeletionVectors": "true"})
    checked = target(tmp_path / "checked", [1])
    DeltaTable(checked).alter.add_constraint({"small": "Id < 100"})
    for uri, version in ((masked, 0), (checked, 1)):
        assert not writer(uri).append(inserts(changes((2, "x", "i"))), version, properties(1))
        assert not writer(uri).merge(changes((2, "x", "u")), ["Id"], version, properties(1))
        assert DeltaTable(uri).version() == version


def test_null_keys_are_left_to_spark(writer: Callable[[str], DirectWriter], tmp_path: Path) -> None:
    uri = target(tmp_path / "t", [1, None])
    assert not writer(uri).merge(changes((None, "x", "u")), ["Id"], 0, properties(1))
    assert writer(uri).merge(changes((1, "x", "u")), ["Id"], 0, properties(1))
    assert held(uri) == {1: "x", None: "old None"}


def test_only_files_that_may_hold_a_key_count_against_the_limit(tmp_path: Path) -> None:
    uri = target(tmp_path / "t", [*range(1000)])
    more = pa.table({"Id": pa.array(range(1000, 2000), pa.int64()), "a.b": ["x"] * 1000})
    write_deltalake(uri, more, mode="append")
    sizes = pa.table(DeltaTable(uri).get_add_actions())["size_bytes"].to_pylist()
    one_file = DirectWriter(uri, TableKeys(uri), rewritten_bytes_max=max(sizes))
    assert not one_file.merge(changes((5, "x", "u"), (1005, "x", "u")), ["Id"], 1, properties(1))
    assert one_file.merge(changes((5, "x", "u"), (6, "x", "u")), ["Id"], 1, properties(1))


def test_values_whose_statistics_would_be_no_bounds_are_left_to_spark(
    writer: Callable[[str], DirectWriter], tmp_path: Path
) -> None:
    """deltalake writes decimals as doubles in statistics, and leaves out NaN: a merge would skip files that match."""
    uri, columns = str(tmp_path / "t"), {"k": pa.decimal128(18, 2), "x": pa.float64()}
    write_deltalake(uri, pa.schema([pa.field(name, kind) for name, kind in columns.items()]).empty_table())
    long = pa.table(
        {"k": pa.array([], columns["k"]), "x": pa.array([], pa.float64()), "_iscp_op": pa.array([], pa.string())}
    )
    assert not writer(uri).append(inserts(long), 0, properties(1))
    assert not writer(uri).merge(long, ["k"], 0, properties(1))
    odd = pa.table({"Id": [1], "a.b": ["x"], "x": [float("nan")], "_iscp_op": ["i"]})
    assert not writer(uri).append(inserts(odd), 0, properties(1))
    assert writer(target(tmp_path / "u", [1])).append(inserts(changes((2, "x", "i"))), 0, properties(1))
