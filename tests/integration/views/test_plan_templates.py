"""A plan that was built once is given other rows, and comes out as if it had been built of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from iscp.adapters.delta.query.catalyst import Catalyst
from iscp.adapters.delta.query.plan_leaves import Leaf, PlanLeaves
from iscp.adapters.delta.query.plan_templates import TEMPLATES_MAX, PlanTemplates
from iscp.adapters.delta.query.signed_rows import At, TableChange
from iscp.adapters.delta.spark.kept_frame import kept, release

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
        counted = kept(refreshes.frame([(1, number)], FACT))
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
