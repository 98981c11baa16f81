"""Matches rows by keys, in which null equals null."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from iscp.core.sql.sql_names import OP, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def matches(first: str, second: str, columns: Sequence[str]) -> Column:
    """Return whether the frames aliased `first` and `second` have the same values in `columns`, as a condition."""
    each = [F.col(f"{first}.{quoted(name)}").eqNullSafe(F.col(f"{second}.{quoted(name)}")) for name in columns]
    return reduce(lambda one, other: one & other, each)


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
