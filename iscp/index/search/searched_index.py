"""An index at one version as searches have it: its definition, its live documents, and the words of its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from iscp.core.values.errors import InvalidRequest
from iscp.index.lance.analysis_options import analyser_of
from iscp.index.lance.index_columns import VECTOR, is_reserved, words_column
from iscp.index.lance.index_head import unreadable_head
from iscp.index.lance.text_analysis import Analyse
from iscp.index.model.analysed_query import AnalysedQuery, AnalysedWord, expand
from iscp.index.model.bm25 import Corpus
from iscp.index.model.definition_parsing import definition_from_json
from iscp.index.model.query_syntax import parse_query
from iscp.index.search.document_scores import Statistics, words_by_column
from iscp.index.search.live_vocabulary import LiveVocabulary, rows_with

if TYPE_CHECKING:
    from iscp.index.lance.index_store import OpenIndex
    from iscp.index.model.index_definition import IndexDefinition

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
