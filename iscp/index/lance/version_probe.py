"""Probes whether a Lance dataset has moved, at the cost of three `stat`s (on S3: HEAD requests) where it has not.

The last manifest seen must still be the same file, as the dataset may have been recreated, or the version lost; and the
next one, probed by its name, must not be there. Versions have gaps, unlike those of a Delta log: cleaning keeps one
that has a tag, and takes away the next. So the hint that Lance writes beside the manifests must be the same file too.
Alone it does not do, as a writer that dies leaves none.
"""

from __future__ import annotations

from struct import Struct

from iscp.model.job.start_rule import ProbeState
from iscp.model.values.errors import ErrorCode, StorageError, TableNotFound
from iscp.storage import files
from iscp.storage.delta_errors import storage_error
from iscp.storage.locations import (
    VERSION_HINT,
    VERSIONS,
    is_manifest,
    manifest_name,
    manifest_version,
    place,
)

_STAMP = Struct("=QQQQ")
_WORD = (1 << 64) - 1


class VersionProbe:
    """Port LogProbe; safe for threads. A state does not say since when a dataset has moved."""

    def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
        versions = _versions_of(table_uri)
        try:
            if (
                seen.stamp
                and _stamp(versions, seen.version) == seen.stamp
                and not files.exists(f"{versions}/{manifest_name(seen.version + 1)}")
            ):
                return seen
            newest = _list_newest(versions, table_uri)
        except OSError as error:
            raise _unreadable(table_uri, error) from error
        return seen if (seen.version, seen.stamp) == (newest.version, newest.stamp) else newest

    def first_probe(self, table_uri: str) -> ProbeState:
        try:
            return _list_newest(_versions_of(table_uri), table_uri)
        except OSError as error:
            raise _unreadable(table_uri, error) from error


def _versions_of(uri: str) -> str:
    return f"{uri if uri.startswith('/') else place(uri)}/{VERSIONS}"


def _stamp(versions: str, version: int) -> bytes:
    """Return what distinguishes this manifest from any other of its name, and this hint; empty: no manifest is there.

    The hint is written after the manifest, so that a version just committed may get another stamp once more.
    """
    found = files.stamp(f"{versions}/{manifest_name(version)}")
    if not found:
        return b""
    identity, at_ns, size = found
    hint = files.stamp(f"{versions}/{VERSION_HINT}")
    return _STAMP.pack(identity, at_ns & _WORD, size, (hint[0] ^ hint[1]) & _WORD if hint else 0)


def _list_newest(versions: str, table_uri: str) -> ProbeState:
    names = files.names(versions)
    newest = max((version for name in names if (version := manifest_version(name)) is not None), default=None)
    if newest is not None:
        return ProbeState(newest, _stamp(versions, newest))
    if any(map(is_manifest, names)):
        raise StorageError(
            f"cannot read {table_uri}: its manifests are named as Lance named them before",
            code=ErrorCode.LOG_CORRUPT,
            remedy="Let Lance rename them (LanceDataset.migrate_manifest_paths_v2), or choose a new path",
        )
    raise TableNotFound("is not a Lance dataset", field=table_uri, remedy="Check the path")


def _unreadable(table_uri: str, error: OSError) -> StorageError:
    remedy = "Check the path and its permissions"
    return storage_error(error, f"cannot read {table_uri}", error.strerror, remedy)
