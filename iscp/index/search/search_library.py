"""`iscp.search`: searches of an index wherever it is, without a node.

An index as people see it: what it is, how far it is, what it is made of; and the rows that it could not take in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from iscp.index.lance.index_columns import FAULT
from iscp.index.lance.index_store import open_live
from iscp.index.lance.lance_access import lance_faults
from iscp.index.maintenance.index_shape import read_shape
from iscp.index.search.searched_index import (
    FoundHits,
    MarkedTexts,
    ReadyIndex,
    SearchedIndex,
    key_columns,
    open_ready,
    rows_at,
    shown_columns,
)
from iscp.index.search.vector_search import EmbedderOf, HybridSearch, SearchedRows, own_embedder
from iscp.model.api.api_requests import VECTOR_NUMBERS_MAX, WAIT_S, SearchAnswer, SearchRequest, SearchWeights
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.untrusted_values import json_value
from iscp.storage import files
from iscp.storage.dataset_trial import try_datasets_as_user
from iscp.storage.delta_errors import storage_faults
from iscp.system.child_process import Before, refuse_fork

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SCORE, VERSION = "_score", "_version"
"""The columns of `search_frame` beside those of the source: a hit's score, and the source's version."""


def search(
    uri: str,
    text: str = "",
    *,
    vector: Sequence[float] | None = None,
    k: int = 10,
    filter: str = "",  # noqa: A002  (as other libraries of this kind name it)
    min_version: int | None = None,
    wait_s: float = WAIT_S,
    columns: Sequence[str] | None = None,
    highlight: bool = False,
    explain: bool = False,
    weights: SearchWeights | None = None,
) -> SearchAnswer:
    """Return the best `k` rows of the index at `uri` for a text, a vector, or both.

    `filter` is a SQL condition on stored columns, `columns` are those that hits show (None: all). With `min_version`
    the search waits up to `wait_s` seconds for that version of the source. Raises InvalidRequest for what is no index
    or no query of it, IndexNotReadyError for an index that is being built or behind `min_version`, and StorageError.
    """
    request = _request(uri, text, vector, k, filter, min_version, wait_s, columns, weights)
    return run_search(replace(request, highlight=highlight, explain=explain))


def _request(
    uri: str,
    text: str,
    vector: Sequence[float] | None,
    k: int,
    condition: str,
    min_version: int | None,
    wait_s: float,
    columns: Sequence[str] | None,
    weights: SearchWeights | None,
) -> SearchRequest:
    return SearchRequest(
        uri,
        text,
        _numbers(vector),
        k,
        condition,
        None if columns is None else tuple(columns),
        min_version,
        wait_s,
        weights=weights or SearchWeights(),
    )


def _numbers(vector: Sequence[float] | None) -> tuple[float, ...]:
    """Return a vector of any kind, such as one of NumPy, as Python's numbers. Raises InvalidRequest for others."""
    if vector is None:
        return ()
    if len(vector) > VECTOR_NUMBERS_MAX:
        raise InvalidRequest(
            f"has {len(vector)} numbers, more than {VECTOR_NUMBERS_MAX}", field="vector", remedy="Give a shorter one"
        )
    try:
        return tuple(map(float, vector))
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest("has what is no number", field="vector", remedy="Give numbers alone") from None


def run_search(request: SearchRequest, embedder_of: EmbedderOf = own_embedder) -> SearchAnswer:
    """Return the answer to a request; raises as `search`. `embedder_of` gives the embedders of queries' texts."""
    began_s = time.perf_counter()
    opened = _opened(request, embedder_of)
    marked = None
    if request.highlight and opened.search.query is not None:
        marked = MarkedTexts(opened.searched, opened.search.query)
    found = opened.search.found()
    hits = FoundHits(opened.searched, opened.columns, opened.search.query, marked).of(found, request.explain)
    query = opened.search.query
    return SearchAnswer(
        hits,
        version=opened.ready.watermark.version,
        version_at_s=opened.ready.watermark.at_s,
        index_version=opened.ready.index.version,
        proven=found.proven,
        cut=() if query is None else query.cut,
        took_ms=1000 * (time.perf_counter() - began_s - opened.ready.waited_s),
        waited_ms=1000 * opened.ready.waited_s,
    )


