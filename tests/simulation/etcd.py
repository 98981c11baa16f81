"""A simulated etcd: what `iscp/etcd` relies on of the server, and of its client's calls.

Keys with create and mod revisions, leases that the server checks every half second, watches that lag, are compacted
or break. A call may be refused, be served and its answer lost, or be slow; a write is never repeated by the client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from iscp.etcd.keys import Delete, Keys, Put

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

T = TypeVar("T")

KEYS = Keys("/simulated")

LOOK_S = 0.5
"""How often the server looks for leases that have ended."""

CALL_S = 2.0
"""How long a client waits for an answer."""

RELIST_S = 0.5

BACKUP_S = 2.0
BACKUPS_KEPT = 20
"""The store is copied so often, where it is to be restored, and so many copies are kept."""


HISTORY_MAX = 100
"""Changes that a watch which begins late still gets."""

OVERTAKES = 0.5
OVERTAKEN_BY = 10_000
"""So often a restored store has come past all former revisions before anybody looks, as others change it too."""


class Link(Enum):
    """A node's way to etcd. DEAF: its requests are done, and their answers are lost."""

    OPEN = "open"
    CUT = "cut"
    DEAF = "deaf"


@dataclass(slots=True)
class Item:
    value: object
    created: int
    modified: int
    lease_id: int


@dataclass(frozen=True, slots=True)
class Change:
    """Of one key; `item` is None where it was deleted."""

    revision: int
    key: str
    item: Item | None


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    ends_s: float
    keys: set[str] = field(default_factory=set)


Watcher = Callable[[Sequence[Change]], None]
"""Takes the changes of one revision."""


class Etcd:
    """The server. Every request happens at one moment: reads are linearizable, transactions atomic."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.up = True
        self.revision = 1
        self.items: dict[str, Item] = {}
        self.leases: dict[int, _Lease] = {}
        self.watchers: list[Watcher] = []
        self.history: deque[Change] = deque()
        self.compacted = 0
        self._numbers = 0
        self._backups: deque[tuple[int, dict[str, Item], dict[int, _Lease]]] = deque(maxlen=BACKUPS_KEPT)
        world.agenda.after(LOOK_S, self._look)

    def grant(self, ttl_s: float) -> tuple[int, float]:
        """The lease, and its TTL, which may be longer than requested."""
        self._numbers += 1
        if self._world.happens(self._world.trouble.grants_more):
            ttl_s *= 1.0 + self._world.aside.random()
        self.leases[self._numbers] = _Lease(ttl_s, self._world.agenda.now_s + ttl_s)
        return self._numbers, ttl_s

    def keep_alive(self, lease_id: int) -> float:
        """The TTL, 0 where the lease is gone."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return 0.0
        lease.ends_s = self._world.agenda.now_s + lease.ttl_s
        return lease.ttl_s

    def revoke(self, lease_id: int) -> None:
        lease = self.leases.pop(lease_id, None)
        for key in sorted(lease.keys) if lease else ():
            self.delete(key)

    def get(self, key: str) -> Item | None:
        return self.items.get(key)

    def prefixed(self, prefix: str) -> list[tuple[str, Item]]:
        return sorted((key, item) for key, item in self.items.items() if key.startswith(prefix))

    def create(self, key: str, value: object, lease_id: int = 0) -> int | None:
        """The create revision; None where the key is there already or the lease is not."""
        if key in self.items or (lease_id and lease_id not in self.leases):
            return None
        self.put(key, value, lease_id)
        return self.revision

    def put(self, key: str, value: object, lease_id: int = 0) -> None:
        self.revision += 1
        there = self.items.get(key)
        item = self.items[key] = Item(value, there.created if there else self.revision, self.revision, lease_id)
        if lease_id:
            self.leases[lease_id].keys.add(key)
        self._tell(Change(self.revision, key, item))

    def delete(self, key: str) -> None:
        item = self.items.pop(key, None)
        if item is None:
            return
        self.revision += 1
        if item.lease_id in self.leases:
            self.leases[item.lease_id].keys.discard(key)
        self._tell(Change(self.revision, key, None))

    def transact(self, writes: Sequence[Put | Delete]) -> None:
        """All of them, at one revision."""
        self.revision += 1
        changes = []
        for write in writes:
            if isinstance(write, Put):
                there = self.items.get(write.key)
                item = Item(write.value, there.created if there else self.revision, self.revision, 0)
                self.items[write.key] = item
                changes.append(Change(self.revision, write.key, item))
                continue
            keys = [key for key, _ in self.prefixed(write.key)] if write.prefix else [write.key]
            changes += [Change(self.revision, key, None) for key in keys if self.items.pop(key, None)]
        self._tell(*changes)

    def restart(self) -> None:
        """It is back after it was away: every lease has its whole time again."""
        self.up = True
        for lease in self.leases.values():
            lease.ends_s = self._world.agenda.now_s + lease.ttl_s

    def back_up(self) -> None:
        """Again and again; the ids of leases are never given twice, for the real ones are random."""
        self._backups.append(deepcopy((self.revision, self.items, self.leases)))
        self._world.agenda.after(BACKUP_S, self.back_up)

    def restore(self) -> None:
        """What has happened since some backup never was, and its revisions will be given again."""
        if self._backups:
            self.revision, self.items, self.leases = deepcopy(self._world.aside.choice(self._backups))
            self._backups.clear()
            self.history.clear()
            if self._world.happens(OVERTAKES):
                self.revision += OVERTAKEN_BY
            self.compacted = self.revision

    def _look(self) -> None:
        self._world.agenda.after(LOOK_S, self._look)
        if self.up:
            now_s = self._world.agenda.now_s
            for lease_id in [number for number, lease in self.leases.items() if lease.ends_s <= now_s]:
                self._world.note("etcd", f"lease {lease_id} has ended")
                self.revoke(lease_id)

    def stop_watching(self, watcher: Watcher) -> None:
        if watcher in self.watchers:
            self.watchers.remove(watcher)

    def _tell(self, *changes: Change) -> None:
        self.history += changes
        while len(self.history) > HISTORY_MAX:
            self.compacted = self.history.popleft().revision
        for watcher in list(self.watchers):
            watcher(changes)


