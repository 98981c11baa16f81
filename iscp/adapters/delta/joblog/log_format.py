"""The format of the job log's tables, and how it is raised.

Nodes of two releases share a log while a cluster is upgraded, and the earlier ones may have to take over again. So a
table of the format before this one is written as it is, until a person raises it (`iscp log upgrade`).
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError

from iscp.adapters.delta.joblog.log_schema import (
    FORMAT,
    FORMAT_PROPERTY,
    HISTORY_COLUMNS_SINCE,
    HISTORY_SCHEMA,
    LOG_SCHEMA,
)
from iscp.adapters.delta.log.table_opening import open_delta
from iscp.adapters.delta.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.core.values.errors import ConfigurationError

FORMAT_BEFORE = FORMAT - 1
"""The least that is written; a table of an earlier format is raised to FORMAT as soon as it is written to."""

RAISES_MAX = 20
"""Attempts of `iscp log upgrade` at a table, each after the owner's commit was in the way; then it fails."""

LOG_TABLE = "iscp_log"
HISTORY_TABLE = "iscp_history"


def format_of(table: DeltaTable) -> int:
    return int(table.metadata().configuration.get(FORMAT_PROPERTY, 0))


def written_format(uri: str) -> int:
    """Return the format that a new table beside the one at `uri` gets, so that its readers can read the new one too."""
    try:
        return max(min(format_of(open_delta(uri)), FORMAT), FORMAT_BEFORE)
    except TableNotFoundError:
        return FORMAT
    except FOREIGN_ERRORS as error:
        raise storage_error(error, f"cannot open {uri}") from error


def history_schema(format_: int) -> pa.Schema:
    return pa.schema([field for field in HISTORY_SCHEMA if HISTORY_COLUMNS_SINCE.get(field.name, 1) <= format_])


def keep_up(table: DeltaTable, schema: pa.Schema) -> None:
    """Give a table of an iscp before the last one what it lacks; from then on only this format's may claim it."""
    if format_of(table) < FORMAT_BEFORE:
        raise_format(table, schema)


def raise_format(table: DeltaTable, schema: pa.Schema) -> None:
    there = {field.name for field in table.schema().fields}
    lacking = pa.schema([field for field in schema if field.name not in there])
    if lacking:
        table.alter.add_columns(Schema.from_arrow(lacking).fields)
    if format_of(table) < FORMAT:
        table.alter.set_table_properties({FORMAT_PROPERTY: str(FORMAT)}, raise_if_not_exists=False)


def upgrade_job_log(uri: str) -> int:
    """Raise the tables of the log at `uri` to FORMAT, while an owner may write them; the format that it was of.

    Raises ConfigurationError where there is no log or a later iscp has written it, StorageError.
    """
    base = uri.rstrip("/")
    before = _raise(f"{base}/{LOG_TABLE}", LOG_SCHEMA)
    if before is None:
        raise ConfigurationError(f"there is no job log at {uri}", remedy="Name the cluster's own configuration")
    _raise(f"{base}/{HISTORY_TABLE}", HISTORY_SCHEMA)
    return before


def _raise(uri: str, schema: pa.Schema) -> int | None:
    """Raise the table's format, and return the format before; None: there is no table."""
    cause: BaseException | None = None
    for _ in range(RAISES_MAX):
        try:
            table = open_delta(uri)
            refuse_later(table, uri)
            before = format_of(table)
            raise_format(table, schema)
            return before
        except TableNotFoundError:
            return None
        except FOREIGN_ERRORS as error:
            cause = error
    raise storage_error(cause or OSError(), f"cannot raise the format of {uri}") from cause


def refuse_later(table: DeltaTable, uri: str) -> None:
    """Raise ConfigurationError if a later iscp has written it."""
    if (written := format_of(table)) > FORMAT:
        raise ConfigurationError(
            f"{uri} is of format {written}, this iscp knows {FORMAT}", remedy="Install a newer iscp"
        )
