"""Reduces the changes of a range to the net change of each key.

The last change of a key wins; in one version what is written wins over what is taken away, since an update, or a
merge that deletes and inserts, is both. A key that is first of all written was not there before: op `i` if it is
there now, `u` for any other that is, `d` for one that is gone. What came and went within the range is left out.

Rows that share a key show in two ways: several are written in one version, or they do not add up: a key that was
there once, or not at all, plus what is written, less what is taken away, must be there once, or not at all.

Rows that a filter refuses are left out before: what enters it is new then, what leaves it is gone, and a key counts as
shared only by rows that pass.

Small ranges are reduced in this process, on Arrow: planning and running Spark jobs costs more than the rows do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.window import Window

from iscp.core.kept import OP as OP
from iscp.core.quoting import quoted
from iscp.ports.pipeline import ChangesUnavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
STAMPS = (COMMIT_VERSION, COMMIT_TIMESTAMP)
DOUBTFUL = "_iscp_doubtful"
_WRITTEN, _ROW = "_iscp_written", "_iscp_row"
WRITES = ("insert", "update_postimage")
# Types whose values come back from Arrow as they were, and whose equality is the same there.
_KEY_TYPES = (T.IntegralType, T.StringType, T.BooleanType, T.DateType, T.TimestampType, T.DecimalType, T.BinaryType)
_VALUE_TYPES = (*_KEY_TYPES, T.TimestampNTZType, T.FloatType, T.DoubleType)


def fits_arrow(schema: T.StructType, key: Sequence[str]) -> bool:
    """Whether rows of this schema survive the way through Arrow unchanged, and its keys compare there."""
    keys = {name.lower() for name in key}
    return all(
        isinstance(field.dataType, _KEY_TYPES if field.name.lower() in keys else _VALUE_TYPES)
        and not (isinstance(field.dataType, T.StringType) and field.dataType.collation != "UTF8_BINARY")
        for field in schema.fields
    )


def net_by_arrow(raw: pa.Table, key: Sequence[str]) -> pa.Table:
    """As `net_by_spark`, but without `_iscp_doubtful`: raises ChangesUnavailable itself where rows share a key."""
    names = {name.lower(): name for name in raw.column_names}
    keys = [names[name.lower()] for name in key]
    written = pc.is_in(raw[CHANGE_TYPE], value_set=pa.array(WRITES)).cast(pa.int8())
    raw = raw.append_column(_WRITTEN, written)
    raw = raw.take(pc.sort_indices(raw, [(COMMIT_VERSION, "ascending"), (_WRITTEN, "ascending")]))
    raw = raw.append_column(_ROW, pa.array(range(len(raw)), pa.int64()))
    each = [(_ROW, "max"), (_ROW, "min"), (_ROW, "count"), (_WRITTEN, "sum")]
    by_key = raw.group_by(keys, use_threads=False).aggregate(each)
    last, first = raw.take(by_key[f"{_ROW}_max"]), raw.take(by_key[f"{_ROW}_min"])
    by_version = raw.group_by([*keys, COMMIT_VERSION], use_threads=False).aggregate([(_ROW, "max"), (_WRITTEN, "sum")])
    shared = by_version.filter(pc.greater(by_version[f"{_WRITTEN}_sum"], 1))
    if pc.any(pc.is_in(shared[f"{_ROW}_max"], value_set=last[_ROW].combine_chunks())).as_py():
        doubt(key)
    there = pc.equal(last[_WRITTEN], 1)
    before, written = pc.equal(first[_WRITTEN], 0), by_key[f"{_WRITTEN}_sum"]
    taken = pc.subtract(by_key[f"{_ROW}_count"], written)
    left = pc.subtract(pc.add(before.cast(pa.int64()), written), taken)
    if pc.any(pc.not_equal(left, there.cast(pa.int64()))).as_py():
        doubt(key)
    op = pc.if_else(there, pc.if_else(before, "u", "i"), "d")
    net = last.drop_columns([CHANGE_TYPE, _WRITTEN, _ROW]).append_column(OP, op)
    return net.filter(pc.or_(before, there))


def unhashable(kind: T.DataType) -> bool:
    """Whether Spark gives no hash of such values."""
    return any(mark in kind.json() for mark in ('"map"', "variant", "interval"))


def each_key(raw: DataFrame, key: Sequence[str]) -> DataFrame:
    """One row for each key: its columns, `_iscp_op`, and `_iscp_doubtful` where it was changed more than once.

    It shuffles the keys alone. Where none is doubtful, `each_by_itself` is the net change.
    """
    kind = F.col(CHANGE_TYPE)
    counts = {
        "_iscp_all": F.count("*"),
        "_iscp_inserts": F.count_if(kind == "insert"),
        "_iscp_deletes": F.count_if(kind == "delete"),
        "_iscp_updates": F.count_if(kind == "update_postimage"),
        "_iscp_versions": F.max(COMMIT_VERSION) - F.min(COMMIT_VERSION),
    }
    each = raw.groupBy(*[F.col(quoted(name)) for name in key]).agg(*[count.alias(as_) for as_, count in counts.items()])
    rows, inserts, deletes, updates, versions = map(F.col, counts)
    alone = (rows == 1) & (inserts + deletes == 1)
    updated = (rows == 2) & (inserts + deletes == 0) & (updates == 1) & (versions == 0)
    op = F.when(inserts > 0, "i").when(deletes > 0, "d").otherwise("u")
    return each.withColumn(OP, op).withColumn(DOUBTFUL, ~(alone | updated)).drop(*counts)


def each_by_itself(raw: DataFrame) -> DataFrame:
    """Takes and gives what `net_by_spark` does, where each row tells its key's net change without a look at others."""
    kind = F.col(CHANGE_TYPE)
    op = F.when(kind == "insert", "i").when(kind == "delete", "d").otherwise("u")
    return raw.where(kind != "update_preimage").withColumn(OP, op).drop(CHANGE_TYPE)


