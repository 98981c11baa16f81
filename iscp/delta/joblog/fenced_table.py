"""A Delta table that one term at a time may write: the fence under the job log; with its commits, the files of rows
that these name, and the deletion of files that no version needs.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction
from pyarrow.dataset import dataset

from iscp.delta.joblog.log_opening import (
    COMMIT_ACTIONS,
    COMMIT_TABLE,
    COMMIT_VERSION,
    HARMLESS,
    keep_up,
    open_or_create,
)
from iscp.delta.joblog.log_schema import FORMAT, FORMAT_PROPERTY, numbered, row_count_stats
from iscp.delta.log.commits import COMMIT_ID, read_commit
from iscp.delta.log.table_opening import add_actions_of, bring_up, commits_after, open_delta
from iscp.model.values.errors import InvariantBroken, JobLogDamaged, NotOwner, OutcomeUnknown, StorageError, Unavailable
from iscp.ports.system import Clock, Failpoints
from iscp.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.storage.locations import local_path
from iscp.storage.table_files import DurableCommits, files_of, sync
from iscp.system.late_imports import pq

# --- files of rows, and commits ---------------------------------------------------------------------------------------


class DataFiles:
    """Writes the data files of one table, which commits of the job log name."""

    def __init__(self, uri: str, clock: Clock) -> None:
        self._path = local_path(uri)
        self._files = files_of(uri)
        self._clock = clock

    def write(self, name: str, rows: pa.Table) -> AddAction:
        """Write a file that is durable before the commit that is to name it, and return its action.

        Raises OSError, and what Arrow raises.
        """
        with self._files.open_output_stream(name) as stream:
            pq.write_table(rows, stream, compression="zstd")
            size = stream.tell()
        if self._path is not None:
            sync(self._path / name)
            sync(self._path)
        return AddAction(name, size, {}, int(self._clock.now_s() * 1000), True, row_count_stats(len(rows)))

    def discard(self, name: str) -> None:
        """Free the space of a file that was not committed; not on an object store, where that commit may yet come."""
        if self._path is not None:
            with suppress(OSError):
                (self._path / name).unlink(missing_ok=True)


CommitMode = Literal["append", "overwrite"]


def put_commit(
    table: DeltaTable, actions: Sequence[AddAction], mode: CommitMode, commit_id: str, txns: Sequence[Transaction]
) -> None:
    """Have the storage put a commit at exactly the version after the table's, with what identifies the commit for
    whoever searches or checks the log. Raises what deltalake raises.
    """
    table.create_write_transaction(
        list(actions),
        mode,
        table.schema(),
        commit_properties=CommitProperties(
            custom_metadata={
                COMMIT_ID: commit_id,
                COMMIT_TABLE: str(table.metadata().id),
                COMMIT_VERSION: str(table.version() + 1),
                COMMIT_ACTIONS: str(len(actions) + len(txns)),
            },
            max_commit_retries=0,
            app_transactions=list(txns) or None,
        ),
    )


def read_rows(uri: str, table: DeltaTable, schema: pa.Schema) -> tuple[pa.Table, int]:
    """Return all rows of a job log's table at the version that is open, and in how many files they are. Raises
    JobLogDamaged, StorageError.
    """
    try:
        names = add_actions_of(table).column("path").to_pylist()
        if not names:
            return schema.empty_table(), 0
        rows = dataset(names, schema=schema, filesystem=files_of(uri), format="parquet").to_table()
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise JobLogDamaged(
            f"a file of the job log {uri} is missing or corrupt: {error}",
            remedy="Restore it from a backup of the job log",
        ) from error
    except FOREIGN_ERRORS as error:
        raise storage_error(error, "cannot read the job log") from error
    return rows, len(names)


# --- orphan files -----------------------------------------------------------------------------------------------------

TIDY_FILES_MAX = 1_000_000
"""Files that one pass deletes; the next pass takes the others."""


class OrphanFiles:
    """Deletes the orphan files of one table: those that no version of it needs, as they were replaced or their commit
    failed. Used by one thread.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._files = files_of(uri)
        self._unneeded: set[str] = set()

    def delete(self) -> int:
        """Delete the files that the call before this one found unneeded already, and return how many; commit
        nothing.
        """
        try:
            table = open_delta(self._uri)
            unneeded = set(table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True))
            # Of the last two calls: a file that is new is that of a commit on its way, which no version names yet.
            doomed = sorted(unneeded & self._unneeded)[:TIDY_FILES_MAX]
            for name in doomed:
                self._files.delete_file(name)
        except FOREIGN_ERRORS as error:
            raise storage_error(error, "cannot tidy the job log") from error
        self._unneeded = unneeded.difference(doomed)
        return len(doomed)


