"""The net change of each key, computed by Arrow, equals its definition; the integration tests compare Spark's.

The common type that holds every value of two types; the integration tests convert rows to it with Spark.
"""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from iscp.delta.rows.net_changes import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    OP,
    UnlikeSchemaError,
    alike,
    has_own_keys,
    narrowed,
    net_by_arrow,
    unified,
)
from iscp.ports.source import ChangesUnavailableError
from tests.fakes.bags import History, histories, left
from tests.fakes.bags import net as defined

Change = tuple[int, str, int]
"""Version, type, key."""


def net(*changes: Change) -> dict[int, str]:
    versions, types, keys = zip(*changes, strict=True) if changes else ((), (), ())
    columns = [pa.array(keys, pa.int64()), pa.array(types, pa.string()), pa.array(versions, pa.int64())]
    table = net_by_arrow(pa.table(columns, names=["id", CHANGE_TYPE, COMMIT_VERSION]), ("ID",))
    return {row["id"]: row[OP] for row in table.to_pylist()}


BEFORE, AFTER = "update_preimage", "update_postimage"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], {}),
        ([(1, "insert", 7)], {7: "i"}),
        ([(1, "delete", 7)], {7: "d"}),
        ([(1, AFTER, 7), (1, BEFORE, 7)], {7: "u"}),
        ([(1, "insert", 7), (2, BEFORE, 7), (2, AFTER, 7)], {7: "i"}),
        ([(1, "insert", 7), (1, "delete", 7)], {7: "u"}),
        ([(1, "delete", 7), (2, "insert", 7), (3, "delete", 7)], {7: "d"}),
        # It came and went; or one came and another went that had the key before, which only the target shows.
        ([(1, "insert", 7), (2, "delete", 7)], {7: "p"}),
        # An update that changes keys, also one for another.
        ([(1, BEFORE, 7), (1, AFTER, 8)], {7: "d", 8: "i"}),
        # Of an update that a filter lets in or out only one half is left.
        ([(1, AFTER, 7)], {7: "i"}),
        ([(1, BEFORE, 7)], {7: "d"}),
        ([(1, BEFORE, 7), (1, AFTER, 8), (1, BEFORE, 8), (1, AFTER, 7)], {7: "u", 8: "u"}),
    ],
)
def test_the_last_change_counts_and_whether_the_key_was_there(changes: list[Change], expected: dict[int, str]) -> None:
    assert net(*changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        [(1, "insert", 7), (1, "insert", 7)],
        [(1, "insert", 7), (2, "insert", 7)],
        [(1, "insert", 7), (2, "insert", 7), (3, "delete", 7)],
        [(1, "insert", 7), (2, "insert", 7), (3, "insert", 7), (4, "delete", 7), (5, "delete", 7)],
        [(1, "insert", 7), (2, "delete", 7), (2, "delete", 7), (3, "insert", 7)],
        [(1, BEFORE, 7), (1, AFTER, 7), (1, BEFORE, 7), (1, AFTER, 7)],
        [(1, "delete", 7), (2, "delete", 7)],
        [(1, BEFORE, 7), (1, AFTER, 8), (2, "insert", 8)],
    ],
)
def test_rows_that_share_a_key_are_left_to_a_read_of_the_source(changes: list[Change]) -> None:
    with pytest.raises(ChangesUnavailableError, match="share a key"):
        net(*changes)


KEYS = {
    "number": pa.array([0, None, 2], pa.int64()),
    "text": pa.array(["a", "A", None]),
    "decimal": pa.array([Decimal("0.10"), Decimal("0.01"), None]),
    "two": pa.array([0, 0, 1], pa.int8()),
}


