"""Find the tables that a job reads besides its own: a spec names them all, as options of its consumer."""

from __future__ import annotations

from collections.abc import Mapping

from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import IscpError

_NAMING = '"tables"'


def tables_of(row: JobRow) -> Mapping[str, str]:
    """Return the URIs of all tables that the job reads, its own among them, by the names in its spec; empty for one
    table.

    Consumers of others may mean something else by such an option: theirs does not have the job's own table. Specs
    without the option are not parsed, and where a spec cannot be read the job's iterations say so.
    """
    if _NAMING not in row.spec_json:
        return {}
    try:
        found = row.spec.consumer.options.get("tables")
    except IscpError:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(each, str) for pair in found.items() for each in pair):
        return {}
    return dict(found) if row.table_uri in found.values() else {}


def further_tables(row: JobRow) -> tuple[str, ...]:
    """Return the URIs of the tables besides its own, each once."""
    return tuple(dict.fromkeys(uri for uri in tables_of(row).values() if uri != row.table_uri))
