"""Watches of keys in etcd: one that outlives its connection, and one that follows all keys below a prefix."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import grpc

from iscp.etcd import channels as pb
from iscp.etcd.channels import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    Channels,
    Endpoint,
    EtcdCompactedError,
    EtcdDeniedError,
    EtcdFault,
    EtcdUnavailable,
    fault_of,
    translated,
)
from iscp.etcd.keys import (
    Changed,
    Compacted,
    EventType,
    KeyValue,
    Listing,
    Progress,
    WatchEvent,
    WatchItem,
    key_bytes,
    key_text,
    prefix_end,
)
from iscp.model.values.errors import IscpError
from iscp.ports.system import Clock, Threads

# --- a watch that outlives its connection -----------------------------------------------------------------------------
# No event is lost, none comes twice. The watch resumes after the last event it *delivered*. The revision in a
# response's header does not serve for that: it is the store's, which may be ahead of the events sent so far; nor do
# progress notices (etcd#15220 sent them too early). So a watch on which little happens can be found compacted after a
# restart though it missed nothing: it then yields Compacted, and the consumer lists again, which is right at any time.
#
# There is neither a queue nor a thread: the one who iterates pulls from the stream, whose flow control slows the server
# down, and etcd stores what a slow watcher has not taken.
#
# That a server loses no event is promised, and has been broken (etcd#18089). So a watch ends by itself after a while,
# and the consumer reads again what it follows: what was lost is missing until then, and no longer.

log = logging.getLogger(__name__)

WATCH_MAX_S = 300.0
"""How long a watch in etcd lasts at the most; then what it follows is read again, so that a lost event is missing for
no longer. Up to half of it is left off at random, so that nodes do not read at once. With 200 nodes that is one list of
members a second (53 KB), and as many of candidates, tokens and builds.
"""


class Watch:
    """Iterate to receive; blocks while nothing happens; ends after `Compacted`, after `lasts_s`, and when closed by any
    thread.

    Raises EtcdDenied where the user may not watch; everything else that can go wrong with a connection is repaired
    by a new one. Where it does not `survives_connection` it says Compacted instead: while nobody was connected the
    store may have been restored from a backup, and have come past the same revision by other changes since.
    """

    def __init__(
        self,
        channels: Channels,
        clock: Clock,
        key: str,
        *,
        prefix: bool,
        start_revision: int,
        survives_connection: bool = True,
        lasts_s: float = WATCH_MAX_S,
    ) -> None:
        if start_revision <= 0:
            # "From now" would be decided by the server at each new connection: a gap.
            raise ValueError("a watch starts at a revision that was read: start_revision must be positive")
        self._channels = channels
        self._clock = clock
        self._until_s = clock.monotonic_s() + lasts_s
        self._key = key_bytes(key)
        self._range_end = prefix_end(self._key) if prefix else b""
        self._next_revision = start_revision
        self._survives_connection = survives_connection
        self._cluster_id = 0
        self._closed = threading.Event()
        # For `_call`: `close` cancels it, or finds none, and `_stream` then sees that it was closed.
        self._lock = threading.Lock()
        self._call: Any = None

    def close(self) -> None:
        """End the iteration, also one that waits in another thread."""
        with self._lock:
            self._closed.set()
            if self._call is not None:
                self._call.cancel()

    def wait_for_deletion(self) -> None:
        """Return when a key of it was deleted, or the watch has ended, and close it."""
        with self:
            for item in self:
                if isinstance(item, Changed) and any(event.type is EventType.DELETE for event in item.events):
                    return

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[WatchItem]:
        pause_s, denials = PAUSE_FIRST_S, 0
        while not self._ended:
            try:
                for item in self._stream():
                    pause_s, denials = PAUSE_FIRST_S, 0
                    yield item
                    if isinstance(item, Compacted):
                        return
            except EtcdDeniedError:
                # The token dies with the server: one new one is worth a try, a second is not.
                denials += 1
                if denials > 1:
                    raise
                self._channels.drop_token()
            except EtcdUnavailable as error:
                log.info("etcd.watch.interrupted", extra={"key": key_text(self._key), "reason": error.message})
                if not self._survives_connection and not self._ended:
                    yield Compacted(0)
                    return
            if not self._ended:
                # `close` ends the pause; that the client was closed is seen after it, PAUSE_MAX_S later at most.
                self._closed.wait(pause_s)
                pause_s = min(pause_s * 2, PAUSE_MAX_S)

    @property
    def _ended(self) -> bool:
        return self._left_s <= 0.0 or self._closed.is_set() or self._channels.closed

    @property
    def _left_s(self) -> float:
        return self._until_s - self._clock.monotonic_s()

    def _stream(self) -> Iterator[WatchItem]:
        """Yield the items of one connection; raises EtcdUnavailable or EtcdDenied when it ends by itself."""
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests.put(self._create_request())
        try:
            endpoint, call = self._channels.open_stream(
                pb.path("Watch", "Watch"), iter(requests.get, None), timeout_s=self._left_s
            )
            with self._lock:
                self._call = call
                if self._closed.is_set():  # `close` found no call to cancel
                    call.cancel()
            try:
                yield from self._receive(endpoint, call)
            finally:
                call.cancel()
        finally:
            requests.put(None)  # frees the thread in which gRPC waits for further requests

    def _receive(self, endpoint: Endpoint, call: Any) -> Iterator[WatchItem]:
        try:
            for response in call:
                if response.canceled:
                    yield self._cancellation(endpoint, response)
                    return
                if response.created:
                    if self._store_is_new(response.header):
                        yield Compacted(0)
                        return
                elif response.events:
                    events = tuple(_event(event) for event in response.events)
                    self._channels.count_events(len(events))
                    self._next_revision = events[-1].kv.mod_revision + 1
                    yield Changed(events)
                else:
                    yield Progress(response.header.revision)
        except grpc.RpcError as error:
            if self._closed.is_set() or self._left_s <= 0.0:
                return  # it was ended here: no fault of the endpoint's, whichever end says so
            if fault_of(error) in (EtcdFault.UNSENT, EtcdFault.LOST):
                self._channels.leave(endpoint)
            if isinstance(denied := translated(error, writes=False), EtcdDeniedError):
                raise denied from error
            raise EtcdUnavailable(f"{error.code().name}: {error.details()}") from error
        raise EtcdUnavailable("the server ended the stream")

    def _cancellation(self, endpoint: Endpoint, response: Any) -> WatchItem:
        if response.compact_revision:
            return Compacted(response.compact_revision)
        reason = response.cancel_reason
        if "permission denied" in reason or "auth" in reason:
            raise EtcdDeniedError(reason, about="etcd.user", remedy="Give the user's role read permission")
        self._channels.leave(endpoint)
        raise EtcdUnavailable(reason)

    def _store_is_new(self, header: Any) -> bool:
        """Return whether this is another store than the one that was read: its revisions mean something else."""
        known, self._cluster_id = self._cluster_id or header.cluster_id, header.cluster_id
        if header.cluster_id != known:
            return True
        if header.revision >= self._next_revision - 1:
            return False
        # A member that lags behind looks the same: read what the cluster as a whole has.
        request = pb.RangeRequest(key=self._key, limit=1)
        now = self._channels.unary(pb.path("KV", "Range"), request, writes=False)
        return int(now.header.revision) < self._next_revision - 1

    def _create_request(self) -> Any:
        create = pb.WatchCreateRequest(
            key=self._key,
            range_end=self._range_end,
            start_revision=self._next_revision,
            progress_notify=True,
        )
        return pb.WatchRequest(create_request=create)


def key_value(kv: Any) -> KeyValue:
    return KeyValue(key_text(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def _event(event: Any) -> WatchEvent:
    return WatchEvent(EventType(event.type), key_value(event.kv))


# --- all keys below a prefix, read once, and then each change ---------------------------------------------------------

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
