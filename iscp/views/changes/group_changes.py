"""Find the groups at the top of a query that changed, with their rows as they are now, without their former rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from iscp.adapters.delta.rows.value_codes import row_codes
from iscp.adapters.delta.spark.arrow_frame import frame_of_arrow
from iscp.adapters.system.late_imports import F
from iscp.core.rows.netting import Op
from iscp.core.sql.sql_names import OP
from iscp.views.catalyst.catalyst import Plan
from iscp.views.catalyst.plan_tree import PlanNode, ResultKeys
from iscp.views.changes.plan_leaf import At, Bound, CollectedColumn, Leaf
from iscp.views.changes.signed_plans import SignedPlans
from iscp.views.changes.signed_rows import ChangedRows, collected
from iscp.views.changes.touched_keys import rows_with_keys, touched_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def changed_groups(plans: SignedPlans, root: PlanNode, keys: ResultKeys) -> ChangedRows | None:
    """Return the rows of all groups that changed rows have or had, as `c0`, `c1`, … with OP, or None if no row has
    changed.

    OP is `u` for a group as it is now and `d` for one that is gone, of which only the columns of the keys count.
    """
    if plans.collected_max:
        few = _touched(plans, keys)
        if few is None:
            return None
        if (found := _collected_groups(plans, root, keys, few)) is not None:
            return found if found.rows else None
    (node,) = keys.node.inputs
    signed = plans.delta(node)
    changed = {} if signed is None else plans.evaluated(keys.node, {0: signed})
    if not changed:
        return None
    touched = plans.catalyst.frame(touched_keys(plans, keys.node, changed))
    # Read twice below, and of all rows of the tables.
    now = plans.leaves.cache(_rows_now(plans, root, keys, plans.catalyst.plan_of(touched)))
    return _cached_groups(plans, keys, touched, now)


def _touched(plans: SignedPlans, keys: ResultKeys) -> DataFrame | None:
    """Return the keys of changed rows, or None if no row has changed."""

    def build() -> DataFrame | None:
        (node,) = keys.node.inputs
        signed = plans.delta(node)
        if signed is None:
            return None
        return plans.catalyst.frame(touched_keys(plans, keys.node, {0: plans.netted(node, signed)}))

    return plans.planned((keys.node, "touched"), build)


def _rows_now(
    plans: SignedPlans, root: PlanNode, keys: ResultKeys, touched: Plan, bounds: Sequence[Bound | None] = ()
) -> DataFrame:
    (node,) = keys.node.inputs
    rows = rows_with_keys(plans, node, At.NEW, keys.node.keys[0], touched, bounds)
    names = [f"c{place}" for place in range(len(plans.catalyst.output(root.plan)))]
    return plans.catalyst.frame(plans.above(root, node, rows)).toDF(*names)


@dataclass(frozen=True, slots=True)
class KeyRows:
    """Keys that changed rows have or had, by the names of the result's columns, and all of its rows that have them."""

    keys: pa.Table
    rows: pa.Table


def collected_keys(plans: SignedPlans, root: PlanNode, keys: ResultKeys) -> KeyRows | None:
    """Return the changed keys and their rows as tables in this process, with columns `c0`, `c1`, ….

    The result is None if there are too many, or some that Arrow cannot represent.
    """
    touched = _touched(plans, keys) if plans.collected_max else None
    return _collected_keys(plans, root, keys, touched) if touched is not None else None


def _collected_keys(plans: SignedPlans, root: PlanNode, keys: ResultKeys, touched: DataFrame) -> KeyRows | None:
    arrow = collected(touched, plans.collected_max)
    if arrow is None:
        return None
    leaf = Leaf(keys.node, None, "touched")
    plans.leaves.give(leaf, plans.catalyst.plan_of(frame_of_arrow(touched.sparkSession, arrow)), arrow)
    bounds = [(CollectedColumn(leaf, place, keys.node),) for place in range(len(arrow.schema))]
    frame = plans.planned((root, "now"), lambda: _rows_now(plans, root, keys, plans.leaves.rows(leaf), bounds))
    rows = None if frame is None else collected(frame, plans.collected_max)
    if rows is None:
        return None
    return KeyRows(arrow.rename_columns([f"c{place}" for place in keys.places]), rows)


def _collected_groups(plans: SignedPlans, root: PlanNode, keys: ResultKeys, touched: DataFrame) -> ChangedRows | None:
    """Return the changed groups as rows in this process, or None if they are not few."""
    found = _collected_keys(plans, root, keys, touched)
    if found is None:
        return None
    mine, theirs = row_codes(found.keys, found.rows.select(found.keys.schema.names))
    gone = found.keys.filter(pa.array(~np.isin(mine, theirs)))
    schema = pa.schema([each.with_nullable(True) for each in found.rows.schema])  # of a group that is gone all but keys
    columns = [
        gone[each.name].cast(each.type) if each.name in gone.schema.names else pa.nulls(len(gone), each.type)
        for each in schema
    ]
    removed = pa.table(columns, schema=schema)
    arrow = pa.concat_tables([_with_op(found.rows.cast(schema), Op.UPDATE), _with_op(removed, Op.DELETE)])
    return ChangedRows(plans.catalyst.frame(root.plan), len(arrow), arrow)


def _with_op(rows: pa.Table, op: Op) -> pa.Table:
    return rows.append_column(OP, pa.repeat(pa.scalar(op.value, pa.string()), len(rows)))


def _cached_groups(plans: SignedPlans, keys: ResultKeys, touched: DataFrame, now: DataFrame) -> ChangedRows:
    names: Sequence[str] = now.columns
    pairs = {f"c{place}": f"k{number}" for number, place in enumerate(keys.places)}
    same = [F.col(f"n.{name}").eqNullSafe(F.col(f"t.{key}")) for name, key in pairs.items()]
    gone = touched.alias("t").join(now.alias("n"), same, "left_anti")
    kinds = {field.name: field.dataType for field in now.schema.fields}
    lost = [F.col(pairs[name]) if name in pairs else F.lit(None) for name in names]
    columns = [value.cast(kinds[name]).alias(name) for value, name in zip(lost, names, strict=True)]
    removed = gone.select(*columns, F.lit(Op.DELETE.value).alias(OP))
    frame = now.withColumn(OP, F.lit(Op.UPDATE.value)).unionAll(removed)
    return ChangedRows(frame, frame.count())
