"""Who is in the cluster, followed in etcd: records of nodes as snapshots, each at its moment."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.etcd_errors import EtcdCompactedError
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.values import Changed, Compacted, EventType, KeyValue, Listing, Progress
from iscp.adapters.etcd.watch import Watch
from iscp.core.errors import IscpError
from iscp.core.members import Moment, NodeRecord
from iscp.core.untrusted_values import exact_float, exact_int, exact_name, named_error, printable

log = logging.getLogger(__name__)

FORMAT = 1
RELIST_PAUSE_S = 0.5
"""Pause before the members are listed again after that failed."""

REDELIVER_PAUSE_S = 0.5
"""Pause before a list of members that could not be delivered is delivered again."""

CLOSE_WAIT_S = 10.0
"""How long the watch's thread is waited for at the end; then it is left to end by itself."""

Members = tuple[tuple[NodeRecord, ...], Moment]
"""Who is registered, and at which moment of etcd."""


class Moments:
    """Puts what is read of a store in order, also where its revisions go back: it was restored from a backup.

    Reads are linearizable: one that is sent after another's answer came shows at least the same revision.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest = Moment()

    def list_at(self, read: Callable[[], Listing]) -> tuple[Listing, Moment]:
        """What `read` finds, and when that is."""
        while True:
            before = self.latest
            listing = read()
            if (moment := self.read_at(before, listing.revision)) is not None:
                return listing, moment

    @property
    def latest(self) -> Moment:
        return self._latest

    def read_at(self, before: Moment, revision: int) -> Moment | None:
        """When a read is whose answer has this revision; `before`: the latest when it was sent.

        None: that cannot be said, as another read has found the store restored meanwhile; read again.
        """
        with self._lock:
            if self._latest.restores != before.restores:
                return None
            gone_back = revision < before.revision
            if gone_back:
                log.warning("etcd.restored", extra={"revision": revision, "before": before.revision})
            moment = Moment(before.restores + gone_back, revision)
            self._latest = max(self._latest, moment)
            return moment

    def follow(self, since: Moment, revision: int) -> Moment:
        """When a change is that a watch from `since` has brought."""
        moment = Moment(since.restores, revision)
        with self._lock:
            self._latest = max(self._latest, moment)
        return moment


class MemberWatch:
    """One thread follows etcd, another one calls back: a slow callback neither delays nor queues anything."""

    def __init__(
        self,
        client: EtcdClient,
        keys: Keys,
        on_change: Callable[[tuple[NodeRecord, ...], Moment], None],
        moments: Moments,
    ) -> None:
        self._client = client
        self._keys = keys
        self._on_change = on_change
        self._moments = moments
        self._closed = threading.Event()
        self._changed = threading.Condition()
        self._latest: Members | None = None
        self._delivered: Members | None = None
        self._watch: Watch | None = None
        self._threads = [
            threading.Thread(target=target, name=f"etcd-members-{name}", daemon=True)
            for name, target in (("follow", self._follow), ("deliver", self._deliver))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed.set()
            if self._watch is not None:
                self._watch.close()
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_WAIT_S)

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                self._follow_from_list()
            except EtcdCompactedError:
                continue
            except IscpError as error:
                log.warning("etcd.members.unreadable", extra={"reason": str(error)})
                self._closed.wait(RELIST_PAUSE_S)

    def _follow_from_list(self) -> None:
        listing, moment = self._moments.list_at(lambda: self._client.list_prefix(self._keys.nodes))
        known = {kv.key: kv for kv in listing.items}
        self._publish(known, moment)
        watch = self._client.watch(
            self._keys.nodes, prefix=True, start_revision=listing.revision + 1, survives_connection=False
        )
        with self._changed:
            self._watch = watch
            if self._closed.is_set():
                return
        for item in watch:
            match item:
                case Changed(events):
                    for event in events:
                        if event.type is EventType.PUT:
                            known[event.kv.key] = event.kv
                        else:
                            known.pop(event.kv.key, None)
                    revision = max(event.kv.mod_revision for event in events)
                    self._publish(known, self._moments.follow(moment, revision))
                case Progress() | Compacted():
                    pass  # a compacted watch ends: the next listing tells

    def _publish(self, known: dict[str, KeyValue], moment: Moment) -> None:
        snapshot = snapshot_of(known)
        with self._changed:
            self._latest = snapshot, moment
            self._changed.notify_all()

    def _deliver(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed.is_set() or self._latest != self._delivered)
                if self._closed.is_set():
                    return
                snapshot = self._delivered = self._latest
            if snapshot is not None:
                try:
                    self._on_change(*snapshot)
                except Exception:
                    log.exception("etcd.members.callback_failed")
                    self._deliver_again()

    def _deliver_again(self) -> None:
        """Nobody else would say it: the next change may be far away."""
        self._closed.wait(REDELIVER_PAUSE_S)
        with self._changed:
            self._delivered = None


def encoded(record: NodeRecord) -> bytes:
    """The value of a node's key."""
    return json.dumps(
        {
            "format": FORMAT,
            "node_id": record.node_id,
            "epoch": record.epoch,
            "address": record.address,
            "pid": record.pid,
            "version": record.version,
            "started_at_s": record.started_at_s,
            "wire_format": record.wire_format,
            "leaving": record.leaving,
            "ttl_s": record.ttl_s,
        }
    ).encode()


def snapshot_of(known: dict[str, KeyValue]) -> tuple[NodeRecord, ...]:
    """The records, sorted; those that cannot be read are passed over."""
    return tuple(sorted(record for kv in known.values() if (record := _decode(kv)) is not None))


def _decode(kv: KeyValue) -> NodeRecord | None:
    try:
        fields = json.loads(kv.value)
        return NodeRecord(
            node_id=_require_name(fields["node_id"], "node_id"),
            epoch=exact_int(fields["epoch"], "epoch"),
            address=_require_name(fields["address"], "address"),
            pid=exact_int(fields["pid"], "pid"),
            version=exact_name(fields["version"], "version"),
            started_at_s=exact_float(fields["started_at_s"], "started_at_s"),
            lease_id=kv.lease_id,
            wire_format=exact_int(fields.get("wire_format", 1), "wire_format"),
            leaving=bool(fields.get("leaving", False)),
            ttl_s=exact_float(fields.get("ttl_s", 0.0), "ttl_s", 0.0),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = named_error(error)
        log.warning("etcd.members.unreadable_record", extra={"key": printable(kv.key), "reason": reason})
        return None


def _require_name(value: object, name: str) -> str:
    if not (text := exact_name(value, name)):
        raise ValueError(f"{name} is empty")
    return text
