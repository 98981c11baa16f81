"""Searches by vectors, and searches of an index as a whole: by words, by vectors, or by both.

The parts: the search for the nearest vectors, the vectors of queries' texts, and the search by words and vectors, whose
rankings are then fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Protocol, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iscp.index.embedding.embedder_registry import EmbedderRegistry
from iscp.index.lance.index_columns import KEY, VECTOR, VECTOR_INDEX
from iscp.index.lance.index_transaction import ADDRESS
from iscp.index.lance.lance_access import FALSE, TRUE, lance_faults
from iscp.index.lance.row_encoder import VECTOR_LENGTH_MAX, VECTOR_LENGTH_MIN
from iscp.index.model.index_definition import Metric
from iscp.index.model.ranking import RANK_CONSTANT, Ranking, fuse
from iscp.index.search.document_scores import parts_of
from iscp.index.search.fresh_rows import (
    CACHED_BYTES_MAX,
    FreshRows,
    NearestBound,
    Numbers,
    Reals,
    VectorRows,
    cached_vectors,
    living_rows,
)
from iscp.index.search.fulltext_search import FulltextSearch
from iscp.index.search.searched_index import BestRows, RankedRow
from iscp.model.values.errors import InvalidRequest
from iscp.system.recent_values import RecentValues

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

    from iscp.index.model.analysed_query import AnalysedQuery
    from iscp.index.search.searched_index import SearchedIndex
    from iscp.model.api.api_requests import SearchRequest


# --- the nearest vectors ----------------------------------------------------------------------------------------------
# The nearest vectors are found by exact distances of candidates. Rows that no segment of a vector index has are all
# compared: in single precision first, under a bound of its error, so that no row is left out that may be among the
# nearest. The segments of an index are searched by Lance, which compares the vectors of the partitions that are nearest
# to the query: as many as a calibration found to reach the recall, or all where a filter keeps few rows, as these may
# lie in any. The numbers of the candidates are then read, and their scores computed in double precision: these do not
# depend on the index.

REFINE_WITHOUT_CALIBRATION = 40
"""How many times as many candidates as hits have their distances compared exactly, while no calibration says a number:
those of quantized vectors are rough.
"""

REFINED_HITS_LEAST = 10
"""Hits for which candidates are compared, at least, as a calibration does."""

FEW_SHARE = 0.3
"""The share of the rows from which on a filter keeps many; of fewer, all partitions are searched. With the probes that
reach a recall of 0.95 without a filter, one that keeps 1 % found 0.85 (ADR 45).
"""

FILTERED_REFINED = 2
"""How many times as many candidates a filter needs: the nearest rows that it keeps are farther from the query than
those of all, and their quantized distances differ less from each other's. With all partitions and a filter that keeps
10 % the same number of candidates found 0.92 where 0.95 was wanted.
"""

PROBES_WITHOUT_CALIBRATION = 20
"""Partitions that are searched while no calibration has said how many reach the recall."""

NUMBERS_AT_ONCE = 4_000_000
"""Numbers of candidates' vectors that are in memory at once: a search for many hits has some 100,000 candidates."""

NUMBERS_SCANNED = 400_000
"""Numbers of vectors in each batch of rows that are read to be compared: they stay in a processor's cache while they
are compared. Lance reads several batches ahead.
"""

ALL_PROBES = 2**20
"""More partitions than an index has: Lance searches all of them."""

FILTERS_COUNTED_MAX = 1_000
"""Filters of versions of indexes of which it is remembered how many rows they keep; others are counted again."""

_KEPT: RecentValues[tuple[str, int, int, str], int] = RecentValues(FILTERS_COUNTED_MAX)
_FIELD = "vector"


@dataclass(frozen=True, slots=True)
class VectorRanking:
    """The nearest rows, and whether all rows were compared."""

    rows: Sequence[RankedRow]
    exact: bool


