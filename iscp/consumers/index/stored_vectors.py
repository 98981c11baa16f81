"""Finds vectors that an index has stored, so that a text that has not changed is not embedded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from iscp.index.embedding.embedder import Known, Vectors
from iscp.index.lance.address_lookup import ADDRESS
from iscp.index.lance.index_columns import TEXT_HASH, VECTOR
from iscp.index.lance.index_store import OpenIndex
from iscp.index.lance.lance_access import lance_faults


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
