"""Rows compared by numbers that stand for their values, on Arrow: null equals null, and zeros and NaN are one each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Codes = np.ndarray[Any, np.dtype[np.int64]]


def codes_of(values: pa.ChunkedArray, distinct: pa.Array) -> Codes:
    """The place of each value in `distinct`; -1: it is not there."""
    found = pc.index_in(values, value_set=distinct, skip_nulls=False)
    codes: Codes = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return codes


def comparable_values(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Such that what Spark takes for equal is equal here."""
    if not pa.types.is_floating(values.type):
        return values
    plain = pc.add(values, pa.scalar(0.0, values.type))
    return pc.if_else(pc.is_nan(plain), pa.scalar(float("nan"), values.type), plain)


def rows_lacking(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Those of `rows` that are not in `others`, which has the same columns, in their order."""
    mine, theirs = np.zeros(len(rows), np.int64), np.zeros(len(others), np.int64)
    for one, other in zip(rows.columns, others.columns, strict=True):
        values = comparable_values(one)
        distinct = pc.unique(values)
        combined = mine * len(distinct) + codes_of(values, distinct)
        combinations, mine = np.unique(combined, return_inverse=True)
        found = codes_of(comparable_values(other.cast(one.type)), distinct)
        there = (found >= 0) & (theirs >= 0)
        wanted = np.where(there, theirs * len(distinct) + found, -1)
        at = np.minimum(np.searchsorted(combinations, wanted), max(len(combinations) - 1, 0))
        theirs = np.where(there & (combinations[at] == wanted), at, -1) if len(combinations) else wanted
    return rows.filter(pa.array(~np.isin(mine, theirs)))
