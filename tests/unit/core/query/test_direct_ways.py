"""Ways that were read from a file are taken only over columns that they fit, whatever they say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from iscp.core.query.direct_ways import (
    NO_WAYS,
    DirectWays,
    GroupedRows,
    ResultColumn,
    are_sound,
    plain_kinds,
)
from iscp.core.query.group_query import GroupQuery, Output
from iscp.core.query.join_query import Column, Equality, JoinedTable, JoinQuery, RowCondition
from iscp.core.values.totals import AggregateKind

KINDS = {
    "t": {"a": "long", "b": "string", "n": "decimal(10,2)", "w": "decimal(20,2)", "d": "double", "s": "byte"},
    "u": {"a": "long", "x": "string", "at": "timestamp", "i": "integer"},
}
T, U = JoinedTable("t", ("a", "b", "d", "n", "s", "w")), JoinedTable("u", ("a", "at", "i", "x"))
JOIN = JoinQuery((T, U), (Equality(Column(0, "a"), Column(1, "a")),), (Column(0, "b"), Column(1, "at")))
JOINED = DirectWays((ResultColumn("b", "string"), ResultColumn("at", "timestamp")), None, JOIN)
ROWS = replace(JOIN, outputs=tuple(Column(0, name) for name in ("b", "n", "a", "w", "d")))
COUNT, SUM, AVERAGE = AggregateKind.COUNT, AggregateKind.SUM, AggregateKind.AVERAGE


def grouped(*outputs: tuple[Output, str], scales: dict[str, int] | None = None) -> DirectWays:
    """Groups by `b` that give these outputs, each of that type."""
    every = ((Output("b", None, "c0"), "string"), *outputs)
    query = GroupQuery(("c0",), tuple(each for each, _ in every), scales or {})
    return DirectWays(tuple(ResultColumn(each.name, kind) for each, kind in every), GroupedRows(query, ROWS))


SUMS = grouped(
    (Output("c", COUNT), "long"),
    (Output("k", COUNT, "c4"), "long"),
    (Output("s", SUM, "c1", 2), "decimal(20,2)"),
    (Output("m", AVERAGE, "c1", 6), "decimal(14,6)"),
    (Output("w", SUM, "c2"), "long"),
    (Output("v", AVERAGE, "c2"), "double"),
    scales={"c1": 2, "c2": 0},
)


def test_ways_that_fit_are_sound() -> None:
    assert are_sound(JOINED, KINDS)
    assert are_sound(SUMS, KINDS)
    assert are_sound(NO_WAYS, KINDS)
    assert are_sound(replace(SUMS, columns=SUMS.columns), KINDS)


def meeting(*condition: object) -> DirectWays:
    """The join of rows of `t` that meet one condition."""
    table = replace(T, conditions=(RowCondition(*condition),))  # type: ignore[arg-type]
    return replace(JOINED, joined=replace(JOIN, tables=(table, U)))


@pytest.mark.parametrize("condition", [("a", "=", 2**63 - 1), ("s", "<", -128), ("b", "!=", ""), ("d", "", None)])
def test_conditions_that_can_be_decided_are_sound(condition: tuple[object, ...]) -> None:
    assert are_sound(meeting(*condition), KINDS)


@pytest.mark.parametrize(
    "condition",
    [
        ("a", "=", 2**63),
        ("a", "=", True),
        ("a", "=", "1"),
        ("a", "=", None),
        ("s", "<", 128),
        ("b", "=", 1),
        ("b", "", "x"),
        ("b", "like", "x"),
        ("d", ">", 1),
        ("z", "", None),
    ],
)
def test_conditions_that_cannot_be_decided_are_not(condition: tuple[object, ...]) -> None:
    assert not are_sound(meeting(*condition), KINDS)


def joined(**changes: object) -> DirectWays:
    return replace(JOINED, joined=replace(JOIN, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ways",
    [
        replace(NO_WAYS, columns=JOINED.columns),
        replace(JOINED, columns=JOINED.columns[:1]),
        replace(JOINED, columns=(*JOINED.columns[:1], replace(JOINED.columns[1], name="B"))),
        replace(JOINED, columns=(*JOINED.columns[:1], ResultColumn("at", "long"))),
        joined(tables=()),
        joined(tables=(T, replace(U, name="v"))),
        joined(tables=(replace(T, columns=()), U)),
        joined(tables=(replace(T, columns=("a", "a", "b")), U)),
        joined(tables=(replace(T, columns=(*T.columns, "z")), U)),
        joined(equalities=()),
        joined(equalities=(Equality(Column(0, "a"), Column(0, "a")),)),
        joined(equalities=(Equality(Column(0, "a"), Column(1, "x")),)),
        joined(equalities=(Equality(Column(0, "a"), Column(1, "i")),)),
        joined(equalities=(Equality(Column(0, "a"), Column(2, "a")),)),
        joined(equalities=(Equality(Column(0, "n"), Column(0, "w")),)),
        joined(outputs=(Column(0, "b"), Column(-1, "at"))),
        joined(outputs=(Column(0, "b"), Column(1, "z"))),
        DirectWays((ResultColumn("d", "double"),), None, replace(JOIN, outputs=(Column(0, "d"),))),
    ],
)
def test_joins_that_do_not_fit_are_not_sound(ways: DirectWays) -> None:
    assert not are_sound(ways, KINDS)


@pytest.mark.parametrize(
    "ways",
    [
        replace(SUMS, columns=SUMS.columns[1:]),
        replace(SUMS, columns=(ResultColumn("other", "string"), *SUMS.columns[1:])),
        grouped((Output("s", SUM, "c1", 2), "decimal(20,2)")),
        grouped((Output("s", SUM, "c1", 2), "decimal(20,2)"), scales={"c1": 3}),
        grouped((Output("s", SUM, "c1", 2), "decimal(21,2)"), scales={"c1": 2}),
        grouped((Output("s", SUM, "c1", 3), "decimal(20,3)"), scales={"c1": 2}),
        grouped((Output("s", SUM, "c1"), "long"), scales={"c1": 2}),
        grouped((Output("s", SUM, "c2"), "integer"), scales={"c2": 0}),
        grouped((Output("s", SUM, "c3", 2), "decimal(30,2)"), scales={"c3": 2}),
        grouped((Output("s", SUM, "c4"), "double"), scales={"c4": 0}),
        grouped((Output("s", SUM, "c9"), "long"), scales={"c9": 0}),
        grouped((Output("s", SUM), "long"), scales={"": 0}),
        grouped((Output("m", AVERAGE, "c2"), "long"), scales={"c2": 0}),
        grouped((Output("m", AVERAGE, "c1", 6), "decimal(38,6)"), scales={"c1": 2}),
        grouped((Output("m", AggregateKind.MOST, "c2"), "long")),
        grouped((Output("c", COUNT, "c9"), "long")),
        grouped((Output("c", COUNT), "integer")),
        grouped((Output("a", None, "c2"), "long")),
    ],
)
def test_groups_that_do_not_fit_are_not_sound(ways: DirectWays) -> None:
    assert not are_sound(ways, KINDS)


def test_keys_are_columns_that_compare_as_they_are_written() -> None:
    assert SUMS.grouped
    for key in ("c1", "c4", "c9"):
        query = replace(SUMS.grouped.query, keys=("c0", key))
        assert not are_sound(replace(SUMS, grouped=replace(SUMS.grouped, query=query)), KINDS)
    none = replace(SUMS.grouped.query, keys=())
    assert not are_sound(replace(SUMS, grouped=replace(SUMS.grouped, query=none)), KINDS)


def test_only_columns_with_no_other_type_within_them_and_no_collation_are_plain() -> None:
    fields = [
        {"name": "a", "type": "long"},
        {"name": "b", "type": "string", "metadata": {"__COLLATIONS": {"b": "spark.UTF8_LCASE"}}},
        {"name": "c", "type": {"type": "array", "elementType": "long", "containsNull": True}},
        {"name": "d", "type": "string", "metadata": {"comment": "plain"}},
    ]
    assert plain_kinds(json.dumps({"type": "struct", "fields": fields})) == {"a": "long", "d": "string"}
    for text in ("[]", "{}", '{"fields": 1}', '{"fields": [1]}', "", "[" * 100_000):
        with pytest.raises(ValueError, match=r"no schema|Expecting"):
            plain_kinds(text)
