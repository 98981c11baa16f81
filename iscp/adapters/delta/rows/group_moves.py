"""Groups that are kept as counts and sums, moved by what changed rows add to them and take away, on Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iscp.adapters.delta.rows.value_codes import row_codes
from iscp.core.rows.netting import Op
from iscp.core.sql.sql_names import OP

_DIGITS = 76


def moved_groups(held: pa.Table, changes: pa.Table, keys: Sequence[str], rows: str) -> pa.Table:
    """The groups of `changes` as they are now, with OP: gone where the column `rows` has come to 0.

    Of each group what is `held`, where it is (of other groups too), and what is added to it: `keys`, and numbers to be
    added up. Null equals null. Raises ArrowInvalid where a sum has more digits than its column.
    """
    columns = changes.schema
    numbers = [name for name in columns.names if name not in keys]
    wide = pa.schema([each.with_type(_wider(each.type)) if each.name in numbers else each for each in columns])
    mine, theirs = row_codes(changes.select(keys), held.select(keys))
    touched = held.select(columns.names).filter(pa.array(np.isin(theirs, mine)))
    both = pa.concat_tables([touched.cast(columns).cast(wide), changes.cast(wide)])
    found = both.group_by([*keys], use_threads=False).aggregate([(name, "sum") for name in numbers])
    summed = found.rename_columns([name.removesuffix("_sum") for name in found.schema.names])
    now = summed.select(columns.names).cast(columns)
    return now.append_column(OP, pc.if_else(pc.equal(now[rows], 0), Op.DELETE.value, Op.UPDATE.value))


def _wider(kind: pa.DataType) -> pa.DataType:
    return pa.decimal256(_DIGITS, kind.scale) if pa.types.is_decimal(kind) else kind
