"""The members of the cluster: keys on leases, read as sorted snapshots.

A name belongs to whoever has created its key; it is free again when that lease has ended. A node that died and comes
back within its TTL meets the key of its former life, which nothing renews: it waits for that to run out. A key that
is being renewed belongs to another live node, and its name is refused.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.keys import Keys, encoded, epoch_of
from iscp.adapters.etcd.lease import EtcdLease
from iscp.adapters.etcd.members.member_watch import MemberReads, Members, MemberWatch
from iscp.adapters.etcd.values import (
    Compare,
    Put,
    Target,
)
from iscp.core.values.errors import ConfigurationError, Conflict, OutcomeUnknown
from iscp.core.values.members import NODES_MAX, Moment, NodeRecord
from iscp.core.values.untrusted_values import error_text, exact_int, printable
from iscp.ports.system import Clock, Threads

log = logging.getLogger(__name__)

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
    """The port `Membership` on etcd. One registration at a time."""

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
