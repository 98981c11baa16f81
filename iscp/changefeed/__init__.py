"""Changefeeds as a library: every change in one order, with cursors (docs/changefeed.md)."""

from typing import TYPE_CHECKING, Any

from iscp.model.values.untrusted_values import import_name

if TYPE_CHECKING:
    from iscp.changefeed.client.changefeed import Changefeed, create
    from iscp.changefeed.client.changefeed import open_feed as open  # noqa: A004
    from iscp.changefeed.client.input_rows import Ulids
    from iscp.changefeed.client.lock_wait import Transaction
    from iscp.changefeed.client.reader import Page, Purged
    from iscp.changefeed.model.lock_queue import IncidentReport
    from iscp.changefeed.model.ulid import Cursor, StoredCursor
    from iscp.etcd.keys import EtcdSettings
    from iscp.model.values.errors import (
        Conflict,
        CursorBehind,
        FeedIncident,
        InvalidRequest,
        IscpError,
        OutcomeUnknown,
        TimedOut,
    )
    from iscp.system.tls.tls_files import TlsFiles

__all__ = [
    "Changefeed",
    "Conflict",
    "Cursor",
    "CursorBehind",
    "EtcdSettings",
    "FeedIncident",
    "IncidentReport",
    "InvalidRequest",
    "IscpError",
    "OutcomeUnknown",
    "Page",
    "Purged",
    "StoredCursor",
    "TimedOut",
    "TlsFiles",
    "Transaction",
    "Ulids",
    "create",
    "open",
]

_HOMES = {
    "Changefeed": "iscp.changefeed.client.changefeed",
    "Cursor": "iscp.changefeed.model.ulid",
    "EtcdSettings": "iscp.etcd.keys",
    "TlsFiles": "iscp.system.tls.tls_files",
    "IncidentReport": "iscp.changefeed.model.lock_queue",
    "Page": "iscp.changefeed.client.reader",
    "Purged": "iscp.changefeed.client.reader",
    "StoredCursor": "iscp.changefeed.model.ulid",
    "Transaction": "iscp.changefeed.client.lock_wait",
    "Ulids": "iscp.changefeed.client.input_rows",
    "create": "iscp.changefeed.client.changefeed",
    "open": "iscp.changefeed.client.changefeed",
}
"""All others are errors."""


def __getattr__(name: str) -> Any:
    # Loaded on first use: an executor of Spark reads a part of a feed without the client, and a node without either.
    if name not in __all__:
        raise AttributeError(f"module 'iscp.changefeed' has no attribute {name!r}")
    home = _HOMES.get(name, "iscp.model.values.errors")
    return import_name("iscp.changefeed", name, home, "open_feed" if name == "open" else name)


def __dir__() -> list[str]:
    return __all__
