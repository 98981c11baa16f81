"""Stored cursors: how far the readers of a changefeed have come, by name in etcd."""

from __future__ import annotations

from types import NoneType

from iscp.changefeed.etcd.cursor_keys import EtcdFeedCursors
from iscp.changefeed.model.cursor import Cursor, StoredCursor
from iscp.core.values.argument_checks import require
from iscp.core.values.errors import InvalidRequest


class Cursors:
    """The stored cursors of one feed; any thread may use them. All methods raise Unavailable and OutcomeUnknown too."""

    def __init__(self, store: EtcdFeedCursors, feed_id: str, shards: int) -> None:
        self._store = store
        self._feed_id = feed_id
        self._shards = shards

    def get(self, name: str) -> StoredCursor | None:
        """Return the cursor that is stored under `name`, or None. Raises InvalidRequest for an invalid name."""
        return self._store.get(name)

    def list(self) -> tuple[StoredCursor, ...]:
        """Return all stored cursors, by name."""
        return self._store.list()

    def store(self, name: str, cursor: Cursor, expected: StoredCursor | None, *, rewind: bool = False) -> StoredCursor:
        """Put `cursor` in the place of `expected`, which `get` or `store` returned (None: there is none yet).

        Raises Conflict where another one is stored by now, InvalidRequest where the cursor is not of this feed, or
        would go back in a shard without `rewind`.
        """
        _refuse_no_stored(expected)
        require(cursor, Cursor, "cursor", "a Cursor")
        cursor.refuse_foreign(self._feed_id, self._shards)
        if expected is not None and expected.name != name:
            raise InvalidRequest(f"is cursor {expected.name}, not {name}", field="expected", remedy=f"Get {name}")
        return self._store.store(name, cursor, expected, rewind=rewind)

    def delete(self, name: str, expected: StoredCursor | None = None) -> bool:
        """Delete a stored cursor, and return whether there was one.

        Given `expected`, delete that one only, and raise Conflict where another is stored by now.
        """
        _refuse_no_stored(expected)
        return self._store.delete(name, expected)


def _refuse_no_stored(expected: StoredCursor | None) -> None:
    require(expected, (StoredCursor, NoneType), "expected", "what `get` or `store` returned, or None")
