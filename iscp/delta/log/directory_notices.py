"""Notices commits to tables in local directories by the kernel's notifications (port LogNotices).

A watch of inotify stays for one event (IN_ONESHOT). The table is then noticed, and a moment later watched again and
noticed once more, for what came in between; the moment grows while that goes on. So a commit costs two probes, an idle
table nothing, and whoever touches files in a log ten thousand times a second leads to two events a second: the kernel
queues no others. A queue that overflows all the same is answered by one pass over all tables.
"""

from __future__ import annotations

import ctypes
import errno
import heapq
import logging
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from iscp.delta.log.commits import log_of
from iscp.storage.locations import local_path, on_local_disk

log = logging.getLogger(__name__)

PAUSE_MIN_S, PAUSE_MAX_S = 0.05, 1.0
"""Seconds after an event until a table is watched again; they double while events follow, up to the latter."""

QUIET_S = 1.0
"""Seconds without an event after which the next pause is the least again."""

RENEW_S = 300.0
"""Seconds between two watches of a table without an event: its directory may be another one by then."""

RETRY_S = 30.0
"""Seconds until a table is tried again that could not be watched."""

EVENTS_BYTES = 65_536
"""Bytes of events that are read at once."""

REMEDY = "Raise fs.inotify.max_user_watches and max_user_instances; until then commits are found by probes, later"

_CLOSE_WRITE, _MOVED_TO, _CREATE, _OVERFLOW = 0x8, 0x80, 0x100, 0x4000
_ONLYDIR, _ONESHOT = 0x0100_0000, 0x8000_0000
_MASK = _CLOSE_WRITE | _MOVED_TO | _CREATE | _ONLYDIR | _ONESHOT
_EVENT = struct.Struct("iIII")
_LIMITS = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


@dataclass(slots=True, eq=False)
class _FollowedLog:
    """A table by its URI. `wd` is its watch (-1: none), which is due to be made or renewed at `due_s`."""

    uri: str
    place: str
    wd: int = -1
    pause_s: float = PAUSE_MIN_S
    noticed_s: float = 0.0
    due_s: float = 0.0


