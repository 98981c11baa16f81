"""The files that a table has: its state at a version, with all that the log has of each data file, its deletion vector
above all; and the names of live files, by which odd commits are noticed.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from deltalake import DeltaTable

from iscp.delta.log.actions import (
    Action,
    FileKey,
    find_unclear,
    is_count,
    key_of_action,
    key_of_file,
    statistics_of,
)
from iscp.delta.log.commits import Commit, FileMoves, commit_stamp, list_log, read_actions
from iscp.delta.log.table_opening import add_actions_of, open_delta
from iscp.ports.source import ChangesUnavailableError
from iscp.storage.delta_errors import delta_faults
from iscp.storage.locations import on_s3

# --- the state at a version -------------------------------------------------------------------------------------------
# Checkpoints have many forms, and are read by libraries alone. `load_state_here` has deltalake do it, and finds
# deletion vectors, which deltalake does not show, in the commits while these are there; Spark reads all other logs.
# From there commits are followed one by one (Delta protocol, "Action Reconciliation"), as long as each is one whose
# actions are all known here.

FOLLOWED_MAX = 1_000
"""Commits that are read one by one from what is known, or from the log's beginning; after more the state is loaded."""

SEARCHED_ON_S3_MAX = 100
"""Commits on S3, which are requests one after another, that are searched backwards for the deletion vectors of a
table's files, instead of FOLLOWED_MAX; if a file was added before them, Spark reads the log.
"""

SEARCHED_ACTIONS_MAX = 500_000
"""Actions that are searched so; after more, Spark reads the log."""

_PLAIN_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Reader features of tables of whose files deltalake shows all that there is to know."""
_VECTORS = "deletionVectors"
_PLAIN_PATH = re.compile(r"[\w=./-]+", re.ASCII)
_MAPPING = "delta.columnMapping.mode"


class NotReadableHere(Exception):  # noqa: N818  (not a fault: somebody else has to read it)
    """The log is one that is not read here."""


@dataclass(frozen=True, slots=True)
class TableState:
    """`adds`: of each live file the whole action, by the file's key: one path may be live with several vectors."""

    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    adds: Mapping[FileKey, Mapping[str, Any]]

    @classmethod
    def of(cls, protocol: Mapping[str, Any], metadata: Mapping[str, Any], adds: Iterable[Mapping[str, Any]]) -> Self:
        return cls(protocol, metadata, {key_of_action(add): add for add in adds})

    @property
    def features(self) -> frozenset[str]:
        named = (self.protocol.get(f"{who}Features") or () for who in ("reader", "writer"))
        return frozenset(name for names in named for name in names)

    @property
    def rows(self) -> int | None:
        """Return the number of rows without those that are marked as gone; None: not all files have their number."""
        total = 0
        for add in self.adds.values():
            written, gone = (
                statistics_of(add).get("numRecords"),
                (add.get("deletionVector") or {}).get("cardinality", 0),
            )
            if not is_count(written) or not is_count(gone):
                return None
            total += written - gone
        return total

    @property
    def configuration(self) -> Mapping[str, str]:
        return dict(self.metadata.get("configuration") or ())


LoadState = Callable[[str, int], TableState]
"""Return what the table at a URI is as of a version. Raises NotReadableHere, StorageError, EngineError."""


@dataclass
class StateReader:
    """Reads the state of one table, and caches the last one."""

    uri: str
    load: LoadState
    _version: int = -1
    _stamp: tuple[int, ...] | None = None
    _state: TableState = field(default_factory=lambda: TableState({}, {}, {}))

    def read_state(self, version: int) -> TableState:
        """Return the state as of `version`: the same object while nobody commits. Raises as LoadState, and
        TableNotFound.
        """
        known = 0 <= self._version <= version and commit_stamp(self.uri, self._version) == self._stamp
        if known and version == self._version:
            return self._state
        if known and version - self._version <= FOLLOWED_MAX:
            began, before = self._version, self._state
        else:
            began, before = self._begin(version)
        self._version = -1  # whatever is raised now: the next one begins again
        state = self._followed(before, range(began + 1, version + 1))
        if not state.protocol or not state.metadata:
            raise NotReadableHere
        self._state, self._version, self._stamp = state, version, commit_stamp(self.uri, version)
        return state

    def _begin(self, version: int) -> tuple[int, TableState]:
        """Return a version and its state to begin with: none, before all commits, where all of these can be
        followed.
        """
        if version < FOLLOWED_MAX and not list_log(self.uri).checkpoint:
            return -1, TableState({}, {}, {})
        return version, self.load(self.uri, version)

    def _followed(self, state: TableState, versions: range) -> TableState:
        if not versions:
            return state
        following = _Following(state)
        for version in versions:
            actions = read_actions(self.uri, version)
            if actions is None or find_unclear(actions):
                raise NotReadableHere
            following.take_in(actions)
        return following.state


class _Following:
    """A state, commit by commit; the files are copied once."""

    def __init__(self, state: TableState) -> None:
        self._adds = dict(state.adds)
        self._protocol, self._metadata = state.protocol, state.metadata

    @property
    def state(self) -> TableState:
        return TableState(self._protocol, self._metadata, self._adds)

    def take_in(self, actions: Sequence[Action]) -> None:
        """The removed before the added: a file whose deletion vector changes is both in one commit.

        Raises NotReadableHere where a file is removed that is not there, or added that is.
        """
        for action in actions:
            if "remove" in action:
                self._remove(action["remove"])
        for action in actions:
            if "add" in action:
                self._add(action["add"])
            self._protocol = action.get("protocol", self._protocol)
            self._metadata = action.get("metaData", self._metadata)

    def _remove(self, remove: Mapping[str, Any]) -> None:
        if self._adds.pop(key_of_action(remove), None) is None:
            raise NotReadableHere

    def _add(self, add: Mapping[str, Any]) -> None:
        if (key := key_of_action(add)) in self._adds:
            raise NotReadableHere
        self._adds[key] = add


