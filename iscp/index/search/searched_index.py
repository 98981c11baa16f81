"""An index at one version as searches have it: its definition, its live documents, and the words of its texts.

The parts: the words of live documents, the searched index itself, opening it at a version that may answer, highlights,
hits, and the best of scored rows.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from rapidfuzz.distance import OSA
from rapidfuzz.process import cdist

from iscp.index.lance.index_columns import VECTOR, analyser_of, folding_of, is_reserved, unreadable_head, words_column
from iscp.index.lance.index_store import open_index, open_live
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.text_analysis import Analyse
from iscp.index.lance.word_counts import CountFile, LiveCounts
from iscp.index.model.analysed_query import AnalysedQuery, AnalysedWord, ColumnWords, column_words, expand
from iscp.index.model.definition_parsing import definition_from_json
from iscp.index.model.highlighting import (
    HIGHLIGHTED_CHARS_MAX,
    FoldedText,
    HighlightOptions,
    TokenSpan,
    folded_with_places,
    highlight,
    token_spans,
)
from iscp.index.model.index_definition import Tokenizer
from iscp.index.model.query_syntax import parse_query
from iscp.index.model.ranking import Corpus, score_document
from iscp.index.search.document_scores import Statistics, words_by_column
from iscp.model.api.api_requests import MARK, SearchHit
from iscp.model.values.errors import ErrorCode, InvalidRequest, TemporaryError
from iscp.model.values.untrusted_values import shown
from iscp.model.values.watermark import NOTHING_APPLIED, Watermark

if TYPE_CHECKING:
    from iscp.index.lance.index_store import OpenIndex
    from iscp.index.model.index_definition import IndexDefinition
    from iscp.index.search.vector_search import SearchedRows


# --- the words of live documents --------------------------------------------------------------------------------------
# The words with a prefix, and those that are near another word.

WORDS_AT_ONCE_LEAST = 32
"""Words from which on their counts are found by one pass over all words, and not each by itself."""


class LiveVocabulary:
    """The words of an index's text columns (port Vocabulary). `texts` are the columns by their numbers."""

    def __init__(self, counts: LiveCounts, texts: Sequence[str]) -> None:
        self._counts = counts
        self._numbers = {name: number for number, name in enumerate(texts)}

    def with_prefix(self, column: str, prefix: str, most: int) -> Sequence[str]:
        number = self._numbers[column]
        parts = []
        for file in self._counts.files:
            words, rows = file.counted(number)
            begin, end = _with_prefix(words, prefix)
            parts.append(pa.table({"word": words[begin:end], "rows": rows[begin:end]}))
        if not parts:
            return []
        summed = pa.concat_tables(parts).group_by("word").aggregate([("rows", "sum")])
        live = summed.filter(pc.greater(summed["rows_sum"], 0))
        order = pc.sort_indices(live, [("rows_sum", "descending"), ("word", "ascending")])[:most]
        return list(live["word"].take(order).to_pylist())

    def near(self, column: str, term: str, distance: int, most: int) -> Sequence[str]:
        """Return the nearest words, of equally near ones those of most documents first.

        Two neighbours that have changed places are one change (the restricted distance of Damerau and Levenshtein).
        """
        number = self._numbers[column]
        found: dict[str, int] = {}
        for file in self._counts.files:
            words = _of_length(file.words(number), len(term), distance)
            changes = cdist([term], words, scorer=OSA.distance, score_cutoff=distance)[0] if words else np.zeros(0)
            found |= {words[at]: int(changes[at]) for at in np.flatnonzero(changes <= distance).tolist()}
        rows = rows_with(self._counts.files, number, list(found))
        live = [(changes, -rows[word], word) for word, changes in found.items() if rows[word] > 0]
        return [word for _, _, word in sorted(live)[:most]]


def rows_with(files: Sequence[CountFile], number: int, words: Sequence[str]) -> dict[str, int]:
    """Return in how many rows each word of the text column `number` is: the sum of several files of counts."""
    if len(words) < WORDS_AT_ONCE_LEAST:
        return {word: sum(file.rows(number, word) for file in files) for word in words}
    sums = np.zeros(len(words), np.int64)
    wanted = pa.array(words, pa.string())
    for file in files:
        known, rows = file.counted(number)
        places = pc.index_in(known, value_set=wanted)
        there = pc.is_valid(places)
        np.add.at(sums, places.filter(there).to_numpy(), rows.filter(there).to_numpy())
    return dict(zip(words, sums.tolist(), strict=True))


def _with_prefix(words: pa.StringArray, prefix: str) -> tuple[int, int]:
    """Return the bounds of those of sorted words that begin with a text."""

    def beginning(at: int) -> str:
        return str(words[at].as_py())[: len(prefix)]

    places = range(len(words))
    return bisect_left(places, prefix, key=beginning), bisect_right(places, prefix, key=beginning)


