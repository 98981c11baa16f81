"""Changefeeds as a library: every change in one order, with cursors (docs/changefeed.md)."""

from iscp.adapters.etcd.values import EtcdSettings, EtcdTls
from iscp.changefeed.feed import Changefeed
from iscp.changefeed.opening import create
from iscp.changefeed.opening import open_feed as open  # noqa: A004
from iscp.changefeed.purging import Purged
from iscp.changefeed.reading import Page
from iscp.changefeed.transaction import Transaction
from iscp.changefeed.ulids import Ulids
from iscp.core.errors import Conflict, CursorBehind, FeedIncident, InvalidRequest, IscpError, OutcomeUnknown, TimedOut
from iscp.core.feed_cursor import Cursor, StoredCursor
from iscp.core.feed_queue import IncidentReport

__all__ = [
    "Changefeed",
    "Conflict",
    "Cursor",
    "CursorBehind",
    "EtcdSettings",
    "EtcdTls",
    "FeedIncident",
    "IncidentReport",
    "InvalidRequest",
    "IscpError",
    "OutcomeUnknown",
    "Page",
    "Purged",
    "StoredCursor",
    "TimedOut",
    "Transaction",
    "Ulids",
    "create",
    "open",
]
