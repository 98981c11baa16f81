"""Random Delta logs: what followers make of them is what Spark reads, or they are refused by name.

`python -m tests.random_logs --seeds 1000 --first 5000` plays others, and shows the smallest case of each that fails.
"""

from __future__ import annotations

import time
from collections import Counter
from enum import StrEnum
from pathlib import Path

import pytest

from iscp.spark.session import SparkRuntime
from tests.both_ways.keepers import BY_TURNS
from tests.random_logs.cases import CheckpointKind, Deed, Info, Placing, Pointer, Vector
from tests.random_logs.drawing import case_of
from tests.random_logs.log_check import LogCheck
from tests.random_logs.playing import COMMAND, play_seeds
from tests.random_logs.regressions import EACH_TIME, REGRESSIONS
from tests.selection import in_full

pytestmark = pytest.mark.spark

SEEDS_SHORT, SHORT_S = range(50), 35.0
"""Each time; seeds for which there is no time are left to the long run."""

TURNS_SHORT, TURNS_SHORT_S, TURNS_LONG = range(4_000, 4_020), 8.0, range(4_020, 5_000)
"""Of followers that a node and runs keep by turns."""

TURNS_COMMAND = f"{COMMAND} --turns"

SHRINKS_MAX = 30
"""Within the time that a test may take."""

SEEDS_LONG = range(50, 3_100)
FAILURES_MAX = 10
"""Of the long run, each of which is made as small as it gets."""


@pytest.fixture
def logs(tmp_path: Path, spark_runtime: SparkRuntime) -> LogCheck:
    return LogCheck(spark_runtime, tmp_path)


@pytest.fixture
def turns(tmp_path: Path, spark_runtime: SparkRuntime) -> LogCheck:
    return LogCheck(spark_runtime, tmp_path, BY_TURNS)


@pytest.mark.parametrize("name", in_full(REGRESSIONS, but=EACH_TIME))
@pytest.mark.slow(but=3)
def test_logs_that_were_read_wrongly_once(logs: LogCheck, name: str) -> None:
    assert logs.check(REGRESSIONS[name]) is None
    assert not logs.refused


def test_seeds_reach_whatever_a_log_may_have() -> None:
    cases = [case_of(seed) for seed in range(400)]
    versions = [version for case in cases for version in case.versions]
    steps = [step for version in versions for step in version.steps]
    made = [version.checkpoint for version in versions if version.checkpoint is not None]
    reached = Counter[StrEnum]([*(each.setup.placing for each in cases), *(each.deed for each in steps)])
    reached += Counter[StrEnum]([*(each.vector for each in steps), *(each.kind for each in made)])
    reached += Counter[StrEnum]([*(each.pointer for each in made), *(each.dress.info for each in versions)])
    kinds: tuple[type[StrEnum], ...] = (Deed, Vector, Placing, Info, CheckpointKind, Pointer)
    assert [each for kind in kinds for each in kind if reached[each] < 3] == []


def test_followers_hold_what_spark_reads(logs: LogCheck) -> None:
    until_s = time.monotonic() + SHORT_S
    played = play_seeds((seed for seed in SEEDS_SHORT if time.monotonic() < until_s), logs.check, SHRINKS_MAX, 1)
    assert played.failed == {}
    assert logs.ways, "followers have run"


def test_followers_that_a_node_and_runs_keep_by_turns_hold_what_spark_reads(turns: LogCheck) -> None:
    until_s = time.monotonic() + TURNS_SHORT_S
    seeds = (seed for seed in TURNS_SHORT if time.monotonic() < until_s)
    played = play_seeds(seeds, turns.check, SHRINKS_MAX, 1, TURNS_COMMAND)
    assert played.failed == {}
    assert turns.ways, "followers have run"


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_followers_of_many_logs_hold_what_spark_reads(logs: LogCheck) -> None:
    played = play_seeds(SEEDS_LONG, logs.check, failures_max=FAILURES_MAX)
    assert played.failed == {}


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_many_followers_that_a_node_and_runs_keep_by_turns_hold_what_spark_reads(turns: LogCheck) -> None:
    played = play_seeds(TURNS_LONG, turns.check, failures_max=FAILURES_MAX, command=TURNS_COMMAND)
    assert played.failed == {}
