"""The file with a view's query is read back as it was written, and else counts as none.

Fields of structs become columns where nothing reads or passes on the struct itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from iscp.algebra.algebra import (
    CLOCK,
    Expr,
    Filter,
    Group,
    Join,
    JoinKind,
    Limit,
    Project,
    Rel,
    Sort,
    Table,
    TypedColumn,
    Union,
    Windowed,
)
from iscp.algebra.algebra_codec import algebra_document
from iscp.algebra.duck_text import translate
from iscp.algebra.result_types import OTHER, UntypedError, result_type
from iscp.algebra.stored_query import (
    QUERY_BYTES_MAX,
    KeptInput,
    QueryOrigin,
    StoredQuery,
    query_from_json,
    query_to_json,
    with_fields_as_columns,
    without_unread_columns,
)
from iscp.model.sql.sql_names import TimeDependence
from iscp.model.values.watermark import COLLATIONS
from tests.fakes.algebras import total
from tests.fakes.forged_queries import forged

K, N = TypedColumn(1, "k", "string"), TypedColumn(2, "n", "long")
SUMMED = Expr("Alias", (total(N.value),), "long", (3, "s"))
GROUPS = Group((Table((), (K, N), "t"),), (K.value,), (K.value, SUMMED))
ROOT = Limit((Sort((GROUPS,), (Expr("SortOrder", (K.value,), "string", (True, True)),)),), 3)
QUERY = StoredQuery(ROOT, KeptInput(ROOT, 2, True))


def schema(**kinds: str) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


ORIGIN = QueryOrigin("SELECT …", {"t": "/lake/t"}, {"iscp": "1", "duckdb": "2"}, {"t": schema(k="string", n="long")})


def content_of(query: StoredQuery, origin: QueryOrigin = ORIGIN) -> bytes:
    content = query_to_json(query, origin)
    assert content is not None
    return content


def document_of(root: Rel | None) -> Any:
    return None if root is None else algebra_document(root)


@pytest.mark.parametrize("query", [QUERY, StoredQuery(ROOT), StoredQuery()], ids=["kept", "plain", "by Spark"])
def test_a_query_is_read_back(query: StoredQuery) -> None:
    found = query_from_json(content_of(query), ORIGIN)
    assert found is not None
    assert document_of(found.root) == document_of(query.root)
    assert (found.kept is None) == (query.kept is None)
    if found.kept is not None:
        assert (found.kept.depth, found.kept.summed, found.kept.is_sound) == (2, True, True)


@pytest.mark.parametrize(
    "origin",
    [
        replace(ORIGIN, sql="SELECT 1"),
        replace(ORIGIN, tables={"t": "/elsewhere"}),
        replace(ORIGIN, versions={"iscp": "1", "duckdb": "3"}),
        replace(ORIGIN, schemas={"t": schema(k="string", n="long", more="long")}),
    ],
    ids=["query", "tables", "versions", "schemas"],
)
def test_that_of_another_origin_is_none(origin: QueryOrigin) -> None:
    assert query_from_json(content_of(QUERY), origin) is None


@pytest.mark.parametrize(
    ("types", "by_time"),
    [(("date",), TimeDependence.DATE), (("timestamp_ntz",), TimeDependence.MOMENT), ((), None)],
)
def test_the_time_is_read_back_as_a_table_that_no_schema_has(
    types: tuple[str, ...], by_time: TimeDependence | None
) -> None:
    clocks = [Table((), (TypedColumn(9 + place, kind, kind),), CLOCK) for place, kind in enumerate(types)]
    values = [Expr("ScalarSubquery", (), each.fields[0].type, (), each) for each in clocks]
    found: Rel = Table((), (K, N), "t")
    for value in values:
        text = Expr("Literal", (), value.type, ("1",))
        found = Filter((found,), Expr("LessThan", (value, text), "boolean"))
    read = query_from_json(content_of(StoredQuery(found)), ORIGIN)
    assert read is not None
    assert (read.by_time, read.clock_types) == (by_time, frozenset(types))
    wrong = replace(clocks[0], fields=(TypedColumn(9, "now", "date"),)) if clocks else None
    if wrong is not None:
        forged_root = Filter((Table((), (K, N), "t"),), Expr("IsNull", (replace(values[0], plan=wrong),), "boolean"))
        assert query_to_json(StoredQuery(forged_root), ORIGIN) is None


def table(document: dict[str, Any]) -> dict[str, Any]:
    found = document["algebra"]
    while found["operator"] != "Table":
        (found,) = found["inputs"]
    assert isinstance(found, dict)
    return found


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "a table that is not of the view": lambda document: table(document).update(name="u"),
    "a column that is not there": lambda document: table(document)["fields"][1].__setitem__(1, "z"),
    "a column of another type": lambda document: table(document)["fields"][0].__setitem__(2, "long"),
    "rows that a planner makes": lambda document: table(document).update(at="state"),
    "an operation that there is not": lambda document: document["algebra"]["inputs"][0]["order"][0].update(op="Call"),
    "a part that is no group": lambda document: document.update(kept=[1, True]),
    "a part below a table": lambda document: document.update(kept=[9, False]),
    "a part that is no number": lambda document: document.update(kept=["2", False]),
    "a part of three": lambda document: document.update(kept=[1, True, 2]),
    "no query": lambda document: document.pop("algebra"),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_forged_query_that_does_not_fit_is_none(change: Callable[[dict[str, Any]], object]) -> None:
    assert query_from_json(forged(content_of(QUERY), change), ORIGIN) is None


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b"{}", b"\xff", b"[" * 50_000, b" " * (QUERY_BYTES_MAX + 1)],
    ids=["empty", "null", "list", "object", "bytes", "deep", "long"],
)  # fmt: skip
def test_whatever_else_is_none(content: bytes) -> None:
    assert query_from_json(content, ORIGIN) is None


def test_a_byte_that_is_another_is_seen() -> None:
    content = content_of(QUERY)
    assert query_from_json(content.replace(b'"count": 3', b'"count": 4'), ORIGIN) is None


def test_texts_that_are_no_utf8_and_columns_that_share_a_name_are_not_stored() -> None:
    assert query_to_json(StoredQuery(Table((), (replace(K, name="\ud800"),), "t")), ORIGIN) is None
    twice = Table((), (K, replace(K, id=9, name="K")), "t")
    assert query_to_json(StoredQuery(twice), replace(ORIGIN, schemas={"t": schema(k="string", K="string")})) is None


@pytest.mark.parametrize(
    ("name", "metadata", "is_read"),
    [("`v`.`x`", {}, True), ("`v`.`z`", {}, False), ("`v`.`x`", {COLLATIONS: {"x": "icu.UNICODE"}}, False)],
)
def test_a_field_of_a_struct_is_one_that_the_table_has(name: str, metadata: dict[str, Any], is_read: bool) -> None:
    inner = {"name": "x", "type": "string", "nullable": True, "metadata": metadata}
    column = {"name": "v", "type": {"type": "struct", "fields": [inner]}, "nullable": True, "metadata": {}}
    origin = replace(ORIGIN, schemas={"t": json.dumps({"type": "struct", "fields": [column]})})
    root = Project((Table((), (TypedColumn(1, name, "string"),), "t"),), (TypedColumn(1, name, "string").value,))
    assert (query_to_json(StoredQuery(root), origin) is not None) == is_read


KEY, STRUCT = TypedColumn(0, "k", "long"), TypedColumn(1, "v", OTHER)
TABLE = Table((), (KEY, STRUCT), "t")
OTHERS = Table((), (TypedColumn(2, "x", "string"),), "u")


def field(name: str, kind: str, struct: Expr = STRUCT.value) -> Expr:
    return Expr("StructField", (struct,), kind, (name,))


X, Y = field("x", "string"), field("y", "long", field("s", OTHER))


def alias(number: int, value: Expr) -> Expr:
    return Expr("Alias", (value,), value.type, (number, f"c{number}"))


def shown(below: Rel, *values: Expr) -> Project:
    return Project((below,), tuple(alias(10 + place, each) for place, each in enumerate(values)))


def test_a_leaf_has_the_fields_that_are_read_in_place_of_the_struct() -> None:
    met = Expr("GreaterThan", (Y, Expr("Literal", (), "long", ("1",))), "boolean")
    found = with_fields_as_columns(shown(Filter((TABLE,), met), KEY.value, X, Y))
    (leaf,) = found.tables()
    assert [(each.name, each.type) for each in leaf.fields] == [
        *[("k", "long"), ("`v`.`s`.`y`", "long"), ("`v`.`x`", "string")]
    ]
    assert not {each.id for each in leaf.fields} & {1, 10, 11, 12}
    text = translate(found).text
    assert text is not None
    assert '"`v`.`s`.`y`" AS c' in text


def test_operators_above_read_the_columns() -> None:
    """A join may add nulls to a field as to any column, and values of subqueries read fields too."""
    joined = Join((OTHERS, TABLE), JoinKind.LEFT_OUTER, Expr("EqualTo", (OTHERS.fields[0].value, X), "boolean"))
    last = Expr("WindowExpression", (Expr("RowNumber", (), "integer"),), "integer", ("ROWS", None, 0))
    order = Expr("SortOrder", (Y,), "long", (True, True))
    window = Windowed((joined,), (alias(20, last),), (X,), (order,))
    greatest = Expr("AggregateExpression", (Expr("Max", (Y,), "long"),), "long", (False,))
    value = Expr("ScalarSubquery", (), "long", (), Group((TABLE,), (), (alias(21, greatest),)))
    found = with_fields_as_columns(shown(window, X, value, TypedColumn(20, "c20", "integer").value))
    assert len([*found.tables()]) == 2, "what is one leaf stays one"
    assert not translate(found).gaps


@pytest.mark.parametrize(
    "query",
    [
        Filter((TABLE,), Expr("IsNotNull", (X,), "boolean")),
        shown(TABLE, X, STRUCT.value),
        shown(TABLE, Expr("IsNull", (STRUCT.value,), "boolean"), X),
        shown(TABLE, X, field("s", OTHER)),
        shown(TABLE, field("x", "string", Expr("Opaque", (STRUCT.value,), OTHER, ("CreateNamedStruct", "")))),
        shown(Union((TABLE, TABLE), (KEY, STRUCT)), X),
        shown(Table((), (KEY, STRUCT, TypedColumn(3, "`v`.`x`", "long")), "t"), X),
    ],
    ids=["passed on", "shown", "read", "a struct within", "made", "by its place", "a column called so"],
)
def test_a_struct_that_is_read_as_a_whole_stays(query: Rel) -> None:
    found = with_fields_as_columns(query)
    assert [each.fields for each in found.tables()] == [each.fields for each in query.tables()]
    assert translate(found).gaps


def test_a_query_without_fields_stays_the_same() -> None:
    query = shown(TABLE, KEY.value)
    assert with_fields_as_columns(query) is query


def test_plain_values_have_no_fields() -> None:
    with pytest.raises(UntypedError, match="long has no fields"):
        result_type(field("x", "string", KEY.value))


def test_tables_have_the_columns_alone_that_something_reads() -> None:
    """Also those of values, whose struct is nobody's then; what a union takes by its place stays."""
    wide = Table((), (KEY, STRUCT, TypedColumn(3, "a", "long"), TypedColumn(4, "b", "long")), "t")
    greatest = Expr("AggregateExpression", (Expr("Max", (wide.fields[2].value,), "long"),), "long", (False,))
    value = Expr("ScalarSubquery", (), "long", (), Group((wide,), (), (alias(21, greatest),)))
    one = TypedColumn(30, "one", "long")
    query = shown(Filter((Table((), (one,), "u"),), Expr("LessThan", (one.value, value), "boolean")), one.value)
    found = without_unread_columns(query)
    assert {each.name: [column.name for column in each.fields] for each in found.tables()} == {"t": ["a"], "u": ["one"]}
    assert translate(query).gaps
    assert not translate(found).gaps
    assert found.columns == query.columns
    assert without_unread_columns(found) is found
    union = shown(Union((wide, wide), wide.fields), wide.fields[3].value)
    assert without_unread_columns(union) is union


def test_a_leaf_that_several_read_stays_one() -> None:
    wide = Table((), (KEY, TypedColumn(3, "a", "long")), "t")
    met = Expr("IsNotNull", (KEY.value,), "boolean")
    joined = Join((Filter((wide,), met), shown(wide, KEY.value)), JoinKind.LEFT_SEMI, met)
    (leaf,) = without_unread_columns(shown(joined, KEY.value)).tables()
    assert leaf.fields == (KEY,)
