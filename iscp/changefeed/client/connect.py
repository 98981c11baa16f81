"""Makes changefeeds, and puts those that are there together with the machine's clock and with etcd."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from iscp.adapters.delta.storage.table_place import missing_parent
from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.keys import DEFAULT_PREFIX, Keys
from iscp.adapters.etcd.values import EtcdSettings
from iscp.adapters.system.clock import SystemClock
from iscp.adapters.system.failpoints import EnvironmentFailpoints
from iscp.changefeed.client.changefeed import Changefeed, Etcd
from iscp.changefeed.etcd.cursor_keys import EtcdFeedCursors
from iscp.changefeed.etcd.locks import EtcdFeedLocks
from iscp.changefeed.model.lock_queue import QueueLimits
from iscp.changefeed.table.feed_schema import create_feed_table
from iscp.changefeed.table.feed_table import FeedTable
from iscp.core.settings.config import EtcdConfig
from iscp.core.settings.config_faults import port_of
from iscp.core.values.argument_checks import column_names, refuse_missing_parent, require, require_seconds
from iscp.core.values.errors import InvalidRequest
from iscp.ports.system import Clock, Failpoints

EtcdAddress: TypeAlias = str | Sequence[str] | EtcdSettings | EtcdConfig
"""HOST:PORT, several of them with commas or as a list, or settings with TLS and a user."""

_LIMITS = QueueLimits()


def create(
    uri: str | Path,
    schema: pa.Schema,
    *,
    shards: int = 1,
    key: Sequence[str] = (),
) -> None:
    """Make a new changefeed, a Delta table, for rows with the columns of `schema`; the number of shards stays.

    `key`: the columns that say what a row is about, in a column of its own for readers. The directory that is to hold
    the feed has to be there. Raises InvalidRequest (nothing was written then), StorageError.
    """
    place, names = _path(uri), column_names(key, "key")
    if not isinstance(schema, pa.Schema):
        raise InvalidRequest(f"is a {type(schema).__name__}", field="schema", remedy="Give a pa.Schema")
    if len({name.lower() for name in schema.names}) < len(schema.names):
        raise InvalidRequest("names a column twice, but for capitals", field="schema", remedy="Give each its own name")
    refuse_missing_parent(missing_parent(place), "uri")
    create_feed_table(place, schema, shards, names)


def open_feed(
    uri: str | Path,
    etcd: EtcdAddress | None = None,
    *,
    etcd_prefix: str = DEFAULT_PREFIX,
    timeout_s: float = _LIMITS.timeout_s,
    wait_max_s: float = _LIMITS.wait_max_s,
    name: str = "",
) -> Changefeed:
    """The changefeed that is there.

    Without `etcd` there are no lock queues, no stored cursors and no incidents. `timeout_s`: much longer than
    a transaction takes; an abandoned one costs the others that. `wait_max_s`: the longest wait in a queue that moves.
    `name`: the name of this writer, in a lock queue or an incident (otherwise host and process).
    Raises TableNotFound, ConfigurationError, InvalidRequest, StorageError.
    """
    place, clock, limits = _path(uri), SystemClock(), _limits(timeout_s, wait_max_s)
    require(name, str, "name", "a text")
    require(etcd_prefix, str, "etcd_prefix", "a text")
    owner = name or f"{socket.gethostname()}:{os.getpid()}"
    at = None if etcd is None else connect_etcd(settings_of(etcd), Keys(etcd_prefix), clock, owner)
    try:
        return compose(place, clock, EnvironmentFailpoints(), at, limits)
    except BaseException:
        if at is not None:
            at.close()
        raise


def compose(uri: str, clock: Clock, failpoints: Failpoints, etcd: Etcd | None, limits: QueueLimits) -> Changefeed:
    return Changefeed(lambda: FeedTable(uri, clock, failpoints), clock, failpoints, etcd, limits)


def connect_etcd(settings: EtcdSettings, keys: Keys, clock: Clock, name: str) -> Etcd:
    """Return the locks and cursors in etcd, to which no request is sent yet."""
    client = EtcdClient(settings, clock)
    locks = EtcdFeedLocks(client, keys, clock, name=name)

    def close() -> None:
        locks.close()
        client.close()

    return Etcd(locks, lambda feed_id: EtcdFeedCursors(client, keys, clock, feed_id), close)


def _path(uri: str | Path) -> str:
    require(uri, (str, Path), "uri", "a path or a URI")
    if not (path := os.fspath(uri)):
        raise InvalidRequest("is empty", field="uri", remedy="Give a path or a URI")
    return path


def _limits(timeout_s: float, wait_max_s: float) -> QueueLimits:
    for field, span_s in (("timeout_s", timeout_s), ("wait_max_s", wait_max_s)):
        if not require_seconds(span_s, field) > 0:
            raise InvalidRequest(f"is {span_s}", field=field, remedy="Give more than 0 seconds")
    return QueueLimits(timeout_s, wait_max_s)


def settings_of(etcd: EtcdAddress) -> EtcdSettings:
    """Raises InvalidRequest where a member is not HOST:PORT."""
    if isinstance(etcd, EtcdSettings):
        return etcd
    if isinstance(etcd, EtcdConfig):
        return EtcdSettings.of(etcd)
    require(etcd, Sequence, "etcd", "HOST:PORT, a list of such, or EtcdSettings")
    endpoints = etcd.split(",") if isinstance(etcd, str) else list(etcd)
    for endpoint in endpoints:
        require(endpoint, str, "etcd", "HOST:PORT, a list of such, or EtcdSettings")
        if port_of(endpoint.removeprefix("http://").removeprefix("https://")) is None:
            raise InvalidRequest(f"{endpoint!r} is not an address", about="etcd", remedy="Write HOST:PORT")
    if not endpoints:
        raise InvalidRequest("names no member", field="etcd", remedy="Write HOST:PORT")
    return EtcdSettings(tuple(endpoints))
