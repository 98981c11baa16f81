"""The rows that commits have written, for who keeps every row: without a key nothing says which row became which.

A commit has written a row as often as it is there afterwards more often than before. So an updated row counts as a new
one, and one that a commit only moved, or wrote again as it was, does not count. A commit that was cut into steps is
taken step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.rows.hashing import row_hashes
from iscp.adapters.delta.rows.net_changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, OP, STAMPS, WRITES
from iscp.adapters.system.late_imports import F
from iscp.core.sql.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SIGN, _ROW, _TIMES = "_iscp_sign", "_iscp_row", "_iscp_times"


def written_by_arrow(raw: pa.Table, names: Sequence[str]) -> pa.Table:
    """Takes the columns `names`, `_change_type` and the stamps; gives `names`, the stamps and `_iscp_op`."""
    written = pc.is_in(raw[CHANGE_TYPE], value_set=pa.array(WRITES))
    rows = raw.select([*names, *STAMPS])
    if not pc.all(written).as_py():
        rows = rows.append_column(_SIGN, pc.if_else(written, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64())))
        rows = rows.group_by([*names, *STAMPS], use_threads=False).aggregate([(_SIGN, "sum")])
        often = np.maximum(rows[f"{_SIGN}_sum"].to_numpy(), 0)
        rows = rows.drop_columns([f"{_SIGN}_sum"]).take(pa.array(np.repeat(np.arange(len(rows)), often)))
    return rows.append_column(OP, pa.repeat(pa.scalar("i"), len(rows)))


def written_by_spark(raw: DataFrame, names: Sequence[str], inserts_only: bool) -> DataFrame:
    """Return the written rows as `written_by_arrow`; `inserts_only`: it is known that nothing else was done."""
    rows = raw.select(*[F.col(quoted(name)) for name in names])
    columns = [field.name for field in rows.schema.fields]
    columns_read = [F.col(quoted(name)) for name in columns]
    if inserts_only:
        return raw.where(F.col(CHANGE_TYPE) == "insert").select(*columns_read, *STAMPS, F.lit("i").alias(OP))
    first, second = row_hashes(rows)
    by_row = (
        raw.select(
            F.struct(*columns_read).alias(_ROW),
            first.alias("_iscp_first"),
            second.alias("_iscp_second"),
            F.when(F.col(CHANGE_TYPE).isin(*WRITES), 1).otherwise(-1).alias(_SIGN),
            *STAMPS,
        )
        .groupBy(COMMIT_VERSION, "_iscp_first", "_iscp_second")
        .agg(F.sum(_SIGN).alias(_TIMES), F.first(_ROW).alias(_ROW), F.first(COMMIT_TIMESTAMP).alias(COMMIT_TIMESTAMP))
        .where(F.col(_TIMES) > 0)
    )
    each = by_row.withColumn(OP, F.explode(F.array_repeat(F.lit("i"), F.col(_TIMES).cast("int"))))
    return each.select(*[F.col(_ROW).getField(name).alias(name) for name in columns], *STAMPS, OP)
