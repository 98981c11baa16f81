"""What the columns of a query's result are called, and which types they have: such as a table can keep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from iscp.core.errors import InvalidRequest

_SIGNS = " ,;{}()\n\t="
"""Signs that no column of a table without mapped names has (Delta's own rule)."""

_REMEDIES = (
    (re.compile(r"void"), "Say of which type it is, as CAST(NULL AS STRING)"),
    (re.compile(r"interval.*"), "Cast it to a text; or give what it is counted in, as timestampdiff(SECOND, …, …)"),
    (re.compile(r"time\(\d\)"), "Cast it to a text"),
    (re.compile(r"(geometry|geography).*"), "Give it as WKB, by st_asbinary(…)"),
)
"""Of types that Delta Lake has not, as Spark writes them."""

_COLLATIONS = "__COLLATIONS"
"""In a field's metadata, where Spark has them: of texts within it, by their paths."""


def refuse_columns(schema_json: str, field: str) -> None:
    """Raises InvalidRequest for columns that a table cannot have. `schema_json`: the result's, as Spark writes it."""
    seen: set[str] = set()
    for column in json.loads(schema_json)["fields"]:
        name = str(column["name"])
        if name.lower() in seen:
            raise InvalidRequest(
                f"gives two columns the name {name!r}", field=field, remedy="Give one of them another, by AS"
            )
        if any(sign in name for sign in _SIGNS):
            raise InvalidRequest(
                f"gives a column the name {name!r}, which a table cannot have", field=field, remedy="Name it, by AS"
            )
        _refuse_type(name, column, field)
        seen.add(name.lower())


def _refuse_type(name: str, column: Mapping[str, Any], field: str) -> None:
    for kind in _kinds(column["type"]):
        for pattern, remedy in _REMEDIES:
            if pattern.fullmatch(kind):
                raise InvalidRequest(
                    f"gives the column {name!r} a value of the type {kind}, which a table cannot keep",
                    field=field,
                    remedy=remedy,
                )
    if any(_COLLATIONS in each["metadata"] for each in _fields(column)):
        raise InvalidRequest(
            f"gives the column {name!r} a text with a collation, which a table cannot keep",
            field=field,
            remedy=f"Give it as {name} COLLATE UTF8_BINARY; conditions and groups may have collations",
        )


def _kinds(kind: Any) -> Iterator[str]:
    """The types that a type is made of, but for structs, arrays and maps themselves."""
    match kind:
        case {"type": "struct", "fields": fields}:
            for each in fields:
                yield from _kinds(each["type"])
        case {"type": "array", "elementType": element}:
            yield from _kinds(element)
        case {"type": "map", "keyType": key, "valueType": value}:
            yield from _kinds(key)
            yield from _kinds(value)
        case str():
            yield kind


def _fields(column: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The column, and fields of structs within it."""
    yield column
    waiting = [column["type"]]
    while waiting:
        match waiting.pop():
            case {"type": "struct", "fields": fields}:
                yield from fields
                waiting += [each["type"] for each in fields]
            case {"type": "array", "elementType": element}:
                waiting.append(element)
            case {"type": "map", "keyType": key, "valueType": value}:
                waiting += [key, value]
