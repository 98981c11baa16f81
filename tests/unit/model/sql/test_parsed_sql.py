"""What is not listed as a part of queries is refused by its name, wherever it lies in the fields of another."""

from __future__ import annotations

from typing import Any

import pytest

from iscp.model.sql.parsed_sql import EXPRESSION, PLAN, SqlPart, named_tables, refuse_beyond_row
from iscp.model.values.errors import InvalidRequest


def relation(name: str, *, streaming: bool = False) -> SqlPart:
    return SqlPart(PLAN, "UnresolvedRelation", {"multipartIdentifier": [name], "isStreaming": streaming}, 3, 7)


def project(*fields: Any) -> SqlPart:
    return SqlPart(PLAN, "Project", {f"f{number}": each for number, each in enumerate(fields)})


def call(name: str, *arguments: int) -> SqlPart:
    return SqlPart(EXPRESSION, "UnresolvedFunction", {"nameParts": [name], "arguments": [{"at": a} for a in arguments]})


def literal(value: object, kind: str = "integer") -> SqlPart:
    return SqlPart(EXPRESSION, "Literal", {"value": value, "dataType": kind})


def refusal(*parts: SqlPart) -> str:
    with pytest.raises(InvalidRequest) as refused:
        named_tables(parts, ["t"], lambda name: True)
    assert refused.value.field == "sql"
    return refused.value.message


def test_the_tables_that_are_named_are_said() -> None:
    assert named_tables([project({"at": 1}), relation("T")], ["t", "u"], lambda name: True) == {"t"}


def test_another_table_and_a_stream_are_refused_with_their_place() -> None:
    assert refusal(project({"at": 1}), relation("u")) == "reads u, which is none of its tables (line 3, column 7)"
    assert refusal(project({"at": 1}), relation("t", streaming=True)).startswith("reads a table as a STREAM")


def test_a_query_of_a_with_is_not_called_as_a_table_of_several_parts() -> None:
    parts = (
        SqlPart(PLAN, "UnresolvedWith", {"cteRelations": [{"at": 1}], "child": {"at": 3}, "allowRecursion": False}),
        SqlPart("other", "Tuple2", {"_1": "Lake.T", "_2": {"at": 2}}),
        relation("u"),
        relation("lake.t"),
    )
    assert named_tables(parts, ["u", "x.t", "lake"], lambda name: True) == {"u"}
    with pytest.raises(InvalidRequest, match=r"calls a query of its WITH `lake\.t`"):
        named_tables(parts, ["u", "lake.t"], lambda name: True)


def test_a_name_of_several_parts_is_refused_where_it_was_not_made_one() -> None:
    table = SqlPart(PLAN, "UnresolvedRelation", {"multipartIdentifier": ["Lake", "t"], "isStreaming": False}, 3, 7)
    for tables, reason in (["lake.t"], "in a place where only names of one part"), (["t"], "is none of its tables"):
        with pytest.raises(InvalidRequest, match=reason):
            named_tables([project({"at": 1}), table], tables, lambda name: True)


@pytest.mark.parametrize("name", ["InsertIntoDir", "CreateTable", "NewInAnotherVersion"])
def test_an_unknown_plan_is_refused_at_the_root_and_within(name: str) -> None:
    unknown = SqlPart(PLAN, name, {})
    assert refusal(unknown) == f"is no SELECT, but {name}"
    assert refusal(project([[{"at": 1}]]), unknown) == f"has {name}, which is not understood here"


def test_an_unknown_expression_is_refused_wherever_it_lies() -> None:
    other = SqlPart("other", "Tuple2", {"_1": "x", "_2": [{"at": 2}]})
    assert refusal(project({"at": 1}), other, SqlPart(EXPRESSION, "NewOne", {})).startswith("has NewOne,")


def test_a_filter_has_no_plan_in_it_and_no_number_that_is_computed() -> None:
    subquery = SqlPart(EXPRESSION, "ScalarSubquery", {"plan": {"at": 1}})
    column = SqlPart(EXPRESSION, "UnresolvedAttribute", {"nameParts": ["a"]})
    for parts, message in (
        ((subquery, project()), "has a subquery"),
        ((call("repeat", 1, 1), column), "calls repeat() with a number that is computed"),
        ((call("sequence", 1, 1), column), "calls sequence() with a number that is computed"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            refuse_beyond_row(parts, lambda name: True)
        assert refused.value.message == message
    refuse_beyond_row((call("repeat", 1, 2), column, literal(3)), lambda name: True)
    named_tables((project({"at": 1}), call("repeat", 2, 2), column), ["t"], lambda name: True)


def test_a_sign_belongs_to_its_number() -> None:
    minus = SqlPart(EXPRESSION, "UnaryMinus", {"child": {"at": 3}})
    assert "calls round() with -2000000000" in refusal(
        project({"at": 1}), call("round", 3, 2), minus, literal(2 * 10**9)
    )
