"""Aggregates without GROUP BY follow from totals in the view's commits, and so does what is made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.query_plan import OperatorUpkeep
from tests.selection import in_full

from .conftest import SCHEMAS, ViewBench

TOTALS = (
    "select count(*) c, count(a) k, sum(n) s, avg(n) m, sum(a) w, avg(a) v, count(a, b) p from t",
    "select max(n) hi, min(a) lo, bool_or(a > 4) o, max(date_add(date'2024-01-01', cast(a as int))) d from t",
    "select count(distinct b) k, sum(distinct a) s, count(distinct n) q, avg(distinct a) v, count(*) c from t",
    "select count(*) filter (where a > 1) c, sum(n) filter (where b = 'p') s, max(a) filter (where n > 0) m from t",
    "select sum(c) s, max(c) hi, count(*) k from (select b, count(*) c from t group by b)",
    "select x.c + y.s z, x.c from (select count(*) c from t) x cross join (select coalesce(sum(y), 0) s from u) y",
    "select sum(t.n * u.y) s, count(*) c from t join u on t.a = u.a",
    "select a, b, n - (select avg(n) from t) e from t",
    "select a, b from t where n >= (select avg(n) from t where a > (select min(a) from u))",
    "select count(*) c, sum(s) s from (select b, sum(n) s from t group by b having sum(n) > (select avg(n) from t))",
    "select a, b, n from t order by n - (select max(y) from u), a, b, d limit 3",
    "select count(*) c from (select a from t union select a from u)",
)
SOME = (2,)


@pytest.mark.parametrize("number", in_full(range(len(TOTALS)), SOME))
def test_totals_follow_changes_of_all_kinds(new_view: Callable[..., ViewBench], number: int) -> None:
    view = new_view(TOTALS[number], seed=400 + number, refresh="incremental", by_spark=True)
    view.refresh()
    view.assert_equal()
    for round_ in range(5):
        view.lake.change()
        if round_ == 3:
            DeltaTable(view.lake.uris["t"]).delete()  # over nothing they give one row
        assert view.refresh().strategy in ("incremental", "unchanged")
        view.assert_equal()
    assert view.verify().equal


def test_they_are_in_the_commit_and_no_row_of_the_table_is_read_again(new_view: Callable[..., ViewBench]) -> None:
    """Whose files are gone: only the new one is there to be read."""
    view = new_view(TOTALS[0], seed=1, refresh="incremental", by_spark=True)
    view.refresh()
    table = DeltaTable(view.lake.uris["t"])
    for path in table.file_uris():
        open(path, "wb").close()
    write_deltalake(table.table_uri, _row(4, "9.99"), mode="append")
    before = view.position().totals.totals
    assert view.refresh().strategy == "incremental"
    (was,), (now,) = before, view.position().totals.totals
    assert [(each.count - old.count, each.sum - old.sum) for old, each in zip(was, now, strict=True)] == [
        (1, 0), (1, 0), (1, 999), (1, 999), (1, 4), (1, 4), (1, 0)
    ]  # fmt: skip


def test_where_totals_are_not_those_of_the_query_it_is_computed_of_all_rows(new_view: Callable[..., ViewBench]) -> None:
    view = new_view(TOTALS[0], seed=2, refresh="incremental", by_spark=True)
    view.refresh()
    _take_totals_out(view)
    view.restart()
    write_deltalake(view.lake.uris["t"], _row(1, "1.00"), mode="append")
    found = view.refresh()
    assert (found.strategy, found.reason) == ("full", "its totals are not kept with the rows")
    view.assert_equal()
    write_deltalake(view.lake.uris["t"], _row(2, "2.00"), mode="append")
    assert view.refresh().strategy == "incremental"
    view.assert_equal()


def test_a_value_that_there_is_not_and_that_the_query_does_without_is_no_fault(
    new_view: Callable[..., ViewBench],
) -> None:
    """Spark divides by nothing where no row is shown; of a change both sides are looked at."""
    sql = "select s / (s - s) r, s from (select sum(n) s from t) where exists (select 1 from u where y > 100)"
    view = new_view(sql, seed=5, refresh="incremental", by_spark=True)
    for number in range(2):
        found = view.refresh()
        assert found.strategy == "full", number
        assert view.position().totals.totals == ()
        view.assert_equal()
        write_deltalake(view.lake.uris["t"], _row(1, "1.10"), mode="append")


@pytest.mark.parametrize(
    ("sql", "kept"),
    [
        (TOTALS[0], True),
        ("select sum(d) s from t", False),  # doubles come out otherwise in another order
        ("select max(b) m from t", False),  # a text may be of any length
        ("select count(distinct a, b) k from t", False),
        ("select sum(cast(n as decimal(38, 10))) s from t", False),
        ("select count(*) c, collect_list(a) l from t", False),
    ],
)
def test_functions_follow_where_their_totals_are_exact(
    new_view: Callable[..., ViewBench], sql: str, kept: bool
) -> None:
    view = new_view(sql, seed=3, by_spark=True)
    explained = view.kind.explain(view.spec, view.catalog)
    aggregate = next(each for each in explained.operators if each.operator.startswith("Aggregate"))
    assert (aggregate.upkeep is OperatorUpkeep.STATE) is kept
    assert bool(aggregate.state) is kept
    assert bool(aggregate.remedy) is not kept


def _row(a: int, n: str) -> pa.Table:
    return pa.Table.from_pylist([{"a": a, "b": "p", "d": 1.0, "n": Decimal(n)}], SCHEMAS["t"])


def _take_totals_out(view: ViewBench) -> None:
    """Of the newest commit, which is then as one that a version before this wrote."""
    log = Path(view.target) / "_delta_log" / f"{DeltaTable(view.target).version():020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    about = next(each["commitInfo"] for each in actions if "commitInfo" in each)
    tag = json.loads(about["userMetadata"])
    assert tag.pop("totals")
    about["userMetadata"] = json.dumps(tag)
    log.write_text("\n".join(map(json.dumps, actions)))
