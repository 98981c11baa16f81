"""Which columns a feed has to be given for rows of other columns."""

from __future__ import annotations

import pyarrow as pa

from iscp.core.errors import (
    ErrorCode,
    PermanentError,
)


def lacking_columns(held: pa.Schema, wanted: pa.Schema) -> list[pa.Field]:
    """What `wanted` has beyond `held`, whatever the case of the names. Raises PermanentError for another type."""
    there = {each.name.lower(): each.type for each in held}
    for each in wanted:
        if (kind := there.get(each.name.lower(), each.type)) != each.type and not _takes(kind, each.type):
            raise PermanentError(
                f"column {each.name} is of type {each.type} now, the feed has {kind}",
                remedy="Bring the type back, or register the job again on another feed",
                code=ErrorCode.SCHEMA_CHANGED,
            )
    return [each.with_nullable(True) for each in wanted if each.name.lower() not in there]


def _takes(held: pa.DataType, given: pa.DataType) -> bool:
    """Whether a number of one type can be kept as another."""
    for kind in (pa.types.is_signed_integer, pa.types.is_floating):
        if kind(held) and kind(given):
            return bool(held.bit_width >= given.bit_width)
    return False
