"""The global checkpoint in etcd: written by the owner alone, and not often."""

from __future__ import annotations

import logging

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.election import EtcdElection
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.values import Put
from iscp.core.values.members import Leader
from iscp.core.values.untrusted_values import error_text, exact_float

log = logging.getLogger(__name__)


class EtcdCheckpoint:
    """The port `CheckpointStore` on etcd."""

    def __init__(self, client: EtcdClient, election: EtcdElection, keys: Keys) -> None:
        self._client = client
        self._election = election
        self._key = keys.checkpoint

    def load(self) -> float:
        found = self._client.get(self._key)
        try:
            return exact_float(float(found.value), "the global checkpoint") if found else 0.0
        except ValueError as error:  # it is computed again, from the jobs' watermarks
            log.warning("etcd.checkpoint.unreadable", extra={"reason": error_text(error)})
            return 0.0

    def save(self, leader: Leader, at_s: float) -> None:
        self._election.write_fenced(leader, Put(self._key, repr(at_s).encode()))
