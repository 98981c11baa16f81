"""The groups at the top of a query that changed: their rows as they are now, without what they were before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from iscp.adapters.delta.query.plan_tree import PlanNode, ResultKeys
from iscp.adapters.delta.query.signed_plans import SignedPlans
from iscp.adapters.delta.query.signed_rows import At, ChangedRows, Signed, collected
from iscp.adapters.delta.rows.value_codes import rows_lacking
from iscp.core.netting import Op
from iscp.core.sql_names import OP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def changed_groups(plans: SignedPlans, root: PlanNode, keys: ResultKeys) -> ChangedRows | None:
    """The rows of all groups that changed rows have or had, as `c0`, `c1`, … with OP: `u` as it is now, `d` it is gone.

    None: no row has changed. Only the columns of the keys count where a group is gone.
    """
    (node,) = keys.node.inputs
    signed = plans.delta(node)
    if signed is None:
        return None
    found = _held_groups(plans, root, keys, signed) if plans.held_max else None
    if found is not None:
        return found if found.rows else None
    changed = plans.evaluated(keys.node, {0: signed})
    if not changed:
        return None
    touched = plans.catalyst.frame(plans.touched(keys.node, changed))
    now = plans.keep(_rows_now(plans, root, keys, touched))  # read twice below, and of all rows of the tables
    return _kept_groups(plans, keys, touched, now)


def _rows_now(plans: SignedPlans, root: PlanNode, keys: ResultKeys, touched: DataFrame) -> DataFrame:
    (node,) = keys.node.inputs
    rows = plans.restricted(plans.rows(node, At.NEW), keys.node.keys[0], plans.catalyst.plan_of(touched))
    names = [f"c{place}" for place in range(len(plans.catalyst.output(root.plan)))]
    return plans.catalyst.frame(plans.above(root, node, rows)).toDF(*names)


def _held_groups(plans: SignedPlans, root: PlanNode, keys: ResultKeys, signed: Signed) -> ChangedRows | None:
    """By way of this process, where the keys and rows are few; None: they are not."""
    (node,) = keys.node.inputs
    rows = plans.netted(node, signed)
    touched = collected(plans.catalyst.frame(plans.touched(keys.node, {0: rows})), plans.held_max)
    if touched is None:
        return None
    if not len(touched):
        return ChangedRows(rows, 0)
    frame = rows.sparkSession.createDataFrame(touched)
    now = collected(_rows_now(plans, root, keys, frame), plans.held_max)
    if now is None:
        return None
    names = [f"c{place}" for place in keys.places]
    gone = rows_lacking(touched, now.select(names))
    lost = {f"c{place}": gone.column(number) for number, place in enumerate(keys.places)}
    removed = pa.table(
        [
            lost[each.name].cast(each.type) if each.name in lost else pa.nulls(len(gone), each.type)
            for each in now.schema
        ],
        schema=now.schema,
    )
    held = pa.concat_tables([_with_op(now, Op.UPDATE), _with_op(removed, Op.DELETE)])
    return ChangedRows(frame, len(held), held)


def _with_op(rows: pa.Table, op: Op) -> pa.Table:
    return rows.append_column(OP, pa.repeat(pa.scalar(op.value, pa.string()), len(rows)))


def _kept_groups(plans: SignedPlans, keys: ResultKeys, touched: DataFrame, now: DataFrame) -> ChangedRows:
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
