"""The node's right to write: its registration in etcd, watched and renewed for as long as the node lives.

A lease that lapses stops the work at once; when etcd answers again the node goes on, under the same registration if
it survived, otherwise under a new one with a new epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from iscp.core.values.errors import ConfigurationError, LeaseLost, TemporaryError
from iscp.core.values.members import Moment, NodeRecord
from iscp.ports.cluster import Lease, Membership
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

LAPSED_POLL_S = 0.2
"""Pause between two attempts to have a lost lease confirmed again, or to register again."""

CLOSE_WAIT_S = 10.0
"""Seconds that the end waits for the lease keeper's thread; then it is left."""


class LeaseKeeper:
    """Registers and keeps registered. Callbacks come from its threads and must return soon."""

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
