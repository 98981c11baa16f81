"""Opening the Delta tables beside each other at `log.uri`, and making them: whose they are, and of which format."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from iscp.adapters.delta.joblog.log_format import refuse_later
from iscp.adapters.delta.log.table_opening import drop_false_hint, open_delta
from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.adapters.delta.storage.delta_errors import FOREIGN_ERRORS, storage_error
from iscp.adapters.delta.storage.locations import local_path
from iscp.core.values.errors import ConfigurationError, StorageError

CLUSTER_PROPERTY = "iscp.cluster"
"""Two clusters on one log would take the term from each other for ever."""


def open_or_create(uri: str, schema: pa.Schema, properties: Mapping[str, str], cluster: str = "") -> DeltaTable:
    """Return the table at `uri`, made if it is not there; of several that make it at once all get the same.

    The directory above it must be there: a disk that is not mounted is not a first start. Raises StorageError,
    ConfigurationError if a newer iscp has written it, or if it belongs to another `cluster` than this one.
    """
    path = local_path(uri)
    if path is not None and not path.parent.is_dir():
        raise StorageError(f"there is no directory {path.parent}", remedy="Mount or create it")
    try:
        try:
            drop_false_hint(uri)
            table = open_delta(uri)
        except TableNotFoundError:
            try:
                table = DeltaTable.create(
                    uri,
                    schema,
                    mode="error",
                    configuration={**properties, **({CLUSTER_PROPERTY: cluster} if cluster else {})},
                    storage_options=table_options(uri),
                    raise_if_key_not_exists=False,
                )
            except DeltaError:  # somebody else was first, or it shows at once what is wrong
                table = open_delta(uri)
    except FOREIGN_ERRORS as error:
        raise storage_error(error, f"cannot open {uri}") from error
    refuse_later(table, uri)
    _refuse_other(table, uri, cluster)
    return table


def refuse_others_table(uri: str, cluster: str) -> None:
    """Raise ConfigurationError if there is a table at `uri` that belongs to another cluster."""
    try:
        _refuse_other(open_delta(uri), uri, cluster)
    except FOREIGN_ERRORS:
        return  # whoever opens it reports what is wrong


def _refuse_other(table: DeltaTable, uri: str, cluster: str) -> None:
    owned = table.metadata().configuration.get(CLUSTER_PROPERTY, "")
    if cluster and owned and owned != cluster:
        raise ConfigurationError(
            f"the job log at {uri} belongs to the cluster {owned!r}, not to {cluster!r}",
            about="cluster",
            remedy=f"Set `cluster` to {owned}, or `log.uri` to another place",
        )
