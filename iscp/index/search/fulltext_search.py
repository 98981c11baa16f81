"""Full-text search with exact ranks: they follow from the live documents alone, whatever the index went through.

Lance finds candidates among the rows that its index has. Their scores are computed from their words. The best ones are
proven to be the best if no row that Lance has left out can reach the last of them (text_candidates has the bound);
otherwise Lance is called for more, until they are, or there are no more. Rows that no segment has yet, those of the
last commits, are all read and scored. Where no statistics of a segment are there, or Lance's scores are not those that
follow from them, all matches are taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from iscp.index.lance.address_lookup import ADDRESS
from iscp.index.lance.index_columns import KEY
from iscp.index.lance.index_names import words_index
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.segments import segment_statistics
from iscp.index.search.document_scores import DocumentScores, Reals, Statistics, parts_of
from iscp.index.search.document_words import CodedColumns, DocumentWords, having_any
from iscp.index.search.filters import TRUE
from iscp.index.search.fresh_rows import FreshRows, cached_texts, living_rows
from iscp.index.search.indexed_statistics import IndexedPart, ReadSegment, indexed_part, indexed_statistics
from iscp.index.search.ranked_rows import BestRows, RankedRow
from iscp.index.search.text_candidates import CandidateQuery, candidate_query

if TYPE_CHECKING:
    from lance import LanceFragment

    from iscp.index.model.analysed_query import AnalysedQuery
    from iscp.index.search.searched_index import SearchedIndex

CANDIDATES_LEAST = 32
"""Candidates that Lance is called for at first, at least; three for each hit otherwise."""

WIDENING = 4
"""How many times as many candidates Lance is called for when the hits are not proven."""

SCORE_ERROR = 1e-3
"""The greatest relative difference between a score of Lance's and what it is to be; beyond, nothing is taken as proven.
"""

ROUNDING = 1e-5
"""The relative error of Lance's scores, which have 24 bits; what differs less counts as equal in the proof."""

SOUGHT_WORDS_MAX = 8
"""Words that new rows are searched for before they are scored; of a longer query all of them are scored."""

ROWS_AT_ONCE = 20_000
"""Rows whose words are in memory at once."""


@dataclass(frozen=True, slots=True)
class TextRanking:
    """The best rows, and how many were scored for them."""

    rows: Sequence[RankedRow]
    scored: int


