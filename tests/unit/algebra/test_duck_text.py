"""Statements are made of the algebra alone: what a user wrote is a constant or a name in them, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.algebra.algebra import (
    Expr,
    Filter,
    Group,
    Join,
    JoinKind,
    Limit,
    Opaque,
    Project,
    Rel,
    Sort,
    Table,
    TypedColumn,
    Union,
    Values,
)
from iscp.algebra.algebra_codec import ALGEBRA_DEPTH_MAX
from iscp.algebra.change_plan import ChangePlan
from iscp.algebra.duck_text import GROWTH_MAX, identifier, literal, translate
from tests.fakes.algebras import both, number
from tests.fakes.written_algebra import algebra_from_json, algebra_to_json

K, N = TypedColumn(1, "k", "long"), TypedColumn(2, "n", "long")
S = TypedColumn(3, "s", "string")
ORDERS = Table((), (K, N, S), "orders")
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.fixture(scope="module")
def ducks() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as database:
        yield database


def constant(value: str | None, kind: str) -> Expr:
    return Expr("Literal", (), kind, (value,))


def one(value: Expr) -> Rel:
    """A relation of one row with this value."""
    return Project((Values((), (), ((),)),), (Expr("Alias", (value,), value.type, (7, "v")),))


def text_of(relation: Rel) -> str:
    translation = translate(relation)
    assert translation.text is not None, translation.gaps
    return translation.text


def value_of(ducks: duckdb.DuckDBPyConnection, value: Expr) -> object:
    (row,) = ducks.execute(text_of(one(value))).fetchall()
    return row[0]


@settings(max_examples=8, deadline=None)
@given(TEXTS)
@pytest.mark.parametrize(
    "nasty", ["", "'", "''; DROP TABLE orders; --", "\\'", "E'\\x41'", "$$", "\n--", '"', "é\u202e"]
)
def test_a_text_is_itself_and_nothing_else(nasty: str, text: str) -> None:
    with duckdb.connect(config={"threads": 1}) as database:
        for each in (nasty, text, nasty + text, text + nasty):
            assert value_of(database, constant(each, "string")) == each
            statement = text_of(one(constant(each, "string")))
            assert len(database.extract_statements(statement)) == 1


@settings(max_examples=40, deadline=None)
@given(TEXTS.filter(bool))
def test_a_name_is_itself_and_nothing_else(name: str) -> None:
    with duckdb.connect(config={"threads": 1}) as database:
        relation = Table((), (TypedColumn(1, name, "long"),), name)
        database.execute(f"CREATE TABLE {identifier(f'new:{name}')} AS SELECT 5::BIGINT AS {identifier(name)}")
        found = database.execute(text_of(relation))
        assert [each[0] for each in found.description or ()] == [name]
        assert found.fetchall() == [(5,)]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("1; DROP", "long"),
        ("1e5", "integer"),
        ("x", "double"),
        ("NaN", "decimal(5,2)"),
        ("1E+999999999", "decimal(5,2)"),
        ("1E-999999999", "decimal(5,2)"),
        ("9" * 5_000, "long"),
        ("yes", "boolean"),
        ("a\0b", "string"),
        ("today", "date"),
        ("2024-01-01", "timestamp"),
        ("\ud800", "string"),
        ("00", "binary"),
        ("1", "other"),
    ],
)
def test_a_constant_that_is_none_of_its_type_is_no_text(value: str, kind: str) -> None:
    assert literal(constant(value, kind)) is None
    assert translate(one(constant(value, kind))).text is None


def test_constants_have_their_values_and_types(ducks: duckdb.DuckDBPyConnection) -> None:
    assert value_of(ducks, constant("-9223372036854775808", "long")) == -(2**63)
    assert value_of(ducks, constant("-0.0", "double")) == 0
    assert math.copysign(1, float(str(value_of(ducks, constant("-0.0", "double"))))) == -1
    assert str(value_of(ducks, constant("1E+3", "decimal(7,2)"))) == "1000.00"
    assert str(value_of(ducks, constant("-1", "date"))) == "1969-12-31"
    assert str(value_of(ducks, constant("-1", "timestamp"))) == "1969-12-31 23:59:59.999999"
    assert value_of(ducks, constant(None, "string")) is None


def numbers(ducks: duckdb.DuckDBPyConnection, relation: Rel) -> list[int]:
    ducks.execute(
        'CREATE OR REPLACE TABLE "new:orders" AS SELECT 1 AS k, i::BIGINT AS n, NULL AS s FROM range(20) t(i)'
    )
    return [row[1] for row in ducks.execute(text_of(relation)).fetchall()]


SORTED = Sort((ORDERS,), (Expr("SortOrder", (N.value,), "long", (True, True)),))


@pytest.mark.parametrize(
    ("limits", "rows"),
    [
        ([(5, 0)], range(5)),
        ([(None, 3), (5, 0)], range(3, 8)),
        ([(5, 0), (None, 3)], range(3, 5)),
        ([(5, 0), (None, 7)], range(0)),
        ([(9, 1), (4, 2), (None, 1), (5, 0)], range(4, 7)),
    ],
)
def test_limits_above_each_other_take_of_what_the_lower_leave(
    ducks: duckdb.DuckDBPyConnection, limits: list[tuple[int | None, int]], rows: range
) -> None:
    """Each takes its count of rows after its offset; the first is the lowest."""
    relation: Rel = SORTED
    for rows_most, offset in limits:
        relation = Limit((relation,), rows_most, offset)
    assert numbers(ducks, relation) == [*rows]


def test_a_limit_without_an_order_is_left_to_spark() -> None:
    assert translate(Limit((ORDERS,), 5)).gaps == ("operator Limit: without an order",)


def test_what_stands_twice_is_computed_once() -> None:
    few = Filter((ORDERS,), both("LessThan", K.value, number(3)))
    text = text_of(Union((few, few), (K, N, S)))
    assert text.count("MATERIALIZED") == 1
    assert text.count("WHERE") == 1


def test_a_relation_that_a_subquery_shares_with_the_query_is_seen_by_both(ducks: duckdb.DuckDBPyConnection) -> None:
    summed = Expr("AggregateExpression", (Expr("Max", (N.value,), "long"),), "long", (False,))
    few = Filter((ORDERS,), both("LessThan", N.value, number(9)))
    most = Group((few,), (), (Expr("Alias", (summed,), "long", (8, "m")),))
    subquery = Expr("ScalarSubquery", (), "long", (), most)
    for relation in (
        Filter((few,), both("EqualTo", N.value, subquery)),
        Filter((ORDERS,), both("EqualTo", N.value, subquery)),
    ):
        assert numbers(ducks, relation) == [8]
        assert numbers(ducks, Join((relation, Project((few,), ())), JoinKind.LEFT_SEMI)) == [8]


def test_all_that_is_lacking_is_named_at_once() -> None:
    odd = Expr("Opaque", (Expr("Upper", (K.value,), "string"),), "boolean", ("Soundex", "unknown"))
    relation = Opaque((Filter((ORDERS,), odd),), (TypedColumn(9, "l", "other"),), "Generate", "a list")
    assert translate(relation).gaps == (
        "column l of a type that DuckDB lacks",
        "Upper(long): not in the list",
        "Soundex: unknown",
        "operator Generate: a list",
    )


def test_what_is_as_deep_as_a_stored_query_may_be_is_written_and_planned() -> None:
    """Nobody's query ends the process by its depth."""
    condition = both("IsNull", K.value)
    for _ in range(ALGEBRA_DEPTH_MAX // 3):
        condition = Expr("Not", (condition,), "boolean")
    deep: Rel = ORDERS
    for _ in range(ALGEBRA_DEPTH_MAX * 2 // 3 - 3):
        deep = Join((deep, Table((), (), "items")), JoinKind.LEFT_SEMI, both("IsNotNull", K.value))
    content = algebra_to_json(Filter((deep,), condition))
    assert content is not None
    root = algebra_from_json(content)
    assert translate(root).text is not None
    net = ChangePlan(root, ["orders"]).net_rows()
    assert net is not None
    assert translate(net).text is not None


def test_texts_that_grow_beyond_bounds_are_left_to_spark() -> None:
    """A column that is put together of itself, again and again, would fill the memory from one short text."""
    relation: Rel = ORDERS
    value = S.value
    for place in range(12):
        doubled = Expr("Concat", (value, value), "string")
        item = Expr("Alias", (doubled,), "string", (20 + place, "s"))
        relation, value = Project((relation,), (item,)), item.column.value
    assert translate(relation).gaps == (f"Concat: a text of more than {GROWTH_MAX} texts",)


def test_texts_that_grow_by_way_of_arrays_are_left_to_spark() -> None:
    """What is put together from an array grows as much as what the array is made of."""
    relation: Rel = ORDERS
    value = S.value
    for place in range(0, 24, 2):
        doubled = Expr("CreateArray", (value, value), "array<string>")
        item = Expr("Alias", (doubled,), doubled.type, (20 + place, "l"))
        relation = Project((relation,), (item,))
        joined = Expr("ArrayJoin", (item.column.value, constant(",", "string")), "string")
        item = Expr("Alias", (joined,), "string", (21 + place, "s"))
        relation, value = Project((relation,), (item,)), item.column.value
    assert translate(relation).gaps[0] == f"CreateArray: a text of more than {GROWTH_MAX} texts"


@pytest.mark.parametrize(
    ("within", "above", "fits"), [(1, 1, True), (1, 2, True), (2, 1, True), (1, 3, False), (3, 1, False)]
)
@pytest.mark.parametrize("op", ["TextInOrder", "ListInOrder"])
def test_texts_of_groups_are_put_together_once_at_most(op: str, within: int, above: int, fits: bool) -> None:
    """A text of all rows of a table fills the memory sooner than a text of one row."""
    value = Expr("Concat", (S.value,) * within, "string") if within > 1 else S.value
    comma = constant(",", "string")
    is_text = op == "TextInOrder"
    args, kind = ((value, comma, K.value), "string") if is_text else ((value, K.value), "array<string>")
    gathered = Expr("AggregateExpression", (Expr(op, args, kind, (True,)),), kind, (False,))
    item = Expr("Alias", (gathered,), kind, (20, "g"))
    parts = (item.column.value,) * above
    together = Expr("Concat", parts, "string") if is_text else Expr("ConcatWs", (comma, *parts), "string")
    found = translate(Project((Group((ORDERS,), (), (item,)),), (Expr("Alias", (together,), "string", (21, "s")),)))
    assert (found.text is not None) == (fits if is_text else fits and within * above == 1), found.gaps
    if found.text is None:
        assert f"a text of more than {GROWTH_MAX} texts" in found.gaps[0]


def test_a_text_that_holds_an_argument_too_often_is_left_to_spark() -> None:
    value = Expr("Column", (), "decimal(38,10)", (9, "d"))
    table = Table((), (TypedColumn(9, "d", "decimal(38,10)"),), "orders")
    for _ in range(8):
        divided = Expr("Divide", (value, value), "decimal(38,6)", ("ANSI",))
        value = Expr("Cast", (divided,), "decimal(38,10)", ("ANSI",))
    relation = Project((table,), (Expr("Alias", (value,), value.type, (10, "v")),))
    assert any("too long" in each for each in translate(relation).gaps)


TAGS, MORE = TypedColumn(4, "tags", "array<string>"), TypedColumn(5, "more", "array<string>")
TAGGED = Table((), (K, S, TAGS, MORE), "tagged")


@pytest.mark.parametrize(
    "relation",
    [
        Filter((TAGGED,), Expr("EqualTo", (TAGS.value, MORE.value), "boolean")),
        Filter((TAGGED,), Expr("In", (TAGS.value, MORE.value), "boolean")),
        Limit((Sort((TAGGED,), (Expr("SortOrder", (TAGS.value,), "array<string>", (True, True)),)),), 3),
        Join((TAGGED, ORDERS), JoinKind.INNER, Expr("EqualNullSafe", (TAGS.value, TAGS.value), "boolean")),
        Project(
            (TAGGED,), (Expr("Alias", (Expr("Least", (TAGS.value, MORE.value), TAGS.type),), TAGS.type, (7, "v")),)
        ),
    ],
)
def test_arrays_are_neither_compared_nor_ordered(relation: Rel) -> None:
    assert translate(relation).text is None


def test_arrays_pass_and_are_grouped_by(ducks: duckdb.DuckDBPyConnection) -> None:
    lists = Values((), (TAGS,), ((Expr("Literal", (), TAGS.type, (None,)),),))
    assert ducks.execute(text_of(Group((lists,), (TAGS.value,), (TAGS.value,)))).fetchall() == [(None,)]
    text_of(Filter((TAGGED,), Expr("IsNotNull", (TAGS.value,), "boolean")))


@pytest.mark.parametrize(
    ("elements", "distinct"), [((), []), ((None, "b", "a", "b", None), [None, "b", "a"]), (("", "a"), ["", "a"])]
)
def test_constant_arrays_are_made_of_constants(
    ducks: duckdb.DuckDBPyConnection, elements: tuple[str | None, ...], distinct: list[str | None]
) -> None:
    array = Expr("CreateArray", tuple(constant(each, "string") for each in elements), "array<string>")
    assert value_of(ducks, array) == [*elements]
    assert value_of(ducks, Expr("ArrayDistinct", (array,), array.type)) == distinct
    shown = Expr("ArrayJoin", (array, constant("-", "string")), "string")
    assert value_of(ducks, shown) == "-".join(each for each in elements if each is not None)


@pytest.mark.parametrize("delimiter", [S.value, constant("-" * 17, "string"), constant(None, "string")])
def test_texts_of_arrays_are_put_together_by_short_constants_alone(delimiter: Expr) -> None:
    for value in (
        Expr("ArrayJoin", (TAGS.value, delimiter), "string"),
        Expr("ConcatWs", (delimiter, S.value, TAGS.value), "string"),
    ):
        (gap,) = translate(Project((TAGGED,), (Expr("Alias", (value,), "string", (7, "v")),))).gaps
        assert gap.endswith("a delimiter that is no short constant")


def test_arrays_of_many_elements_are_not_compared_with_themselves(ducks: duckdb.DuckDBPyConnection) -> None:
    many = Expr("CreateArray", tuple(constant(str(each % 9), "long") for each in range(257)), "array<long>")
    with pytest.raises(duckdb.Error, match="left to Spark: many elements"):
        value_of(ducks, Expr("ArrayDistinct", (many,), many.type))


def totals_from(first: int, least: str = "0.0", kind: JoinKind = JoinKind.INNER) -> Group:
    """Totals of orders that meet themselves, with ids from `first` on, as a query has that names them twice."""
    sides = [
        Table((), (TypedColumn(at, "k", "long"), TypedColumn(at + 1, "n", "double")), "orders")
        for at in (first, first + 2)
    ]
    few = Filter((sides[0],), Expr("GreaterThan", (sides[0].fields[1].value, constant(least, "double")), "boolean"))
    same = Expr("EqualTo", (sides[0].fields[0].value, sides[1].fields[0].value), "boolean")
    joined = Join((few, sides[1]), kind, same)
    counted = Expr("AggregateExpression", (Expr("Count", (sides[0].fields[0].value,), "long"),), "long", (False,))
    key = sides[0].fields[0].value
    return Group((joined,), (key,), (key, Expr("Alias", (counted,), "long", (first + 4, f"n{first}"))))


def beside(left: Group, right: Group) -> Join:
    """Each total beside that of the same key on the right."""
    same = Expr("EqualTo", (left.columns[0].value, right.columns[0].value), "boolean")
    return Join((left, right), JoinKind.LEFT_OUTER, same)


def test_what_a_query_has_twice_is_computed_once(ducks: duckdb.DuckDBPyConnection) -> None:
    left, right = totals_from(10), totals_from(20)
    text = text_of(beside(left, right))
    assert text.count("GROUP BY") == 1
    assert text.count("MATERIALIZED") == 1
    assert translate(beside(left, right)).reads == {"new:orders": 2}, "once on each side of the one join"
    ducks.execute(
        'CREATE OR REPLACE TEMP TABLE "new:orders" AS SELECT * FROM (VALUES (1, 1.5), (1, 2.0), (2, -1.0)) t(k, n)'
    )
    assert ducks.execute(text).fetchall() == [(1, 4, 1, 4)]


@pytest.mark.parametrize(
    "other", [totals_from(20, "-0.0"), totals_from(20, "1.0"), totals_from(20, kind=JoinKind.LEFT_OUTER)]
)
def test_what_differs_in_more_than_ids_is_computed_for_itself(other: Group) -> None:
    assert text_of(beside(totals_from(10), other)).count("GROUP BY") == 2


def test_values_of_subqueries_that_are_one_are_computed_once() -> None:
    def largest(first: int) -> Expr:
        table = Table((), (TypedColumn(first, "n", "long"),), "sales")
        most = Expr("AggregateExpression", (Expr("Max", (table.fields[0].value,), "long"),), "long", (False,))
        plan = Group((table,), (), (Expr("Alias", (most,), "long", (first + 1, "m")),))
        return Expr("ScalarSubquery", (), "long", plan=plan)

    met = Expr("LessThan", (largest(50), largest(60)), "boolean")
    assert text_of(Filter((ORDERS,), met)).count("max(") == 1
