"""Makes what is committed to a local dataset outlive a power loss, as Lance syncs nothing itself; and has what this
process has written not tried before it opens it, wherever that is.

The order is that of what depends on what: data and deletions before the commit names them; then the transaction, the
manifest and the manifest's directory, before the commit is acknowledged. An object store makes what it takes durable by
itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.adapters.delta.storage.dataset_trial import current_trial
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.locations import local_path
from iscp.adapters.delta.storage.table_files import sync

if TYPE_CHECKING:
    from lance import FragmentMetadata, LanceDataset

_DATA, _DELETIONS, _TRANSACTIONS, _VERSIONS, _INDICES = "data", "_deletions", "_transactions", "_versions", "_indices"
_OWN = "_iscp"
_VERSION_MAX = 2**64 - 1

SYNCS_AT_ONCE = 4
"""Files of all indexes of a process that are synced at the same time; further ones wait for their turn."""

_SYNCS = ThreadPoolExecutor(SYNCS_AT_ONCE, "iscp-index-sync")


class DurableFiles:
    """Syncs the files of the dataset at a place, as `place` returns it; syncs nothing where it is not local."""

    def __init__(self, root: str) -> None:
        self._place = root
        self._root: Path | None = local_path(root)

    def sync_fragments(
        self,
        written: Iterable[FragmentMetadata],
        updated: Iterable[FragmentMetadata] = (),
        staged: Iterable[FragmentMetadata] = (),
    ) -> None:
        """Sync the data of fragments that are new, and the deletions of those that are not.

        `staged` are new ones that were written before, maybe by another process, which may have changed since.
        """
        new = [f"{_DATA}/{file.path}" for fragment in written for file in fragment.files]
        new += [found.path(each.id) for each in updated if (found := each.deletion_file) is not None]
        if self._root is not None:
            before = [f"{_DATA}/{file.path}" for fragment in staged for file in fragment.files]
            paths = {self._root / name for name in (*new, *before)}
            # Each file of iscp's own is synced when it is written, but not its name.
            self._sync_all({self._root, self._root / _OWN, *paths, *(each.parent for each in paths)})
        self._take_for_known(new)

    def sync_index(self, index_uuid: str) -> None:
        """Sync the files of an index's segment."""
        if self._root is not None:
            folder = self._root / _INDICES / index_uuid
            self._sync_all({*folder.glob("*"), folder, folder.parent, self._root})
        self._take_for_known([f"{_INDICES}/{index_uuid}"])

    def _take_for_known(self, names: Iterable[str]) -> None:
        """Have files that this process has just written not tried before it opens them."""
        if (trial := current_trial()) is not None:
            with storage_faults(f"list {self._place}"):
                trial.add_written(self._place, names)

    def sync_commit(self, dataset: LanceDataset) -> None:
        """Sync the transaction and the manifest of a dataset's version, and what names them."""
        if self._root is None:
            return
        transactions, versions = self._root / _TRANSACTIONS, self._root / _VERSIONS
        self._sync_all({transactions, *transactions.glob(f"{dataset.version - 1}-*.txn")})
        names = (f"{_VERSION_MAX - dataset.version}.manifest", f"{dataset.version}.manifest")
        self._sync_all({versions, *(versions / name for name in names)})

    def _sync_all(self, paths: Iterable[Path]) -> None:
        """Sync files and folders at once, of which the file system makes few writes: each alone has to wait for it."""
        for _ in _SYNCS.map(self._sync, sorted(paths)):
            pass

    def _sync(self, path: Path) -> None:
        with storage_faults(f"sync {path}"), suppress(FileNotFoundError):
            sync(path)