def _of_length(words: pa.StringArray, length: int, distance: int) -> list[str]:
    sizes = pc.utf8_length(words)
    near = pc.and_(pc.greater_equal(sizes, length - distance), pc.less_equal(sizes, length + distance))
    return list(words.filter(near).to_pylist())


# --- the searched index -----------------------------------------------------------------------------------------------

_TEXT_FIELD = "text"


@dataclass(frozen=True)
class SearchedIndex:
    """A search reads these parts of an index. All of them are of one version."""

    index: OpenIndex

    @cached_property
    def definition(self) -> IndexDefinition:
        """Return what is indexed. Raises PermanentError for what is no definition, or none of this index's columns."""
        found = definition_from_json(self.index.head.definition)
        if len(found.text_names()) != len(self.index.head.totals):
            raise unreadable_head("its definition has other text columns than its sums")
        return found

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Return the text columns, each at the number of its column of words."""
        return self.definition.text_names()

    @cached_property
    def stored(self) -> tuple[str, ...]:
        """Return the columns of the source that the index stores."""
        return tuple(name for name in self.index.dataset.schema.names if not is_reserved(name))

    @property
    def has_vectors(self) -> bool:
        return VECTOR in self.index.dataset.schema.names

    def words_of(self, column: str) -> str:
        """Return the name of the column with the words of a text column."""
        return words_column(self.texts.index(column))

    def corpora(self, query: AnalysedQuery) -> dict[str, Corpus]:
        """Return the live documents of each text column, with the counts of a query's words. Raises StorageError."""
        corpora = {}
        for column, words in words_by_column(query).items():
            number = self.texts.index(column)
            totals = self.index.head.totals[number]
            corpora[column] = Corpus(totals.rows, totals.words, rows_with(self.index.counts.files, number, words))
        return corpora

    def live_statistics(self, query: AnalysedQuery) -> dict[str, Statistics]:
        """Return the statistics of the live documents of all columns that a query compares. Raises StorageError."""
        return {
            column: Statistics(
                corpus.average_length, {word: corpus.idf(word) for word in words_by_column(query)[column]}
            )
            for column, corpus in self.corpora(query).items()
        }

    @cached_property
    def analyse(self) -> Analyse:
        """Return the function that makes words of texts, as those of rows were made."""
        assert self.definition.analysis is not None  # there are text columns
        return analyser_of(self.definition.analysis)

    def query(self, text: str) -> AnalysedQuery:
        """Return a query in the words of the index. Raises InvalidRequest for one that does not parse."""
        if not self.texts:
            raise InvalidRequest(
                "is a query by words, and the index has no text columns",
                field=_TEXT_FIELD,
                remedy="Search it by a vector, or search an index of the kind fulltext or search",
            )
        assert self.definition.analysis is not None
        whole_words = analyser_of(replace(self.definition.analysis, stem=False, stop_words=False))
        vocabulary = LiveVocabulary(self.index.counts, self.texts)
        return expand(
            parse_query(text, self.texts),
            lambda _, part: placed_words(words_list(self.analyse([part])[0])),
            lambda _, part: words_list(whole_words([part])[0]),
            vocabulary,
            boosts=self.definition.boosts(),
            positions=self.definition.analysis.positions,
        )


def words_list(words: str | None) -> list[str]:
    """Return the words of a text as it is stored."""
    return words.split(" ")[1:-1] if words else []


def placed_words(words: Sequence[str]) -> list[AnalysedWord]:
    """Return words with their places. A word that the analysis left out has none, neither in a row nor in a query."""
    return [AnalysedWord(word, place) for place, word in enumerate(words)]


# --- opening ----------------------------------------------------------------------------------------------------------
# A search may be answered from a version that is whole, and as new as the search needs.

POLL_LEAST_S, POLL_MOST_S = 0.02, 0.1
"""Seconds after which a search that waits for a version opens the index again: at first, and at most."""


class IndexNotReadyError(TemporaryError):
    """An index is being built, or has not come to the version that a search needs."""

    code = ErrorCode.NOT_READY


@dataclass(frozen=True, slots=True)
class ReadyIndex:
    """An index, the watermark of the source that it is at, and for how long it was waited for."""

    index: OpenIndex
    watermark: Watermark
    waited_s: float


def open_whole(uri: str) -> OpenIndex:
    """Return the newest version of an index whose rows are all of one version of the source.

    Raises as `open_live`.
    """
    newest = open_live(uri)
    return open_index(uri, newest.head.whole) if newest.head.whole else newest


