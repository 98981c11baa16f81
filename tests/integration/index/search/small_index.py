"""Indexes for tests of searches: rows go in as an iteration's would, and upkeep does what it may do at any time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from iscp.index.lance.index_columns import (
    KEY_INDEX,
    VECTOR,
    VECTOR_INDEX,
    FieldTotals,
    IndexHead,
    analyser_of,
    dataset_schema,
    words_column,
    words_index,
)
from iscp.index.lance.index_store import IndexStore, build_segments, commit_segments, segments_of
from iscp.index.lance.row_encoder import Embed, RowEncoder, RowRules, key_texts
from iscp.index.model.definition_parsing import parse_definition
from iscp.index.model.index_definition import IndexDefinition, Metric
from tests.fakes.guards import ScriptedFailpoints


class SmallIndex:
    """An index over rows with the whole number `id` as their key."""

    def __init__(
        self,
        place: Path | str,
        kind: str,
        options: Mapping[str, Any],
        columns: Sequence[pa.Field],
        dimension: int = 0,
        embed: Embed | None = None,
        fingerprint: str = "",
        parse: Callable[[str, Mapping[str, Any]], IndexDefinition] = parse_definition,
    ) -> None:
        self.uri = str(place)
        self.definition = parse(kind, options)
        self.store = IndexStore(self.uri, ScriptedFailpoints())
        self.version = -1
        vector = self.definition.vector
        self.source = pa.schema(
            [pa.field("id", pa.int64()), *columns]
            + ([pa.field(vector.column, pa.list_(pa.float32()))] if vector and vector.column else [])
        )
        stored = [each for each in self.source if vector is None or each.name != vector.column]
        half = vector is not None and vector.precision.value == "float16"
        texts = self.definition.text_names()
        schema = dataset_schema(stored, len(texts), dimension, half)
        analysis = self.definition.analysis
        self._encoder = RowEncoder(
            schema,
            RowRules(
                ("id",),
                texts,
                analyser_of(analysis) if analysis else lambda found: [None] * len(found),
                vector.column if vector else "",
                vector.text if vector else "",
                embed,
                directed=vector is not None and vector.metric is not Metric.L2,
            ),
        )
        head = IndexHead(
            self.definition.to_json(), ("id",), totals=(FieldTotals(),) * len(texts), fingerprint=fingerprint
        )
        self.store.create(schema, head)

    def commit(self, rows: Sequence[Mapping[str, Any]] = (), removed: Sequence[int] = ()) -> None:
        """Put rows in, in place of those that have their keys, and take others out; the next version of the source."""
        commit = self.store.begin()
        table = pa.Table.from_pylist(list(rows), schema=self.source)
        gone = [*key_texts(table, ["id"]).to_pylist(), *map(str, removed)]
        commit.remove(commit.seek(gone))
        commit.add(self._encoder.encode(table))
        self.version += 1
        commit.apply(self.version, 1_000.0 + self.version)
        commit.commit()

    def cover(self) -> None:
        """Build a segment of each index over the fragments that it has not."""
        at = self.store.open()
        present = [each.fragment_id for each in at.dataset.get_fragments()]
        there = segments_of(at.dataset)
        wanted = {}
        for name in self._names():
            covered = {number for each in there if each.name == name for number in each.fragments}
            if missing := [number for number in present if number not in covered]:
                wanted[name] = missing
        if built := build_segments(at, wanted, self._metric()):
            commit_segments(at, built)

    def build_again(self) -> None:
        """Build all indexes of the rows that are there, in place of their segments."""
        at = self.store.open()
        present = [each.fragment_id for each in at.dataset.get_fragments()]
        built = build_segments(at, dict.fromkeys(self._names(), present), self._metric())
        names = {each.name for each in built}
        commit_segments(at, built, [each for each in segments_of(at.dataset) if each.name in names])

    def compact(self) -> None:
        self.store.open().dataset.optimize.compact_files()

    def _metric(self) -> str:
        return self.definition.vector.metric.value if self.definition.vector else "cosine"

    def _names(self) -> list[str]:
        names = [KEY_INDEX, *(words_index(number) for number in range(len(self.definition.text_names())))]
        has_vectors = VECTOR in self.store.open().dataset.schema.names
        return [*names, VECTOR_INDEX] if has_vectors else names

    def live_words(self) -> dict[str, dict[str, list[str]]]:
        """Return the words of all rows by their keys, then by column, read by nothing that searches use."""
        names = {column: words_column(number) for number, column in enumerate(self.definition.text_names())}
        rows = self.store.open().dataset.to_table(columns=["_key", *names.values()]).to_pylist()
        return {row["_key"]: {column: row[name].split() for column, name in names.items() if row[name]} for row in rows}


def random_vectors(seed: int, count: int, dimension: int) -> list[list[float]]:
    """Return vectors in clusters, as those of texts are."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(max(2, count // 50), dimension))
    chosen = centres[draw.integers(0, len(centres), count)] + 0.4 * draw.normal(size=(count, dimension))
    return [list(map(float, each)) for each in chosen.astype(np.float32)]
