"""Rows compared by numbers that stand for their values, on Arrow: null equals null, and zeros and NaN are one each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Codes = np.ndarray[Any, np.dtype[np.int64]]


def codes_of(values: pa.ChunkedArray, distinct: pa.Array) -> Codes:
    """Return the place of each value in `distinct`; -1: it is not there."""
    found = pc.index_in(values, value_set=distinct, skip_nulls=False)
    codes: Codes = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return codes


def comparable_values(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values such that what Spark takes for equal is equal here."""
    if not pa.types.is_floating(values.type):
        return values
    plain = pc.add(values, pa.scalar(0.0, values.type))
    return pc.if_else(pc.is_nan(plain), pa.scalar(float("nan"), values.type), plain)


def row_codes(rows: pa.Table, others: pa.Table) -> tuple[Codes, Codes]:
    """Return for each row a number that all rows equal to it have, and no other.

    `others` has the same columns, in their order.
    """
    every = pa.concat_tables([rows, others.rename_columns(rows.schema.names).cast(rows.schema)])
    known = np.zeros(len(every), np.int64)
    for column in every.columns:
        values = comparable_values(column)
        distinct = pc.unique(values)
        _, known = np.unique(known * len(distinct) + codes_of(values, distinct), return_inverse=True)
    return known[: len(rows)], known[len(rows) :]


def ordinals(codes: Codes) -> Codes:
    """Return for each row how many equal ones lie before it."""
    order = np.argsort(codes, kind="stable")
    found = np.empty(len(codes), np.int64)
    found[order] = np.arange(len(codes)) - np.searchsorted(codes[order], codes[order], side="left")
    return found


def beyond(codes: Codes, others: Codes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows are more than there are equal ones among the others."""
    size = int(max(codes.max(initial=-1), others.max(initial=-1))) + 1
    found: np.ndarray[Any, np.dtype[np.bool_]] = ordinals(codes) >= np.bincount(others, minlength=size)[codes]
    return found
