"""The changes that turn the present rows into those that are wanted, by key and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from iscp.adapters.delta.rows.net_changes import has_own_keys, key_columns
from iscp.adapters.delta.rows.value_codes import beyond, row_codes
from iscp.core.rows.netting import Op
from iscp.core.sql.sql_names import OP


def differing_rows(wanted: pa.Table, present: pa.Table, key: Sequence[str]) -> pa.Table | None:
    """Return rows of `wanted` that `present` lacks or has otherwise (op `u`), and keys that only `present` has (op
    `d`).

    Values compare as in Spark (iscp/consumers/replica/shared_keys.py), in the columns of `wanted`. None: rows share a
    key in one of the two, or Arrow does not compare such values.
    """
    names = {name.lower(): name for name in present.column_names}
    if names.keys() != {name.lower() for name in wanted.column_names}:
        return None
    present = present.select([names[name.lower()] for name in wanted.column_names]).rename_columns(wanted.column_names)
    if present.schema.types != wanted.schema.types or not (has_own_keys(wanted, key) and has_own_keys(present, key)):
        return None
    wanted_codes, present_codes = row_codes(wanted, present)
    new = wanted.filter(pa.array(beyond(wanted_codes, present_codes)))
    old = present.filter(pa.array(beyond(present_codes, wanted_codes)))
    called = {name.lower(): name for name in wanted.column_names}
    keys = [called[name.lower()] for name in key]
    old_keys, new_keys = row_codes(old.select(keys), new.select(keys))
    gone = old.filter(pa.array(~np.isin(old_keys, new_keys)))
    return pa.concat_tables([_with_op(new, Op.UPDATE), _with_op(gone, Op.DELETE)])


def having_keys(rows: pa.Table, others: pa.Table, key: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each row whether one of `others` has its key; null equals null."""
    mine, theirs = row_codes(key_columns(rows, key), key_columns(others, key))
    return np.isin(mine, theirs)


def changes_of_keys(keys: pa.Table, own: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return `own` rows (op `u`), and those of `keys` that none of them has (op `d`), whose other columns are null."""
    gone = key_columns(keys.filter(pa.array(~having_keys(keys, own, key))), key)
    places = {name.lower(): place for place, name in enumerate(key)}
    columns = [
        gone.column(places[field.name.lower()]).cast(field.type)
        if field.name.lower() in places
        else pa.nulls(len(gone), field.type)
        for field in own.schema
    ]
    return pa.concat_tables([_with_op(own, Op.UPDATE), _with_op(pa.table(columns, own.schema.names), Op.DELETE)])


def _with_op(rows: pa.Table, op: Op) -> pa.Table:
    return rows.append_column(OP, pa.array([op.value] * len(rows), pa.string()))
