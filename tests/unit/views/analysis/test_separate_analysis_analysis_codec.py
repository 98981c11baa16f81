"""What a query comes to crosses the border of a process as it is, however deep, and is not believed."""

from __future__ import annotations

import json

import pytest

from iscp.model.query_plan import JoinSide, Operator, OperatorKind, QueryShape
from iscp.model.sql.sql_names import TimeDependence
from iscp.views.analysis.separate_analysis import shape_from_json, shape_to_json

TABLE = Operator(OperatorKind.TABLE, "t", table="t")
FILTER = Operator(OperatorKind.FILTER, "f", (TABLE,), by_time=TimeDependence.DATE)
JOIN = Operator(OperatorKind.JOIN, "j", (FILTER, TABLE), subqueries=(FILTER,), linear_in=JoinSide.LEFT, keyed=True)


@pytest.mark.parametrize(
    "kept", [None, FILTER, Operator(OperatorKind.SORT, "s", (TABLE,))], ids=["none", "in", "beside"]
)
def test_a_shape_is_the_same_on_the_other_side(kept: Operator | None) -> None:
    shape = QueryShape(JOIN, '{"fields": []}', frozenset({"t", "u"}), kept, True, {"t": "why"}, "rand")
    assert shape_from_json(shape_to_json(shape)) == shape


def test_what_is_kept_is_the_very_operator() -> None:
    found = shape_from_json(shape_to_json(QueryShape(JOIN, "{}", frozenset(), FILTER)))
    assert any(each is found.stored for _, each in found.root.walk())


def test_a_tree_may_be_deep() -> None:
    root = TABLE
    for number in range(2_000):
        root = Operator(OperatorKind.PROJECT, f"p{number}", (root,))
    found = shape_from_json(shape_to_json(QueryShape(root, "{}", frozenset())))
    assert len([*found.root.walk()]) == 2_001


@pytest.mark.parametrize(
    ("name", "value"), [("root", 9), ("inputs", [[5]]), ("operators", [{"kind": "x"}]), ("stored", "a")]
)
def test_what_cannot_be_is_refused(name: str, value: object) -> None:
    content = json.loads(shape_to_json(QueryShape(TABLE, "{}", frozenset()))) | {name: value}
    with pytest.raises(ValueError):  # noqa: PT011  (pydantic's are of that class too)
        shape_from_json(json.dumps(content).encode())
