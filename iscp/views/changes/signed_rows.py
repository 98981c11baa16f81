"""Changed rows as a signed bag: each with a weight, +1 for one that came and -1 for one that went."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from iscp.adapters.delta.rows.column_kinds import comparable, is_collated, is_double, parts_of
from iscp.adapters.delta.rows.net_changes import fits_arrow
from iscp.adapters.delta.spark.arrow_frame import arrow_of_frame, frame_of_arrow, utf8_rows
from iscp.adapters.system.late_imports import F, T
from iscp.core.sql.sql_names import WEIGHT as WEIGHT
from iscp.views.catalyst.catalyst import Expression, Plan
from iscp.views.changes.plan_leaf import At, Bounds

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_SIGN, _SPELLED, _SHOWN = "_iscp_sign_", "_iscp_spelled_", "_iscp_shown_"


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table between two versions: its rows at each, and what changed, with WEIGHT (None: nothing did).

    Frames have the table's columns in the order in which it was analyzed; changes have those that are needed, and
    WEIGHT as the last. `bytes` are those of its files. `arrow` gives the changes, if they are in this process. `find`
    gives, of the needed columns, the rows that have one of these keys (values of some of its columns), where they are
    few.
    """

    rows: Callable[[At], DataFrame]
    changes: Callable[[], DataFrame | None]
    bytes: int = 0
    arrow: Callable[[], pa.Table | None] = lambda: None
    find: Callable[[At, pa.Table], FoundRows | None] | None = None


class FoundRows(NamedTuple):
    """The same rows twice: in a plan, and in this process."""

    frame: DataFrame
    arrow: pa.Table


@dataclass(frozen=True, slots=True)
class Instants:
    """The times of a query's rows before and after the changes, in Unix seconds; 0: they do not depend on the time."""

    old_s: float = 0.0
    new_s: float = 0.0

    def at(self, at: At) -> float:
        return self.new_s if at is At.NEW else self.old_s

    @property
    def apart(self) -> bool:
        return self.old_s != self.new_s


@dataclass(frozen=True, slots=True)
class Signed:
    """Changed rows: the plan's columns have the operator's ids; `weight` is one of them. `rows` are the same, if known.

    `bounds` has columns whose values are known to be among others.
    """

    plan: Plan
    weight: Expression
    rows: ChangedRows | None = None
    bounds: Bounds = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Distinct changed rows, with WEIGHT or OP, and how many; few of them are in this process (`arrow`) instead."""

    frame: DataFrame
    rows: int
    arrow: pa.Table | None = None

    def named(self, *names: str) -> ChangedRows:
        """Return the same rows under these names."""
        if self.arrow is not None:
            return replace(self, arrow=self.arrow.rename_columns([*names]))
        return replace(self, frame=self.frame.toDF(*names))

    def to_frame(self) -> DataFrame:
        return self.frame if self.arrow is None else frame_of_arrow(self.frame.sparkSession, self.arrow)

    def to_arrow(self) -> pa.Table:
        return arrow_of_frame(self.frame) if self.arrow is None else self.arrow


def collected(frame: DataFrame, rows_max: int) -> pa.Table | None:
    """Return all rows, computed once, or None if that cannot be.

    It cannot be if there are more, or if they would be others once they came back from Arrow, or have texts that are no
    UTF-8.
    """
    if not fits_arrow(frame.schema, ()):
        return None
    rows = utf8_rows(frame.limit(rows_max + 1))
    return rows if rows is not None and len(rows) <= rows_max else None


def netted(frame: DataFrame, *, by_sign: bool = False) -> DataFrame:
    """Return each distinct row once, with its weights summed up; rows that came and went are gone.

    With `by_sign` rows with zeros of another sign are others, as operators above them may show the sign; else they are
    equal.
    """
    kinds = {each.name: each.dataType for each in frame.schema.fields if each.name != WEIGHT}
    if not all(map(comparable, kinds.values())):
        return frame
    signs = {name: f"{_SIGN}{name}" for name, kind in kinds.items() if by_sign and is_double(kind)}
    collated = [F.collate(name, "UTF8_BINARY") for name, kind in kinds.items() if is_collated(kind)]
    spelled = {name: f"{_SPELLED}{name}" for name, kind in kinds.items() if _may_look_different(kind, by_sign)}
    keys = [*map(F.col, kinds), *collated, *[_below_zero(name).alias(sign) for name, sign in signs.items()]]
    keys += [F.col(name).cast("string").alias(text) for name, text in spelled.items()]
    sums = [F.sum(WEIGHT).alias(WEIGHT), *(F.first(name).alias(f"{_SHOWN}{name}") for name in spelled)]
    summed = (frame.groupBy(*keys).agg(*sums) if kinds else frame.agg(*sums)).where(F.col(WEIGHT) != 0)
    if not (signs or collated or spelled):
        return summed
    shown = [
        F.col(f"{_SHOWN}{name}").alias(name) if name in spelled else _with_sign(name, kind, signs)
        for name, kind in kinds.items()
    ]
    return summed.select(*shown, WEIGHT)


def has_signs(frame: DataFrame) -> bool:
    """Return whether rows of the frame may be equal but for the sign of a zero."""
    return any(is_double(part) for each in frame.schema.fields for part in parts_of(each.dataType))


def _may_look_different(kind: T.DataType, by_sign: bool) -> bool:
    """Return whether nested values that are equal may look different."""
    nested = isinstance(kind, (T.ArrayType, T.StructType))
    return nested and any(is_collated(part) or (by_sign and is_double(part)) for part in parts_of(kind))


def _below_zero(name: str) -> Column:
    """Return a condition that is true for the zero below zero, which is equal to the other one."""
    return (F.col(name) == 0) & (F.col(name).cast("string") == "-0.0")


def _with_sign(name: str, kind: T.DataType, signs: Mapping[str, str]) -> Column:
    if name not in signs:
        return F.col(name)
    return F.when(F.col(signs[name]), F.lit(-0.0).cast(kind)).otherwise(F.col(name)).alias(name)


def whole_number(value: int) -> Column:
    return F.lit(value).cast("long")