def checked_vector(vector: Sequence[float], dimension: int, metric: Metric) -> npt.NDArray[np.float64]:
    """Return a query's numbers. Raises InvalidRequest for those that no row of an index can be compared with."""
    numbers = np.asarray(vector, np.float64)
    if len(numbers) != dimension:
        raise InvalidRequest(
            f"has {len(numbers)} numbers, and those of the index have {dimension}",
            field=_FIELD,
            remedy="Give a vector of the same model as the rows'",
        )
    with np.errstate(over="ignore"):
        fits = bool(np.isfinite(numbers.astype(np.float32)).all())
    if not fits:
        raise InvalidRequest(
            "has a number that is NaN, infinite or too large", field=_FIELD, remedy="Give finite numbers alone"
        )
    length = float(np.sqrt(np.square(numbers).sum()))
    if length > VECTOR_LENGTH_MAX:
        raise InvalidRequest(
            f"has a length of more than {VECTOR_LENGTH_MAX:.0e}, with which no distance can be computed",
            field=_FIELD,
            remedy="Give a shorter one",
        )
    if metric is Metric.COSINE and 0 < length < VECTOR_LENGTH_MIN:
        raise InvalidRequest(
            f"has a length of less than {VECTOR_LENGTH_MIN:.0e}, which has no direction",
            field=_FIELD,
            remedy="Give a longer one",
        )
    if metric is not Metric.L2 and not numbers.any():
        raise InvalidRequest(
            "is all zeros, which has no direction", field=_FIELD, remedy=f"Give another one: the metric is {metric}"
        )
    return numbers


