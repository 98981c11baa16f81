"""The key of a row as one text: equal for equal keys, null keys among them, and different for others."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from iscp.core.values.errors import ErrorCode, PermanentError

_NULL = "\\N"
_SEPARATOR = "|"


def key_texts(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    """Return a text for the key of each row. Raises PermanentError for a key of a type that cannot identify rows."""
    names = {name.lower(): name for name in rows.schema.names}
    parts = [_part(rows[names[name.lower()]], name) for name in key]
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, _SEPARATOR)


def _part(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        doubled = pc.replace_substring(column.cast(pa.string()), "\\", "\\\\")
        text = pc.replace_substring(doubled, _SEPARATOR, "\\" + _SEPARATOR)
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        text = column.cast(pa.string())
    elif pa.types.is_timestamp(kind):
        text = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).cast(pa.string())
    elif pa.types.is_date32(kind):
        text = column.cast(pa.int32()).cast(pa.string())
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        text = pa.chunked_array([[None if each is None else each.hex() for each in column.to_pylist()]], pa.string())
    else:
        raise PermanentError(
            f"the key's column {name} has the type {kind}, by which rows of an index cannot be identified",
            remedy="Choose a key of whole numbers, texts, decimals, dates, times, booleans or binary values",
            code=ErrorCode.SCHEMA_CHANGED,
        )
    return pc.fill_null(text, _NULL)
