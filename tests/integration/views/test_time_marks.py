"""A view whose conditions depend on the time: rows come and go by that alone, and together with changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.consumers.view.view_kind import ViewKind
from iscp.model.sql.sql_names import TIME_REFRESH_S
from iscp.model.values.errors import InvalidRequest
from iscp.spark.session import SparkRuntime
from tests.fakes.clock import FakeClock

from .conftest import Lake, ViewBench

START = datetime(2026, 3, 10, 23, 50, tzinfo=UTC)
EVENT = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32())])
RULE = pa.schema([("k", pa.int64()), ("minutes", pa.int64())])


class TimedLake(Lake):
    """`events` at minutes before and after the start, and `rules`, which say for how long events of a key count."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uris = {"events": str(root / "events"), "rules": str(root / "rules")}
        self.happen(*((k % 3, minutes) for k, minutes in enumerate(range(-30, 40, 5))), (None, 3), (1, None), (1, 3))
        rules = pa.table({"k": [0, 1, 2, None], "minutes": [5, 10, None, 7]}, schema=RULE)
        write_deltalake(self.uris["rules"], rules, configuration={"delta.enableChangeDataFeed": "true"})

    def happen(self, *events: tuple[int | None, int | None]) -> None:
        """Each with its key, and its minutes after the start."""
        times = [None if minutes is None else START + timedelta(minutes=minutes) for _, minutes in events]
        days = [None if at is None else at.date() for at in times]
        table = pa.table({"k": [k for k, _ in events], "at": times, "day": days}, schema=EVENT)
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.uris["events"], table, mode="append", configuration=feed)

    def delete(self, condition: str) -> None:
        DeltaTable(self.uris["events"]).delete(condition)


class TimedBench(ViewBench):
    """With a clock that only the test moves."""

    fake: FakeClock

    def assert_equal_now(self) -> None:
        """As Spark answers the query with the time written into it."""
        millis = round(self.fake.now_s() * 1000)
        sql = self.sql.replace("current_date()", f"date(timestamp_millis({millis}))")
        sql = sql.replace("localtimestamp()", f"cast(timestamp_millis({millis}) as timestamp_ntz)")
        self.assert_equal(sql.replace("now()", f"timestamp_millis({millis})"))

    def pass_time(self, minutes: float) -> None:
        self.fake.advance(60 * minutes)


@pytest.fixture
def timed_view(tmp_path: Path, spark_runtime: SparkRuntime) -> Callable[..., TimedBench]:
    def make(sql: str, **options: Any) -> TimedBench:
        clock = FakeClock(START.timestamp())
        bench = TimedBench(TimedLake(tmp_path), spark_runtime, sql, clock=clock, **{"refresh": "incremental"} | options)
        bench.fake = clock
        return bench

    return make


WINDOW = "select k, at from events where at <= now() and at > now() - interval 12 minutes"

QUERIES = (
    WINDOW,
    "select k, at from events where not (at > now())",
    "select k, at from events where k = 7 or at > now() or at is null",
    "select k, at from events where case when at > now() then null else true end",
    "select k, count(*) c, max(at) m from events where at > now() - interval 10 minutes group by k",
    "select k, day from events where day = current_date()",
    "select count(*) c from events where at < localtimestamp()",
    "select e.k, e.at, r.minutes from events e join rules r using (k) where e.at > now() - make_interval(0,0,0,0,0,"
    "r.minutes)",
    "select e.k, e.at from events e left join rules r on e.k = r.k and e.at < now()",
    "select k, at from events e where exists (select 1 from rules r where r.k = e.k and e.at < now() - "
    "make_interval(0,0,0,0,0,r.minutes))",
    "select k, max(at) m from events group by k having max(at) > now() + interval 20 minutes",
    "select k, r from (select k, at, row_number() over (partition by k order by at) r from events where at < now())",
    "select k, at from events where at < now() order by at desc, k limit 2",
    "select distinct k from events where at between now() - interval 5 minutes and now()",
    "with x as (select k, at from events where at > now()) select a.k, b.at from x a join x b using (k)",
    "select minutes, (select max(at) from events e where e.k = r.k and e.at < now()) m from rules r",
)
SOME = (4,)
BY_SPARK = (7, 8, 9)
"""Queries that DuckDB does not follow by the time: intervals of values, and an outer join by the time."""


