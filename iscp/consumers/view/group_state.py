"""Keeps a view of groups by what changed rows add to them and take away, without Spark.

Only where few rows changed, and types are such that it comes out as Spark has it (`iscp/core/group_query.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import functions as F

from iscp.adapters.delta.log.delta_errors import delta_faults
from iscp.core.group_query import GroupQuery, Totals, result_row
from iscp.core.netting import Op
from iscp.core.sql_names import OP, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

GROUPS_MAX = 20_000
"""Groups that one refresh changes without Spark; more are for Spark."""

Group = tuple[Any, ...]
"""The values of the keys, in order."""

_CHANGE_TYPE = "_change_type"
_WRITTEN = ("insert", "update_postimage")
_ROWS = "n"


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """The changed groups, each with its op (Op): rows of what is kept, and of the view."""

    kept: pa.Table
    view: pa.Table


def key_columns(query: GroupQuery) -> list[str]:
    """Of what is kept."""
    return [f"k{place}" for place in range(len(query.keys))]


def kept_frame(query: GroupQuery, table: DataFrame) -> DataFrame:
    """What is kept of all rows of the table: `k0`, … the keys, `n` rows, and of each measured column `c0`, … how many
    are not null, and `s0`, … their sum."""
    keys = [F.col(quoted(key)).alias(name) for key, name in zip(query.keys, key_columns(query), strict=True)]
    measures: list[Column] = [F.count("*").alias(_ROWS)]
    for place, column in enumerate(query.measured):
        measures.append(F.count(quoted(column)).alias(f"c{place}"))
        measures.append(F.coalesce(F.sum(_whole(query, column)), F.lit(0)).cast("long").alias(f"s{place}"))
    return table.groupBy(*keys).agg(*measures)


def _whole(query: GroupQuery, column: str) -> Column:
    if column not in query.scales:
        return F.lit(0).cast("long")
    scale = query.scales[column]
    shifted = F.col(quoted(column)) * F.lit(10**scale) if scale else F.col(quoted(column))
    return shifted.cast("decimal(38,0)")


class UnfitGroupsError(Exception):
    """What is kept cannot be what the changes started from, or they come to more than can be kept: Spark has to."""


def change_groups(
    query: GroupQuery, deltas: Mapping[Group, Totals], uri: str, version: int, keys: pa.Schema, view: pa.Schema
) -> GroupChanges:
    """`uri` and `version`: of what is kept. `keys`: the table's columns that are grouped by, `view`: the result's.

    Raises UnfitGroupsError.
    """
    before = _read(query, uri, version, list(deltas))
    kept_rows, view_rows = [], []
    for key, delta in deltas.items():
        was = before.get(key)
        now = delta if was is None else was.plus(delta)
        if now.rows < 0 or not now.sound or (now.rows == 0 and any((*now.counts, *now.sums))):
            raise UnfitGroupsError
        if now.rows or was is not None:
            op = Op.DELETE if not now.rows else Op.INSERT if was is None else Op.UPDATE
            kept_rows.append((*key, now.rows, *_interleaved(now), op.value))
            view_rows.append((*result_row(query, key, now), op.value))
    names = [*key_columns(query), _ROWS, *_interleaved_names(query), OP]
    kinds = [keys.field(key).type for key in query.keys]
    numbers = [pa.int64()] * (len(names) - len(kinds) - 1)
    return GroupChanges(
        _table(kept_rows, pa.schema(zip(names, [*kinds, *numbers, pa.string()], strict=True))),
        _table(view_rows, view.append(pa.field(OP, pa.string()))),
    )


def sum_up(query: GroupQuery, changes: pa.Table) -> dict[Group, Totals]:
    """What changed rows, each with `_change_type`, come to by group."""
    came = pc.is_in(changes[_CHANGE_TYPE], value_set=pa.array(_WRITTEN))
    weight = pc.if_else(came, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))
    columns: dict[str, Any] = {f"k{place}": changes[key] for place, key in enumerate(query.keys)} | {_ROWS: weight}
    for place, column in enumerate(query.measured):
        values = changes[column]
        columns[f"c{place}"] = pc.if_else(pc.is_valid(values), weight, 0)
        columns[f"s{place}"] = _signed(query, column, values, came)
    sums = [(name, "sum") for name in columns if not name.startswith("k")]
    found = pa.table(columns).group_by(key_columns(query), use_threads=False).aggregate(sums)
    width, deltas = len(query.measured), {}
    for row in found.select([*key_columns(query), *[f"{name}_sum" for name, _ in sums]]).to_pylist():
        values = list(row.values())
        key, rest = tuple(values[: len(query.keys)]), values[len(query.keys) :]
        numbers = [int(each or 0) for each in rest[1:]]
        deltas[key] = Totals(int(rest[0]), tuple(numbers[0 : 2 * width : 2]), tuple(numbers[1 : 2 * width : 2]))
    return deltas


def _signed(query: GroupQuery, column: str, values: pa.ChunkedArray, came: pa.ChunkedArray) -> Any:
    """The values as whole numbers, those that went below zero."""
    if column not in query.scales:
        return pa.array([0] * len(values), pa.decimal128(38, 0))
    scale = query.scales[column]
    exact = (
        values.cast(pa.decimal128(38, scale))
        if pa.types.is_decimal(values.type)
        else values.cast(pa.int64()).cast(pa.decimal128(38, 0))
    )
    if scale:
        exact = pa.chunked_array([_unscaled(chunk) for chunk in exact.chunks], pa.decimal128(38, 0))
    return pc.if_else(came, exact, pc.negate(exact))


def _unscaled(values: pa.Array) -> pa.Array:
    """The same digits without the point: a decimal is kept as such a number."""
    return pa.Array.from_buffers(pa.decimal128(38, 0), len(values), values.buffers(), offset=values.offset)


def _read(query: GroupQuery, uri: str, version: int, keys: Sequence[Group]) -> dict[Group, Totals]:
    """What is kept of the groups with these keys."""
    with delta_faults(f"read {uri}"):
        # By delta-rs itself: Arrow takes neither rows that are marked as deleted, nor a filter of texts that it wrote.
        batches = pa.RecordBatchReader.from_stream(DeltaTable(uri, version=version).scan())
        found = [row for batch in batches for row in _with_first(batch, [key[0] for key in keys])]
    width, names, among = len(query.measured), key_columns(query), {*keys}
    return {
        key: Totals(
            row[_ROWS],
            tuple(row[f"c{place}"] for place in range(width)),
            tuple(row[f"s{place}"] for place in range(width)),
        )
        for row in found
        if (key := tuple(row[name] for name in names)) in among
    }


def _with_first(batch: pa.RecordBatch, firsts: Sequence[Any]) -> list[dict[str, Any]]:
    """The rows whose first key is one of these."""
    plain = [each.with_type(pa.string()) if each.type == pa.string_view() else each for each in batch.schema]
    rows = pa.Table.from_batches([batch]).cast(pa.schema(plain))
    wanted = pa.array(set(firsts), rows.schema.field("k0").type)
    return list(rows.filter(pc.is_in(rows["k0"], value_set=wanted)).to_pylist())


def _interleaved(totals: Totals) -> list[int]:
    return [number for pair in zip(totals.counts, totals.sums, strict=True) for number in pair]


def _interleaved_names(query: GroupQuery) -> list[str]:
    return [name for place in range(len(query.measured)) for name in (f"c{place}", f"s{place}")]


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
