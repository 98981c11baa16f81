"""Checks that a table has nothing by which a commit of iscp would not do what it seems to do.

Checkpoints of the logs that are written here, made after those who wait for a commit were notified.

Delta makes one within every tenth commit, which then ends seconds after it can be read. So a table that is made here
leaves it to others only after many commits: they are to find a short log as well, should they go on with the table.

Commits at exactly the next version, of which no answer is believed: what counts is what the log shows.

A writer puts a commit behind the last version that it knows, never rebased. Its answer may be lost, and another writer
may have been first: so it searches for its own commit, by the id in it. Old commit files are cleaned away, and a writer
that slept so long finds a version free that was taken once: its put-if-absent succeeds, far behind the log's end. So a
commit counts only if the log goes on from it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from deltalake import DeltaTable

from iscp.delta.log.commits import APP_ID, Commit, commit_stamp, newest_version, read_commit
from iscp.delta.log.table_opening import make_checkpoint, open_delta
from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.storage.delta_errors import delta_faults

log = logging.getLogger(__name__)

COMMITS = 10
"""Commits from one checkpoint of a target's log to the next."""

COMMITS_OF_OTHERS = 100
"""The same for whoever else writes to a target, and for Spark when it writes on our behalf."""

PROPERTIES = {"delta.checkpointInterval": str(COMMITS_OF_OTHERS)}
"""The properties of a target."""


class Checkpoints:
    """Makes checkpoints of one table's log, after each `every`th version, if that is a commit of one's own; only while
    the table has the properties `only_with`.
    """

    def __init__(self, uri: str, every: int, only_with: Mapping[str, str] = MappingProxyType({})) -> None:
        self._uri = uri
        self._every = every
        self._only_with = only_with
        self._due = False

    def note_commit(self, version: int) -> None:
        """Note that one's own commit became that version."""
        self._due |= version > 0 and version % self._every == 0

    def make(self) -> None:
        """Make a checkpoint of the newest version and clean the log, if one is due.

        Raises nothing: that it fails does no harm but to those who open the table.
        """
        if not self._due:
            return
        self._due = False  # also if it fails: tried again when the next one is due, not after every commit
        try:
            table = open_delta(self._uri)
            if self._only_with.items() <= table.metadata().configuration.items():
                make_checkpoint(self._uri, table)
                table.cleanup_metadata()
        except Exception as error:  # noqa: BLE001  (what was committed is not to look as if it were not)
            log.warning("checkpoint.failed", extra={"table": self._uri, "reason": str(error)})


def commits_after(uri: str, version: int) -> Iterator[Commit]:
    """Yield the commits behind `version`, up to the first that is not there. Raises StorageError."""
    while (commit := read_commit(uri, version := version + 1)) is not None:
        yield commit


def counts(uri: str, version: int) -> bool:
    """Return whether a commit that is there belongs to the log, and does not lie where the log was cleaned away.

    Raises StorageError, TableNotFound.
    """
    if commit_stamp(uri, version + 1) is None:
        return newest_version(uri) <= version
    # Cleaning takes the oldest: the last version it took has a successor, but nothing before it.
    return version == 0 or commit_stamp(uri, version - 1) is not None


_RETENTION = "delta.setTransactionRetentionDuration"
_REFUSED = {
    "delta.enableRowTracking": "tracks rows",
    "delta.enableInCommitTimestamps": "keeps times in its commits",
}
"""Deltalake does not commit to such a table."""


def target_fault(table: DeltaTable) -> tuple[str, str]:
    """Return why `table` cannot be a target, and the remedy; both are empty if it can.

    Snapshots are published as files under the columns' own names and without partitions: elsewhere their values would
    be read as nulls.
    """
    metadata = table.metadata()
    configuration = metadata.configuration
    if (expiry := expiry_fault(table))[0]:
        return expiry
    if metadata.partition_columns:
        return f"is partitioned by {', '.join(metadata.partition_columns)}", "Choose a new path"
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        return "maps its columns to other names", "Choose a new path"
    for name, fault in _REFUSED.items():
        if configuration.get(name, "false").lower() == "true":
            return fault, "Choose a new path"
    return "", ""


def expiry_fault(table: DeltaTable) -> tuple[str, str]:
    """Return why even an existing target is unfit for any commit, and the remedy; both are empty if it is fit."""
    if _RETENTION in table.metadata().configuration:
        return "expires transaction ids, which would let an old commit land again", f"Unset {_RETENTION} on it"
    return "", ""


def refuse_fault(fault: str, remedy: str) -> None:
    """Raises PermanentError where there is one."""
    if fault:
        raise PermanentError(
            f"the target {fault}",
            about="spec.iteration.consumer.target",
            remedy=remedy,
            code=ErrorCode.TARGET_UNUSABLE,
        )


def refuse_unusable(uri: str) -> None:
    """Raises PermanentError where the table at `uri`, as it is now, has a `target_fault`; StorageError."""
    with delta_faults(f"open {uri}"):
        fault = target_fault(open_delta(uri))
    refuse_fault(*fault)


def refuse_somebody_elses(uri: str, version: int) -> None:
    """Refuse a table with others' rows that appeared here since the registration, which takes no such table either."""
    with delta_faults(f"open {uri}"):
        table = open_delta(uri, version=version)
        theirs = table.transaction_version(APP_ID) is None and bool(table.file_uris())
    if theirs:
        remedy = "Move it away and resume the job, or register the job with another target"
        refuse_fault("is a table with rows that iscp did not write", remedy)
