"""The members of the cluster in etcd: keys on leases, which are renewed, followed as snapshots, and registered under a
name.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from iscp.etcd.channels import EtcdCompactedError
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import (
    Changed,
    Compare,
    Keys,
    KeyValue,
    Put,
    Target,
    WatchEvent,
    encoded,
    epoch_of,
    snapshot_of,
)
from iscp.etcd.watch import CLOSE_WAIT_S, RELIST_PAUSE_S, WatchedStore, WatchItems, apply_events
from iscp.model.values.errors import ConfigurationError, Conflict, IscpError, OutcomeUnknown
from iscp.model.values.ids import NODES_MAX, Moment, NodeRecord
from iscp.model.values.untrusted_values import error_text, exact_int, printable
from iscp.ports.system import Clock, Threads

# --- leases -----------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
"""Renewals of a lease within its TTL."""

RETRIES_PER_TTL = 20
"""Attempts within the TTL after a renewal failed; at the end of TTL - margin the node stops to write."""

LEASE_CLOSE_WAIT_S = 10.0
"""How long the renewing thread is waited for when a lease is closed; then it is left to end by itself."""


class EtcdLease:
    """A lease that is renewed, and the time until which it is known to be held.

    The server counts from when it handled a renewal, the client from when it sent it, which is earlier: what the client
    believes ends before what the server does, whatever the network. The clock must not stand still while the machine
    sleeps longer than the margin (CLOCK_BOOTTIME on Linux, where machines are suspended).

    The lease renews itself in a thread of its own until closed or gone. `on_lapsed` is called once each time when it
    can no longer be confirmed (no answer for TTL - margin, or the server says that it is gone), `on_gone` once, when
    the server says so: it never comes back then. Between the two a renewal may still succeed, and the lease holds as if
    nothing had been: its keys were there all the time. Both come from the renewing thread and must return soon.
    """

    def __init__(
        self,
        client: EtcdClient,
        clock: Clock,
        *,
        ttl_s: float,
        margin_s: float,
        on_lapsed: Callable[[], None] | None = None,
        on_gone: Callable[[], None] | None = None,
    ) -> None:
        """Grant it and start to renew. Raises EtcdUnavailable, and ConfigurationError on a useless margin."""
        self._client = client
        self._clock = clock
        self._margin_s = margin_s
        self._on_lapsed = on_lapsed
        self._on_gone = on_gone
        sent_s = clock.monotonic_s()
        self._lease_id, self._ttl_s = client.grant(math.ceil(ttl_s))
        if not 0 <= margin_s < self._ttl_s * (1 - 1 / RENEWALS_PER_TTL):
            client.revoke(self._lease_id)
            raise ConfigurationError(
                f"a margin of {margin_s} s leaves no time between renewals of {self._ttl_s} s",
                about="etcd.margin_s",
                remedy="Choose it well below two thirds of the TTL",
            )
        self._confirmed_until_s = sent_s + self._ttl_s - margin_s
        self._lapsed = False
        self._lock = threading.Lock()
        self._gone = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"etcd-lease-{self._lease_id:x}", daemon=True)
        self._thread.start()

    @property
    def lease_id(self) -> int:
        return self._lease_id

    @property
    def ttl_s(self) -> int:
        """Return the time to live in seconds, as granted."""
        return self._ttl_s

    @property
    def gone(self) -> bool:
        """Return whether the server has answered that the lease no longer exists."""
        return self._gone.is_set()

    def confirmed_until_s(self) -> float:
        return self._confirmed_until_s

    def valid(self, now_s: float) -> bool:
        return now_s < self._confirmed_until_s

    def close(self) -> None:
        """Stop renewing, and let it run out."""
        self._closed.set()
        if threading.current_thread() is not self._thread:  # a callback may close it
            self._thread.join(LEASE_CLOSE_WAIT_S)

    def revoke(self) -> None:
        """Stop renewing and end it now, with its keys; raises EtcdUnavailable if that does not reach etcd."""
        with self._lock:  # together, as a renewal whose answer arrives now must not make it valid again
            self._closed.set()
            self._confirmed_until_s = float("-inf")
        self.close()
        if not self.gone:
            self._client.revoke(self._lease_id)

    def try_revoke(self) -> bool:
        """Revoke the lease; return False where etcd did not answer, and the lease runs out by itself."""
        try:
            self.revoke()
        except IscpError as error:
            log.warning("etcd.lease.not_revoked", extra={"lease": self._lease_id, "reason": str(error)})
            return False
        return True

    def _run(self) -> None:
        wait_s = self._ttl_s / RENEWALS_PER_TTL
        while not self._closed.wait(wait_s):
            wait_s = self._ttl_s / (RENEWALS_PER_TTL if self._renew() else RETRIES_PER_TTL)
            now_s = self._clock.monotonic_s()
            if self._gone.is_set():
                self._report(self._on_gone)
                return
            if not self._lapsed:
                if self.valid(now_s):
                    # Whoever writes under it is to be stopped when it lapses, not at the next renewal.
                    wait_s = min(wait_s, self._confirmed_until_s - now_s)
                else:
                    self._lapse()

    def _renew(self) -> bool:
        """Renew once, not beyond the moment at which the lease must be reported as lapsed."""
        sent_s = self._clock.monotonic_s()
        timeout_s = self._ttl_s / RENEWALS_PER_TTL
        if not self._lapsed:
            timeout_s = min(timeout_s, max(self._confirmed_until_s - sent_s, self._ttl_s / RETRIES_PER_TTL))
        try:
            ttl_s = self._client.keep_alive(self._lease_id, timeout_s=timeout_s)
        except IscpError as error:
            log.warning("etcd.lease.unconfirmed", extra={"lease": self._lease_id, "reason": error.message})
            return False
        with self._lock:
            if self._closed.is_set():
                return False
            self._confirmed_until_s = sent_s + ttl_s - self._margin_s if ttl_s > 0 else float("-inf")
        if ttl_s > 0:
            self._lapsed = self._lapsed and not self.valid(self._clock.monotonic_s())
            return True
        log.warning("etcd.lease.gone", extra={"lease": self._lease_id})
        # Before the callback: whoever is woken by it first checks whether the lease is gone.
        self._gone.set()
        if not self._lapsed:
            self._lapse()
        return False

    def _lapse(self) -> None:
        self._lapsed = True
        log.warning("etcd.lease.lapsed", extra={"lease": self._lease_id})
        self._report(self._on_lapsed)

    def _report(self, callback: Callable[[], None] | None) -> None:
        if callback is None or self._closed.is_set():
            return
        try:
            callback()
        except Exception:
            log.exception("etcd.lease.callback_failed", extra={"lease": self._lease_id})


# --- members, followed as snapshots -----------------------------------------------------------------------------------
# A snapshot has the records of the nodes, sorted, as of a moment of etcd.

REDELIVER_PAUSE_S = 0.5
"""Pause before a list of members that could not be delivered is delivered again."""

Members = tuple[tuple[NodeRecord, ...], Moment]
"""Who is registered, and at which moment of etcd."""


class Moments:
    """Puts what is read of a store in order, also where its revisions go back: it was restored from a backup.

    Reads are linearizable: one that is sent after another's answer came shows at least the same revision.
    """

    def __init__(self) -> None:
        # Answers may cross: the latest moment never goes back.
        self._lock = threading.Lock()
        self._latest = Moment()

    @property
    def latest(self) -> Moment:
        return self._latest

    def read_at(self, before: Moment, revision: int, restored: bool = False) -> Moment | None:
        """Return the moment of a read whose answer has this revision; `before`: the latest when it was sent.

        `restored`: the answer shows that the store was restored, whatever its revision. None: the moment is not known,
        as another read has found the store restored meanwhile; read again.
        """
        with self._lock:
            if self._latest.restores != before.restores:
                return None
            restored = restored or revision < before.revision
            if restored:
                log.warning("etcd.restored", extra={"revision": revision, "before": before.revision})
            moment = Moment(before.restores + restored, revision, self._latest.breaks)
            self._latest = max(self._latest, moment)
            return moment

    def follow(self, since: Moment, revision: int) -> Moment:
        """Return the moment of a change that a watch from `since` has brought."""
        moment = Moment(since.restores, revision, since.breaks)
        with self._lock:
            self._latest = max(self._latest, moment)
        return moment

    def lose_sight(self) -> None:
        """Note that nothing is followed until the next read."""
        with self._lock:
            self._latest = replace(self._latest, breaks=self._latest.breaks + 1)


class MemberReads:
    """All that one process reads of the members: by lists, and by the watch, whichever comes first.

    The watch only adds what came after the latest list: an event that it has lost is missing until then, and what a
    list has shown is never undone by a watch that lacks it.

    A store that was restored from a backup may have come past its former revisions before it is read again, and bears
    the same ids. But it has forgotten the epochs that were given since, and those are never deleted: whose record is
    gone while its epoch was never given is not gone, and may be writing.
    """

    def __init__(self, client: WatchedStore, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self.moments = Moments()
        self._store_id = 0
        # A list and the watch may cross: what is of the later moment stays.
        self._lock = threading.Lock()
        self._known: dict[str, KeyValue] = {}
        self._listed = Moment()
        self._newest: Members = (), Moment()

    def list(self) -> Members:
        """Return who is there now; a watch from the next revision on misses nothing."""
        while True:  # ends: another pass is needed only where the store was restored during this one
            before, known = self.moments.latest, self._newest[0]
            listing = self._client.list_prefix(self._keys.nodes)
            found = snapshot_of(listing.items)
            known_id, self._store_id = self._store_id or listing.store_id, listing.store_id
            there = {record.node_id: record for record in found}
            restored = known_id != listing.store_id or any(self._forgot(life, there) for life in known)
            if (moment := self.moments.read_at(before, listing.revision, restored)) is None:
                continue
            with self._lock:
                if moment >= self._newest[1]:
                    self._known, self._listed = {kv.key: kv for kv in listing.items}, moment
                    self._newest = found, moment
            return found, moment

    def follow(self, events: Sequence[WatchEvent], since: Moment) -> Members | None:
        """Return who is there after these events, which a watch from `since` has brought.

        None: a list has shown that the store was restored, and what is followed would be of before.
        """
        with self._lock:
            if self.moments.latest.restores > since.restores:
                return None
            later = [event for event in events if event.kv.mod_revision > self._listed.revision]
            if later:
                revision = apply_events(self._known, later)
                self._newest = snapshot_of(self._known.values()), self.moments.follow(since, revision)
            return self._newest

    def _forgot(self, life: NodeRecord, there: Mapping[str, NodeRecord]) -> bool:
        """Return whether the store cannot be the one in which this life was registered, or its epoch key was spoilt."""
        now = there.get(life.node_id)
        if now is not None and now.epoch == life.epoch:
            return now.lease_id != life.lease_id  # its epoch was given twice
        try:
            return epoch_of(self._client.get(self._keys.epoch(life.node_id))) < life.epoch
        except ConfigurationError:
            return True


class MemberWatch:
    """One thread follows etcd, another one calls back: a slow callback neither delays nor queues anything."""

    def __init__(
        self,
        client: WatchedStore,
        keys: Keys,
        on_change: Callable[[tuple[NodeRecord, ...], Moment], None],
        reads: MemberReads,
        threads: Threads,
    ) -> None:
        self._client = client
        self._keys = keys
        self._on_change = on_change
        self._reads = reads
        self._closed = False
        self._changed, self._ended = threads.conditions(2)
        self._latest: Members | None = None
        self._delivered: Members | None = None
        self._watch: WatchItems | None = None
        self._threads = [
            threads.thread(f"etcd-members-{name}", run)
            for name, run in (("follow", self._follow), ("deliver", self._deliver))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            if self._watch is not None:
                self._watch.close()
            self._changed.notify_all()
            self._ended.notify_all()
        for thread in self._threads:
            # A callback may close the watch.
            if not thread.is_current():
                thread.join(CLOSE_WAIT_S)

    def _pause(self, pause_s: float) -> None:
        with self._ended:  # a condition of its own, as each change would end the pause otherwise
            self._ended.wait_for(lambda: self._closed, pause_s)

    def _follow(self) -> None:
        while not self._closed:
            try:
                self._follow_from_list()
            # Compacted between two pages of the list: the next list is of a newer revision, so no pause.
            except EtcdCompactedError:
                continue
            except IscpError as error:
                log.warning("etcd.members.unreadable", extra={"reason": str(error)})
                self._pause(RELIST_PAUSE_S)

    def _follow_from_list(self) -> None:
        self._publish(members := self._reads.list())
        _, moment = members
        watch = self._client.watch(
            self._keys.nodes, prefix=True, start_revision=moment.revision + 1, survives_connection=False
        )
        with self._changed:
            self._watch = watch
            if self._closed:  # `close` found no watch to close
                return
        try:
            for item in watch:
                if isinstance(item, Changed):
                    if (followed := self._reads.follow(item.events, moment)) is None:
                        return
                    self._publish(followed)
        finally:
            self._reads.moments.lose_sight()

    def _publish(self, members: Members) -> None:
        with self._changed:
            self._latest = members
            self._changed.notify_all()

    def _deliver(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._latest != self._delivered)
                if self._closed:
                    return
                snapshot = self._delivered = self._latest
            if snapshot is not None:
                try:
                    self._on_change(*snapshot)
                except Exception:
                    log.exception("etcd.members.callback_failed")
                    self._deliver_again()

    def _deliver_again(self) -> None:
        """Have the members delivered again after a pause, as the next change may be far away."""
        self._pause(REDELIVER_PAUSE_S)
        with self._changed:
            self._delivered = None


# --- registration -----------------------------------------------------------------------------------------------------

NAME_POLL_S = 0.1
"""Pause between two checks whether a node's former process is gone."""

