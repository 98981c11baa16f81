"""The columns that a table needs to hold the rows of another one besides its own, and how rows are given these columns.

Names count without regard to case. Nothing is ever narrowed: a type follows another only where it holds all its values.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from iscp.adapters.system.late_imports import F, T
from iscp.core.sql.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@cache
def _digits() -> dict[type[T.DataType], int]:
    """Return how many digits a value of each type of whole numbers may have."""
    return {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}


class UnlikeSchemaError(Exception):
    """No type fits the values of both: `path` is the column's, `present` and `wanted` are its types."""

    def __init__(self, path: str, present: T.DataType, wanted: T.DataType) -> None:
        super().__init__(f"{path} is {present.simpleString()} and {wanted.simpleString()}")
        self.path, self.present, self.wanted = path, present.simpleString(), wanted.simpleString()


def unified(present: T.StructType, wanted: T.StructType, path: str = "") -> T.StructType:
    """Return the fields of `present`, as wide as `wanted` needs them, and those that only `wanted` has; raises
    Unlike.
    """
    new = {field.name.lower(): field for field in wanted.fields}
    fields = []
    for field in present.fields:
        other = new.pop(field.name.lower(), None)
        kind = field.dataType if other is None else _wider(field.dataType, other.dataType, f"{path}{field.name}")
        fields.append(T.StructField(field.name, kind))
    return T.StructType([*fields, *[T.StructField(field.name, _nullable(field.dataType)) for field in new.values()]])


def narrowed(present: T.StructType, wanted: T.StructType) -> T.StructType:
    """Return the fields of `present` that `wanted` has, in its order."""
    known = {field.name.lower(): field for field in present.fields}
    found = [(known[field.name.lower()], field) for field in wanted.fields]
    return T.StructType([T.StructField(ours.name, _fewer(ours.dataType, theirs.dataType)) for ours, theirs in found])


def alike(first: T.DataType, second: T.DataType) -> bool:
    """Return whether two types are the same but for what may be null, and for comments."""
    return _nullable(first) == _nullable(second)


def without_void(frame: DataFrame) -> DataFrame:
    """Return the frame without fields of the type void, which Delta reads from no table, but has in its changes."""
    present = _nullable(frame.schema, without=T.NullType)
    assert isinstance(present, T.StructType)
    return frame if alike(present, frame.schema) else conformed(frame, present)


def conformed(frame: DataFrame, schema: T.StructType) -> DataFrame:
    """Return the columns of `schema`, each taken by its name; null where `frame` has none."""
    if alike(frame.schema, schema):
        return frame
    fields = {field.name.lower(): field for field in frame.schema.fields}
    columns = []
    for field in schema.fields:
        known = fields.get(field.name.lower())
        value = (
            F.lit(None).cast(field.dataType)
            if known is None
            else _converted(F.col(quoted(known.name)), known.dataType, field.dataType)
        )
        columns.append(value.alias(field.name))
    return frame.select(*columns)


def _wider(present: T.DataType, wanted: T.DataType, path: str) -> T.DataType:
    match present, wanted:
        case T.StructType(), T.StructType():
            return unified(present, wanted, f"{path}.")
        case T.ArrayType(elementType=ours), T.ArrayType(elementType=theirs):
            return T.ArrayType(_wider(ours, theirs, f"{path}.element"))
        case T.MapType(), T.MapType():
            key = _wider(present.keyType, wanted.keyType, f"{path}.key")
            return T.MapType(key, _wider(present.valueType, wanted.valueType, f"{path}.value"))
    if holds(present, wanted):
        return present
    if holds(wanted, present):
        return wanted
    raise UnlikeSchemaError(path, present, wanted)


def holds(wide: T.DataType, narrow: T.DataType) -> bool:
    """Return whether every value of `narrow` is one of `wide` (Delta's own type widening; no nested types)."""
    if wide == narrow:
        return True
    match wide:
        case T.DecimalType(precision=precision, scale=scale):
            if isinstance(narrow, T.DecimalType):
                return scale >= narrow.scale and precision - scale >= narrow.precision - narrow.scale
            return type(narrow) in _digits() and precision - scale >= _digits()[type(narrow)]
        case T.DoubleType():
            return isinstance(narrow, T.ByteType | T.ShortType | T.IntegerType | T.FloatType)
        case T.TimestampNTZType():
            return isinstance(narrow, T.DateType)
    digits = _digits()
    return type(wide) in digits and type(narrow) in digits and digits[type(wide)] > digits[type(narrow)]


def _fewer(present: T.DataType, wanted: T.DataType) -> T.DataType:
    match present, wanted:
        case T.StructType(), T.StructType():
            return narrowed(present, wanted)
        case T.ArrayType(elementType=ours), T.ArrayType(elementType=theirs):
            return T.ArrayType(_fewer(ours, theirs))
        case T.MapType(), T.MapType():
            return T.MapType(_fewer(present.keyType, wanted.keyType), _fewer(present.valueType, wanted.valueType))
    return present


def _nullable(kind: T.DataType, without: type[T.DataType] | None = None) -> T.DataType:
    """Return the type with all parts nullable, and no fields of the type `without`."""
    match kind:
        case T.StructType(fields=fields):
            fields_left = [field for field in fields if without is None or not isinstance(field.dataType, without)]
            return T.StructType(
                [T.StructField(field.name, _nullable(field.dataType, without)) for field in fields_left]
            )
        case T.ArrayType(elementType=inner):
            return T.ArrayType(_nullable(inner, without))
        case T.MapType(keyType=key, valueType=value):
            return T.MapType(_nullable(key, without), _nullable(value, without))
    return kind


def _converted(value: Column, have: T.DataType, want: T.DataType) -> Column:
    if alike(have, want):
        return value
    match have, want:
        case T.StructType(), T.StructType():
            known = {field.name.lower(): field for field in have.fields}
            parts = [
                (
                    _converted(value.getField(ours.name), ours.dataType, field.dataType)
                    if (ours := known.get(field.name.lower())) is not None
                    else F.lit(None).cast(field.dataType)
                ).alias(field.name)
                for field in want.fields
            ]
            return F.when(value.isNotNull(), F.struct(*parts))
        case T.ArrayType(elementType=ours), T.ArrayType(elementType=theirs):
            return F.transform(value, lambda each: _converted(each, ours, theirs))
        case T.MapType(), T.MapType():
            return F.map_from_entries(
                F.transform(
                    F.map_entries(value),
                    lambda each: F.struct(
                        _converted(each["key"], have.keyType, want.keyType),
                        _converted(each["value"], have.valueType, want.valueType),
                    ),
                )
            )
    return value.cast(want)
