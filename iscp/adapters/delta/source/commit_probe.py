"""Probes whether a Delta log has moved, at the cost of two `stat`s (on S3: two HEAD requests) where it has not.

The next commit's file is probed by its name. That it is not there can also mean that it was cleaned away, or that
the log was recreated at a lower version: so the last commit file seen must still be the same one (its inode, or
ETag, and time; a new file may get an old inode). If it is not, the log is read from the start.
"""

from __future__ import annotations

from struct import Struct

from iscp.adapters.delta.log.actions import text_of
from iscp.adapters.delta.log.checkpointed import hinted_version
from iscp.adapters.delta.log.commit_head import read_commit_info
from iscp.adapters.delta.log.commits import TABLE_MOVED, log_of, version_of
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.delta_errors import storage_error
from iscp.adapters.delta.storage.locations import checkpoint_name, commit_name, on_s3
from iscp.adapters.delta.storage.mounts import storage_place
from iscp.core.job.commit_route import is_repair
from iscp.core.job.start_rule import ProbeState
from iscp.core.values.errors import StorageError, TableNotFound

FORWARD_MAX = 64
"""Commit files probed one by one; after so many the log is listed."""

REPAIR_COMMITS_MAX = 64
"""New commits of which a probe reads whether one is a repair, the newest first; those before them are not read."""

_STAMP = Struct("=QQQ")
_WORD = (1 << 64) - 1


class DeltaProbe:
    """Port CommitProbe; safe for threads."""

    def remote(self, table_uri: str) -> bool:
        return on_s3(table_uri)

    def place(self, table_uri: str) -> str:
        return storage_place(table_uri)

    def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
        try:
            log = log_of(table_uri)
            # The last commit seen comes first: in a log that was cleaned or recreated the next name says nothing.
            stamp = files.stamp(f"{log}/{commit_name(seen.version)}")
            if not stamp:
                return _same_or(seen, _from_start(log, table_uri, seen.version))
            if not seen.stamp:
                return _forward(log, table_uri, ProbeState(seen.version, _packed(stamp), stamp[1] / 1e9))
            if _packed(stamp) != seen.stamp:
                return _same_or(seen, _from_start(log, table_uri, seen.version))
            if not files.exists(f"{log}/{commit_name(seen.version + 1)}"):
                return seen
            return _forward(log, table_uri, seen)
        except OSError as error:
            raise _unreadable(table_uri, error) from error

    def first_probe(self, table_uri: str) -> ProbeState:
        try:
            return _from_start(log_of(table_uri), table_uri, None)
        except OSError as error:
            raise _unreadable(table_uri, error) from error

    def newest_repair(self, table_uri: str, after: int, until: int) -> int:
        try:
            log = log_of(table_uri)
            newest_first = range(until, max(after, until - REPAIR_COMMITS_MAX), -1)
            return next((version for version in newest_first if _is_repair(log, version)), 0)
        except OSError as error:
            raise _unreadable(table_uri, error) from error


def _is_repair(log: str, version: int) -> bool:
    """Return whether a commit is a repair; False if it cannot be read, as the iteration, which reads it whole, reports
    that.
    """
    about = read_commit_info(log, version)
    return is_repair(text_of(about, "operation"), text_of(about, "userMetadata"))


def _packed(stamp: tuple[int, ...]) -> bytes:
    """Return a stamp as it is stored: a node stores one for each source and target, and numbers take three times as
    much.
    """
    if not stamp:
        return b""
    identity, at_ns, size = stamp
    return _STAMP.pack(identity, at_ns & _WORD, size)  # a time before 1970 is negative


def _stamp_of(log: str, version: int) -> bytes:
    """Return the stamp of the commit, or of the checkpoint that stands for it where the commit was cleaned away."""
    found = files.stamp(f"{log}/{commit_name(version)}") or files.stamp(f"{log}/{checkpoint_name(version)}")
    return _packed(found)


def _same_or(seen: ProbeState, state: ProbeState) -> ProbeState:
    return seen if (seen.version, seen.stamp) == (state.version, state.stamp) else state


def _forward(log: str, table_uri: str, state: ProbeState) -> ProbeState:
    """Return the newest state from `state` on, which is there; `state` itself where there is no next."""
    since_s, newest = 0.0, state
    for version in range(state.version + 1, state.version + 1 + FORWARD_MAX):
        stamp = files.stamp(f"{log}/{commit_name(version)}")
        if not stamp:
            return newest
        since_s = since_s or stamp[1] / 1e9
        newest = ProbeState(version, _packed(stamp), since_s)
    listed = _list_newest(log, table_uri)
    return ProbeState(listed.version, listed.stamp, since_s)


def _from_start(log: str, table_uri: str, seen_version: int | None) -> ProbeState:
    """Return the newest state from the last checkpoint on, if there is one; otherwise the log is listed."""
    version = hinted_version(log)
    # A checkpoint from before what was seen may lie behind a gap: cleaned logs have none after it.
    if version >= max(0, seen_version or 0):
        stamp = _stamp_of(log, version)
        if stamp:
            return _forward(log, table_uri, ProbeState(version, stamp))
    return _list_newest(log, table_uri)


def _list_newest(log: str, table_uri: str) -> ProbeState:
    named = ((version_of(name, checkpoints=True), name) for name in files.names(log))
    found = [(version, name) for version, name in named if version is not None]
    # Of one version the commit counts, not its checkpoint: ".json" sorts after ".checkpoint".
    newest = max(found, default=None)
    if newest is None:
        raise TableNotFound("is not a Delta table", field=table_uri, remedy=TABLE_MOVED)
    return ProbeState(newest[0], _packed(files.stamp(f"{log}/{newest[1]}")))


def _unreadable(table_uri: str, error: OSError) -> StorageError:
    remedy = "Check the path and its permissions"
    return storage_error(error, f"cannot read {table_uri}", error.strerror, remedy)
