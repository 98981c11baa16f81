"""A plan that was built once is given other rows, and comes out as if it had been built of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from iscp.adapters.delta.spark.cached_frame import cached, release
from iscp.views.catalyst.catalyst import Catalyst
from iscp.views.changes.plan_leaf import At, Leaf
from iscp.views.changes.plan_leaves import PlanLeaves
from iscp.views.changes.plan_templates import TEMPLATES_MAX, PlanTemplates
from iscp.views.changes.signed_rows import TableChange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from iscp.adapters.delta.spark.session import SparkRuntime

pytestmark = pytest.mark.spark

Rows = list[tuple[Any, ...]]

NOW, CHANGED = Leaf("dim", At.NEW), Leaf("fact", None)


class Refreshes:
    """Of one query over a table that changes, and one that is joined with the changed rows."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.catalyst = Catalyst(session)
        self.templates = PlanTemplates()
        self.built = 0

    def frame(self, rows: Rows, schema: str) -> DataFrame:
        return self.session.createDataFrame(rows, schema)

    def run(
        self,
        changed: DataFrame | None,
        dim: DataFrame,
        query: Callable[[DataFrame, DataFrame], DataFrame],
        size: int = 1,
    ) -> list[tuple[Any, ...]]:
        tables = {
            "fact": TableChange(lambda at: dim, lambda: changed, size),
            "dim": TableChange(lambda at: dim, lambda: None, size),
        }
        leaves = PlanLeaves(self.catalyst, tables)

        def build() -> DataFrame:
            self.built += 1
            frames = (self.catalyst.frame(leaves.rows(leaf)) for leaf in (CHANGED, NOW))
            return query(*frames)

        found = self.templates.planned(self.catalyst, "query", leaves, build)
        assert found is not None
        return sorted(map(tuple, found.collect()), key=repr)


@pytest.fixture
def refreshes(spark_runtime: SparkRuntime) -> Refreshes:
    return Refreshes(spark_runtime.new_session())


def joined(changed: DataFrame, dim: DataFrame) -> DataFrame:
    return changed.join(dim, "g", "left").groupBy(F.upper("name")).agg(F.sum("x"))


def joined_twice(changed: DataFrame, dim: DataFrame) -> DataFrame:
    return changed.join(dim, "g").select("name", "x").unionAll(joined(changed, dim))


FACT, DIM = "g int, x bigint", "g int, name string"


@pytest.mark.parametrize("query", [joined, joined_twice])
@pytest.mark.slow(but=1)
def test_later_rows_come_into_a_plan_that_is_there(
    refreshes: Refreshes, query: Callable[[DataFrame, DataFrame], DataFrame]
) -> None:
    """Spark itself gives other ids to rows that stand in a plan twice."""
    dims = [refreshes.frame([(1, "a"), (2, "b")], DIM)] * 2 + [refreshes.frame([(3, "c")], DIM)] * 2
    changes: list[Rows] = [[(1, 5), (2, -7)], [(2, 1), (3, 2)], [(2, 1), (3, 2)], []]
    for dim, rows in zip(dims, changes, strict=True):
        changed = refreshes.frame(rows, FACT)
        assert refreshes.run(changed, dim, query) == sorted(map(tuple, query(changed, dim).collect()), key=repr)
    assert refreshes.built == 1


def test_columns_that_may_be_null_are_others(refreshes: Refreshes) -> None:
    """What is above rows none of which may be null is made simpler by that: of others it is built again."""
    dim = refreshes.session.range(1, 3).selectExpr("cast(id AS int) AS g", "cast(id AS string) AS name")
    held = refreshes.session.range(1, 3).selectExpr("cast(id AS int) AS g", "id AS x")
    query = lambda changed, dim: changed.join(dim, "g", "left").selectExpr("name IS NULL", "x IS NULL")  # noqa: E731
    assert refreshes.run(held, dim, query) == [(False, False)] * 2
    assert refreshes.run(refreshes.frame([(1, None), (None, 3)], FACT), dim, query) == [(False, True), (True, False)]
    assert refreshes.built == 2


