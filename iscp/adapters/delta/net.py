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
SAME = "_iscp_same"
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
    """As `net_by_spark`, but raises ChangesUnavailable itself where rows share a key, and leaves out `_iscp_same`."""
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


def net_by_spark(raw: DataFrame, key: Sequence[str]) -> DataFrame:
    """Takes the wanted columns, `_change_type` and the stamps; gives the wanted columns, `_iscp_op`, the stamps of the
    key's last change, and `_iscp_same`, above 1 where rows share the key.
    """
    keys = [F.col(quoted(name)) for name in key]
    by_key = Window.partitionBy(*keys)
    last_first = by_key.orderBy(F.col(COMMIT_VERSION).desc(), F.col(_WRITTEN).desc())
    first_first = by_key.orderBy(F.col(COMMIT_VERSION), F.col(_WRITTEN))
    ranked = (
        raw.withColumn(_WRITTEN, F.col(CHANGE_TYPE).isin(*WRITES).cast("int"))
        .withColumn("_iscp_rank", F.row_number().over(last_first))
        .withColumn("_iscp_first", F.first(CHANGE_TYPE).over(first_first))
        .withColumn(SAME, F.sum(_WRITTEN).over(Window.partitionBy(*keys, COMMIT_VERSION)))
        .withColumn(_ROW, F.sum(2 * F.col(_WRITTEN) - 1).over(by_key))
    )
    before = (~F.col("_iscp_first").isin(*WRITES)).cast("int")
    doubtful = before + F.col(_ROW) != F.col(_WRITTEN)
    op = (
        F.when(F.col(_WRITTEN) == 0, F.lit("d"))
        .when(F.col("_iscp_first").isin(*WRITES), F.lit("i"))
        .otherwise(F.lit("u"))
    )
    last = ranked.where("_iscp_rank = 1").withColumn(OP, op)
    last = last.withColumn(SAME, F.when(doubtful, 2).otherwise(F.col(SAME)))
    last = last.where((before == 1) | (F.col(_WRITTEN) == 1) | (F.col(SAME) > 1))
    return last.drop(CHANGE_TYPE, _WRITTEN, _ROW, "_iscp_rank", "_iscp_first")


def doubt(key: Sequence[str]) -> NoReturn:
    """Which of the rows is left does not follow from the changes; whether they still share the key does not either."""
    raise ChangesUnavailable(f"several rows share a key ({', '.join(key)})")
