"""Opens datasets with one bounded cache for a process, and translates what Lance raises."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import lance
from lance.commit import CommitConflictError
from lance.lance import _Session as Session
from pyarrow import ArrowException

from iscp.model.values.errors import Conflict, ErrorCode, InvalidRequest, StorageError
from iscp.model.values.untrusted_values import first_line
from iscp.storage import files
from iscp.storage.dataset_manifest import guard_dataset
from iscp.storage.dataset_trial import current_trial
from iscp.storage.delta_errors import MESSAGE_LENGTH_MAX, is_panic, storage_error, storage_faults
from iscp.storage.locations import VERSIONS, manifest_name, place
from iscp.storage.s3_settings import table_options

if TYPE_CHECKING:
    from lance import LanceDataset

INDEX_CACHE_BYTES_MAX = 256 * 1024**2
"""Bytes of indexes that a process caches for all datasets; what was not used for longest goes first."""

METADATA_CACHE_BYTES_MAX = 16 * 1024**2
"""Bytes of manifests and of files' footers that a process caches for all datasets: a small one has some 50 kB, which
are read again in two milliseconds.
"""

# Lance warns at each search about columns that are named here anyway.
os.environ.setdefault("LANCE_LOG", "error")

_NOT_FOUND = ("was not found", "Not found:")

_FOREIGN = (OSError, ValueError, RuntimeError, ArithmeticError, MemoryError, ArrowException)


NO_DATASET = "there is none"


class NoIndexError(Exception):
    """There is no dataset at a place, or not that version of it."""


@cache
def shared_session() -> Session:
    """Return the cache that all datasets of this process share."""
    return Session(index_cache_size_bytes=INDEX_CACHE_BYTES_MAX, metadata_cache_size_bytes=METADATA_CACHE_BYTES_MAX)


def open_dataset(uri: str, version: int | None = None) -> LanceDataset:
    """Return the dataset at a place, at its newest version or at `version`.

    Raises NoIndexError, and StorageError, also for what Lance may not open.
    """
    root = place(uri)
    with storage_faults(f"open {uri}"):
        found = guard_dataset(root, version)
        if found is not None and (trial := current_trial()) is not None:
            trial.require(root, *found)
            version = found.version  # just what was tried
    try:
        with lance_faults(f"open {uri}"):
            return lance.dataset(root, version=version, session=shared_session(), storage_options=table_options(uri))
    except StorageError as error:
        if any(each in str(error.__cause__) for each in _NOT_FOUND):
            raise NoIndexError(error.message) from error
        raise


def require_version(root: str, version: int) -> None:
    """Raise Conflict if the version that a commit is based on is gone; call it right before the commit.

    Lance compares a commit with the manifests that there are. Of a writer that slept for longer than versions are kept
    it would find none of those that have changed the same rows.
    """
    path = f"{root}/{VERSIONS}/{manifest_name(version)}"
    with storage_faults(f"read {path}"):
        if not files.exists(path):
            raise Conflict(f"{root} has moved: the version that was read is gone")


@contextmanager
def lance_faults(what: str) -> Iterator[None]:
    """Turn what Lance raises into Conflict or StorageError; `what` says what was to be done."""
    try:
        yield
    except CommitConflictError as error:
        raise Conflict(f"cannot {what}: another writer was first") from error
    except _FOREIGN as error:
        raise storage_error(error, f"cannot {what}", first_line(error)[:MESSAGE_LENGTH_MAX]) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        why = f"Lance gave up: {first_line(error)}"[:MESSAGE_LENGTH_MAX]
        remedy = "Have the index rebuilt by `iscp-admin job resync`: a file of it is damaged"
        raise StorageError(f"cannot {what}: {why}", remedy=remedy) from error


def no_index(uri: str, why: str = NO_DATASET) -> InvalidRequest:
    """Return the error for a place that is no index."""
    return InvalidRequest(
        f"{uri} is no index: {why}",
        about="uri",
        remedy="Name the target of a job of the kind fulltext, vector or search",
        code=ErrorCode.TABLE_NOT_FOUND,
    )


TRUE, FALSE = "TRUE", "FALSE"
