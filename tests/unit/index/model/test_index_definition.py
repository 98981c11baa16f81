"""A definition says what it consists of, and is stored with the number of its format.

What an index needs next, from its shape alone.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from iscp.index.model.index_definition import (
    COUNT_FILES_MAX,
    DEAD_ROWS_MIN,
    FRESH_FRAGMENTS_MAX,
    FRESH_ROWS_MAX,
    FRESH_ROWS_MIN,
    GROUP_FRAGMENTS_MAX,
    LANGUAGES,
    SEGMENTS_MAX,
    TEXT_ROWS_MIN,
    Analysis,
    GroupShape,
    IndexDefinition,
    IndexKind,
    IndexShape,
    PartShape,
    SegmentShape,
    TextColumn,
    Tokenizer,
    Upkeep,
    UpkeepAction,
    VectorOptions,
    largest,
    next_action,
    next_due_s,
    smallest_run,
)


def test_kinds_have_text_vectors_or_both() -> None:
    assert [(kind.value, kind.has_text, kind.has_vector) for kind in IndexKind] == [
        *(("fulltext", True, False), ("vector", False, True), ("search", True, True))
    ]
    words = (Tokenizer.ICU, Tokenizer.SIMPLE, Tokenizer.WHITESPACE)
    assert tuple(each for each in Tokenizer if each.has_words) == words
    assert (len(LANGUAGES), len(set(LANGUAGES))) == (18, 18)


def test_the_stored_form_is_fixed() -> None:
    """Others read it: a change of it needs another number, or a default for what it lacks."""
    definition = IndexDefinition(
        IndexKind.SEARCH,
        (TextColumn("title", 2.0), TextColumn("body")),
        Analysis(Tokenizer.NGRAM, positions=False),
        VectorOptions(column="e"),
        ("at",),
    )
    assert json.loads(definition.to_json()) == {
        "format": 2,
        "analysis": 2,
        "kind": "search",
        "options": {
            "columns": {"title": 2.0, "body": 1.0},
            "tokenizer": "ngram",
            "stem": False,
            "stop_words": False,
            "lower_case": True,
            "ascii_folding": True,
            "max_token_length": 40,
            "positions": False,
            "min_ngram": 3,
            "max_ngram": 3,
            "prefix_only": False,
            "column": "e",
            "metric": "cosine",
            "precision": "float32",
            "recall": 0.99,
            "stored": ["at"],
        },
    }
    assert definition.boosts() == {"title": 2.0, "body": 1.0}
    assert definition.text_names() == ("title", "body")


def part(rows: int, *sizes: int, fresh: int = 0, fragments: int = 0, name: str = "words_0") -> PartShape:
    segments = tuple(SegmentShape(f"{name}-{number}", size) for number, size in enumerate(sizes))
    return PartShape(name, rows, TEXT_ROWS_MIN, segments, fresh, fragments)


def kind_of(shape: IndexShape) -> Upkeep | None:
    action = next_action(shape)
    return None if action is None else action.kind


def test_a_small_index_is_left_without_segments_and_gets_them_when_it_has_enough_rows() -> None:
    few = TEXT_ROWS_MIN - 1
    assert kind_of(IndexShape((part(few, fresh=few, fragments=1),))) is None
    assert kind_of(IndexShape((part(few + 1, fresh=few + 1, fragments=1),))) is Upkeep.SEGMENTS


def test_an_index_without_rows_to_cover_needs_no_segment() -> None:
    assert kind_of(IndexShape((part(TEXT_ROWS_MIN),))) is None


@pytest.mark.parametrize(
    ("rows", "fresh", "due"),
    [
        (10_000, FRESH_ROWS_MIN, False),
        (10_000, FRESH_ROWS_MIN + 1, True),
        (100_000, 2_000, False),
        (100_000, 2_001, True),
        (10_000_000, FRESH_ROWS_MAX, False),
        (10_000_000, FRESH_ROWS_MAX + 1, True),
    ],
)
def test_fresh_rows_are_covered_when_they_are_a_share_of_all_within_bounds(rows: int, fresh: int, due: bool) -> None:
    assert (kind_of(IndexShape((part(rows, rows, fresh=fresh, fragments=2),))) is Upkeep.SEGMENTS) == due


def test_fresh_fragments_are_covered_though_they_have_few_rows() -> None:
    assert kind_of(IndexShape((part(9_000, 9_000, fresh=20, fragments=FRESH_FRAGMENTS_MAX),))) is None
    assert kind_of(IndexShape((part(9_000, 9_000, fresh=20, fragments=FRESH_FRAGMENTS_MAX + 1),))) is Upkeep.SEGMENTS


def test_an_index_that_has_shrunk_keeps_being_covered() -> None:
    assert kind_of(IndexShape((part(1_500, 9_000, fresh=FRESH_ROWS_MIN + 1, fragments=1),))) is Upkeep.SEGMENTS


def test_segments_without_statistics_come_before_merges() -> None:
    many = part(9_000, *range(1, SEGMENTS_MAX + 2))
    unstated = replace(many.segments[3], stated=False)
    found = next_action(IndexShape((replace(many, segments=(*many.segments[:3], unstated, *many.segments[4:])),)))
    assert found == UpkeepAction(Upkeep.STATE, segments=("words_0-3",))


def test_the_smallest_segments_of_each_part_are_merged() -> None:
    texts = part(100_000, 90_000, *[1_000] * SEGMENTS_MAX)
    vectors = part(100_000, 90_000, *[1_000] * (SEGMENTS_MAX - 1), name="vector")
    found = next_action(IndexShape((texts, vectors)))
    assert found == UpkeepAction(Upkeep.MERGE, segments=tuple(f"words_0-{each}" for each in range(1, SEGMENTS_MAX + 1)))


def test_fragments_are_written_again_if_many_rows_are_deleted_or_there_are_many() -> None:
    covered = part(9_000, 9_000)
    worn = GroupShape((3, 4), 3_000, 1_501)
    slightly = GroupShape((5,), 3_000, 1_500)
    small = GroupShape((6,), DEAD_ROWS_MIN, DEAD_ROWS_MIN)
    shape = IndexShape((covered,), (slightly, worn, small))
    assert next_action(shape) == UpkeepAction(Upkeep.COMPACT, fragments=(3, 4))
    assert kind_of(IndexShape((covered,), (slightly, small))) is None
    many = tuple(range(GROUP_FRAGMENTS_MAX + 1))
    assert next_action(IndexShape((covered,), (GroupShape(many, 100),))) == UpkeepAction(Upkeep.COMPACT, fragments=many)
    assert kind_of(IndexShape((covered,), (GroupShape(many[1:], 100),))) is None


def test_fresh_fragments_wait_for_their_segment_but_not_in_an_index_without_any() -> None:
    fresh = GroupShape(tuple(range(GROUP_FRAGMENTS_MAX + 1)), 100, covered=False)
    assert kind_of(IndexShape((part(9_000, 9_000),), (fresh,))) is None
    assert kind_of(IndexShape((part(100),), (fresh,))) is Upkeep.COMPACT


@pytest.mark.parametrize(("then", "due"), [(0, True), (4_500, False), (4_499, True), (18_000, False), (18_001, True)])
def test_probes_are_found_once_and_again_when_rows_have_doubled_or_halved(then: int, due: bool) -> None:
    vectors = part(9_000, 9_000, 100, name="vector")
    shape = IndexShape((vectors,), vector=vectors, calibrated_rows=then)
    assert (kind_of(shape) is Upkeep.CALIBRATE) == due
    assert largest(vectors).uuid == "vector-0"


def test_vectors_without_a_segment_need_no_probes() -> None:
    vectors = part(100, name="vector")
    assert kind_of(IndexShape((vectors,), vector=vectors)) is None


def test_count_files_are_merged_when_there_are_many() -> None:
    files = (1_000, *[10] * COUNT_FILES_MAX)
    assert next_action(IndexShape(count_files=files)) == UpkeepAction(Upkeep.COUNTS, files=tuple(range(1, 9)))
    assert kind_of(IndexShape(count_files=files[1:])) is None


def test_old_versions_go_when_the_oldest_is_twice_as_old_as_versions_are_kept() -> None:
    old = IndexShape(versions=3, oldest_s=20.1, keep_s=10.0)
    assert next_action(old) == UpkeepAction(Upkeep.CLEAN_UP)
    assert next_due_s(old) == 0.0
    young = replace(old, oldest_s=12.0)
    assert next_action(young) is None
    assert next_due_s(young) == pytest.approx(8.0)
    single = replace(old, versions=1)
    assert next_action(single) is None
    assert next_due_s(single) is None


def test_what_is_excluded_does_not_hide_what_is_due_besides() -> None:
    shape = IndexShape((part(9_000, 9_000, fresh=5_000, fragments=1),), versions=3, oldest_s=9_999.0)
    assert next_action(shape, {Upkeep.SEGMENTS}) == UpkeepAction(Upkeep.CLEAN_UP)
    assert next_action(shape, {Upkeep.SEGMENTS, Upkeep.CLEAN_UP}) is None


@pytest.mark.parametrize("seed", range(20))
def test_segments_stay_few_and_each_row_is_merged_a_number_of_times_that_grows_with_the_logarithm(seed: int) -> None:
    chance = random.Random(seed)
    sizes: list[int] = []
    total = merged = 0
    for _ in range(2_000):
        size = chance.randrange(1, 200)
        sizes.append(size)
        total += size
        while run := smallest_run(sizes, SEGMENTS_MAX):
            assert len(run) >= 2
            taken = [sizes[each] for each in run]
            assert max(taken) <= min([each for number, each in enumerate(sizes) if number not in run], default=10**9)
            merged += sum(taken)
            sizes = [each for number, each in enumerate(sizes) if number not in run] + [sum(taken)]
        assert len(sizes) <= SEGMENTS_MAX
    assert sum(sizes) == total
    assert merged <= math.log2(2_000) * total
