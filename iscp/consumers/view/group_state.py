"""Keeps a view of groups by what changed rows add to them and take away, without Spark.

Only where few rows changed, and types are such that it comes out as Spark has it (`iscp/core/query/group_query.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.rows.value_codes import row_codes
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.core.query.group_query import GroupQuery, Totals, result_column
from iscp.core.rows.netting import Op
from iscp.core.sql.sql_names import OP, WEIGHT, quoted
from iscp.ports.source import ChangesUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

GROUPS_MAX = 20_000
"""Groups that one refresh changes without Spark; more are for Spark."""

_ROWS = "n"


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """The changed groups, each with its op (Op): rows of what is kept, and of the view."""

    kept: pa.Table
    view: pa.Table


@dataclass(frozen=True, slots=True)
class GroupDeltas:
    """What changed rows come to: `keys` as they are kept, each group once, and `totals` in their order."""

    keys: pa.Table
    totals: Totals


def key_columns(query: GroupQuery) -> list[str]:
    """Of what is kept."""
    return [f"k{place}" for place in range(len(query.keys))]


def kept_frame(query: GroupQuery, rows: DataFrame) -> DataFrame:
    """What is kept of all rows: `k0`, … the keys, `n` rows, and of each measured column `c0`, … how many are not null,
    and `s0`, … their sum."""
    keys = [F.col(quoted(key)).alias(name) for key, name in zip(query.keys, key_columns(query), strict=True)]
    measures: list[Column] = [F.count("*").alias(_ROWS)]
    for place, column in enumerate(query.measured):
        measures.append(F.count(quoted(column)).alias(f"c{place}"))
        measures.append(F.coalesce(F.sum(_whole(query, column)), F.lit(0)).cast("long").alias(f"s{place}"))
    return rows.groupBy(*keys).agg(*measures)


def _whole(query: GroupQuery, column: str) -> Column:
    if column not in query.scales:
        return F.lit(0).cast("long")
    scale = query.scales[column]
    shifted = F.col(quoted(column)) * F.lit(10**scale) if scale else F.col(quoted(column))
    return shifted.cast("decimal(38,0)")


class UnfitGroupsError(Exception):
    """What is kept cannot be what the changes started from, or they come to more than can be kept: Spark has to."""


def change_groups(query: GroupQuery, deltas: GroupDeltas, held: pa.Table, view: pa.Schema) -> GroupChanges:
    """`held`: what is kept of these groups, and perhaps of others. `view`: the result's columns.

    Raises UnfitGroupsError.
    """
    places = _places(deltas.keys, held)
    now = _totals(query, held.take(pa.array(places, mask=places < 0))).plus(deltas.totals)
    if not now.sound:
        raise UnfitGroupsError
    was, there = places >= 0, np.array(now.rows, np.int64) > 0
    ops = np.where(~there, Op.DELETE.value, np.where(was, Op.UPDATE.value, Op.INSERT.value))
    changed, op = pa.array(was | there), pa.array(ops, pa.string())
    kept: dict[str, Any] = {name: deltas.keys[name] for name in key_columns(query)}
    numbers = dict(zip(_number_columns(query), _numbers(now), strict=True))
    kept |= {name: pa.array(column, pa.int64()) for name, column in numbers.items()} | {OP: op}
    keys = dict(zip(query.keys, deltas.keys.columns, strict=True))
    columns = [result_column(each, query, keys, now) for each in query.outputs]
    rows = {field.name: _column(each, field.type) for each, field in zip(columns, view, strict=True)}
    return GroupChanges(pa.table(kept).filter(changed), pa.table(rows | {OP: op}).filter(changed))


def _places(keys: pa.Table, held: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of each group the place of its row among those that are held; -1: it has none."""
    mine, theirs = row_codes(keys, held.select(keys.schema.names))
    places = np.full(max(mine.max(initial=-1), theirs.max(initial=-1)) + 1, -1, np.int64)
    places[theirs] = np.arange(len(held))
    found: np.ndarray[Any, np.dtype[np.int64]] = places[mine]
    return found


def _totals(query: GroupQuery, rows: pa.Table) -> Totals:
    """Of rows as they are kept; null is nothing."""
    count, *pairs = (pc.fill_null(rows[name], 0).to_pylist() for name in _number_columns(query))
    return Totals(count, pairs[::2], pairs[1::2])


def _column(values: Any, kind: pa.DataType) -> Any:
    return values.cast(kind) if isinstance(values, pa.ChunkedArray) else pa.array(values, kind)


def sum_up(query: GroupQuery, changes: pa.Table) -> GroupDeltas:
    """What changed rows come to by group, each of which has come or gone once, as its WEIGHT says."""
    weight = changes[WEIGHT]
    keys = key_columns(query)
    columns: dict[str, Any] = {name: changes[key] for name, key in zip(keys, query.keys, strict=True)} | {_ROWS: weight}
    for place, column in enumerate(query.measured):
        values = changes[column]
        columns[f"c{place}"] = pc.if_else(pc.is_valid(values), weight, 0)
        columns[f"s{place}"] = _signed(query, column, values, pc.greater(weight, 0))
    numbers = _number_columns(query)
    found = pa.table(columns).group_by(keys, use_threads=False).aggregate([(name, "sum") for name in numbers])
    summed = found.rename_columns([name.removesuffix("_sum") for name in found.schema.names])
    totals = _totals(query, summed)
    return GroupDeltas(summed.select(keys), replace(totals, sums=[list(map(int, each)) for each in totals.sums]))


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


def read_groups(uri: str, version: int, keys: pa.Table) -> pa.Table:
    """What is kept of the groups with these keys, and of others. Raises ChangesUnavailableError if a file is gone."""
    with delta_faults(f"read {uri}"):
        # By delta-rs itself: Arrow takes neither rows that are marked as deleted, nor a filter of texts that it wrote.
        batches = pa.RecordBatchReader.from_stream(open_delta(uri, version).scan())
        try:
            found = [_with_first(batch, pc.unique(keys["k0"])) for batch in batches]
        except pa.ArrowInvalid as error:  # whatever delta-rs has met on its way through the files
            raise ChangesUnavailableError(f"what is kept of the groups cannot be read: {error}") from error
        return pa.concat_tables([_plain(batches.schema).empty_table(), *found])


def _with_first(batch: pa.RecordBatch, firsts: pa.Array) -> pa.Table:
    """The rows whose first key is one of these."""
    rows = pa.Table.from_batches([batch]).cast(_plain(batch.schema))
    return rows.filter(pc.is_in(rows["k0"], value_set=firsts.cast(rows.schema.field("k0").type)))


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_type(pa.string()) if each.type == pa.string_view() else each for each in schema])


def _numbers(totals: Totals) -> list[list[int]]:
    pairs = zip(totals.counts, totals.sums, strict=True)
    return [totals.rows, *(column for pair in pairs for column in pair)]


def _number_columns(query: GroupQuery) -> list[str]:
    """Of what is kept."""
    return [_ROWS, *(name for place in range(len(query.measured)) for name in (f"c{place}", f"s{place}"))]