class VectorSearch:
    """Searches by vectors in one version of an index. `condition` is a filter of Lance's."""

    def __init__(
        self,
        searched: SearchedIndex,
        condition: str = TRUE,
        numbers_at_once: int = NUMBERS_AT_ONCE,
        numbers_scanned: int = NUMBERS_SCANNED,
        cached_bytes_max: int = CACHED_BYTES_MAX,
    ) -> None:
        vector = searched.definition.vector
        if vector is None or not searched.has_vectors:
            raise InvalidRequest(
                "is given, and the index has no vectors" + ("" if vector is None else " yet"),
                field=_FIELD,
                remedy="Search it by words, or search an index of the kind vector or search",
            )
        self._metric = vector.metric
        self._numbers_at_once, self._numbers_scanned = numbers_at_once, numbers_scanned
        self._cached_bytes_max = cached_bytes_max
        self._searched = searched
        self._dataset: LanceDataset = searched.index.dataset
        self._condition = None if condition == TRUE else condition

    @cached_property
    def dimension(self) -> int:
        """Return how many numbers the vectors of rows have."""
        return int(self._dataset.schema.field(VECTOR).type.list_size)

    def nearest(self, vector: Sequence[float], most: int) -> VectorRanking:
        """Return the best `most` rows. Raises InvalidRequest for a vector that fits none, and StorageError."""
        query = checked_vector(vector, self.dimension, self._metric)
        with lance_faults(f"search {self._searched.index.root}"):
            covered = self._covered()
            best = BestRows(most)
            self._compare_fresh(covered or set(), query, best)
            if covered is not None:
                refine = self._searched.index.head.refine or REFINE_WITHOUT_CALIBRATION
                found = self._candidates(query, self._probes(), refine * max(REFINED_HITS_LEAST, most))
                self._take(found, query, best)
            return VectorRanking(best.rows, exact=covered is None)

    def _covered(self) -> set[int] | None:
        """Return the fragments whose vectors are indexed; None where there is no index."""
        found = [each for each in self._dataset.describe_indices() if each.name == VECTOR_INDEX]
        if not found:
            return None
        return {number for index in found for segment in index.segments for number in segment.fragment_ids}

    def _compare_fresh(self, covered: set[int], query: npt.NDArray[np.float64], best: BestRows) -> None:
        """Compare all rows that no segment has."""
        head = self._searched.index.head_address >> 32
        fresh = {
            each.fragment_id: each
            for each in self._dataset.get_fragments()
            if each.fragment_id not in covered and not (each.fragment_id == head and each.physical_rows == 1)
        }
        bound = NearestBound(query, best.most, self._metric)
        cached = cached_vectors(self._dataset, [*fresh.values()], self.dimension, self._cached_bytes_max)
        compared: list[tuple[FreshRows[VectorRows], Numbers, Reals]] = []
        for number, living in living_rows(self._dataset, cached, self._condition).items():
            if living is not None:
                rows = cached[number]
                compared.append((rows, *bound.compare(rows.content, living)))
                del fresh[number]
        self._scan([*fresh.values()], query, bound, best)
        scores, keys, addresses = [np.empty(0)], list[str](), list[int]()
        for rows, numbers, upper in compared:
            some = numbers[upper >= bound.least]
            scores.append(self._scores(rows.content, some, query))
            keys += [rows.keys[each] for each in some.tolist()]
            addresses += rows.addresses[some].tolist()
        best.add(np.concatenate(scores), keys, addresses)

    def _scan(
        self, fragments: list[LanceFragment], query: npt.NDArray[np.float64], bound: NearestBound, best: BestRows
    ) -> None:
        """Compare the rows of fragments that are not cached."""
        if not fragments:
            return
        scanner = self._dataset.scanner(
            columns=[VECTOR],
            filter=self._condition,
            fragments=fragments,
            with_row_address=True,
            batch_size=max(1, self._numbers_scanned // self.dimension),
        )
        addresses, scores = np.empty(0, np.uint64), np.empty(0)
        for batch in scanner.to_batches():
            rows = VectorRows(batch[VECTOR])
            numbers, upper = bound.compare(rows, np.ones(len(batch), np.bool_))
            some = numbers[upper >= bound.least]
            if len(some) == 0:
                continue
            addresses = np.concatenate([addresses, batch[ADDRESS].to_numpy().astype(np.uint64)[some]])
            scores = np.concatenate([scores, self._scores(rows, some, query)])
            if len(scores) > 2 * best.most:
                kept = best.worthy(scores)
                addresses, scores = addresses[kept], scores[kept]
        chosen = best.worthy(scores)
        self._add(addresses[chosen].tolist(), scores[chosen], best)

    def _scores(
        self, rows: VectorRows, some: npt.NDArray[np.int64], query: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Return the scores of some of these rows in double precision."""
        scores = np.empty(len(some))
        for begin, end in self._parts(len(some)):
            scores[begin:end] = matrix_scores(rows.matrix[some[begin:end]].astype(np.float64), query, self._metric)
        return scores

    def _parts(self, count: int) -> Iterator[tuple[int, int]]:
        return parts_of(count, max(1, self._numbers_at_once // self.dimension))

    def _add(self, addresses: list[int], scores: npt.NDArray[np.float64], best: BestRows) -> None:
        """Take rows whose keys have to be read."""
        # Rows are read faster in their order.
        keys = self._dataset._take_rows(addresses, columns=[KEY])[KEY].to_pylist() if addresses else []
        best.add(scores, keys, addresses)

    def _probes(self) -> int:
        probes = self._searched.index.head.probes or PROBES_WITHOUT_CALIBRATION
        if self._condition is None:
            return probes
        kept, rows = self._kept(self._condition), self._searched.index.head.rows
        # The nearest rows that are kept lie in about so many times as many partitions as those of all.
        return ALL_PROBES if kept < FEW_SHARE * rows else math.ceil(probes * rows / max(1, kept))

    def _kept(self, condition: str) -> int:
        """Return how many rows a filter keeps."""
        index = self._searched.index
        key = index.root, index.version, index.head.rows, condition
        if (kept := _KEPT.get(key)) is None:
            kept = int(self._dataset.count_rows(condition))
            _KEPT.put(key, kept)
        return kept

    def _candidates(self, query: npt.NDArray[np.float64], probes: int, most: int) -> pa.Table:
        """Return the addresses of candidates among the rows that segments have."""
        candidates = most if self._condition is None else most * FILTERED_REFINED
        return self._dataset.scanner(
            columns=["_distance"],
            nearest={
                "column": VECTOR,
                "q": query.astype(np.float32),
                "k": max(1, min(candidates, self._searched.index.head.vectors)),
                "metric": self._metric.value,
                "nprobes": probes,
            },
            filter=self._condition,
            prefilter=True,
            fast_search=True,
            with_row_address=True,
        ).to_table()

    def _take(self, found: pa.Table, query: npt.NDArray[np.float64], best: BestRows) -> None:
        addresses = sorted(found[ADDRESS].to_pylist())
        for begin, end in self._parts(len(addresses)):
            some = addresses[begin:end]
            scores = vector_scores(self._dataset._take_rows(some, columns=[VECTOR])[VECTOR], query, self._metric)
            chosen = best.worthy(scores)
            self._add([some[each] for each in chosen], scores[chosen], best)


def vector_scores(vectors: pa.ChunkedArray, query: npt.NDArray[np.float64], metric: Metric) -> npt.NDArray[np.float64]:
    """Return the scores of vectors, NaN for null: the cosine of the angle, the inner product, or minus the distance."""
    flat = vectors.combine_chunks()
    there = flat.is_valid().to_numpy(zero_copy_only=False)
    matrix = flat.flatten().to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, len(query))
    scores = np.full(len(flat), np.nan)
    scores[there] = matrix_scores(matrix, query, metric)
    return scores


def matrix_scores(
    matrix: npt.NDArray[np.float64], query: npt.NDArray[np.float64], metric: Metric
) -> npt.NDArray[np.float64]:
    """Return the scores of vectors, one a line."""
    # A sum over rows of the same numbers is the same wherever they are: a product of matrices is not.
    scores: npt.NDArray[np.float64]
    match metric:
        case Metric.L2:
            scores = -np.sqrt(np.square(matrix - query).sum(axis=1))
        case Metric.DOT:
            scores = (matrix * query).sum(axis=1)
        case Metric.COSINE:
            norms = np.sqrt(np.square(matrix).sum(axis=1)) * math.sqrt(float(np.square(query).sum()))
            scores = (matrix * query).sum(axis=1) / norms
        case _ as never:
            assert_never(never)
    return scores


# --- the vectors of queries -------------------------------------------------------------------------------------------
# A query's text becomes a vector by the embedder that made the vectors of an index's rows.

_FIELD_OF_BOTH = "text"


class QueryEmbedder(Protocol):
    """An embedder. Its fingerprint is that of the vectors it makes: only those of one fingerprint compare."""

    @property
    def fingerprint(self) -> str: ...
    def embed(self, texts: Sequence[str], /) -> npt.NDArray[np.float32]: ...


EmbedderOf = Callable[[str], QueryEmbedder]
"""A function of an embedder's name that returns it. Raises InvalidRequest for one that is not there."""


@cache
def _registry() -> EmbedderRegistry:
    return EmbedderRegistry()


def own_embedder(name: str) -> QueryEmbedder:
    """Return an embedder of this process: iscp's own ones, as their settings are without a node."""
    return _registry().embedder(name, _FIELD_OF_BOTH)


def embedded_query(text: str, name: str, fingerprint: str, embedder_of: EmbedderOf) -> tuple[float, ...]:
    """Return the vector of a query's text. Raises InvalidRequest if the embedder is not the one of the rows."""
    embedder = embedder_of(name)
    if embedder.fingerprint != fingerprint:
        raise InvalidRequest(
            f"cannot be embedded: {name} makes other vectors here than those of the index",
            field=_FIELD_OF_BOTH,
            remedy="Use the embedder with which the index was made, or give a vector",
        )
    return tuple(map(float, embedder.embed([text])[0]))


# --- searches by words, by vectors, or by both ------------------------------------------------------------------------

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
        from iscp.index.search.filters import lance_filter  # most searches have none, and its parser is large

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