@pytest.mark.parametrize("by_spark", [False, True])
@pytest.mark.parametrize(
    "number", [n if n in SOME else pytest.param(n, marks=pytest.mark.full) for n in range(len(QUERIES))]
)
def test_rows_come_and_go_by_the_time_alone_and_with_changes(
    timed_view: Callable[..., TimedBench], number: int, by_spark: bool
) -> None:
    view = timed_view(QUERIES[number], by_spark=by_spark)
    assert isinstance(view.lake, TimedLake)
    assert view.refresh().strategy == "full"
    view.assert_equal_now()
    view.pass_time(7)
    strategies = [view.refresh().strategy]
    view.assert_equal_now()
    view.pass_time(11)
    view.lake.happen((0, 9), (1, 17), (2, 30), (1, None))
    view.lake.delete("k = 1 and at is not null")
    strategies.append(view.refresh().strategy)
    view.assert_equal_now()
    assert view.verify().equal
    view.pass_time(90)
    strategies.append(view.refresh().strategy)
    view.assert_equal_now()
    expected = (
        {"incremental", "unchanged"} if by_spark or number in BY_SPARK else {"changes", "difference", "unchanged"}
    )
    assert {*strategies} <= expected
    assert strategies[1] != "unchanged"


@pytest.mark.further  # each time: a view by the date below
def test_a_refresh_in_which_no_row_comes_or_goes_writes_nothing_and_says_when_the_next_is_due(
    timed_view: Callable[..., TimedBench],
) -> None:
    view = timed_view("select k from events where at > now()")
    view.refresh()
    before = DeltaTable(view.target).version()
    view.pass_time(0.5)
    done = view.refresh()
    assert not done.committed
    assert DeltaTable(view.target).version() == before
    assert done.due_at_s == view.fake.now_s() + TIME_REFRESH_S
    assert view.position().as_of_s == START.timestamp()
    assert view.verify().equal, "of the instant of its rows"
    view.pass_time(20)
    assert view.refresh().consumed.rows > 0
    view.assert_equal_now()


def test_a_view_by_the_date_is_due_when_the_day_changes_in_utc(timed_view: Callable[..., TimedBench]) -> None:
    view = timed_view("select day, count(*) c from events where day <= current_date() group by day")
    midnight_s = (START + timedelta(minutes=10)).timestamp()
    assert view.refresh().due_at_s == midnight_s
    view.pass_time(10)
    done = view.refresh()
    assert done.strategy == "changes", "without Spark"
    assert done.due_at_s == midnight_s + 86_400
    view.assert_equal_now()
    view.restart()  # what is due is known from the query that is stored beside the target
    assert isinstance(view.lake, TimedLake)
    view.lake.happen((1, 15), (2, 3))
    view.pass_time(3)
    done = view.refresh()
    assert (done.strategy, done.due_at_s) == ("changes", midnight_s + 86_400)
    view.assert_equal_now()


def test_a_crash_after_the_commit_leaves_the_instant_with_the_rows(timed_view: Callable[..., TimedBench]) -> None:
    view = timed_view(WINDOW)
    view.refresh()
    view.pass_time(6)
    view.refresh()
    view.restart()
    assert view.position().as_of_s == view.fake.now_s()
    view.pass_time(6)
    view.refresh()
    view.assert_equal_now()


def test_a_total_and_a_limit_by_the_time_are_computed_of_all_rows_and_written_if_they_differ(
    timed_view: Callable[..., TimedBench],
) -> None:
    view = timed_view("select k, at from events where at < now() order by at desc, k limit 2")
    view.refresh()
    view.pass_time(0.5)
    view.refresh()
    before = DeltaTable(view.target).version()
    view.pass_time(0.5)
    assert view.refresh().strategy == "unchanged"
    assert DeltaTable(view.target).version() == before
    for _ in range(2):
        view.pass_time(6)
        done = view.refresh()
        assert (done.strategy, done.consumed.rows > 0) == ("difference", True)
        view.assert_equal_now()
        view.restart()


