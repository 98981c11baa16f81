"""The deaths of nodes' processes in etcd, so that a job that ends one node's process does not end each in turn.

Each node writes what it has seen into one key of its own, without a lease: its deaths outlast its process.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.prefix_watch import PrefixWatch, apply_events
from iscp.adapters.etcd.values import KeyValue, WatchEvent
from iscp.core.job.job_deaths import Deaths
from iscp.core.values.errors import IscpError
from iscp.core.values.untrusted_values import exact_float, exact_int, exact_name, named_error, printable
from iscp.ports.system import Threads

log = logging.getLogger(__name__)

JOBS_SHARED_MAX = 100
"""Jobs whose deaths a node shares; of more those whose last one is the longest ago are left out."""

_FORMAT = 1


class EtcdDeathBoard:
    """The port `DeathBoard` on etcd, between `start` and `close`."""

    def __init__(self, client: EtcdClient, keys: Keys, node_id: str, threads: Threads) -> None:
        self._client = client
        self._keys = keys
        self._own_key = keys.death(node_id)
        self._own = b""
        self._lock = threading.Lock()
        self._known: dict[str, KeyValue] = {}
        self._others: Sequence[Mapping[str, Deaths]] = ()
        self._watch = PrefixWatch(
            client, keys.deaths, self._read, self._follow, "etcd.deaths.unreadable", "etcd-deaths", threads
        )

    def start(self) -> None:
        self._watch.start()

    def close(self) -> None:
        self._watch.close()

    def put(self, own: Mapping[str, Deaths]) -> None:
        shared = _encode(own)
        with self._lock:  # the watch's thread writes too
            if shared == self._own:  # as at most starts; what an earlier life left is found as the watch begins
                return
            self._own = shared
            try:
                self._write()
            except IscpError as error:  # the watch's next list finds another text, and writes it again
                log.warning("etcd.deaths.unwritten", extra={"reason": str(error)})

    def others(self) -> Sequence[Mapping[str, Deaths]]:
        return self._others

    def _write(self) -> None:
        if self._own:
            self._client.put(self._own_key, self._own)
        else:
            self._client.delete(self._own_key)

    def _read(self) -> int:
        listing = self._client.list_prefix(self._keys.deaths)
        self._known = {kv.key: kv for kv in listing.items}
        self._take()
        found = self._known.get(self._own_key)
        with self._lock:
            if (found.value if found else b"") != self._own:
                self._write()
        return listing.revision

    def _follow(self, events: Sequence[WatchEvent]) -> None:
        apply_events(self._known, events)
        self._take()

    def _take(self) -> None:
        others = (kv for key, kv in self._known.items() if key != self._own_key)
        self._others = [found for kv in others if (found := _decode(kv))]


def _encode(own: Mapping[str, Deaths]) -> bytes:
    """Return the value of a node's key, empty where there are none."""
    some = sorted(((job_id, each) for job_id, each in own.items() if each.some), key=lambda item: item[1].at_s)
    jobs = {job_id: asdict(each) for job_id, each in some[-JOBS_SHARED_MAX:]}
    return json.dumps({"format": _FORMAT, "jobs": jobs}).encode() if jobs else b""


def _decode(kv: KeyValue) -> Mapping[str, Deaths]:
    try:
        document = json.loads(kv.value)
        if exact_int(document["format"], "format") != _FORMAT:
            raise ValueError("its format is not known here")
        return {exact_name(job_id, "job_id"): _deaths(fields) for job_id, fields in document["jobs"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.warning("etcd.deaths.unreadable_key", extra={"key": printable(kv.key), "reason": named_error(error)})
        return {}


def _deaths(fields: Mapping[str, object]) -> Deaths:
    return Deaths(
        count=exact_int(fields["count"], "count"),
        at_s=exact_float(fields["at_s"], "at_s"),
        signal=printable(exact_name(fields["signal"], "signal")),
        kills=exact_int(fields["kills"], "kills"),
        account=exact_name(fields["account"], "account"),
    )
