"""The cursors of a changefeed's readers, by name: each is replaced by compare-and-set on its revision."""

from __future__ import annotations

import json
import logging
import re

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.values import Compare, Delete, Get, KeyValue, Put
from iscp.changefeed.model.cursor import Cursor, StoredCursor
from iscp.core.values.argument_checks import require
from iscp.core.values.errors import ConfigurationError, Conflict, InvalidRequest, OutcomeUnknown
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

FORMAT = 1

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")


class EtcdFeedCursors:
    """The stored cursors of one feed in etcd; any thread may use them. All methods raise Unavailable and OutcomeUnknown
    too.
    """

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock, feed: str) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._feed = feed

    def get(self, name: str) -> StoredCursor | None:
        """Return the stored cursor, or None. Raises InvalidRequest (no name), ConfigurationError (the value is no
        cursor).
        """
        kv = self._client.get(self._key(name))
        return _parse(name, kv) if kv else None

    def list(self) -> tuple[StoredCursor, ...]:
        """Return all stored cursors, by name. One that cannot be read raises ConfigurationError: it may be the
        slowest.
        """
        prefix = self._keys.feed_cursors(self._feed)
        return tuple(_parse(kv.key.removeprefix(prefix), kv) for kv in self._client.list_prefix(prefix).items)

    def store(self, name: str, cursor: Cursor, expected: StoredCursor | None, *, rewind: bool = False) -> StoredCursor:
        """Put `cursor` in the place of `expected` (None: there is none yet); what is stored now.

        Raises Conflict where another one is stored, InvalidRequest where it would go back without `rewind`.
        """
        key = self._key(name)
        back = cursor.behind(expected.cursor) if expected else []
        if back and not rewind:
            raise InvalidRequest(
                f"would go back, in shard {back[0]} from {expected.cursor[back[0]] if expected else ''}",
                field="cursor",
                remedy="Store one that is nowhere behind, or say rewind=True",
            )
        at_s = self._clock.now_s()
        fields = {"format": FORMAT, "cursor": cursor.text, "stored_at_s": at_s}
        put = Put(key, json.dumps(fields).encode())
        revision = expected.revision if expected else 0
        try:
            result = self._client.txn((Compare.modified_at(key, revision),), (put,), (Get(key),))
        except OutcomeUnknown:
            return self._settle_put(name, put, revision)
        if not result.succeeded:
            raise _moved(name)
        return StoredCursor(name, cursor, result.revision, at_s)

    def delete(self, name: str, expected: StoredCursor | None = None) -> bool:
        """Delete a cursor, and return whether there was one.

        Given `expected`, delete only that one, and raise Conflict where another one is stored.
        """
        key = self._key(name)
        if expected is None:
            return self._client.delete(key) > 0
        if not self._client.txn((Compare.modified_at(key, expected.revision),), (Delete(key),)).succeeded:
            raise _moved(name)
        return True

    def _settle_put(self, name: str, put: Put, revision: int) -> StoredCursor:
        """Return the stored cursor after a put whose answer was lost; raise OutcomeUnknown or Conflict if it is not
        this one.
        """
        kv = self._client.get(put.key)
        if kv is not None and kv.value == put.value:
            return _parse(name, kv)
        if (kv.mod_revision if kv else 0) == revision:
            raise OutcomeUnknown(f"it is not known whether cursor {name} is stored", remedy="Get it again")
        raise _moved(name)

    def _key(self, name: str) -> str:
        refuse_name(name)
        return self._keys.feed_cursor(self._feed, name)


def refuse_name(name: str) -> None:
    """Raises InvalidRequest for what is no name of a cursor: a slash would begin another part of the key."""
    require(name, str, "name", "a text")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} is no name of a cursor",
            about="name",
            remedy="Up to 128 letters, digits, and, but first, any of '-_.'",
        )


def _moved(name: str) -> Conflict:
    return Conflict(f"cursor {name} has been stored by another since it was got", remedy="Get it again")


def _parse(name: str, kv: KeyValue) -> StoredCursor:
    try:
        fields = json.loads(kv.value)
        return StoredCursor(name, Cursor.parse(fields["cursor"]), kv.mod_revision, float(fields["stored_at_s"]))
    except (ValueError, KeyError, TypeError, InvalidRequest) as error:
        raise ConfigurationError(
            f"holds no cursor: {error!r}", field=kv.key, remedy="Delete the key in etcd, and store the cursor again"
        ) from error
