"""Proves the parts of an index by searching: samples of its keys, words and vectors, against what its rows have.

Lance's segments are files of their own, built of rows at some time. That the rows are right says nothing of them: one
that was built of other rows, or is damaged, finds rows that lack a word, or misses some that have it. So each sampled
word has to be found in just the rows that have it, each sampled key in its row, and vectors that are searched for have
to reach the recall of the index's definition against the distances of all rows. Samples follow from the rows alone.
Rows that no segment covers are read by each search, and need no proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.query import MatchQuery

from iscp.core.values.untrusted_values import shown
from iscp.index.lance.address_lookup import ADDRESS, rows_with_keys
from iscp.index.lance.index_columns import HEAD_KEY, KEY, VECTOR, words_column
from iscp.index.lance.index_names import KEY_INDEX, VECTOR_INDEX, words_index
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.segments import live_counts, segments_of
from iscp.index.maintenance.calibration import NEIGHBOURS, Floats, matrix_of, nearness, sampled_vectors
from iscp.index.model.definition_parsing import definition_from_json
from iscp.index.search.searched_index import SearchedIndex
from iscp.index.search.vector_search import VectorSearch

if TYPE_CHECKING:
    from iscp.index.lance.index_store import OpenIndex
    from iscp.index.model.index_definition import VectorOptions
    from iscp.index.search.ranked_rows import RankedRow

WORDS_OF_EACH_SORT = 8
"""Words of a text column that are searched for: so many rare ones, middling ones and common ones."""

KEYS_SAMPLED = 64
"""Keys that are looked up."""

VECTORS_SAMPLED = 64
"""Stored vectors that are searched for."""

ROWS_AT_ONCE = 16_384
"""Rows that are read at once."""

CHANCE = 3.0
"""Standard deviations by which the recall of a sample may lie below that of the definition, by chance alone."""

ROUNDING = 1e-5
"""Relative difference of two distances with 32 bits that counts as none, as with rows that have the same vector."""


@dataclass(frozen=True, slots=True)
class SampledFault:
    """A part that does not find what the rows have: the index by its name in the dataset, and what was searched for."""

    index: str
    text: str


def sampled_faults(at: OpenIndex) -> list[SampledFault]:
    """Return what searches of samples find wrongly. Raises StorageError, and what a search raises."""
    definition = definition_from_json(at.head.definition)
    covered = _covered(at)
    found = list(_key_faults(at, covered.get(KEY_INDEX, frozenset())))
    for number, name in enumerate(definition.text_names()):
        found += _word_faults(at, number, name, covered.get(words_index(number), frozenset()))
    if definition.vector is not None and covered.get(VECTOR_INDEX):
        found += _vector_faults(at, definition.vector)
    return found


def _covered(at: OpenIndex) -> dict[str, frozenset[int]]:
    """Return the fragments that are there, and that the segments of each index cover."""
    present = {each.fragment_id for each in at.dataset.get_fragments()}
    found: dict[str, frozenset[int]] = {}
    for segment in segments_of(at.dataset):
        found[segment.name] = found.get(segment.name, frozenset()) | (segment.fragments & present)
    return {name: fragments for name, fragments in found.items() if fragments}


def _scanned(at: OpenIndex, column: str, fragments: frozenset[int]) -> Iterator[pa.RecordBatch]:
    chosen = [each for each in at.dataset.get_fragments() if each.fragment_id in fragments]
    yield from at.dataset.scanner(
        columns=[column], fragments=chosen, with_row_address=True, batch_size=ROWS_AT_ONCE
    ).to_batches()


def _key_faults(at: OpenIndex, fragments: frozenset[int]) -> Iterator[SampledFault]:
    if not fragments:
        return
    with lance_faults(f"read {at.root}"):
        batches = list(_scanned(at, KEY, fragments))
        if not batches:
            return
        rows = pa.Table.from_batches(batches)
        rows = rows.filter(pc.not_equal(rows[KEY], HEAD_KEY))
        step = max(1, len(rows) // KEYS_SAMPLED)
        sampled = rows.take(pa.array(range(0, len(rows), step), pa.int64()))
        there = rows_with_keys(at.dataset, sampled[KEY].to_pylist(), [])
    found = dict(zip(there[ADDRESS].to_pylist(), there[KEY].to_pylist(), strict=True))
    for key, address in zip(sampled[KEY].to_pylist(), sampled[ADDRESS].to_pylist(), strict=True):
        if found.get(address) != key:
            yield SampledFault(KEY_INDEX, f"the key {shown(key)}")


def _word_faults(at: OpenIndex, number: int, column: str, fragments: frozenset[int]) -> Iterator[SampledFault]:
    if not fragments:
        return
    name = words_column(number)
    with lance_faults(f"search {at.root}"):
        words = sampled_words(live_counts(at, number, sorted(fragments))[0])
        having: dict[str, list[pa.Array]] = {word: [] for word in words}
        for batch in _scanned(at, name, fragments):
            for word in words:
                there = pc.fill_null(pc.match_substring(batch[name], f" {word} "), False)
                having[word].append(batch[ADDRESS].filter(there))
        for word in words:
            expected = {address for part in having[word] for address in part.to_pylist()}
            rows = at.dataset.scanner(
                columns=["_score"],
                full_text_query=MatchQuery(word, name),
                fast_search=True,
                limit=at.head.rows + 1,
                with_row_address=True,
            ).to_table()
            if expected != set(rows[ADDRESS].to_pylist()):
                yield SampledFault(words_index(number), f"the word {shown(word)} of {column}")


def sampled_words(counts: pa.Table) -> list[str]:
    """Return words of a table of counts: rare ones, middling ones and common ones, each sort evenly spread."""
    ordered = counts.take(pc.sort_indices(counts, [("rows", "ascending"), ("word", "ascending")]))
    words = ordered["word"].to_pylist()
    bounds = [0, len(words) // 3, 2 * len(words) // 3, max(0, len(words) - WORDS_OF_EACH_SORT)]
    chosen: set[int] = set()
    for begin, end in ((bounds[0], bounds[1]), (bounds[1], bounds[2]), (bounds[3], len(words))):
        step = max(1, (end - begin) // WORDS_OF_EACH_SORT)
        chosen.update(range(begin, end, step)[:WORDS_OF_EACH_SORT])
    return [words[each] for each in sorted(chosen)]


def _vector_faults(at: OpenIndex, options: VectorOptions) -> Iterator[SampledFault]:
    with lance_faults(f"search {at.root}"):
        queries = sampled_vectors(at.dataset, VECTORS_SAMPLED)[1]
        queries = queries[queries.any(axis=1)]  # nothing is searched for by zeros
        if not len(queries):
            return
        metric = options.metric.value
        least = _least_nearness(at, queries, metric)
        search = VectorSearch(SearchedIndex(at))
        reached = sum(
            _reached(at, query, search.nearest(query.tolist(), NEIGHBOURS).rows, metric, bound)
            for query, bound in zip(queries, least, strict=True)
        )
    count = len(queries) * min(NEIGHBOURS, at.head.vectors)
    recall, wanted = reached / count, options.recall
    if recall < wanted - CHANCE * math.sqrt(wanted * (1 - wanted) / count):
        yield SampledFault(VECTOR_INDEX, f"vectors at a recall of {recall:.3f}, and not {wanted:g}")


def _least_nearness(at: OpenIndex, queries: Floats, metric: str) -> list[float]:
    """Return how near the last of each query's neighbours is, by the distances of all rows."""
    scores = np.empty((len(queries), 0), np.float32)
    scanned = at.dataset.scanner(columns=[VECTOR], filter=f"{VECTOR} IS NOT NULL", batch_size=ROWS_AT_ONCE)
    for batch in scanned.to_batches():
        if len(batch):
            scores = np.concatenate([scores, nearness(queries, matrix_of(batch[VECTOR]), metric)], axis=1)
            if scores.shape[1] > NEIGHBOURS:
                scores = -np.partition(-scores, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]
    return [float(each) for each in scores.min(axis=1)]


def _reached(at: OpenIndex, query: Floats, rows: Sequence[RankedRow], metric: str, bound: float) -> int:
    """Return how many rows are as near as the last neighbour, whichever of equal rows they are."""
    if not rows:
        return 0
    vectors = matrix_of(at.dataset._take_rows([row.address for row in rows], columns=[VECTOR])[VECTOR].combine_chunks())
    near = nearness(query[np.newaxis], vectors, metric)[0]
    slack = ROUNDING * max(abs(bound), float(np.square(query, dtype=np.float64).sum()) if metric == "l2" else 1.0)
    return int((near >= bound - slack).sum())