NAME_GRACE_S = 3.0
"""How long a former process's key is waited for beyond the time that etcd says is left, since etcd rounds down and
checks for expired leases every half second; then the name counts as taken.
"""

NAME_RENEWALS_MIN = 2
"""Renewals seen of a former process's lease before its name counts as taken: a single one could be a restart of etcd,
which gives every lease its whole time again.
"""

REVOKING_S = 30.0
"""How long an owner may take from writing down that it revokes a lease to having done so; its record in etcd lasts so
much longer.
"""


class EtcdMembership:
    """The port `Membership` on etcd. One registration at a time.

    A name belongs to whoever has created its key; it is free again when that lease has ended. A node that died and
    comes back within its TTL meets the key of its former life, which nothing renews: it waits for that to run out. A
    key that is being renewed belongs to another live node, and its name is refused.
    """

    def __init__(
        self,
        client: EtcdClient,
        keys: Keys,
        clock: Clock,
        threads: Threads,
        *,
        lease_ttl_s: float,
        margin_s: float,
        nodes_max: int = NODES_MAX,
    ) -> None:
        self._nodes_max = nodes_max
        self._client = client
        self._keys = keys
        self._clock = clock
        self._lease_ttl_s = lease_ttl_s
        self._margin_s = margin_s
        self._lease: EtcdLease | None = None
        self._record: NodeRecord | None = None
        self._leaving = False
        self._threads = threads
        self._reads = MemberReads(client, keys)

    def register(
        self,
        record: NodeRecord,
        on_lapsed: Callable[[], None] | None = None,
        on_gone: Callable[[], None] | None = None,
    ) -> EtcdLease:
        """Register under a new lease, whose callbacks are those of EtcdLease.

        Ends a former registration of this object. Waits for the key of a dead namesake to expire; raises
        ConfigurationError if the namesake is alive, or there are as many nodes as there may be; Conflict if a namesake
        has had the record's epoch since; EtcdUnavailable or EtcdOutcomeUnknown with nothing left behind.
        """
        self.deregister()
        record = replace(record, leaving=self._leaving)
        self._await_free_name(record.node_id)
        lease = EtcdLease(
            self._client,
            self._clock,
            ttl_s=self._lease_ttl_s,
            margin_s=self._margin_s,
            on_lapsed=on_lapsed,
            on_gone=on_gone,
        )
        record = replace(record, lease_id=lease.lease_id, ttl_s=float(lease.ttl_s))
        try:
            if not self._create(record, lease.lease_id):
                raise _taken(record.node_id)
            self._refuse_beyond_limit(record.node_id)
        except BaseException:
            # Also ends a write that may still be under way: it fails without its lease.
            lease.try_revoke()
            raise
        self._lease, self._record = lease, record
        return lease

    def _refuse_beyond_limit(self, node_id: str) -> None:
        """Give the key up if as many as there may be came before it: of several at once the first ones stay."""
        key = self._keys.node(node_id)
        created = {kv.key: kv.create_revision for kv in self._client.list_prefix(self._keys.nodes).items}
        mine = created.get(key, 0)
        before = sum(revision < mine for revision in created.values())
        if before >= self._nodes_max:
            raise ConfigurationError(
                f"the cluster has {before} nodes already, and may have {self._nodes_max}",
                about="node_id",
                remedy="Stop another node first, or give this one to another cluster",
            )

    def leave(self) -> None:
        """Record that this node stops in order, with every registration from now on."""
        self._leaving = True
        if self._record is None:
            return
        key, lease_id = self._keys.node(self._record.node_id), self._record.lease_id
        ours = Compare(key, Target.LEASE, lease_id)  # else the name may be of another node's life by now
        self._client.txn((ours,), (Put(key, encoded(replace(self._record, leaving=True)), lease_id),))

    def deregister(self) -> None:
        """Leave at once; if etcd cannot be reached, the lease runs out."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.try_revoke()

    def members(self) -> Members:
        return self._reads.list()

    def watch(self, on_change: Callable[[tuple[NodeRecord, ...], Moment], None]) -> Callable[[], None]:
        """Deliver snapshots as they come, the latest one where several came while `on_change` was at work; return what
        ends it.
        """
        return MemberWatch(self._client, self._keys, on_change, self._reads, self._threads).close

    def next_epoch(self, node_id: str, above: int = 0) -> int:
        """Return a number greater than any under which this node id ever registered, and than `above`."""
        return max(above, epoch_of(self._client.get(self._keys.epoch(node_id)))) + 1

    def revoke(self, record: NodeRecord, put_fenced: Callable[[str, bytes, int], object]) -> None:
        """End this life's lease, and leave a trace for as long as the node may go on writing without knowing it."""
        trace_id, _ = self._client.grant(math.ceil((record.ttl_s or self._lease_ttl_s) + self._margin_s + REVOKING_S))
        key = self._keys.revocation(record.node_id, record.epoch)
        # Before the lease ends: should this owner die in between, the next one still knows to revoke it and to wait.
        # Fenced: an owner that was deposed meanwhile fails here, before it has ended a lease.
        put_fenced(key, str(record.lease_id).encode(), trace_id)
        self._client.revoke(record.lease_id)

    def hold_s(self) -> float:
        """Revoke surely what former owners began to; for how long such a node may still write, at the most."""
        traces = self._client.list_prefix(self._keys.revoked).items
        hold_s = self._lease_ttl_s + self._margin_s if traces else 0.0
        for kv in traces:
            # The trace lasts as long as that node may go on writing, by its own lease's TTL, and a time for revoking.
            hold_s = max(hold_s, self._client.read_granted_ttl(kv.lease_id) - REVOKING_S)
            try:
                self._client.revoke(exact_int(int(kv.value), "the lease", 0, 2**63 - 1))
            except ValueError as error:  # no trace of ours; the wait is the same
                log.warning("etcd.revoked.unreadable", extra={"key": printable(kv.key), "reason": error_text(error)})
        return hold_s

    def lease_ages_s(self, records: Sequence[NodeRecord]) -> dict[str, float]:
        """Return by node id the seconds since the lease was renewed, to the second; leases that have ended are left
        out.
        """
        left_s = {record: self._client.time_to_live(record.lease_id) for record in records}
        return {
            record.node_id: max(0.0, (record.ttl_s or math.ceil(self._lease_ttl_s)) - left)
            for record, left in left_s.items()
            if left >= 0
        }

    def _create(self, record: NodeRecord, lease_id: int) -> bool:
        """Create the record and its epoch in one transaction; return False if another was first.

        A store restored from a backup that is older than the record lacks the epoch too, and so shows its age.
        """
        key, epoch_key = self._keys.node(record.node_id), self._keys.epoch(record.node_id)
        known = self._client.get(epoch_key)
        if epoch_of(known) >= record.epoch:
            raise Conflict(f"{record.node_id} has registered under epoch {epoch_of(known)} since this one was drawn")
        unchanged = Compare.modified_at(epoch_key, known.mod_revision) if known else Compare.absent(epoch_key)
        puts = (Put(key, encoded(record), lease_id), Put(epoch_key, str(record.epoch).encode()))
        try:
            return self._client.txn((Compare.absent(key), unchanged), puts).succeeded
        except OutcomeUnknown:
            found = self._client.get(key)
            # The lease was granted for this attempt: a key on it can only be the one just written.
            if found is not None and found.lease_id == lease_id:
                return True
            raise

    def _await_free_name(self, node_id: str) -> None:
        """Return when nobody holds the name; more time left than could be shows that its holder is alive."""
        key, renewals = self._keys.node(node_id), -1
        left_until_s = -math.inf
        while (found := self._client.get(key)) is not None:
            sent_s = self._clock.monotonic_s()
            left_s = self._client.time_to_live(found.lease_id) if found.lease_id else math.inf
            if sent_s + left_s > left_until_s:
                renewals += 1
                left_until_s = self._clock.monotonic_s() + left_s + 1.0  # whole seconds, rounded down
            if renewals >= NAME_RENEWALS_MIN or left_s == math.inf or sent_s > left_until_s + NAME_GRACE_S:
                raise _taken(node_id)
            # Polled, as the time that a lease has left shows in no event.
            threading.Event().wait(NAME_POLL_S)


def _taken(node_id: str) -> ConfigurationError:
    return ConfigurationError(
        f"a live node is registered as {node_id!r}", about="node_id", remedy="Give each node a name of its own"
    )
