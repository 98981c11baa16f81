"""Makes what is committed to a local dataset outlive a power loss, as Lance syncs nothing itself.

The order is that of what depends on what: data and deletions before the commit names them; then the transaction, the
manifest and the manifest's directory, before the commit is acknowledged. An object store makes what it takes durable by
itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.locations import local_path
from iscp.adapters.delta.storage.table_files import sync

if TYPE_CHECKING:
    from lance import FragmentMetadata, LanceDataset

_DATA, _DELETIONS, _TRANSACTIONS, _VERSIONS, _INDICES = "data", "_deletions", "_transactions", "_versions", "_indices"
_OWN = "_iscp"
_VERSION_MAX = 2**64 - 1


class DurableFiles:
    """Syncs the files of the dataset at a place; does nothing where it is not local."""

    def __init__(self, uri: str) -> None:
        self._root: Path | None = local_path(uri)

    def sync_fragments(self, fragments: Iterable[FragmentMetadata], before: float = 0.0) -> None:
        """Sync the data of fragments and their deletions, of which those older than `before` (Unix seconds) are synced
        already.
        """
        if self._root is None:
            return
        folders = {_OWN}  # each file of iscp's own is synced when it is written, but not its name
        for fragment in fragments:
            for file in fragment.files:
                folders.add(_DATA)
                self._sync(self._root / _DATA / file.path)
        for folder in (_DELETIONS,):
            if self._sync_newer(self._root / folder, before):
                folders.add(folder)
        for folder in sorted(folders):
            self._sync(self._root / folder)
        self._sync(self._root)

    def sync_index(self, index_uuid: str) -> None:
        """Sync the files of an index's segment."""
        if self._root is not None:
            folder = self._root / _INDICES / index_uuid
            self._sync_newer(folder, 0.0)
            for each in (folder, folder.parent, self._root):
                self._sync(each)

    def sync_written(self, since: float) -> None:
        """Sync all files of data, deletions and indexes that were written since a Unix time in seconds."""
        if self._root is None:
            return
        indices = self._root / _INDICES
        with suppress(FileNotFoundError):
            for folder in list(indices.iterdir()):
                if folder.is_dir() and self._sync_newer(folder, since):
                    self._sync(folder)
        for each in (self._root / _DATA, self._root / _DELETIONS):
            self._sync_newer(each, since)
            self._sync(each)
        self._sync(indices)
        self._sync(self._root)

    def sync_commit(self, dataset: LanceDataset) -> None:
        """Sync the transaction and the manifest of a dataset's version, and what names them."""
        if self._root is None:
            return
        versions = self._root / _VERSIONS
        for transaction in (self._root / _TRANSACTIONS).glob(f"{dataset.version - 1}-*.txn"):
            self._sync(transaction)
        self._sync(self._root / _TRANSACTIONS)
        for name in (f"{_VERSION_MAX - dataset.version}.manifest", f"{dataset.version}.manifest"):
            self._sync(versions / name)
        self._sync(versions)

    def _sync_newer(self, folder: Path, before: float) -> bool:
        found = False
        with suppress(FileNotFoundError):
            for path in folder.iterdir():
                if path.is_file() and path.stat().st_mtime >= before:
                    self._sync(path)
                    found = True
        return found

    def _sync(self, path: Path) -> None:
        with storage_faults(f"sync {path}"), suppress(FileNotFoundError):
            sync(path)
