"""Backups of the job log, taken while an owner writes it: all rows of exactly one version, and what its table is.

A backup is a directory or a prefix of S3 with one Parquet file, and a manifest that is put there last, and only once
the file was read back. Compactions replace files within the log, and delete them an hour later at the earliest: so a
version that was opened can be read to its end.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from iscp.adapters.delta.joblog.backup_manifest import MANIFEST, BackupManifest, digest_of, parse_manifest
from iscp.adapters.delta.joblog.fenced_table import APP_ID
from iscp.adapters.delta.joblog.log_check import Damage, find_damage, is_there
from iscp.adapters.delta.joblog.log_opening import CLUSTER_PROPERTY
from iscp.adapters.delta.joblog.log_reading import read_rows
from iscp.adapters.delta.joblog.log_schema import FORMAT_PROPERTY, LOG_SCHEMA, last_entries
from iscp.adapters.delta.log.table_opening import LISTINGS_MAX, open_delta
from iscp.adapters.delta.storage import files as storage
from iscp.adapters.delta.storage.conditional_writes import require_conditional_writes
from iscp.adapters.delta.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.adapters.delta.storage.locations import local_path, place
from iscp.adapters.delta.storage.table_files import sync
from iscp.core.values.errors import InvalidRequest, IscpError, StorageError

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
