"""A job log from a backup, at a place that holds none: nothing of it can be seen until all of it is there.

The log goes on far beyond every version and term that the lost one can have reached. So an owner of the lost log that
still sleeps somewhere is deposed as soon as it reads after its next commit, terms stay monotone, and the mark in etcd,
which says how far the lost log had come, is below the new one.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from iscp.adapters.delta.joblog.backup_manifest import BackupManifest, digest_of
from iscp.adapters.delta.joblog.fenced_table import APP_ID
from iscp.adapters.delta.joblog.log_backup import LogBackup, parquet_of, put_once
from iscp.adapters.delta.joblog.log_check import (
    COMMIT_ACTIONS,
    COMMIT_TABLE,
    COMMIT_VERSION,
    find_damage,
    is_there,
)
from iscp.adapters.delta.joblog.log_reading import read_rows
from iscp.adapters.delta.joblog.log_schema import FORMAT, SEQUENCES_PER_COMMIT, row_count_stats
from iscp.adapters.delta.log.commits import COMMIT_ID, log_of, version_of
from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.storage import files as storage
from iscp.adapters.delta.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.adapters.delta.storage.locations import checkpoint_name, commit_name, local_path, place
from iscp.adapters.delta.storage.table_files import sync
from iscp.core.job.job_row import Reason
from iscp.core.values.errors import ConfigurationError, JobLogDamaged, StorageError

VERSIONS_SKIPPED = 1 << 28
"""Versions between the last one known of a lost log and the first of the restored one: years of commits, five a second.
A log of which so many are not left below 2 ** 38 is refused: it was restored a thousand times.
"""
TERMS_SKIPPED = 1 << 20
"""Terms between that of a backup and the restored log's: more owners than a lost log has had since."""

VERSION_MOST = (1 << 62) // SEQUENCES_PER_COMMIT
OPERATION = "RESTORE BACKUP"
COMMIT_BACKUP = "iscp.backup"
"""The name under which the commit has the SHA-256 of the rows of its backup."""


def with_paused_jobs(backup: LogBackup) -> LogBackup:
    """Return the backup with the same jobs, none of which runs before somebody resumes it."""
    rows = backup.rows
    at = rows.schema.get_field_index("reason")
    reasons = pa.repeat(pa.scalar(Reason.PAUSED.value, pa.string()), len(rows))
    rows = rows.set_column(at, rows.schema.field(at), reasons)
    content = parquet_of(rows)
    return LogBackup(replace(backup.manifest, size=len(content), sha256=digest_of(content)), content, rows)


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """The version and the term that the log has now."""

    version: int
    term: int


def restore_backup(log_uri: str, backup: LogBackup, cluster: str, reached: int, now_ms: int) -> RestoredLog:
    """Make the table `log_uri` (`<log.uri>/iscp_log`) of a backup. Nobody may run the cluster meanwhile.

    `reached`: the last version of the lost log that is known (-1: none). One that was killed may be repeated.
    Raises ConfigurationError where the place holds a log or the backup is of another cluster or of a later format,
    StorageError; then the place has no log that a node would begin with.
    """
    manifest = backup.manifest
    _refuse(log_uri, manifest, cluster)
    log = log_of(log_uri)
    try:
        commit = _find_unfinished(log, manifest)
        if commit is None:
            version = max(manifest.version, reached) + VERSIONS_SKIPPED
            if version > VERSION_MOST:
                raise ConfigurationError(
                    f"the log would go on at version {version}, of {VERSION_MOST}",
                    about="SRC",
                    remedy="Begin another cluster, and register the jobs again",
                )
            commit = version, _commit_of(log_uri, backup, version, now_ms)
            _put(f"{log}/{commit_name(version)}", commit[1])
        version, content = commit
        # From here on there is a log.
        _put(f"{log}/{checkpoint_name(version)}", _checkpoint_of(content))
        return _check(log_uri, backup, version)
    except FOREIGN_ERRORS as error:
        raise storage_error(error, f"cannot restore {log_uri}") from error


