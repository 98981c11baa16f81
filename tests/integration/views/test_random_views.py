"""Random queries over random tables under random changes: a view equals its query, as Spark computes it.

`python -m tests.random_views --seeds 1000 --first 5000` plays others, and shows the smallest case of each that fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.adapters.delta.spark.session import SparkRuntime
from tests.random_views.cases import Case
from tests.random_views.expressions import Expression, Literal
from tests.random_views.histories import Action, Column, Commit, Step, Table
from tests.random_views.lake_check import LakeCheck
from tests.random_views.plan_check import PlanCheck
from tests.random_views.playing import COMMAND, play_seeds
from tests.random_views.query_tree import SETS, Groups, Measured, Relation, Selection, SetOperation, ValueOf

pytestmark = pytest.mark.spark

PLANS_SHORT, PLANS_LONG = range(8), range(8, 400)
LAKES_SHORT, LAKES_LONG = range(1000, 1002), range(1002, 1060)


ROWS = Table("t", (Column(1), Column(0)), ((1, 1), (2, 2), (1, 1), (0, 0)))
MOVES = ((Commit(0, (Step(Action.INSERT, 0, (1, 3)), Step(Action.DELETE, 1), Step(Action.UPDATE, 0, (3, 0)))),),)

NEVER = Selection(0, Relation(), Literal(1))
FAILED_ONCE = {
    "intersect_all_of_rows_that_never_are": SetOperation(0, NEVER, Groups(), SETS.index("INTERSECT ALL")),
    "the_value_of_a_subquery_beside_those_of_groups": ValueOf(
        0, Groups(0, Relation(), (Expression(),), (Measured(2, (Expression(),)),))
    ),
}
"""Queries that found something: tried each time."""


@pytest.mark.parametrize("query", [pytest.param(query, id=name) for name, query in FAILED_ONCE.items()])
def test_queries_that_were_kept_wrongly_once(spark_runtime: SparkRuntime, query: Relation) -> None:
    assert PlanCheck(spark_runtime.new_session()).check(Case((ROWS,), MOVES, query)) is None


@pytest.fixture
def lakes(tmp_path: Path, spark_runtime: SparkRuntime) -> LakeCheck:
    return LakeCheck(spark_runtime, tmp_path)


@pytest.mark.parametrize(
    "seeds", [pytest.param(PLANS_SHORT, id="short"), pytest.param(PLANS_LONG, id="long", marks=pytest.mark.full)]
)
@pytest.mark.timeout(3000)
def test_the_plans_of_changes_give_what_spark_computes_of_all_rows(spark_runtime: SparkRuntime, seeds: range) -> None:
    played = play_seeds(seeds, PlanCheck(spark_runtime.new_session()).check, COMMAND)
    assert played.failed == []
    assert played.played > len(seeds) * 0.9


@pytest.mark.parametrize(
    "seeds", [pytest.param(LAKES_SHORT, id="short"), pytest.param(LAKES_LONG, id="long", marks=pytest.mark.full)]
)
@pytest.mark.timeout(3000)
def test_a_view_of_delta_tables_follows_by_changes_alone(lakes: LakeCheck, seeds: range) -> None:
    played = play_seeds(seeds, lakes.check, f"{COMMAND} --lakes")
    assert played.failed == []
    assert played.played > len(seeds) * 0.9
