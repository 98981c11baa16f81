"""A verification compares all sums that ranks depend on, and a repair commits them together with the rows.

The words that a verification searches for follow from the counts alone, and are of each sort.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.consumers.index.index_check import WORDS_OF_EACH_SORT, sampled_words, sums_right
from iscp.index.lance.index_columns import FieldTotals
from iscp.index.lance.index_store import OpenIndex
from iscp.index.lance.index_transaction import RowSums, count_rows
from iscp.index.lance.word_counts import WordCounts
from tests.fakes.maintained_index import MaintainedIndex, counted, random_row, stored_counts

ROWS = 40


@pytest.fixture
def index(tmp_path: Path) -> MaintainedIndex:
    made, chance = MaintainedIndex(str(tmp_path / "index"), 4), random.Random(1)
    made.create()
    made.change({str(number): random_row(chance, 4) for number in range(ROWS)}, [])
    return made


def sums_of(index: MaintainedIndex) -> tuple[RowSums, pa.Table]:
    """What all rows of the model come to, counted in two parts."""
    rows, counts = index.table(index.model), WordCounts()
    sums = count_rows([rows.slice(0, ROWS // 3)], counts).plus(count_rows([rows.slice(ROWS // 3)], counts))
    return sums, counts.table()


def with_head(index: MaintainedIndex, **changes: object) -> OpenIndex:
    commit = index.store.begin()
    commit.head = replace(commit.head, **changes)  # type: ignore[arg-type]
    commit.commit()
    return index.store.open()


def test_the_sums_of_an_index_are_those_of_its_rows(index: MaintainedIndex) -> None:
    assert sums_right(index.store.open(), *sums_of(index))


@pytest.mark.parametrize("name", ["rows", "faults", "vectors", "totals", "count_files"])
def test_each_sum_that_is_wrong_is_found(index: MaintainedIndex, name: str) -> None:
    head = index.store.open().head
    wrong: dict[str, object] = {
        **{each: getattr(head, each) + 1 for each in ("rows", "faults", "vectors")},
        "totals": (head.totals[0], head.totals[1].plus((0, 1))),
        "count_files": (),
    }
    assert not sums_right(with_head(index, **{name: wrong[name]}), *sums_of(index))


def test_one_commit_repairs_rows_and_sums(index: MaintainedIndex) -> None:
    head = index.store.open().head
    with_head(index, rows=3, vectors=0, totals=(FieldTotals(1, 1), FieldTotals()), count_files=head.count_files * 2)
    del index.model["7"]
    commit = index.store.begin()
    commit.remove(commit.seek(["7"]))
    commit.state_sums(*sums_of(index))
    commit.commit()
    found = index.store.open()
    assert sums_right(found, *sums_of(index))
    assert (found.head.rows, stored_counts(found, 1)) == (ROWS - 1, counted(index.model, 1)[0])


def counts(rows: list[int]) -> pa.Table:
    return pa.table({"word": [f"w{each}" for each in range(len(rows))], "rows": rows})


@pytest.mark.parametrize("number", [0, 1, 2, 5, 20])
def test_of_a_few_words_each_is_searched_for_at_most_once(number: int) -> None:
    found = sampled_words(counts(list(range(number))))
    assert len(found) == len(set(found))
    assert set(found) <= {f"w{each}" for each in range(number)}
    assert bool(found) == bool(number)


def test_rare_words_middling_ones_and_the_most_common_are_searched_for() -> None:
    rows = [1] * 400 + [5] * 300 + [1_000 + each for each in range(300)]
    found = [int(word[1:]) for word in sampled_words(counts(rows[::-1]))]
    by_sort = [999 - each for each in found]
    assert len(found) == 3 * WORDS_OF_EACH_SORT
    assert sum(each < 333 for each in by_sort) == WORDS_OF_EACH_SORT
    assert sorted(by_sort)[-WORDS_OF_EACH_SORT:] == list(range(1_000 - WORDS_OF_EACH_SORT, 1_000))
