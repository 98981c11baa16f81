"""Knows which files a table has, to notice a commit that adds one again, or removes one that is not there.

A writer that tries again may commit a file that the table has already: its rows count once, whoever reads the table
(Delta protocol, "Action Reconciliation"), and twice for who adds up what commits bring. No commit shows that by itself.
So the files' names are had once from whoever reads whole versions, and then followed commit by commit, as numbers: a
table of a million files takes 8 MB.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from iscp.adapters.delta.log.action_fields import FileKey, key_of_file
from iscp.adapters.delta.log.commits import Commit, FileMoves, commit_stamp

LIVE_PATHS_BYTES_MAX = 64 * 1024**2
"""Bytes for the names of files that a node remembers, of all tables together; those of the longest unused table are
dropped, and had again when it changes."""

ODD_VERSIONS_MAX = 64
"""Versions of a table that are remembered as odd; before the oldest of them the files are had again, if need be."""

Keys = np.ndarray[Any, np.dtype[np.uint64]]
"""Ascending."""

ListPaths = Callable[[str, int], Iterable[str]]
"""Return the paths of a table's files as of a version, as the log has them. Raises ChangesUnavailableError where nobody
reads that version any more, and StorageError and EngineError."""


@dataclass(frozen=True, slots=True)
class _KnownPaths:
    """The files as of `version`; `odd` are the versions from `first` on whose files are not as they should be, and why.

    `stamp` is that of the version's commit, by which another log in the same place is noticed.
    """

    first: int
    version: int
    stamp: tuple[int, ...] | None
    keys: Keys
    odd: Mapping[int, str] = field(default_factory=dict)


class LivePaths:
    """Safe for threads: what is known of a table is replaced whole."""

    def __init__(self, list_paths: ListPaths, bytes_max: int = LIVE_PATHS_BYTES_MAX) -> None:
        self._list_paths = list_paths
        self._bytes_max = bytes_max
        self._tables: OrderedDict[str, _KnownPaths] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find_odd(self, uri: str, from_version: int, commits: Sequence[Commit]) -> tuple[int, str] | None:
        """Return the first version whose files are not as they should be, and why; None: all are.

        `commits` follow one another, and the first of them follows `from_version`. Raises as ListPaths does.
        """
        known = self._recall(uri)
        if known is None or not known.first <= from_version <= known.version:
            if not any(commit.files.added or commit.files.removed for commit in commits):
                return None
            known = self._load(uri, from_version)
        for commit in commits:
            known = _follow(known, commit) if commit.version > known.version else known
        self._remember(uri, replace(known, stamp=commit_stamp(uri, known.version)))
        return next(((each.version, known.odd[each.version]) for each in commits if each.version in known.odd), None)

    def _recall(self, uri: str) -> _KnownPaths | None:
        with self._lock:
            known = self._tables.get(uri)
        same = known is not None and known.version >= 0 and commit_stamp(uri, known.version) == known.stamp
        return known if same else None

    def _load(self, uri: str, version: int) -> _KnownPaths:
        paths = self._list_paths(uri, version) if version >= 0 else ()
        keys = np.unique(np.fromiter(map(key_of_file, paths), np.uint64))
        return _KnownPaths(version, version, None, keys)

    def _remember(self, uri: str, known: _KnownPaths) -> None:
        with self._lock:
            before = self._tables.pop(uri, None)
            self._tables[uri] = known
            self._bytes += known.keys.nbytes - (before.keys.nbytes if before else 0)
            while self._bytes > self._bytes_max and len(self._tables) > 1:
                self._bytes -= self._tables.popitem(last=False)[1].keys.nbytes


def _follow(known: _KnownPaths, commit: Commit) -> _KnownPaths:
    """Take in the next version."""
    moves, odd, first, keys = commit.files, known.odd, known.first, known.keys
    if why := _find_unfit(keys, moves):
        odd = {**odd, commit.version: why}
    if len(odd) > ODD_VERSIONS_MAX:
        first = min(odd)
        odd = {version: why for version, why in odd.items() if version > first}
    if moves.removed - moves.added:
        keys = np.delete(keys, _places(keys, moves.removed - moves.added))
    if moves.added:
        added = np.sort(np.fromiter(moves.added, np.uint64))
        new = added[np.isin(added, keys[_places(keys, moves.added)], invert=True)]
        keys = np.insert(keys, np.searchsorted(keys, new), new)
    return _KnownPaths(first, commit.version, None, keys, odd)


def _find_unfit(keys: Keys, moves: FileMoves) -> str:
    if len(_places(keys, moves.removed)) < len(moves.removed):
        return "it removes a file that is not in the table"
    if len(_places(keys, moves.bringing - moves.removed)):
        return "it adds a file that is in the table already"
    described = moves.added - moves.bringing - moves.removed
    if not moves.removed and len(_places(keys, described)) < len(described):
        return "it adds a file, takes none away, and says that no row has changed"
    return ""


def _places(keys: Keys, wanted: Iterable[FileKey]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where those of `wanted` are in `keys` that are there."""
    sought = np.fromiter(wanted, np.uint64)
    if not len(keys) or not len(sought):
        return np.empty(0, np.int64)
    at = np.minimum(np.searchsorted(keys, sought), len(keys) - 1)
    found: np.ndarray[Any, np.dtype[np.int64]] = at[keys[at] == sought]
    return found
