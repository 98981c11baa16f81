"""Backups of the job log: their manifest, how they are taken while an owner writes the log, and how a log is restored
from one.
"""

from __future__ import annotations

import json
import re
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from iscp.delta.joblog.fenced_table import APP_ID, read_rows
from iscp.delta.joblog.log_opening import (
    CLUSTER_PROPERTY,
    COMMIT_ACTIONS,
    COMMIT_TABLE,
    COMMIT_VERSION,
    Damage,
    find_damage,
    is_there,
)
from iscp.delta.joblog.log_schema import (
    FORMAT,
    FORMAT_PROPERTY,
    LOG_SCHEMA,
    SEQUENCES_PER_COMMIT,
    last_entries,
    row_count_stats,
)
from iscp.delta.log.commits import COMMIT_ID, log_of, version_of
from iscp.delta.log.table_opening import LISTINGS_MAX, open_delta
from iscp.model.job.job_row import Reason
from iscp.model.values.errors import ConfigurationError, InvalidRequest, IscpError, JobLogDamaged, StorageError
from iscp.model.values.untrusted_values import error_text, exact_float, exact_int, exact_name
from iscp.storage import files as storage
from iscp.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.storage.files import require_conditional_writes
from iscp.storage.locations import checkpoint_name, commit_name, local_path, place
from iscp.storage.table_files import sync
from iscp.system.late_imports import pq

# --- the manifest -----------------------------------------------------------------------------------------------------
# The manifest of a backup is the file that is written last: without it there is no backup. It names the one file of
# rows by its size and SHA-256, and carries a SHA-256 of itself.

MANIFEST = "manifest.json"
KIND = "iscp_log"
BACKUP_FORMAT = 1
"""A manifest of a later one is refused."""

_FILE = re.compile(r"[a-z0-9_-]+\.parquet")


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """One version of the job log. `schema_json` and `properties` are the table's own, `log_format` is among these.

    `jobs` counts registrations that are not dropped, `rows` the rows of `file`, which has `size` bytes; `taken_at_s`
    is Unix seconds; `program` the version of iscp.
    """

    cluster: str
    table_id: str
    log_format: int
    version: int
    term: int
    jobs: int
    rows: int
    file: str
    size: int
    sha256: str
    schema_json: str
    properties: Mapping[str, str]
    taken_at_s: float
    program: str

    def to_bytes(self) -> bytes:
        about = asdict(self)
        whole = {"format": BACKUP_FORMAT, "kind": KIND, "backup": about, "sha256": _digest(about)}
        return json.dumps(whole, indent=2).encode()


def digest_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def _digest(about: Mapping[str, Any]) -> str:
    return digest_of(json.dumps(about, sort_keys=True).encode())


def parse_manifest(content: bytes, path: str) -> BackupManifest:
    """Raises ConfigurationError where a newer iscp has written it, InvalidRequest where it is damaged or of others."""
    try:
        whole = json.loads(content)
        if not isinstance(whole, dict) or whole.get("kind") != KIND:
            raise ValueError("it is no manifest of a backup of the job log")
        written = exact_int(whole["format"], "format")
        if written > BACKUP_FORMAT:
            raise ConfigurationError(
                f"{path} is of format {written}, and this iscp knows {BACKUP_FORMAT}",
                about="SRC",
                remedy="Restore it with the iscp that made it, or a newer one",
            )
        about = whole["backup"]
        if _digest(about) != whole["sha256"]:
            raise ValueError("its SHA-256 is another")
        return _checked(BackupManifest(**about))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRequest(
            f"{path} is damaged: {error_text(error)}", about="SRC", remedy="Restore another backup"
        ) from error


def _checked(manifest: BackupManifest) -> BackupManifest:
    """Return the manifest unchanged. Raises ValueError for one that `iscp-admin backup create` does not write."""
    for name in ("log_format", "version", "term", "jobs", "rows", "size"):
        exact_int(getattr(manifest, name), name)
    for name in ("cluster", "table_id", "sha256", "program"):
        exact_name(getattr(manifest, name), name)
    exact_float(manifest.taken_at_s, "taken_at_s")
    for text in (manifest.schema_json, *manifest.properties, *manifest.properties.values()):
        if not isinstance(text, str):
            raise ValueError("its columns or properties are no texts")
    if not _FILE.fullmatch(exact_name(manifest.file, "file")):
        raise ValueError("it names a file of no backup")
    return manifest


