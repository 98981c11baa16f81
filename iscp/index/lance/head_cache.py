"""Caches the heads of versions of indexes for a process: a version never changes, and a head takes two reads to find.

A version is known by its manifest's stamp, as another index may be made in the place of one that was removed.
"""

from __future__ import annotations

from typing import NamedTuple

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.dataset_names import VERSIONS, manifest_name
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.index.lance.index_head import IndexHead
from iscp.index.lance.recent_values import RecentValues

HEADS_CACHED_MAX = 1_000
"""Heads that a process caches; what was not used for longest goes first, and is read again when needed."""

HEAD_CACHED_CHARS_MAX = 16_384
"""Characters of a definition and records with which a head is cached; longer ones are read each time."""

_Version = tuple[str, int, tuple[int, ...]]


class PlacedHead(NamedTuple):
    """A head, and the address of its row, which the next commit removes."""

    head: IndexHead
    address: int


_CACHE: RecentValues[_Version, PlacedHead] = RecentValues(HEADS_CACHED_MAX)


def cached_head(root: str, version: int) -> PlacedHead | None:
    """Return the head of a version of the dataset at `root`, or None if it is not cached. Raises StorageError."""
    return _CACHE.get(found) if (found := _identified(root, version)) is not None else None


def cache_head(root: str, version: int, found: PlacedHead) -> None:
    """Cache the head that was read of a version, or committed with it. Raises StorageError."""
    head = found.head
    small = len(head.definition) + sum(map(len, head.records.values())) <= HEAD_CACHED_CHARS_MAX
    if small and (identified := _identified(root, version)) is not None:
        _CACHE.put(identified, found)


def _identified(root: str, version: int) -> _Version | None:
    """Return what distinguishes a version from all others, or None where its manifest is gone."""
    path = f"{root}/{VERSIONS}/{manifest_name(version)}"
    with storage_faults(f"read {path}"):
        stamp = files.stamp(path)
    return (root, version, stamp) if stamp else None
