"""The lock queues of a changefeed's writers: etcd's lock recipe, and the counts of incidents that name the locks.

Each writer creates a key of its own, as in the election, waits for the deletion of the one created before it, and then
checks again whether its own is still there and the oldest. All keys of a process are on one lease, so that they end
with it. A key that cannot be deleted takes its lease along: nothing renews that any more, and the next writer gets
another.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.etcd_errors import EtcdLeaseGoneError
from iscp.adapters.etcd.keys import CURSORS, Keys
from iscp.adapters.etcd.lease import EtcdLease
from iscp.adapters.etcd.values import Compare, Get, Put
from iscp.changefeed.etcd.incident_values import incidents_of, report_of
from iscp.changefeed.model.lock_queue import IncidentReport, Incidents
from iscp.core.values.errors import (
    ConfigurationError,
    InvalidRequest,
    InvariantBroken,
    IscpError,
    LeaseLost,
    OutcomeUnknown,
    Unavailable,
)
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

FORMAT = 1
TTL_S = 10.0
"""How long the lease of a writer of a changefeed lasts without renewal; then its locks are free."""

MARGIN_S = 2.0
"""How long before the end of its lease a writer counts its locks as lost."""

LEASE_TRIES_MAX = 2
"""Leases tried for one place in a lock queue: one may have gone without notice; if the new one is gone at once too, the
cause is another, and the attempt fails.
"""

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Place:
    """One writer's key in a lock queue."""

    lease: EtcdLease
    queue: str
    key: str
    revision: int


class LockTurn(Enum):
    OURS = auto()
    NOT_YET = auto()
    PLACE_LOST = auto()


class EtcdHeldLock:
    """The port `HeldLock` on etcd."""

    def __init__(self, locks: EtcdFeedLocks, clock: Clock, place: Place) -> None:
        self._locks = locks
        self._clock = clock
        self._place = place
        self._lock = threading.Lock()
        self._released = False

    @property
    def held(self) -> bool:
        return not self._released and self._place.lease.valid(self._clock.monotonic_s())

    def release(self) -> None:
        with self._lock:
            if self._released:
                return
            self._released = True
        self._locks.leave(self._place)