def search_frame(
    spark: SparkSession,
    uri: str,
    text: str = "",
    *,
    vector: Sequence[float] | None = None,
    k: int = 10,
    filter: str = "",  # noqa: A002  (as above)
    min_version: int | None = None,
    wait_s: float = WAIT_S,
    columns: Sequence[str] | None = None,
    weights: SearchWeights | None = None,
) -> DataFrame:
    """Return the rows that `search` finds, for joins: the key, the columns, the score and the source's version.

    Raises as `search`. The rows are those of now, however late the frame is evaluated.
    """
    request = _request(uri, text, vector, k, filter, min_version, wait_s, columns, weights)
    opened = _opened(request, own_embedder)
    found = opened.search.found()
    names = list(dict.fromkeys((*key_columns(opened.searched), *opened.columns)))
    table = _with_scores(rows_at(opened.searched, [row.address for row in found.rows], names), found, opened.ready)
    return spark.createDataFrame(table)


def _with_scores(rows: pa.Table, found: SearchedRows, ready: ReadyIndex) -> pa.Table:
    scores = pa.array([row.score for row in found.rows], pa.float64())
    versions = pa.array([ready.watermark.version] * len(found.rows), pa.int64())
    return rows.append_column(SCORE, scores).append_column(VERSION, versions)


@dataclass(frozen=True, slots=True)
class _Opened:
    ready: ReadyIndex
    searched: SearchedIndex
    search: HybridSearch
    columns: tuple[str, ...]


def _opened(request: SearchRequest, embedder_of: EmbedderOf) -> _Opened:
    refuse_fork("search", Before.INDEXES)
    try_datasets_as_user()
    ready = open_ready(request.uri, request.min_version, request.wait_s)
    searched = SearchedIndex(ready.index)
    columns = shown_columns(searched, request.columns)
    return _Opened(ready, searched, HybridSearch(searched, request, embedder_of), columns)


@dataclass(frozen=True, slots=True)
class PartOverview:
    """A part of an index: keys, the words of a column, or vectors.

    `rows` are in it, `fresh_rows` of these in no segment yet, so that each search reads them. `indexed_from` rows on it
    has segments.
    """

    name: str
    rows: int
    segments: int
    fresh_rows: int
    indexed_from: int


@dataclass(frozen=True, slots=True)
class IndexOverview:
    """An index at its newest version.

    `version` is that of the source, committed at `version_at_s` (Unix seconds), -1 while it is being built;
    `index_version` is the index's own, and `versions` of it are there. `rows` are those of the source, of which
    `faults` could not be indexed. `dead_rows` are deleted and still in files. `bytes` has all files of all versions.
    """

    uri: str
    kind: str
    options: Mapping[str, Any]
    key: tuple[str, ...]
    version: int
    version_at_s: float
    index_version: int
    rows: int
    faults: int
    vectors: int
    parts: tuple[PartOverview, ...]
    fragments: int
    dead_rows: int
    versions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A row that could not be indexed: the columns of its key, and why not."""

    key: Mapping[str, Any]
    fault: str


def read_overview(uri: str) -> IndexOverview:
    """Return what the index at a place is. Raises InvalidRequest where there is none, and StorageError."""
    at = open_live(uri)
    shape = read_shape(at, 0.0, 0.0)
    with storage_faults(f"list {at.root}"):
        size = files.bytes_below(at.root)
    definition = json.loads(at.head.definition)
    return IndexOverview(
        uri=at.root,
        kind=str(definition.get("kind", "")),
        options=definition.get("options", {}),
        key=at.head.key,
        version=at.head.version,
        version_at_s=at.head.version_at_s,
        index_version=at.version,
        rows=at.head.rows,
        faults=at.head.faults,
        vectors=at.head.vectors,
        parts=tuple(
            PartOverview(part.name, part.rows, len(part.segments), part.fresh_rows, part.rows_min)
            for part in shape.parts
        ),
        fragments=sum(len(group.fragments) for group in shape.groups),
        dead_rows=sum(group.dead for group in shape.groups),
        versions=shape.versions,
        bytes=size,
    )


def read_dead_letters(uri: str, limit: int) -> tuple[DeadLetter, ...]:
    """Return up to `limit` rows that could not be indexed, in no order; raises as `read_overview`."""
    at = open_live(uri)
    names = {name.lower(): name for name in at.dataset.schema.names}
    key = [names[each.lower()] for each in at.head.key]
    with lance_faults(f"read {at.root}"):
        found = at.dataset.scanner(columns=[*key, FAULT], filter=f"{FAULT} IS NOT NULL", limit=limit).to_table()
    return tuple(
        DeadLetter({name: json_value(row[name]) for name in key}, str(row[FAULT])) for row in found.to_pylist()
    )
