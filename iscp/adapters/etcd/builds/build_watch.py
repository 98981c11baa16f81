"""The tasks of builds, followed in etcd: all of them once, and then each change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from iscp.adapters.etcd.builds.build_keys import BuildKeys
from iscp.adapters.etcd.etcd_errors import EtcdCompactedError
from iscp.adapters.etcd.member_watch import CLOSE_WAIT_S, RELIST_PAUSE_S, MemberStore, WatchItems
from iscp.adapters.etcd.values import Changed
from iscp.coordination.builds.build_state import Change
from iscp.core.errors import IscpError
from iscp.ports.system import Threads

log = logging.getLogger(__name__)


class BuildWatch:
    """One thread, on which both callbacks are called; they must return soon.

    After each interruption all is read again: the store may have been restored from a backup meanwhile.
    """

    def __init__(
        self,
        client: MemberStore,
        keys: BuildKeys,
        on_read: Callable[[Sequence[Change]], None],
        on_changed: Callable[[Sequence[Change]], None],
        threads: Threads,
    ) -> None:
        self._client = client
        self._keys = keys
        self._on_read = on_read
        self._on_changed = on_changed
        self._closed = False
        (self._ended,) = threads.conditions(1)
        self._watch: WatchItems | None = None
        self._thread = threads.thread("etcd-builds", self._run)
        self._thread.start()

    def close(self) -> None:
        with self._ended:
            self._closed = True
            if self._watch is not None:
                self._watch.close()
            self._ended.notify_all()
        if not self._thread.is_current():
            self._thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        while not self._closed:
            try:
                self._follow()
            except EtcdCompactedError:  # between two pages of the list: the next one is of a newer revision
                continue
            except IscpError as error:
                log.warning("etcd.builds.unreadable", extra={"reason": str(error)})
                with self._ended:
                    self._ended.wait_for(lambda: self._closed, RELIST_PAUSE_S)

    def _follow(self) -> None:
        listing = self._client.list_prefix(self._keys.prefix)
        self._on_read(_readable(map(self._keys.read, listing.items)))
        watch = self._client.watch(
            self._keys.prefix, prefix=True, start_revision=listing.revision + 1, survives_connection=False
        )
        with self._ended:
            self._watch = watch
            if self._closed:  # `close` found no watch to close
                return
        for item in watch:
            if isinstance(item, Changed) and (changes := _readable(map(self._keys.follow, item.events))):
                self._on_changed(changes)


def _readable(changes: Iterable[Change | None]) -> list[Change]:
    return [change for change in changes if change is not None]
