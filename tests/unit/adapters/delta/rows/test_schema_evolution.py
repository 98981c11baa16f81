"""The common type that holds every value of two types; the integration tests convert rows to it with Spark."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from iscp.adapters.delta.rows.schema_evolution import UnlikeSchemaError, alike, narrowed, unified

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
