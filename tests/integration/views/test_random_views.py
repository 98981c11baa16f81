"""Random queries over random tables under random changes: a view equals its query, as Spark computes it.

`python -m tests.random_views --seeds 1000 --first 5000` plays others, and shows the smallest case of each that fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.spark.session import SparkRuntime
from iscp.views.changes.signed_rows import WEIGHT, netted
from tests.both_ways.keepers import BY_TURNS
from tests.random_views.cases import Case
from tests.random_views.cells import Family
from tests.random_views.expressions import FUNCTIONS, Call, Expression, Function, Literal
from tests.random_views.histories import Action, Column, Commit, Step, Table
from tests.random_views.lake_check import LakeCheck
from tests.random_views.plan_check import PlanCheck
from tests.random_views.playing import COMMAND, play_seeds
from tests.random_views.query_tree import (
    SETS,
    Groups,
    Limited,
    Measured,
    Mode,
    Projection,
    Relation,
    Selection,
    SetOperation,
    ValueOf,
    Windows,
)

pytestmark = pytest.mark.spark

PLANS_SHORT, PLANS_LONG = range(4), range(4, 400)
SUMS_SHORT, SUMS_LONG = range(3000, 3003), range(3003, 3300)
TIES_SHORT, TIES_LONG = range(2000, 2003), range(2003, 2300)
LAKES_SHORT, LAKES_LONG = range(1000, 1001), range(1001, 1060)
TURNS_SHORT, TURNS_LONG = range(4000, 4001), range(4001, 4060)


ROWS = Table("t", (Column(1), Column(0)), ((1, 1), (2, 2), (1, 1), (0, 0)))
MOVES = ((Commit(0, (Step(Action.INSERT, 0, (1, 3)), Step(Action.DELETE, 1), Step(Action.UPDATE, 0, (3, 0)))),),)
ZEROS = Table("t", (Column(0), Column(4)), ((1, 2), (1, 1), (2, 3)))
ANOTHER_SIGN = ((Commit(0, (Step(Action.UPDATE, 0, (1, 3)),)),),)

NEVER = Selection(0, Relation(), Literal(1))
AS_TEXT = Call(FUNCTIONS.index(Function("CAST({0} AS STRING)", (Family.DOUBLE,), Family.TEXT)))
FAILED_ONCE = {
    "intersect_all_of_rows_that_never_are": Case(
        (ROWS,), MOVES, SetOperation(0, NEVER, Groups(), SETS.index("INTERSECT ALL"))
    ),
    "the_value_of_a_subquery_beside_those_of_groups": Case(
        (ROWS,), MOVES, ValueOf(0, Groups(0, Relation(), (Expression(),), (Measured(2, (Expression(),)),)))
    ),
    "the_sign_of_a_zero_above_a_window": Case(
        (ZEROS,), ANOTHER_SIGN, Projection(0, Windows(0, Relation(), (Measured(6),), (0,)), (Expression(), AS_TEXT))
    ),
    "the_one_row_of_no_rows_of_which_nothing_is_selected": Case(
        (Table("t", (Column(0),), ()),),
        ((Commit(0, (Step(Action.INSERT, 0, (1,)),)),),),
        Projection(0, Groups(0, Relation(), (), (Measured(2, (Expression(),)),)), (Literal(0),)),
    ),
    "a_join_without_an_equality_whose_sides_stay_as_they_are": Case(
        (Table("t", (Column(0, False),), ((),)), Table("u", (Column(1, False),), ())),
        ((Commit(0, (Step(Action.INSERT, 0, ()),)),),),
        SetOperation(0, Relation(1), Limited(1), SETS.index("EXCEPT")),
    ),
}
"""Cases that found something: tried each time."""


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in FAILED_ONCE.items()])
def test_views_that_were_kept_wrongly_once(spark_runtime: SparkRuntime, case: Case) -> None:
    assert PlanCheck(spark_runtime.new_session()).check(case) is None


def test_rows_that_are_equal_and_differ_are_netted_each_for_itself(spark_runtime: SparkRuntime) -> None:
    session, columns = spark_runtime.new_session(), "d double, f float, a string"
    rows = session.createDataFrame(
        [(-0.0, 1.0, "p", 1), (0.0, 1.0, "p", -1), (None, -0.0, "p", 1)], f"{columns}, w long"
    )
    assert netted(rows.withColumnRenamed("w", WEIGHT)).count() == 1
    texts = session.sql("SELECT c COLLATE UTF8_LCASE AS c, w FROM VALUES ('p', 1L), ('P', -1L), ('p', 1L) AS t(c, w)")
    assert sorted(netted(texts.withColumnRenamed("w", WEIGHT)).collect()) == [("P", -1), ("p", 2)]


@pytest.fixture
def lakes(tmp_path: Path, spark_runtime: SparkRuntime) -> LakeCheck:
    return LakeCheck(spark_runtime, tmp_path)


def test_a_union_that_spark_fails_to_optimize_in_some_plans_is_followed(lakes: LakeCheck) -> None:
    """A rule of its optimizer leaves columns of this union without names where all rows have ids of their own."""
    numbered = Measured(0, (Expression(),))
    others = Windows(0, Groups(0, Relation(), (Call(0, (Expression(),)),)), (numbered,))
    case = Case(
        (Table("t", (Column(0, False),), ()),),
        ((Commit(0, (Step(Action.INSERT, 0, ()),)),),),
        Windows(0, SetOperation(0, Relation(), others), (numbered,), (0,)),
    )
    lakes.by_spark = True
    assert lakes.check(case) is None
    assert lakes.strategies == {"full": 1, "incremental": 1}


@pytest.mark.parametrize(
    "seeds", [pytest.param(PLANS_SHORT, id="short"), pytest.param(PLANS_LONG, id="long", marks=pytest.mark.full)]
)
@pytest.mark.timeout(3000)
def test_the_plans_of_changes_give_what_spark_computes_of_all_rows(spark_runtime: SparkRuntime, seeds: range) -> None:
    check = PlanCheck(spark_runtime.new_session())
    played = play_seeds(seeds, check.check, COMMAND)
    assert played.failed == []
    assert played.played > len(seeds) * 0.8
    assert check.by_duckdb > 0, "both executors carry plans out"


@pytest.mark.parametrize(
    ("seeds", "mode"),
    [
        pytest.param(TIES_SHORT, Mode.TIES, id="ties-short"),
        pytest.param(TIES_LONG, Mode.TIES, id="ties-long", marks=pytest.mark.full),
        pytest.param(SUMS_SHORT, Mode.SUMS, id="sums-short"),
        pytest.param(SUMS_LONG, Mode.SUMS, id="sums-long", marks=pytest.mark.full),
    ],
)
@pytest.mark.timeout(3000)
@pytest.mark.slow(but=1)
def test_what_ties_and_sums_of_doubles_decide_follows_changes(
    spark_runtime: SparkRuntime, seeds: range, mode: Mode
) -> None:
    played = play_seeds(seeds, PlanCheck(spark_runtime.new_session()).check, f"{COMMAND} --{mode}", mode)
    assert played.failed == []
    assert played.played > len(seeds) * 0.8


@pytest.mark.parametrize(
    "seeds", [pytest.param(LAKES_SHORT, id="short"), pytest.param(LAKES_LONG, id="long", marks=pytest.mark.full)]
)
@pytest.mark.timeout(3000)
def test_a_view_of_delta_tables_follows_by_changes_alone(lakes: LakeCheck, seeds: range) -> None:
    played = play_seeds(seeds, lakes.check, f"{COMMAND} --lakes")
    assert played.failed == []
    assert played.played > len(seeds) * 0.8


@pytest.mark.parametrize(
    "seeds", [pytest.param(TURNS_SHORT, id="short"), pytest.param(TURNS_LONG, id="long", marks=pytest.mark.full)]
)
@pytest.mark.timeout(3000)
def test_a_view_follows_by_changes_alone_while_a_node_and_runs_take_turns(
    tmp_path: Path, spark_runtime: SparkRuntime, seeds: range
) -> None:
    played = play_seeds(seeds, LakeCheck(spark_runtime, tmp_path, BY_TURNS).check, f"{COMMAND} --lakes --turns")
    assert played.failed == []
    assert played.played > len(seeds) * 0.8
