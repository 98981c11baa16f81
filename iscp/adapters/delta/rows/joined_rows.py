"""Rows joined by equal values, and changed rows summed up, on Arrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.rows.value_codes import row_codes
from iscp.core.query.join_query import Column, JoinQuery, JoinStep, RowCondition, choices
from iscp.core.sql.sql_names import WEIGHT

_OTHER = "_iscp_other_weight"
_FUNCTIONS = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


Find = Callable[[JoinStep, pa.Table], pa.Table]
"""All rows of the step's table that have one of these keys, under the table's own names."""


def changed_join(query: JoinQuery, changed: Mapping[int, pa.Table], find: Find, rows_max: int) -> pa.Table:
    """Return how the result changes: its columns as `c0`, `c1`, …, and WEIGHT, 1 or -1: a row may be there several
    times.

    `changed`: for some of the tables, by their places, the changed rows, each with 1 or -1 as WEIGHT. `find` returns
    rows as they are afterwards. Raises NotReadableHere where there are more than `rows_max` on the way.
    """
    counting = {place: _counting(query, place, rows) for place, rows in changed.items()}
    parts = []
    for sign, chosen in choices(counting):
        rows = _joined(query, {each: counting[each] for each in chosen}, find, rows_max)
        weights = pc.multiply(rows[WEIGHT], pa.scalar(sign, pa.int64()))
        shown = [rows[_name(each)] for each in query.outputs]  # a column may be shown twice
        parts.append(pa.table([*shown, weights], names=[*(f"c{place}" for place in range(len(shown))), WEIGHT]))
    return pa.concat_tables(parts)


def _joined(query: JoinQuery, chosen: Mapping[int, pa.Table], find: Find, rows_max: int) -> pa.Table:
    """Return the changed rows of these tables, joined with each other and with all rows of the others."""
    first, *_ = chosen
    rows = chosen[first]
    for step in query.steps({first}):
        if step.place in chosen:
            other = chosen[step.place]
        else:
            keys = {right.name: rows[_name(left)] for left, right in step.pairs}
            distinct = pa.table(keys).group_by(list(keys), use_threads=False).aggregate([])
            other = _counting(query, step.place, find(step, distinct))
        if WEIGHT in other.schema.names:
            other = other.rename_columns([_OTHER if each == WEIGHT else each for each in other.schema.names])
        rows = join_rows(rows, other, [(_name(left), _name(right)) for left, right in step.pairs], rows_max)
        if _OTHER in rows.schema.names:
            product = pc.multiply(rows[WEIGHT], rows[_OTHER])
            rows = rows.drop_columns([WEIGHT, _OTHER]).append_column(WEIGHT, product)
    return rows


def _counting(query: JoinQuery, place: int, rows: pa.Table) -> pa.Table:
    """Return the rows that meet the table's conditions, under names that no other table's columns have."""
    rows = meeting(rows, query.tables[place].conditions)
    return rows.rename_columns([each if each == WEIGHT else _name(Column(place, each)) for each in rows.schema.names])


def _name(column: Column) -> str:
    return f"{column.place}.{column.name}"


def join_rows(left: pa.Table, right: pa.Table, pairs: Sequence[tuple[str, str]], rows_max: int) -> pa.Table:
    """Return each row of `left` with each of `right` that has the same values in these `pairs` of columns, none of them
    null.

    No name is in both. Raises NotReadableHere where they are more than `rows_max`.
    """
    left, right = (_with_values(rows, [pair[side] for pair in pairs]) for side, rows in enumerate((left, right)))
    mine, theirs = row_codes(left.select([one for one, _ in pairs]), right.select([other for _, other in pairs]))
    order = np.argsort(theirs, kind="stable")
    begins, ends = (np.searchsorted(theirs[order], mine, side=side) for side in ("left", "right"))
    counts = ends - begins
    total = int(counts.sum())
    if total > rows_max:
        raise NotReadableHere
    at = np.repeat(np.arange(len(mine)), counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    found = left.take(pa.array(at))
    matching = right.take(pa.array(order[np.repeat(begins, counts) + within]))
    for name in matching.schema.names:
        found = found.append_column(name, matching[name])
    return found


def _with_values(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    for name in columns:
        if rows[name].null_count:
            rows = rows.filter(pc.is_valid(rows[name]))
    return rows


def meeting(rows: pa.Table, conditions: Sequence[RowCondition]) -> pa.Table:
    """Return the rows that meet all conditions; a null meets none but another null condition."""
    for column, operator, value in conditions:
        values = rows[column]
        if not operator:
            rows = rows.filter(pc.is_valid(values))
        else:
            rows = rows.filter(pc.call_function(_FUNCTIONS[operator], [values, pa.scalar(value, values.type)]))
    return rows


def net_rows(rows: pa.Table) -> pa.Table:
    """Return each distinct row once, with its WEIGHTs summed up; without those that came and went."""
    values = rows.drop_columns([WEIGHT])
    codes, _ = row_codes(values, values.slice(0, 0))
    _, first, places = np.unique(codes, return_index=True, return_inverse=True)
    weights = np.zeros(len(first), np.int64)
    np.add.at(weights, places, rows[WEIGHT].to_numpy())
    left = np.flatnonzero(weights)
    return values.take(pa.array(first[left])).append_column(WEIGHT, pa.array(weights[left], pa.int64()))
