"""Find the tables that a spec names: they are stored by their URIs, by which they are probed and found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from iscp.core.job.job_row import JobRow
from iscp.core.job.several_tables import tables_of
from iscp.core.spec.spec import ConsumerSpec
from iscp.core.values.errors import InvalidRequest
from iscp.ports.catalog import Catalog, TableDescription
from iscp.ports.consumer import ConsumerKind


def with_uris(consumer: ConsumerSpec, kind: ConsumerKind, source: TableDescription, catalog: Catalog) -> ConsumerSpec:
    """Return the spec as the job log stores it, if its kind reads several tables. Raises InvalidRequest,
    TableNotFound.
    """
    if kind.tables is None:
        return consumer
    tables = dict(kind.tables(consumer, catalog))
    if source.uri not in tables.values():
        raise InvalidRequest(
            f"does not name {source.uri}, which the job is on",
            field="spec.iteration.consumer.options.tables",
            remedy="Register the job on one of its tables",
        )
    return replace(consumer, options={**consumer.options, "tables": tables})


def versions_wanted(row: JobRow, version: int | None, versions: Mapping[str, int]) -> dict[str, int]:
    """Return the wanted versions by URI, of the job's own table and others that it reads, which may be named as its
    spec names them.

    Raises InvalidRequest.
    """
    found = {} if version is None else {row.table_uri: version}
    names = {row.table_name: row.table_uri, row.table_uri: row.table_uri, **tables_of(row)}
    names |= {uri: uri for uri in tables_of(row).values()}
    for table, each in versions.items():
        if table not in names:
            raise InvalidRequest(
                f"names {table!r}, which the job does not read",
                field="versions",
                remedy="Name tables as its spec does, or by their URIs",
            )
        if each < 0:
            raise InvalidRequest(
                f"wants version {each} of {table!r}", field="versions", remedy="Leave it out for the newest"
            )
        found[names[table]] = max(each, found.get(names[table], 0))
    return found
