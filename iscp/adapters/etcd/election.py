"""One owner at a time: campaigns on the client's side.

etcd's own Campaign call can report success to a waiter whose lease has ended. So each candidate creates a key on a
lease of its own, waits for the deletion of the one created before it, and then reads again whether its own key is
still there and the oldest (the recipe of etcd's `concurrency` package, with that last read). The key's create
revision is the fence of the term: a write that compares it fails once the key is gone, however late it comes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.lease import EtcdLease
from iscp.adapters.etcd.values import Compare, Delete, Get, KeyValue, Listing, Put
from iscp.adapters.etcd.watch import Watch
from iscp.core.values.errors import Conflict, InvariantBroken, IscpError, NotOwner
from iscp.core.values.members import Leader
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

CAMPAIGN_PAUSE_S = 0.2
"""Pause before a node campaigns again after its campaign failed."""

RESIGN_WAIT_S = 15.0
"""How long the election's thread is waited for when a node resigns; then the lease's end releases the key."""


class EtcdElection:
    """The port `Election` on etcd. `campaign` runs in a thread of its own until `resign`."""

    def __init__(self, client: EtcdClient, keys: Keys, clock: Clock, *, lease_ttl_s: float, margin_s: float) -> None:
        self._client = client
        self._keys = keys
        self._clock = clock
        self._lease_ttl_s = lease_ttl_s
        self._margin_s = margin_s
        self._closed = threading.Event()
        self._giving_way = threading.Event()
        # For `_watch` alone: of an interrupt and a watch that begins, the later one sees the other.
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._lease: EtcdLease | None = None
        self._leftover_id = 0
        self._term: tuple[Leader, str, EtcdLease] | None = None
        self._thread: threading.Thread | None = None

    def campaign(self, node_id: str, on_elected: Callable[[Leader], None], on_lost: Callable[[], None]) -> None:
        """Run for owner until `resign`, again after each loss. Both callbacks come from one thread, in turns.

        They must return soon: while `on_elected` runs, a loss cannot be reported. `on_lost` comes when the key is
        gone, and also when its lease can no longer be confirmed: another may be elected then.
        """
        if self._thread is not None:
            raise InvariantBroken("campaign was called twice without resign")
        self._closed.clear()
        self._thread = threading.Thread(
            target=self._run, args=(node_id, on_elected, on_lost), name="etcd-election", daemon=True
        )
        self._thread.start()

    def resign(self) -> None:
        """Stop running; the owner is notified by `on_lost` first, and then gives way at once."""
        self._closed.set()
        self._interrupt()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(RESIGN_WAIT_S)

    def give_way(self, revision: int) -> None:
        term = self._term
        if term is not None and term[0].revision == revision:
            self._giving_way.set()
            self._interrupt()

    def leader(self) -> Leader | None:
        oldest = _oldest(self._client.list_prefix(self._keys.candidates))
        return Leader(oldest.value.decode(errors="backslashreplace"), oldest.create_revision) if oldest else None

    def confirmed_until_s(self, revision: int) -> float:
        term = self._term
        return term[2].confirmed_until_s() if term is not None and term[0].revision == revision else float("-inf")

    @property
    def lease_id(self) -> int:
        """Return the lease of the present candidacy, or 0; keys on it go with the term."""
        lease = self._lease
        return lease.lease_id if lease else 0

    def write_fenced(self, leader: Leader, *writes: Put | Delete, when: tuple[Compare, ...] = ()) -> int:
        """Write as this owner and none other, all or nothing; the revision.

        `leader` is the term that `on_elected` gave. Raises NotOwner if it has ended, Conflict if not all of `when`
        holds, EtcdOutcomeUnknown if the answer was lost: it may be repeated, since writing the same twice under one
        term is the same.
        """
        term = self._term
        if term is None or term[0] != leader:
            raise NotOwner(f"{leader.node_id} does not hold term {leader.revision}")
        # By the create revision: a later candidacy of this very node has another one.
        fence = Compare.created_at(term[1], leader.revision)
        result = self._client.txn((fence, *when), writes, (Get(term[1]),))
        if not result.succeeded:
            if any(kv.create_revision == leader.revision for kv in result.results[0]):
                raise Conflict("another write has come first")
            raise NotOwner(f"term {leader.revision} of {leader.node_id} has ended")
        return result.revision

    def put_fenced(self, leader: Leader, key: str, value: bytes, lease_id: int) -> int:
        return self.write_fenced(leader, Put(key, value, lease_id))

    def _run(self, node_id: str, on_elected: Callable[[Leader], None], on_lost: Callable[[], None]) -> None:
        while not self._closed.is_set():
            try:
                self._candidacy(node_id, on_elected, on_lost)
            except IscpError as error:
                log.warning("etcd.election.interrupted", extra={"node": node_id, "reason": str(error)})
            except Exception:
                log.exception("etcd.election.failed", extra={"node": node_id})
            # A candidacy that fails at once must not load etcd; `resign` ends the pause.
            self._closed.wait(CAMPAIGN_PAUSE_S)
        self._thread = None

    def _candidacy(self, node_id: str, on_elected: Callable[[Leader], None], on_lost: Callable[[], None]) -> None:
        """Run one candidacy: one key on one lease, from its creation to its end."""
        self._giving_way.clear()
        if self._leftover_id:
            # Etcd was away when it was to be revoked: our own former key would be before us until it expires.
            self._client.revoke(self._leftover_id)
            self._leftover_id = 0
        self._lease = lease = EtcdLease(
            self._client,
            self._clock,
            ttl_s=self._lease_ttl_s,
            margin_s=self._margin_s,
            on_lapsed=self._interrupt,
        )
        try:
            key = self._keys.candidate(lease.lease_id)
            revision = self._client.create(key, node_id.encode(), lease.lease_id)
            if revision is None or not self._wait_for_turn(lease, key, revision):
                return
            leader = Leader(node_id, revision)
            self._term = leader, key, lease
            log.info("etcd.election.won", extra={"node": node_id, "revision": revision})
            try:
                on_elected(leader)
                self._hold(lease, key, revision)
            finally:
                log.info("etcd.election.lost", extra={"node": node_id, "revision": revision})
                on_lost()  # before the key is deleted below: the next owner is elected at that moment
        finally:
            self._end(lease)

    def _wait_for_turn(self, lease: EtcdLease, key: str, revision: int) -> bool:
        """Return whether our key has become the oldest, by a read after the last change, on a lease that is still
        valid.
        """
        while self._may_go_on(lease):
            listing = self._client.list_prefix(self._keys.candidates)
            if not listing.holds(key, revision):
                return False
            # Each watches its predecessor alone, so that the end of an owner wakes one candidate, not all.
            if (predecessor := listing.last_before(revision)) is None:
                # The read may have taken longer than the lease is known to hold.
                return self._may_go_on(lease)
            self._until_deleted(lease, predecessor.key, listing.revision + 1)
        return False

    def _hold(self, lease: EtcdLease, key: str, revision: int) -> None:
        """Return when our key is gone, by whosever hand, or can no longer be vouched for."""
        while self._may_go_on(lease):
            found = self._client.get(key)
            if found is None or found.create_revision != revision:
                return
            self._until_deleted(lease, key, found.mod_revision + 1)

    def _may_go_on(self, lease: EtcdLease) -> bool:
        stopped = self._closed.is_set() or self._giving_way.is_set()
        return not stopped and lease.valid(self._clock.monotonic_s())

    def _until_deleted(self, lease: EtcdLease, key: str, start_revision: int) -> None:
        """Return when it may have been deleted, when interrupted, or when the watch cannot say: probe again."""
        watch = self._client.watch(key, start_revision=start_revision)
        with self._lock:
            self._watch = watch
        # Checked again: an interrupt from before found no watch to close.
        if self._may_go_on(lease):
            watch.wait_for_deletion()

    def _interrupt(self) -> None:
        """The lease has lapsed, or this node is to lead no more: wake whoever waits."""
        with self._lock:
            if self._watch is not None:
                self._watch.close()

    def _end(self, lease: EtcdLease) -> None:
        if not lease.try_revoke():
            self._leftover_id = lease.lease_id


def _oldest(listing: Listing) -> KeyValue | None:
    return min(listing.items, key=lambda kv: kv.create_revision, default=None)
