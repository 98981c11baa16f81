"""What sums and averages of groups come to in the result, out of what is stored of them."""

from __future__ import annotations

from decimal import Decimal

from iscp.core.query.group_query import GroupQuery, Output, finished_sums, key_columns, number_names
from iscp.core.values.totals import AggregateKind

WHOLE_SUM, WHOLE_MEAN = Output("s", AggregateKind.SUM, "x"), Output("m", AggregateKind.AVERAGE, "x")
SUM, MEAN = Output("ds", AggregateKind.SUM, "d", scale=2), Output("dm", AggregateKind.AVERAGE, "d", scale=6)
QUERY = GroupQuery(
    ("g",),
    (Output("name", None, "g"), Output("rows", AggregateKind.COUNT), WHOLE_SUM, WHOLE_MEAN, SUM, MEAN),
    {"x": 0, "d": 2},
)


def test_nothing_but_nulls_adds_up_to_null() -> None:
    assert [finished_sums(each, QUERY, [0], [0]) for each in QUERY.outputs[2:]] == [[None]] * 4


def test_averages_of_decimals_are_rounded_half_up_and_of_whole_numbers_are_doubles() -> None:
    assert finished_sums(WHOLE_SUM, QUERY, [3, 1], [2, -7]) == [2, -7]
    assert finished_sums(WHOLE_MEAN, QUERY, [3, 2], [2, -7]) == [2 / 3, -3.5]
    assert finished_sums(SUM, QUERY, [3], [-200]) == [Decimal("-2.00")]
    assert finished_sums(MEAN, QUERY, [3], [-200]) == [Decimal("-0.666667")]


def test_a_query_knows_its_columns() -> None:
    assert (QUERY.measured, QUERY.key_names()) == (("x", "d"), ("name",))
    assert key_columns(2) == ["k0", "k1"]
    assert number_names(2) == ["n", "c0", "s0", "c1", "s1"]
