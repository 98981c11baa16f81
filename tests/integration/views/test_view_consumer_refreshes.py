"""A view follows random changes of its tables, and equals Spark's own answer to its query after each refresh."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import cycle
from time import monotonic
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.algebra.duck_engine import READ_LIMITS
from iscp.consumers.view.view_kind import ViewKind
from iscp.delta.log.table_opening import add_actions_of

from .conftest import SCHEMAS, ViewBench, bag

QUERIES = (
    "select a, b, d from t where n > 1",
    "select b, count(*) c, sum(n) s, avg(d) m from t group by b",
    "select * from t join u using (a)",
    "select t.a, u.x from t left join u on t.a = u.a",
    "select t.a, u.x from t right join u on t.a = u.a and t.b = u.x",
    "select t.a, u.x, y from t full outer join u on t.a = u.a",
    "select a, b from t where exists (select 1 from u where u.a = t.a and u.y > 0)",
    "select a, b from t where a in (select a from u)",
    "select a, b from t where a not in (select a from u where a is not null)",
    "select a, b from t where a not in (select a from u)",
    "select distinct b from t",
    "select a from t union all select a from u",
    "select a from t union select y from u",
    "select a from t intersect select a from u",
    "select a from t intersect all select a from u",
    "select a from t except select a from u",
    "select a from t except all select a from u",
    "select b, count(distinct a) k, min(d) lo, max(n) hi from t group by b",
    "select a, b, row_number() over (partition by b order by a, d, n) r from t",
    "select a, b, sum(n) over (partition by a) s from t",
    "select a, (select max(y) from u where u.a = t.a) m from t",
    "select a, d from t where n > (select avg(y) from u)",
    "select count(*) c, sum(n) s from t",
    "select b, a, count(*) c from t group by rollup(b, a)",
    "select b, x, count(*) c from t cross join u group by cube(b, x)",
    "select a, b, d, n from t order by a, b, d, n limit 3",
    "with g as (select b, count(*) c from t group by b) select g1.b, g2.b b2, g1.c from g g1 join g g2 on g1.c = g2.c",
    "select c, count(*) k from (select b, count(*) c from t group by b) group by c",
    "select a, e from t lateral view explode(array(a, n)) z as e",
    "select t1.a, t2.b from t t1 join t t2 on t1.a = t2.a and t1.n < t2.n",
    "select b, sum(n) s from t group by b having count(*) > 1",
    "select t.b, u.x, sum(t.n * u.y) s from t join u on t.a = u.a group by t.b, u.x",
    "select a, rank() over (order by n) r from t",
    "select x, s from (select x, sum(y) s from u group by x) where s > (select avg(y) from u)",
    "select a, b, case when exists (select 1 from u where u.a = t.a) then 'y' else 'n' end f from t",
    "select t.a, u.y from t, u where t.a > u.y",
    "select b, stddev(n) s, bool_or(a > 2) o, count_if(d > 1) c from t group by b",
    "select grouping(b) g, b, max(a) m from t group by grouping sets ((b), ())",
    "select a from t where d = (select max(d) from t where d < 3)",
    "select t.b, v.m from t join (select x, max(y) m from u group by x) v on t.b <=> v.x",
    "select t.a, t.b, u.x from t left join u on t.a < u.y",
    "select t.b, u.a, u.x from t right join u on t.a <= u.y or t.b = u.x",
    "select a, b from t where not exists (select 1 from u where u.y > t.a or u.x > t.b)",
    "select a, b from t where exists (select 1 from u where u.y > t.a)",
    "select t.a, u.x from t full join u on t.a < u.y",
)

REFRESHES = 3

SOME = (9, 40)
"""Queries that stand for the others: NOT IN, and an outer join without an equality; one with it and groups are below,
and others in test_tpc_views.py."""


def numbers(of: Sequence[str], some: Collection[int]) -> list[Any]:
    return [number if number in some else pytest.param(number, marks=pytest.mark.full) for number in range(len(of))]


@pytest.mark.parametrize("number", numbers(QUERIES, SOME))
def test_a_view_equals_its_query_after_each_refresh(new_view: Callable[..., ViewBench], number: int) -> None:
    """By Spark's changes and by DuckDB's, by turns."""
    view = new_view(QUERIES[number], seed=number, refresh="incremental")
    assert view.refresh().strategy == "full"
    view.assert_equal()
    kinds = cycle((ViewKind(), ViewKind(None)))
    for _ in range(2 * REFRESHES):
        view.kind = next(kinds)
        view.lake.change()
        view.refresh()
        view.assert_equal()


@pytest.mark.parametrize("number", numbers(QUERIES, (3,)))
def test_a_target_without_deletion_vectors_follows_by_spark(new_view: Callable[..., ViewBench], number: int) -> None:
    view = new_view(QUERIES[number], seed=300 + number, refresh="incremental", deletion_vectors=False)
    view.refresh()
    for _ in range(REFRESHES):
        view.lake.change()
        view.refresh()
        view.assert_equal()
    assert DeltaTable(view.target).protocol().reader_features is None


KEPT = (
    "select b x, c from (select b, count(*) c from t group by b) order by c + 1 desc, b limit 2 offset 1",
    "select b, count(*) c from t group by b order by c desc, b limit 2",
    "select b, c, rank() over (order by c, b) r from (select b, count(*) c from t group by b)",
    "select count(*) k, max(b) m from (select b, count(distinct a) c from t join u using (a) group by b)",
    "select x, s from (select x, sum(y) s from u group by x) where s > (select avg(a) from t)",
)


@pytest.mark.parametrize("number", numbers(KEPT, (4,)))
def test_what_is_recomputed_as_a_whole_is_computed_from_an_input_that_is_kept(
    new_view: Callable[..., ViewBench], number: int
) -> None:
    view = new_view(KEPT[number], seed=200 + number, refresh="incremental", by_spark=True)
    view.refresh()
    assert view.follow(4) <= {"incremental", "unchanged"}


@pytest.mark.further  # each time: inputs that are kept, above
def test_rows_that_are_only_counted_have_no_input_that_could_be_kept(new_view: Callable[..., ViewBench]) -> None:
    sql = "select array_size(collect_list(1)) c from (select a from t union select a from u)"
    view = new_view(sql, seed=5, refresh="incremental")
    view.refresh()
    for _ in range(REFRESHES):
        view.lake.change()
        view.refresh()
        view.assert_equal()


GROUPS = (
    "select a, count(*) c, count(d) k from t group by a",
    "select count(*) c, b, sum(n) s, avg(n) m, a from t group by a, b",
    "select x, sum(y) s, avg(y) m, count(y) k from u group by x",
    "select x as name, avg(a) m, count(1) k from u group by 1",
)


@pytest.mark.parametrize("number", numbers(GROUPS, (1,)))
def test_a_view_of_groups_follows_by_what_changed_rows_add(new_view: Callable[..., ViewBench], number: int) -> None:
    view = new_view(GROUPS[number], seed=100 + number)
    view.refresh()
    assert "groups" in view.follow(5)


@pytest.mark.further  # each time: groups above, and test_view_groups.py
def test_groups_of_texts_without_a_null_follow_again_and_again(new_view: Callable[..., ViewBench]) -> None:
    """What was merged once is read at the next refresh, by statistics without nulls."""
    view = new_view("select x, count(*) c from u group by x", seed=3)
    table = view.lake.uris["u"]
    DeltaTable(table).delete("x is null")
    view.refresh()
    for text in ("p", "new", "z", "new"):
        write_deltalake(table, pa.table({"a": [1], "x": [text], "y": [2]}), mode="append")
        assert view.refresh().strategy == "groups"
        view.assert_equal()


@pytest.mark.parametrize(
    ("sql", "strategy", "parts"),
    [
        # The queries of these two are stored at the build.
        ("select a, count(*) c from t group by a", "groups", {"spans", "changes", "state", "rows"}),
        ("select t.a, u.x from t join u on t.a = u.a", "changes", {"spans", "changes", "rows"}),
        ("select t.d, u.x from t join u on t.a = u.a", "incremental", {"spans", "plan", "changes", "rows"}),
        (KEPT[1], "incremental", {"spans", "plan", "changes", "state", "rows"}),
    ],
)
def test_a_refresh_says_what_it_read_and_how_long_its_parts_took(
    new_view: Callable[..., ViewBench], sql: str, strategy: str, parts: set[str]
) -> None:
    view = new_view(sql, seed=5, refresh="incremental", by_spark=strategy == "incremental")
    first = view.refresh()
    tables = view.spec.options["tables"].values()
    assert first.rows_in == sum(DeltaTable(uri).to_pyarrow_table().num_rows for uri in tables)
    assert {"plan", "rows"} <= set(first.parts_s)
    met = next(each for each in DeltaTable(view.lake.uris["u"]).to_pyarrow_table()["a"].to_pylist() if each is not None)
    rows = [{"a": met, "b": text, "d": 1.5, "n": None} for text in ("p", "new")]
    write_deltalake(view.lake.uris["t"], pa.Table.from_pylist(rows, SCHEMAS["t"]), mode="append")
    second = view.refresh()
    assert (second.strategy, second.rows_in, set(second.parts_s)) == (strategy, 2, parts), second.reason
    assert all(took_s >= 0 for took_s in second.parts_s.values())


UNCOMPARED = "select a, map(b, n) m from t where b is not null"


@pytest.mark.full
def test_a_column_that_spark_cannot_compare_is_added_to_and_recomputed_where_rows_go(
    new_view: Callable[..., ViewBench],
) -> None:
    view = new_view(UNCOMPARED, seed=7, refresh="incremental")
    view.refresh()
    strategies = set()
    for _ in range(6):
        view.lake.change()
        strategies.add(view.refresh().strategy)
        session = view.runtime.new_session()
        session.read.format("delta").load(view.lake.uris["t"]).createOrReplaceTempView("t")
        wanted = session.sql(f"select a, to_json(m) j from ({UNCOMPARED})").toArrow()
        held = session.read.format("delta").load(view.target).selectExpr("a", "to_json(m) j").toArrow()
        assert bag(held) == bag(wanted)
    assert {"incremental", "full"} <= strategies


@pytest.mark.slow
def test_a_view_is_compared_with_its_query_at_its_own_versions_and_repaired(
    new_view: Callable[..., ViewBench],
) -> None:
    view = new_view("select b, sum(d) s, count(*) c from t group by b", seed=11)
    view.refresh()
    assert view.verify().equal
    view.lake.change()  # which the view has not seen yet
    assert view.verify().equal
    write_deltalake(view.target, pa.table(DeltaTable(view.target).scan()).slice(0, 1), mode="append")
    found = view.verify()
    assert (found.missing, found.extra) == (0, 1)
    assert view.refresh().strategy == "full"
    assert view.verify().equal
    view.assert_equal()


@pytest.mark.parametrize(
    "sql", ["select a, count(*) c from t group by a", "select t.d, u.x from t join u on t.a = u.a"]
)
def test_an_iteration_says_what_its_refresh_has_cost(new_view: Callable[..., ViewBench], sql: str) -> None:
    view = new_view(sql, seed=5, refresh="incremental", by_spark="group" not in sql)
    for strategy in ("full", "groups" if "group" in sql else "incremental"):
        began_s = monotonic()
        outcome = view.run()
        took_s, usage = monotonic() - began_s, outcome.usage
        assert (outcome.error_msg, outcome.strategy) == ("", strategy)
        assert outcome.strategy_reason
        assert usage is not None
        assert 0.0 < usage.work_s <= took_s
        assert min(usage.read_s, usage.compute_s, usage.commit_s) > 0.0
        assert (usage.rows_read, usage.rows_written) == (outcome.rows_in, outcome.rows)
        assert usage.bytes_read > 0
        # A build stores the groups behind its commit, whose bytes are the outcome's.
        stored = strategy == "full" and "group" in sql
        beside = (
            add_actions_of(DeltaTable(f"{view.target}_view_state_2")).column("size_bytes").to_pylist() if stored else []
        )
        assert usage.bytes_written - sum(beside) == outcome.bytes > 0
        rows = [{"a": 1, "b": "new", "d": 1.5, "n": None}]
        write_deltalake(view.lake.uris["t"], pa.Table.from_pylist(rows, SCHEMAS["t"]), mode="append")


def test_those_who_follow_a_view_that_is_recomputed_read_what_is_another_row_now(
    new_view: Callable[..., ViewBench],
) -> None:
    """All else stays where it is, so a view of the view has few changes to follow."""
    view = new_view("select a, b, count(*) over () c from t", seed=5, refresh="full")
    view.refresh()
    rows = [{"a": each, "b": "same", "d": 0.0, "n": None} for each in range(40)]
    write_deltalake(view.lake.uris["t"], pa.Table.from_pylist(rows, SCHEMAS["t"]), mode="overwrite")
    view.refresh()
    DeltaTable(view.lake.uris["t"]).update(updates={"b": "'other'"}, predicate="a = 7")
    done = view.refresh()
    assert (done.strategy, done.consumed.rows) == ("full", 2)
    feed = pa.table(DeltaTable(view.target).load_cdf(starting_version=DeltaTable(view.target).version()))
    assert sorted((each["_change_type"], each["b"]) for each in feed.to_pylist()) == [
        ("delete", "same"),
        ("insert", "other"),
    ]
    view.assert_equal()


LARGE = """
    select a, if(id = 0, b, sha2(concat(id, 'x'), 256)) b, if(id > 2, null, -0.0D) z, if(id > 2, double('nan'), d) d
    from t cross join range(110000) where a is not null"""
"""A result of some 7 MB, with rows that are there twice."""


@pytest.mark.slow
def test_of_a_large_view_that_is_recomputed_only_those_rows_are_written_that_differ(
    new_view: Callable[..., ViewBench],
) -> None:
    """Where too many differ, all are written, and the next time nobody looks."""
    view = new_view(LARGE, seed=5, refresh="full")
    rows = [{"a": 1, "b": "same", "d": 0.0, "n": None}] * 2
    write_deltalake(view.lake.uris["t"], pa.Table.from_pylist(rows, SCHEMAS["t"]), mode="overwrite")
    view.refresh()
    assert sum(add_actions_of(DeltaTable(view.target)).column("size_bytes").to_pylist()) > READ_LIMITS.difference

    def refreshed(column: str, value: str) -> int:
        """Refresh the view after an update, and return how many rows of distinct values were written."""
        DeltaTable(view.lake.uris["t"]).update(updates={column: value})
        done = view.refresh()
        assert done.strategy == "full"
        return done.consumed.rows

    assert refreshed("b", "'other'") == 2
    assert refreshed("d", "-0.0") == 0  # Spark takes both zeros for one value
    view.assert_equal()
    assert refreshed("a", "2") == 220_000
    assert refreshed("b", "'third'") == 220_000
    assert refreshed("b", "'fourth'") == 2
    view.assert_equal()
