"""An index at a place: made, opened, and changed by transactions."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import lance
import pyarrow as pa

from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.adapters.delta.storage.dataset_guard import guard_dataset
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.adapters.delta.storage.locations import S3, place
from iscp.core.values.errors import Conflict, InvalidRequest, PermanentError
from iscp.index.lance.address_lookup import ADDRESS, head_row
from iscp.index.lance.count_cache import cached_counts
from iscp.index.lance.durable_files import DurableFiles
from iscp.index.lance.head_cache import PlacedHead, cache_head, cached_head
from iscp.index.lance.index_columns import HEAD, schema_fault
from iscp.index.lance.index_head import IndexHead, parse_head, unreadable_head
from iscp.index.lance.index_transaction import IndexTransaction, head_rows
from iscp.index.lance.lance_access import NO_DATASET, NoIndexError, lance_faults, no_index, open_dataset, shared_session
from iscp.index.lance.word_counts import FOLDER, LiveCounts

if TYPE_CHECKING:
    from lance import LanceDataset

    from iscp.ports.system import Failpoints


@dataclass(frozen=True)
class OpenIndex:
    """An index at one version: its dataset, and the head of just that version with its row's address."""

    root: str
    dataset: LanceDataset
    head: IndexHead
    head_address: int

    @property
    def version(self) -> int:
        """Return the dataset's own version."""
        return int(self.dataset.version)

    @cached_property
    def counts(self) -> LiveCounts:
        """Return the counts of words of this version. Raises StorageError."""
        return LiveCounts([cached_counts(self.root, name) for name in self.head.count_files])


def open_index(uri: str, version: int | None = None) -> OpenIndex:
    """Return the index at a place, at its newest version or at the dataset's `version`.

    Raises InvalidRequest where there is no index, StorageError, and PermanentError for a head that cannot be read.
    """
    root = place(uri)
    try:
        dataset = open_dataset(uri, version)
        if (cached := cached_head(root, dataset.version)) is not None:
            return OpenIndex(root, dataset, *cached)
        with lance_faults(f"read {uri}"):
            schema = dataset.schema
            found = head_row(dataset, [HEAD]) if HEAD in schema.names else None
    except NoIndexError as error:
        raise no_index(uri) from error
    if found is None:
        raise no_index(uri, "it is a Lance dataset that iscp did not write")
    if len(found) != 1:
        raise no_index(uri, f"it has {len(found)} heads, and an index has one")
    head = parse_head(found[HEAD][0].as_py() or "")
    if fault := schema_fault(schema, head.key, len(head.totals)):
        raise unreadable_head(fault)
    placed = PlacedHead(head, found[ADDRESS][0].as_py())
    cache_head(root, dataset.version, placed)
    return OpenIndex(root, dataset, *placed)


def open_live(uri: str) -> OpenIndex:
    """Return the index at a place as `open_index`. Raises InvalidRequest too for one that was deleted."""
    found = open_index(uri)
    if found.head.is_deleted:
        raise no_index(uri, "it was deleted with its job")
    return found


class _Turn:
    """Whose turn it is in this process to write one index."""

    def __init__(self) -> None:
        self.lock = threading.RLock()


_turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
_turns_lock = threading.Lock()


def _turn_of(root: str) -> _Turn:
    with _turns_lock:
        return _turns.setdefault(root, _Turn())


class IndexStore:
    """The index at one place, as its writer has it."""

    def __init__(self, uri: str, failpoints: Failpoints) -> None:
        self._root = place(uri)
        self.failpoints = failpoints
        self._turn = _turn_of(self._root)

    @property
    def writing(self) -> AbstractContextManager[object]:
        """Return what an iteration enters from the base of its commit to its end.

        Maintenance that has lost against iterations enters it too: what rewrites many rows would otherwise never win
        against a writer that does not pause.
        """
        return self._turn.lock

    @contextmanager
    def writing_within(self, wait_s: float) -> Iterator[None]:
        """Enter the same. Raises Conflict if others write for longer than `wait_s` seconds."""
        if not self._turn.lock.acquire(timeout=wait_s):
            raise Conflict(f"{self._root} is being written for longer than {wait_s:.3g} s")
        try:
            yield
        finally:
            self._turn.lock.release()

    @property
    def root(self) -> str:
        return self._root

    @staticmethod
    def fault_of(uri: str) -> str:
        """Return why an index cannot be made or go on at a place, or an empty text."""
        try:
            open_index(uri)
        except InvalidRequest as error:
            return "" if error.message.endswith(NO_DATASET) else error.message.removeprefix(f"{uri} ")
        except PermanentError as error:
            return f"is an index whose head cannot be read: {error.message}"
        return ""

    def exists(self) -> bool:
        try:
            open_dataset(self._root)
        except NoIndexError:
            return False
        return True

    def open(self, version: int | None = None) -> OpenIndex:
        """Return the index at its newest version, or at the dataset's `version`; raises as `open_index`."""
        return open_index(self._root, version)

    def create(self, schema: pa.Schema, head: IndexHead) -> OpenIndex:
        """Make an index without rows. Raises Conflict where there is a dataset already, and StorageError."""
        with storage_faults(f"make the index {self._root}"):
            guard_dataset(self._root)
        try:
            with lance_faults(f"make the index {self._root}"):
                dataset = lance.write_dataset(
                    head_rows(head, schema),
                    self._root,
                    mode="create",
                    session=shared_session(),
                    storage_options=table_options(self._root),
                    data_storage_version="stable",
                )
        except Exception as error:
            if "already exists" in str(error):
                raise Conflict(f"{self._root} has been made by another writer") from error
            raise
        self._prepare(dataset)
        return self.open()

    def begin(self, at: OpenIndex | None = None) -> IndexTransaction:
        """Begin a commit on the version of `at`, or on the newest."""
        found = at or self.open()
        return IndexTransaction(self._root, found.dataset, PlacedHead(found.head, found.head_address), self.failpoints)

    def _prepare(self, dataset: LanceDataset) -> None:
        if not self._root.startswith(S3):
            os.makedirs(f"{self._root}/{FOLDER}", exist_ok=True)
        durable = DurableFiles(self._root)
        durable.sync_fragments([each.metadata for each in dataset.get_fragments()])
        durable.sync_commit(dataset)