def _refuse(log_uri: str, manifest: BackupManifest, cluster: str) -> None:
    """Refuse a backup that does not fit, before anything is written."""
    if manifest.log_format > FORMAT:
        raise ConfigurationError(
            f"the backup is of a job log of format {manifest.log_format}, and this iscp knows {FORMAT}",
            about="SRC",
            remedy="Install a newer iscp",
        )
    if cluster and manifest.cluster and cluster != manifest.cluster:
        raise ConfigurationError(
            f"the backup is of the cluster {manifest.cluster!r}, and not of {cluster!r}",
            about="cluster",
            remedy="Name that cluster's backup, or that cluster in the configuration",
        )
    if not storage.parent_is_there(place(log_uri)):
        raise StorageError(
            f"the directory that is to hold {log_uri} is not there", about="log.uri", remedy="Mount or create it"
        )


def _find_unfinished(log: str, manifest: BackupManifest) -> tuple[int, bytes] | None:
    """Return the version and the commit of a restore of this backup that was cut off; None: there is no log.

    Raises ConfigurationError where there is another one, OSError.
    """
    if not is_there(log.removesuffix("/_delta_log")):
        return None
    names = storage.names(log)
    version = version_of(names[0]) if len(names) == 1 else None
    if version is not None and version > VERSIONS_SKIPPED:
        content = storage.read(f"{log}/{names[0]}")[0]
        if f'"{COMMIT_BACKUP}": "{manifest.sha256}"'.encode() in content:
            return version, content
    raise ConfigurationError(
        f"{log} holds a log already, or what is left of one",
        about="log.uri",
        remedy="If it is lost, move it away, or give `log.uri` another place; then restore",
    )


def _commit_of(log_uri: str, backup: LogBackup, version: int, now_ms: int) -> bytes:
    """The commit that is all of the log, after the file that it names was written."""
    manifest = backup.manifest
    name = f"{uuid.uuid4().hex}.parquet"
    path = local_path(log_uri)
    if path is not None:
        (path / "_delta_log").mkdir(parents=True, exist_ok=True)
        sync(path.parent)
    _put(f"{place(log_uri)}/{name}", backup.content)
    about = {
        "timestamp": now_ms,
        "operation": OPERATION,
        "operationParameters": {},
        COMMIT_ID: uuid.uuid4().hex,
        COMMIT_TABLE: manifest.table_id,
        COMMIT_VERSION: str(version),
        COMMIT_ACTIONS: "2",
        COMMIT_BACKUP: manifest.sha256,
    }
    metadata = {
        "id": manifest.table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": manifest.schema_json,
        "partitionColumns": [],
        "configuration": dict(manifest.properties),
        "createdTime": now_ms,
    }
    added = {
        "path": name,
        "partitionValues": {},
        "size": manifest.size,
        "modificationTime": now_ms,
        "dataChange": True,
        "stats": row_count_stats(manifest.rows),
    }
    actions: list[dict[str, Any]] = [
        {"commitInfo": about},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
        {"txn": {"appId": APP_ID, "version": manifest.term + TERMS_SKIPPED, "lastUpdated": now_ms}},
        {"add": added},
    ]
    return "".join(f"{json.dumps(action)}\n" for action in actions).encode()


def _checkpoint_of(commit: bytes) -> bytes:
    """Return the checkpoint of a log which is this commit alone: the content of a checkpoint does not depend on its
    version.
    """
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "_delta_log")
        log.mkdir()
        (log / commit_name(0)).write_bytes(commit)
        open_delta(scratch).create_checkpoint()
        return (log / checkpoint_name(0)).read_bytes()


def _put(path: str, content: bytes) -> None:
    if not put_once(path, content):
        raise StorageError(f"{path} is there: somebody else restores the log", remedy="Restore it once")


def _check(log_uri: str, backup: LogBackup, version: int) -> RestoredLog:
    """Raises JobLogDamaged where the log does not read as the backup."""
    if (damage := find_damage(log_uri, version)) is not None:
        raise damage.error()
    table = open_delta(log_uri)
    rows, _ = read_rows(log_uri, table, backup.rows.schema)
    term = table.transaction_version(APP_ID) or 0
    if table.version() != version or not rows.equals(backup.rows) or term < TERMS_SKIPPED:
        raise JobLogDamaged(f"{log_uri} does not read as the backup", remedy="Move it away, and restore it again")
    return RestoredLog(version, term)
