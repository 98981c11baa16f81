"""Types follow from the rules alone: those that Spark has for decimals, and none for what is not in the vocabulary."""

from __future__ import annotations

import pytest

from iscp.algebra.algebra import Expr
from iscp.algebra.result_types import (
    OTHER,
    UntypedError,
    decimal_of,
    element_of,
    is_type,
    result_type,
    type_for_delta,
    type_of_delta,
)


def value(kind: str) -> Expr:
    return Expr("Literal", (), kind, (None,))


def number(text: str) -> Expr:
    return Expr("Literal", (), "integer", (text,))


def typed(op: str, *kinds: str, info: tuple[str | bool | int | None, ...] = ("ANSI",)) -> str:
    return result_type(Expr(op, tuple(map(value, kinds)), "", info))


@pytest.mark.parametrize(
    ("op", "left", "right", "kind"),
    [
        ("Add", "decimal(7,2)", "decimal(9,0)", "decimal(12,2)"),
        ("Subtract", "decimal(38,10)", "decimal(38,10)", "decimal(38,9)"),
        ("Multiply", "decimal(15,2)", "decimal(16,2)", "decimal(32,4)"),
        ("Multiply", "decimal(38,10)", "decimal(38,10)", "decimal(38,6)"),
        ("Divide", "decimal(7,2)", "decimal(7,2)", "decimal(17,10)"),
        ("Divide", "decimal(38,10)", "decimal(7,2)", "decimal(38,8)"),
        ("Remainder", "decimal(7,2)", "decimal(18,6)", "decimal(11,6)"),
        ("Add", "long", "long", "long"),
        ("Divide", "double", "double", "double"),
        ("IntegralDivide", "decimal(7,2)", "decimal(7,2)", "long"),
    ],
)
def test_arithmetic_has_the_digits_that_spark_gives_it(op: str, left: str, right: str, kind: str) -> None:
    assert typed(op, left, right) == kind


def test_sums_and_averages_have_more_digits() -> None:
    assert typed("Sum", "decimal(17,2)") == "decimal(27,2)"
    assert typed("Sum", "integer") == "long"
    assert typed("Average", "decimal(17,2)") == "decimal(21,6)"
    assert typed("Average", "decimal(38,10)") == "decimal(38,14)"
    assert typed("Average", "long") == "double"


def test_places_of_a_rounded_decimal_are_those_that_are_named() -> None:
    rounded = Expr("Round", (value("decimal(18,6)"), number("2")), "")
    assert result_type(rounded) == "decimal(15,2)"
    assert result_type(Expr("Round", (value("decimal(18,6)"), number("-3")), "")) == "decimal(13,0)"


@pytest.mark.parametrize(
    "expression",
    [
        Expr("Shell", (), "string"),
        Expr("Add", (value("long"), value("integer")), "long", ("ANSI",)),
        Expr("Add", (value("long"),), "long", ("ANSI",)),
        Expr("Add", (value("long"), value("long")), "long", ("MAYBE",)),
        Expr("Add", (value("string"), value("string")), "string", ("ANSI",)),
        Expr("And", (value("boolean"), value("long")), "boolean"),
        Expr("CaseWhen", (value("long"), value("long")), "long"),
        Expr("Upper", (value("binary"),), "string"),
        Expr("ScalarSubquery", (), "long"),
        Expr("AggregateExpression", (value("long"),), "long", (False,)),
        Expr("WindowExpression", (value("long"),), "long", ("ROWS", 0, 0)),
        Expr("Cast", (value("long"),), "money", ("ANSI",)),
        Expr("Round", (value("decimal(18,6)"), value("integer")), ""),
    ],
    ids=lambda each: f"{each.op} of {len(each.args)}",
)
def test_other_expressions_have_no_type(expression: Expr) -> None:
    with pytest.raises(UntypedError):
        result_type(expression)


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        (Expr("CreateArray", (value("decimal(7,2)"), value("decimal(7,2)")), ""), "array<decimal(7,2)>"),
        (Expr("CreateArray", (), "array<string>"), "array<string>"),
        (Expr("Size", (value("array<long>"),), ""), "integer"),
        (Expr("GetArrayItem", (value("array<byte>"), value("long")), "", ("ANSI",)), "byte"),
        (Expr("ElementAt", (value("array<string>"), value("integer")), "", ("LEGACY",)), "string"),
        (Expr("ArrayContains", (value("array<long>"), value("long")), ""), "boolean"),
        (Expr("ArrayMax", (value("array<boolean>"),), ""), "boolean"),
        (Expr("SortArray", (value("array<short>"),), "", (False,)), "array<short>"),
        (Expr("ArrayDistinct", (value("array<short>"),), ""), "array<short>"),
        (Expr("ArrayJoin", (value("array<string>"), value("string")), ""), "string"),
        (Expr("ConcatWs", (value("string"), value("array<string>"), value("string")), ""), "string"),
    ],
    ids=lambda each: each.op if isinstance(each, Expr) else each,
)
def test_what_is_computed_of_arrays_has_the_type_of_their_elements(expression: Expr, kind: str) -> None:
    assert result_type(expression) == kind


