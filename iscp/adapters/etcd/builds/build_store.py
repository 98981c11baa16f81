"""The state of builds in etcd: loaded and written by the owner, followed by the nodes.

Each transaction rests on the one that its writer knows: it fails once another has come, be it a late one of the same
writer, whose answer was lost. So what an owner has loaded is what etcd has, as long as its writes succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

from iscp.adapters.etcd.builds.build_keys import BuildKeys
from iscp.adapters.etcd.builds.build_watch import watch_builds
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.prefix_watch import WatchedStore
from iscp.adapters.etcd.values import Compare, Delete, Put
from iscp.coordination.builds.build_state import BuildState, Change
from iscp.core.values.members import Leader
from iscp.ports.system import Threads


class FencedWrites(Protocol):
    """The part of EtcdElection that writes builds."""

    def write_fenced(self, leader: Leader, *writes: Put | Delete, when: tuple[Compare, ...] = ()) -> int: ...


class EtcdBuilds:
    """The port `BuildStore` on etcd."""

    def __init__(self, client: WatchedStore, election: FencedWrites, keys: Keys, threads: Threads) -> None:
        self._client = client
        self._election = election
        self._keys = BuildKeys(keys.builds)
        self._threads = threads
        self._head = 0

    def load(self) -> BuildState:
        listing = self._client.list_prefix(self._keys.prefix)
        self._head = next((kv.mod_revision for kv in listing.items if kv.key == self._keys.head), 0)
        return BuildState.of(change for kv in listing.items if (change := self._keys.read_change(kv)) is not None)

    def write(self, leader: Leader, changes: Sequence[Change]) -> None:
        head = self._keys.head
        writes = chain((Put(head, str(leader.revision).encode()),), *map(self._keys.writes_of, changes))
        known = Compare.modified_at(head, self._head)
        self._head = self._election.write_fenced(leader, *writes, when=(known,))

    def is_current(self) -> bool:
        there = self._client.get(self._keys.head)
        return (there.mod_revision if there is not None else 0) == self._head

    def watch(
        self, on_read: Callable[[Sequence[Change]], None], on_changed: Callable[[Sequence[Change]], None]
    ) -> Callable[[], None]:
        return watch_builds(self._client, self._keys, on_read, on_changed, self._threads).close
