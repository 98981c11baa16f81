"""Full-text search with exact ranks: they follow from the live documents alone, whatever the index went through.

The parts: the query that Lance gets, what Lance's index on words has and by which statistics it ranks, and the search,
which computes the scores of Lance's candidates and proves that the best of them are the best of all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.query import BooleanQuery, FullTextQuery, MatchQuery, Occur, PhraseQuery

from iscp.index.lance.index_columns import KEY, words_index
from iscp.index.lance.index_store import SegmentStatistics, segment_statistics
from iscp.index.lance.index_transaction import ADDRESS
from iscp.index.lance.lance_access import TRUE, lance_faults
from iscp.index.model.analysed_query import (
    AnalysedBoolean,
    AnalysedLeaf,
    AnalysedNode,
    AnalysedPhrase,
    AnalysedQuery,
    AnalysedTerm,
)
from iscp.index.model.ranking import Corpus
from iscp.index.search.document_scores import (
    CodedColumns,
    DocumentScores,
    DocumentWords,
    Reals,
    Statistics,
    having_any,
    parts_of,
)
from iscp.index.search.fresh_rows import FreshRows, cached_texts, living_rows
from iscp.index.search.searched_index import BestRows, RankedRow, rows_with

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

    from iscp.index.search.searched_index import SearchedIndex


# --- the query for Lance ----------------------------------------------------------------------------------------------
# Lance's index is given a query such that what Lance ranks first is what the exact scores rank first. Each word that
# adds to a score has a boost by which its weight in Lance's statistics becomes nearly that in the live ones. So for
# each row that Lance finds,
#
#     exact score <= drift * Lance's score / scale
#
# where `drift` is the greatest quotient of the average lengths of live and of indexed documents, or 1: a document's
# length counts less where the average is greater, and at most in that proportion. What a query requires is added as
# conditions. These add to Lance's scores too, next to nothing beside the scaled boosts, and never less than nothing; so
# the bound stays one.

CONDITION_SHARE = 2.0**-20
"""The boost of a condition in relation to the least one of a word that is ranked by."""

BOOST_SPREAD = 0.05
"""The relative difference of boosts up to which words are ranked by the greatest of these."""

_NO_WORD = "\x1f"
"""A word for what no word of the index is. If a text has it, its row is a candidate that the comparison leaves out."""

Terms = Mapping[tuple[str, str], float]
"""The boosts of words, by column and word."""


@dataclass(frozen=True, slots=True)
class CandidateQuery:
    """Lance's query, the boosts by which it ranks words, by which scale its scores are greater, and their drift."""

    query: FullTextQuery
    boosts: Terms
    scale: float
    drift: float


def scoring_boosts(query: AnalysedQuery) -> dict[tuple[str, str], float]:
    """Return by which boost each word adds to the score of a document that has it, at most."""
    boosts: defaultdict[tuple[str, str], float] = defaultdict(float)
    for leaf in _scoring_leaves(query.root):
        for part in leaf.parts:
            for word in (part.term,) if isinstance(part, AnalysedTerm) else (each.term for each in part.words):
                boosts[part.column, word] += part.boost
    return dict(boosts)


def _scoring_leaves(node: AnalysedNode | None) -> Iterator[AnalysedLeaf]:
    match node:
        case None:
            pass
        case AnalysedLeaf():
            yield node
        case AnalysedBoolean(must, should, _):
            for each in (*must, *should):
                yield from _scoring_leaves(each)
        case _ as never:
            assert_never(never)


