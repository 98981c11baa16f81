"""Reduces the changes of a range to the net change of each key: `netting`, carried out by Arrow and Spark.

Rows that a filter refuses are left out before: what enters it is new then, what leaves it is gone, and a key counts as
shared only by rows that pass.

Small ranges are reduced in this process, on Arrow: planning and running Spark jobs costs more than the rows do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from operator import and_
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.spark.arrow_frame import spark_schema
from iscp.adapters.system.late_imports import A, F, T
from iscp.core.rows.netting import ABSENT_AFTER, NET_OPS, Op
from iscp.core.sql.sql_names import OP as OP
from iscp.core.sql.sql_names import quoted
from iscp.ports.rows import Rows
from iscp.ports.source import KeysSharedError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
STAMPS = (COMMIT_VERSION, COMMIT_TIMESTAMP)
DOUBTFUL = "_iscp_doubtful"
_WRITTEN, _ROWS = "_iscp_written", "_iscp_rows"
WRITES = ("insert", "update_postimage")
_BY_ENDS = [NET_OPS[first, last] for first in (False, True) for last in (False, True)]


@cache
def _key_types() -> tuple[type[T.DataType], ...]:
    """Return the types whose values come back from Arrow as they were, and whose equality is the same there."""
    return (T.IntegralType, T.StringType, T.BooleanType, T.DateType, T.TimestampType, T.DecimalType, T.BinaryType)


@cache
def _value_types() -> tuple[type[T.DataType], ...]:
    return (*_key_types(), T.TimestampNTZType, T.FloatType, T.DoubleType)


def fits_arrow(schema: T.StructType, key: Sequence[str], *, arrays: bool = False) -> bool:
    """Return whether rows of this schema survive the way through Arrow unchanged, and its keys compare there.

    With `arrays` values may also be arrays of real numbers, which are not compared.
    """
    keys = {name.lower() for name in key}
    return all(
        (
            isinstance(field.dataType, _key_types() if field.name.lower() in keys else _value_types())
            or (arrays and field.name.lower() not in keys and _is_array_of_reals(field.dataType))
        )
        and not (isinstance(field.dataType, T.StringType) and field.dataType.collation != "UTF8_BINARY")
        for field in schema.fields
    )


def _is_array_of_reals(kind: T.DataType) -> bool:
    return isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.FloatType | T.DoubleType)


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return these columns as pyspark gives them to Arrow, each of which may be null."""
    return pa.schema([pa.field(field.name, A.to_arrow_type(field.dataType)) for field in schema.fields])


def weights_of(raw: pa.Table) -> pa.ChunkedArray:
    """Return for each change +1 for a row that came, and -1 for one that went."""
    came = pc.is_in(raw[CHANGE_TYPE], value_set=pa.array(WRITES))
    return pc.if_else(came, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))