@pytest.mark.further  # each time: vacuumed tables in test_view_consumer_events.py
def test_old_rows_that_cannot_be_read_any_more_lead_to_a_recomputation(timed_view: Callable[..., TimedBench]) -> None:
    view = timed_view(WINDOW, by_spark=True)  # without Spark all rows of small tables are computed then
    assert isinstance(view.lake, TimedLake)
    view.refresh()
    view.lake.delete("k = 1")
    table = DeltaTable(view.lake.uris["events"])
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    view.pass_time(6)
    done = view.refresh()
    assert (done.strategy, bool(done.warning)) == ("full", True)
    view.assert_equal_now()


@pytest.mark.further  # each time: a kept input in test_view_consumer_refreshes.py
def test_a_limit_above_a_window_of_time_is_computed_from_a_kept_input_of_the_same_instant(
    timed_view: Callable[..., TimedBench],
) -> None:
    view = timed_view(
        "select k, c from (select k, count(*) c from events where at < now() group by k) order by 2, 1 limit 1",
        by_spark=True,  # without Spark all rows are computed
    )
    view.refresh()
    for _ in range(2):
        view.pass_time(6)
        assert view.refresh().strategy in ("incremental", "unchanged")
        view.assert_equal_now()
    shutil.rmtree(f"{view.target}_view_state_2")
    view.restart()
    view.pass_time(6)
    view.refresh()
    view.assert_equal_now()


@pytest.mark.further  # each time: rows that come and go above, and tests/e2e/test_views.py
def test_a_view_on_a_view_that_depends_on_the_time_follows_it(
    timed_view: Callable[..., TimedBench], spark_runtime: SparkRuntime
) -> None:
    below = timed_view(WINDOW)
    below.refresh()
    lake = TimedLake.__new__(TimedLake)
    lake.root, lake.uris = below.lake.root / "above", {"recent": below.target}
    lake.root.mkdir()
    above = TimedBench(lake, spark_runtime, "select k, count(*) c from recent group by k", clock=below.fake)
    above.fake = below.fake
    above.refresh()
    below.pass_time(6)
    below.refresh()
    assert above.refresh().strategy != "unchanged"
    above.assert_equal_now()


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select now() n, k from events", "now() elsewhere"),
        ("select k from events group by k, current_date()", "current_date() elsewhere"),
        ("select count(*) filter (where at > now()) c, k from events group by k", "now() elsewhere"),
        ("select k from events where at > 'now'", "'now'"),
        ("select k from events where day > date'today'", "date'today'"),
        ("select k from events where day > date /* that */ 'today'", "date'today'"),
        ("select k from events where at > to_timestamp('no' || 'w')", "concat('no', 'w')"),
        ("select k from events e where exists (select 1 from events where at > 'now' and k = e.k)", "'now'"),
        ("with w as (select max(at) m from events where day < 'today') select m from w", "CAST('today' AS DATE)"),
        ("select k from events where current_user() = 'a'", "other rows each time"),
        ("select k from events where rand() > 0.5", "other rows each time"),
    ],
)
def test_the_time_elsewhere_than_in_a_condition_is_refused(
    timed_view: Callable[..., TimedBench], sql: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        timed_view(sql)
    assert words in refused.value.message
    assert refused.value.field.endswith("sql")
    assert refused.value.remedy


def test_the_explanation_says_what_depends_on_the_time_and_how_often(timed_view: Callable[..., TimedBench]) -> None:
    view = timed_view(WINDOW)
    catalog = view.catalog
    (by_time,) = [
        each for each in ViewKind().explain(view.spec, catalog).operators if "depends on the time" in each.reason
    ]
    assert "current_timestamp()" in by_time.operator
    assert "every 60 s" in by_time.reason


@pytest.mark.further  # each time: a view by the date above
def test_days_are_those_of_utc_whatever_zone_a_node_has(timed_view: Callable[..., TimedBench]) -> None:
    view = timed_view("select k, at from events where date(at) = current_date()")
    sessions = view.engine
    with sessions.session() as session:
        session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    view.refresh()
    view.assert_equal_now()
    with sessions.session() as session:
        assert session.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo", "which is given back"
