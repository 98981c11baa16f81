"""Tables with something odd in their files: a replica has the generator's rows, or refuses it by name, without Spark.

`python -m tests.random_logs --odd --seeds 1000 --first 5000` plays others. A child plays them: a seed at which it dies,
hangs or takes more memory than it may is one that fails.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iscp.spark.session import SparkRuntime
from tests.random_logs.odd_cases import (
    FIELDS,
    ITEMS,
    SPARK_ITEMS,
    OddCase,
    odd_case_of,
    reached_dimensions,
    spark_case_of,
    wanted_dimensions,
)
from tests.random_logs.odd_check import NEEDS_SPARK, check_odd
from tests.random_logs.odd_files import footer_values, lie
from tests.random_logs.odd_playing import PlayedOdds, play_odd

SEEDS_SHORT = range(len(ITEMS))
"""Each oddity once, in a minute of processor time."""

SEEDS_OFTEN = range(0, len(ITEMS), 7)
"""Each time: some of each kind."""

SEEDS_FOUND = (929,)
"""What found something once: a target's data file that links to itself was INTERNAL where keys are merged."""

SEEDS_LONG = range(len(ITEMS), 20 * len(ITEMS))

SPARK_S = 20.0
"""Seconds for those that Spark reads each time; the others are left to the long run."""

UNSEEN_MAX = 0.25
"""The share of cases that may need Spark, so that nothing is seen of them."""


def require_played(played: PlayedOdds, seeds: range) -> None:
    assert played.failed == {}, played.summary()
    assert played.played == len(seeds)
    unseen = sum(number for way, number in played.ways.items() if way.endswith(NEEDS_SPARK))
    assert unseen < UNSEEN_MAX * len(seeds), played.summary()


def test_seeds_reach_each_oddity_in_each_place() -> None:
    reached = reached_dimensions(SEEDS_SHORT)
    assert sorted(wanted_dimensions() - {*reached}) == []
    assert len(wanted_dimensions()) > len(ITEMS)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", [SEEDS_OFTEN, pytest.param(SEEDS_SHORT, marks=pytest.mark.slow)], ids=["some", "all"])
def test_what_is_odd_is_read_rightly_or_refused_by_name(seeds: range) -> None:
    require_played(play_odd(seeds), seeds)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_what_is_odd_in_many_tables_is_read_rightly_or_refused_by_name() -> None:
    require_played(play_odd(SEEDS_LONG), SEEDS_LONG)


def test_what_was_wrong_once_stays_right() -> None:
    assert play_odd(SEEDS_FOUND).failed == {}


@pytest.mark.spark
def test_what_spark_alone_comes_to_see_is_read_rightly_or_refused_by_name(
    tmp_path: Path, spark_runtime: SparkRuntime
) -> None:
    until_s = time.monotonic() + SPARK_S
    play_by_spark(map(spark_case_of, range(len(SPARK_ITEMS))), tmp_path, spark_runtime, until_s)


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.spark
def test_what_is_odd_in_tables_that_spark_reads_is_read_rightly_or_refused_by_name(
    tmp_path: Path, spark_runtime: SparkRuntime
) -> None:
    play_by_spark(map(spark_case_of, range(5 * len(SPARK_ITEMS))), tmp_path, spark_runtime)
    needing = (case for case in map(odd_case_of, SEEDS_SHORT) if check_odd(case, tmp_path / "unseen")[0] == NEEDS_SPARK)
    play_by_spark(needing, tmp_path, spark_runtime)


def play_by_spark(cases: Iterable[OddCase], root: Path, runtime: SparkRuntime, until_s: float = float("inf")) -> None:
    played, failed = 0, []
    for case in cases:
        if time.monotonic() > until_s:
            break
        _, wrong = check_odd(case, root / str(played), lambda: runtime)
        if wrong is not None:
            failed.append(f"{case.shown()}\n{wrong.where}\n{wrong.rows}\n{case!r}")
        played += 1
    assert failed == []
    assert played


def test_a_seed_always_gives_the_same_case() -> None:
    assert [odd_case_of(seed) for seed in range(50)] == [odd_case_of(seed) for seed in range(50)]


@pytest.mark.parametrize("field", FIELDS)
def test_a_footer_lies_in_the_field_that_is_named(tmp_path: Path, field: str) -> None:
    """And in that alone, in a file of its own length otherwise."""
    path = tmp_path / "whole.parquet"
    pq.write_table(pa.table({"k": [1, 2], "v": ["a", "b"]}), path)
    content = path.read_bytes()
    lies = {lie(content, field, number) for number in range(20)} - {content}
    assert len(lies) > 1
    if field == "length of the footer":
        return
    whole = {(each.field, each.number) for each in footer_values(footer_of(content))}
    for lying in lies:
        others = {(each.field, each.number) for each in footer_values(footer_of(lying))}
        assert {name for name, _ in whole ^ others} <= {field}


def footer_of(content: bytes) -> bytes:
    length = int.from_bytes(content[-8:-4], "little")
    return content[-8 - length : -8]
