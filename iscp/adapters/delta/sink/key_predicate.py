"""Writes a condition that holds for the rows with some keys and no others, in the SQL of deltalake's engine.

Such a condition costs the engine little, however many columns a table has: its plan of a merge pairs each column of one
side with all of the other's, which takes seconds for a thousand of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from iscp.adapters.delta.rows.key_bounds import bounds_of_arrow
from iscp.core.sql.sql_names import quoted

KEYS_NAMED_MAX = 2_000
"""Keys that a condition names; more are merged, whose costs do not grow with their number."""


def names_keys(keys: pa.Table) -> bool:
    """Return whether such a condition can be written. `keys` has no nulls."""
    kinds = keys.schema.types
    return 0 < len(keys) <= KEYS_NAMED_MAX and all(map(is_literal, kinds))


def key_predicate(keys: pa.Table) -> str:
    """Return the condition for all columns of `keys`, for which `names_keys` is True."""
    within = range_predicate(keys, keys.schema.names)  # by which files are left out, as they are not by long lists
    columns = [column.to_pylist() for column in keys.columns]
    names = [quoted(name) for name in keys.schema.names]
    if len(names) == 1:
        return f"{within} AND {names[0]} IN ({', '.join(map(literal, columns[0]))})"
    each = [
        " AND ".join(f"{name} = {literal(value)}" for name, value in zip(names, values, strict=True))
        for values in zip(*columns, strict=True)
    ]
    return f"{within} AND ({_any_of(each)})"


def range_predicate(keys: pa.Table, names: Sequence[str]) -> str:
    """Return a condition that holds for rows whose values of these columns lie between those of all `keys`.

    The condition is empty if it bounds no column.
    """
    ends = bounds_of_arrow(keys, names).items()
    called = {name.lower(): quoted(name) for name in names}
    return " AND ".join(f"{called[name]} BETWEEN {literal(low)} AND {literal(high)}" for name, (low, high) in ends)


def is_literal(kind: pa.DataType) -> bool:
    """Return whether `literal` writes values of this type."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def literal(value: int | str) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _any_of(conditions: Sequence[str]) -> str:
    """Join the conditions by OR, as a tree that is not deep: engines go down a condition by recursion."""
    if len(conditions) == 1:
        return f"({conditions[0]})"
    half = len(conditions) // 2
    return f"({_any_of(conditions[:half])} OR {_any_of(conditions[half:])})"
