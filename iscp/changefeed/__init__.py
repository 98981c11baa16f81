"""Changefeeds as a library: every change in one order, with cursors (docs/changefeed.md)."""

from typing import TYPE_CHECKING, Any

from iscp.core.values.extras import import_name

if TYPE_CHECKING:
    from iscp.adapters.etcd.values import EtcdSettings
    from iscp.adapters.tls.tls_files import TlsFiles
    from iscp.changefeed.client.changefeed import Changefeed
    from iscp.changefeed.client.connect import create
    from iscp.changefeed.client.connect import open_feed as open  # noqa: A004
    from iscp.changefeed.client.purge import Purged
    from iscp.changefeed.client.reader import Page
    from iscp.changefeed.client.transaction import Transaction
    from iscp.changefeed.client.ulid_ranges import Ulids
    from iscp.changefeed.model.cursor import Cursor, StoredCursor
    from iscp.changefeed.model.lock_queue import IncidentReport
    from iscp.core.values.errors import (
        Conflict,
        CursorBehind,
        FeedIncident,
        InvalidRequest,
        IscpError,
        OutcomeUnknown,
        TimedOut,
    )

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
    "Cursor": "iscp.changefeed.model.cursor",
    "EtcdSettings": "iscp.adapters.etcd.values",
    "TlsFiles": "iscp.adapters.tls.tls_files",
    "IncidentReport": "iscp.changefeed.model.lock_queue",
    "Page": "iscp.changefeed.client.reader",
    "Purged": "iscp.changefeed.client.purge",
    "StoredCursor": "iscp.changefeed.model.cursor",
    "Transaction": "iscp.changefeed.client.transaction",
    "Ulids": "iscp.changefeed.client.ulid_ranges",
    "create": "iscp.changefeed.client.connect",
    "open": "iscp.changefeed.client.connect",
}
"""All others are errors."""


def __getattr__(name: str) -> Any:
    # Loaded on first use: an executor of Spark reads a part of a feed without the client, and a node without either.
    if name not in __all__:
        raise AttributeError(f"module 'iscp.changefeed' has no attribute {name!r}")
    home = _HOMES.get(name, "iscp.core.values.errors")
    return import_name("iscp.changefeed", name, home, "open_feed" if name == "open" else name)


def __dir__() -> list[str]:
    return __all__
