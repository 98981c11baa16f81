"""The figures of an index: how many rows it has of each sort, and how far its upkeep has come. No row is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iscp.index.lance.index_names import words_number
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.word_counts import file_sizes
from iscp.index.maintenance.index_shape import read_shape
from iscp.index.model.definition_parsing import definition_from_json

if TYPE_CHECKING:
    from iscp.index.lance.index_store import OpenIndex


def figures_of(at: OpenIndex, now_s: float) -> dict[str, float]:
    """Return the figures of an index at a Unix time.

    There are `rows` of the source, of which `faults` cannot be indexed. Of an index of vectors: so many rows have one
    (`vectors`), and so many have none and no fault (`without_vector`). Of each part, named `key`, `vector` or
    `text.COLUMN`: its `segments`, and the rows that none of these has (`fresh_rows`). Deleted rows that are still in
    files (`dead_rows`), the files of rows (`fragments`), the dataset's `versions`, and the `bytes` of the newest.
    Raises StorageError, and PermanentError for an index of a newer release.
    """
    head, shape, definition = at.head, read_shape(at, 0.0, now_s), definition_from_json(at.head.definition)
    texts = definition.text_names()
    found: dict[str, float] = {"rows": head.rows, "faults": head.faults}
    if definition.vector is not None:
        found |= {"vectors": head.vectors, "without_vector": head.rows - head.vectors - head.faults}
    for part in shape.parts:
        number = words_number(part.name)
        name = part.name if number is None else f"text.{texts[number]}"
        found |= {f"{name}.segments": len(part.segments), f"{name}.fresh_rows": part.fresh_rows}
    found["dead_rows"] = sum(group.dead for group in shape.groups)
    found["fragments"] = sum(len(group.fragments) for group in shape.groups)
    return {**found, "versions": shape.versions, "bytes": _bytes(at)}


def _bytes(at: OpenIndex) -> int:
    """Return the bytes of files that the version names: rows, indexes and counts of words."""
    with lance_faults(f"read {at.root}"):
        fragments = [each.metadata for each in at.dataset.get_fragments()]
        indexes = at.dataset.describe_indices()
    sizes = [file.file_size_bytes or 0 for each in fragments for file in each.files]
    sizes += [segment.size_bytes or 0 for each in indexes for segment in each.segments]
    return sum(map(int, sizes)) + sum(file_sizes(at.root, at.head.count_files))
