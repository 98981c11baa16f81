"""The state of changefeeds in etcd: the lock queues of writers, the counts of incidents that name the locks, and the
stored cursors of readers.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count

from iscp.changefeed.model.lock_queue import IncidentReport, Incidents
from iscp.changefeed.model.ulid import Cursor, StoredCursor
from iscp.etcd.channels import EtcdLeaseGoneError
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import CURSORS, Compare, Delete, Get, Keys, KeyValue, Put
from iscp.etcd.member_keys import EtcdLease
from iscp.model.values.errors import (
    ConfigurationError,
    Conflict,
    InvalidRequest,
    InvariantBroken,
    IscpError,
    LeaseLost,
    OutcomeUnknown,
    Unavailable,
)
from iscp.model.values.untrusted_values import require
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

# --- counts of incidents ----------------------------------------------------------------------------------------------


def incidents_of(kv: KeyValue | None) -> Incidents:
    return Incidents(report_of("", kv).count, kv.mod_revision) if kv else Incidents()


def report_of(shard: str, kv: KeyValue) -> IncidentReport:
    try:
        fields = json.loads(kv.value)
        return IncidentReport(
            shard=shard,
            count=int(fields["count"]),
            raised_at_s=float(fields["raised_at_s"]),
            raised_by=str(fields["raised_by"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"holds no count of incidents: {error!r}", field=kv.key, remedy="Delete the key in etcd: it begins at 0"
        ) from error


# --- lock queues ------------------------------------------------------------------------------------------------------

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

    The lock queues follow etcd's lock recipe. Each writer creates a key of its own, as in the election, waits for the
    deletion of the key created before it, and then checks again whether its own is still there and the oldest. All keys
    of a process are on one lease, so that they end with it. A key that cannot be deleted takes its lease along: nothing
    renews that any more, and the next writer gets another.

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


# --- cursors ----------------------------------------------------------------------------------------------------------


class EtcdFeedCursors:
    """The stored cursors of one feed in etcd, by name; any thread may use them.

    Each cursor is replaced by compare-and-set on its revision. All methods raise Unavailable and OutcomeUnknown too.
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
