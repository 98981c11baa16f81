"""Single commits of a Delta log, read without Spark and without a snapshot: what a commit did, what it says of itself,
and the origin of a target's rows, as the commit names it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iscp.delta.log.actions import (
    TEXT_LENGTH_MAX,
    Action,
    FileKey,
    find_unclear,
    is_count,
    key_of_action,
    key_of_file,
    parse_actions,
    statistics_of,
    text_of,
    texts_of,
    time_s_of,
)
from iscp.model.values.errors import PermanentError, StorageError, TableNotFound
from iscp.model.values.ids import TRACE_KEY, trace_of
from iscp.model.values.untrusted_values import exact_name
from iscp.model.values.watermark import SourceMark, SourceMarks, Watermark, exact_watermark, parse_sources
from iscp.ports.source import CommitOrigin
from iscp.storage import files
from iscp.storage.delta_errors import storage_faults
from iscp.storage.locations import commit_name, place
from iscp.storage.regular_files import REACH, Reach

# --- whole commits ----------------------------------------------------------------------------------------------------
# A commit file is small and read whole (Delta protocol, section "Delta Log Entries"). What the commit did follows from
# its actions alone; only times and texts are passed on of its `commitInfo`.

# Commits, and all kinds of checkpoints; neither checksums nor compacted logs, which never are the newest.
_VERSION_NAME = re.compile(r"(?P<version>\d{20})\.(?:json|(?P<checkpoint>checkpoint\.(?:.+\.)?(?:parquet|json)))")
APP_ID = "iscp"
"""The application id of every sink: it belongs to the sink, so that two writers of one seq always conflict."""
COMMIT_ID = "iscp.commit_id"
"""The name under which a commit has the id by which its writer finds it again."""
NO_COUNT = -1
"""The number of rows where a writer does not count them."""

Descriptor = Mapping[str, Any]
"""An action's description of its file's deletion vector."""


@dataclass(frozen=True, slots=True)
class FileMoves:
    """The files that came with a commit and that went, each with its deletion vector.

    Of those that came: `bringing` bring rows, by what the commit says; `described` bring none, and take the place of
    none that went, so that they have to be there already.
    """

    came: frozenset[FileKey] = frozenset()
    went: frozenset[FileKey] = frozenset()
    bringing: frozenset[FileKey] = frozenset()
    described: frozenset[FileKey] = frozenset()


NO_FILES = FileMoves()


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit, by the actions in its file.

    `committed_at_s` is Unix seconds; `rows_added` is None where a file carries no statistics, and where change data
    says what changed; `bytes` counts what a reader of its changes has to read, and `bytes_written` what its files have
    taken. `only_adds`: it added rows and did
    nothing else to the data. `metadata_id` and `schema_json` are set where the commit carries the table's metadata.
    `reshapes`: it carries metadata or protocol. `commit_id` is empty where its writer gave it none. `updated_rows` are
    the rows that an UPDATE by delta-rs with change data says to have updated. `files` are those that it added and
    removed. `unclear` says why its actions do not show its changes; empty: they do, as far as the commit goes.
    """

    version: int
    committed_at_s: float
    operation: str
    seq: int | None
    user_metadata: str
    metadata_id: str | None
    changes_data: bool
    only_adds: bool
    rows_added: int | None
    bytes: int
    reshapes: bool = False
    commit_id: str = ""
    schema_json: str = ""
    partitions: tuple[str, ...] = ()
    updated_rows: int | None = None
    files: FileMoves = NO_FILES
    unclear: str = ""
    bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """A file that holds changes. `change` is that of all its rows (`insert`, `delete`); empty: each row says its own.

    `path` is as the log has it; `partition_values`: none where one is neither a text nor null; `size` in bytes (None:
    not known). Only those of its rows count that the deletion vector `within` marks (None: all), and that `without`
    does not. `doubtful`: the commit says of the file both that rows have changed and that none have, or takes away or
    adds a file twice.
    """

    path: str
    change: str
    partition_values: Mapping[str, str | None]
    size: int | None
    within: Descriptor | None = None
    without: Descriptor | None = None
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class LogListing:
    """A log's newest commit, and the names of the files that are its newest checkpoint, or parts of it; none: there is
    no checkpoint, and all commits are there."""

    newest: int
    checkpoint: tuple[str, ...]


def commit_file(uri: str, version: int) -> str:
    return f"{log_of(uri)}/{commit_name(version)}"


