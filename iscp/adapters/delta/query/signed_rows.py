"""Changed rows as a signed bag: each with a weight, +1 for one that came and -1 for one that went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from iscp.adapters.delta.query.catalyst import Expression, Plan
from iscp.core.sql_names import WEIGHT as WEIGHT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class At(Enum):
    """Before or after the changes."""

    OLD = "old"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table between two versions: its rows at each, and what changed, with WEIGHT (None: nothing did).

    Frames have the table's columns in the order in which it was analyzed.
    """

    rows: Callable[[At], DataFrame]
    changes: Callable[[], DataFrame | None]


@dataclass(frozen=True, slots=True)
class Signed:
    """Changed rows: the plan's columns have the operator's ids; `weight` is one of them."""

    plan: Plan
    weight: Expression


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Distinct changed rows, with WEIGHT, that Spark keeps: how many, and about how many bytes of memory they take."""

    frame: DataFrame
    rows: int
    bytes: int


def netted(frame: DataFrame) -> DataFrame:
    """Each distinct row once, with its weights summed up; rows that came and went are gone."""
    columns = [name for name in frame.columns if name != WEIGHT]
    if any(not comparable(frame.schema[name].dataType) for name in columns):
        return frame
    total = F.sum(WEIGHT).alias(WEIGHT)
    summed = frame.groupBy(*columns).agg(total) if columns else frame.agg(total)
    return summed.where(F.col(WEIGHT) != 0)


def comparable(kind: DataType) -> bool:
    """Whether Spark decides if two values of it are equal."""
    match kind:
        case MapType() | VariantType():
            return False
        case ArrayType():
            return comparable(kind.elementType)
        case StructType():
            return all(comparable(each.dataType) for each in kind.fields)
        case _:
            return True


def whole_number(value: int) -> Column:
    return F.lit(value).cast("long")
