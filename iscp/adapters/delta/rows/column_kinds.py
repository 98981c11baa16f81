"""Properties of the values of a column, by its type in Spark: can they be compared, and may equal ones differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    VariantType,
)

from iscp.core.sql.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

WHOLE = (ByteType, ShortType, IntegerType, LongType)


def comparable(kind: DataType) -> bool:
    """Return whether Spark can compare two values of the type for equality."""
    return not any(isinstance(part, (MapType, VariantType)) for part in parts_of(kind))


def is_double(kind: DataType) -> bool:
    return isinstance(kind, (DoubleType, FloatType))


def is_collated(kind: DataType) -> bool:
    """Return whether texts of the type that differ may be equal; rows with them count as different all the same."""
    return isinstance(kind, StringType) and not kind.isUTF8BinaryCollation()


def is_one_of(kind: DataType, kinds: tuple[type[DataType], ...]) -> bool:
    """Return whether the type is one of `kinds` and its values compare as they are written."""
    return isinstance(kind, kinds) and not is_collated(kind)


def same_values(one: str, other: str, names: Iterable[str]) -> list[Column]:
    """Return the conditions that rows of two frames, named by these aliases, are equal in these columns, nulls too."""
    return [F.col(f"{one}.{quoted(name)}").eqNullSafe(F.col(f"{other}.{quoted(name)}")) for name in names]


def parts_of(kind: DataType) -> Iterator[DataType]:
    """Yield the type itself, or the types that an array or a struct is made of."""
    match kind:
        case ArrayType():
            yield from parts_of(kind.elementType)
        case StructType():
            for each in kind.fields:
                yield from parts_of(each.dataType)
        case _:
            yield kind
