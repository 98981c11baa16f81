"""Rows of many kinds become the feed's columns; what would lose something on the way is refused.

The ulids of an append: consecutive, without each of them being held in memory.
"""

from __future__ import annotations

import datetime as dt
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from iscp.changefeed import Ulids
from iscp.changefeed.client.input_rows import STREAM_BATCHES_MAX, STREAM_BYTES_MAX, OrderBy, Rows, prepare
from iscp.changefeed.model.ulid import UlidPlace, parse_ulid
from iscp.changefeed.table.file_writer import FeedRows
from iscp.model.values.errors import InvalidRequest
from tests.fakes.text_bytes import texts

WANTED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
ROWS = [{"id": 2, "name": "b"}, {"id": 1, "name": None}]
NO_TEXT = texts(b"\xff")
NESTED = pa.schema([("s", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.int64())])))]))])


def fitted(rows: Rows, wanted: pa.Schema = WANTED, order_by: OrderBy = (), operation: Any = "insert") -> FeedRows:
    found = prepare(rows, wanted, order_by, operation)
    assert isinstance(found, FeedRows)
    assert found.rows.schema == wanted
    return found


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        tuple(ROWS),
        pa.Table.from_pylist(ROWS),
        pa.RecordBatch.from_pylist(ROWS),
        pd.DataFrame(ROWS),
        pa.table({"name": pa.array(["b", None], pa.large_string()), "id": pa.array([2, 1], pa.int8())}),
        pa.table({"name": pa.array(["b", None]).dictionary_encode(), "id": pa.array([2.0, 1.0])}),
    ],
    ids=["dicts", "tuple", "table", "batch", "pandas", "other order and widths", "dictionary and floats"],
)
def test_rows_of_every_kind_are_the_same_rows(rows: Rows) -> None:
    found = fitted(rows)
    assert found.rows.to_pylist() == ROWS
    assert found.operations.to_pylist() == ["insert", "insert"]


def given(rows: Any, interface: str) -> Any:
    """Return an object that hands over columns by Arrow's interface of this name, and has nothing else."""
    return type("Rows", (), {interface: lambda _, schema=None: getattr(rows, interface)(schema)})()


VIEWS = pa.table({"name": pa.array(["b", None], pa.string_view()), "id": pa.array([2, 1], pa.int32())})
"""Texts as Polars hands them over."""

RELATION = "SELECT * FROM (VALUES (2, 'b'), (1, NULL)) AS t(id, name)"


@pytest.mark.parametrize(
    "rows",
    [
        given(VIEWS, "__arrow_c_stream__"),
        given(VIEWS.to_batches()[0], "__arrow_c_array__"),
        pa.RecordBatchReader.from_batches(
            VIEWS.schema, [each for one in (0, 1) for each in VIEWS[one : one + 1].to_batches()]
        ),
        duckdb.connect().sql(RELATION),
    ],
    ids=["stream", "array", "reader of two batches", "DuckDB's relation"],
)
def test_columns_are_taken_by_arrows_interface(rows: Rows) -> None:
    assert fitted(rows).rows.to_pylist() == ROWS


def endless(batch: pa.RecordBatch) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(batch.schema, itertools.repeat(batch))


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"id": np.zeros(2**23, dtype=np.int64), "name": pa.nulls(2**23, pa.null())}),
        pa.record_batch([[], []], WANTED),
    ],
    ids=["large batches", "empty batches"],
)
def test_a_stream_without_end_is_refused(batch: pa.RecordBatch) -> None:
    with pytest.raises(InvalidRequest, match=f"more than {STREAM_BYTES_MAX} bytes, or {STREAM_BATCHES_MAX} batches"):
        fitted(endless(batch))


def test_a_stream_that_is_no_rows_or_fails_is_refused() -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from VIEWS.to_batches()
        raise ValueError("the producer fails")

    failing_stream = pa.RecordBatchReader.from_batches(VIEWS.schema, failing())
    for rows in (pa.chunked_array([[1, 2]]), pa.array([1, 2]), given(failing_stream, "__arrow_c_stream__")):
        with pytest.raises(InvalidRequest, match="do not become columns") as refused:
            fitted(rows)
        assert refused.value.field == "rows"


