"""Rows that Lance ranks far behind, because of rows that are gone, are found nevertheless."""

from __future__ import annotations

import pyarrow as pa
import pytest

from iscp.index.lance.index_store import SegmentStatistics, segment_statistics
from iscp.index.lance.word_counts import CountFile, merged_counts
from iscp.index.search.fulltext_search import FulltextSearch, ReadSegment
from iscp.index.search.searched_index import SearchedIndex
from tests.integration.index.search.reference_ranks import Clause, ReferenceRanks, require_ranks
from tests.integration.index.search.small_index import SmallIndex

SHORT, LONG, LEFT = 3_000, 200, 300


def same_counts(live: SearchedIndex) -> ReadSegment:
    """Say of each segment that it was built of the rows that are there now: a file that does not belong to it."""
    totals = live.index.head.totals[0]
    table = pa.table({"column": pa.array([0], pa.int16()), "word": ["apple"], "rows": [totals.rows]})
    found = SegmentStatistics(totals.rows, totals.words, CountFile(merged_counts([table])))
    return lambda root, uuid: found


@pytest.fixture(scope="module")
def drifted(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    """An index of short rows and few long ones, of which most short ones are gone: a length counts less than it did."""
    place = tmp_path_factory.mktemp("drifted") / "index"
    index = SmallIndex(place, "fulltext", {"columns": "t", "tokenizer": "simple"}, [pa.field("t", pa.string())])
    index.commit(
        [{"id": key, "t": "apple pie"} for key in range(SHORT)]
        + [{"id": SHORT + key, "t": " ".join(["apple"] * 20 + ["pear"] * 80)} for key in range(LONG)]
    )
    index.cover()
    index.commit([], list(range(LEFT, SHORT)))
    return index


@pytest.mark.parametrize("misled", [False, True], ids=["stated", "misstated"])
def test_long_rows_are_found_that_lance_ranks_behind_all_short_ones(drifted: SmallIndex, misled: bool) -> None:
    searched = SearchedIndex(drifted.store.open())
    read = same_counts(searched) if misled else segment_statistics
    ranking = FulltextSearch(searched, searched.query("apple"), read_segment=read).best(10)
    expected = ReferenceRanks(drifted.live_words(), {"t": 1.0}).ranked([Clause("", "words", ("apple",), ("t",))])
    assert int(expected[0][1]) >= SHORT
    require_ranks([(row.score, row.key) for row in ranking.rows], expected, 10, "apple")
