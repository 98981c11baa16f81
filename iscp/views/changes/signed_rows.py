"""Changed rows as a signed bag: each with a weight, +1 for one that came and -1 for one that went."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from iscp.algebra.algebra import TableRows
from iscp.delta.rows.net_changes import comparable, fits_arrow, is_collated, parts_of
from iscp.model.sql.sql_names import WEIGHT as WEIGHT
from iscp.spark.spark_frames import arrow_of_frame, frame_of_arrow, utf8_rows
from iscp.system.late_imports import F, T

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_SPELLED, _SHOWN = "_iscp_spelled_", "_iscp_shown_"


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table between two versions: its rows at each, and what changed, with WEIGHT (None: nothing did).

    Frames have the table's columns in the order in which it was analyzed; changes have those that are needed, and
    WEIGHT as the last. `bytes` are those of its files. `arrow` gives the changes, if they are in this process. `find`
    gives, of the needed columns, the rows that have one of these keys (values of some of its columns), where they are
    few.
    """

    rows: Callable[[TableRows], DataFrame]
    changes: Callable[[], DataFrame | None]
    bytes: int = 0
    arrow: Callable[[], pa.Table | None] = lambda: None
    find: Callable[[TableRows, pa.Table], FoundRows | None] | None = None


class FoundRows(NamedTuple):
    """The same rows twice: in a plan, and in this process."""

    frame: DataFrame
    arrow: pa.Table


@dataclass(frozen=True, slots=True)
class Instants:
    """The times of a query's rows before and after the changes, in Unix seconds; 0: they do not depend on the time."""

    old_s: float = 0.0
    new_s: float = 0.0

    def at(self, at: TableRows) -> float:
        return self.new_s if at is TableRows.NEW else self.old_s

    @property
    def apart(self) -> bool:
        return self.old_s != self.new_s


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
    if not fits_arrow(frame.schema, (), lists=True):
        return None
    rows = utf8_rows(frame.limit(rows_max + 1))
    return rows if rows is not None and len(rows) <= rows_max else None


def netted(frame: DataFrame) -> DataFrame:
    """Return each distinct row once, with its weights summed up; rows that came and went are gone.

    Rows that are equal but for how they are spelled, as by the sign of a zero, are one.
    """
    kinds = {each.name: each.dataType for each in frame.schema.fields if each.name != WEIGHT}
    if not all(map(comparable, kinds.values())):
        return frame
    collated = [F.collate(name, "UTF8_BINARY") for name, kind in kinds.items() if is_collated(kind)]
    spelled = {name: f"{_SPELLED}{name}" for name, kind in kinds.items() if _may_look_different(kind)}
    keys = [*map(F.col, kinds), *collated, *[F.col(name).cast("string").alias(text) for name, text in spelled.items()]]
    sums = [F.sum(WEIGHT).alias(WEIGHT), *(F.first(name).alias(f"{_SHOWN}{name}") for name in spelled)]
    summed = (frame.groupBy(*keys).agg(*sums) if kinds else frame.agg(*sums)).where(F.col(WEIGHT) != 0)
    if not (collated or spelled):
        return summed
    shown = [F.col(f"{_SHOWN}{name}").alias(name) if name in spelled else F.col(name) for name in kinds]
    return summed.select(*shown, WEIGHT)


def _may_look_different(kind: T.DataType) -> bool:
    """Return whether nested values that are equal may look different."""
    nested = isinstance(kind, (T.ArrayType, T.StructType))
    return nested and any(map(is_collated, parts_of(kind)))


def whole_number(value: int) -> Column:
    return F.lit(value).cast("long")
