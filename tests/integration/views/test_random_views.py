"""Random queries over random tables under random changes: a view equals its query, as Spark computes it.

`python -m tests.random_views --seeds 1000 --first 5000` plays others, and shows the smallest case of each that fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.adapters.delta.spark.session import SparkRuntime
from tests.random_views.lake_check import LakeCheck
from tests.random_views.plan_check import PlanCheck
from tests.random_views.playing import COMMAND, play_seeds

pytestmark = pytest.mark.spark

PLANS_SHORT, PLANS_LONG = range(8), range(8, 400)
LAKES_SHORT, LAKES_LONG = range(1000, 1002), range(1002, 1060)


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
