"""QUALIFY becomes a filter above its SELECT, and all other text stays as it is."""

from __future__ import annotations

import pytest

from iscp.model.values.errors import InvalidRequest
from iscp.views.analysis.qualify import QUALIFIES_MAX, without_qualify


def plain(sql: str) -> str:
    return " ".join(without_qualify(sql).split())


def above(inner: str) -> str:
    return f"SELECT * EXCEPT (_iscp_qualify) FROM ({inner} ) WHERE _iscp_qualify"


@pytest.mark.parametrize(
    "sql",
    [
        "select a from t",
        "select 'qualify' from t -- qualify\n",
        "select `qualify` from t where qualify.a = 1",
        "select qualify from t qualify where qualify > 1",
        "select a as qualify, b from t",
        "select a from t join qualify on qualify.a = t.a",
        "select 'a from t qualify b",
    ],
)
def test_a_query_without_it_stays_to_the_letter(sql: str) -> None:
    assert without_qualify(sql) == sql


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select a from t qualify b", above("select a , (b ) AS _iscp_qualify from t")),
        (
            "select *, rank() over (order by a) r from t where a > 1 QUALIFY r = 1 order by a limit 3",
            above("select *, rank() over (order by a) r , (r = 1 ) AS _iscp_qualify from t where a > 1")
            + " order by a limit 3",
        ),
        (
            "select a is distinct from b x from t qualify row_number() over w = 1 window w as (order by a)",
            above(
                "select a is distinct from b x , (row_number() over w = 1 ) AS _iscp_qualify from t "
                "window w as (order by a)"
            ),
        ),
        (
            "with q as (select a from t qualify b = 1) select a from q union all select c from u qualify d",
            f"with q as ({above('select a , (b = 1 ) AS _iscp_qualify from t')}) select a from q union all "
            + above("select c , (d ) AS _iscp_qualify from u"),
        ),
        (
            "select a from t -- from here\nqualify b -- qualify\n order by 1",
            "SELECT * EXCEPT (_iscp_qualify) FROM (select a , (b ) AS _iscp_qualify from t -- from here ) "
            "WHERE _iscp_qualify -- qualify order by 1",
        ),
        (
            "select a from t qualify a in (select x from u qualify y)",
            above(f"select a , (a in ({above('select x , (y ) AS _iscp_qualify from u')}) ) AS _iscp_qualify from t"),
        ),
    ],
)
def test_it_becomes_a_filter_above_its_select(sql: str, expected: str) -> None:
    assert plain(sql) == expected


def test_only_so_many_are_read() -> None:
    """For each of them the whole query is read."""
    with pytest.raises(InvalidRequest, match=f"more than {QUALIFIES_MAX} QUALIFYs"):
        without_qualify("select a from t " + "qualify f(a) > 1 " * 4_000)


@pytest.mark.parametrize("sql", ["select a qualify f(a)", "qualify f(a)", "select (b qualify f(a)) from t"])
def test_one_that_belongs_to_no_select_is_refused(sql: str) -> None:
    if sql.startswith("qualify"):
        assert without_qualify(sql) == sql, "that is no query, and Spark says so"
        return
    with pytest.raises(InvalidRequest, match="belongs to no SELECT"):
        without_qualify(sql)
