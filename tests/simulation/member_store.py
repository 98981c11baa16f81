"""What the real MemberReads and MemberWatch request of etcd: the keys under a prefix, and their changes in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from iscp.etcd.keys import Changed, Compacted, EventType, KeyValue, Listing, WatchEvent, WatchItem, encoded
from iscp.etcd.member_keys import MemberReads, MemberWatch
from iscp.model.values.ids import Moment, NodeRecord
from tests.simulation.etcd import KEYS, RELIST_S, Change, Etcd, Item, Link
from tests.simulation.owner_ports import Asks

if TYPE_CHECKING:
    from tests.simulation.process import Process


def key_value(key: str, item: Item) -> KeyValue:
    if isinstance(item.value, bytes):
        value = item.value
    else:
        value = encoded(item.value) if isinstance(item.value, NodeRecord) else str(item.value).encode()
    return KeyValue(key, value, item.created, item.modified, 1, item.lease_id)


class MemberKeys(Asks):
    """Port WatchedStore of one process."""

    def get(self, key: str) -> KeyValue | None:
        def look(etcd: Etcd) -> KeyValue | None:
            there = etcd.get(key)
            return key_value(key, there) if there is not None else None

        return self.ask(look)

    def list_prefix(self, prefix: str) -> Listing:
        return self.ask(
            lambda etcd: Listing(etcd.revision, tuple(key_value(key, item) for key, item in etcd.prefixed(prefix)))
        )

    def watch(
        self, key: str, *, start_revision: int, prefix: bool = False, survives_connection: bool = True
    ) -> KeyWatch:
        return KeyWatch(self._process, key, start_revision)


class KeyWatch:
    """One connection's watch: all changes from a revision on, in order and late, until it breaks or its time is over.

    It stands for `Watch` of `iscp/etcd/watch.py` where that does not survive its connection.
    """

    def __init__(self, process: Process, prefix: str, start_revision: int) -> None:
        self._process = process
        self._prefix = prefix
        self._start_revision = start_revision
        self._sent: deque[WatchItem] = deque()
        self._arrived: deque[WatchItem] = deque()
        self._changed = process.threads.conditions(1)[0]
        self._arrives_s = 0.0
        self._over = False
        self.broken = False
        process.watches.append(self)
        process.etcd.call(self._begin, lambda _: None, self._break)
        if (lasts_s := process.world.wrongs.watch_lasts_s()) is not None:
            process.after(lasts_s, self._break)

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._process.watches.remove(self)
            self._process.world.etcd.stop_watching(self._happened)
            self._changed.notify_all()

    def mend(self) -> None:
        """The way to etcd is open again: that the connection is lost is noticed now at the latest."""
        if self.broken:
            self._process.after(RELIST_S * self._process.world.random.random(), self._break)

    def __iter__(self) -> Iterator[WatchItem]:
        while True:
            self._changed.wait_for(lambda: self._arrived or self._over)
            if not self._arrived:
                return
            yield self._arrived.popleft()

    def _begin(self, etcd: Etcd) -> None:
        """At the server."""
        if self._over:
            return
        if etcd.revision < self._start_revision - 1:
            self._send(Compacted(0))
        elif self._start_revision <= etcd.compacted:
            self._send(Compacted(etcd.compacted + 1))
        else:
            for revision, changes in groupby(etcd.history, lambda change: change.revision):
                if revision >= self._start_revision:
                    self._happened(tuple(changes))
            etcd.watchers.append(self._happened)

    def _happened(self, changes: Sequence[Change]) -> None:
        ours = tuple(change for change in changes if change.key.startswith(self._prefix))
        if not ours or self.broken:
            return
        world = self._process.world
        if world.links[self._process.node_id] is not Link.OPEN:
            self.broken = True
        elif world.wrongs.happen(world.trouble.lost_events):
            world.note(self._process.node_id, f"its watch passes over {ours[0].revision}")
        elif world.random.random() < world.trouble.compaction:
            self._send(Compacted(ours[0].revision))
        else:
            self._send(Changed(tuple(map(_event, ours))))

    def _send(self, item: WatchItem) -> None:
        process, world = self._process, self._process.world
        self._sent.append(item)
        now_s = world.agenda.now_s
        self._arrives_s = max(self._arrives_s, now_s + world.random.random() * world.trouble.watch_lag_s)
        process.after(self._arrives_s - now_s, self._receive)

    def _receive(self) -> None:
        """In order, whatever came first: it is a stream."""
        if self._sent and not self.broken:
            self._give(self._sent.popleft())

    def _break(self) -> None:
        self._sent.clear()
        self._give(Compacted(0))

    def _give(self, item: WatchItem) -> None:
        if self._over:
            return
        self._arrived.append(item)
        if isinstance(item, Compacted):
            self.close()
        else:
            self._changed.notify_all()


def _event(change: Change) -> WatchEvent:
    if change.item is None:
        return WatchEvent(EventType.DELETE, KeyValue(change.key, b"", 0, change.revision, 0, 0))
    return WatchEvent(EventType.PUT, key_value(change.key, change.item))


def reads_of(process: Process, reads: type[MemberReads]) -> MemberReads:
    return reads(MemberKeys(process), KEYS)


def follow_members(process: Process, told: Callable[[tuple[NodeRecord, ...], Moment], None]) -> MemberWatch:
    return MemberWatch(MemberKeys(process), KEYS, told, process.reads, process.threads)
