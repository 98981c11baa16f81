"""Checks that a table has nothing by which a commit of iscp would not do what it seems to do."""

from __future__ import annotations

from deltalake import DeltaTable

from iscp.adapters.delta.log.commits import APP_ID
from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.core.values.errors import ErrorCode, PermanentError

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
