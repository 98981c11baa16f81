"""Finds what an append-only target lacks of its source's rows, and how both fit into one table.

Such a target loses no row and no column: columns that are new in the source are null in what is there, columns that the
source has lost are null in what comes, and a type becomes as wide as both need it. Rows are compared by the source's
columns, as multisets, by hashes that every type has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from iscp.adapters.delta.rows.net_changes import OP
from iscp.adapters.delta.rows.schema_evolution import UnlikeSchemaError, alike, conformed, narrowed, unified
from iscp.adapters.delta.sink.table_diff import comparing
from iscp.adapters.system.late_imports import T
from iscp.core.values.errors import ErrorCode, PermanentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Way(Enum):
    """Rows get into the target in one of these ways.

    APPEND adds them, WIDEN adds new columns within the append, REWRITE writes all rows of the target.
    """

    APPEND = auto()
    WIDEN = auto()
    REWRITE = auto()


@dataclass(frozen=True, slots=True)
class Lacking:
    """The rows that a target lacks: `rows` is their number.

    `frame` has them, with the columns that the target is to have (for REWRITE they are behind all rows that are there).
    """

    frame: DataFrame
    rows: int
    way: Way


@contextmanager
def lacking(wanted: DataFrame, target: DataFrame) -> Iterator[Lacking]:
    """Find what `target` lacks of `wanted`, each row as often.

    Raises PermanentError if a column cannot have the values of both, ChangesUnavailable if the rows of `wanted` cannot
    be read any more.
    """
    union = _union(target.schema, wanted.schema)
    with comparing(*comparable(wanted, target), ()) as compared:
        missing = compared.repair if compared.repair is not None else target.limit(0)
        new = conformed(missing.drop(OP), union)
        way = _way(target.schema, union)
        frame = conformed(target, union).unionByName(new) if way is Way.REWRITE else new
        yield Lacking(frame, compared.comparison.missing, way)


def comparable(wanted: DataFrame, target: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return both with the columns of `wanted`, of types that fit the values of both; raises PermanentError."""
    shape = narrowed(_union(target.schema, wanted.schema), wanted.schema)
    return conformed(wanted, shape), conformed(target, shape)


def _union(target: T.StructType, wanted: T.StructType) -> T.StructType:
    try:
        return unified(target, wanted)
    except UnlikeSchemaError as unlike:
        raise PermanentError(
            f"the column {unlike.path} is {unlike.wanted} now and {unlike.present} in the target, which is append-only "
            "and cannot hold both",
            about="spec.iteration.consumer.columns",
            remedy="Give it its type back; or register a job with another target; or `iscp-admin job resync`, which "
            "drops the rows that the source has no more",
            code=ErrorCode.SCHEMA_CHANGED,
        ) from unlike


def _way(target: T.StructType, union: T.StructType) -> Way:
    if alike(target, union):
        return Way.APPEND
    as_before = T.StructType(union.fields[: len(target.fields)])
    return Way.WIDEN if alike(target, as_before) else Way.REWRITE
