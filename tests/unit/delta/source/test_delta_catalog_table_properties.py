"""Which types can read files that were written when a column had another type.

A hold alters a table's properties where they say less, and leaves all others alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from iscp.delta.source.delta_catalog import DeltaRetentionHold, retyped_columns

PHYSICAL = "delta.columnMapping.physicalName"


def field(name: str, kind: Any, **metadata: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def retyped(then: Any, now: Any) -> bool:
    schemas = [json.dumps(struct(field("other", "string"), field("c", kind))) for kind in (then, now)]
    found = retyped_columns(schemas[:1], schemas[1])
    assert found in ((), ("c",))
    return bool(found)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("integer", "integer"),
        ("integer", "long"),
        ("byte", "short"),
        ("float", "double"),
        ("integer", "double"),
        ("date", "timestamp_ntz"),
        ("decimal(10,2)", "decimal(12,3)"),
        ("integer", "decimal(10,0)"),
        ("void", "string"),
        ("string", "void"),
        ("a type of tomorrow", "a type of tomorrow"),
        (array("integer"), array("long")),
        (mapping("string", "integer"), mapping("string", "long")),
        (struct(field("x", "integer")), struct(field("y", "string"), field("X", "long"))),
    ],
    ids=str,
)
def test_the_same_and_wider_types_read_what_was_written(then: Any, now: Any) -> None:
    assert not retyped(then, now)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("integer", "byte"),
        ("long", "integer"),
        ("long", "double"),
        ("timestamp", "long"),
        ("long", "timestamp"),
        ("timestamp", "timestamp_ntz"),
        ("timestamp_ntz", "timestamp"),
        ("date", "integer"),
        ("string", "binary"),
        ("decimal(10,2)", "decimal(10,3)"),
        ("a type of tomorrow", "string"),
        ("string", "a type of tomorrow"),
        ("string", array("string")),
        (array("integer"), mapping("integer", "integer")),
        (array("long"), array("timestamp")),
        (mapping("integer", "string"), mapping("byte", "string")),
        (struct(field("x", "string"), field("y", "integer")), struct(field("x", "string"), field("y", "short"))),
    ],
    ids=str,
)
def test_any_other_type_does_not(then: Any, now: Any) -> None:
    assert retyped(then, now)


def test_each_schema_of_a_range_counts() -> None:
    """A column that was a timestamp in one commit of the range only has timestamps in the changes of that commit."""
    number, time = (json.dumps(struct(field("c", kind))) for kind in ("long", "timestamp"))
    assert retyped_columns([number, time, number], number) == ("c",)
    assert retyped_columns([number, number], number) == ()


def test_a_column_is_known_by_what_it_is_called_in_files() -> None:
    before = json.dumps(struct(field("c", "string", **{PHYSICAL: "col-1"})))
    renamed = json.dumps(struct(field("d", "long", **{PHYSICAL: "col-1"})))
    added_again = json.dumps(struct(field("c", "long", **{PHYSICAL: "col-2"})))
    assert retyped_columns([before], renamed) == ("d",)
    assert retyped_columns([before], added_again) == ()


FILES = "delta.deletedFileRetentionDuration"


class Table:
    """A table's properties, and how often they were altered."""

    def __init__(self, **properties: str) -> None:
        self.properties = dict(properties)
        self.altered = 0
        self.holds = DeltaRetentionHold(lambda uri: self.properties, self._set)

    def _set(self, uri: str, values: Mapping[str, str | None]) -> None:
        self.altered += 1
        merged = {**self.properties, **values}
        self.properties = {name: value for name, value in merged.items() if value is not None}


def test_a_hold_is_one_change_of_the_table_and_placing_it_again_is_none() -> None:
    table = Table(**{FILES: "interval 1 hours", "user": "own"})
    assert table.holds.hold("/lake/t", "a/t/view", 7_200.0)
    assert table.properties[FILES] == "interval 7200 seconds"
    assert not table.holds.hold("/lake/t", "a/t/view", 7_200.0)
    assert table.altered == 1


def test_a_release_leaves_the_table_as_it_was_and_one_of_nobody_alters_nothing() -> None:
    table = Table(**{FILES: "interval 1 hours", "user": "own"})
    before = dict(table.properties)
    table.holds.release("/lake/t", "a/t/view")
    assert table.altered == 0
    table.holds.hold("/lake/t", "a/t/view", 7_200.0)
    table.holds.release("/lake/t", "a/t/view")
    assert table.properties == before