# --- taking a backup --------------------------------------------------------------------------------------------------
# A backup has all rows of exactly one version of the job log, and what its table is. A backup is a directory or a
# prefix of S3 with one Parquet file, and a manifest that is put there last, and only once the file was read back.
# Compactions replace files within the log, and delete them an hour later at the earliest: so a version that was opened
# can be read to its end.

_ELSEWHERE = "Name another place, which nothing is at"


@dataclass(frozen=True, slots=True)
class LogBackup:
    """A backup that was read whole, and is what its manifest says: its file of rows, as bytes and as a table."""

    manifest: BackupManifest
    content: bytes
    rows: pa.Table


def create_backup(log_uri: str, destination: str, taken_at_s: float, program: str) -> BackupManifest:
    """Copy the newest version of the table `log_uri` (`<log.uri>/iscp_log`) to a place that holds no backup.

    `taken_at_s` is Unix seconds, `program` the version of iscp that takes it.

    Raises InvalidRequest for a place that cannot be it, JobLogDamaged where the log is not whole, StorageError, and
    PermanentError where the store does not keep to put-if-absent; then there is no backup, but perhaps a file of rows.
    """
    at = _destination(log_uri, destination)
    _refuse_damaged(log_uri)
    try:
        table = open_delta(log_uri)
        known = {field.name for field in table.schema().fields}
    except FOREIGN_ERRORS as error:
        raise storage_error(error, f"cannot open {log_uri}") from error
    rows, _ = read_rows(log_uri, table, pa.schema([field for field in LOG_SCHEMA if field.name in known]))
    content = parquet_of(rows)
    manifest = _manifest(table, rows, content, taken_at_s, program)
    try:
        _make_directory(at)
        _put(f"{at}/{manifest.file}", content)
        _check_rows(f"{at}/{manifest.file}", manifest, "DEST")
        path = f"{at}/{MANIFEST}"
        _put(path, manifest.to_bytes())
        written = parse_manifest(storage.read(path)[0], path)
    except OSError as error:
        raise storage_error(error, f"cannot write a backup to {at}") from error
    if written != manifest:
        raise StorageError(f"the backup at {at} does not read as it was written", remedy="Take another one")
    return manifest


def read_backup(source: str) -> LogBackup:
    """Raises InvalidRequest where it is not there, partial or damaged, ConfigurationError where it is of a later
    format, StorageError where it cannot be read."""
    at = _named(source, "SRC")
    path = f"{at}/{MANIFEST}"
    try:
        try:
            manifest = parse_manifest(storage.read(path)[0], path)
        except (FileNotFoundError, NotADirectoryError):
            partial = any(name.endswith(".parquet") for name in storage.names(at))
            why = "is partial, as it has no manifest" if partial else "holds no backup"
            raise InvalidRequest(f"{at} {why}", about="SRC", remedy="Name a backup that was finished") from None
        content, rows = _check_rows(f"{at}/{manifest.file}", manifest, "SRC")
    except OSError as error:
        raise storage_error(error, f"cannot read {at}") from error
    return LogBackup(manifest, content, rows)


def _destination(log_uri: str, destination: str) -> str:
    """Return the place of the backup; nothing is written but a probe of the store."""
    at = _named(destination, "DEST")
    base = place(log_uri).rpartition("/")[0]
    if f"{at}/".startswith(f"{base}/"):
        raise InvalidRequest(f"{at} is where the job log is", about="DEST", remedy="Name another disk or bucket")
    try:
        if not is_there(log_uri):
            raise InvalidRequest(f"there is no job log at {log_uri}", about="log.uri", remedy="Check the configuration")
        if storage.exists(f"{at}/{MANIFEST}"):
            raise InvalidRequest(f"{at} holds a backup already", about="DEST", remedy=_ELSEWHERE)
        if storage.is_file(at) or not storage.parent_is_there(at):
            raise InvalidRequest(
                f"{at} is not a directory that could be made", about="DEST", remedy="Mount or create what is to hold it"
            )
    except OSError as error:
        raise storage_error(error, f"cannot read {at}") from error
    require_conditional_writes(at)
    return at


