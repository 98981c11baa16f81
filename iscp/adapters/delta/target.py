"""What a table must not have to be kept by iscp, because a commit would not do then what it seems to do."""

from __future__ import annotations

from deltalake import DeltaTable

_RETENTION = "delta.setTransactionRetentionDuration"
_REFUSED = {
    "delta.enableRowTracking": "tracks rows",
    "delta.enableInCommitTimestamps": "keeps times in its commits",
}
"""Deltalake does not commit to such a table."""


def target_fault(table: DeltaTable) -> tuple[str, str]:
    """Why `table` cannot be kept, and the remedy; both empty: it can.

    Snapshots are published as files under the columns' own names and without partitions: elsewhere their values
    would be read as nulls.
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
    """As `target_fault`, of what makes even a target that is kept already unfit for any commit."""
    if _RETENTION in table.metadata().configuration:
        return "expires transaction ids, which would let an old commit land again", f"Unset {_RETENTION} on it"
    return "", ""
