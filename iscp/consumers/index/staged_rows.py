"""Stages rows of a build's ranges as files of the index's dataset, which no version names yet (port RowStager).

A manifest has the files, the sums of their rows, the file with the counts of their words, and one with their keys:
whether two ranges have a key in common shows only when all are there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.consumers.index.index_rows import index_tables
from iscp.core.values.errors import StorageError
from iscp.index.lance.durable_files import DurableFiles
from iscp.index.lance.index_columns import KEY
from iscp.index.lance.index_transaction import IndexTransaction, RowSums, count_rows, write_rows
from iscp.index.lance.row_encoder import RowEncoder
from iscp.index.lance.word_counts import (
    FOLDER,
    KEYS_PREFIX,
    WordCounts,
    find_rows,
    merged_counts,
    read_table,
    write_counts,
)
from iscp.ports.rows import Rows
from iscp.ports.sink import Manifest

if TYPE_CHECKING:
    from lance import LanceDataset

_KEY_SCHEMA = pa.schema([pa.field(KEY, pa.string(), nullable=False)])
_FRAGMENTS, _COUNTS, _KEYS, _SUMS = "fragments", "counts", "keys", "sums"


class IndexRowStager:
    """Stages rows under one index (port RowStager); `encoder` is for the columns that `dataset` has."""

    def __init__(self, root: str, dataset: LanceDataset, encoder: RowEncoder) -> None:
        self._root = root
        self._dataset = dataset
        self._encoder = encoder

    def stage(self, rows: Rows, folder: str) -> Manifest:
        counts, keys, sums = WordCounts(), [], []
        written: list[FragmentMetadata] = []
        for table in self._encoder.portions(index_tables(rows)):
            encoded = self._encoder.encode(table)
            sums.append(count_rows([encoded], counts))
            keys.append(encoded.select([KEY]))
            written += write_rows(self._root, self._dataset, encoded)
        if not written:
            return Manifest(0, 0)
        DurableFiles(self._root).sync_fragments(written)
        total = _summed(sums)
        found = {
            _FRAGMENTS: [json.dumps(each.to_json()) for each in written],
            _COUNTS: write_counts(self._root, counts.table()),
            _KEYS: self._write_keys(pa.concat_tables(keys)),
            _SUMS: list(total),
        }
        size = sum(file.file_size_bytes or 0 for each in written for file in each.files)
        return Manifest(total.rows, size, files=found)

    def are_there(self, manifests: Sequence[Manifest], folder: str) -> bool:
        there = {*files.names(f"{self._root}/data")}
        beside = {*files.names(f"{self._root}/{FOLDER}")}
        for manifest in manifests:
            if not {manifest.files[_COUNTS], manifest.files[_KEYS]} <= beside:
                return False
            if not all(file.path in there for each in _fragments(manifest) for file in each.files):
                return False
        return True

    def have_own_keys(self, manifests: Sequence[Manifest]) -> bool:
        """Return whether no two staged rows share a key. Raises StorageError."""
        tables = [self._read_keys(str(manifest.files[_KEYS])) for manifest in manifests]
        keys = pa.chunked_array([chunk for each in tables for chunk in each[KEY].chunks], pa.string())
        return int(pc.count_distinct(keys).as_py()) == len(keys) if len(keys) else True

    def publish(self, commit: IndexTransaction, manifests: Sequence[Manifest]) -> None:
        """Have a transaction add all that is staged."""
        tables = [read_table(self._root, str(manifest.files[_COUNTS])) for manifest in manifests]
        if manifests:
            fragments = [fragment for manifest in manifests for fragment in _fragments(manifest)]
            sums = _summed([_read_sums(manifest.files[_SUMS]) for manifest in manifests])
            commit.add_fragments(fragments, sums, merged_counts(tables))

    def _write_keys(self, table: pa.Table) -> str:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_table(table)
        name = f"{KEYS_PREFIX}{uuid.uuid4().hex}.arrow"
        with storage_faults(f"write {self._root}/{FOLDER}/{name}"):
            files.create(f"{self._root}/{FOLDER}/{name}", sink.getvalue().to_pybytes())
        return name

    def _read_keys(self, name: str) -> pa.Table:
        found = find_rows(self._root, name, _KEY_SCHEMA)
        if found is None:
            raise StorageError(f"{self._root}/{FOLDER}/{name} is gone, which a build has staged")
        return found


def _fragments(manifest: Manifest) -> list[FragmentMetadata]:
    return [FragmentMetadata.from_json(each) for each in manifest.files[_FRAGMENTS]]


def _summed(sums: Sequence[RowSums]) -> RowSums:
    totals = zip(*(each.totals for each in sums), strict=True)
    return RowSums(
        rows=sum(each.rows for each in sums),
        faults=sum(each.faults for each in sums),
        vectors=sum(each.vectors for each in sums),
        totals=tuple((sum(rows for rows, _ in column), sum(words for _, words in column)) for column in totals),
    )


def _read_sums(found: Sequence[object]) -> RowSums:
    rows, faults, vectors, totals = found
    return RowSums(rows, faults, vectors, tuple((each[0], each[1]) for each in totals))  # type: ignore[arg-type, attr-defined]
