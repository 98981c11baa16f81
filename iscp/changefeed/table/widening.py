"""The columns that a feed has to be given for rows of other columns, and those of its own that these do not have."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from iscp.core.values.errors import (
    ErrorCode,
    PermanentError,
)


def widened(present: pa.Schema, wanted: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Return `present` with what `wanted` has beyond it: columns, whatever the case of their names, and fields of
    nested ones.

    Raises PermanentError for another type; columns of the `key` are given no more fields.
    """
    theirs = {each.name.lower(): each for each in wanted}
    fields = []
    for field in present:
        other = theirs.pop(field.name.lower(), field)
        kind = _holding(field.type, other.type)
        if kind is None or (kind != field.type and field.name in key):
            raise PermanentError(
                f"column {other.name} is of type {other.type} now, the feed has {field.type}",
                remedy="Bring the type back, or register the job again on another feed",
                code=ErrorCode.SCHEMA_CHANGED,
            )
        fields.append(field.with_type(kind))
    return pa.schema([*fields, *[each.with_nullable(True) for each in theirs.values()]])


def lost_names(present: pa.Schema, given: pa.Schema) -> tuple[str, ...]:
    """Return the columns, and the fields of nested ones as paths (`s.y`), that `present` has and `given` does not."""
    theirs = {each.name.lower(): each.type for each in given}
    found: list[str] = []
    for field in present:
        other = theirs.get(field.name.lower())
        found += [field.name] if other is None else _lost(field.type, other, field.name)
    return tuple(found)


def _holding(present: pa.DataType, given: pa.DataType) -> pa.DataType | None:
    """Return the type of the values of both, or None."""
    if present == given or _takes(present, given):
        return present
    if pa.types.is_struct(present) and pa.types.is_struct(given):
        return _holding_struct(present, given)
    if pa.types.is_list(present) and pa.types.is_list(given):
        inner = _holding(present.value_type, given.value_type)
        return None if inner is None else pa.list_(present.value_field.with_type(inner))
    if pa.types.is_map(present) and pa.types.is_map(given):
        key, item = _holding(present.key_type, given.key_type), _holding(present.item_type, given.item_type)
        return None if key is None or item is None else pa.map_(key, present.item_field.with_type(item))
    return None


def _holding_struct(present: pa.StructType, given: pa.StructType) -> pa.StructType | None:
    """Fields are taken by their very names: none is another but for its case."""
    theirs = {each.name: each for each in given}
    fields = []
    for field in present:
        other = theirs.pop(field.name, field)
        kind = _holding(field.type, other.type)
        if kind is None:
            return None
        fields.append(field.with_type(kind))
    if {name.lower() for name in theirs} & {field.name.lower() for field in fields}:
        return None
    return pa.struct([*fields, *[each.with_nullable(True) for each in theirs.values()]])


def _lost(present: pa.DataType, given: pa.DataType, path: str) -> list[str]:
    if pa.types.is_struct(present) and pa.types.is_struct(given):
        theirs = {each.name: each.type for each in given}
        lost = [
            [f"{path}.{field.name}"]
            if field.name not in theirs
            else _lost(field.type, theirs[field.name], f"{path}.{field.name}")
            for field in present
        ]
        return [name for each in lost for name in each]
    if pa.types.is_list(present) and pa.types.is_list(given):
        return _lost(present.value_type, given.value_type, f"{path}.element")
    if pa.types.is_map(present) and pa.types.is_map(given):
        of_keys = _lost(present.key_type, given.key_type, f"{path}.key")
        return [*of_keys, *_lost(present.item_type, given.item_type, f"{path}.value")]
    return []


def _takes(present: pa.DataType, given: pa.DataType) -> bool:
    """Return whether a number of the type `given` can be stored as one of the type `present`."""
    for kind in (pa.types.is_signed_integer, pa.types.is_floating):
        if kind(present) and kind(given):
            return bool(present.bit_width >= given.bit_width)
    return False
