"""A node campaigns for ownership. Stands for `iscp/etcd/owner_keys.py`, whose threads are here callbacks."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from iscp.model.values.ids import Leader
from tests.simulation.etcd import Etcd, Watch
from tests.simulation.lease import Lease

if TYPE_CHECKING:
    from tests.simulation.process import Process

CANDIDATES = "candidates/"
PAUSE_S = 0.2

Created = list[tuple[int, str]]


def candidates_of(etcd: Etcd) -> Created:
    """Create revision and node id of every candidate, the oldest first."""
    return sorted((item.created, str(item.value)) for _, item in etcd.prefixed(CANDIDATES))


def leader_of(etcd: Etcd) -> Leader | None:
    """What a linearizable read of the election says."""
    oldest = next(iter(candidates_of(etcd)), None)
    return Leader(oldest[1], oldest[0]) if oldest else None


class Candidacy:
    """One key on one lease, from its creation to its end; then a new one begins."""

    def __init__(self, process: Process, leftover_id: int = 0) -> None:
        self._process = process
        self._leftover_id = leftover_id
        self._lease: Lease | None = None
        self._revision = 0
        self._leader: Leader | None = None
        self._watch: Watch | None = None
        self.over = False

    def start(self) -> None:
        leftover_id = self._leftover_id
        if leftover_id:
            # Our own former key would be before us until it expires.
            self._process.etcd.call(lambda etcd: etcd.revoke(leftover_id), lambda _: self._grant(), self._end)
        else:
            self._grant()

    def resign(self) -> None:
        self._end(again=False)

    def give_way(self, revision: int) -> None:
        if self._leader is not None and self._revision == revision:
            self._end()

    def confirmed_until_s(self, revision: int) -> float:
        led = self._leader is not None and self._revision == revision and self._lease is not None
        return self._lease.confirmed_until_s if led and self._lease else -math.inf

    def _grant(self) -> None:
        self._leftover_id = 0
        sent_s, ttl_s = self._process.now_s, self._process.ttl_s
        self._process.etcd.call(lambda etcd: etcd.grant(ttl_s), partial(self._granted, sent_s), self._end)

    def _granted(self, sent_s: float, granted: tuple[int, float]) -> None:
        if self.over:
            return
        lease_id, _ = granted
        self._lease = self._process.world.parts.lease(self._process, granted, sent_s, self._end)
        key, node_id = f"{CANDIDATES}{lease_id}", self._process.node_id
        self._process.etcd.call(lambda etcd: etcd.create(key, node_id, lease_id), self._created, self._end)

    def _created(self, revision: int | None) -> None:
        if self.over:
            return
        if revision is None:
            self._end()
            return
        self._revision = revision
        self._watch = Watch(self._process, CANDIDATES, lambda: self._look, self._look)
        self._look()

    def _look(self) -> None:
        if self.over or self._lease is None:
            return
        if not self._lease.valid:
            self._end()
            return
        self._process.etcd.call(candidates_of, self._listed, self._end)

    def _listed(self, created: Created) -> None:
        if self.over or self._lease is None:
            return
        revisions = [revision for revision, _ in created]
        if not self.still_there(revisions) or not self._lease.valid:
            self._end()
        elif self._leader is None and not any(revision < self._revision for revision in revisions):
            self._leader = Leader(self._process.node_id, self._revision)
            self._process.world.note(self._process.node_id, f"is elected as {self._revision}")
            self._process.owner.on_elected(self._leader)

    def still_there(self, revisions: list[int]) -> bool:
        """The last read of our own key: what waited may have lost its turn while it waited."""
        return self._revision in revisions

    def _end(self, again: bool = True) -> None:
        if self.over:
            return
        self.over = True
        if self._watch is not None:
            self._watch.close()
        if self._leader is not None:
            self._process.owner.on_lost()
        if self._lease is None:
            self._follow(again, self._leftover_id)
            return
        lease = self._lease
        lease.close()
        self._process.etcd.call(
            lambda etcd: etcd.revoke(lease.lease_id),
            lambda _: self._follow(again, 0),
            lambda: self._follow(again, lease.lease_id),
        )

    def _follow(self, again: bool, leftover_id: int) -> None:
        if again:
            self._process.after(PAUSE_S, lambda: self._process.run_for_owner(leftover_id))
