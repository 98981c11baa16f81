"""Finds what a commit says beyond what its readers here know: a kind, a field or a path that they would pass over.

Changes are read from a commit's actions alone (Delta protocol, "Actions"), so each kind and field that bears on them
is listed here. A commit with anything else, or without something that is needed, is not wrong: a newer writer may have
made it. But its changes are not known here, and whoever wants them has to compare whole versions, as Spark
reads them. `commitInfo` may say anything, since nothing that it says is believed without the other actions.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from iscp.adapters.delta.log.actions import texts_of
from iscp.adapters.delta.storage.action_paths import VECTOR_ID_LENGTH, is_below, lies_elsewhere

_FILE = frozenset({"path", "partitionValues", "size", "dataChange", "tags"})
_ROWS = frozenset({"stats", "deletionVector", "baseRowId", "defaultRowCommitVersion"})
_KNOWN: Mapping[str, frozenset[str]] = {
    "add": _FILE | _ROWS | {"modificationTime", "clusteringProvider"},
    "remove": _FILE | _ROWS | {"deletionTimestamp", "extendedFileMetadata"},
    "cdc": _FILE,
    "metaData": frozenset(
        {"id", "name", "description", "format", "schemaString", "partitionColumns", "createdTime", "configuration"}
    ),
    "protocol": frozenset({"minReaderVersion", "minWriterVersion", "readerFeatures", "writerFeatures"}),
    "txn": frozenset({"appId", "version", "lastUpdated"}),
    "domainMetadata": frozenset({"domain", "configuration", "removed"}),
}
_NEEDED: Mapping[str, frozenset[str]] = {
    "add": frozenset({"path", "partitionValues", "size", "dataChange"}),
    "remove": frozenset({"path", "dataChange"}),
    "cdc": frozenset({"path", "partitionValues", "size"}),
    "metaData": frozenset({"id", "format", "schemaString", "partitionColumns"}),
}
_VECTOR = frozenset({"storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality", "maxRowIndex"})
_STORAGE_TYPES = ("u", "i", "p")
_IDENTITY = ("storageType", "pathOrInlineDv", "offset")
_ONCE = ("metaData", "protocol")

_KEY_BYTES = 8
_SECRET = os.urandom(16)
"""Nobody who writes a log knows which paths would share a key."""

FileKey = int
"""Stands for a data file's path, however that is spelled in the log, for as long as this process lives (64 bits)."""


def key_of_file(path: str, vector: object = None) -> FileKey:
    """Return the same key for each spelling of a path that a log may have (Delta protocol: paths are URI-encoded).

    A file with a deletion vector has another key: for the log it is a file of its own with each of its vectors.
    """
    named = unquote(path).encode(errors="surrogatepass")
    if vector is not None:
        known = [vector.get(name) for name in _IDENTITY] if isinstance(vector, Mapping) else vector
        named += b"\0" + repr(known).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(named, digest_size=_KEY_BYTES, key=_SECRET).digest(), "big")


def key_of_action(body: Mapping[str, Any]) -> FileKey:
    """Return the key of the file that an action adds or removes, with the deletion vector that it has there."""
    return key_of_file(body["path"], body.get("deletionVector"))


def find_unclear(actions: Sequence[Mapping[str, Any]]) -> str:
    """Return why these actions do not show which rows their commit has changed; empty: they do."""
    for action in actions:
        for kind, body in action.items():
            if kind != "commitInfo" and (why := _find_unknown(kind, body)):
                return f"it has an action {kind} {why}"
    return _find_unfit_together(actions)


def _find_unknown(kind: str, body: Mapping[str, Any]) -> str:
    known = _KNOWN.get(kind)
    if known is None:
        return "that is not known here"
    if not body.keys() <= known and (unknown := [name for name in body.keys() - known if body[name] is not None]):
        return f"with a field {min(unknown)} that is not known here"
    for name in _NEEDED.get(kind, ()):
        if body.get(name) is None:
            return f"without {name}"
    if "path" in known and not lies_elsewhere(body["path"]) and not is_below(body["path"]):
        return "whose path is none below the table"
    if (vector := body.get("deletionVector")) is not None and not _is_vector(vector):
        return "with a deletion vector that is not known here"
    return _find_unfit_metadata(body) if kind == "metaData" else ""


def _find_unfit_metadata(body: Mapping[str, Any]) -> str:
    if not isinstance(body["format"], Mapping) or body["format"].get("provider") != "parquet":
        return "of files that are not Parquet"
    if [*texts_of(body, "partitionColumns")] != body["partitionColumns"]:
        return "whose partitionColumns are not a list of names"
    return ""


def _is_vector(vector: object) -> bool:
    if not isinstance(vector, Mapping) or not isinstance(path := vector.get("pathOrInlineDv"), str):
        return False
    directory = path[:-VECTOR_ID_LENGTH] if vector.get("storageType") == "u" else ""
    return (
        (not directory or is_below(directory))
        and _VECTOR.issuperset(name for name, value in vector.items() if value is not None)
        and vector.get("storageType") in _STORAGE_TYPES
        and all(isinstance(vector.get(name), int) for name in ("sizeInBytes", "cardinality"))
    )


def _find_unfit_together(actions: Sequence[Mapping[str, Any]]) -> str:
    """Return what actions that are each in order say together, which no commit may."""
    added: dict[str, object] = {}
    removed: dict[str, object] = {}
    by_kind = dict.fromkeys(_ONCE, 0)
    unpartitioned = has_cdc = False
    for action in actions:
        for kind, body in action.items():
            if kind in by_kind:
                by_kind[kind] += 1
            has_cdc |= kind == "cdc"
            if kind in ("add", "remove"):
                files, key = added if kind == "add" else removed, unquote(body["path"])
                if key in files:
                    return f"it has two actions {kind} of the file {body['path']}"
                files[key] = body.get("deletionVector")
                unpartitioned |= kind == "remove" and body["dataChange"] and body.get("partitionValues") is None
    if any(count > 1 for count in by_kind.values()):
        return "it has the table's metadata or protocol twice"
    if any(removed[key] == vector for key, vector in added.items() if key in removed):
        return "it adds a file that it removes"
    if unpartitioned and not has_cdc:
        return "it has an action remove without partitionValues"
    return ""