class FulltextSearch:
    """One query on one version of an index. `condition` is a filter of Lance's."""

    def __init__(
        self,
        searched: SearchedIndex,
        query: AnalysedQuery,
        condition: str = TRUE,
        read_segment: ReadSegment = segment_statistics,
        rows_at_once: int = ROWS_AT_ONCE,
    ) -> None:
        self._searched = searched
        self._dataset = searched.index.dataset
        self._query = query
        self._condition = None if condition == TRUE else condition
        self._read_segment = read_segment
        self._rows_most = rows_at_once
        columns = sorted({column for column, _ in query.all_terms()})
        self._words_columns = {column: searched.words_of(column) for column in columns}
        self._live = searched.live_statistics(query)
        self._scores = DocumentScores(query, self._live)
        self._scored = 0

    def best(self, most: int) -> TextRanking:
        """Return the best `most` rows. Raises StorageError."""
        if self._query.root is None or not self._query.terms():
            return TextRanking((), 0)
        numbers = {column: self._searched.texts.index(column) for column in self._words_columns}
        part = indexed_part(
            self._dataset, {words_index(numbers[column]): name for column, name in self._words_columns.items()}
        )
        with lance_faults(f"search {self._searched.index.root}"):
            best = BestRows(most)
            self._take_fresh(part, best)
            if part.fragments:
                self._take_indexed(part, numbers, best)
        return TextRanking(best.rows, self._scored)

    # --- rows that no segment has --------------------------------------------------------------------------------

    def _take_fresh(self, part: IndexedPart, best: BestRows) -> None:
        fresh = [each for each in self._dataset.get_fragments() if each.fragment_id not in part.fragments]
        cached = cached_texts(self._dataset, fresh, self._words_columns)
        lives = living_rows(self._dataset, cached, self._condition)
        for number, rows in cached.items():
            if (living := lives[number]) is not None:
                self._score_cached(rows, living, best)
        if others := [each for each in fresh if lives.get(each.fragment_id) is None]:
            self._take_read(others, best)

    def _score_cached(self, rows: FreshRows[CodedColumns], living: npt.NDArray[np.bool_], best: BestRows) -> None:
        for begin, end in parts_of(len(rows.keys), self._rows_at_once):
            documents = self._scores.coded_words(rows.content.columns, begin, end)
            scores = np.where(living[begin:end], self._scores.scores(documents, end - begin), np.nan)
            best.add(scores, rows.keys[begin:end], rows.addresses[begin:end].tolist())
        self._scored += int(np.count_nonzero(living))

    def _take_read(self, fresh: Sequence[LanceFragment], best: BestRows) -> None:
        scanner = self._dataset.scanner(
            columns=[KEY, *self._words_columns.values()],
            filter=self._condition,
            fragments=fresh,
            with_row_address=True,
            batch_size=ROWS_AT_ONCE,
        )
        gathered: list[pa.RecordBatch] = []
        for batch in scanner.to_batches():
            gathered.append(self._with_words(batch))
            # The few rows of each of many small commits are scored together.
            if sum(map(len, gathered)) >= ROWS_AT_ONCE:
                self._score_parts(pa.Table.from_batches(gathered), best)
                gathered = []
        if gathered:
            self._score_parts(pa.Table.from_batches(gathered), best)

    def _score_parts(self, rows: pa.Table, best: BestRows) -> None:
        for begin, end in parts_of(len(rows), self._rows_at_once):
            self._score(rows.slice(begin, end - begin), best)

    def _with_words(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that have a word of the query, or all if it has many."""
        terms = self._query.terms()
        if len(terms) > SOUGHT_WORDS_MAX:
            return rows
        words: defaultdict[str, list[str]] = defaultdict(list)
        for column, word in terms:
            words[column].append(word)
        found = np.zeros(len(rows), np.bool_)
        for column, some in words.items():
            found |= having_any(rows[self._words_columns[column]], some)
        return rows.filter(pa.array(found))

    # --- rows that Lance's index has -----------------------------------------------------------------------------

    def _take_indexed(self, part: IndexedPart, numbers: Mapping[str, int], best: BestRows) -> None:
        indexed = self._indexed_statistics(part, numbers)
        made = candidate_query(self._query, self._words_columns, self._live, indexed)
        if made is None:
            return
        limit = max(CANDIDATES_LEAST, 3 * best.most)
        rows = self._searched.index.head.rows + 1
        if indexed is None:
            limit = rows
        fresh = best.rows
        while True:
            found = self._candidates(made, limit)
            mine = found.filter(pc.is_in(_fragments_of(found), value_set=pa.array(sorted(part.fragments), pa.int64())))
            best.restart(fresh)
            given = mine["_score"].to_numpy() / made.scale
            right = self._score_candidates(mine, given, made, indexed, best)
            if len(found) < limit or limit >= rows:
                return
            if not right:
                limit = rows  # Lance ranks otherwise than is known: no bound follows from that
                continue
            last = float(found["_score"][len(found) - 1].as_py()) / made.scale
            if best.reaches(made.drift * last * (1 - ROUNDING)):
                return
            limit = min(rows, limit * WIDENING)

    def _indexed_statistics(self, part: IndexedPart, numbers: Mapping[str, int]) -> dict[str, Statistics] | None:
        """Return what Lance ranks by, or None if that is not known of all columns."""
        found = {}
        for column, name in self._words_columns.items():
            words = list(self._live[column].idfs)
            root = self._searched.index.root
            one = indexed_statistics(root, part.segments[name], numbers[column], words, self._read_segment)
            if one is None:
                return None
            found[column] = one
        return found

    def _candidates(self, made: CandidateQuery, limit: int) -> pa.Table:
        """Return the rows that Lance ranks first, the best first: of many without their words."""
        words = [KEY, *self._words_columns.values()] if limit <= self._rows_most else []
        return self._dataset.scanner(
            columns=[*words, "_score"],
            full_text_query=made.query,
            filter=self._condition,
            prefilter=True,
            fast_search=True,
            limit=limit,
            with_row_address=True,
        ).to_table()

    def _score_candidates(
        self,
        rows: pa.Table,
        given: Reals,
        made: CandidateQuery,
        indexed: Mapping[str, Statistics] | None,
        best: BestRows,
    ) -> bool:
        """Score rows, and return whether Lance's scores are those that follow from what is known of its index."""
        right = True
        lance_scores = None if indexed is None else DocumentScores(self._query, indexed)
        for begin, end in parts_of(len(rows), self._rows_at_once):
            some = rows.slice(begin, end - begin).combine_chunks()
            if KEY not in some.column_names:
                some = self._with_document(some)
            documents = self._score(some, best)
            if lance_scores is not None:
                expected = lance_scores.flat_scores(documents, made.boosts, len(some))
                right = right and bool(np.allclose(expected, given[begin:end], rtol=SCORE_ERROR, atol=1e-9))
        return right

    def _with_document(self, rows: pa.Table) -> pa.Table:
        """Return rows with their keys and words."""
        addresses = rows[ADDRESS]
        found = self._dataset._take_rows(addresses.to_pylist(), columns=[KEY, *self._words_columns.values()])
        return found.append_column(ADDRESS, addresses).combine_chunks()

    @property
    def _rows_at_once(self) -> int:
        return min(self._rows_most, self._scores.rows_at_once)

    def _score(self, rows: pa.Table, best: BestRows) -> dict[str, DocumentWords]:
        texts = {column: rows[name].combine_chunks() for column, name in self._words_columns.items()}
        documents = self._scores.words(texts)
        scores = self._scores.scores(documents, len(rows))
        best.add(scores, rows[KEY].to_pylist(), rows[ADDRESS].to_pylist())
        self._scored += len(rows)
        return documents


def _fragments_of(rows: pa.Table) -> pa.ChunkedArray:
    return pc.shift_right(rows[ADDRESS].cast(pa.uint64()), pa.scalar(32, pa.uint64())).cast(pa.int64())
