"""Groups of a view that follow what changed rows add to them and take away, without Spark.

This is done only where few rows changed, and types are such that it comes out as Spark has it
(`iscp/core/query/group_query.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.rows.group_moves import moved_groups, summed_groups
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.adapters.system.late_imports import F
from iscp.core.query.group_query import ROWS, GroupQuery, Output, finished_sums, key_columns, number_names
from iscp.core.sql.sql_names import OP, WEIGHT, quoted
from iscp.ports.source import ChangesUnavailableError
from iscp.views.catalyst.aggregates import stored_groups

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

GROUPS_MAX = 20_000
"""Groups that one refresh changes without Spark; more are for Spark."""


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """The changed groups, each with its op (Op): rows of the stored ones, and of the view."""

    stored: pa.Table
    view: pa.Table


def stored_frame(query: GroupQuery, rows: DataFrame) -> DataFrame:
    """Return the groups of all rows as they are stored, without a point in decimals.

    `k0`, … are the keys, `n` the number of rows, `c0`, … how many values of each measured column are not null, and
    `s0`, … their sum.
    """
    names = zip(query.keys, key_columns(len(query.keys)), strict=True)
    keys = [F.col(quoted(key)).alias(name) for key, name in names]
    sums = [(F.count(quoted(each)), F.sum(_whole(query, each)), "long") for each in query.measured]
    return stored_groups(rows, keys, F.count("*"), sums)


def _whole(query: GroupQuery, column: str) -> Column:
    if column not in query.scales:
        return F.lit(0).cast("long")
    scale = query.scales[column]
    shifted = F.col(quoted(column)) * F.lit(10**scale) if scale else F.col(quoted(column))
    return shifted.cast("decimal(38,0)")


class UnfitGroupsError(Exception):
    """The stored groups cannot be those that the changes started from, or the new ones cannot be: Spark has to do
    it.
    """


def change_groups(query: GroupQuery, deltas: pa.Table, stored: pa.Table, view: pa.Schema) -> GroupChanges:
    """Return how the groups change by `deltas`, as `sum_up` gives them.

    `stored` has these groups, and perhaps others. `view` has the result's columns. Raises UnfitGroupsError.
    """
    keys, numbers = key_columns(len(query.keys)), number_names(len(query.measured))
    whole = [pa.field(each, pa.int64()) for each in numbers]
    try:
        moved = moved_groups(stored, deltas, keys, ROWS)
        now = moved.cast(pa.schema([*(moved.schema.field(each) for each in keys), *whole, moved.schema.field(OP)]))
    except pa.ArrowInvalid as error:  # a sum is beyond 64 bits
        raise UnfitGroupsError from error
    if not _is_sound(query, now):
        raise UnfitGroupsError
    columns = [_result_column(each, query, now) for each in query.outputs]
    rows = {field.name: _column(each, field.type) for each, field in zip(columns, view, strict=True)}
    return GroupChanges(now, pa.table(rows | {OP: now[OP]}))


def _is_sound(query: GroupQuery, now: pa.Table) -> bool:
    """Return whether rows can come to all of these numbers."""
    rows = now[ROWS]
    holds = [pc.greater_equal(rows, 0)]
    for place in range(len(query.measured)):
        count, total = now[f"c{place}"], now[f"s{place}"]
        holds += [pc.greater_equal(count, 0), pc.less_equal(count, rows)]
        holds.append(pc.or_(pc.greater(rows, 0), pc.equal(total, 0)))
    return all(pc.all(each, min_count=0).as_py() for each in holds)


def _result_column(output: Output, query: GroupQuery, now: pa.Table) -> pa.ChunkedArray | Sequence[Any]:
    if output.kind is None:
        return now[f"k{query.keys.index(output.column)}"]
    if not output.column:
        return now[ROWS]
    place = query.measured.index(output.column)
    counts, sums = now[f"c{place}"], now[f"s{place}"]
    return finished_sums(output, query, counts.to_pylist(), sums.to_pylist()) if output.kind.has_sum else counts


def _column(values: Any, kind: pa.DataType) -> Any:
    return values.cast(kind) if isinstance(values, pa.ChunkedArray) else pa.array(values, kind)


def sum_up(query: GroupQuery, changes: pa.Table) -> pa.Table:
    """Return the sums of changed rows by group, each of which has come or gone once, as its WEIGHT says.

    The columns are those of stored groups. A group to which nothing is added in all is left out.
    """
    weight = changes[WEIGHT]
    keys, numbers = key_columns(len(query.keys)), number_names(len(query.measured))
    columns: dict[str, Any] = {name: changes[key] for name, key in zip(keys, query.keys, strict=True)} | {ROWS: weight}
    for place, column in enumerate(query.measured):
        values = changes[column]
        columns[f"c{place}"] = pc.if_else(pc.is_valid(values), weight, 0)
        columns[f"s{place}"] = pc.fill_null(_signed(query, column, values, pc.greater(weight, 0)), 0)
    found = summed_groups(pa.table(columns), keys, numbers)
    moved = pc.not_equal(found[ROWS], 0)
    for each in numbers:
        moved = pc.or_(moved, pc.not_equal(found[each], 0))
    return found.filter(moved)


def _signed(query: GroupQuery, column: str, values: pa.ChunkedArray, came: pa.ChunkedArray) -> Any:
    """Return the values as whole numbers; those of rows that went are negative."""
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
    """Return the same digits without the point: a decimal is stored as such a number."""
    return pa.Array.from_buffers(pa.decimal128(38, 0), len(values), values.buffers(), offset=values.offset)


def read_groups(uri: str, version: int, keys: pa.Table) -> pa.Table:
    """Return the stored groups with these keys, and others. Raises ChangesUnavailableError if a file is gone."""
    with delta_faults(f"read {uri}"):
        # By delta-rs itself: Arrow takes neither rows that are marked as deleted, nor a filter of texts that it wrote.
        batches = pa.RecordBatchReader.from_stream(open_delta(uri, version).scan())
        try:
            found = [_with_first(batch, pc.unique(keys["k0"])) for batch in batches]
        except pa.ArrowInvalid as error:  # whatever delta-rs has met on its way through the files
            raise ChangesUnavailableError(f"what is kept of the groups cannot be read: {error}") from error
        return pa.concat_tables([_plain(batches.schema).empty_table(), *found])


def _with_first(batch: pa.RecordBatch, firsts: pa.Array) -> pa.Table:
    """Return the rows whose first key is one of these."""
    rows = pa.Table.from_batches([batch]).cast(_plain(batch.schema))
    return rows.filter(pc.is_in(rows["k0"], value_set=firsts.cast(rows.schema.field("k0").type)))


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_type(pa.string()) if each.type == pa.string_view() else each for each in schema])
