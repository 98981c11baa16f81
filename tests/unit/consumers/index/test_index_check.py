"""A verification compares all sums that ranks depend on, and a repair commits them together with the rows."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.consumers.index.index_check import sums_right
from iscp.index.lance.index_head import FieldTotals
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
