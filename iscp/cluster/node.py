"""One node: the order in which its parts start and stop, and its right to write."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from iscp.cluster.owner.checkpoint_saver import ProgressSignal
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.worker_loop import WorkerLoop
from iscp.model.values.errors import (
    ConfigurationError,
    IscpError,
    JobLogDamaged,
    LeaseLost,
    TemporaryError,
    Unavailable,
)
from iscp.model.values.ids import Moment, NodeRecord
from iscp.ports.cluster import Election, Lease, Membership
from iscp.ports.system import Clock
from iscp.schedule.executor import Executor
from iscp.schedule.maintenance import Maintenance
from iscp.schedule.scheduler import Scheduler

# --- the node's right to write ----------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

LAPSED_POLL_S = 0.2
"""Pause between two attempts to have a lost lease confirmed again, or to register again."""

CLOSE_WAIT_S = 10.0
"""Seconds that the end waits for the lease keeper's thread; then it is left."""


class LeaseKeeper:
    """The node's right to write: its registration in etcd, watched and renewed for as long as the node lives.

    A lease that lapses stops the work at once; when etcd answers again the node goes on, under the same registration if
    it survived, otherwise under a new one with a new epoch. Callbacks come from the keeper's threads and must return
    soon.
    """

    def __init__(
        self,
        membership: Membership,
        record: NodeRecord,
        clock: Clock,
        on_lost: Callable[[], None],
        on_regained: Callable[[int], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        """`record` is completed with the epoch; `on_regained` gets the epoch that counts from then on."""
        self._membership = membership
        self._record = record
        self._clock = clock
        self._on_lost = on_lost
        self._on_regained = on_regained
        self._on_broken = on_broken
        self._lease: Lease | None = None
        self._seen_epoch = 0
        self._restores = 0
        self._lapsed = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="iscp-lease-keeper", daemon=True)

    @property
    def record(self) -> NodeRecord:
        return self._record

    @property
    def epoch(self) -> int:
        return self._record.epoch

    def start(self) -> None:
        """Register, before members are watched: what is read from then on has this life.

        Raises ConfigurationError (the name is taken), Conflict (a namesake was faster), Unavailable, OutcomeUnknown.
        """
        self._register()
        self._seen_epoch = self.epoch
        self._thread.start()

    def check(self, epoch: int) -> None:
        """Raises LeaseLost when the lease of this epoch cannot be confirmed to hold any more."""
        lease = self._lease  # before the epoch, which changes first: a new lease never counts for a former one
        if epoch != self._record.epoch:
            raise LeaseLost(f"the node has registered again since, under epoch {self._record.epoch} instead of {epoch}")
        if lease is None or self._clock.monotonic_s() >= lease.confirmed_until_s():
            raise LeaseLost("the node's lease can no longer be confirmed", remedy="Check that etcd can be reached")

    def valid_s(self) -> float:
        """Return for how many seconds the node may still write unless its lease is renewed; 0 if it may not now."""
        lease = self._lease
        return 0.0 if lease is None else max(0.0, lease.confirmed_until_s() - self._clock.monotonic_s())

    def on_members_changed(self, members: tuple[NodeRecord, ...], moment: Moment) -> None:
        """A life that was a member and is none any more has lost its key, though its lease may go on.

        Others are given what it runs; so it must stop, and join again. So must one that is not in a store that was
        restored meanwhile, from a backup that may have its lease and not its key: it may not have been seen yet.
        """
        restored, self._restores = moment.restores > self._restores, moment.restores
        if any((each.node_id, each.epoch) == (self._record.node_id, self.epoch) for each in members):
            self._seen_epoch = self.epoch
        elif (restored or self._seen_epoch == self.epoch) and self._lease is not None:
            log.warning("lease.key_gone", extra={"node": self._record.node_id, "epoch": self.epoch})
            self._lease = None
            self._lapse()

    def close(self) -> None:
        self._closed.set()
        self._lapsed.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_WAIT_S)
        self._membership.deregister()

    def _register(self) -> None:
        epoch = self._membership.next_epoch(self._record.node_id, above=self._record.epoch)
        self._record = replace(self._record, epoch=epoch)
        self._lease = self._membership.register(self._record, self._lapse)
        log.info("node.registered", extra={"node": self._record.node_id, "epoch": epoch})

    def _lapse(self) -> None:
        log.warning("lease.lost", extra={"node": self._record.node_id})
        # In this order: nobody hears that the lease is regained before having heard that it was lost.
        self._on_lost()
        self._lapsed.set()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._lapsed.wait()
                # Before the attempt: a lapse that comes during it leads to another one.
                self._lapsed.clear()
                if not self._closed.is_set():
                    self._regain()
        except Exception as error:
            log.exception("lease.broken")
            self._on_broken(error)

    def _regain(self) -> None:
        """Wait for the lease to be confirmed again, or register again once it, or the key on it, is gone."""
        while not self._closed.wait(LAPSED_POLL_S):
            lease = self._lease
            if lease is None or lease.gone:
                try:
                    self._register()
                except (TemporaryError, ConfigurationError) as error:
                    # Also a name that looks taken: the key of this node's former life has to run out first.
                    log.warning("node.not_registered", extra={"error": str(error)})
                    continue
            elif self._clock.monotonic_s() >= lease.confirmed_until_s():
                continue
            log.info("lease.regained", extra={"epoch": self._record.epoch})
            self._on_regained(self._record.epoch)
            return


# --- the node ---------------------------------------------------------------------------------------------------------

READY_WAIT_S = 60.0
"""Seconds that a node may take from its start until an owner has synced it; then the start fails."""

READY_LOOK_S = 0.5
"""Pause between two checks whether an owner has synced the node."""

