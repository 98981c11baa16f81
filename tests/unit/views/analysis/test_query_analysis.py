"""Columns that a table cannot have are refused before a view is registered, with what to write instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iscp.model.values.errors import InvalidRequest
from iscp.views.analysis.query_analysis import refuse_columns

COLLATED = {"__COLLATIONS": {"x": "spark.UTF8_LCASE"}}


def schema(*columns: tuple[str, Any, dict[str, Any]]) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": more} for name, kind, more in columns]
    return json.dumps({"type": "struct", "fields": fields})


def struct(kind: Any, **metadata: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": "x", "type": kind, "nullable": True, "metadata": metadata}]}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def mapped(key: Any, value: Any) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


KEPT = (
    "string",
    "long",
    "decimal(10,2)",
    "timestamp",
    "timestamp_ntz",
    "date",
    "binary",
    "variant",
    "boolean",
    "double",
)


def test_types_that_delta_lake_has_are_taken_at_any_depth() -> None:
    kinds = [*KEPT, *map(array, KEPT), *map(struct, KEPT), *(mapped("string", struct(array(each))) for each in KEPT)]
    refuse_columns(schema(*[(f"c{place}", kind, {}) for place, kind in enumerate(kinds)]), "sql")


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("void", "CAST"),
        ("interval", "Cast it"),
        ("interval day to second", "timestampdiff"),
        ("time(6)", "Cast it"),
        ("geometry(4326)", "WKB"),
    ],
)
def test_others_are_refused_wherever_they_are(kind: str, remedy: str) -> None:
    within = (kind, array(kind), struct(kind), mapped(kind, "long"), mapped("long", array(struct(kind))))
    for each in within:
        with pytest.raises(InvalidRequest, match=f"the column 'b' a value of the type {kind.split('(')[0]}") as refused:
            refuse_columns(schema(("a", "long", {}), ("b", each, {})), "sql")
        assert refused.value.field == "sql"
        assert remedy in refused.value.remedy


def test_texts_with_a_collation_are_refused_wherever_they_are() -> None:
    text = struct("string", **COLLATED)
    columns = [("b", "string", COLLATED), *(("b", kind, {}) for kind in (text, array(text), mapped("long", text)))]
    for column in columns:
        with pytest.raises(InvalidRequest, match="the column 'b' a text with a collation") as refused:
            refuse_columns(schema(column), "sql")
        assert "b COLLATE UTF8_BINARY" in refused.value.remedy


def test_names_that_a_table_cannot_have_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="two columns the name 'A'"):
        refuse_columns(schema(("a", "long", {}), ("A", "long", {})), "sql")
    for name in ("count(1)", "a b", "x=1"):
        with pytest.raises(InvalidRequest, match="which a table cannot have"):
            refuse_columns(schema((name, "long", {})), "sql")
