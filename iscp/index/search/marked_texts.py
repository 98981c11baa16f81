"""The fragments of stored texts in which words of a query are marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from iscp.core.api.search_views import MARK
from iscp.core.values.errors import InvalidRequest
from iscp.index.lance.analysis_options import analyser_of, folding_of
from iscp.index.model.graphemes import FoldedText, folded_with_places
from iscp.index.model.highlighting import HIGHLIGHTED_CHARS_MAX, HighlightOptions, TokenSpan, highlight, token_spans
from iscp.index.model.index_definition import Tokenizer
from iscp.index.search.searched_index import words_list

if TYPE_CHECKING:
    from iscp.index.lance.text_analysis import Analyse
    from iscp.index.model.analysed_query import AnalysedQuery
    from iscp.index.search.searched_index import SearchedIndex


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
