"""Groups that follow what changed rows add and take away, against groups that are computed from all rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from iscp.core.query.group_query import WHOLE_MOST, GroupQuery, Measure, Output, Totals, result_column

QUERY = GroupQuery(
    ("g",),
    (
        Output("name", Measure.KEY, "g"),
        Output("rows", Measure.ROWS),
        Output("k", Measure.COUNT, "x"),
        Output("s", Measure.SUM, "x"),
        Output("m", Measure.AVERAGE, "x"),
        Output("ds", Measure.SUM, "d", scale=2),
        Output("dm", Measure.AVERAGE, "d", scale=6),
    ),
    {"x": 0, "d": 2},
)
Row = tuple[int | None, Decimal | None]

rows = st.tuples(
    st.none() | st.integers(-5, 5), st.none() | st.integers(-300, 300).map(lambda each: Decimal(each).scaleb(-2))
)


def result_row(key: str | None, totals: Totals) -> tuple[Any, ...]:
    return tuple(result_column(each, QUERY, {"g": [key]}, totals)[0] for each in QUERY.outputs)


def group(rows: int, counts: tuple[int, int], sums: tuple[int, int]) -> Totals:
    return Totals([rows], [[each] for each in counts], [[each] for each in sums])


def totals(held: list[Row], sign: int = 1) -> Totals:
    whole = [x for x, _ in held if x is not None]
    hundredths = [int(d.scaleb(2)) for _, d in held if d is not None]
    counts, sums = (len(whole), len(hundredths)), (sum(whole), sum(hundredths))
    return group(sign * len(held), (sign * counts[0], sign * counts[1]), (sign * sums[0], sign * sums[1]))


@given(st.lists(rows, max_size=8), st.lists(rows, max_size=8), st.data())
def test_a_group_that_followed_changes_is_the_one_of_all_its_rows(
    before: list[Row], came: list[Row], data: st.DataObject
) -> None:
    went = data.draw(st.lists(st.sampled_from(before), max_size=len(before), unique_by=id) if before else st.just([]))
    after = [*before, *came]
    for row in went:
        after.remove(row)
    followed = totals(before).plus(totals(came)).plus(totals(went, -1))
    assert followed == totals(after)
    assert followed.sound
    assert result_row("a", followed) == result_row("a", totals(after))


def test_nothing_but_nulls_adds_up_to_null() -> None:
    assert result_row(None, group(2, (0, 0), (0, 0))) == (None, 2, 0, None, None, None, None)


def test_averages_of_decimals_are_rounded_half_up_and_of_whole_numbers_are_doubles() -> None:
    found = result_row("a", group(3, (3, 3), (2, -200)))
    assert found[4:] == (2 / 3, Decimal("-2.00"), Decimal("-0.666667"))


def test_what_rows_cannot_come_to_and_what_is_too_large_is_not_sound() -> None:
    assert not group(1, (2, 0), (0, 0)).sound
    assert not group(1, (-1, 0), (0, 0)).sound
    assert not group(1, (1, 0), (WHOLE_MOST + 1, 0)).sound
    assert not group(0, (0, 0), (0, 1)).sound
    assert not group(-1, (0, 0), (0, 0)).sound


def test_groups_are_added_place_by_place_and_one_that_is_not_sound_spoils_all() -> None:
    both = Totals([1, 2], [[1, 0], [0, 2]], [[5, 0], [0, 7]])
    assert both.plus(both) == Totals([2, 4], [[2, 0], [0, 4]], [[10, 0], [0, 14]])
    assert both.sound
    assert not both.plus(Totals([0, 0], [[0, 0], [0, 3]], [[0, 0], [0, 0]])).sound
    assert Totals([], [[], []], [[], []]).sound


def test_a_query_knows_its_columns() -> None:
    assert (QUERY.measured, QUERY.key_names()) == (("x", "d"), ("name",))
