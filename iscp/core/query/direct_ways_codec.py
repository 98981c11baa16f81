"""Write the direct ways of a query as JSON for the file beside a view's rows, and read them without trusting it.

The file lies in a tenant's directory. Whatever in it is not exactly what is written here counts as no file: another
format, another query, other tables or schemas, other versions of what has analyzed the query, and ways that do not fit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp.core.algebra.algebra_codec import algebra_document, read_algebra_document
from iscp.core.query.direct_ways import DirectWays, GroupedRows, ResultColumn, are_sound, plain_kinds
from iscp.core.query.group_query import GroupQuery, Output
from iscp.core.query.join_query import Column, Equality, JoinedTable, JoinQuery, RowCondition
from iscp.core.values.totals import AggregateKind
from iscp.core.values.untrusted_values import exact_int, exact_name, shown

WAYS_BYTES_MAX = 1024**2
"""Bytes of the file with a view's direct ways; a larger one is neither written nor read, and Spark analyzes the query
again.
"""

JOINED_TABLES_MAX = 64
"""Tables of a stored join, each as often as the query reads it; a join of more is not stored."""

COLUMNS_MAX = 2_000
"""Columns of a result, or of a table, in stored ways; ways with more are not stored."""

COMPARED_MAX = 500
"""Equalities, or conditions on one table, in a stored join; a join with more is not stored."""

_FORMAT = 2
"""Another one is written once the ways that are found of a query, or what they mean, are others."""

_DIGEST_BYTES = 16
_KINDS = frozenset({AggregateKind.COUNT, AggregateKind.SUM, AggregateKind.AVERAGE})


@dataclass(frozen=True, slots=True)
class WaysOrigin:
    """The query that ways are of: its text, the URIs of its `tables` and their schemas as their logs have them, both by
    their names in the query, and the `versions` of the programs that analyze it, by their names.
    """

    sql: str
    tables: Mapping[str, str]
    versions: Mapping[str, str]
    schemas: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return what a file of this query begins with; of a schema, which may be long, it has a digest."""
        return {
            "format": _FORMAT,
            "versions": dict(self.versions),
            "sql": self.sql,
            "tables": dict(self.tables),
            "schemas": {name: hashlib.sha256(schema.encode()).hexdigest() for name, schema in self.schemas.items()},
        }