def test_rows_of_one_refresh_alone_are_in_no_template(refreshes: Refreshes) -> None:
    dim = refreshes.frame([(1, "a")], DIM)
    for number in (1, 2):
        counted = cached(refreshes.frame([(1, number)], FACT))
        strayed = lambda changed, dim: changed.join(counted.select("g"), "g", "semi").select("x")  # noqa: B023, E731
        assert refreshes.run(refreshes.frame([(number, number)], FACT), dim, strayed) == ([(1,)] if number == 1 else [])
        release(counted)
    assert refreshes.built == 2
    for number in (1, 2):
        most = lambda changed, dim: changed.where(F.col("x") <= F.lit(number).cast("long")).select("x")  # noqa: B023, E731
        refreshes.run(refreshes.frame([(1, number)], FACT), dim, most)
    assert refreshes.built == 3, "a value that is of one refresh: who builds such plans asks for no template"


def test_a_value_of_a_subquery_is_in_no_template(refreshes: Refreshes) -> None:
    for number in (1, 2):
        refreshes.frame([(number, "a")], DIM).createOrReplaceTempView("held")
        below = lambda changed, dim: changed.where("x <= (SELECT max(g) FROM held)").select("x")  # noqa: E731
        assert refreshes.run(refreshes.frame([(1, 2)], FACT), refreshes.frame([], DIM), below) == [(2,)] * (number - 1)
    assert refreshes.built == 2


@pytest.mark.slow
def test_it_is_built_again_for_other_tables_and_columns(refreshes: Refreshes) -> None:
    dim, query = refreshes.frame([(1, "a")], DIM), lambda changed, dim: changed.join(dim, "g").drop("g", "name")
    for size in (1, 5, 1, 4):
        refreshes.run(refreshes.frame([(1, 5)], FACT), dim, query, size)
    assert refreshes.built == 2, "of tables of another magnitude"
    wider = refreshes.frame([(1, 5, 6)], f"{FACT}, y int")
    assert refreshes.run(wider, dim, query) == [(5, 6)]
    assert refreshes.built == 3
    for size in (2**power for power in range(1, TEMPLATES_MAX + 1)):
        refreshes.run(wider, dim, query, size)
    refreshes.run(wider, dim, query)
    assert refreshes.built == 4 + TEMPLATES_MAX, "the longest unused one was dropped"


def test_what_is_above_kept_rows_is_built_once(refreshes: Refreshes) -> None:
    built = []
    for rows in ([(1, 5), (2, 9)], [(3, 4)]):
        leaves = PlanLeaves(refreshes.catalyst)
        leaves.give(Leaf("", None), refreshes.catalyst.plan_of(refreshes.frame(rows, FACT)))

        def build(leaves: PlanLeaves = leaves) -> DataFrame:
            built.append(leaves)
            return refreshes.catalyst.frame(leaves.rows(Leaf("", None))).orderBy(F.desc("x")).limit(1)

        frame = refreshes.templates.planned(refreshes.catalyst, "top", leaves, build)
        assert frame is not None
        (row,) = frame.collect()
        assert tuple(row) == max(rows)
    assert len(built) == 1


def test_a_value_of_a_subquery_over_a_table_follows_it(refreshes: Refreshes) -> None:
    def below(changed: DataFrame, dim: DataFrame) -> DataFrame:
        dim.createOrReplaceTempView("held")
        return changed.where("x <= (SELECT max(g) FROM held) OR x = (SELECT 7L)").select("x")

    for most in (2, 2, 5, 1):
        rows: Rows = [(1, each) for each in range(1, 8)]
        found = refreshes.run(refreshes.frame(rows, FACT), refreshes.frame([(most, "a"), (1, "b")], DIM), below)
        assert found == [*((each,) for each in range(1, most + 1)), (7,)]
    assert refreshes.built == 1


