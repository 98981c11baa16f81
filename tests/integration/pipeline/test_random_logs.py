"""Random Delta logs: what followers make of them is what Spark reads, or they are refused by name.

`python -m tests.random_logs --seeds 1000 --first 5000` plays others, and shows the smallest case of each that fails.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from iscp.adapters.delta.spark.session import SparkRuntime
from tests.random_logs.log_check import LogCheck
from tests.random_logs.playing import play_seeds
from tests.random_logs.regressions import EACH_TIME, REGRESSIONS
from tests.selection import in_full

pytestmark = pytest.mark.spark

SEEDS_SHORT, SHORT_S = range(100), 35.0
"""Each time; seeds for which there is no time are left to the long run."""

SHRINKS_MAX = 30
"""Within the time that a test may take."""

SEEDS_LONG = range(100, 3_100)
FAILURES_MAX = 10
"""Of the long run, each of which is made as small as it gets."""


@pytest.fixture
def logs(tmp_path: Path, spark_runtime: SparkRuntime) -> LogCheck:
    return LogCheck(spark_runtime, tmp_path)


@pytest.mark.parametrize("name", in_full(REGRESSIONS, but=EACH_TIME))
def test_logs_that_were_read_wrongly_once(logs: LogCheck, name: str) -> None:
    assert logs.check(REGRESSIONS[name]) is None
    assert not logs.refused


def test_followers_hold_what_spark_reads(logs: LogCheck) -> None:
    until_s = time.monotonic() + SHORT_S
    played = play_seeds((seed for seed in SEEDS_SHORT if time.monotonic() < until_s), logs.check, SHRINKS_MAX, 1)
    assert played.failed == {}
    assert logs.ways, "followers have run"


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_followers_of_many_logs_hold_what_spark_reads(logs: LogCheck) -> None:
    played = play_seeds(SEEDS_LONG, logs.check, failures_max=FAILURES_MAX)
    assert played.failed == {}