class EtcdFeedLocks:
    """The port `FeedLocks` on etcd; one object for a writer process, from any of its threads.

    `name` says who the writer is, to those who inspect a lock queue or an incident.
    """

    def __init__(
        self,
        client: EtcdClient,
        keys: Keys,
        clock: Clock,
        *,
        name: str,
        ttl_s: float = TTL_S,
        margin_s: float = MARGIN_S,
    ) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._name = name
        self._ttl_s = ttl_s
        self._margin_s = margin_s
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._lease: EtcdLease | None = None
        self._closed = False

    def close(self) -> None:
        """Give up all locks; who still waits here for one gets Unavailable at its next check."""
        with self._lock:
            self._closed = True
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.try_revoke()

    def __enter__(self) -> EtcdFeedLocks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- locks -------------------------------------------------------------------------------------------------

    def try_lock(self, feed: str, shard: str, incidents: int, wait_s: float) -> EtcdHeldLock | None:
        """Queue for the lock, for `wait_s` and as long as etcd takes to answer a call; None: in vain, and out of the
        queue again.

        Raises LeaseLost where no lease can be had.
        """
        queue = self._keys.feed_queue(_name(feed, "feed"), _name(shard, "shard"), incidents)
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            place = self._enqueue(queue)
            try:
                turn = self._wait_for_turn(place, deadline_s)
            except BaseException:
                self.leave(place)
                raise
            if turn is LockTurn.OURS:
                return EtcdHeldLock(self, self._clock, place)
            if turn is LockTurn.NOT_YET:
                self.leave(place)
                return None
            if self._closed:
                raise Unavailable("the locks of this writer are closed")
            # The lease has ended meanwhile: to be back before the time is over would look like an incident.
            if self._clock.monotonic_s() >= deadline_s:
                return None

    def leave(self, place: Place) -> None:
        """Delete the key, or let its lease end."""
        try:
            self._client.delete(place.key)
        except IscpError as error:
            log.warning("etcd.feed_lock.not_deleted", extra={"key": place.key, "reason": str(error)})
            self._retire(place.lease)

    def _enqueue(self, queue: str) -> Place:
        for _ in range(LEASE_TRIES_MAX):
            lease = self._present_lease()
            key = self._keys.feed_place(queue, lease.lease_id, next(self._numbers))
            try:
                revision = self._client.create(key, self._name.encode(), lease.lease_id)
            except EtcdLeaseGoneError:
                self._forget(lease)
                lease.try_revoke()  # then what is on it is not held, also before a renewal would show it
                continue
            except BaseException:
                # The key may be there, or may yet come: also after it was deleted.
                self._retire(lease)
                raise
            if revision is None:
                raise InvariantBroken(f"{key} is there, and nobody else may have made it")
            return Place(lease, queue, key, revision)
        raise LeaseLost(f"{LEASE_TRIES_MAX} leases were gone before a key could be made")

    def _wait_for_turn(self, place: Place, deadline_s: float) -> LockTurn:
        while True:
            listing = self._client.list_prefix(place.queue)
            if not listing.holds(place.key, place.revision):
                return LockTurn.PLACE_LOST
            if (predecessor := listing.last_before(place.revision)) is None:
                return LockTurn.OURS
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return LockTurn.NOT_YET
            self._until_deleted(predecessor.key, listing.revision + 1, left_s)

    def _until_deleted(self, key: str, start_revision: int, wait_s: float) -> None:
        """Return when it may have been deleted, or the time is over: then check again."""
        watch = self._client.watch(key, start_revision=start_revision)
        timer = threading.Timer(wait_s, watch.close)
        timer.daemon = True
        timer.start()
        try:
            watch.wait_for_deletion()
        finally:
            timer.cancel()

    def _present_lease(self) -> EtcdLease:
        with self._lock:
            if self._closed:
                raise Unavailable("the locks of this writer are closed")
            if self._lease is None:
                self._lease = EtcdLease(self._client, self._clock, ttl_s=self._ttl_s, margin_s=self._margin_s)
            return self._lease

    def _retire(self, lease: EtcdLease) -> None:
        """Renew it no more. Other locks on it hold until it ends, which is long for a transaction."""
        self._forget(lease)
        lease.close()

    def _forget(self, lease: EtcdLease) -> None:
        with self._lock:
            if self._lease is lease:
                self._lease = None

    # --- incidents ---------------------------------------------------------------------------------------------

    def incidents(self, feed: str, shard: str) -> Incidents:
        """Return the incidents, by a linearizable read. Raises ConfigurationError where the value is no count."""
        return incidents_of(self._client.get(self._incidents_key(feed, shard)))

    def raise_incidents(self, feed: str, shard: str, seen: Incidents) -> Incidents:
        key = self._incidents_key(feed, shard)
        fields = {
            "format": FORMAT,
            "count": seen.count + 1,
            "raised_at_s": self._clock.now_s(),
            "raised_by": self._name,
        }
        unchanged = Compare.modified_at(key, seen.revision)  # 0 where there is none
        try:
            result = self._client.txn((unchanged,), (Put(key, json.dumps(fields).encode()),), (Get(key),))
        except OutcomeUnknown:
            return self.incidents(feed, shard)
        if result.succeeded:
            return Incidents(seen.count + 1, result.revision)
        return incidents_of(next(iter(result.results[0]), None))

    def list_incidents(self, feed: str) -> tuple[IncidentReport, ...]:
        prefix = self._keys.changefeed(_name(feed, "feed"))
        reports = []
        for kv in self._client.list_prefix(prefix).items:
            shard, _, rest = kv.key.removeprefix(prefix).partition("/")
            if rest != "incidents" or shard == CURSORS:
                continue
            try:
                reports.append(report_of(shard, kv))
            except ConfigurationError as error:
                log.warning("etcd.feed_lock.unreadable_count", extra={"key": kv.key, "reason": error.message})
        return tuple(reports)

    def check(self) -> None:
        self._client.get(self._keys.changefeed(""))

    def _incidents_key(self, feed: str, shard: str) -> str:
        return self._keys.feed_incidents(_name(feed, "feed"), _name(shard, "shard"))


def _name(text: str, field: str) -> str:
    """Return the text; raise InvalidRequest if it is no part of a key, as a slash would begin another part."""
    if not _NAME.fullmatch(text):
        raise InvalidRequest(
            f"{text!r} is no id", about=field, remedy="Up to 128 letters, digits, and, but first, any of '-_.'"
        )
    return text
