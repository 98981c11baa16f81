"""All keys below a prefix, followed on one thread: read once, and then each change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from iscp.adapters.etcd.etcd_errors import EtcdCompactedError
from iscp.adapters.etcd.values import Changed, EventType, KeyValue, Listing, WatchEvent, WatchItem
from iscp.core.values.errors import IscpError
from iscp.ports.system import Threads

log = logging.getLogger(__name__)

RELIST_PAUSE_S = 0.5
"""Pause before what is followed in etcd is listed again after that failed."""

CLOSE_WAIT_S = 10.0
"""How long a watch's threads are waited for at the end; then they are left to end by themselves."""


class WatchItems(Protocol):
    """The part of Watch that is used here."""

    def __iter__(self) -> Iterator[WatchItem]: ...

    def close(self) -> None: ...


class WatchedStore(Protocol):
    """The part of EtcdClient that reads and follows keys."""

    def get(self, key: str) -> KeyValue | None: ...

    def list_prefix(self, prefix: str) -> Listing: ...

    def watch(
        self, key: str, *, start_revision: int, prefix: bool = False, survives_connection: bool = True
    ) -> WatchItems: ...


class PrefixWatch:
    """One thread, on which both callbacks are called; they must return soon.

    `read` reads all there is, and returns the revision of that; `on_events` gets what came after it. After each
    interruption all is read again, as the store may have been restored from a backup meanwhile; and from time to time,
    as watches end by themselves. `unreadable` is logged where it cannot be read.
    """

    def __init__(
        self,
        client: WatchedStore,
        prefix: str,
        read: Callable[[], int],
        on_events: Callable[[Sequence[WatchEvent]], None],
        unreadable: str,
        thread: str,
        threads: Threads,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._read = read
        self._on_events = on_events
        self._unreadable = unreadable
        self._watch: WatchItems | None = None
        self.closed = False
        (self._ended,) = threads.conditions(1)
        self._thread = threads.thread(thread, self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._ended:
            self.closed = True
            if self._watch is not None:
                self._watch.close()
            self._ended.notify_all()
        if not self._thread.is_current():
            self._thread.join(CLOSE_WAIT_S)

    def read_again(self) -> None:
        """End the watch; all is read then."""
        with self._ended:
            if self._watch is not None:
                self._watch.close()

    def pause(self, pause_s: float) -> None:
        """Return after that, or once it is closed."""
        with self._ended:
            self._ended.wait_for(lambda: self.closed, pause_s)

    def _run(self) -> None:
        while not self.closed:
            try:
                self._follow()
            except EtcdCompactedError:  # between two pages of the list: the next one is of a newer revision
                continue
            except IscpError as error:
                log.warning(self._unreadable, extra={"reason": str(error)})
                self.pause(RELIST_PAUSE_S)

    def _follow(self) -> None:
        revision = self._read()
        watch = self._client.watch(self._prefix, prefix=True, start_revision=revision + 1, survives_connection=False)
        with self._ended:
            self._watch = watch
            if self.closed:  # `close` found no watch to close
                return
        for item in watch:
            if isinstance(item, Changed):
                self._on_events(item.events)


def apply_events(known: dict[str, KeyValue], events: Sequence[WatchEvent]) -> int:
    """Bring keys and their values up to date; the revision that they are of then."""
    for event in events:
        if event.type is EventType.PUT:
            known[event.kv.key] = event.kv
        else:
            known.pop(event.kv.key, None)
    return max(event.kv.mod_revision for event in events)
