"""Tables with something odd in their files: a replica has the generator's rows, or refuses it by name, without Spark.

`python -m tests.random_logs --odd --seeds 1000 --first 5000` plays others. A child plays them: a seed at which it dies,
hangs or takes more memory than it may is one that fails.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.random_logs.odd_cases import FIELDS, ITEMS, odd_case_of, reached_dimensions, wanted_dimensions
from tests.random_logs.odd_files import footer_values, lie
from tests.random_logs.odd_playing import PlayedOdds, play_odd

SEEDS_SHORT = range(len(ITEMS))
"""Each time: each oddity once."""

SEEDS_LONG = range(len(ITEMS), 20 * len(ITEMS))

UNSEEN_MAX = 0.25
"""The share of cases that may need Spark, so that nothing is seen of them."""


def require_played(played: PlayedOdds, seeds: range) -> None:
    assert played.failed == {}, played.summary()
    assert played.played == len(seeds)
    unseen = sum(number for way, number in played.ways.items() if way.endswith("needs Spark"))
    assert unseen < UNSEEN_MAX * len(seeds), played.summary()


def test_seeds_reach_each_oddity_in_each_place() -> None:
    reached = reached_dimensions(SEEDS_SHORT)
    assert sorted(wanted_dimensions() - {*reached}) == []
    assert len(wanted_dimensions()) > len(ITEMS)


@pytest.mark.timeout(900)
def test_what_is_odd_is_read_rightly_or_refused_by_name() -> None:
    require_played(play_odd(SEEDS_SHORT), SEEDS_SHORT)


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_what_is_odd_in_many_tables_is_read_rightly_or_refused_by_name() -> None:
    require_played(play_odd(SEEDS_LONG), SEEDS_LONG)


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