@pytest.mark.parametrize(
    "expression",
    [
        Expr("CreateArray", (), "long"),
        Expr("CreateArray", (), "array<double>"),
        Expr("CreateArray", (value("double"),), "array<double>"),
        Expr("CreateArray", (value("long"), value("integer")), "array<long>"),
        Expr("CreateArray", (value("array<long>"),), "array<array<long>>"),
        Expr("Size", (value("string"),), "integer"),
        Expr("GetArrayItem", (value("array<long>"), value("string")), "long", ("ANSI",)),
        Expr("GetArrayItem", (value("array<long>"), value("long")), "long"),
        Expr("ElementAt", (value("other"), value("long")), "long", ("ANSI",)),
        Expr("ArrayContains", (value("array<long>"), value("integer")), "boolean"),
        Expr("ArrayMin", (value("long"),), "long"),
        Expr("SortArray", (value("array<long>"),), "array<long>"),
        Expr("ArrayDistinct", (value("other"),), "other"),
        Expr("ArrayJoin", (value("array<long>"), value("string")), "string"),
        Expr("ArrayJoin", (value("array<string>"), value("string"), value("string")), "string"),
    ],
    ids=lambda each: f"{each.op} of {len(each.args)}",
)
def test_other_values_have_no_elements(expression: Expr) -> None:
    with pytest.raises(UntypedError):
        result_type(expression)


def test_only_decimals_that_spark_has_are_types() -> None:
    assert decimal_of("decimal(38,38)") == (38, 38)
    assert not any(map(is_type, ("decimal(39,0)", "decimal(0,0)", "decimal(5,6)", "decimal(5, 2)", "DECIMAL(5,2)", "")))


@pytest.mark.parametrize("kind", ["array<string>", "array<long>", "array<boolean>", "array<decimal(7,2)>", "string"])
def test_a_type_is_read_back_from_a_schema(kind: str) -> None:
    assert is_type(kind)
    assert type_of_delta(type_for_delta(kind)) == kind


@pytest.mark.parametrize(
    "kind",
    [
        *("array<double>", "array<date>", "array<timestamp>", "array<binary>", "array<array<long>>", "array<other>"),
        *("array<string", "array<>", "array<decimal(39,0)>", "Array<string>", "array<string> "),
    ],
)
def test_other_arrays_are_no_types(kind: str) -> None:
    assert element_of(kind) is None
    assert not is_type(kind)


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "elementType": "string", "containsNull": False},
        {"type": "array", "elementType": "string"},
        {"type": "array", "elementType": "double", "containsNull": True},
        {"type": "array", "elementType": {"type": "struct", "fields": []}, "containsNull": True},
        {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
        *(None, 7, [], {}),
    ],
)
def test_what_a_schema_has_besides_is_another_type(kind: object) -> None:
    assert type_of_delta(kind) == OTHER