@pytest.mark.parametrize("key", [("number",), ("text",), ("decimal",), ("two", "number"), ("text", "decimal", "two")])
@given(history=histories(), draw=st.data())
def test_arrow_finds_what_the_definition_says(key: tuple[str, ...], history: History, draw: st.DataObject) -> None:
    """For keys of all types, with nulls, in any order of rows and any chunking."""
    for begin, end in history.ranges():
        changes = draw.draw(st.permutations(history.changes(begin, end)))
        of_key = [change.key for change in changes]
        columns = {name: KEYS[name].take(pa.array(of_key, pa.int64())) for name in key}
        columns |= {
            CHANGE_TYPE: pa.array([change.kind for change in changes], pa.string()),
            COMMIT_VERSION: pa.array([change.version for change in changes], pa.int64()),
            "key": pa.array(of_key, pa.int64()),
            "value": pa.array([change.value for change in changes], pa.string()),
        }
        table = pa.table(columns)
        cut = draw.draw(st.integers(0, len(table)))
        table = pa.concat_tables([table[:cut], table[cut:]])
        expected = defined(changes)
        if expected is None:
            with pytest.raises(ChangesUnavailableError):
                net_by_arrow(table, key)
        else:
            found = net_by_arrow(table, key).to_pylist()
            assert {row["key"]: (row[OP], left(row[OP], row["value"])) for row in found} == expected
            assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("key", "own"),
    [((), True), (("A",), False), (("b",), False), (("a", "b"), True), (("b", "A"), True), (("x",), False)],
)
def test_rows_have_keys_of_their_own_where_null_equals_null(key: tuple[str, ...], own: bool) -> None:
    """Of doubles Arrow cannot say it: two that are equal may be written in two ways."""
    rows = pa.table({"a": [1, 1, None, None], "b": ["u", None, "u", None], "x": [1.0, 2.0, 3.0, 4.0]})
    assert has_own_keys(rows, key) is own
    assert has_own_keys(rows.slice(0, 1), key) is (key != ("x",))


BYTE, INT, LONG, FLOAT, DOUBLE = T.ByteType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()
TEXT, DATE, TIME, TIME_NTZ = T.StringType(), T.DateType(), T.TimestampType(), T.TimestampNTZType()


def struct(**fields: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("held", "wanted", "both"),
    [
        (INT, LONG, LONG),
        (LONG, BYTE, LONG),
        (INT, DOUBLE, DOUBLE),
        (FLOAT, DOUBLE, DOUBLE),
        (DATE, TIME_NTZ, TIME_NTZ),
        (T.DecimalType(10, 2), T.DecimalType(12, 4), T.DecimalType(12, 4)),
        (INT, T.DecimalType(12, 2), T.DecimalType(12, 2)),
        (struct(x=INT, y=INT), struct(Y=LONG, z=INT), struct(x=INT, y=LONG, z=INT)),
        (T.ArrayType(struct(x=INT)), T.ArrayType(struct(y=INT)), T.ArrayType(struct(x=INT, y=INT))),
        (T.MapType(TEXT, INT), T.MapType(TEXT, LONG), T.MapType(TEXT, LONG)),
    ],
)
def test_what_holds_both(held: T.DataType, wanted: T.DataType, both: T.DataType) -> None:
    before, now = struct(a=held, old=DATE), struct(new=TEXT, A=wanted)
    found = unified(before, now)
    assert found == struct(a=both, old=DATE, new=TEXT)
    for each in (before, now):
        assert alike(unified(found, each), found)
    assert [field.name for field in narrowed(found, now).fields] == ["new", "a"]


@pytest.mark.parametrize(
    ("held", "wanted", "path"),
    [
        (INT, TEXT, "a"),
        (LONG, DOUBLE, "a"),
        (INT, FLOAT, "a"),
        (LONG, T.DecimalType(18, 0), "a"),
        (T.DecimalType(10, 2), T.DecimalType(10, 4), "a"),
        (DATE, TIME, "a"),
        (struct(x=INT, y=INT), struct(y=TEXT), "a.y"),
        (struct(x=INT), INT, "a"),
        (T.MapType(TEXT, INT), T.MapType(INT, INT), "a.key"),
        (T.ArrayType(INT), T.ArrayType(TEXT), "a.element"),
    ],
)
def test_what_nothing_holds(held: T.DataType, wanted: T.DataType, path: str) -> None:
    with pytest.raises(UnlikeSchemaError) as unlike:
        unified(struct(a=held), struct(a=wanted))
    assert unlike.value.path == path