def log_of(uri: str) -> str:
    # A plain absolute path, as nearly all are, is not taken apart: it is read at every pass.
    return f"{uri if uri.startswith('/') else place(uri)}/_delta_log"


def version_of(name: str, *, checkpoints: bool = False) -> int | None:
    """The version whose commit a file of a log is by its name, or whose checkpoint; None: it is neither."""
    found = _VERSION_NAME.fullmatch(name)
    return int(found["version"]) if found and (checkpoints or not found["checkpoint"]) else None


def commit_stamp(uri: str, version: int) -> tuple[int, ...] | None:
    """Return what distinguishes this commit file from any other of its name; None: it is not there."""
    path = commit_file(uri, version)
    with storage_faults(f"read {path}"):
        return files.stamp(path) or None


TABLE_MOVED = "Check the path; if the table has moved, `iscp-admin job resync --table` has its jobs follow it"


def newest_version(uri: str) -> int:
    """Return the newest version by listing the log; raises TableNotFound where there is none."""
    return list_log(uri).newest


def list_log(uri: str) -> LogListing:
    """Raises TableNotFound where there is no commit."""
    log = log_of(uri)
    with storage_faults(f"list {log}"):
        found = [match for name in files.names(log) if (match := _VERSION_NAME.fullmatch(name))]
    versions = [int(match["version"]) for match in found if not match["checkpoint"]]
    if not versions:
        raise TableNotFound("is not a Delta table", field=uri, remedy=TABLE_MOVED)
    checkpoints = sorted(match[0] for match in found if match["checkpoint"])
    newest = checkpoints[-1].partition(".")[0] if checkpoints else ""
    return LogListing(max(versions), tuple(name for name in checkpoints if name.startswith(f"{newest}.")))


def newest_commit(uri: str) -> Watermark:
    """Return the newest version and when it was committed, without opening the table.

    Raises TableNotFound and StorageError.
    """
    version = newest_version(uri)
    commit = read_commit(uri, version)
    if commit is None:
        raise StorageError(f"version {version} of {uri} is gone", remedy="Run again: its log is being cleaned")
    return Watermark(version, commit.committed_at_s)


def table_exists(uri: str) -> bool:
    try:
        return newest_version(uri) >= 0
    except TableNotFound:
        return False


def read_commit(uri: str, version: int) -> Commit | None:
    """Return one commit, or None where the file is not there: not yet written, or cleaned away."""
    read = _actions(uri, version)
    return _summarize(version, *read) if read else None


def statistics_added(uri: str, version: int) -> list[dict[str, Any]] | None:
    """Return the statistics of each file that one commit added (empty: it has none); None where the commit is not
    there.
    """
    read = _actions(uri, version)
    return None if read is None else [statistics_of(action["add"]) for action in read[0] if "add" in action]


def read_added_files(uri: str, version: int) -> list[str] | None:
    """Return the actions by which one commit added rows, as JSON; None where the commit is not there."""
    read = _actions(uri, version)
    if read is None:
        return None
    return [json.dumps(action) for action in read[0] if "add" in action and action["add"].get("dataChange", True)]


def read_changed_files(uri: str, version: int, *, rewritten: bool = False) -> tuple[Commit, list[ChangeFile]] | None:
    """Return one commit and the files with its changes, or None where it is not there.

    `rewritten`: though it has change data, return the files that it took away and put in their place.
    """
    read = _actions(uri, version)
    if read is None:
        return None
    by_kind = _by_kind(read[0])
    if rewritten:
        by_kind.pop("cdc", None)
    return _summarize(version, *read), _change_files(by_kind)


def read_actions(uri: str, version: int) -> list[Action] | None:
    """Return all actions of one commit, or None where it is not there."""
    read = _actions(uri, version)
    return read[0] if read else None


def _change_files(by_kind: dict[str, list[dict[str, Any]]]) -> list[ChangeFile]:
    """Change data if the commit has any, else what it added and removed (Delta protocol, "Add CDC File")."""
    if cdc := by_kind.get("cdc"):
        return [_change_file(body, "") for body in cdc]
    removes, adds = by_kind.get("remove", []), by_kind.get("add", [])
    removed, added = ({key_of_file(body["path"]): body for body in bodies} for bodies in (removes, adds))
    if len(removed) < len(removes) or len(added) < len(adds):
        each = [(body, "delete") for body in removes] + [(body, "insert") for body in adds]
        return [_change_file(body, change, doubtful=True) for body, change in each]
    changes = [(removed, added, "delete"), (added, removed, "insert")]
    found = (_changed_rows(body, there.get(key), change) for own, there, change in changes for key, body in own.items())
    return [each for each in found if each is not None]


