"""A definition fits its source by names without case, and by types that are understood."""

from __future__ import annotations

from typing import Any

import pytest

from iscp.core.values.errors import InvalidRequest
from iscp.index.model.definition_columns import STORABLE_TYPES, check_columns, is_storable
from iscp.index.model.definition_parsing import parse_definition
from iscp.index.model.index_definition import TextColumn

SOURCE = {
    "Id": "bigint",
    "Title": "string",
    "body": "varchar(200)",
    "e": "array<float>",
    "d": "array<double>",
    "n": "array<int>",
    "m": "map<string,string>",
    "price": "decimal(10,2)",
    "At": "timestamp",
    "v": "void",
}


def checked(kind: str, *key: str, **options: Any) -> Any:
    return check_columns(parse_definition(kind, options), SOURCE, key or ("id",))


def test_names_are_spelled_as_in_the_source() -> None:
    found = checked("search", columns="TITLE^2,Body", column="E", stored="at,PRICE")
    assert found.columns == (TextColumn("Title", 2.0), TextColumn("body"))
    assert (found.vector.column, found.stored) == ("e", ("At", "price"))
    assert checked("vector", text="title", embed="x").vector.text == "Title"
    assert checked("vector", column="d").vector.column == "d"


def test_all_columns_that_are_held_are_named_once() -> None:
    found = checked("search", columns="title,body", text="body", embed="x", stored="at,id")
    assert found.stored_columns(("Id",)) == ("Id", "Title", "body", "At")
    assert checked("vector", column="e", stored="At").stored_columns(("Id", "Title")) == ("Id", "Title", "e", "At")
    assert checked("fulltext", columns="title").stored_columns(("Id",)) == ("Id", "Title")


@pytest.mark.parametrize(
    ("kind", "options", "name", "message"),
    [
        ("fulltext", {"columns": "title,none"}, "columns", "names 'none', which the source does not have"),
        ("fulltext", {"columns": "id"}, "columns", "names 'Id', which has the type 'bigint'"),
        ("vector", {"column": "none"}, "column", "does not have"),
        ("vector", {"column": "n"}, "column", "type 'array<int>'"),
        ("vector", {"column": "title"}, "column", "type 'string'"),
        ("vector", {"text": "e", "embed": "x"}, "text", "type 'array<float>'"),
        ("fulltext", {"columns": "title", "stored": "none"}, "stored", "does not have"),
        ("fulltext", {"columns": "title", "stored": "m"}, "stored", "type 'map<string,string>'"),
        ("fulltext", {"columns": "title", "stored": "v"}, "stored", "type 'void'"),
        ("fulltext", {"columns": "title", "stored": "e"}, "stored", "type 'array<float>'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(kind: str, options: dict[str, Any], name: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        checked(kind, **options)
    assert refused.value.field == f"spec.iteration.consumer.options.{name}"
    assert refused.value.remedy


def test_the_remedy_says_which_columns_and_types_there_are() -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked("vector", column="none")
    assert refused.value.remedy.startswith("Its columns are Id, Title, ")
    with pytest.raises(InvalidRequest) as refused:
        checked("vector", column="n")
    assert refused.value.remedy == "Name columns of the type array<float> or array<double>"


def test_a_key_is_required_and_has_to_be_storable() -> None:
    with pytest.raises(InvalidRequest, match="is missing") as refused:
        check_columns(parse_definition("fulltext", {"columns": "title"}), SOURCE, ())
    assert refused.value.field == "spec.iteration.consumer.key"
    for key, message in (("none", "does not have"), ("m", "type 'map<string,string>'")):
        with pytest.raises(InvalidRequest, match=message) as refused:
            checked("fulltext", key, columns="title")
        assert refused.value.field == "spec.iteration.consumer.key"


def test_the_types_that_are_stored() -> None:
    assert all(is_storable(each) for each in STORABLE_TYPES)
    assert all(is_storable(each) for each in ("Decimal(38, 10)", "char(3)", "long", "integer", "short", "byte", "INT"))
    refused = (
        "interval day",
        "struct<a:int>",
        "variant",
        "string collate UTF8_LCASE",
        "decimal(x)",
        "",
        "array<string>",
    )
    assert not any(is_storable(each) for each in refused)
