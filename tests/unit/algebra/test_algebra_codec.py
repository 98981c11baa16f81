"""What is written of a query comes back as it was; what else is in its place is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.algebra.algebra import Expr, Filter, Project, Rel, Table, TypedColumn
from iscp.algebra.algebra_codec import (
    ALGEBRA_DEPTH_MAX,
    ForgedAlgebraError,
)
from iscp.algebra.duck_text import translate
from tests.fakes.algebras import both, number, queries
from tests.fakes.written_algebra import algebra_from_json, algebra_to_json

COLUMN = TypedColumn(1, "n", "long")
TABLE = Table((), (COLUMN,), "orders")
QUERY = Project((Filter((TABLE,), both("LessThan", COLUMN.value, number(3))),), (COLUMN.value,))


def written(root: Rel) -> Any:
    content = algebra_to_json(root)
    assert content is not None
    return json.loads(content)


def read(document: object) -> Rel:
    return algebra_from_json(json.dumps(document).encode())


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """All objects and lists within a document, each with a key or place in it."""
    keys = range(len(document)) if isinstance(document, list) else [*document] if isinstance(document, dict) else ()
    for each in keys:
        yield document, each
        yield from places(document[each])


@settings(max_examples=150, deadline=None)
@given(queries())
def test_a_query_comes_back_as_it_was(root: Rel) -> None:
    document = written(root)
    assert written(read(document)) == document
    assert translate(read(document)) == translate(root)


FORGED: st.SearchStrategy[object] = st.sampled_from(
    (None, True, 0, -1, 7, 2**70, 1.5, "", "Opaque", "Alias", "long", "string", "SELECT 1", "\0", [], {}, [[]], "Table")
)


@settings(max_examples=400, deadline=None)
@given(queries(), st.data())
def test_a_query_that_somebody_else_wrote_is_refused_or_sound(root: Rel, data: st.DataObject) -> None:
    """Whatever is read can be written, is of the vocabulary, and its text comes from the allow-list."""
    document = written(root)
    holder, key = data.draw(st.sampled_from([*places(document)]))
    match data.draw(st.sampled_from(("replace", "remove", "add"))):
        case "replace":
            holder[key] = data.draw(FORGED)
        case "remove":
            del holder[key]
        case _ if isinstance(holder, dict):
            holder["more"] = 1
        case _:
            holder.append(data.draw(FORGED))
    try:
        found = read(document)
    except ForgedAlgebraError:
        return
    assert written(read(written(found))) == written(found)
    translate(found)


@pytest.mark.parametrize(
    ("forge", "names"),
    [
        (lambda root: root.update(operator="Shell"), "the operator 'Shell'"),
        (lambda root: root.update(command="rm"), "the field 'command' in the operator Project"),
        (lambda root: root.pop("items"), "lacks 'items'"),
        (lambda root: root["items"][0].update(op="Column2"), "Column2 is no operation"),
        (lambda root: root["items"][0].update(type="money"), "the type 'money'"),
        (lambda root: root["items"][0].update(type="string"), "the column 'n', which its inputs have not"),
        (lambda root: root["items"][0].update(sql="1"), "the field 'sql' in an expression"),
        (lambda root: root["inputs"][0]["condition"]["args"][1].update(info=["3; DROP"]), "as a constant of type long"),
        (lambda root: root["inputs"][0]["condition"].update(type="long"), "and the rules give boolean"),
        (lambda root: root["inputs"][0]["inputs"][0].update(at="now"), "reads a table at 'now'"),
        (lambda root: root["inputs"].append(root["inputs"][0]), "2 inputs, and not 1"),
        (lambda root: root["items"].append(root["inputs"][0]["condition"]), "LessThan as a column"),
        (lambda root: root["inputs"][0].update(condition=root["items"][0]), "a condition of type long"),
    ],
)
def test_a_fault_is_named(forge: Any, names: str) -> None:
    document = written(QUERY)
    forge(document)
    with pytest.raises(ForgedAlgebraError, match=names):
        read(document)


def test_aggregates_stand_only_where_groups_have_them() -> None:
    summed = Expr("AggregateExpression", (Expr("Sum", (COLUMN.value,), "long", ("ANSI",)),), "long", (False,))
    with pytest.raises(ForgedAlgebraError, match="AggregateExpression where it cannot be"):
        read(written(Filter((TABLE,), both("LessThan", summed, number(1)))))


def test_sizes_and_depth_are_bounded() -> None:
    deep: Rel = TABLE
    for _ in range(ALGEBRA_DEPTH_MAX):
        deep = Filter((deep,), both("IsNull", COLUMN.value))
    with pytest.raises(ForgedAlgebraError, match="deeper"):
        read(written(deep))


@pytest.mark.parametrize("content", [b"null", b"[]", b"{}", b'{"operator": "Table"}'])
def test_what_is_no_query_is_refused(content: bytes) -> None:
    with pytest.raises(ForgedAlgebraError):
        algebra_from_json(content)
