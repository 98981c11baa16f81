"""The global checkpoint in etcd: written by the owner alone, and not often."""

from __future__ import annotations

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.election import EtcdElection
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.values import Put
from iscp.core.cluster import Leader


class EtcdCheckpoint:
    """The port `CheckpointStore` on etcd."""

    def __init__(self, client: EtcdClient, election: EtcdElection, keys: Keys) -> None:
        self._client = client
        self._election = election
        self._key = keys.checkpoint

    def load(self) -> float:
        found = self._client.get(self._key)
        return float(found.value) if found else 0.0

    def save(self, leader: Leader, at_s: float) -> None:
        self._election.fenced(leader, Put(self._key, repr(at_s).encode()))
