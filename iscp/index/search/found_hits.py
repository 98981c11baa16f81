"""Hits of the rows that a search has found: their columns, highlights and explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iscp.core.api.search_views import SearchHit
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import shown
from iscp.index.lance.lance_access import lance_faults
from iscp.index.model.analysed_document import ColumnWords, column_words
from iscp.index.model.bm25 import score_document
from iscp.index.search.marked_texts import MarkedTexts, texts_of
from iscp.index.search.searched_index import placed_words, words_list

if TYPE_CHECKING:
    import pyarrow as pa

    from iscp.index.model.analysed_query import AnalysedQuery
    from iscp.index.search.hybrid_search import SearchedRows
    from iscp.index.search.searched_index import SearchedIndex


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