def _changed_rows(body: dict[str, Any], other: dict[str, Any] | None, change: str) -> ChangeFile | None:
    """Return the rows of a file that one action changes, or None if there are none.

    `other` is the action of the same commit that puts the file back, or takes it away; it has another deletion vector.
    """
    changes_data, vector = body.get("dataChange", True), body.get("deletionVector")
    if other is None:
        return _change_file(body, change, without=vector) if changes_data else None
    if changes_data != other.get("dataChange", True):
        return _change_file(body, change, doubtful=True)
    marked = other.get("deletionVector")
    return _change_file(body, change, within=marked, without=vector) if changes_data and marked is not None else None


def _change_file(
    body: dict[str, Any],
    change: str,
    *,
    within: Descriptor | None = None,
    without: Descriptor | None = None,
    doubtful: bool = False,
) -> ChangeFile:
    given = body.get("partitionValues") or {}
    plain = all(value is None or isinstance(value, str) for value in given.values())
    return ChangeFile(body["path"], change, given if plain else {}, body.get("size"), within, without, doubtful)


def _actions(uri: str, version: int) -> tuple[list[Action], float] | None:
    """Return one commit's actions, and when its file was written (Unix seconds)."""
    path = commit_file(uri, version)
    try:
        with storage_faults(f"read {path}"):
            content, modified_at_s = files.read(path)
    except FileNotFoundError:
        return None
    return parse_actions(content, path), modified_at_s


def _by_kind(actions: list[Action]) -> dict[str, list[dict[str, Any]]]:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for action in actions:
        for kind, body in action.items():
            by_kind.setdefault(kind, []).append(body)
    return by_kind


def _summarize(version: int, actions: list[Action], modified_at_s: float) -> Commit:
    by_kind = _by_kind(actions)
    about = (by_kind.get("commitInfo") or [{}])[0]
    adds = [add for add in by_kind.get("add", []) if add.get("dataChange", True)]
    removes = [remove for remove in by_kind.get("remove", []) if remove.get("dataChange", True)]
    cdc = by_kind.get("cdc", [])
    at_s = time_s_of(about, ("inCommitTimestamp", "timestamp"))
    seqs = [txn.get("version") for txn in by_kind.get("txn", []) if txn.get("appId") == APP_ID]
    metadata = by_kind.get("metaData")
    return Commit(
        version=version,
        committed_at_s=modified_at_s if at_s is None else at_s,
        operation=text_of(about, "operation")[:TEXT_LENGTH_MAX],
        seq=seqs[0] if seqs and is_count(seqs[0]) else None,
        user_metadata=text_of(about, "userMetadata"),
        metadata_id=text_of(metadata[0], "id") if metadata else None,
        changes_data=bool(adds or removes or cdc),
        only_adds=bool(adds) and not removes and not cdc,
        rows_added=_rows(adds) if not cdc else None,
        bytes=sum(body.get("size") or 0 for body in (cdc or adds + removes)),
        reshapes=bool(metadata) or "protocol" in by_kind,
        commit_id=text_of(about, COMMIT_ID),
        schema_json=text_of(metadata[0], "schemaString") if metadata else "",
        partitions=texts_of(metadata[0], "partitionColumns") if metadata else (),
        updated_rows=_updated_by_delta_rs(about) if cdc else None,
        files=_moves(by_kind),
        unclear=find_unclear(actions),
        bytes_written=_bytes_written(by_kind),
    )


def _bytes_written(by_kind: Mapping[str, list[dict[str, Any]]]) -> int:
    """Return the bytes of files and deletion vectors that came to be; a file that got a vector was there already."""
    there = {body["path"] for body in by_kind.get("remove", [])}
    total = sum(body.get("size") or 0 for body in by_kind.get("cdc", []))
    for add in by_kind.get("add", []):
        total += 0 if add["path"] in there else add.get("size") or 0
        vector = add.get("deletionVector")
        size = vector.get("sizeInBytes") if isinstance(vector, Mapping) else None
        total += size if is_count(size) else 0
    return total