# --- the fence --------------------------------------------------------------------------------------------------------

APP_ID = "iscp_owner"
FAILPOINT_CLAIM = "log.claim"
FAILPOINT_COMMIT = "log.commit"
FAILPOINT_COMMITTED = "log.committed"
FAILPOINT_LOOK = "log.look"
ATTEMPTS_MAX = 20
"""Attempts of a claim or a commit, each after somebody else's commit took its version; then the request fails with
Unavailable.
"""

_REFUSED = "lacked the necessary privileges"
"""The text of deltalake's error where an object store has refused a write; after any other error it may still land."""

_GONE_REMEDY = (
    "Put the directory back where it was, and nodes go on by themselves; if it is lost, stop all nodes, and restore a "
    "backup by `iscp-admin backup restore`"
)

# Each commit lists the log's directory and replays what lies behind the last checkpoint: both stay short. With
# 100 commits to a checkpoint and an hour's commit files retained, a commit took three times the time.
TABLE_PROPERTIES = {
    FORMAT_PROPERTY: str(FORMAT),
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 10 seconds",
    "delta.deletedFileRetentionDuration": "interval 60 seconds",
    "delta.enableExpiredLogCleanup": "true",
}


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A commit whose outcome is not known; `must_follow_up`: nothing else may be committed before it is.

    `after`: it can land right behind this version, and nowhere else.
    """

    commit_id: str
    must_follow_up: bool
    after: int


class FencedTable:
    """One owner's hold on a table, for one term.

    A commit goes to exactly the version after the last one known, never rebased, and the one known is always of our own
    term. Whenever the table has moved without us, who moved it is checked before anything else is written.

    Old commit files are cleaned away, and a writer that slept so long finds the version free that it is about to write:
    its put-if-absent succeeds, far behind the log's end. So a commit counts only once the table was read after it.

    Invariant: `version` is the last version known, and every commit up to it that changed rows after our claim is ours.
    Raises NotOwner for ever once it is not so.
    """

    def __init__(self, uri: str, schema: pa.Schema, clock: Clock, failpoints: Failpoints, cluster: str = "") -> None:
        self._uri = uri
        self._cluster = cluster
        self._schema = schema
        self._failpoints = failpoints
        self._path = local_path(uri)
        self._commits = DurableCommits(self._path, failpoints)
        self._data = DataFiles(uri, clock)
        self._table: DeltaTable | None = None
        self._version = -1
        self._deposed = ""
        self._doubt: _Doubt | None = None
        self._orphans = OrphanFiles(uri)
        self.term = 0

    @property
    def version(self) -> int:
        return self._version

    def claim(self) -> int:
        """Mint the next term by an empty commit.

        Raises StorageError or Unavailable, after which it may be called again; InvariantBroken if a term was minted.
        """
        if self.term:
            raise InvariantBroken("one instance of the job log serves one term")
        cause: BaseException | None = None
        table = self._open_or_create()
        for _ in range(ATTEMPTS_MAX):
            try:
                keep_up(table, self._schema)
            except FOREIGN_ERRORS as error:  # another one does so too, or the storage fails
                cause = error
                table = self._open_or_create()
                continue
            try:
                # An owner may have ended as it could not be made durable; what follows is built on it.
                self._commits.rewrite(table.version())
            except OSError as error:
                raise storage_error(error, "cannot make the job log durable") from error
            before, term = table.version(), (table.transaction_version(APP_ID) or 0) + 1
            commit_id = uuid.uuid4().hex
            try:
                self._failpoints.reach(FAILPOINT_CLAIM)
                self._write(table, [], "append", commit_id, term)
            except FOREIGN_ERRORS as error:
                cause = error
            table = self._open_or_create()
            ours = next((each for each in commits_after(self._uri, before) if each.commit_id == commit_id), None)
            if ours is not None:
                # Whatever has come after the claim is checked by the first step that follows.
                self._table, self._version, self.term = table, ours.version, term
                self._sync_commit(self._version)
                return term
            if table.version() == before:
                raise storage_error(cause or OSError("the claim commit is gone"), "cannot claim the job log")
        raise Unavailable(f"the job log was claimed by others {ATTEMPTS_MAX} times in a row") from cause

    def read(self) -> tuple[pa.Table, int]:
        """Return all rows at the newest version, and in how many files they are. Raises NotOwner, StorageError."""
        self.catch_up()
        return read_rows(self._uri, self._open(), self._schema)

    def commit(self, rows: pa.Table, commit_id: str, *, replace: bool = False) -> None:
        """Commit `rows` at exactly the next version, in place of all others if `replace`.

        They get their sequence numbers here, from the version that is known once no outcome is in doubt: numbers that
        a caller had made before could lie below those of a replacement that has landed unseen.

        Raises NotOwner and StorageError (nothing was committed by this call), OutcomeUnknown: then only the same
        commit, under the same `commit_id`, may follow, unless it was a replacement, which changes nothing that is
        known.
        """
        self._check()
        if self._doubt and self._doubt.must_follow_up and self._doubt.commit_id != commit_id:
            raise InvariantBroken("a commit whose outcome is not known must be repeated before another")
        if self._doubt and self._has_landed(commit_id):
            return
        rows = numbered(rows, self.term, self._version + 1)
        name = f"{uuid.uuid4().hex}.parquet"
        try:
            actions = [self._data.write(name, rows)] if len(rows) else []
        except FOREIGN_ERRORS as error:
            self._data.discard(name)
            self._refuse_in_doubt(error)
            raise self._fault(error, "cannot write to the job log") from error
        for _ in range(ATTEMPTS_MAX):
            before = self._version
            cause = self._put(actions, commit_id, replace=replace)
            if self._has_landed(commit_id, written=cause is None):
                return
            # Others moved the table: the same file goes to the next version. Nobody did: the storage refused it.
            if cause is not None and self._version == before:
                self._refuse_in_doubt(cause)
                self._data.discard(name)
                raise self._fault(cause, "cannot commit to the job log") from cause
        raise Unavailable("somebody keeps the job log in order all the time") from cause

    def _put(self, actions: list[AddAction], commit_id: str, *, replace: bool) -> BaseException | None:
        """Have the storage put it at the next version; what it raises instead, or although it has."""
        cause = None
        try:
            self._failpoints.reach(FAILPOINT_COMMIT)
            self._write(self._open(), actions, "overwrite" if replace else "append", commit_id)
        except FOREIGN_ERRORS as error:
            cause = error
        if cause is None or _REFUSED not in str(cause):
            self._doubt = _Doubt(commit_id, not replace, after=self._version)
        return cause

    def _has_landed(self, commit_id: str, *, written: bool = False) -> bool:
        """Return whether the commit is there, by `catch_up`; if so, make it outlive a power loss, however its write
        ended.

        Raises as `catch_up`, and OutcomeUnknown where the term has ended and the commit may have come before that.
        """
        following = self._version + 1
        try:
            if (found := self.catch_up(commit_id, written=written)) is not None:
                self._sync_commit(found)
        except NotOwner as error:
            if self._is_anothers(following, commit_id):
                raise
            raise OutcomeUnknown(f"this may have been committed before the term ended: {error}") from error
        return found is not None

    def _fault(self, error: BaseException, what: str) -> StorageError:
        """Return what is wrong with the storage, or that the table is gone from where it was."""
        if self._path is None or self._path.is_dir():
            return storage_error(error, what)
        return StorageError(
            f"{what}: {self._path} is gone, as if somebody had moved or removed it while nodes run", remedy=_GONE_REMEDY
        )

    def _refuse_in_doubt(self, cause: BaseException) -> None:
        """Raises OutcomeUnknown where a write that came to no end that we know may still land."""
        if self._doubt:
            raise OutcomeUnknown(f"a commit to the job log may still come through: {cause}") from cause

    def _is_anothers(self, version: int, commit_id: str) -> bool:
        """Return whether somebody else's commit is known to lie there, so that ours never will."""
        with suppress(*FOREIGN_ERRORS, StorageError):
            there = read_commit(self._uri, version)
            return there is not None and there.commit_id != commit_id
        return False

    def catch_up(self, commit_id: str = "", *, written: bool = False) -> int | None:
        """Go to the newest version; that at which `commit_id` is, if it is among the commits that have come since.

        `written`: its commit was just accepted for the next version, so it is the one found there, if that is newest.

        Raises NotOwner if one of them claimed another term or changed rows behind our back; StorageError, or
        OutcomeUnknown while a commit of ours is in doubt, if the table cannot be read.
        """
        self._check()
        table = self._open()
        try:
            self._failpoints.reach(FAILPOINT_LOOK)
            bring_up(table)
            version = table.version()
            found = version if written and version == self._version + 1 else None
            if found is None and version != self._version:
                found = self._check_others(table, version, commit_id)
        except (*FOREIGN_ERRORS, StorageError) as error:
            if self._doubt:
                raise OutcomeUnknown(f"cannot check whether a commit to the job log came through: {error}") from error
            raise self._fault(error, "cannot read the job log") from error
        if written and found is None:
            raise OutcomeUnknown("a commit to the job log was accepted and is not to be seen")
        self._version = version
        # A file system has done by now what it was to do; what an object store was sent may still be under way.
        if self._doubt and (self._path is not None or version > self._doubt.after):
            self._doubt = None
        return found

    def _check_others(self, table: DeltaTable, version: int, commit_id: str) -> int | None:
        if (term := table.transaction_version(APP_ID)) != self.term:
            self._depose(f"the job log is of term {term}, ours is {self.term}")
        if version < self._version:
            self._depose(f"the job log went back from version {self._version} to {version}")
        found: int | None = None
        since = list(islice(commits_after(self._uri, self._version), version - self._version))
        if len(since) < version - self._version:
            self._depose("commits of the job log were cleaned away before they were seen")
        for commit in since:
            landed = commit.commit_id
            if landed and landed == commit_id:
                found = commit.version
            elif landed and self._doubt and landed == self._doubt.commit_id:
                continue
            elif commit.operation not in HARMLESS:
                self._depose(f"version {commit.version} of the job log is not ours")
        return found

    def _check(self) -> None:
        if self._deposed:
            raise NotOwner(self._deposed)

    def _depose(self, why: str) -> None:
        self._deposed = why
        raise NotOwner(why)

    def _open_or_create(self) -> DeltaTable:
        return open_or_create(self._uri, self._schema, TABLE_PROPERTIES, self._cluster)

    def _open(self) -> DeltaTable:
        if self._table is None:
            raise InvariantBroken("the job log is used before its term was claimed")
        return self._table

    def _write(
        self, table: DeltaTable, actions: list[AddAction], mode: CommitMode, commit_id: str, term: int | None = None
    ) -> None:
        put_commit(table, actions, mode, commit_id, [] if term is None else [Transaction(APP_ID, term)])
        self._failpoints.reach(FAILPOINT_COMMITTED)

    def _sync_commit(self, version: int) -> None:
        """Raises NotOwner where what can be seen may be lost later, so that nobody is answered for it."""
        try:
            self._commits.sync(version)
        except OSError as error:
            self._depose(f"version {version} of the job log may not outlive a power loss: {error}")

    def tidy(self) -> int:
        """Delete orphans, and return how many, as `OrphanFiles.delete`."""
        return self._orphans.delete()