def candidate_query(
    query: AnalysedQuery,
    words_columns: Mapping[str, str],
    live: Mapping[str, Statistics],
    indexed: Mapping[str, Statistics] | None,
) -> CandidateQuery | None:
    """Return the query for Lance, or None if no indexed row can match it.

    `words_columns` has the column of words of each text column. `indexed` has the statistics by which Lance ranks;
    without them all words are boosted as they are.
    """
    assert query.root is not None  # what is empty finds nothing, and is never searched for
    boosts, drift = scoring_boosts(query), 1.0
    if indexed is not None:
        boosts = {
            (column, word): boost * live[column].idfs[word] / indexed[column].idfs[word]
            for (column, word), boost in boosts.items()
        }
        quotients = (
            live[column].average_length / indexed[column].average_length
            for column in live
            if indexed[column].average_length
        )
        drift = max([1.0, *quotients])
    groups = _groups(boosts)
    boosts = {term: boost for boost, terms in groups for term in terms}
    scale = 1 / (CONDITION_SHARE * min([1.0, *boosts.values()]))
    made = _QueryTranslation(words_columns, boosts, scale)
    clauses = [*made.conditions(query.root)]
    for boost, terms in groups:
        if words := " ".join(word for column, word in terms if (column, word) in made.left):
            clauses.append((Occur.SHOULD, made.term(terms[0][0], words, boost * scale)))
    if not clauses:
        return None  # a prefix, say, with which no word begins
    whole = clauses[0][1] if len(clauses) == 1 and clauses[0][0] is not Occur.MUST_NOT else BooleanQuery(clauses)
    return CandidateQuery(whole, boosts, scale, drift)


def _groups(boosts: Terms) -> list[tuple[float, list[tuple[str, str]]]]:
    """Return the words of one column whose boosts are nearly the same, with the greatest of these.

    Lance searches for the words of one query much faster than for as many queries. The bound holds with greater boosts
    too.
    """
    groups: defaultdict[tuple[str, int], list[tuple[str, str]]] = defaultdict(list)
    for (column, word), boost in boosts.items():
        groups[column, round(math.log(boost) / math.log1p(BOOST_SPREAD))].append((column, word))
    return [(max(boosts[each] for each in terms), terms) for terms in groups.values()]


Clause = tuple[Occur, FullTextQuery]


class _QueryTranslation:
    """Translates conditions. `left` are the words that no condition ranks by yet."""

    def __init__(self, words_columns: Mapping[str, str], boosts: Terms, scale: float) -> None:
        self._columns = words_columns
        self._scale = scale
        self.left = dict(boosts)

    def term(self, column: str, word: str, boost: float = 1.0) -> FullTextQuery:
        return MatchQuery(word, self._columns[column], boost=boost)

    def conditions(self, root: AnalysedNode) -> list[Clause]:
        """Return what a row has to fulfil besides having one of the words that are ranked by."""
        if isinstance(root, AnalysedLeaf):
            return [] if _all_terms(root) else [(Occur.MUST, self._node(root))]
        clauses: list[Clause] = []
        for each in root.must:
            if (
                isinstance(each, AnalysedLeaf)
                and len(each.parts) == 1
                and isinstance(part := each.parts[0], AnalysedTerm)
            ):
                boost = self.left.pop((part.column, part.term), None)
                scaled = 1.0 if boost is None else boost * self._scale
                clauses.append((Occur.MUST, self.term(part.column, part.term, scaled)))
            else:
                clauses.append((Occur.MUST, self._node(each)))
        plain = all(isinstance(each, AnalysedLeaf) and _all_terms(each) for each in root.should)
        if not root.must and not plain:
            clauses.append((Occur.MUST, self._any(root.should)))
        return [*clauses, *self._exclusions(root.must_not)]

    def _node(self, node: AnalysedNode) -> FullTextQuery:
        """Return a query that finds each row that the node finds; others are left out later."""
        if isinstance(node, AnalysedLeaf):
            if not node.parts:
                return MatchQuery(_NO_WORD, next(iter(self._columns.values())))
            return BooleanQuery([(Occur.SHOULD, self._part(each)) for each in node.parts])
        clauses: list[Clause] = [(Occur.MUST, self._node(each)) for each in node.must]
        if not node.must:
            clauses.append((Occur.MUST, self._any(node.should)))
        return BooleanQuery([*clauses, *self._exclusions(node.must_not)])

    def _any(self, nodes: Sequence[AnalysedNode]) -> FullTextQuery:
        return BooleanQuery([(Occur.SHOULD, self._node(each)) for each in nodes])

    def _part(self, part: AnalysedTerm | AnalysedPhrase) -> FullTextQuery:
        if isinstance(part, AnalysedTerm):
            return self.term(part.column, part.term)
        words = list(dict.fromkeys(word.term for word in part.words))
        if not part.slop and len(words) == len(part.words):
            return PhraseQuery(" ".join(words), self._columns[part.column])
        return BooleanQuery([(Occur.MUST, self.term(part.column, word)) for word in words])

    def _exclusions(self, nodes: Sequence[AnalysedNode]) -> list[Clause]:
        """Return what excludes no row but those that the nodes find. Phrases are left to the exact comparison."""
        return [
            (Occur.MUST_NOT, self.term(part.column, part.term))
            for node in nodes
            if isinstance(node, AnalysedLeaf) and _all_terms(node)
            for part in node.parts
            if isinstance(part, AnalysedTerm)
        ]