class Client:
    """One process's calls. Exactly one of `answered` and `failed` comes, unless the process ends before."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    def call(self, operation: Callable[[Etcd], T], answered: Callable[[T], None], failed: Callable[[], None]) -> None:
        """`failed` says nothing about whether it was done."""
        out_s = self._lag_s()
        self._world.agenda.after(out_s, lambda: self._serve(operation, answered, failed))

    def _serve(self, operation: Callable[[Etcd], T], answered: Callable[[T], None], failed: Callable[[], None]) -> None:
        world, process = self._world, self._process
        link = world.links[process.node_id]
        if not world.etcd.up or link is Link.CUT:
            process.after(CALL_S if link is Link.CUT else 0.1, failed)
            return
        result = operation(world.etcd)
        back_s = self._lag_s()
        if link is Link.DEAF or world.random.random() < world.trouble.lost_answer:
            process.after(CALL_S, failed)
        else:
            process.after(back_s, lambda: answered(result))

    def _lag_s(self) -> float:
        random = self._world.random
        if random.random() < self._world.trouble.slow_etcd:
            return random.random() * CALL_S
        return 0.001 + random.random() * 0.01


class Watch:
    """Reports each change under `prefix`, late; where it cannot report one it says so, and now and then: list again.

    `changed` is called at the server's time of the change and gives what is to be done when the news arrives.
    """

    def __init__(
        self, process: Process, prefix: str, changed: Callable[[], Callable[[], None]], relist: Callable[[], None]
    ) -> None:
        self._process = process
        self._prefix = prefix
        self._changed = changed
        self._relist = relist
        self.broken = False
        process.world.etcd.watchers.append(self._happened)
        process.watches.append(self)
        self._closed = False
        self._last()

    def close(self) -> None:
        self._closed = True
        self._process.world.etcd.stop_watching(self._happened)
        self._process.watches.remove(self)

    def _last(self) -> None:
        """The real one ends after a while, and another follows it."""
        if (lasts_s := self._process.world.wrongs.watch_lasts_s()) is not None:
            self._process.after(lasts_s, self._follow)

    def _follow(self) -> None:
        if not self._closed:
            self._relist()
            self._last()

    def mend(self) -> None:
        """The way to etcd is open again."""
        if self.broken:
            self.broken = False
            self._process.after(RELIST_S * self._process.world.random.random(), self._relist)

    def _happened(self, changes: Sequence[Change]) -> None:
        if not any(change.key.startswith(self._prefix) for change in changes):
            return
        world, process = self._process.world, self._process
        if world.links[process.node_id] is not Link.OPEN:
            self.broken = True
        elif world.wrongs.happen(world.trouble.lost_events):
            world.note(process.node_id, f"its watch passes over {changes[0].revision}")
        elif world.random.random() < world.trouble.compaction:
            process.after(RELIST_S + world.random.random(), self._relist)
        else:
            process.after(world.random.random() * world.trouble.watch_lag_s, self._changed())
