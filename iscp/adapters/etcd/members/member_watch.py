"""The members of the cluster, followed in etcd: records of nodes as snapshots, each at its moment."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from iscp.adapters.etcd.etcd_errors import EtcdCompactedError
from iscp.adapters.etcd.keys import Keys, epoch_of, snapshot_of
from iscp.adapters.etcd.prefix_watch import CLOSE_WAIT_S, RELIST_PAUSE_S, WatchedStore, WatchItems, apply_events
from iscp.adapters.etcd.values import Changed, KeyValue, WatchEvent
from iscp.core.values.errors import ConfigurationError, IscpError
from iscp.core.values.members import Moment, NodeRecord
from iscp.ports.system import Threads

log = logging.getLogger(__name__)

REDELIVER_PAUSE_S = 0.5
"""Pause before a list of members that could not be delivered is delivered again."""

Members = tuple[tuple[NodeRecord, ...], Moment]
"""Who is registered, and at which moment of etcd."""


class Moments:
    """Puts what is read of a store in order, also where its revisions go back: it was restored from a backup.

    Reads are linearizable: one that is sent after another's answer came shows at least the same revision.
    """

    def __init__(self) -> None:
        # Answers may cross: the latest moment never goes back.
        self._lock = threading.Lock()
        self._latest = Moment()

    @property
    def latest(self) -> Moment:
        return self._latest

    def read_at(self, before: Moment, revision: int, restored: bool = False) -> Moment | None:
        """Return the moment of a read whose answer has this revision; `before`: the latest when it was sent.

        `restored`: the answer shows that the store was restored, whatever its revision. None: the moment is not known,
        as another read has found the store restored meanwhile; read again.
        """
        with self._lock:
            if self._latest.restores != before.restores:
                return None
            restored = restored or revision < before.revision
            if restored:
                log.warning("etcd.restored", extra={"revision": revision, "before": before.revision})
            moment = Moment(before.restores + restored, revision, self._latest.breaks)
            self._latest = max(self._latest, moment)
            return moment

    def follow(self, since: Moment, revision: int) -> Moment:
        """Return the moment of a change that a watch from `since` has brought."""
        moment = Moment(since.restores, revision, since.breaks)
        with self._lock:
            self._latest = max(self._latest, moment)
        return moment

    def lose_sight(self) -> None:
        """Note that nothing is followed until the next read."""
        with self._lock:
            self._latest = replace(self._latest, breaks=self._latest.breaks + 1)


class MemberReads:
    """All that one process reads of the members: by lists, and by the watch, whichever comes first.

    The watch only adds what came after the latest list: an event that it has lost is missing until then, and what a
    list has shown is never undone by a watch that lacks it.

    A store that was restored from a backup may have come past its former revisions before it is read again, and bears
    the same ids. But it has forgotten the epochs that were given since, and those are never deleted: whose record is
    gone while its epoch was never given is not gone, and may be writing.
    """

    def __init__(self, client: WatchedStore, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self.moments = Moments()
        self._store_id = 0
        # A list and the watch may cross: what is of the later moment stays.
        self._lock = threading.Lock()
        self._known: dict[str, KeyValue] = {}
        self._listed = Moment()
        self._newest: Members = (), Moment()

    def list(self) -> Members:
        """Return who is there now; a watch from the next revision on misses nothing."""
        while True:  # ends: another pass is needed only where the store was restored during this one
            before, known = self.moments.latest, self._newest[0]
            listing = self._client.list_prefix(self._keys.nodes)
            found = snapshot_of(listing.items)
            known_id, self._store_id = self._store_id or listing.store_id, listing.store_id
            there = {record.node_id: record for record in found}
            restored = known_id != listing.store_id or any(self._forgot(life, there) for life in known)
            if (moment := self.moments.read_at(before, listing.revision, restored)) is None:
                continue
            with self._lock:
                if moment >= self._newest[1]:
                    self._known, self._listed = {kv.key: kv for kv in listing.items}, moment
                    self._newest = found, moment
            return found, moment

    def follow(self, events: Sequence[WatchEvent], since: Moment) -> Members | None:
        """Return who is there after these events, which a watch from `since` has brought.

        None: a list has shown that the store was restored, and what is followed would be of before.
        """
        with self._lock:
            if self.moments.latest.restores > since.restores:
                return None
            later = [event for event in events if event.kv.mod_revision > self._listed.revision]
            if later:
                revision = apply_events(self._known, later)
                self._newest = snapshot_of(self._known.values()), self.moments.follow(since, revision)
            return self._newest

    def _forgot(self, life: NodeRecord, there: Mapping[str, NodeRecord]) -> bool:
        """Return whether the store cannot be the one in which this life was registered, or its epoch key was spoilt."""
        now = there.get(life.node_id)
        if now is not None and now.epoch == life.epoch:
            return now.lease_id != life.lease_id  # its epoch was given twice
        try:
            return epoch_of(self._client.get(self._keys.epoch(life.node_id))) < life.epoch
        except ConfigurationError:
            return True


class MemberWatch:
    """One thread follows etcd, another one calls back: a slow callback neither delays nor queues anything."""

    def __init__(
        self,
        client: WatchedStore,
        keys: Keys,
        on_change: Callable[[tuple[NodeRecord, ...], Moment], None],
        reads: MemberReads,
        threads: Threads,
    ) -> None:
        self._client = client
        self._keys = keys
        self._on_change = on_change
        self._reads = reads
        self._closed = False
        self._changed, self._ended = threads.conditions(2)
        self._latest: Members | None = None
        self._delivered: Members | None = None
        self._watch: WatchItems | None = None
        self._threads = [
            threads.thread(f"etcd-members-{name}", run)
            for name, run in (("follow", self._follow), ("deliver", self._deliver))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            if self._watch is not None:
                self._watch.close()
            self._changed.notify_all()
            self._ended.notify_all()
        for thread in self._threads:
            # A callback may close the watch.
            if not thread.is_current():
                thread.join(CLOSE_WAIT_S)

    def _pause(self, pause_s: float) -> None:
        with self._ended:  # a condition of its own, as each change would end the pause otherwise
            self._ended.wait_for(lambda: self._closed, pause_s)

    def _follow(self) -> None:
        while not self._closed:
            try:
                self._follow_from_list()
            # Compacted between two pages of the list: the next list is of a newer revision, so no pause.
            except EtcdCompactedError:
                continue
            except IscpError as error:
                log.warning("etcd.members.unreadable", extra={"reason": str(error)})
                self._pause(RELIST_PAUSE_S)

    def _follow_from_list(self) -> None:
        self._publish(members := self._reads.list())
        _, moment = members
        watch = self._client.watch(
            self._keys.nodes, prefix=True, start_revision=moment.revision + 1, survives_connection=False
        )
        with self._changed:
            self._watch = watch
            if self._closed:  # `close` found no watch to close
                return
        try:
            for item in watch:
                if isinstance(item, Changed):
                    if (followed := self._reads.follow(item.events, moment)) is None:
                        return
                    self._publish(followed)
        finally:
            self._reads.moments.lose_sight()

    def _publish(self, members: Members) -> None:
        with self._changed:
            self._latest = members
            self._changed.notify_all()

    def _deliver(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._latest != self._delivered)
                if self._closed:
                    return
                snapshot = self._delivered = self._latest
            if snapshot is not None:
                try:
                    self._on_change(*snapshot)
                except Exception:
                    log.exception("etcd.members.callback_failed")
                    self._deliver_again()

    def _deliver_again(self) -> None:
        """Have the members delivered again after a pause, as the next change may be far away."""
        self._pause(REDELIVER_PAUSE_S)
        with self._changed:
            self._delivered = None