def ways_to_json(ways: DirectWays, origin: WaysOrigin) -> bytes | None:
    """Return the content of the file, or None if it could not be read back as these ways."""
    try:
        document = origin.document() | _ways_document(ways)
        content = json.dumps(document | {"digest": _digest(document)}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None
    read = ways_from_json(content, origin)
    return content if read is not None and _ways_document(read) == _ways_document(ways) else None


def ways_from_json(content: bytes, origin: WaysOrigin) -> DirectWays | None:
    """Return the ways in the content of a file, or None if it is no such file, not of this query, or damaged."""
    if len(content) > WAYS_BYTES_MAX:
        return None
    try:
        document = json.loads(content)
        digest = document.pop("digest")
        if digest != _digest(document) or {**document, **origin.document()} != document:
            return None
        ways = _read_ways(document)
        kinds = {name: plain_kinds(schema) for name, schema in origin.schemas.items()}
        return ways if are_sound(ways, kinds) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _digest(document: Mapping[str, Any]) -> str:
    """Return a digest that shows damage, and nothing of who has written the file."""
    content = json.dumps(document, sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def _ways_document(ways: DirectWays) -> dict[str, Any]:
    return {
        "columns": [[each.name, each.kind] for each in ways.columns],
        "groups": None if ways.grouped is None else _groups_document(ways.grouped),
        "joins": None if ways.joined is None else _join_document(ways.joined),
        "algebra": None if ways.root is None else algebra_document(ways.root),
    }


def _groups_document(grouped: GroupedRows) -> dict[str, Any]:
    query = grouped.query
    return {
        "keys": [*query.keys],
        "outputs": [[each.name, each.kind, each.column, each.scale] for each in query.outputs],
        "scales": dict(query.scales),
        "rows": _join_document(grouped.rows),
    }


def _join_document(query: JoinQuery) -> dict[str, Any]:
    return {
        "tables": [
            {"name": each.name, "columns": [*each.columns], "conditions": [[*one] for one in each.conditions]}
            for each in query.tables
        ],
        "equalities": [[*left, *right] for left, right in query.equalities],
        "outputs": [[*each] for each in query.outputs],
    }


def _read_ways(document: Mapping[str, Any]) -> DirectWays:
    """Read `_ways_document`. Raises ValueError, KeyError, TypeError."""
    columns = [_parts(each, 2) for each in _some(document["columns"], COLUMNS_MAX)]
    groups, joins, algebra = document["groups"], document["joins"], document["algebra"]
    return DirectWays(
        tuple(ResultColumn(exact_name(name, "name"), exact_name(kind, "kind")) for name, kind in columns),
        None if groups is None else _read_groups(groups),
        None if joins is None else _read_join(joins),
        None if algebra is None else read_algebra_document(algebra),
    )


def _read_groups(document: Mapping[str, Any]) -> GroupedRows:
    scales = document["scales"]
    if len(scales) > COLUMNS_MAX:
        raise ValueError("has too many scales")
    query = GroupQuery(
        _names(document["keys"]),
        tuple(_read_output(*_parts(each, 4)) for each in _some(document["outputs"], COLUMNS_MAX)),
        {exact_name(name, "column"): _read_scale(scale) for name, scale in scales.items()},
    )
    return GroupedRows(query, _read_join(document["rows"]))


def _read_output(name: object, kind: object, column: object, scale: object) -> Output:
    found = None if kind is None else AggregateKind(exact_name(kind, "kind"))
    if found is not None and found not in _KINDS:
        raise ValueError(f"groups by {found}")
    digits = None if scale is None else _read_scale(scale)
    return Output(exact_name(name, "name"), found, exact_name(column, "column"), digits)


def _read_scale(scale: object) -> int:
    return exact_int(scale, "scale", 0, 38)


def _read_join(document: Mapping[str, Any]) -> JoinQuery:
    ends = [_parts(each, 4) for each in _some(document["equalities"], COMPARED_MAX)]
    return JoinQuery(
        tuple(_read_table(each) for each in _some(document["tables"], JOINED_TABLES_MAX)),
        tuple(Equality(_read_column(*each[:2]), _read_column(*each[2:])) for each in ends),
        tuple(_read_column(*_parts(each, 2)) for each in _some(document["outputs"], COLUMNS_MAX)),
    )


def _read_table(document: Mapping[str, Any]) -> JoinedTable:
    conditions = [_parts(each, 3) for each in _some(document["conditions"], COMPARED_MAX)]
    return JoinedTable(
        exact_name(document["name"], "name"),
        _names(document["columns"]),
        tuple(
            RowCondition(exact_name(column, "column"), exact_name(operator, "operator"), _read_value(value))
            for column, operator, value in conditions
        ),
    )


def _read_value(value: object) -> str | int | None:
    """Return what a condition compares with; its type is checked with the column's."""
    if isinstance(value, str):
        return exact_name(value, "value")
    return None if value is None else exact_int(value, "value", -(2**63), 2**63 - 1)


def _read_column(place: object, name: object) -> Column:
    return Column(exact_int(place, "place", 0, JOINED_TABLES_MAX), exact_name(name, "name"))


def _names(value: object) -> tuple[str, ...]:
    return tuple(exact_name(each, "name") for each in _some(value, COLUMNS_MAX))


def _some(value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"is {shown(value)}, and not a list of at most {most}")
    return value


def _parts(value: object, number: int) -> list[Any]:
    found = _some(value, number)
    if len(found) != number:
        raise ValueError(f"has {len(found)} parts, and not {number}")
    return found
