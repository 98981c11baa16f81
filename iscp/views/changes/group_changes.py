"""Find the groups or partitions at the top of a query that changed, with their rows as they are now, by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from iscp.adapters.delta.rows.value_codes import row_codes
from iscp.adapters.system.late_imports import F
from iscp.core.rows.netting import Op
from iscp.core.sql.sql_names import OP
from iscp.views.catalyst.algebra_reader import ResultKeys
from iscp.views.catalyst.plan_tree import PlanNode
from iscp.views.changes.signed_rows import ChangedRows, collected
from iscp.views.changes.spark_plans import SparkPlans, TouchedFrames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Keys that changed rows have or had, by the names of the result's columns, and all of its rows that have them."""

    keys: pa.Table
    rows: pa.Table


def changed_groups(plans: SparkPlans, root: PlanNode, keys: ResultKeys) -> ChangedRows | None:
    """Return the rows of all groups that changed rows have or had, as `c0`, `c1`, … with OP, or None if no row has
    changed.

    OP is `u` for a group as it is now and `d` for one that is gone, of which only the columns of the keys count.
    """
    touched = plans.touched(root)
    if touched is None:
        return None
    if (found := _few(plans, touched)) is not None:
        arrow = with_op(found)
        return ChangedRows(touched.rows, len(arrow), arrow) if len(arrow) else None
    names = [f"c{place}" for place in keys.places]
    frame = _with_op(touched.keys, plans.cache(touched.rows), names)  # read twice, and of all rows of the tables
    rows = frame.count()
    return ChangedRows(frame, rows) if rows else None


def collected_keys(plans: SparkPlans, root: PlanNode) -> KeyRows | None:
    """Return the changed keys and their rows as tables in this process, with columns `c0`, `c1`, ….

    The result is None if there are too many, or some that Arrow cannot represent.
    """
    touched = plans.touched(root)
    return None if touched is None else _few(plans, touched)


def _few(plans: SparkPlans, touched: TouchedFrames) -> KeyRows | None:
    if touched.arrow is None:
        return None
    rows = collected(touched.rows, plans.collected_max)
    return None if rows is None else KeyRows(touched.arrow.rename_columns(touched.keys.columns), rows)


def with_op(touched: KeyRows) -> pa.Table:
    """Return the rows of keys of which each has one row at most, with OP: those that are, and keys that are gone."""
    schema = pa.schema(
        [each.with_nullable(True) for each in touched.rows.schema]
    )  # of what is gone there are keys alone
    rows = touched.rows.cast(schema)
    keys, there = row_codes(touched.keys, rows.select(touched.keys.schema.names))
    gone = touched.keys.filter(pa.array(~np.isin(keys, there)))
    parts = [(rows, Op.UPDATE), (gone, Op.DELETE)]
    return pa.concat_tables(
        [each.append_column(OP, pa.repeat(pa.scalar(op.value), len(each))) for each, op in parts],
        promote_options="default",
    )


def _with_op(keys: DataFrame, rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the same of frames. `names` are those of the keys."""
    same = [F.col(f"n.{name}").eqNullSafe(F.col(f"t.{name}")) for name in names]
    gone = keys.alias("t").join(rows.alias("n"), same, "left_anti")
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    columns = [(F.col(name) if name in names else F.lit(None)).cast(kinds[name]).alias(name) for name in rows.columns]
    removed = gone.select(*columns, F.lit(Op.DELETE.value).alias(OP))
    return rows.withColumn(OP, F.lit(Op.UPDATE.value)).unionAll(removed)
