"""Hashes of rows and keys, by Spark, such that rows that differ have different ones.

Spark's own function passes over nulls, runs the elements of arrays into one another, and refuses maps and variants. So
what is hashed is spelled out here: for each value first whether it is null; for each array its length and its elements'
hashes; for each map the hashes of its entries, sorted. The float -0.0 counts as 0.0, and all NaN as one, as for Spark's
`<=>`; texts count by their bytes, whatever their collation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from iscp.adapters.system.late_imports import F, T
from iscp.core.sql.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SALTS = (1, 2)
"""They make two functions of one."""


def row_hashes(frame: DataFrame) -> tuple[Column, Column]:
    """Return two hashes of a row of `frame`, by its columns."""
    fields = frame.schema.fields
    nested = [part for field in fields if _is_nested(field) for part in _spelled(_column(field), field.dataType)]
    # As one text of SQL: a call of the JVM for each column takes longer than all that Spark does with a small table.
    names = [quoted(field.name) for field in fields if not _is_nested(field)]
    plain = "".join(f", isnull({name}), {name}" for name in names)
    first, second = (F.expr(f"xxhash64({salt}{plain})") for salt in _SALTS)
    return (F.xxhash64(first, *nested), F.xxhash64(second, *nested)) if nested else (first, second)


def key_hash(frame: DataFrame, key: Sequence[str]) -> Column:
    fields = {field.name.lower(): field for field in frame.schema.fields}
    spelled = [part for name in key for part in _spelled(F.col(quoted(name)), fields[name.lower()].dataType)]
    return F.xxhash64(*spelled)


def value_hash(value: Column, kind: T.DataType) -> Column:
    return F.xxhash64(*_spelled(value, kind))


def _is_nested(field: T.StructField) -> bool:
    return isinstance(field.dataType, T.StructType | T.ArrayType | T.MapType | T.VariantType)


def _column(field: T.StructField) -> Column:
    return F.col(quoted(field.name))


def _spelled(value: Column, kind: T.DataType) -> Iterator[Column]:
    """Yield the columns to hash for `value`."""
    yield value.isNull()
    match kind:
        case T.StructType(fields=fields):
            for field in fields:
                yield from _spelled(value.getField(field.name), field.dataType)
        case T.ArrayType(elementType=inner):
            yield F.size(value)
            yield F.transform(value, lambda each: value_hash(each, inner))
        case T.MapType(keyType=key, valueType=inner):
            yield F.size(value)
            yield F.array_sort(
                F.transform(
                    F.map_entries(value),
                    lambda entry: F.xxhash64(*_spelled(entry["key"], key), *_spelled(entry["value"], inner)),
                )
            )
        case T.VariantType():
            yield F.to_json(value)
            yield F.schema_of_variant(value)  # a date and a text of it print alike
        case _:
            yield value
