"""Goes over the files of a table, and what takes rows out of them, before Spark is to read them.

Spark opens whatever a log names, with the rights of the node: a pipe holds a task up for ever, and a file that wants
more memory than there is ends the JVM. Listing the files costs with the table: what is known follows its commits.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from iscp.adapters.delta.log.action_fields import FileKey, key_of_action, key_of_file
from iscp.adapters.delta.log.actions import Action
from iscp.adapters.delta.log.commits import commit_stamp, list_log, log_of, read_actions, version_of
from iscp.adapters.delta.log.deletion_vectors import load_vector
from iscp.adapters.delta.log.live_files import FOLLOWED_MAX
from iscp.adapters.delta.log.live_paths import ListFiles
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.action_paths import require_files
from iscp.ports.source import ChangesUnavailableError

TABLES_CACHED_MAX = 64
"""Tables whose files are remembered from one reading to the next; those of the longest unused are listed again."""

FILES_CACHED_MAX = 20_000
"""Files of such a table; those of a larger one are listed each time."""

Vector = Mapping[str, Any] | None
Named = tuple[str, Vector]
"""A file's path, as the log has it, and its deletion vector."""


Checkpoints = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Listed:
    """The files of a version; `stamp`: of its commit; `checkpoints`: the log's newest, by names and stamps."""

    version: int
    stamp: tuple[int, ...] | None
    checkpoints: Checkpoints
    files: Mapping[FileKey, Named]


class ReadableFiles:
    """Safe for threads: what is known of a table is replaced whole."""

    def __init__(self, tables_max: int = TABLES_CACHED_MAX, files_max: int = FILES_CACHED_MAX) -> None:
        self._tables_max = tables_max
        self._files_max = files_max
        self._known: OrderedDict[str, _Listed] = OrderedDict()
        self._lock = threading.Lock()

    def require(self, uri: str, version: int, list_files: ListFiles, list_by_spark: ListFiles) -> None:
        """Raise StorageError or PermanentError where a file of a version is none that may be read; and as ListFiles.

        Each is gone over each time, as whoever writes the table may have put something else in its place. A checkpoint
        may say other things than the commits, or than another one of its version, of which Spark chooses: then Spark
        lists the files itself.
        """
        checkpoints = _newest_checkpoints(uri)
        listed = self._recall(uri, version, checkpoints)
        if listed is None:
            first = version_of(checkpoints[0][0], checkpoints=True) if checkpoints else None
            certain = len(checkpoints) <= 1 and (first or 0) <= version
            found = (list_files if certain else list_by_spark)(uri, version)
            by_key = {key_of_file(*named): named for named in found}
            listed = _Listed(version, commit_stamp(uri, version), checkpoints, by_key)
        require_readable(uri, listed.files.values())
        self._keep(uri, listed)

    def _recall(self, uri: str, version: int, checkpoints: Checkpoints) -> _Listed | None:
        """Return what is cached of the files of that version; None: they have to be listed."""
        with self._lock:
            known = self._known.get(uri)
        if known is None or known.checkpoints != checkpoints or commit_stamp(uri, known.version) != known.stamp:
            return None
        if known.version == version:
            return known
        return _follow(uri, known, version) if 0 < version - known.version <= FOLLOWED_MAX else None

    def _keep(self, uri: str, listed: _Listed) -> None:
        with self._lock:
            self._known.pop(uri, None)
            if len(listed.files) <= self._files_max:
                self._known[uri] = listed
            if len(self._known) > self._tables_max:
                self._known.popitem(last=False)


def _newest_checkpoints(uri: str) -> Checkpoints:
    return tuple((name, files.stamp(f"{log_of(uri)}/{name}")) for name in list_log(uri).checkpoint)


def _follow(uri: str, known: _Listed, version: int) -> _Listed | None:
    """Return the files of the later version. None: a commit is not there any more."""
    followed = dict(known.files)
    for each in range(known.version + 1, version + 1):
        if (actions := read_actions(uri, each)) is None:
            return None
        for action in actions:
            if "remove" in action:
                followed.pop(key_of_action(action["remove"]), None)
        for add in (action["add"] for action in actions if "add" in action):
            followed[key_of_action(add)] = add["path"], add.get("deletionVector")
    return _Listed(version, commit_stamp(uri, version), known.checkpoints, followed)


READABLE_FILES = ReadableFiles()
"""The files that this process has found readable."""


def require_readable(uri: str, table_files: Iterable[Named]) -> None:
    """Raise StorageError or PermanentError where a file, or its deletion vector, is none that may be read."""
    named = list(table_files)
    require_files(uri, (path for path, _ in named))
    for _, vector in named:
        if vector is not None:
            load_vector(uri, vector)


def require_readable_commits(uri: str, first: int, last: int) -> None:
    """Require all files that these commits name, as `require_readable` does.

    Raises as that one, and ChangesUnavailableError where a commit is gone.
    """
    for version in range(first, last + 1):
        actions = read_actions(uri, version)
        if actions is None:
            raise ChangesUnavailableError(f"version {version} is not in the log any more")
        require_readable(uri, _named_by(actions))


def _named_by(actions: Iterable[Action]) -> Iterable[Named]:
    """Yield the files that the actions name, with the vectors of added ones: those of removed files may have gone
    meanwhile.
    """
    for action in actions:
        for kind, body in action.items():
            if kind in ("add", "remove", "cdc"):
                yield body["path"], body.get("deletionVector") if kind == "add" else None