def test_no_rows_are_rows_too() -> None:
    nothing: list[dict[str, Any]] = []
    for rows in (nothing, WANTED.empty_table()):
        found = fitted(rows)
        assert (len(found.rows), len(found.operations)) == (0, 0)


@pytest.mark.parametrize(
    ("rows", "field", "complaint"),
    [
        ([{"id": 1}], "rows", "row 0 is a dict with id"),
        ([{"id": 1, "name": "a"}, {"id": 1, "name": "a", "more": 1}], "rows", "row 1 is a dict with id, name, more"),
        ([1], "rows", "row 0 is 1"),
        ([{"id": "x", "name": "a"}], "rows.id", "does not fit"),
        ([{"id": None, "name": "a"}], "rows.id", "has nulls"),
        ([{"id": 1 << 70, "name": "a"}], "rows.id", "does not fit"),
        ([{"id": 1.5, "name": "a"}], "rows.id", "does not fit"),
        ([{"id": 1, "name": b"\xff"}], "rows.name", "does not fit"),
        ([{"id": 1, "name": "a"}, {"id": 2, "name": 5}], "rows.name", "does not fit"),
        (pa.table({"id": [1]}), "rows", "have the columns id"),
        (pa.table([[1], ["a"], ["a"]], names=["id", "name", "name"]), "rows", "id, name, name"),
        (pa.table({"id": [1], "Name": ["a"]}), "rows", "id, Name"),
        (pa.table({"id": [1.5], "name": ["a"]}), "rows.id", "does not fit"),
        (pa.table({"id": ["x"], "name": ["a"]}), "rows.id", "does not fit"),
        (pa.table({"id": pa.nulls(1, pa.int64()), "name": ["a"]}), "rows.id", "has nulls"),
        (pa.table({"id": [1], "name": NO_TEXT}), "rows.name", "does not fit"),
        (pa.table({"id": [1], "name": NO_TEXT.dictionary_encode()}), "rows.name", "does not fit"),
        (pd.DataFrame({"id": [1, "x"], "name": ["a", "b"]}), "rows", "do not become columns"),
        ({"id": 1, "name": "a"}, "rows", "are a dict"),
        ("rows", "rows", "are a str"),
        (None, "rows", "are a NoneType"),
    ],
)
def test_what_does_not_fit_is_refused_with_field_and_remedy(rows: Rows, field: str, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        fitted(rows)
    assert refused.value.field == field
    assert refused.value.remedy


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": [], "zz": 1},
        {"a": 1},
        {"a": 1, "b": [{"c": 1, "zz": 1}]},
        {"a": 1, "b": [{}]},
        {"a": 1 << 40, "b": []},
    ],
)
def test_nested_values_lose_nothing_either(value: Any) -> None:
    for rows in ([{"s": value}], pa.table({"s": [value]})):
        with pytest.raises(InvalidRequest) as refused:
            fitted(rows, NESTED)
        assert refused.value.field == "rows.s"


def test_texts_that_are_no_utf8_are_refused_within_others_and_as_operations() -> None:
    wanted = pa.schema([("s", pa.struct([("a", pa.string())]))])
    with pytest.raises(InvalidRequest, match="UTF8") as refused:
        fitted(pa.table({"s": pa.StructArray.from_arrays([NO_TEXT], ["a"])}), wanted)
    assert refused.value.field == "rows.s"
    with pytest.raises(InvalidRequest, match="UTF8") as refused:
        fitted(ROWS[:1], operation=NO_TEXT)
    assert refused.value.field == "operation"


def test_nested_values_that_fit_are_taken() -> None:
    rows = [{"s": {"b": [{"c": 1}, None], "a": 5}}, {"s": None}, {"s": {"a": None, "b": None}}]
    assert fitted(rows, NESTED).rows.to_pylist() == rows


def test_maps_and_times_keep_what_they_hold() -> None:
    wanted = pa.schema([("m", pa.map_(pa.string(), pa.int64())), ("t", pa.timestamp("us", "UTC"))])
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    given = pa.table(
        {"m": pa.array([[("a", 1)]], wanted.field("m").type), "t": pa.array([at], pa.timestamp("ns", "UTC"))}
    )
    assert fitted(given, wanted).rows.to_pylist() == [{"m": [("a", 1)], "t": at}]
    late = pa.table({"m": given["m"], "t": pa.array([1], pa.timestamp("ns", "UTC"))})
    with pytest.raises(InvalidRequest, match="would lose data"):
        fitted(late, wanted)
    with pytest.raises(InvalidRequest, match="has times of a day"):
        fitted([{"d": at}], pa.schema([("d", pa.date32())]))