def _named(uri: str, field: str) -> str:
    """Return the one spelling of a place; errors name the argument as their field."""
    try:
        return place(uri)
    except IscpError as error:
        error.field = field
        raise


def _refuse_damaged(log_uri: str) -> None:
    """Raises JobLogDamaged: what is not whole is not to replace a backup that is. A listing beside an owner that
    writes may lack a commit, so it is repeated before it is believed."""
    damage: Damage | None = None
    try:
        for _ in range(LISTINGS_MAX):
            if (damage := find_damage(log_uri)) is None:
                return
    except OSError as error:
        raise storage_error(error, f"cannot read {log_uri}") from error
    assert damage is not None
    raise damage.error()


def _manifest(table: DeltaTable, rows: pa.Table, content: bytes, taken_at_s: float, program: str) -> BackupManifest:
    metadata = table.metadata()
    properties = dict(metadata.configuration)
    return BackupManifest(
        cluster=properties.get(CLUSTER_PROPERTY, ""),
        table_id=str(metadata.id),
        log_format=int(properties.get(FORMAT_PROPERTY, 0)),
        version=table.version(),
        term=table.transaction_version(APP_ID) or 0,
        jobs=count_jobs(rows),
        rows=len(rows),
        file=f"iscp_log-{uuid.uuid4().hex}.parquet",
        size=len(content),
        sha256=digest_of(content),
        schema_json=table.schema().to_json(),
        properties=properties,
        taken_at_s=taken_at_s,
        program=program,
    )


def count_jobs(rows: pa.Table) -> int:
    """Return how many registrations that are not dropped are in rows of a log."""
    lacking = [field for field in LOG_SCHEMA if field.name not in rows.column_names]
    for field in lacking:
        rows = rows.append_column(field, pa.nulls(len(rows), field.type))
    return sum(row.drop_at_s is None for row in last_entries(rows)[0])


def parquet_of(rows: pa.Table) -> bytes:
    """Return the file of a backup's rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    return bytes(sink.getvalue())


def _make_directory(at: str) -> None:
    path = local_path(at)
    if path is not None:
        path.mkdir(exist_ok=True)
        sync(path.parent)


def put_once(path: str, content: bytes) -> bool:
    """Write a file that outlives a power loss; False: another one of its name is there. Raises OSError.

    A request to S3 may be repeated after it was carried out, so one that is there with this content is ours.
    """
    if not storage.create(path, content) and storage.read(path)[0] != content:
        return False
    if local_path(path) is not None:
        sync(Path(path).parent)
    return True


def _put(path: str, content: bytes) -> None:
    if not put_once(path, content):
        raise InvalidRequest(f"{path} is there already", about="DEST", remedy=_ELSEWHERE)


def _check_rows(path: str, manifest: BackupManifest, field: str) -> tuple[bytes, pa.Table]:
    """The file as it is stored, and its rows. Raises InvalidRequest where it is not what was written, OSError."""
    fault = "is missing"
    try:
        content = storage.read(path)[0]
        fault = "has another SHA-256 than was written"
        if len(content) == manifest.size and digest_of(content) == manifest.sha256:
            rows = pq.ParquetFile(pa.BufferReader(content)).read()  # by no thread that holds the bytes longer
            if len(rows) == manifest.rows and count_jobs(rows) == manifest.jobs:
                return content, rows
            fault = "has other rows than its manifest says"
    except FileNotFoundError:
        pass
    except pa.ArrowException as error:
        fault = f"cannot be read ({error})"
    raise InvalidRequest(f"{path} {fault}: the backup is damaged", about=field, remedy="Take or restore another one")


# --- restoring a log --------------------------------------------------------------------------------------------------
# A job log is restored at a place that holds none: nothing of it can be seen until all of it is there.
#
# The log goes on far beyond every version and term that the lost one can have reached. So an owner of the lost log that
# still sleeps somewhere is deposed as soon as it reads after its next commit, terms stay monotone, and the mark in
# etcd, which says how far the lost log had come, is below the new one.

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
            _put_restored(f"{log}/{commit_name(version)}", commit[1])
        version, content = commit
        # From here on there is a log.
        _put_restored(f"{log}/{checkpoint_name(version)}", _checkpoint_of(content))
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
    _put_restored(f"{place(log_uri)}/{name}", backup.content)
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


def _put_restored(path: str, content: bytes) -> None:
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