def open_ready(
    uri: str,
    min_version: int | None,
    wait_s: float,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ReadyIndex:
    """Return the newest version of an index as soon as it has wholly applied `min_version` of its source.

    Raises IndexNotReadyError after `wait_s` seconds, or at once where nothing is to be waited for and the index is not
    built yet; InvalidRequest where there is no index, and StorageError.
    """
    began_s = now_s()
    pause_s = POLL_LEAST_S
    while True:
        waited_s = now_s() - began_s
        index = open_whole(uri)
        watermark = Watermark(index.head.version, index.head.version_at_s)
        if watermark.version > NOTHING_APPLIED and watermark.version >= (min_version or 0):
            return ReadyIndex(index, watermark, waited_s)
        left_s = wait_s - waited_s
        if min_version is None or left_s <= 0:
            raise _not_ready(uri, watermark, min_version, waited_s)
        sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, POLL_MOST_S)


def _not_ready(uri: str, watermark: Watermark, min_version: int | None, waited_s: float) -> IndexNotReadyError:
    if watermark.version == NOTHING_APPLIED:
        return IndexNotReadyError(
            f"the index {uri} is being built: it has no rows yet",
            about="uri",
            remedy="Wait until its job has built it",
        )
    return IndexNotReadyError(
        f"the index {uri} is at version {watermark.version} of its source after {waited_s:.1f} s, and not yet at "
        f"{min_version}",
        about="min_version",
        remedy="Wait for longer by wait_s, or leave out min_version to search what is there",
    )


# --- highlights -------------------------------------------------------------------------------------------------------
# The fragments of stored texts in which words of a query are marked.


