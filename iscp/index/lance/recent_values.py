"""Values by their keys, of which those that were not used for longest are forgotten.

Caches files of word counts for all indexes of a process, within a bound: a file never changes.

Caches the heads of versions of indexes for a process: a version never changes, and a head takes two reads to find.

A version is known by its manifest's stamp, as another index may be made in the place of one that was removed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from iscp.index.lance.index_head import IndexHead
from iscp.index.lance.word_counts import CountFile, find_table, read_table
from iscp.storage import files
from iscp.storage.delta_errors import storage_faults
from iscp.storage.locations import VERSIONS, manifest_name

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def _one(_value: object) -> int:
    return 1


class RecentValues(Generic[K, V]):
    """Values that weigh at most so much together; `weigh` returns the weight of one, by default each weighs 1.

    A value that weighs more than all may is not stored. Safe for threads.
    """

    def __init__(self, most: int, weigh: Callable[[V], int] = _one) -> None:
        self._most = most
        self._weigh = weigh
        self._lock = threading.Lock()
        self._values: OrderedDict[K, V] = OrderedDict()
        self._weight = 0

    def get(self, key: K) -> V | None:
        with self._lock:
            if (found := self._values.get(key)) is not None:
                self._values.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> V:
        """Store a value in place of that of this key, and return it."""
        with self._lock:
            if (old := self._values.pop(key, None)) is not None:
                self._weight -= self._weigh(old)
            if (weight := self._weigh(value)) <= self._most:
                self._values[key] = value
                self._weight += weight
            while self._weight > self._most:
                self._weight -= self._weigh(self._values.popitem(last=False)[1])
        return value


CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of counts that a process caches; what was not used for longest goes first. A larger file is read each time."""

SMALL_BYTES_MAX = 128 * 1024
"""Bytes of a file of counts that is cached apart: one is read again in a fraction of a millisecond."""

SMALL_CACHED_BYTES_MAX = 8 * 1024**2
"""Bytes of such files that a process caches in addition, so that thousands of small indexes need no more."""


def _bytes(file: CountFile) -> int:
    return file.bytes


_Files = RecentValues[tuple[str, str], CountFile]
_LARGE: _Files = RecentValues(CACHED_BYTES_MAX, _bytes)
_SMALL: _Files = RecentValues(SMALL_CACHED_BYTES_MAX, _bytes)


def cache_counts(root: str, name: str, table: pa.Table) -> None:
    """Cache what was written to a file of counts now, as searches of this process read it next."""
    _keep(root, name, CountFile(table))


def cached_counts(root: str, name: str) -> CountFile:
    """Return a file of counts of the dataset at `root`. Raises StorageError."""
    return _find(root, name) or _keep(root, name, CountFile(read_table(root, name)))


def found_counts(root: str, name: str) -> CountFile | None:
    """Return a file of counts that may be missing; None where it is. Raises StorageError."""
    if (cached := _find(root, name)) is not None:
        return cached
    table = find_table(root, name)
    return None if table is None else _keep(root, name, CountFile(table))


def _find(root: str, name: str) -> CountFile | None:
    return _LARGE.get((root, name)) or _SMALL.get((root, name))


def _keep(root: str, name: str, read: CountFile) -> CountFile:
    cache = _SMALL if read.bytes <= SMALL_BYTES_MAX else _LARGE
    return cache.put((root, name), read)


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