def net_by_arrow(raw: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the net changes as `net_by_spark`, but without `_iscp_doubtful`.

    Raises KeysSharedError where rows share a key.
    """
    keys, versions = _numbered(raw, key), raw[COMMIT_VERSION].to_numpy()
    written = pc.is_in(raw[CHANGE_TYPE], value_set=pa.array(WRITES)).to_numpy().astype(np.bool_)
    order = np.lexsort((written, versions, keys))
    keys, written = keys[order], written[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))[: len(keys)]
    last = np.append(first[1:], len(keys))[: len(first)] - 1
    steps = np.where(written, 1, -1)
    rows = np.cumsum(steps)
    rows += np.repeat(~written[first] - rows[first] + steps[first], last - first + 1)
    if np.any(rows < 0) or np.any(rows[last] != written[last]):
        doubt(key)
    ops = pa.array(_BY_ENDS, pa.string()).take(pa.array(2 * written[first].astype(np.int8) + written[last]))
    return raw.take(pa.array(order[last])).drop_columns([CHANGE_TYPE]).append_column(OP, ops)


def inserts_of(changes: Rows) -> Rows:
    """Return the rows of changes that are new, without their op; a key that came and went has none."""
    return changes.transformed(
        lambda frame: frame.where(F.col(OP) == Op.INSERT).drop(OP),
        lambda table: table.filter(pc.equal(table[OP], Op.INSERT)).drop_columns([OP]),
    )


def has_own_keys(rows: pa.Table, key: Sequence[str]) -> bool:
    """Return whether each of these rows has a key that no other has; null equals null. False too where Arrow cannot
    decide.
    """
    if not key:
        return True
    sharing = sharing_rows(rows, key)
    return sharing is not None and not sharing.any()


Sharing = np.ndarray[tuple[int], np.dtype[np.bool_]]
"""Says for each of some rows whether another one has its key."""


def sharing_rows(rows: pa.Table, key: Sequence[str]) -> Sharing | None:
    """Return for each row whether another one has its key; null equals null. None: Arrow cannot decide it."""
    if not fits_arrow(spark_schema(rows.schema), key):
        return None
    _, places, counts = np.unique(_numbered(rows, key), return_inverse=True, return_counts=True)
    return np.asarray(counts[places] > 1)


def distinct_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table | None:
    """Return each key of these rows once, as the columns of the key. None: Arrow does not compare such values."""
    keys = key_columns(rows, key)
    if not fits_arrow(spark_schema(keys.schema), key):
        return None
    return keys.group_by(keys.column_names).aggregate([]).select(keys.column_names)


def key_columns(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the columns of the key; names count without regard to case."""
    names = {name.lower(): name for name in rows.column_names}
    return rows.select([names[name.lower()] for name in key])


def _numbered(raw: pa.Table, key: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return a number for each row, the same where the key is; null equals null."""
    numbers = np.zeros(len(raw), np.int64)
    for column in key_columns(raw, key).columns:
        values = column.combine_chunks().dictionary_encode(null_encoding="encode")
        numbers = numbers * len(values.dictionary) + values.indices.to_numpy()
        if len(key) > 1:  # else they might outgrow 64 bits
            numbers = np.unique(numbers, return_inverse=True)[1]
    return numbers


def unhashable(kind: T.DataType) -> bool:
    """Return whether Spark has no hash of such values."""
    return any(mark in kind.json() for mark in ('"map"', "variant", "interval"))


def each_key(raw: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return one row for each key: its columns, `_iscp_op`, and `_iscp_doubtful` where it was changed more than once.

    The keys alone are shuffled. Where none is doubtful, `each_by_itself` is the net change.
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
    op = F.when(inserts > 0, Op.INSERT).when(deletes > 0, Op.DELETE).otherwise(Op.UPDATE)
    return each.withColumn(OP, op).withColumn(DOUBTFUL, ~(alone | updated)).drop(*counts)


def each_by_itself(raw: DataFrame) -> DataFrame:
    """Takes and gives what `net_by_spark` does, where each row has its key's net change without reading others."""
    kind = F.col(CHANGE_TYPE)
    op = F.when(kind == "insert", Op.INSERT).when(kind == "delete", Op.DELETE).otherwise(Op.UPDATE)
    return raw.where(kind != "update_preimage").withColumn(OP, op).drop(CHANGE_TYPE)


def net_by_spark(raw: DataFrame, key: Sequence[str]) -> DataFrame:
    """Takes the wanted columns, `_change_type` and the stamps; gives the wanted columns, `_iscp_op`, the stamps of the
    key's last change, and `_iscp_doubtful` where rows share the key. One sort does for all that is needed of a key.
    """
    from pyspark.sql.window import Window

    in_order = Window.partitionBy(*[F.col(quoted(name)) for name in key]).orderBy(COMMIT_VERSION, _WRITTEN)
    written = F.col(_WRITTEN)
    ranked = raw.withColumn(_WRITTEN, F.col(CHANGE_TYPE).isin(*WRITES)).select(
        "*",
        F.lead(written).over(in_order).isNull().alias("_iscp_last"),
        F.first(written).over(in_order).alias("_iscp_first"),
        F.sum(F.when(written, 1).otherwise(-1)).over(in_order).alias("_iscp_sum"),
    )
    first, is_last = F.col("_iscp_first"), F.col("_iscp_last")
    rows = F.col("_iscp_sum") + F.when(first, 0).otherwise(1)
    marked = ranked.withColumn(DOUBTFUL, (rows < 0) | (is_last & (rows != written.cast("int"))))
    last = marked.where(is_last | F.col(DOUBTFUL)).withColumn(OP, _op(first, written))
    return last.drop(CHANGE_TYPE, _WRITTEN, "_iscp_last", "_iscp_first", "_iscp_sum")


def _op(first: Column, last: Column) -> Column:
    """Return the operation of a key by whether its first change writes, and whether its last one does."""
    by_ends = [F.when((first == ends[0]) & (last == ends[1]), op) for ends, op in NET_OPS.items()]
    return F.coalesce(*by_ends)


def contradicted(net: DataFrame, after: DataFrame, key: Sequence[str]) -> bool:
    """Return whether a key of `net` has a number of rows in `after`, the source's rows then, that contradicts its
    operation.
    """
    there, names = F.count("*"), [f"_iscp_key_{number}" for number in range(len(key))]
    of_key = [F.col(quoted(name)) for name in key]
    keys = net.select(*[column.alias(name) for column, name in zip(of_key, names, strict=True)], OP)
    same = [column.eqNullSafe(F.col(name)) for column, name in zip(of_key, names, strict=True)]
    counted = after.select(*of_key).join(keys, reduce(and_, same)).groupBy(*names, OP).agg(there.alias(_ROWS))
    return not counted.where(F.col(OP).isin(*ABSENT_AFTER) | (F.col(_ROWS) > 1)).isEmpty()


def doubt(key: Sequence[str]) -> NoReturn:
    """Raise KeysSharedError: which of the rows is left, and whether they still share the key, is not in the changes."""
    raise KeysSharedError(f"several rows share a key ({', '.join(key)})")
