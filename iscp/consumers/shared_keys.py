"""Matches rows by keys, in which null equals null, and finds keys that several rows have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from iscp.adapters.delta.rows.column_kinds import same_values
from iscp.adapters.delta.spark.cached_frame import cached, release
from iscp.adapters.system.late_imports import F
from iscp.core.rows.netting import Op
from iscp.core.sql.sql_names import OP, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


ROWS_MAX = 100_000
"""Rows that share a key and are dead-lettered; more are taken for a wrong key, not for faulty rows, and the job fails
with DUPLICATE_KEY.
"""

_ROWS = "_iscp_rows"
SHOWN = 3
"""Keys that are shown of those that rows share."""


def matches(first: str, second: str, columns: Sequence[str]) -> Column:
    """Return whether the frames aliased `first` and `second` have the same values in `columns`, as a condition."""
    return reduce(lambda one, other: one & other, same_values(first, second, columns))


def differing(wanted: DataFrame, target: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return rows of `wanted` that `target` lacks or has otherwise (op `u`), and keys of `target` alone (op `d`)."""
    w, h = wanted.withColumn("_iscp_w", F.lit(1)).alias("w"), target.withColumn("_iscp_h", F.lit(1)).alias("h")
    same = matches("w", "h", wanted.columns)
    joined = w.join(h, matches("w", "h", key), "full_outer")
    joined = joined.where(F.col("_iscp_w").isNull() | F.col("_iscp_h").isNull() | ~same)
    gone = F.col("_iscp_w").isNull()
    columns = [
        F.when(gone, F.col(f"h.{quoted(name)}")).otherwise(F.col(f"w.{quoted(name)}")).alias(name)
        for name in wanted.columns
    ]
    return joined.select(*columns, F.when(gone, "d").otherwise("u").alias(OP))


def frame_of_keys(keys: DataFrame, own: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return what `changes_of_keys` returns of tables."""
    gone = keys.alias("k").join(own.alias("o"), matches("k", "o", key), "left_anti")
    names = {name.lower() for name in key}
    columns = [
        (F.col(f"k.{quoted(name)}") if name.lower() in names else F.lit(None)).cast(kind).alias(name)
        for name, kind in ((each.name, each.dataType) for each in own.schema.fields)
    ]
    return own.withColumn(OP, F.lit(Op.UPDATE)).unionByName(gone.select(*columns, F.lit(Op.DELETE).alias(OP)))


@dataclass(frozen=True, slots=True)
class Shared:
    """The keys that several rows have, `counted` by Spark, and cached until `release`.

    `rows` is the number of rows that have one of them; `examples` shows some keys.
    """

    counted: DataFrame
    rows: int
    examples: str

    def split(self, frame: DataFrame, key: Sequence[str]) -> tuple[DataFrame, DataFrame]:
        """Return the rows whose keys are their own, and the rows that share one."""
        left, keys = frame.alias("f"), F.broadcast(self.counted.drop(_ROWS)).alias("k")
        on = matches("f", "k", key)
        return left.join(keys, on, "left_anti"), left.join(keys, on, "left_semi")

    def release(self) -> None:
        release(self.counted)


def find_shared_keys(frame: DataFrame, key: Sequence[str]) -> Shared | None:
    """Return the keys that rows share, or None if every row has a key of its own; null equals null."""
    counted = frame.groupBy(*[F.col(quoted(name)) for name in key]).agg(F.count("*").alias(_ROWS))
    shared = cached(counted.where(f"{_ROWS} > 1"))
    found = None
    try:
        found = _describe(shared)
    finally:
        if found is None:  # nobody else gives them back, also where they could not be read
            release(shared)
    return found


def _describe(shared: DataFrame) -> Shared | None:
    rows = shared.agg(F.sum(_ROWS)).collect()[0][0]
    if not rows:
        return None
    examples = [str(row.asDict()) for row in shared.drop(_ROWS).limit(SHOWN).collect()]
    return Shared(shared, int(rows), "; ".join(examples))
