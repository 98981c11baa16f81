"""The plan that an index's definition gives for its rows: the dataset's columns, and how rows are encoded for them.

Vectors that the index has stored are found by the hash of their text, so that no text is embedded twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from iscp.consumers.validation import CONSUMER_PATH
from iscp.index.embedding.embedder_registry import Known, Vectors
from iscp.index.embedding.embedding_service import EmbeddingService
from iscp.index.lance.index_columns import TEXT_HASH, VECTOR, IndexHead, analyser_of, dataset_schema
from iscp.index.lance.index_store import OpenIndex
from iscp.index.lance.index_transaction import ADDRESS
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.row_encoder import EmbeddedTexts, RowEncoder, RowRules
from iscp.index.lance.text_analysis import Analyse
from iscp.index.model.index_definition import Analysis, IndexDefinition, Metric, VectorPrecision
from iscp.model.api.api_requests import VECTOR_NUMBERS_MAX
from iscp.model.sql.sql_names import quoted
from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.ports.source import Rows
from iscp.ports.system import Guard
from iscp.spark.spark_errors import spark_faults
from iscp.system.late_imports import pc

VECTORS_COUNTED_MAX = 1_000
"""Vectors of a large source whose numbers are counted, to learn how many a vector has."""


class IndexPlan:
    """One job's definition, key and embedder. `embedding` is None where no text is embedded."""

    def __init__(
        self, definition: IndexDefinition, key: Sequence[str], embedding: Callable[[], EmbeddingService] | None
    ) -> None:
        self.key = tuple(key)
        self.options = definition
        self._embedding = embedding

    @cached_property
    def definition(self) -> str:
        return self.options.to_json()

    @property
    def texts(self) -> tuple[str, ...]:
        return self.options.text_names()

    @property
    def vectors(self) -> bool:
        return self.options.vector is not None

    @property
    def embeds(self) -> bool:
        return self._embedding is not None

    @cached_property
    def _service(self) -> EmbeddingService | None:
        return None if self._embedding is None else self._embedding()

    @property
    def fingerprint(self) -> str:
        return "" if self._service is None else self._service.fingerprint

    @property
    def dimension(self) -> int:
        """Return how many numbers a vector has, 0 where only the rows say it, or there are none."""
        return 0 if self._service is None else self._service.dimension

    @property
    def stored(self) -> tuple[str, ...]:
        """Return the columns that are stored as the source has them: a column of vectors is not."""
        vector = self.options.vector
        column = vector.column.lower() if vector is not None else ""
        return tuple(name for name in self.options.stored_columns(self.key) if name.lower() != column)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns that have to be read of the source."""
        return self.options.stored_columns(self.key)

    def quoted_columns(self, source: Sequence[str]) -> list[str]:
        """Return the columns that are read, as the source spells them, for Spark's SQL."""
        by_name = {name.lower(): name for name in source}
        return [quoted(by_name[name.lower()]) for name in self.columns]

    def schema(self, source: pa.Schema, dimension: int) -> pa.Schema:
        """Return the dataset's schema for rows of these columns."""
        by_name = {each.name.lower(): each for each in source}
        stored = [pa.field(name, _stored_type(by_name[name.lower()].type)) for name in self.stored]
        vector = self.options.vector
        half = vector is not None and vector.precision is VectorPrecision.FLOAT16
        return dataset_schema(stored, len(self.texts), dimension, half)

    def misfit(self, head: IndexHead) -> str:
        """Return why an index's rows are not those of this definition, or an empty text."""
        if head.definition != self.definition:
            earlier = self.options.analysed_by(1)
            if earlier is not None and head.definition == earlier.to_json():
                return "its words were made by an earlier analysis, to which the forms of a text were different words"
            return "its definition was another one"
        if head.fingerprint != self.fingerprint:
            return "its vectors were made by another embedder, or another version of it"
        return ""

    def same_embedder(self, head: IndexHead) -> bool:
        return bool(head.fingerprint) and head.fingerprint == self.fingerprint

    def rows_misfit(self, rows: pa.Schema, dataset: pa.Schema) -> str:
        """Return why changed rows do not fit the dataset's columns, or an empty text."""
        by_name = {each.name.lower(): each.type for each in rows}
        for name in self.stored:
            if _stored_type(by_name[name.lower()]) != dataset.field(name).type:
                return f"{name} has another type than the index"
        return ""

    def dimension_of(self, dataset: pa.Schema) -> int:
        return dataset.field(VECTOR).type.list_size if VECTOR in dataset.names else 0

    def vector_sizes(self, rows: pa.Table) -> Counter[int]:
        """Return how many rows have a vector of so many numbers, of those whose vectors are a column."""
        vector = self.options.vector
        if vector is None or not vector.column:
            return Counter()
        name = next(each for each in rows.schema.names if each.lower() == vector.column.lower())
        return Counter(pc.list_value_length(rows[name]).drop_null().to_pylist())

    def usual_size(self, sizes: Mapping[int, int]) -> int:
        """Return how many numbers most vectors have, the more of two that are as many; 0 where there is none.

        A single vector decides nothing, as all others would be faults then. Raises PermanentError if all vectors have
        more numbers than can be searched for.
        """
        often = {size: count for size, count in sizes.items() if 0 < size <= VECTOR_NUMBERS_MAX}
        if often:
            return max(often, key=lambda size: (often[size], size))
        if (longest := max(sizes, default=0)) > VECTOR_NUMBERS_MAX:
            raise PermanentError(
                f"the source has vectors of {longest} numbers, and at most {VECTOR_NUMBERS_MAX} are indexed",
                about=f"{CONSUMER_PATH}.options.column",
                remedy="Name a column of shorter vectors",
                code=ErrorCode.TABLE_UNREADABLE,
            )
        return 0

    def dimension_in_rows(self, rows: Rows) -> int:
        """Return the `usual_size` of vectors of a source: of its first `VECTORS_COUNTED_MAX` where Spark has its rows.

        Raises as that does.
        """
        vector = self.options.vector
        if vector is None or not vector.column:
            return 0
        if rows.table is not None:
            return self.usual_size(self.vector_sizes(rows.table))
        size = f"size({quoted(vector.column)})"
        with spark_faults("read the first vectors"):
            first = rows.frame.where(f"{size} > 0").selectExpr(f"{size} AS size").limit(VECTORS_COUNTED_MAX).toArrow()
        return self.usual_size(Counter(first["size"].to_pylist()))

    def encoder(self, schema: pa.Schema, guard: Guard | None = None) -> RowEncoder:
        """Return what encodes rows for a dataset of this schema."""
        vector, service = self.options.vector, self._service

        def embed(texts: Sequence[str], known: Known | None) -> EmbeddedTexts:
            assert service is not None
            return service.embed(texts, known=known, guard=guard)

        return RowEncoder(
            schema,
            RowRules(
                key=self.key,
                texts=self.texts,
                analyse=self._analyse,
                vector=vector.column if vector is not None else "",
                embedded=vector.text if vector is not None else "",
                embed=embed,
                directed=vector is not None and vector.metric is Metric.COSINE,
                analysis=self.options.analysis or Analysis(),
            ),
        )

    @cached_property
    def _analyse(self) -> Analyse:
        analysis = self.options.analysis
        return analyser_of(analysis) if analysis is not None else lambda texts: [None] * len(texts)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which an index stores values of a type: Spark's tables come by two ways, with small and large
    texts.
    """
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def vectors_among(found: pa.Table, hashes: Sequence[bytes]) -> Mapping[bytes, Vectors]:
    """Return the vectors of rows that go, by the hashes of their texts."""
    wanted = found.filter(pc.is_in(found[TEXT_HASH], value_set=pa.array(hashes, found.schema.field(TEXT_HASH).type)))
    return _by_hash(wanted)


def vectors_of(index: OpenIndex) -> Known:
    """Return what finds vectors that an index has stored, by the hashes of their texts."""
    cached: list[pa.Table] = []

    def known(hashes: Sequence[bytes]) -> Mapping[bytes, Vectors]:
        if VECTOR not in index.dataset.schema.names:
            return {}
        with lance_faults(f"read {index.root}"):
            return found(hashes)

    def found(hashes: Sequence[bytes]) -> Mapping[bytes, Vectors]:
        if not cached:
            cached.append(
                index.dataset.scanner(
                    columns=[TEXT_HASH], filter=f"{TEXT_HASH} IS NOT NULL", with_row_address=True
                ).to_table()
            )
        kind = index.dataset.schema.field(TEXT_HASH).type
        places = pc.index_in(pa.array(hashes, kind), value_set=cached[0][TEXT_HASH].combine_chunks()).drop_null()
        addresses = cached[0][ADDRESS].combine_chunks().take(places).to_pylist()
        return _by_hash(index.dataset._take_rows(addresses, columns=[TEXT_HASH, VECTOR])) if addresses else {}

    return known


def _by_hash(rows: pa.Table) -> dict[bytes, Vectors]:
    some = rows.filter(pc.is_valid(rows[VECTOR]))
    flat = some[VECTOR].combine_chunks()
    size = flat.type.list_size
    matrix = flat.flatten().to_numpy(zero_copy_only=False).reshape(-1, size).astype("float32")
    return dict(zip(some[TEXT_HASH].to_pylist(), matrix, strict=True))
