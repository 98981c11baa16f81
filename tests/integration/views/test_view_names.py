"""Tables whose names in a query have several parts, as in a catalog: views over them are as those over plain names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from iscp.model.values.errors import InvalidRequest
from iscp.spark.session import SparkRuntime
from iscp.spark.spark_frames import restrict_query
from iscp.views.analysis.query_analysis import query_shaper
from tests.selection import in_full

from .conftest import ViewBench

pytestmark = pytest.mark.spark

CALLED = {"lake.sales.t": "t", "lake.u": "u"}
NAMED = (
    # groups, by a name in other letters and in backticks
    (
        "select b, count(*) c, sum(a) s from Lake.`sales`.T group by b",
        "select b, count(*) c, sum(a) s from t group by b",
        {"lake.sales.t": "t"},
    ),
    # a join, whose columns have the last part, some parts, all parts and an alias before them
    (
        "select t.a, sales.t.b, `lake`.`sales`.`t`.d, v.y from lake.sales.t join `lake`.`u` as v on v.a = t.a",
        "select t.a, t.b, t.d, v.y from t join u as v on v.a = t.a",
        CALLED,
    ),
    # queries of WITH, also within each other and one that is called as a table's last part, and subqueries
    (
        "with u as (with w as (select * from lake.u) select a, y from w where y is not null) select t.a, u.y,"
        " (select max(lake.u.y) from lake.u) m from lake.sales.t, u where t.a = u.a"
        " and exists (select 1 from lake.sales.t x where x.a = u.a and x.b in (select x from lake.u))",
        "with v as (select a, y from u where y is not null) select t.a, v.y, (select max(u.y) from u) m"
        " from t, v where t.a = v.a and exists (select 1 from t x where x.a = v.a and x.b in (select x from u))",
        CALLED,
    ),
    # the same last part twice, in names with hyphens; QUALIFY
    (
        "select `my-lake`.t.a, `my-lake`.t.b, `other-one`.t.y from `my-lake`.t left join `other-one`.t"
        " on `my-lake`.t.a = `other-one`.t.a qualify count(*) over (partition by `my-lake`.t.a) > 1",
        "select a, b, y from (select t.a, b, y, count(*) over (partition by t.a) n from t left join u on t.a = u.a)"
        " where n > 1",
        {"my-lake.t": "t", "other-one.t": "u"},
    ),
)


@pytest.mark.parametrize("number", in_full(range(len(NAMED)), but=[0, 1, 2]))
@pytest.mark.slow(but=1)
def test_a_view_over_such_tables_follows_them(new_view: Callable[..., ViewBench], number: int) -> None:
    sql, same, called = NAMED[number]
    view = new_view(sql, seed=700 + number, called=called)
    view.refresh()
    for _ in range(2):
        view.lake.change()
        view.refresh()
        view.assert_equal(same)
    view.restart()
    view.lake.change()
    view.refresh()
    view.assert_equal(same)
    assert view.verify().equal
    assert view.row.spec.consumer.options["tables"].keys() == called.keys()


def test_its_explanation_has_the_names_of_the_query(new_view: Callable[..., ViewBench]) -> None:
    view = new_view(NAMED[1][0], called=CALLED)
    explained = view.kind.explain(view.spec, view.catalog)
    assert explained.tables == {name: view.lake.uris[table] for name, table in CALLED.items()}
    assert {each.operator for each in explained.operators if "." in each.operator} == set(CALLED)


REFUSED: Mapping[str, str] = {
    "select * from lake.sales.u": "reads lake.sales.u, which is none of its tables",
    "select * from u": "reads u, which is none of its tables",
    "select * from t": "reads t, which is none of its tables",
    "select * from lake.u window w as (partition by (select max(a) from sales.t))": "reads sales.t,",
    "with `lake.u` as (select 1 a) select * from lake.u": "calls a query of its WITH `lake.u`, as one of its tables",
    'select * from "lake"."u"': "[PARSE_SYNTAX_ERROR]",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_none_of_them_is_refused_by_name(spark_runtime: SparkRuntime, sql: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        query_shaper(spark_runtime.root)(sql, {"lake.sales.t": SCHEMA_JSON, "lake.u": SCHEMA_JSON})
    assert refused.value.message.startswith(REFUSED[sql])
    assert refused.value.field == "sql"
    assert "as in `lake`.`orders`" in refused.value.remedy or '"' not in sql


SCHEMA_JSON = (
    '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}},'
    '{"name":"y","type":"long","nullable":true,"metadata":{}}]}'
)


@pytest.mark.parametrize(
    "sql",
    [
        "select * from lake.u |> where a in (select a from lake.u)",
        "select * from explode((select collect_list(a) from lake.u))",
    ],
)
def test_wherever_such_a_name_stands_it_is_the_given_table(spark_runtime: SparkRuntime, sql: str) -> None:
    parsed, named = restrict_query(spark_runtime.root, sql, ["lake.u"])
    assert named == {"lake.u"}
    assert "[lake, u]" not in str(parsed.toString())


@pytest.mark.parametrize(
    "sql",
    [
        "select * from lake.u window w as (partition by (select max(a) from lake.u))",
        "select * from lake.u |> set y = (select max(a) from lake.u)",
    ],
)
def test_where_such_a_name_is_not_found_it_is_not_left_for_a_catalog(spark_runtime: SparkRuntime, sql: str) -> None:
    with pytest.raises(InvalidRequest, match=r"reads lake\.u in a place where only names of one part are read"):
        restrict_query(spark_runtime.root, sql, ["lake.u"])
