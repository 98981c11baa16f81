"""A search whose candidates are many reads their words and vectors in parts, and finds the same."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pyarrow as pa

from iscp.index.lance.index_store import open_index
from iscp.index.search.fulltext_search import FulltextSearch
from iscp.index.search.searched_index import SearchedIndex
from iscp.index.search.vector_search import VectorRanking, VectorSearch
from tests.integration.index.search.small_index import SmallIndex, random_vectors

ROWS = 2_300
DIMENSION = 64


def test_words_of_all_matches_are_read_in_parts(tmp_path: Path) -> None:
    index = SmallIndex(tmp_path / "index", "fulltext", {"columns": "body"}, [pa.field("body", pa.string())])
    index.commit([{"id": each, "body": f"red {'blue ' * (each % 7)} n{each % 11}"} for each in range(ROWS)])
    index.cover()
    searched = SearchedIndex(open_index(index.uri))
    query = searched.query("red n3")
    best = FulltextSearch(searched, query).best(20).rows
    # Nothing bounds what is left out where the numbers of a segment are missing: all matches are read.
    found = FulltextSearch(searched, query, read_segment=lambda *_: None, rows_at_once=100).best(20)
    assert [(row, row.address) for row in found.rows] == [(row, row.address) for row in best]
    assert found.scored == ROWS


def searched_within(searched: SearchedIndex, numbers_at_once: int) -> tuple[VectorRanking, int]:
    """The nearest rows, and the greatest number of bytes that Python and NumPy had for them."""
    search = VectorSearch(searched, numbers_at_once=numbers_at_once)
    tracemalloc.start()
    try:
        return search.nearest([1.0] * DIMENSION, 50), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_vectors_of_candidates_are_read_in_parts(tmp_path: Path) -> None:
    index = SmallIndex(tmp_path / "index", "vector", {"column": "v"}, [], DIMENSION)
    index.commit([{"id": key, "v": each} for key, each in enumerate(random_vectors(1, ROWS, DIMENSION))])
    index.cover()
    searched = SearchedIndex(open_index(index.uri))
    whole, most = searched_within(searched, ROWS * DIMENSION)
    parts, less = searched_within(searched, 100 * DIMENSION)
    assert parts == whole
    assert 2 * less < most
