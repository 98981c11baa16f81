"""Compares rows whose doubles were computed in another order, and so may differ in their last digits."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from iscp.adapters.delta.rows.column_kinds import comparable, is_double, same_values
from iscp.adapters.system.late_imports import F
from iscp.core.sql.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RELATIVE_MOST = 1e-9
"""The part of the larger one by which two doubles of a view may differ, and count as equal."""

_PLACE, _THERE = "_iscp_place", "_iscp_there"


def has_doubles(rows: DataFrame) -> bool:
    """Return whether rows may be nearly equal, and can be paired."""
    kinds = [field.dataType for field in rows.schema.fields]
    return any(map(is_double, kinds)) and all(map(comparable, kinds))


def are_near(wanted: DataFrame, present: DataFrame) -> bool:
    """Return whether the same rows are in both, as often, but for small differences of doubles in columns of their own.

    Rows that agree in all other columns are paired in the order of their doubles. Two of them that lie within such a
    difference of each other may be paired wrongly, and then count as different.
    """
    doubles = [field.name for field in wanted.schema.fields if is_double(field.dataType)]
    exact = [name for name in wanted.columns if name not in doubles]
    one, other = (_numbered(frame, exact, doubles).alias(name) for frame, name in ((wanted, "w"), (present, "h")))
    paired = one.join(other, same_values("w", "h", (*exact, _PLACE)), "full_outer")
    there = F.col(f"w.{_THERE}").isNotNull() & F.col(f"h.{_THERE}").isNotNull()
    near = reduce(lambda left, right: left & right, [_near(name) for name in doubles])
    return paired.where(~(there & near)).isEmpty()


def _numbered(frame: DataFrame, exact: list[str], doubles: list[str]) -> DataFrame:
    from pyspark.sql import Window

    window = Window.partitionBy(*map(quoted, exact)).orderBy(*map(quoted, doubles))
    return frame.withColumn(_PLACE, F.row_number().over(window)).withColumn(_THERE, F.lit(1))


def _near(name: str) -> Column:
    one, other = F.col(f"w.{quoted(name)}"), F.col(f"h.{quoted(name)}")
    apart = F.abs(one - other)
    near = (apart <= RELATIVE_MOST * F.greatest(F.abs(one), F.abs(other))) & (apart < F.lit(float("inf")))  # nor NaN
    return one.eqNullSafe(other) | F.coalesce(near, F.lit(False))
