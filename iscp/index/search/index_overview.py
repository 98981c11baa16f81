"""An index as people see it: what it is, how far it is, what it is made of; and the rows that it could not take in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.core.values.json_values import json_value
from iscp.index.lance.index_columns import FAULT
from iscp.index.lance.index_store import open_live
from iscp.index.lance.lance_access import lance_faults
from iscp.index.maintenance.index_shape import read_shape


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