class SteppedRefreshes(Refreshes):
    """Whose plan is made of the positive ones among the changed rows, which are computed first."""

    def run_steps(self, rows: Rows, dim: Rows, collected_max: int, *, joined: bool = True) -> Rows | None:
        changed, now = self.frame(rows, FACT), self.frame(dim, DIM)
        tables = {
            "fact": TableChange(lambda at: now, lambda: changed),
            "dim": TableChange(lambda at: now, lambda: None),
        }
        leaves, step = PlanLeaves(self.catalyst, tables), Leaf("fact", None, "positive")

        def build() -> DataFrame | None:
            self.built += 1
            first = self.catalyst.frame(leaves.rows(CHANGED)).where("x > 0")
            positive = leaves.compute_once(step, lambda: first, collected_max)
            if positive is None or not joined:
                return None if positive is None else positive.frame
            return positive.frame.join(self.catalyst.frame(leaves.rows(NOW)), "g").select("name", "x")

        frame = self.templates.planned(self.catalyst, joined, leaves, build)
        assert frame is None or joined or leaves.computed_as(frame) == step, "it is known how many there are"
        found = None if frame is None else sorted(map(tuple, frame.collect()))
        leaves.close()
        return found


@pytest.mark.parametrize("collected_max", [0, 1, 100])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.slow(but=2)
def test_what_is_computed_on_the_way_is_computed_again(
    spark_runtime: SparkRuntime, collected_max: int, joined: bool
) -> None:
    """Held here or kept by Spark; it is another plan once there are rows where there were none, or none any more."""
    refreshes, built = SteppedRefreshes(spark_runtime.new_session()), list[int]()
    for rows in ([(1, 5), (2, 6), (2, -1)], [(1, 7), (2, 1)], [(1, -7)], [(1, -8)], [(2, 3), (1, 2)], [(1, 9), (2, 8)]):
        names = {1: f"a{len(built)}", 2: "b"}
        dim: Rows = [*names.items()]
        there = sorted((names[g] if joined else g, x) for g, x in rows if x > 0)
        assert refreshes.run_steps(rows, dim, collected_max, joined=joined) == (there or None)
        built.append(refreshes.built)
    assert built == [1, 1, 2, 2, 3, 3]


@pytest.mark.slow
def test_the_time_of_building_counts_as_taken_once_only_where_the_plan_is_kept_from_then_on(
    refreshes: Refreshes,
) -> None:
    timer, now_s = refreshes.templates.timer, [0.0]
    timer.now_s = lambda: now_s[0]
    dim = refreshes.frame([(1, "a")], DIM)

    def slowly(changed: DataFrame, there: DataFrame) -> DataFrame:
        now_s[0] += 1
        return joined(changed, there)

    def with_rows_of_one_refresh(changed: DataFrame, there: DataFrame) -> DataFrame:
        return slowly(changed, there).unionAll(refreshes.frame([("b", 1)], "n string, x bigint"))

    for _ in range(2):
        refreshes.run(refreshes.frame([(1, 5)], FACT), dim, slowly)
    assert (refreshes.built, timer.spent_s) == (1, 1)
    other_types = refreshes.frame([(1, 5)], "g int, x int")
    refreshes.run(other_types, dim, slowly)
    assert (refreshes.built, timer.spent_s) == (2, 1), "of changes of these tables it was built before"
    for size in (4, 16):
        refreshes.run(refreshes.frame([(1, 5)], FACT), dim, with_rows_of_one_refresh, size)
    assert (refreshes.built, timer.spent_s) == (4, 1), "it is built each time"
    refreshes.run(refreshes.frame([(1, 5)], FACT), dim, slowly, 64)
    assert (refreshes.built, timer.spent_s) == (5, 2)