class MarkedTexts:
    """Marks what a query finds.

    Lance's analysis says which words a text has, and not where. So a text is first cut into its words as they are
    written, by the same analysis without any change of words but for folding, and these are found in the folded text
    one after the other, whose characters know their places in the text as it is. Then each
    is analysed as the index does it, which gives the word that is compared, or none for a stop word.
    """

    def __init__(self, searched: SearchedIndex, query: AnalysedQuery) -> None:
        self._searched = searched
        stored = {name.lower(): name for name in searched.stored}
        terms: defaultdict[str, set[str]] = defaultdict(set)
        for column, term in query.terms():
            terms[column].add(term)
        self._terms = {column: found for column, found in terms.items() if column.lower() in stored}
        if terms and not self._terms:
            raise InvalidRequest(
                "is wished for, and the index stores none of its text columns",
                field="highlight",
                remedy="Leave it out, or have the text columns stored",
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the text columns that are needed for it."""
        return tuple(self._terms)

    def of(self, texts: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
        """Return the fragments of a row's texts, by column; none of a column without such a word."""
        found = {column: self._fragments(text, self._terms[column]) for column, text in texts.items() if text}
        return {column: fragments for column, fragments in found.items() if fragments}

    def _fragments(self, text: str, terms: set[str]) -> tuple[str, ...]:
        folded = self._folded(text[:HIGHLIGHTED_CHARS_MAX])
        surfaces = words_list(self._cut([folded.text])[0])
        analysed = self._searched.analyse(surfaces)
        words = ["" if each is None else each.strip() for each in analysed]
        spans = token_spans(folded.text, surfaces, words, overlapping=self._overlapping)
        placed = [TokenSpan(*folded.source(each.start, each.end), each.term) for each in spans]
        return highlight(text, placed, terms, HighlightOptions(*MARK, html=True))

    def _folded(self, text: str) -> FoldedText:
        analysis = self._searched.definition.analysis
        if analysis is None or not analysis.folds:
            return FoldedText(text)
        case, dotless = folding_of(analysis)
        return folded_with_places(text, case=case, dotless=dotless)

    @property
    def _overlapping(self) -> bool:
        analysis = self._searched.definition.analysis
        return analysis is not None and analysis.tokenizer is Tokenizer.NGRAM

    @cached_property
    def _cut(self) -> Analyse:
        analysis = self._searched.definition.analysis
        assert analysis is not None  # a query by words was parsed
        as_written = replace(analysis, stem=False, stop_words=False, lower_case=False, ascii_folding=False)
        return analyser_of(as_written)


def texts_of(row: Mapping[str, object], columns: Sequence[str]) -> dict[str, str | None]:
    """Return those of a row's columns that are texts."""
    return {name: value for name in columns if isinstance(value := row.get(name), str)}


# --- hits -------------------------------------------------------------------------------------------------------------
# Hits are made of the rows that a search has found: their columns, highlights and explanations.


def shown_columns(searched: SearchedIndex, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return stored columns by the names that a search gives. Raises InvalidRequest for others."""
    if columns is None:
        return searched.stored
    stored = {name.lower(): name for name in searched.stored}
    for name in columns:
        if name.lower() not in stored:
            raise InvalidRequest(
                f"names {shown(name)}, which the index does not store",
                field="columns",
                remedy=f"Name some of {', '.join(searched.stored)}",
            )
    return tuple(dict.fromkeys(stored[name.lower()] for name in columns))


def key_columns(searched: SearchedIndex) -> tuple[str, ...]:
    """Return the stored columns that identify a row."""
    stored = {name.lower(): name for name in searched.stored}
    return tuple(stored[name.lower()] for name in searched.index.head.key)


def rows_at(searched: SearchedIndex, addresses: Sequence[int], columns: Sequence[str]) -> pa.Table:
    """Return columns of rows, in the order of their addresses. Raises StorageError."""
    with lance_faults(f"read {searched.index.root}"):
        dataset = searched.index.dataset
        if not addresses:
            return dataset.scanner(columns=list(columns), limit=0).to_table()
        return dataset._take_rows(list(addresses), columns=list(columns))


class FoundHits:
    """Makes hits of rows. `query` is the one by words, if there is one."""

    def __init__(
        self, searched: SearchedIndex, columns: Sequence[str], query: AnalysedQuery | None, marked: MarkedTexts | None
    ) -> None:
        self._searched = searched
        self._key = key_columns(searched)
        self._columns = columns
        self._query = query
        self._marked = marked

    def of(self, found: SearchedRows, explain: bool) -> tuple[SearchHit, ...]:
        """Return the hits of rows, in their order. Raises StorageError."""
        marked = () if self._marked is None else self._marked.columns
        words = self._words() if explain else {}
        names = dict.fromkeys((*self._key, *self._columns, *marked, *words.values()))
        table = rows_at(self._searched, [row.address for row in found.rows], list(names))
        hits = []
        for row, values in zip(found.rows, table.to_pylist(), strict=True):
            hits.append(
                SearchHit(
                    key={name: values[name] for name in self._key},
                    score=row.score,
                    columns={name: values[name] for name in self._columns},
                    highlights={} if self._marked is None else self._marked.of(texts_of(values, marked)),
                    explanation=self._explained(values, words, found.notes.get(row.address, "")) if explain else "",
                )
            )
        return tuple(hits)

    def _words(self) -> dict[str, str]:
        """Return the columns of words that an explanation needs, by their text columns."""
        if self._query is None:
            return {}
        return {column: self._searched.words_of(column) for column, _ in self._query.all_terms()}

    def _explained(self, values: Mapping[str, Any], words: Mapping[str, str], note: str) -> str:
        if self._query is None:
            return note
        document: dict[str, ColumnWords] = {
            column: column_words(placed_words(words_list(values[name]))) for column, name in words.items()
        }
        score = score_document(self._query, document, self._searched.corpora(self._query))
        return "\n".join(filter(None, [note, score.explanation().explained()]))


# --- the best rows ----------------------------------------------------------------------------------------------------
# The best of the rows that were scored so far, in their order: by score, then by key.


@dataclass(frozen=True, slots=True, order=True)
class RankedRow:
    """A row of the dataset. Rows compare in the order of hits: the best is the least."""

    loss: float
    key: str
    address: int = field(compare=False)

    @property
    def score(self) -> float:
        return -self.loss


class BestRows:
    """Keeps the `most` best rows; rows of equal scores are ordered by the texts of their keys."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.rows: Sequence[RankedRow] = ()

    def restart(self, rows: Sequence[RankedRow]) -> None:
        """Keep these rows alone, as if no others had been added."""
        self.rows = rows

    def worthy(self, scores: npt.NDArray[np.float64]) -> list[int]:
        """Return which of rows with these scores may be among the best, NaN being no score."""
        found = np.flatnonzero(~np.isnan(scores))
        if len(found) > self.most:
            # All rows that are as good as the last one that is kept: their keys decide.
            least = np.partition(scores[found], -self.most)[-self.most]
            found = found[scores[found] >= least]
        chosen: list[int] = found.tolist()
        return chosen

    def add(self, scores: npt.NDArray[np.float64], keys: Sequence[str], addresses: Sequence[int]) -> None:
        """Take rows with scores; NaN is no score."""
        more = [RankedRow(-float(scores[at]), keys[at], addresses[at]) for at in self.worthy(scores)]
        # Tuples compare many times faster than rows do.
        self.rows = sorted([*self.rows, *more], key=attrgetter("loss", "key"))[: self.most]

    def reaches(self, score: float) -> bool:
        """Return whether no row of at most this score is missing."""
        return len(self.rows) >= self.most and self.rows[-1].score >= score
