"""Check the names and types of the columns of a query's result: a table must be able to have them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from iscp.core.sql.sql_names import RESERVED_PREFIX, reserved_names
from iscp.core.values.column_identity import COLLATIONS
from iscp.core.values.errors import InvalidRequest

_SIGNS = " ,;{}()\n\t="
"""Signs that no column of a table without mapped names has (Delta's own rule)."""

_RESERVED = re.compile(rf"(?<!\w){RESERVED_PREFIX}\w*", re.IGNORECASE)
_REMEDIES = (
    (re.compile(r"void"), "Say of which type it is, as CAST(NULL AS STRING)"),
    (re.compile(r"interval.*"), "Cast it to a text; or give what it is counted in, as timestampdiff(SECOND, …, …)"),
    (re.compile(r"time\(\d\)"), "Cast it to a text"),
    (re.compile(r"(geometry|geography).*"), "Give it as WKB, by st_asbinary(…)"),
)
"""Remedies for types that Delta Lake lacks, as Spark writes them."""


def refuse_reserved_names(sql: str, field: str) -> None:
    """Raise InvalidRequest for a query in which a name begins as those that a view's rows are given themselves.

    Such a text is refused wherever it is: a column's name may come from a schema or a key that is one.
    """
    if found := _RESERVED.search(sql):
        raise InvalidRequest(
            f"has {found[0]}, and names that begin with {RESERVED_PREFIX} are those of columns that rows are given",
            field=field,
            remedy="Use another name",
        )


def refuse_columns(schema_json: str, field: str) -> None:
    """Raise InvalidRequest for columns that a table cannot have. `schema_json` is the result's, as Spark writes it."""
    seen: set[str] = set()
    for column in json.loads(schema_json)["fields"]:
        name = str(column["name"])
        if name.lower() in seen:
            raise InvalidRequest(
                f"gives two columns the name {name!r}", field=field, remedy="Give one of them another, by AS"
            )
        if reserved_names([name]):
            raise InvalidRequest(
                f"gives a column the name {name!r}, which a table's changes have themselves",
                field=field,
                remedy="Give it another, by AS",
            )
        if any(sign in name for sign in _SIGNS):
            raise InvalidRequest(
                f"gives a column the name {name!r}, which a table cannot have", field=field, remedy="Name it, by AS"
            )
        _refuse_type(name, column, field)
        seen.add(name.lower())


def _refuse_type(name: str, column: Mapping[str, Any], field: str) -> None:
    kinds = [*_types(column["type"])]
    for kind in kinds:
        for pattern, remedy in _REMEDIES:
            if isinstance(kind, str) and pattern.fullmatch(kind):
                raise InvalidRequest(
                    f"gives the column {name!r} a value of the type {kind}, which a table cannot keep",
                    field=field,
                    remedy=remedy,
                )
    within = [each for kind in kinds if isinstance(kind, Mapping) for each in kind.get("fields", ())]
    if any(COLLATIONS in each["metadata"] for each in (column, *within)):
        raise InvalidRequest(
            f"gives the column {name!r} a text with a collation, which a table cannot keep",
            field=field,
            remedy=f"Give it as {name} COLLATE UTF8_BINARY; conditions and groups may have collations",
        )


def _types(kind: Any) -> Iterator[Any]:
    """Yield a type, as Spark writes it, and the types that it is made of."""
    yield kind
    match kind:
        case {"type": "struct", "fields": fields}:
            for each in fields:
                yield from _types(each["type"])
        case {"type": "array", "elementType": element}:
            yield from _types(element)
        case {"type": "map", "keyType": key, "valueType": value}:
            yield from _types(key)
            yield from _types(value)
