"""The columns of a table that have another type than before, whose values old files do not give, or are gone.

Spark reads a file's column as the type that the table has now. Mostly it fails where that is another one; but what was
a time is then a number, and what does not fit in a smaller integer is cut off, without a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from iscp.adapters.delta.rows.schema_evolution import holds
from iscp.adapters.system.late_imports import T
from iscp.core.values.column_identity import lost_fields, physical_name, void_fields

_PARTS = ("elementType", "keyType", "valueType")
_VOID = "void"


def retyped_columns(before: Iterable[str], now: str) -> tuple[str, ...]:
    """Return the columns of the schema `now` that had a type in one of those `before` whose files cannot be read as
    theirs.

    Schemas are texts, as Delta has them. A wider type reads the files of a narrower one (Delta's type widening).
    """
    earlier = [_by_name(json.loads(schema)) for schema in {*before} - {now}]
    present = _by_name(json.loads(now))
    return tuple(
        field["name"]
        for known, field in present.items()
        if any(not _reads(field["type"], then[known]["type"]) for then in earlier if known in then)
    )


def fields_lost(before: str, now: str) -> tuple[str, ...]:
    """Return the fields lost between two schemas in Delta's form, as `lost_fields`, without fields that are in
    no file.
    """
    then, present = (json.loads(schema)["fields"] for schema in (before, now))
    void = {path.lower() for path in void_fields(then)}
    return tuple(path for path in lost_fields(then, present) if path.lower() not in void)


def _by_name(struct: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {physical_name(field).lower(): field for field in struct["fields"]}


def _reads(now: Any, then: Any) -> bool:
    if now == then or _VOID in (now, then):
        return True  # a column of the type void is in no file
    if not (isinstance(now, Mapping) and isinstance(then, Mapping)):
        return isinstance(now, str) and isinstance(then, str) and holds(_parsed(now), _parsed(then))
    if now["type"] != then["type"]:
        return False
    if "fields" in now:
        before = _by_name(then)
        return all(
            _reads(field["type"], before[name]["type"]) for name, field in _by_name(now).items() if name in before
        )
    return all(_reads(now[part], then[part]) for part in _PARTS if part in now)


def _parsed(kind: str) -> T.DataType:
    """Return the type; for those that Spark does not know NullType, whose values fit no other type."""
    field = {"name": "it", "type": kind, "nullable": True, "metadata": {}}
    try:
        return T.StructType.fromJson({"type": "struct", "fields": [field]}).fields[0].dataType
    except ValueError:
        return T.NullType()
