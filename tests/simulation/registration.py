"""A node's name in etcd, and who else is there.

Registration stands for `iscp/cluster/node.py` with `EtcdMembership.register`
(`iscp/etcd/member_keys.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from iscp.model.values.ids import Moment, NodeRecord
from tests.simulation.etcd import KEYS, Etcd
from tests.simulation.lease import Lease

if TYPE_CHECKING:
    from tests.simulation.process import Process

POLL_S = 0.5
RETRY_S = 1.0


class Registration:
    """Registers the node, and again when its lease was lost; notifies the worker of both."""

    def __init__(self, process: Process, on_registered: Callable[[int], None], on_lost: Callable[[], None]) -> None:
        self._process = process
        self._on_registered = on_registered
        self._on_lost = on_lost
        self.key, self.epoch_key = KEYS.node(process.node_id), KEYS.epoch(process.node_id)
        self.record = NodeRecord(process.node_id, 0, process.node_id)
        self.lease: Lease | None = None
        self.leaving = False
        self._seen_epoch = 0
        self._restores = 0

    @property
    def confirmed(self) -> bool:
        """What `LeaseKeeper.check` checks before work is begun and committed."""
        return self.lease is not None and self.lease.valid

    def confirms(self, epoch: int) -> bool:
        """As `confirmed`, for what was begun under this epoch."""
        return self.confirmed and epoch == self.record.epoch

    def start(self) -> None:
        self._process.etcd.call(self.next_epoch, self._numbered, self._retry)

    def next_epoch(self, etcd: Etcd) -> int:
        """A number greater than any that the node had, and than its present one: etcd may have been restored."""
        return max(self.known_epoch(etcd), self.record.epoch) + 1

    def known_epoch(self, etcd: Etcd) -> int:
        known = etcd.get(self.epoch_key)
        return known.value if known and isinstance(known.value, int) else 0

    def create(self, etcd: Etcd, record: NodeRecord) -> int | None:
        """The record and its epoch, in one transaction; None: another life has the name, or had the epoch."""
        there = self.known_epoch(etcd) >= record.epoch
        revision = None if there else etcd.create(self.key, record, record.lease_id)
        if revision is not None:
            etcd.put(self.epoch_key, record.epoch)
        return revision

    def leave(self) -> None:
        """Say that the node stops in order; said again until etcd has it."""
        self.leaving = True
        lease = self.lease
        if lease is None or lease.gone:
            return
        self.record = record = replace(self.record, leaving=True)

        def put(etcd: Etcd) -> None:
            there = etcd.get(self.key)
            if there is not None and there.lease_id == lease.lease_id:
                etcd.put(self.key, record, lease.lease_id)

        self._process.etcd.call(put, lambda _: None, lambda: self._process.after(RETRY_S, self.leave))

    def deregister(self) -> None:
        lease = self.lease
        if lease is not None:
            lease.close()
            self._process.etcd.call(lambda etcd: etcd.revoke(lease.lease_id), lambda _: None, lambda: None)

    def _retry(self) -> None:
        self._process.after(RETRY_S, self.start)

    def _numbered(self, epoch: int) -> None:
        self.record = replace(self.record, epoch=epoch)
        self._await_name()

    def _await_name(self) -> None:
        """The key of a former life has to run out first."""
        self._process.etcd.call(lambda etcd: etcd.get(self.key) is None, self._looked, self._retry)

    def _looked(self, free: bool) -> None:
        if not free:
            self._process.after(POLL_S, self._await_name)
            return
        sent_s, ttl_s = self._process.now_s, self._process.ttl_s
        self._process.etcd.call(lambda etcd: etcd.grant(ttl_s), partial(self._granted, sent_s), self._retry)

    def _granted(self, sent_s: float, granted: tuple[int, float]) -> None:
        lease_id, ttl_s = granted
        lease = self._process.world.parts.lease(self._process, granted, sent_s, self._lapse)
        record = replace(self.record, lease_id=lease_id, leaving=self.leaving, ttl_s=ttl_s)

        def created(revision: int | None) -> None:
            if revision is None:
                failed()
            else:
                self.lease, self.record = lease, record
                self._seen_epoch = self._seen_epoch or record.epoch  # members are watched after the first one
                self._on_registered(record.epoch)
                if not lease.valid:
                    self._lapse()

        def failed() -> None:
            lease.close()
            self._process.etcd.call(lambda etcd: etcd.revoke(lease_id), lambda _: None, lambda: None)
            self._retry()

        self._process.etcd.call(lambda etcd: self.create(etcd, record), created, failed)

    def on_members_changed(self, members: tuple[NodeRecord, ...], moment: Moment) -> None:
        """A life that was a member and is none any more has lost its key: it stops, and joins again. So does one that
        is not in a store that was restored."""
        restored, self._restores = moment.restores > self._restores, moment.restores
        lease, life = self.lease, (self._process.node_id, self.record.epoch)
        if any((each.node_id, each.epoch) == life for each in members):
            self._seen_epoch = self.record.epoch
        elif (restored or self._seen_epoch == self.record.epoch) and lease is not None and not lease.closed:
            lease.gone = True
            lease.confirmed_until_s = -math.inf
            self._lapse()

    def _lapse(self) -> None:
        if self.lease is not None and not self.lease.closed:
            self._on_lost()
            self._regain()

    def _regain(self) -> None:
        lease = self.lease
        if lease is None or lease.closed:
            return
        if lease.gone:
            lease.close()
            self.start()
        elif lease.valid:
            self._on_registered(self.record.epoch)
        else:
            self._process.after(POLL_S, self._regain)
