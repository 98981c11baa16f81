"""Searches by words, by vectors, or by both, whose rankings are then fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from iscp.core.values.errors import InvalidRequest
from iscp.index.model.fusion import RANK_CONSTANT, Ranking, fuse
from iscp.index.search.filters import FALSE, TRUE, lance_filter
from iscp.index.search.fulltext_search import FulltextSearch
from iscp.index.search.query_embedding import EmbedderOf, embedded_query
from iscp.index.search.ranked_rows import RankedRow
from iscp.index.search.vector_search import VectorSearch

if TYPE_CHECKING:
    from iscp.core.api.search_views import SearchRequest
    from iscp.index.model.analysed_query import AnalysedQuery
    from iscp.index.search.searched_index import SearchedIndex

FUSED_FACTOR = 4
"""Rows of each ranking that is fused, for each hit."""

FUSED_LEAST = 100
"""Rows of each ranking that is fused, at least: a row that is far down in one may be first in the other."""


@dataclass(frozen=True, slots=True)
class SearchedRows:
    """The hits' rows, the best first. `proven` says that none that was left out is better; `notes` say of each by its
    address how a score came about beside that of its words.
    """

    rows: Sequence[RankedRow]
    proven: bool
    notes: Mapping[int, str] = field(default_factory=dict)


class HybridSearch:
    """One search of one version of an index."""

    def __init__(self, searched: SearchedIndex, request: SearchRequest, embedder_of: EmbedderOf) -> None:
        self._searched = searched
        self._request = request
        self._embedder_of = embedder_of
        weights = request.weights
        vector = searched.definition.vector
        embeds = vector is not None and bool(vector.embed)
        by_text = bool(request.text.strip())
        self._words = by_text and bool(searched.texts) and weights.text > 0
        self._vectors = (bool(request.vector) or (by_text and embeds)) and weights.vector > 0
        if by_text and not searched.texts and not embeds:
            raise InvalidRequest(
                "is a query by words, and the index has neither text columns nor an embedder",
                field="text",
                remedy="Search it by a vector, or search an index of the kind fulltext or search",
            )
        if not self._words and not self._vectors:
            raise InvalidRequest(
                "leave nothing to search for", field="weights", remedy="Give what is searched for a weight above 0"
            )

    @cached_property
    def condition(self) -> str:
        """Return the filter as Lance's SQL. Raises InvalidRequest."""
        if not self._request.filter.strip():
            return TRUE
        return lance_filter(self._request.filter, self._searched.index.dataset.schema, self._searched.stored)

    @cached_property
    def query(self) -> AnalysedQuery | None:
        """Return the query by words, None if there is none. Raises InvalidRequest."""
        return self._searched.query(self._request.text) if self._words else None

    def found(self) -> SearchedRows:
        """Return the hits' rows. Raises InvalidRequest for what is no query of this index, and StorageError."""
        most = self._request.k
        query, condition = self.query, self.condition
        vectors = VectorSearch(self._searched, condition) if self._vectors else None
        if condition == FALSE:
            return SearchedRows((), proven=True)
        if query is None or vectors is None:
            if query is not None:
                return SearchedRows(FulltextSearch(self._searched, query, condition).best(most).rows, proven=True)
            assert vectors is not None  # one of them is searched
            ranking = vectors.nearest(self._vector(), most)
            return SearchedRows(ranking.rows, ranking.exact, self._vector_notes(ranking.rows))
        depth = max(FUSED_LEAST, FUSED_FACTOR * most)
        by_words = FulltextSearch(self._searched, query, condition).best(depth).rows
        nearest = vectors.nearest(self._vector(), depth)
        return self._fused(by_words, nearest.rows)

    def _vector(self) -> Sequence[float]:
        if self._request.vector:
            return self._request.vector
        vector = self._searched.definition.vector
        assert vector is not None  # otherwise nothing is searched by vectors
        return embedded_query(
            self._request.text, vector.embed, self._searched.index.head.fingerprint, self._embedder_of
        )

    def _fused(self, by_words: Sequence[RankedRow], nearest: Sequence[RankedRow]) -> SearchedRows:
        rows = {row.key: row for row in (*by_words, *nearest)}
        weights = self._request.weights
        rankings = [
            Ranking([row.key for row in by_words], weights.text),
            Ranking([row.key for row in nearest], weights.vector),
        ]
        hits = fuse(rankings)[: self._request.k]
        found = [RankedRow(-hit.score, hit.key, rows[hit.key].address) for hit in hits]
        notes = {}
        for row, hit in zip(found, hits, strict=True):
            places = zip(("words", "vectors"), hit.ranks, (weights.text, weights.vector), strict=True)
            lines = [
                f"  {weight / (RANK_CONSTANT + rank):.6g} = {weight:g} / ({RANK_CONSTANT} + rank {rank} by {name})"
                for name, rank, weight in places
                if rank is not None
            ]
            notes[row.address] = "\n".join([f"{hit.score:.6g} = sum over the rankings", *lines])
        return SearchedRows(found, proven=False, notes=notes)

    def _vector_notes(self, rows: Sequence[RankedRow]) -> dict[int, str]:
        vector = self._searched.definition.vector
        assert vector is not None
        meaning = {
            "cosine": "cosine of the angle between the query's vector and the row's",
            "l2": "minus the Euclidean distance between the query's vector and the row's",
            "dot": "inner product of the query's vector and the row's",
        }[vector.metric.value]
        return {row.address: f"{row.score:.6g} = {meaning}" for row in rows}
