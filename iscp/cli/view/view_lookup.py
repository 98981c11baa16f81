"""Finds a view by its name, which is a job's name: which table it is on need not be said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iscp.core.spec.view_fields import ViewFields, view_of
from iscp.core.values.errors import InvalidRequest, JobNotFound

if TYPE_CHECKING:
    from iscp.client.admin_client import Client
    from iscp.core.api.api_views import JobView


def find_view(client: Client, name: str, table: str | None, account: str) -> tuple[JobView, ViewFields]:
    """The job of that name that keeps a view. Raises JobNotFound, and InvalidRequest where several are."""
    found = client.views(name, table=table or "", account=account) if name else []
    if len(found) > 1:
        places = ", ".join(sorted(job.table for job in found))
        raise InvalidRequest(f"{name!r} is a view on each of {places}", field="--table", remedy="Name one of them")
    view = view_of(found[0].spec_json) if found else None
    if view is None:
        there = f" on {table}" if table else ""
        raise JobNotFound(f"there is no view {name!r}{there}", field="NAME", remedy="See `iscp-admin view list`")
    return found[0], view
