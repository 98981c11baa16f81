"""The columns of a target, as far as they decide which rows go into it: names and types."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import pyarrow as pa

from iscp.adapters.delta.rows.net_changes import arrow_schema
from iscp.adapters.delta.rows.schema_evolution import UnlikeSchemaError, alike, unified
from iscp.adapters.system.late_imports import T


class Columns:
    """The columns of one table; `schema_json` here and elsewhere as Delta and Spark write it."""

    def __init__(self, schema_json: str) -> None:
        self._plain = plain(json.loads(schema_json))
        self._types = _types(self._plain)

    @cached_property
    def schema(self) -> T.StructType:
        return T.StructType.fromJson(self._plain)

    @cached_property
    def _arrow(self) -> pa.Schema:
        return arrow_schema(self.schema)

    @cached_property
    def _kinds(self) -> dict[str, pa.DataType]:
        return {field.name.lower(): field.type for field in self._arrow}

    def match(self, schema_json: str) -> bool:
        """Return whether these are the same columns, in any order."""
        return self._types == _types(plain(json.loads(schema_json)))

    def take(self, schema_json: str) -> bool:
        """Return whether there is a column for each of the others, of a type that fits its values."""
        if self.match(schema_json):
            return True
        try:
            return alike(unified(self.schema, T.StructType.fromJson(json.loads(schema_json))), self.schema)
        except UnlikeSchemaError:
            return False

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with these columns, null where they have none."""
        names = {name.lower(): name for name in rows.schema.names}
        kinds = dict(zip(names, rows.schema.types, strict=True))
        if self._kinds == kinds:
            return rows
        return pa.table(
            {
                field.name: rows[names[field.name.lower()]].cast(field.type)
                if field.name.lower() in names
                else pa.nulls(len(rows), field.type)
                for field in self._arrow
            }
        )


def plain(kind: Any) -> Any:
    """Return a schema's bare columns and types.

    Generated and identity columns and the like are the source's affair.
    """
    if isinstance(kind, dict):
        bare = {name: plain(value) for name, value in kind.items()}
        known = {"metadata": {}, "nullable": True, "containsNull": True, "valueContainsNull": True}
        return {name: known.get(name, value) for name, value in bare.items()}
    if isinstance(kind, list):
        return [plain(each) for each in kind]
    return kind


def _types(schema: Any) -> dict[str, str]:
    """Return column names and types; nullability and comments do not decide which rows fit."""
    return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in schema["fields"]}