def load_plain_state(uri: str, version: int) -> TableState:
    """Return what deltalake says of a table of which it shows all: of the statistics whole numbers and texts.

    Raises NotReadableHere for other tables, and StorageError.
    """
    with delta_faults(f"open {uri}"):
        table = open_delta(uri, version=version)
        features, about = _about(table, _PLAIN_FEATURES)
        if about["partitionColumns"]:
            raise NotReadableHere
        adds = [_plain_add(each) for each in add_actions_of(table).to_pylist()]
    return TableState.of(features, about, adds)


def load_state_here(uri: str, version: int) -> TableState:
    """Return the state of a table as `load_plain_state` does, or as deltalake and the commits together show it.

    Raises as that one.
    """
    try:
        return load_plain_state(uri, version)
    except NotReadableHere:
        return _load_marked_state(uri, version)


def list_files_here(uri: str, version: int) -> list[tuple[str, Mapping[str, Any] | None]]:
    """Return the paths of all files as of a version, as `list_live_files` does, or with the deletion vectors that the
    commits have.

    Raises NotReadableHere where these are gone, and StorageError.
    """
    try:
        return list_live_files(uri, version)
    except NotReadableHere:
        return [(add["path"], add.get("deletionVector")) for add in _load_marked_state(uri, version).adds.values()]


def _load_marked_state(uri: str, version: int) -> TableState:
    """Return the state of a table with deletion vectors: deltalake says which files it has, from a checkpoint too, and
    the commits by which action each was added.
    """
    with delta_faults(f"open {uri}"):
        table = open_delta(uri, version=version)
        features, about = _about(table, _PLAIN_FEATURES | {_VECTORS})
        live = add_actions_of(table)["path"].to_pylist()
    return TableState.of(features, about, _find_added(uri, version, live))


def _about(table: DeltaTable, features: frozenset[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a table's features and its metadata. Raises NotReadableHere where readers have to know others."""
    metadata, protocol = table.metadata(), table.protocol()
    mapped = metadata.configuration.get(_MAPPING, "none") != "none"
    if mapped or not {*(protocol.reader_features or ())} <= features:
        raise NotReadableHere
    named = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    return named, {
        "id": str(metadata.id),
        "schemaString": table.schema().to_json(),
        "partitionColumns": metadata.partition_columns,
        "configuration": metadata.configuration,
    }


def _find_added(uri: str, version: int, live: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the actions that have added these files, from the newest commit backwards.

    Raises NotReadableHere where a file was added before those that are searched, or one of them is gone or unclear.
    """
    commits_left, actions_left = SEARCHED_ON_S3_MAX if on_s3(uri) else FOLLOWED_MAX, SEARCHED_ACTIONS_MAX
    lacking, removed = {key_of_file(path) for path in live}, set[int]()
    if len(lacking) < len(live):  # a file that is there with several vectors
        raise NotReadableHere
    found: list[Mapping[str, Any]] = []
    for each in range(version, max(-1, version - commits_left), -1):
        if not lacking:
            break
        actions = read_actions(uri, each)
        if actions is None or len(actions) > actions_left or find_unclear(actions):
            raise NotReadableHere
        actions_left -= len(actions)
        for add in (action["add"] for action in actions if "add" in action):
            if (key := key_of_file(add["path"])) in lacking and key_of_action(add) not in removed:
                lacking.discard(key)
                found.append(add)
        removed |= {key_of_action(action["remove"]) for action in actions if "remove" in action}
    if lacking:
        raise NotReadableHere
    return found


def list_live_files(uri: str, version: int) -> list[tuple[str, Mapping[str, Any] | None]]:
    """Return the paths of all files as of a version, by deltalake, of a table without deletion vectors.

    Raises NotReadableHere where it may have some, and StorageError.
    """
    with delta_faults(f"list the files of {uri}"):
        table: DeltaTable = open_delta(uri, version=version)
        if _VECTORS in (table.protocol().reader_features or ()):
            raise NotReadableHere
        paths: list[str] = add_actions_of(table)["path"].to_pylist()
    return [(path, None) for path in paths]


def _plain_add(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action that has added a file of a table without partitions."""
    if not _PLAIN_PATH.fullmatch(found["path"]):
        raise NotReadableHere  # whether it is spelled so in the log is not known
    stats = {
        "numRecords": found.get("num_records"),
        "minValues": _stated(found.get("min")),
        "maxValues": _stated(found.get("max")),
        "nullCount": _stated(found.get("null_count")),
    }
    add = {"path": found["path"], "partitionValues": {}, "size": found["size_bytes"], "dataChange": False}
    return add | {"modificationTime": found["modification_time"], "stats": json.dumps(stats)}


def _stated(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if type(value) in (int, str)}


# --- odd commits ------------------------------------------------------------------------------------------------------
# Which files a table has is known, so that a commit is noticed that adds one again, or removes one that is not there. A
# writer that tries again may commit a file that the table has already: the file's rows count once, whoever reads the
# table (Delta protocol, "Action Reconciliation"), and twice for who adds up what commits bring. No commit shows that by
# itself. So the files' names are had once from whoever reads whole versions, and then followed commit by commit, as
# numbers: a table of a million files takes 8 MB.

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