GRACE_S = 2.0
"""Seconds that each part of a stopping node may take beyond `stop_timeout_s`; then it is left."""

HAND_OVER_LOOK_S = 0.5
"""Pause between two checks whether a stopping node has handed over its shards."""

EVENTS_S = 5.0
"""Seconds that a stopping node that has been owner waits for the next one to take its events; then they are gone."""

FLUSH_S = 5.0
"""Seconds that a stopping node waits for its last reports to be recorded, which takes about one if the storage answers;
the sinks have what is left.
"""


class Server(Protocol):
    def start(self) -> None:
        """Serve other nodes, which a node has to before an owner can take it in."""

    def ready(self) -> None:
        """Serve users."""

    def stop(self, grace_s: float = ...) -> None: ...


class Closes(Protocol):
    def close(self) -> None: ...


class RunsBesideOwner(Protocol):
    def start(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts that run in a node; `connections` are closed last, and `beside_owner` runs while the owner's loop
    does.
    """

    server: Server
    keeper: LeaseKeeper
    owner: OwnerLoop
    worker: WorkerLoop
    scheduler: Scheduler
    executor: Executor
    maintenance: Maintenance
    progress: ProgressSignal
    connections: Sequence[Closes]
    beside_owner: Sequence[RunsBesideOwner] = ()


class Node:
    """One node: starts its parts in the order in which they need each other, and stops them in the opposite one.

    The node is ready when it has started: it is registered, an owner knows what it runs, and users are served. A node
    that is not alone hands over before it stops: others run what it ran before it is gone.
    """

    def __init__(
        self,
        node_id: str,
        membership: Membership,
        election: Election,
        parts: NodeParts,
        preflight: Callable[[], None] = lambda: None,
    ) -> None:
        """`preflight` raises ConfigurationError where this node does not fit; other nodes can reach it by then."""
        self._node_id = node_id
        self._membership = membership
        self._election = election
        self._parts = parts
        self._preflight = preflight
        self._unwatch: Callable[[], None] = lambda: None

    def start(self, stopping: threading.Event | None = None) -> None:
        """Raises ConfigurationError, Unavailable, JobLogDamaged. Once `stopping` is set it returns, ready or not."""
        self._parts.server.start()
        try:
            self._preflight()
            self._parts.keeper.start()
        except BaseException:
            self._parts.server.stop(0.0)
            raise
        self._parts.scheduler.start(self._parts.executor)
        self._parts.maintenance.start()
        self._parts.worker.start(self._parts.keeper.epoch)
        self._parts.owner.start()
        for each in self._parts.beside_owner:
            each.start()
        self._unwatch = self._membership.watch(self._members_changed)
        self._election.campaign(self._node_id, self._parts.owner.on_elected, self._parts.owner.on_lost)
        until_s = time.monotonic() + READY_WAIT_S
        while not self._parts.worker.wait_synced(READY_LOOK_S):
            if stopping is not None and stopping.is_set():
                return
            if isinstance(fault := self._parts.owner.log_fault(), JobLogDamaged):
                raise fault
            if time.monotonic() < until_s:
                continue
            raise Unavailable(
                "no owner has taken this node in",
                remedy="The log of the owner (`iscp-admin events`) says why; the owner must reach this node's address",
            )
        self._parts.server.ready()
        log.info("node.ready", extra={"epoch": self._parts.keeper.epoch})

    def _members_changed(self, members: tuple[NodeRecord, ...], moment: Moment) -> None:
        self._parts.keeper.on_members_changed(members, moment)
        self._parts.owner.on_members_changed(members, moment)

    def stop(self, drain_s: float) -> None:
        """Hand over, or let what runs end, within `drain_s` in all; then report to the owner, write the log, leave.

        Runs of a shard that is handed over are canceled: another node does them again.
        """
        until_s = time.monotonic() + drain_s
        if drain_s > 0:
            self._hand_over(until_s)
        self._parts.progress.close()
        self._parts.maintenance.close(GRACE_S)
        left_s = max(0.0, until_s - time.monotonic())
        self._parts.executor.close(drain=left_s > 0, wait_s=left_s)
        # After the executor: it takes in how the last iterations ended.
        self._parts.scheduler.close(GRACE_S)
        if drain_s > 0:
            self._parts.worker.flush(FLUSH_S)
        self._parts.server.stop(GRACE_S)  # until now, for the owner gets its reports through it
        self._parts.worker.close()
        self._unwatch()
        for beside in self._parts.beside_owner:
            beside.close()
        self._parts.owner.close()
        # After the log is written: another owner is elected from here on.
        self._election.resign()
        # After all that writes: with the lease ended, the shards are given to others.
        self._parts.keeper.close()
        for each in self._parts.connections:
            each.close()
        log.info("node.stopped")

    def _hand_over(self, until_s: float) -> None:
        """Give what runs here to the others, if there are any: first the ownership, then the shards."""
        try:
            if not self._others_stay():
                return
            self._membership.leave()
            self._election.resign()
            while not self._parts.worker.wait_handed_over(HAND_OVER_LOOK_S):
                if time.monotonic() >= until_s or not self._others_stay():
                    log.warning("node.not_handed_over")
                    return
            self._hand_over_events(min(until_s, time.monotonic() + EVENTS_S))
            log.info("node.handed_over")
        except IscpError as error:  # then they take it when the lease has ended
            log.warning("node.not_handed_over", extra={"error": str(error)})

    def _hand_over_events(self, until_s: float) -> None:
        while not self._parts.owner.decisions.wait_taken(HAND_OVER_LOOK_S):
            if time.monotonic() >= until_s or not self._others_stay():
                log.info("node.events_not_handed_over")
                return

    def _others_stay(self) -> bool:
        members, _ = self._membership.members()
        return any(record.node_id != self._node_id and not record.leaving for record in members)
