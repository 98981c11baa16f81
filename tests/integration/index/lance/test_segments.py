"""Lance's scores follow from the statistics of segments in every state, and known faults of Lance do not reach us.

The numbers in names are those under which lance-format/lance has the faults.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import lance.query
import pytest

from iscp.index.lance.index_columns import KEY, VECTOR_INDEX, words_column
from iscp.index.lance.index_store import (
    OpenIndex,
    build_segments,
    commit_segments,
    segment_statistics,
    segments_of,
    statistics_name,
)
from iscp.index.lance.index_transaction import ADDRESS, rows_with_keys
from iscp.index.maintenance.index_maintenance import MaintenanceLimits, maintain
from iscp.index.model.index_definition import Upkeep
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.maintained_index import MaintainedIndex, counted, indexed, random_row

K1, B = 1.2, 0.75
WORDS = ("w1", "w2", "w5", "w40", "w399")
ROWS = 6_000


def index_of(path: Path, rows: int = ROWS, dimension: int = 0) -> MaintainedIndex:
    chance = random.Random(4)
    index = MaintainedIndex(str(path / "index"), dimension)
    index.create()
    index.change({str(each): random_row(chance, dimension) for each in range(rows)}, [])
    return index


def maintained(index: MaintainedIndex) -> tuple[Upkeep, ...]:
    limits = MaintenanceLimits(keep_s=600.0)
    return maintain(index.store, limits, SystemClock(), EnvironmentFailpoints({}), 60.0).actions


def hits(
    at: OpenIndex, number: int, query: lance.query.FullTextQuery, condition: str | None = None, *, fast: bool = True
) -> dict[str, float]:
    """The keys and scores that Lance gives for a query, among the rows of a condition."""
    found = at.dataset.scanner(
        columns=[KEY, "_score"],
        full_text_query=query,
        filter=condition,
        prefilter=True,
        fast_search=fast,
        limit=1_000_000,
    ).to_table()
    assert len(set(found[KEY].to_pylist())) == len(found)
    return dict(zip(found[KEY].to_pylist(), found["_score"].to_pylist(), strict=True))


def predicted(at: OpenIndex, index: MaintainedIndex, number: int, word: str) -> dict[str, float]:
    """The scores of live rows in segments, from the statistics of the segments."""
    counts, rows, words = indexed(at, number)
    covered = {
        each for segment in segments_of(at.dataset) if segment.name == f"words_{number}" for each in segment.fragments
    }
    fragments = [each for each in at.dataset.get_fragments() if each.fragment_id in covered]
    keys = at.dataset.scanner(columns=[KEY], fragments=fragments).to_table()[KEY].to_pylist() if fragments else []
    idf = math.log(1 + (rows - counts[word] + 0.5) / (counts[word] + 0.5))
    scores = {}
    for key in keys:
        text = (index.model[key].words[number] or "").split() if key in index.model else []
        if frequency := text.count(word):
            length = 1 - B + B * len(text) / (words / rows)
            scores[key] = idf * frequency * (K1 + 1) / (frequency + K1 * length)
    return scores


def assert_scores_follow(index: MaintainedIndex) -> None:
    at = index.store.open()
    for number in (0, 1):
        for word in WORDS:
            query = lance.query.MatchQuery(word, words_column(number))
            wanted = predicted(at, index, number, word)
            assert hits(at, number, query) == pytest.approx(wanted, abs=1e-3), (number, word)
            # 9058: neither rows that a filter leaves out nor fresh ones change a score.
            some = {key: score for key, score in wanted.items() if key < "3"}
            assert hits(at, number, query, f"{KEY} < '3'") == pytest.approx(some, abs=1e-3)


def states(index: MaintainedIndex) -> Iterator[str]:
    """Bring the index into each state in which ranks were seen to drift."""
    chance = random.Random(6)
    maintained(index)
    yield "built"
    index.change({}, [str(each) for each in range(300)])
    yield "after deletions"
    index.change({str(each): random_row(chance) for each in range(200, 600)}, [])
    yield "with fresh rows"
    for first in range(0, 4_400, 1_100):
        index.change({str(each): random_row(chance) for each in range(first, first + 1_100)}, [])
        maintained(index)
        yield f"with {first + 1_100} rows changed"
    for number in range(9):
        index.change({f"{number}-{each}": random_row(chance) for each in range(1_010)}, [])
        maintained(index)
    yield "merged"
    index.change({}, [*(str(each) for each in range(4_400)), *(f"{n}-{each}" for n in range(9) for each in range(900))])
    assert Upkeep.COMPACT in maintained(index)
    yield "compacted"


@pytest.mark.slow
def test_scores_follow_from_the_statistics_in_every_state_9058(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    for state in states(index):
        assert state
        assert_scores_follow(index)
        at = index.store.open()
        assert segments_of(at.dataset), state
        # Without deletions since, the statistics are those of the rows.
        if state == "compacted":
            assert indexed(at, 1)[1] <= counted(index.model, 1)[1]


# The long version of the test above.
@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_scores_follow_from_the_statistics_after_any_history(tmp_path: Path, seed: int) -> None:
    index, chance = index_of(tmp_path), random.Random(seed)
    maintained(index)
    for _ in range(60):
        index.change_randomly(chance, chance.choice([10, 100, 700]), ROWS)
        if chance.random() < 0.4:
            maintained(index)
        if segments_of(index.store.open().dataset):
            assert_scores_follow(index)


def test_each_key_is_found_once_after_updates_and_merges_7230_6877(tmp_path: Path) -> None:
    index, chance = index_of(tmp_path), random.Random(1)
    keys = [str(each) for each in range(0, ROWS, 5)]
    maintained(index)
    for _ in range(12):  # more segments of keys than there may be, each with the same keys
        index.change({key: random_row(chance) for key in keys}, [])
        maintained(index)
        at = index.store.open()
        found = rows_with_keys(at.dataset, keys, [words_column(1)])
        assert sorted(found[KEY].to_pylist()) == sorted(keys)
        assert len(set(found[ADDRESS].to_pylist())) == len(keys)
        assert all(row[words_column(1)] == index.model[row[KEY]].words[1] for row in found.to_pylist())


def phrase_matches(index: MaintainedIndex, words: str, covered: Callable[[str], bool]) -> set[str]:
    return {key for key, row in index.model.items() if f" {words} " in (row.words[1] or "") and covered(key)}


def test_phrases_are_found_in_merged_segments_and_frequent_ones_7653_7508(tmp_path: Path) -> None:
    index, chance = index_of(tmp_path), random.Random(2)
    maintained(index)
    for number in range(10):
        index.change({f"{number}-{each}": random_row(chance) for each in range(1_005)}, [str(number)])
        maintained(index)
        at = index.store.open()
        for words in ("w1 w2", "w3 w1", "w2 w2 w1"):
            found = hits(at, 1, lance.query.PhraseQuery(words, words_column(1)), fast=False)
            assert set(found) == phrase_matches(index, words, lambda _: True)
        both = lance.query.MatchQuery("w1 w7", words_column(1), operator=lance.query.FullTextOperator.AND)
        wanted = {key for key, row in index.model.items() if {"w1", "w7"} <= set((row.words[1] or "").split())}
        assert set(hits(at, 1, both, fast=False)) == wanted


def test_a_new_segment_of_one_index_leaves_those_of_all_others_4929(tmp_path: Path) -> None:
    index, chance = index_of(tmp_path, dimension=8), random.Random(3)
    maintained(index)
    for number in range(3):
        before = {each.uuid for each in segments_of(index.store.open().dataset)}
        index.change({f"{number}-{each}": random_row(chance, 8) for each in range(1_010)}, [])
        assert maintained(index) == (Upkeep.SEGMENTS,)
        segments = segments_of(index.store.open().dataset)
        assert before < {each.uuid for each in segments}
        assert len([each for each in segments if each.name == VECTOR_INDEX]) == number + 2


def test_a_segment_of_somebody_else_has_no_statistics_until_maintenance_writes_them(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    maintained(index)
    at = index.store.open()
    at.dataset.optimize.optimize_indices(retrain=True)
    foreign = index.store.open()
    texts = [each for each in segments_of(foreign.dataset) if each.name == "words_1"]
    assert [segment_statistics(foreign.root, each.uuid) for each in texts] == [None]
    assert maintained(index) == (Upkeep.STATE,)
    assert_scores_follow(index)


def test_a_segment_whose_statistics_cannot_be_known_is_built_again(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    maintained(index)
    index.store.open().dataset.optimize.optimize_indices(retrain=True)
    index.change({}, ["1", "2", "3"])
    assert maintained(index) == (Upkeep.STATE,)
    assert indexed(index.store.open(), 1) == counted(index.model, 1)
    assert_scores_follow(index)


def test_statistics_are_there_before_their_segment_is_committed(tmp_path: Path) -> None:
    index = index_of(tmp_path, 2_500)
    at = index.store.open()
    fragments = [each.fragment_id for each in at.dataset.get_fragments() if each.count_rows() > 1]
    (built,) = build_segments(at, {"words_1": fragments}, "cosine")
    assert (tmp_path / "index" / "_iscp" / statistics_name(built.uuid)).is_file()
    assert segments_of(index.store.open().dataset) == []
    commit_segments(at, [built])
    assert [each.uuid for each in segments_of(index.store.open().dataset)] == [built.uuid]
    assert indexed(index.store.open(), 1) == counted(index.model, 1)