def _all_terms(leaf: AnalysedLeaf) -> bool:
    return all(isinstance(part, AnalysedTerm) for part in leaf.parts)


# --- what Lance's index has -------------------------------------------------------------------------------------------
# The rows that Lance's index on words has, and the statistics by which it ranks them. Lance counts all rows that were
# ever put into the segments of an index, also those that are gone. What these are is written beside each segment when
# it is made. Without that nothing bounds the scores of rows that Lance leaves out.

ReadSegment = Callable[[str, str], SegmentStatistics | None]
"""A function of a dataset's place and a segment's UUID that returns its counts, or None where they were not written."""


@dataclass(frozen=True, slots=True)
class IndexedPart:
    """The fragments whose rows the indexes on some columns of words all have, and those of these columns' segments."""

    fragments: frozenset[int]
    segments: Mapping[str, Sequence[str]]


def indexed_part(dataset: LanceDataset, columns: Mapping[str, str]) -> IndexedPart:
    """Return what is indexed; `columns` are columns of words by the names of their indexes."""
    covered: dict[str, set[int]] = {index: set() for index in columns}
    segments: dict[str, list[str]] = {index: [] for index in columns}
    with lance_faults(f"list the indexes of {dataset.uri}"):
        for described in dataset.describe_indices():
            if described.name in covered:
                for segment in described.segments:
                    covered[described.name].update(segment.fragment_ids)
                    segments[described.name].append(str(segment.uuid))
        present = {fragment.fragment_id for fragment in dataset.get_fragments()}
    return IndexedPart(
        frozenset(present.intersection(*covered.values())), {columns[index]: segments[index] for index in columns}
    )


def indexed_statistics(
    root: str, segments: Sequence[str], number: int, words: Sequence[str], read: ReadSegment
) -> Statistics | None:
    """Return the sums over the segments of the index of the text column `number`; None if one segment has not said."""
    found = [read(root, each) for each in segments]
    known = [each for each in found if each is not None]
    if len(known) < len(found) or not known:
        return None
    counts = rows_with([each.counts for each in known], number, words)
    corpus = Corpus(sum(each.rows for each in known), sum(each.words for each in known), counts)
    return Statistics(corpus.average_length, {word: corpus.idf(word) for word in words})


# --- the search -------------------------------------------------------------------------------------------------------

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
    """One query on one version of an index. `condition` is a filter of Lance's.

    Lance finds candidates among the rows that its index has. Their scores are computed from their words. The best ones
    are proven to be the best if no row that Lance has left out can reach the last of them (the section on the query for
    Lance has the bound); otherwise Lance is called for more, until they are, or there are no more. Rows that no segment
    has yet, those of the last commits, are all read and scored. Where no statistics of a segment are there, or Lance's
    scores are not those that follow from them, all matches are taken.
    """

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