# --- order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order_by", "expected"),
    [
        ((), "cabd"),
        ("n", "bcad"),
        (["n"], "bcad"),
        ([("n", "descending")], "dcab"),
        (["n", ("s", "descending")], "bcad"),
        ([("s", "descending")], "dcba"),
        (["n", "s"], "bacd"),
    ],
)
def test_rows_are_sorted_and_equal_ones_stay_in_their_order(order_by: OrderBy, expected: str) -> None:
    wanted = pa.schema([("n", pa.int64()), ("s", pa.string())])
    rows = [{"n": n, "s": s} for n, s in ((2, "c"), (2, "a"), (1, "b"), (3, "d"))]
    operations = [f"op-{row['s']}" for row in rows]
    found = fitted(rows, wanted, order_by, operations)
    assert "".join(found.rows["s"].to_pylist()) == expected
    assert found.operations.to_pylist() == [f"op-{s}" for s in expected], "each operation stays with its row"


def test_rows_are_sorted_by_the_types_of_the_feed() -> None:
    found = fitted(pa.table({"id": ["10", "9"], "name": ["a", "b"]}), order_by="id")
    assert found.rows["id"].to_pylist() == [9, 10]


@pytest.mark.parametrize("order_by", [["nobody"], "nobody", [("id", "downwards")], [("nobody", "descending")]])
def test_an_order_that_is_none_is_refused(order_by: OrderBy) -> None:
    with pytest.raises(InvalidRequest, match="says no order") as refused:
        fitted(ROWS, order_by=order_by)
    assert refused.value.field == "order_by"
    assert "id, name" in refused.value.remedy


# --- operations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        ["a", "b"],
        pa.array(["a", "b"]),
        pa.array(["a", "b"], pa.large_string()),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.chunked_array([["a"], ["b"]]),
    ],
)
def test_each_row_may_have_an_operation_of_its_own(operation: Any) -> None:
    assert fitted(ROWS, operation=operation).operations.to_pylist() == ["a", "b"]


@pytest.mark.parametrize("operation", [["a"], pa.array(["a", None]), pa.array([1, 2]), ["a", 2], None, 5])
def test_operations_that_are_not_one_text_for_each_row_are_refused(operation: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        fitted(ROWS, operation=operation)
    assert refused.value.field == "operation"


def test_spark_is_not_loaded() -> None:
    code = (
        "import sys, pyarrow as pa; from iscp import changefeed\n"
        "from iscp.changefeed.client.input_rows import prepare\n"
        "prepare([{'id': 1}], pa.schema([('id', pa.int64())]), (), 'insert')\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


PLACE = UlidPlace(1_700_000_000_000 << 16 | 7, -(1 << 63) + 0xFFFF_FFFE)


def test_they_follow_one_another() -> None:
    ulids = Ulids(PLACE, 5)
    texts = list(ulids)
    assert texts == sorted(texts) == [ulids[number] for number in range(5)]
    assert [parse_ulid(text) for text in texts] == [ulids.bytes(number) for number in range(5)]
    assert (ulids.first, ulids.last, ulids[-2], len(ulids)) == (texts[0], texts[4], texts[3], 5)


def test_as_columns_they_are_the_same() -> None:
    ulids = Ulids(PLACE, 100)
    as_bytes, as_texts = ulids.columns()
    assert as_texts.to_pylist() == list(ulids)
    assert as_bytes.to_pylist() == [ulids.bytes(number) for number in range(100)]


def test_many_cost_no_more_than_one() -> None:
    assert Ulids(PLACE, 1 << 35).last > Ulids(PLACE, 1 << 34).last


def test_of_none_there_is_no_first() -> None:
    none = Ulids(PLACE, 0)
    assert list(none) == []
    looks: tuple[Callable[[], object], ...] = (
        lambda: none.first,
        lambda: none.last,
        lambda: none[0],
        lambda: Ulids(PLACE, 2)[2],
    )
    for look in looks:
        with pytest.raises(IndexError):
            look()
