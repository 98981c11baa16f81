"""Finds a view by its name, which is a job's name, without its table; and shows its last refreshes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iscp.cli.shell.history_lines import show_history
from iscp.cli.shell.terminal import say
from iscp.core.spec.view_fields import ViewFields, view_of
from iscp.core.values.errors import InvalidRequest, JobNotFound

if TYPE_CHECKING:
    from iscp.client.admin_client import Client
    from iscp.core.api.api_views import JobView
    from iscp.core.job.iteration import HistoryEntry

REFRESHES_SHOWN = 5
"""Refreshes of a view, the newest, that `view show` and `view explain` show; `view history` shows all."""


def find_view(client: Client, name: str, table: str | None, account: str) -> tuple[JobView, ViewFields]:
    """Return the job of that name that maintains a view. Raises JobNotFound, and InvalidRequest if several are."""
    found = client.views(name, table=table or "", account=account) if name else []
    if len(found) > 1:
        places = ", ".join(sorted(job.table for job in found))
        raise InvalidRequest(f"{name!r} is a view on each of {places}", about="--table", remedy="Name one of them")
    view = view_of(found[0].spec_json) if found else None
    if view is None:
        there = f" on {table}" if table else ""
        raise JobNotFound(f"there is no view {name!r}{there}", about="NAME", remedy="See `iscp-admin view list`")
    return found[0], view


def refreshes_of(client: Client, job: JobView) -> list[HistoryEntry]:
    return client.history(job.table_id, job.name, limit=REFRESHES_SHOWN, account=job.account)


def show_refreshes(refreshes: list[HistoryEntry], *, wide: bool) -> None:
    if refreshes:
        say("\nlast refreshes")
        show_history(refreshes, wide=wide)