class DirectoryNotices:
    """Follows the logs of tables in local directories. `on_commit` gets a table's URI, on a thread of its own."""

    def __init__(self, on_commit: Callable[[str], None]) -> None:
        self._on_commit = on_commit
        self._lock = threading.Lock()
        self._orders: deque[tuple[str, bool]] = deque()
        self._closed = False
        self._wake = -1
        self._thread: threading.Thread | None = None
        self._refused = False
        self._tables: dict[str, _FollowedLog] = {}
        self._at: dict[int, dict[str, None]] = {}
        self._due: list[tuple[float, int, _FollowedLog]] = []
        self._numbers = count()

    def follow(self, table_uri: str) -> None:
        if local_path(table_uri) is not None and on_local_disk(table_uri):
            self._order(table_uri, wanted=True)

    def leave(self, table_uri: str) -> None:
        self._order(table_uri, wanted=False)

    def close(self) -> None:
        with self._lock:
            self._closed, thread = True, self._thread
            if thread is not None:
                os.eventfd_write(self._wake, 1)
        if thread is not None:
            thread.join()

    def counters(self) -> dict[str, int]:
        """Tables whose commits are noticed at once, and those that could be and are not, which probes find."""
        tables = list(self._tables.values())
        watched = sum(table.wd >= 0 or table.noticed_s > 0.0 for table in tables)
        return {"tables_noticed": watched, "tables_unnoticed": len(tables) - watched}

    def _order(self, table_uri: str, *, wanted: bool) -> None:
        with self._lock:
            if self._closed or (self._thread is None and not wanted):
                return
            self._orders.append((table_uri, wanted))
            if self._thread is None:
                self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._thread = threading.Thread(target=self._run, name="iscp-notices", daemon=True)
                self._thread.start()
            os.eventfd_write(self._wake, 1)

    # --- on the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        events = _Inotify()
        try:
            self._follow(events)
        except Exception:  # probes find every commit, only later
            log.exception("notices.ended")
            for table in self._tables.values():
                table.wd, table.noticed_s = -1, 0.0
        finally:
            events.close()

    def _follow(self, events: _Inotify) -> None:
        while True:
            wait_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            poll = select.poll()
            for handle in {self._wake, events.handle} - {-1}:
                poll.register(handle, select.POLLIN)
            poll.poll(None if wait_s is None else 1_000 * wait_s + 1)
            with self._lock:
                closed, orders = self._closed, list(self._orders)
                self._orders.clear()
            if closed:
                return
            _drain(self._wake)
            for uri, wanted in orders:
                self._take(events, uri, wanted)
            for wd, mask in events.read():
                self._hear(wd, overflown=bool(mask & _OVERFLOW))
            self._watch_due(events)

    def _take(self, events: _Inotify, uri: str, wanted: bool) -> None:
        table = self._tables.get(uri)
        if wanted and table is None:
            self._tables[uri] = table = _FollowedLog(uri, log_of(uri))
            self._set_due(table, time.monotonic())
        elif not wanted and table is not None:
            del self._tables[uri]
            if self._unmap(table):
                events.remove(table.wd)

    def _hear(self, wd: int, *, overflown: bool) -> None:
        for uri in list(self._tables) if overflown else self._at.pop(wd, ()):
            table, now_s = self._tables[uri], time.monotonic()
            lately = now_s - table.noticed_s < table.pause_s + QUIET_S
            table.pause_s = min(2 * table.pause_s, PAUSE_MAX_S) if lately else PAUSE_MIN_S
            table.wd, table.noticed_s = -1, now_s
            self._set_due(table, now_s + table.pause_s)
            self._on_commit(uri)
        if overflown:
            log.warning("notices.overflown", extra={"tables": len(self._tables)})
            self._at.clear()

    def _watch_due(self, events: _Inotify) -> None:
        now_s = time.monotonic()
        while self._due and self._due[0][0] <= now_s:
            due_s, _, table = heapq.heappop(self._due)
            if due_s == table.due_s and self._tables.get(table.uri) is table:
                self._watch(events, table, now_s)

    def _watch(self, events: _Inotify, table: _FollowedLog, now_s: float) -> None:
        former = table.wd
        try:
            wd = events.add(table.place)
        except OSError as error:
            self._unmap(table)
            if former >= 0:
                self._on_commit(table.uri)
            table.noticed_s = 0.0
            if error.errno in _LIMITS:
                self._report(error)
            self._set_due(table, now_s + RETRY_S)
            return
        if wd != former:
            if self._unmap(table):
                events.remove(former)  # the directory is another one
            table.wd = wd
            self._at.setdefault(wd, {})[table.uri] = None
            self._on_commit(table.uri)  # for what came before
        self._set_due(table, now_s + RENEW_S)

    def _unmap(self, table: _FollowedLog) -> bool:
        """Return whether its watch is of no use any more."""
        wd, table.wd = table.wd, -1
        if wd < 0 or (uris := self._at.get(wd)) is None:
            return False
        uris.pop(table.uri, None)
        if uris:
            return False
        del self._at[wd]
        return True

    def _set_due(self, table: _FollowedLog, due_s: float) -> None:
        table.due_s = due_s
        heapq.heappush(self._due, (due_s, next(self._numbers), table))

    def _report(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            log.error("notices.refused", extra={"error": str(error), "remedy": REMEDY})


class _Inotify:
    """Linux's inotify. Its handle is opened by the first watch (-1: not yet)."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self.handle = -1

    def add(self, place: str) -> int:
        """Raises OSError, also where there is no more of it."""
        if self.handle < 0:
            self.handle = self._checked(self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        return self._checked(self._library.inotify_add_watch(self.handle, os.fsencode(place), ctypes.c_uint32(_MASK)))

    def remove(self, wd: int) -> None:
        self._library.inotify_rm_watch(self.handle, wd)  # it may be gone already

    def read(self) -> Iterator[tuple[int, int]]:
        """Yield the watch and the kinds of each event that is there."""
        try:
            found = os.read(self.handle, EVENTS_BYTES) if self.handle >= 0 else b""
        except BlockingIOError:
            return
        place = 0
        while place < len(found):
            wd, mask, _, length = _EVENT.unpack_from(found, place)
            place += _EVENT.size + length
            yield wd, mask

    def close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)

    @staticmethod
    def _checked(found: int) -> int:
        if found < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return found


def _drain(handle: int) -> None:
    try:
        os.eventfd_read(handle)
    except BlockingIOError:
        return
