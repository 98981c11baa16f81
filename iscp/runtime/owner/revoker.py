"""Ends the leases of nodes that do not answer, as the owner and none other, by the thread that may wait for etcd."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from iscp.core.values.errors import IscpError
from iscp.core.values.members import Moment, NodeRecord
from iscp.ports.cluster import ElectionKey, MemberControl

log = logging.getLogger(__name__)


class Revoker:
    """Revoke leases. `on_members` gets who is registered after each revocation.

    That a node is gone comes by the watch of the members. But where etcd was restored from a backup between a list of
    them and the watch that followed, the owner may know of a life that has gone since, or never was.
    """

    def __init__(
        self,
        membership: MemberControl,
        election: ElectionKey,
        etcd: Executor,
        on_members: Callable[[tuple[NodeRecord, ...], Moment], None],
    ) -> None:
        self._membership = membership
        self._election = election
        self._etcd = etcd
        self._on_members = on_members
        self._revoking: set[tuple[str, int]] = set()

    def revoke(self, record: NodeRecord, election_revision: int) -> None:
        """Called again and again until the node is gone; from one thread."""
        life = (record.node_id, record.epoch)
        # etcd may take longer to answer than the machine to repeat itself.
        if life not in self._revoking:
            self._revoking.add(life)
            self._etcd.submit(self._revoke, record, election_revision)

    def _revoke(self, record: NodeRecord, election_revision: int) -> None:
        try:
            # A deposed owner, hearing nobody, would otherwise revoke everyone.
            leader = self._election.leader()
            if leader is not None and leader.revision == election_revision:
                log.warning("owner.revokes", extra={"node": record.node_id, "epoch": record.epoch})
                self._membership.revoke(record, partial(self._election.put_fenced, leader))
                self._on_members(*self._membership.members())
        except IscpError as error:
            log.warning("owner.revoke_failed", extra={"node": record.node_id, "error": str(error)})
        finally:
            self._revoking.discard((record.node_id, record.epoch))
