"""The actions of a commit file, whoever wrote it: what they may hold is checked here, once, and whether readers here
know all that they say.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple, NoReturn, TypeGuard
from urllib.parse import unquote

from iscp.model.values.errors import ErrorCode, StorageError
from iscp.storage.regular_files import VECTOR_ID_LENGTH, is_below, lies_elsewhere

# --- actions and their checks -----------------------------------------------------------------------------------------
# A line is one JSON object with one action in it (Delta protocol, "Actions"); blank lines, blanks around a line, and
# actions that are null are skipped, as Spark and delta-rs skip them. All else that they do not read alike is refused:
# of two actions on a line, Spark takes the first one alone. Statistics are hints: those that are not what they should
# be are treated as absent. Kinds that are not known here are handed on as they are: the section on unclear commits says
# what follows from that.

Action = dict[str, dict[str, Any]]
"""One kind, and its body."""

_FILES = ("add", "remove", "cdc")
_KINDS = frozenset((*_FILES, "metaData", "protocol", "commitInfo", "txn", "domainMetadata"))
_REMEDY = "Restore the file from a backup; or recreate the table, and resync its jobs (a target: move it away)"
TEXT_LENGTH_MAX = 200
"""Characters of an operation's name that messages show; the rest is cut off."""

LINE_BYTES_MAX = 16 * 1024**2
"""Bytes of one line of a commit: nothing else of the process goes on while it is parsed. A file with a longer one is
refused by its name.
"""

LINES_MAX = 2_000_000
"""Lines of a commit; one with more is refused by its name."""

VALUES_MAX = 16_000_000
"""Values in a commit, an object or a list counted as four; one with more, which take ten times its bytes and more, is
refused by its name.
"""

_TIME_MS_MAX = 253_402_300_799_999


class CommitBounds(NamedTuple):
    """The bounds of a commit, as the constants of these names have them."""

    line_bytes: int = LINE_BYTES_MAX
    lines: int = LINES_MAX
    values: int = VALUES_MAX


_BOUNDS = CommitBounds()


def parse_actions(
    content: bytes, path: str, skip: tuple[bytes, ...] = (), bounds: CommitBounds = _BOUNDS
) -> list[Action]:
    """Return the actions of the commit file at `path`, but for lines that begin with one of `skip`.

    Guaranteed: each body is an object, a file's path is a text that can be one, its size None or a whole number. Raises
    StorageError that names file and line, also where there is nothing in the file.
    """
    if not content.strip():
        # Nobody commits nothing: it was torn, and taken for one without actions it would be missed for ever.
        _refuse(path, "is empty")
    if content.count(b"\n") + content.count(b"\r") > bounds.lines:
        _refuse(path, f"has more than {bounds.lines} lines")
    if content.count(b",") + 4 * (content.count(b"{") + content.count(b"[")) > bounds.values:
        _refuse(path, f"has more than {bounds.values} values")
    actions = []
    for number, line in enumerate(_lines(content), 1):
        if len(line) > bounds.line_bytes:
            _refuse(f"{path}, line {number}", f"has more than {bounds.line_bytes} bytes")
        if line and not line.isspace() and not line.startswith(skip or b"\n"):
            action = _parse(line, f"{path}, line {number}")
            if action:
                actions.append(action)
    return actions


def _lines(content: bytes) -> Iterator[bytes]:
    """Yield lines as `splitlines` returns them, without having all at once."""
    for line in BytesIO(content):
        yield from line.splitlines()


def _parse(line: bytes, where: str) -> Action:
    try:
        found = json.loads(line.decode())
        if b"\\u" in line:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeError:
        _refuse(where, "is not UTF-8")
    except (ValueError, RecursionError) as error:
        _refuse(where, "is not JSON, or not all of it is there", error)
    if not isinstance(found, dict):
        _refuse(where, "is not a JSON object")
    action = {kind: body for kind, body in found.items() if body is not None}
    known = {kind: body for kind, body in action.items() if kind in _KINDS}
    if len(known) > 1:
        _refuse(where, f"holds more than one action ({', '.join(known)})")
    for kind, body in known.items():
        if not isinstance(body, dict):
            _refuse(where, f"holds an action {kind} that is not an object")
        if kind in _FILES:
            _check_file(kind, body, where)
    return action


def _check_file(kind: str, body: Mapping[str, Any], where: str) -> None:
    path, size, change = body.get("path"), body.get("size"), body.get("dataChange", True)
    if not isinstance(path, str) or not path or "\0" in unquote(path):
        _refuse(where, f"holds an action {kind} without a path")
    if size is not None and not is_count(size):
        _refuse(where, f"holds an action {kind} whose size is not a whole number")
    if not isinstance(change, bool):
        _refuse(where, f"holds an action {kind} whose dataChange is neither true nor false")
    if not isinstance(body.get("partitionValues") or {}, dict):
        _refuse(where, f"holds an action {kind} whose partitionValues are not an object")


def _refuse(where: str, why: str, cause: Exception | None = None) -> NoReturn:
    raise StorageError(f"{where}, {why}", remedy=_REMEDY, code=ErrorCode.LOG_CORRUPT) from cause


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether the value is a whole number; JSON's true is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: object) -> TypeGuard[int]:
    """Return whether the value is a whole number that is not negative."""
    return is_whole(value) and value >= 0


def text_of(body: Mapping[str, Any], name: str) -> str:
    """Return a text of the action; empty where there is none, or something else."""
    value = body.get(name)
    return value if isinstance(value, str) else ""


def texts_of(body: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a list of texts; empty where there is none, or something else."""
    value = body.get(name)
    return tuple(value) if isinstance(value, list) and all(isinstance(each, str) for each in value) else ()


def time_s_of(body: Mapping[str, Any], names: Iterable[str]) -> float | None:
    """The first of these times (Unix ms) that is one, in Unix seconds."""
    given = (body.get(name) for name in names)
    return next((ms / 1000 for ms in given if is_count(ms) and 0 < ms <= _TIME_MS_MAX), None)


def statistics_of(add: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics of a file, empty where there are none that can be trusted; each part has still to be
    checked.
    """
    text = add.get("stats")
    try:
        found = json.loads(text) if isinstance(text, str) and text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# --- unclear commits --------------------------------------------------------------------------------------------------
# A commit may say something beyond what its readers here know: a kind, a field or a path that they would pass over.
# Changes are read from a commit's actions alone (Delta protocol, "Actions"), so each kind and field that bears on them
# is listed here. A commit with anything else, or without something that is needed, is not wrong: a newer writer may
# have made it. But its changes are not known here, and whoever wants them has to compare whole versions, as Spark reads
# them. `commitInfo` may say anything, since nothing that it says is believed without the other actions.

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
