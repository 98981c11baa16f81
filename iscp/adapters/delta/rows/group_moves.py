"""Adds what changed rows contribute to groups, which are stored as counts and sums, and takes away, on Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.rows.value_codes import row_codes
from iscp.core.rows.netting import Op
from iscp.core.sql.sql_names import OP

_DIGITS = 76


def moved_groups(stored: pa.Table, changes: pa.Table, keys: Sequence[str], rows: str) -> pa.Table:
    """Return the groups of `changes` as they are now, with OP: gone where the column `rows` has come to 0.

    `stored` has these groups, as far as they are stored, and may have others. `changes` has each group once, with
    `keys` and the numbers that are added to it. Null equals null. Raises ArrowInvalid where a sum has more digits than
    its column.
    """
    columns = changes.schema
    numbers = [name for name in columns.names if name not in keys]
    wide = pa.schema([each.with_type(_wider(each.type)) if each.name in numbers else each for each in columns])
    mine, theirs = row_codes(changes.select(keys), stored.select(keys))
    touched = stored.select(columns.names).filter(pa.array(np.isin(theirs, mine)))
    both = pa.concat_tables([changes.cast(wide), touched.cast(columns).cast(wide)])
    now = summed_groups(both, keys, numbers).cast(columns)
    there = pc.if_else(pa.array(np.isin(mine, theirs)), Op.UPDATE.value, Op.INSERT.value)
    return now.append_column(OP, pc.if_else(pc.equal(now[rows], 0), Op.DELETE.value, there))


def summed_groups(rows: pa.Table, keys: Sequence[str], numbers: Sequence[str]) -> pa.Table:
    """Return each group of `rows` once, in the order in which they are met, with its `numbers` added up."""
    found = rows.group_by([*keys], use_threads=False).aggregate([(name, "sum") for name in numbers])
    return found.rename_columns([name.removesuffix("_sum") for name in found.schema.names]).select([*keys, *numbers])


def _wider(kind: pa.DataType) -> pa.DataType:
    return pa.decimal256(_DIGITS, kind.scale) if pa.types.is_decimal(kind) else kind
