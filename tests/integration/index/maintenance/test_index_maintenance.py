"""An index is maintained at any moment, and its rows, counts and statistics stay those of its model."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from iscp.index.lance.index_columns import BIT_DIMENSIONS_MIN, FINE_VECTOR_KIND, VECTOR_KIND
from iscp.index.lance.index_store import segments_of
from iscp.index.maintenance.index_maintenance import MaintenanceDone, MaintenanceLimits, maintain
from iscp.index.maintenance.index_shape import read_shape, version_numbers
from iscp.index.model.index_definition import COUNT_FILES_MAX, SEGMENTS_MAX, Upkeep, next_action
from iscp.model.values.errors import InvalidRequest
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.maintained_index import (
    MaintainedIndex,
    Row,
    counted,
    indexed,
    random_row,
    rows_of,
    same_rows,
    stored_counts,
)
from tests.selection import in_full

AT_ONCE = MaintenanceLimits(keep_s=0.0, in_flight_s=0.0)
KEPT = MaintenanceLimits(keep_s=600.0)


def maintained(index: MaintainedIndex, limits: MaintenanceLimits = AT_ONCE, budget_s: float = 60.0) -> MaintenanceDone:
    return maintain(index.store, limits, SystemClock(), EnvironmentFailpoints({}), budget_s)


def filled(path: Path, rows: int, dimension: int = 0, seed: int = 1) -> MaintainedIndex:
    chance = random.Random(seed)
    index = MaintainedIndex(str(path / "index"), dimension)
    index.create()
    index.change({str(each): random_row(chance, dimension) for each in range(rows)}, [])
    return index


def assert_equal_to_its_model(index: MaintainedIndex) -> None:
    at = index.store.open()
    assert same_rows(rows_of(at), index.model)
    assert at.head.vectors == sum(row.vector is not None for row in index.model.values())
    for number in (0, 1):
        words, rows, length = counted(index.model, number)
        assert stored_counts(at, number) == words
        assert (at.head.totals[number].rows, at.head.totals[number].words) == (rows, length)
        # Also after deletions: what is in segments is at least what is alive there, and all of it is known.
        assert indexed(at, number)[1] >= 0


def files_of(root: str) -> Iterator[int]:
    for folder, _, names in os.walk(root):
        for name in names:
            yield os.path.getsize(os.path.join(folder, name))


def test_a_small_index_gets_no_segments_and_nothing_is_due_after_its_maintenance(tmp_path: Path) -> None:
    index = filled(tmp_path, 300)
    maintained(index)
    at = index.store.open()
    assert segments_of(at.dataset) == []
    version = at.version
    assert maintained(index, KEPT).actions == ()
    assert index.store.open().version == version


def test_each_part_is_covered_from_its_number_of_rows_on_in_one_commit(tmp_path: Path) -> None:
    index = filled(tmp_path, 2_600)
    before = index.store.open().version
    assert maintained(index, KEPT).actions == (Upkeep.SEGMENTS,)
    at = index.store.open()
    assert at.version == before + 1
    # Half of the rows have words in the first column: too few.
    assert {each.name for each in segments_of(at.dataset)} == {"words_0", "words_1"}
    more = filled(tmp_path / "more", 5_400, 8)
    assert maintained(more, KEPT).actions == (Upkeep.SEGMENTS, Upkeep.CALIBRATE)
    found = more.store.open()
    assert {each.name for each in segments_of(found.dataset)} == {"key", "words_0", "words_1", "vector"}
    assert found.head.probes >= 1
    assert {each.kind for each in segments_of(found.dataset) if each.name == "vector"} == {FINE_VECTOR_KIND}
    assert_equal_to_its_model(more)


def test_statistics_are_those_of_the_rows_at_the_time_of_the_build(tmp_path: Path) -> None:
    index = filled(tmp_path, 3_000)
    maintained(index, KEPT)
    wanted = counted(index.model, 1)
    assert indexed(index.store.open(), 1) == wanted
    index.change({}, [str(each) for each in range(500)])
    # Deleted rows stay in the segment, and so in what is known of it.
    assert indexed(index.store.open(), 1) == wanted
    assert_equal_to_its_model(index)


def history(index: MaintainedIndex, seed: int, commits: int, keys: int) -> set[Upkeep]:
    """Commit random changes, and maintain at random moments; compare after each. Return all that was done."""
    chance = random.Random(seed)
    done: set[Upkeep] = set()
    for number in range(commits):
        if chance.random() < 0.03:
            rows = {str(each): random_row(chance, index.dimension) for each in range(chance.randrange(1, keys))}
            index.change(rows, [], replace=True)
        else:
            index.change_randomly(chance, chance.choice([1, 30, 300]), keys)
        if chance.random() < 0.5:
            done |= set(maintained(index, AT_ONCE).actions)
        if number % 5 == 0:
            assert_equal_to_its_model(index)
    done |= set(maintained(index, AT_ONCE).actions)
    assert_equal_to_its_model(index)
    assert next_action(read_shape(index.store.open(), 600.0, SystemClock().now_s())) is None
    return done


def test_rows_and_counts_stay_those_of_the_model_in_a_random_history(tmp_path: Path) -> None:
    index = filled(tmp_path, 6_000, 8, seed=5)
    assert {Upkeep.SEGMENTS, Upkeep.COUNTS, Upkeep.CLEAN_UP} <= history(index, 5, 20, 6_500)


# The long version of the history above.
@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_rows_and_counts_stay_those_of_the_model_in_long_histories(tmp_path: Path, seed: int) -> None:
    index = filled(tmp_path, 6_000, 16 * (seed % 2), seed=seed)
    assert {Upkeep.SEGMENTS, Upkeep.COMPACT} <= history(index, seed, 150, 6_500)


@pytest.mark.slow
def test_vectors_that_one_bit_does_not_distinguish_get_a_finer_index(tmp_path: Path) -> None:
    index = filled(tmp_path, 5_400, BIT_DIMENSIONS_MIN)
    assert maintained(index, KEPT).actions == (Upkeep.SEGMENTS, Upkeep.CALIBRATE, Upkeep.MERGE, Upkeep.CALIBRATE)
    found = index.store.open()
    assert {each.kind for each in segments_of(found.dataset) if each.name == "vector"} == {FINE_VECTOR_KIND}
    index.change({f"new-{each}": random_row(random.Random(each), BIT_DIMENSIONS_MIN) for each in range(1_100)}, [])
    assert maintained(index, KEPT).actions == (Upkeep.SEGMENTS,)
    assert_equal_to_its_model(index)


def test_vectors_in_clusters_keep_the_small_index(tmp_path: Path) -> None:
    index, chance = MaintainedIndex(str(tmp_path / "index"), 128), random.Random(8)
    index.create()
    centres = [[chance.gauss(0, 1) for _ in range(128)] for _ in range(500)]
    near = {
        str(number): Row((None, None), tuple(each + chance.gauss(0, 0.4) for each in centres[number % 500]))
        for number in range(5_400)
    }
    index.change(near, [])
    assert maintained(index, KEPT).actions == (Upkeep.SEGMENTS, Upkeep.CALIBRATE)
    assert {each.kind for each in segments_of(index.store.open().dataset) if each.name == "vector"} == {VECTOR_KIND}


@pytest.mark.slow
def test_a_compaction_leaves_deleted_rows_neither_in_files_nor_in_statistics(tmp_path: Path) -> None:
    index = filled(tmp_path, 5_400, 8)
    maintained(index, KEPT)
    index.change({}, [str(each) for each in range(2_800)])
    assert indexed(index.store.open(), 1) != counted(index.model, 1)
    # Less than half of the vectors are left, so that their probes are found again.
    assert maintained(index, KEPT).actions == (Upkeep.COMPACT, Upkeep.CALIBRATE)
    at = index.store.open()
    assert indexed(at, 1) == counted(index.model, 1)
    assert sum(group.dead for group in read_shape(at, 600.0, 0.0).groups) == 0
    assert_equal_to_its_model(index)


def test_the_smallest_segments_are_merged_and_the_largest_is_left_alone(tmp_path: Path) -> None:
    index, chance = filled(tmp_path, 12_000), random.Random(2)
    maintained(index, KEPT)
    base = {each.uuid for each in segments_of(index.store.open().dataset)}
    done: list[Upkeep] = []
    for number in range(SEGMENTS_MAX):
        index.change({f"{number}-{each}": random_row(chance) for each in range(1_010)}, [])
        done += maintained(index, KEPT).actions
    segments = segments_of(index.store.open().dataset)
    assert done.count(Upkeep.MERGE) == 1
    assert base < {each.uuid for each in segments}
    assert len(segments) == 2 * len(base)
    assert indexed(index.store.open(), 1) == counted(index.model, 1)
    assert_equal_to_its_model(index)


@pytest.mark.parametrize("commits", in_full([24, 60, 200]))
@pytest.mark.slow(but=1)
def test_nothing_grows_with_the_number_of_commits(tmp_path: Path, commits: int) -> None:
    index = filled(tmp_path, 2_400, seed=7)
    chance = random.Random(7)
    seen: list[tuple[int, int, int]] = []
    for _ in range(commits):
        index.change_randomly(chance, 60, 2_400)
        maintained(index)
        sizes = list(files_of(index.store.root))
        seen.append((len(sizes), sum(sizes), len(version_numbers(index.store.root))))
        at = index.store.open()
        assert len(at.head.count_files) <= COUNT_FILES_MAX
        for part in read_shape(at, 0.0, 0.0).parts:
            assert len(part.segments) <= SEGMENTS_MAX
    assert_equal_to_its_model(index)
    third = commits // 3
    early, late = (
        [max(each) for each in zip(*part, strict=True)] for part in (seen[third : 2 * third], seen[2 * third :])
    )
    assert all(after <= 1.5 * before for before, after in zip(early, late, strict=True)), (early, late)
    assert late[2] <= 3


def test_what_is_not_done_within_the_budget_is_due_at_once(tmp_path: Path) -> None:
    index = filled(tmp_path, 5_400, 8)
    first = maintained(index, budget_s=0.0)
    assert first.actions == (Upkeep.SEGMENTS,)
    assert first.next_due_s == 0.0
    assert maintained(index).actions == (Upkeep.CALIBRATE, Upkeep.CLEAN_UP)


def test_old_versions_are_due_when_they_are_twice_as_old_as_they_are_kept(tmp_path: Path) -> None:
    index = filled(tmp_path, 100)
    due = maintained(index, KEPT).next_due_s
    assert due is not None
    assert 1_100 < due <= 1_200


def test_an_index_of_which_all_rows_are_gone_is_maintained(tmp_path: Path) -> None:
    index = filled(tmp_path, 2_600)
    maintained(index)
    index.change({}, list(index.model))
    maintained(index)
    assert_equal_to_its_model(index)
    index.change({"a": random_row(random.Random(3))}, [])
    maintained(index)
    assert_equal_to_its_model(index)


def test_rows_without_words_or_vectors_hold_up_nothing(tmp_path: Path) -> None:
    index = filled(tmp_path, 5_400, 8)
    maintained(index)
    empty = random_row(random.Random(1))
    nothing = type(empty)((None, None), None)
    index.change({f"empty-{each}": nothing for each in range(1_500)}, [])
    done = maintained(index)
    assert Upkeep.SEGMENTS in done.actions
    assert done.next_due_s is None
    assert_equal_to_its_model(index)


def test_a_place_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no index"):
        maintained(MaintainedIndex(str(tmp_path / "none")))
