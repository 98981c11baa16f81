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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from iscp.adapters.delta.log.action_fields import FileKey, key_of_file
from iscp.adapters.delta.log.commits import Commit, FileMoves, commit_stamp
from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.ports.source import ChangesUnavailableError

LIVE_PATHS_BYTES_MAX = 64 * 1024**2
"""Bytes for the names of files that a node remembers, of all tables together; those of the longest unused table are
dropped, and had again when it changes."""

Keys = np.ndarray[Any, np.dtype[np.uint64]]
"""Ascending."""

ListFiles = Callable[[str, int], Iterable[tuple[str, Mapping[str, Any] | None]]]
"""Return the paths of a table's files as of a version, as the log has them, and their deletion vectors. Raises
ChangesUnavailableError where nobody reads that version any more, NotReadableHere, StorageError and EngineError."""


@dataclass(frozen=True, slots=True)
class _KnownFiles:
    """The files as of `version`, each with its deletion vector; from `first` on all are in order.

    `stamp` is that of the version's commit, by which another log in the same place is noticed.
    """

    first: int
    version: int
    stamp: tuple[int, ...] | None
    files: Keys

    @property
    def nbytes(self) -> int:
        return int(self.files.nbytes)


class LivePaths:
    """Safe for threads: what is known of a table is replaced whole."""

    def __init__(self, list_files: ListFiles, bytes_max: int = LIVE_PATHS_BYTES_MAX) -> None:
        self._list_files = list_files
        self._bytes_max = bytes_max
        self._tables: OrderedDict[str, _KnownFiles] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find_odd(self, uri: str, from_version: int, commits: Sequence[Commit]) -> tuple[int, str] | None:
        """Return the first version whose files are not as they should be, and why; None: all are.

        `commits` follow one another, and the first of them follows `from_version`. Raises as ListFiles does.
        """
        known = self._recall(uri)
        if known is None or not known.first <= from_version <= known.version:
            if not any(commit.files.came or commit.files.went for commit in commits):
                return None
            known = self._load(uri, from_version)
        for commit in commits:
            if commit.version <= known.version:
                continue
            if why := _find_unfit(known, commit.files):
                self._replace(uri, None)  # what is there then, others say
                return commit.version, why
            known = _follow(known, commit)
        self._replace(uri, replace(known, stamp=commit_stamp(uri, known.version)))
        return None

    def _recall(self, uri: str) -> _KnownFiles | None:
        with self._lock:
            known = self._tables.get(uri)
        same = known is not None and known.version >= 0 and commit_stamp(uri, known.version) == known.stamp
        return known if same else None

    def _load(self, uri: str, version: int) -> _KnownFiles:
        try:
            listed = self._list_files(uri, version) if version >= 0 else []
        except NotReadableHere as error:
            raise ChangesUnavailableError(f"the files of version {version} cannot be listed any more") from error
        files = np.fromiter((key_of_file(path, vector) for path, vector in listed), np.uint64)
        return _KnownFiles(version, version, None, np.unique(files))

    def _replace(self, uri: str, known: _KnownFiles | None) -> None:
        with self._lock:
            before = self._tables.pop(uri, None)
            self._bytes -= before.nbytes if before else 0
            if known is None:
                return
            self._tables[uri] = known
            self._bytes += known.nbytes
            while self._bytes > self._bytes_max and len(self._tables) > 1:
                self._bytes -= self._tables.popitem(last=False)[1].nbytes


def _follow(known: _KnownFiles, commit: Commit) -> _KnownFiles:
    """Take in the next version, whose files are in order."""
    return _KnownFiles(known.first, commit.version, None, _moved(known.files, commit.files.went, commit.files.came))


def _moved(keys: Keys, gone: frozenset[FileKey], come: frozenset[FileKey]) -> Keys:
    if gone - come:
        keys = np.delete(keys, _places(keys, gone - come))
    if come:
        added = np.sort(np.fromiter(come, np.uint64))
        new = added[np.isin(added, keys[_places(keys, come)], invert=True)]
        keys = np.insert(keys, np.searchsorted(keys, new), new)
    return keys


def _find_unfit(known: _KnownFiles, moves: FileMoves) -> str:
    if len(_places(known.files, moves.went)) < len(moves.went):
        return "it removes a file that is not in the table"
    if len(_places(known.files, moves.bringing - moves.went)):
        return "it adds a file that is in the table already"
    if len(_places(known.files, moves.described)) < len(moves.described):
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
