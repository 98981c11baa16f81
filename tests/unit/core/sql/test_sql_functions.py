"""Which functions users' SQL may call, by their names alone."""

from __future__ import annotations

import pytest

from iscp.core.sql.sql_functions import function_fault, options_fault, table_function_fault

BUILT_IN = frozenset({"abs", "reflect", "java_method", "try_reflect", "input_file_name", "from_json", "explode"})


def said_of(name: str) -> str:
    fault = function_fault(name.split("."), BUILT_IN.__contains__)
    assert fault is None or fault.remedy
    return fault.message if fault else ""


@pytest.mark.parametrize("name", ["abs", "ABS", "from_json"])
def test_what_is_built_in_may_be_called(name: str) -> None:
    assert said_of(name) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("reflect", "calls reflect(), which calls Java"),
        ("Java_Method", "calls java_method(), which calls Java"),
        ("system.builtin.try_reflect", "calls try_reflect(), which calls Java"),
        ("from_protobuf", "calls from_protobuf(), which reads a file"),
        ("input_file_name", "calls input_file_name(), which says in which file a row lies"),
        ("default.abs", "calls default.abs(), a function of a catalog"),
        ("system.builtin.abs", "a function of a catalog"),
        ("nope", "calls nope(), which Spark does not have built in"),
    ],
)
def test_what_reaches_beyond_the_rows_may_not(name: str, said: str) -> None:
    assert said in said_of(name)


@pytest.mark.parametrize("name", ["explode", "POSEXPLODE", "range", "json_tuple"])
def test_rows_are_made_of_what_a_function_is_handed(name: str) -> None:
    assert table_function_fault(name.split(".")) is None


@pytest.mark.parametrize(
    "name", ["table_changes", "table_changes_by_path", "read_files", "sql_keywords", "default.range"]
)
def test_rows_of_anything_else_are_refused(name: str) -> None:
    fault = table_function_fault(name.split("."))
    assert fault is not None
    assert fault.message == f"reads rows of {name}()"
    assert "explode" in fault.remedy


def test_options_that_name_a_file_are_refused_and_those_that_are_computed() -> None:
    assert options_fault("from_xml", ["mode", "rowTag"]) is None
    for keys, said in (
        (["mode", "RowValidationXSDPath"], "calls from_xml() with RowValidationXSDPath, by which it reads a file"),
        (["avroSchemaUrl"], "calls from_xml() with avroSchemaUrl"),
        (None, "calls from_xml() with options that are computed"),
    ):
        fault = options_fault("from_xml", keys)
        assert fault is not None
        assert said in fault.message
        assert fault.remedy
