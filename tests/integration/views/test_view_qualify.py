"""QUALIFY, which Spark does not have: a view with it equals the query with the filter above."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iscp.model.values.errors import InvalidRequest
from tests.selection import in_full

from .conftest import ViewBench

WINDOW = "row_number() over (partition by a order by b, d, n)"
PAIRS = (
    ("select a, b from t qualify " + WINDOW + " = 1", f"select a, b from (select *, {WINDOW} q from t) where q = 1"),
    (
        f"select *, {WINDOW} r from t where n is not null qualify r < 2 and a > 1",
        f"select * from (select *, {WINDOW} r from t where n is not null) where r < 2 and a > 1",
    ),
    (
        "select b, sum(n) as s from t group by b having count(*) > 1 qualify rank() over (order by sum(n), b) <= 2",
        "select b, s from (select b, sum(n) s, rank() over (order by sum(n), b) q from t group by b "
        "having count(*) > 1) where q <= 2",
    ),
    (
        "with f as (select x, y from u qualify row_number() over w = 1 window w as (partition by x order by y, a)) "
        "select t.a, f.y from t join f on t.b = f.x "
        "union all select a, a from u qualify count(*) over (partition by a) > 1",
        "select t.a, f.y from t join (select x, y from (select *, row_number() over (partition by x order by y, a) q "
        "from u) where q = 1) f on t.b = f.x "
        "union all select a, a from (select a, count(*) over (partition by a) q from u) where q > 1",
    ),
    (
        "select distinct a, transform(array(a), v -> v + 1) l from t qualify " + WINDOW + " > 1",
        f"select distinct a, transform(array(a), v -> v + 1) l from (select *, {WINDOW} q from t) where q > 1",
    ),
)


@pytest.mark.parametrize("number", in_full(range(len(PAIRS)), but=[1]))
def test_a_view_with_it_equals_the_filter_above_its_select(new_view: Callable[..., ViewBench], number: int) -> None:
    sql, same = PAIRS[number]
    view = new_view(sql, seed=300 + number, refresh="incremental")
    view.refresh()
    for _ in range(3):
        view.lake.change()
        view.refresh()
        view.assert_equal(same)


def test_a_view_with_it_is_compared_with_its_query(new_view: Callable[..., ViewBench]) -> None:
    view = new_view("select a, count(*) c from t group by a qualify rank() over (order by count(*), a) = 1")
    view.refresh()
    assert view.verify().equal


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select a, sum(n) s from t group by a qualify rank() over (order by s) = 1", "LATERAL_COLUMN_ALIAS"),
        ("select a from t qualify nobody > 1", "nobody"),
    ],
)
def test_a_fault_in_it_names_the_rewritten_query(new_view: Callable[..., ViewBench], sql: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        new_view(sql)
    assert words in refused.value.message
    assert "rewritten without QUALIFY: 'SELECT * EXCEPT (" in refused.value.message