def net_by_spark(raw: DataFrame, key: Sequence[str]) -> DataFrame:
    """Takes the wanted columns, `_change_type` and the stamps; gives the wanted columns, `_iscp_op`, the stamps of the
    key's last change, and `_iscp_doubtful` where rows share the key. One sort does for all that is asked of a key.
    """
    in_order = Window.partitionBy(*[F.col(quoted(name)) for name in key]).orderBy(COMMIT_VERSION, _WRITTEN)
    is_written, written = F.col(CHANGE_TYPE).isin(*WRITES), F.col(_WRITTEN)
    ranked = raw.withColumn(_WRITTEN, is_written.cast("int")).select(
        "*",
        F.lead(written).over(in_order).isNull().alias("_iscp_last"),
        F.first(written).over(in_order).alias("_iscp_first"),
        F.sum(2 * written - 1).over(in_order).alias("_iscp_sum"),
        (written + F.lag(written).over(in_order) == 2).alias("_iscp_both"),
        F.lag(COMMIT_VERSION).over(in_order).alias("_iscp_before"),
    )
    held = 1 - F.col("_iscp_first")
    twice = F.coalesce(F.col("_iscp_both") & (F.col("_iscp_before") == F.col(COMMIT_VERSION)), F.lit(False))
    op = F.when(written == 0, "d").when(held == 0, "i").otherwise("u")
    last = ranked.where("_iscp_last").withColumn(OP, op)
    last = last.withColumn(DOUBTFUL, twice | (held + F.col("_iscp_sum") != written))
    last = last.where((held == 1) | (written == 1) | F.col(DOUBTFUL))
    return last.drop(CHANGE_TYPE, _WRITTEN, "_iscp_last", "_iscp_first", "_iscp_sum", "_iscp_both", "_iscp_before")


def doubt(key: Sequence[str]) -> NoReturn:
    """Which of the rows is left does not follow from the changes; whether they still share the key does not either."""
    raise ChangesUnavailable(f"several rows share a key ({', '.join(key)})")
