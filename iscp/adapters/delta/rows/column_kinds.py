"""Properties of the values of a column, by its type in Spark: can they be compared, and may equal ones differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from iscp.adapters.system.late_imports import F, T
from iscp.core.sql.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column


@cache
def whole_types() -> tuple[type[T.DataType], ...]:
    """Return the types of whole numbers."""
    return (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


def comparable(kind: T.DataType) -> bool:
    """Return whether Spark can compare two values of the type for equality."""
    return not any(isinstance(part, (T.MapType, T.VariantType)) for part in parts_of(kind))


def is_double(kind: T.DataType) -> bool:
    return isinstance(kind, (T.DoubleType, T.FloatType))


def is_collated(kind: T.DataType) -> bool:
    """Return whether texts of the type that differ may be equal; rows with them count as different all the same."""
    return isinstance(kind, T.StringType) and not kind.isUTF8BinaryCollation()


def is_one_of(kind: T.DataType, kinds: tuple[type[T.DataType], ...]) -> bool:
    """Return whether the type is one of `kinds` and its values compare as they are written."""
    return isinstance(kind, kinds) and not is_collated(kind)


def same_values(one: str, other: str, names: Iterable[str]) -> list[Column]:
    """Return the conditions that rows of two frames, named by these aliases, are equal in these columns, nulls too."""
    return [F.col(f"{one}.{quoted(name)}").eqNullSafe(F.col(f"{other}.{quoted(name)}")) for name in names]


def parts_of(kind: T.DataType) -> Iterator[T.DataType]:
    """Yield the type itself, or the types that an array or a struct is made of."""
    match kind:
        case T.ArrayType():
            yield from parts_of(kind.elementType)
        case T.StructType():
            for each in kind.fields:
                yield from parts_of(each.dataType)
        case _:
            yield kind