def _moves(by_kind: Mapping[str, list[dict[str, Any]]]) -> FileMoves:
    adds, removes = by_kind.get("add", []), by_kind.get("remove", [])
    if not adds and not removes:
        return NO_FILES
    came, went = (frozenset(map(key_of_action, bodies)) for bodies in (adds, removes))
    rewritten = [add for add in adds if not add.get("dataChange", True)]
    if removes:  # any of which may have had the rows; but a vector is of the file that had another one
        replaced = {key_of_file(remove["path"]) for remove in removes}
        rewritten = [add for add in rewritten if add.get("deletionVector") and key_of_file(add["path"]) not in replaced]
    described = frozenset(map(key_of_action, rewritten))
    bringing = frozenset(key_of_action(add) for add in adds if add.get("dataChange", True))
    return FileMoves(came, went, bringing, described)


def _updated_by_delta_rs(about: Mapping[str, Any]) -> int | None:
    if about.get("operation") != "UPDATE" or not text_of(about, "engineInfo").startswith("delta-rs"):
        return None
    metrics = about.get("operationMetrics")
    rows = metrics.get("num_updated_rows") if isinstance(metrics, Mapping) else None
    return rows if is_count(rows) else NO_COUNT


def _rows(adds: list[dict[str, Any]]) -> int | None:
    total = 0
    for add in adds:
        rows = statistics_of(add).get("numRecords")
        if not is_count(rows):
            return None
        total += rows
    return total


# --- what a commit says of itself -------------------------------------------------------------------------------------
# It is read from the beginning of the commit's file alone: writers put it first.

COMMIT_INFO_BYTES_MAX = 65_536
"""Bytes at the beginning of a commit's file where it has to say what it is."""

_COMMIT_INFO = b'{"commitInfo":'


def read_commit_info(log: str, version: int) -> Mapping[str, Any]:
    """Return the `commitInfo` of a commit; empty if it has none there, or is gone. Raises OSError."""
    try:
        head = files.read_head(f"{log}/{commit_name(version)}", COMMIT_INFO_BYTES_MAX)
    except FileNotFoundError:
        return {}
    line = next((line for line in head.splitlines() if line.startswith(_COMMIT_INFO)), b"")
    try:
        about = json.loads(line)["commitInfo"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def read_commit_trace(table_uri: str, version: int) -> str:
    """Return the context in the user metadata of a commit, a JSON object with TRACE_KEY; empty if there is none.

    Raises OSError.
    """
    text = text_of(read_commit_info(log_of(table_uri), version), "userMetadata")
    if TRACE_KEY not in text:
        return ""
    try:
        metadata = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    return trace_of(metadata.get(TRACE_KEY)) if isinstance(metadata, dict) else ""


# --- origins ----------------------------------------------------------------------------------------------------------
# iscp writes into each commit of a target what the target's rows are made of.

TABLE_KEY = "table"
"""The name under which a commit has the URI of the one table that its target follows; of several, `sources` has it."""


def read_origin(uri: str, version: int) -> CommitOrigin | None:
    """Return the origin of one commit; None: it is not in the log. Raises StorageError."""
    commit = read_commit(uri, version)
    return None if commit is None else origin_of(uri, commit)


def origin_of(uri: str, commit: Commit, reach: Reach = REACH) -> CommitOrigin:
    """Return what a commit of the table at `uri` says; one that is not iscp's, or cannot be read, says nothing of
    sources.

    Whoever may write to the table may have named any place as one: a place is followed as those of files are.
    """
    changes = commit.changes_data or commit.metadata_id is not None
    if commit.seq is None:
        return CommitOrigin(changes_data=changes)
    try:
        sources = _sources_of(json.loads(commit.user_metadata))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sources = {}
    beyond = frozenset(each for each in sources if each and not _is_followed(uri, each, reach))
    return CommitOrigin(sources, beyond, changes)


def _is_followed(uri: str, source: str, reach: Reach) -> bool:
    try:
        reach.follow(uri, source)
    except (StorageError, PermanentError):
        return False
    return "%" not in source  # which names another place once it is decoded


def _sources_of(tag: Mapping[str, Any]) -> SourceMarks:
    if sources := parse_sources(tag.get("sources", {})):
        return sources
    at = exact_watermark(Watermark(tag["to"], tag["at"], tag.get("step", 0), tag.get("steps", 0)))
    if at.version < 0:  # a claim, under which the rows stay what they were
        return {}
    return {exact_name(tag.get(TABLE_KEY, ""), TABLE_KEY): SourceMark(exact_name(tag["source_id"], "source_id"), at)}
