"""Write all rows of a table, where so many have changed that it costs more to merge them.

To merge, Spark reads and joins the table twice and writes what it marks besides, each in jobs of its own; all rows are
read and written once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iscp.adapters.delta.rows.column_kinds import comparable, is_collated, is_double, parts_of, same_values
from iscp.adapters.delta.rows.row_search import LACKING
from iscp.adapters.system.late_imports import F, T
from iscp.core.rows.netting import Op
from iscp.core.sql.sql_names import OP, quoted
from iscp.core.values.errors import EngineError
from iscp.core.values.watermark import Position
from iscp.ports.consumer import ConsumeContext
from iscp.ports.rows import Rows
from iscp.ports.sink import CommitTag, Sink
from iscp.ports.source import ChangesUnavailableError
from iscp.views.changes.signed_rows import WEIGHT, ChangedRows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REWRITTEN_SHARE = 0.2
"""The share of changed rows, which Spark has, in the rows of a table from which on all its rows are written."""

_COPY = "_iscp_copy"


def are_many(changed: ChangedRows, rows_there: DataFrame) -> bool:
    return changed.rows >= REWRITTEN_SHARE * rows_there.count()


def rewrite_bag(
    context: ConsumeContext, sink: Sink, rows_there: DataFrame, changes: DataFrame, tag: CommitTag
) -> Position:
    """Write all rows with the changes, and return the position. `rows_there` are all former rows; `changes` distinct
    ones with WEIGHT, of types whose values are `shown_alike`.

    Raises ChangesUnavailableError if more copies of a row go than there are.
    """
    names = [quoted(name) for name in rows_there.columns]
    all_rows = rows_there.withColumn(WEIGHT, F.lit(1).cast("long")).unionByName(changes)
    left = all_rows.groupBy(*names).agg(F.sum(WEIGHT).alias(WEIGHT)).where(F.col(WEIGHT) != 0)
    number = F.when(F.col(WEIGHT) > 0, F.col(WEIGHT)).otherwise(F.raise_error(F.lit(LACKING)).cast("long"))
    with _naming_lack():
        return rewrite(context, sink, copies(left, number).select(*names), tag)


def rewrite_groups(
    context: ConsumeContext, sink: Sink, rows_there: DataFrame, changes: DataFrame, key: Sequence[str], tag: CommitTag
) -> Position:
    """Write all rows with the changes, each of another key and with OP, and return the position."""
    coming = changes.where(F.col(OP) != Op.DELETE.value).drop(OP)
    return rewrite(context, sink, without(rows_there, changes, key).unionByName(coming), tag)


def rewrite(context: ConsumeContext, sink: Sink, rows: DataFrame, tag: CommitTag) -> Position:
    return sink.publish([sink.stage(Rows(lambda: rows), tag)], tag, context.guard)


def shown_alike(kind: T.DataType) -> bool:
    """Return whether values that are equal to Spark are the same; zeros of another sign, and texts equal by their
    collation, are not.
    """
    return comparable(kind) and not any(is_double(part) or is_collated(part) for part in parts_of(kind))


def without(rows_there: DataFrame, gone: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows that are equal to none of `gone` in these columns."""
    return rows_there.alias("h").join(gone.alias("g"), same_values("h", "g", key), "left_anti")


def copies(rows: DataFrame, number: Column) -> DataFrame:
    """Return each row as many times as `number` says."""
    return rows.withColumn(_COPY, F.explode(F.sequence(F.lit(1).cast("long"), number))).drop(_COPY)


@contextmanager
def _naming_lack() -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        if LACKING in str(error.__cause__):  # its message is cut before that
            raise ChangesUnavailableError(LACKING) from error
        raise
