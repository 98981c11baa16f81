"""What a column's type in Spark says of its values: whether they can be compared, and whether equal ones may differ."""

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
    """Whether Spark decides if two values of it are equal."""
    return not any(isinstance(part, (MapType, VariantType)) for part in parts_of(kind))


def is_double(kind: DataType) -> bool:
    return isinstance(kind, (DoubleType, FloatType))


def is_collated(kind: DataType) -> bool:
    """Whether texts that differ may be equal; rows with them are others all the same."""
    return isinstance(kind, StringType) and not kind.isUTF8BinaryCollation()


def is_one_of(kind: DataType, kinds: tuple[type[DataType], ...]) -> bool:
    """Whether it is, and compares as its values are written."""
    return isinstance(kind, kinds) and not is_collated(kind)


def same_values(one: str, other: str, names: Iterable[str]) -> list[Column]:
    """Return the conditions that rows of two frames, named by these aliases, are equal in these columns, nulls too."""
    return [F.col(f"{one}.{quoted(name)}").eqNullSafe(F.col(f"{other}.{quoted(name)}")) for name in names]


def parts_of(kind: DataType) -> Iterator[DataType]:
    """It, or the types that an array or a struct is made of."""
    match kind:
        case ArrayType():
            yield from parts_of(kind.elementType)
        case StructType():
            for each in kind.fields:
                yield from parts_of(each.dataType)
        case _:
            yield kind
