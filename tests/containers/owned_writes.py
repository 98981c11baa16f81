"""Nodes that run for owner and write as such all the time, and what has to be true of it all afterwards."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Changed, Compacted, Keys, KeyValue, Progress, Put
from iscp.etcd.owner_keys import EtcdElection
from iscp.model.values.errors import IscpError
from iscp.model.values.ids import Leader
from iscp.system.threads import SystemClock
from tests.fakes.waiting import until

TTL_S, MARGIN_S = 3.0, 0.5
PAUSE_S = 0.01
WATCH_WAIT_S = 40.0
"""A watch notices after 14 s that its member is frozen."""


@dataclass
class Writer:
    """A node; `acked`: what etcd has confirmed, with its revision; `reigns`: from when to when it was owner."""

    node_id: str
    client: EtcdClient
    prefix: str
    acked: dict[str, int] = field(default_factory=dict)
    reigns: list[tuple[float, float]] = field(default_factory=list)
    _term: Leader | None = None
    _since_s: float = 0.0

    def __post_init__(self) -> None:
        keys = Keys(f"{self.prefix}election/")
        self.election = EtcdElection(self.client, keys, SystemClock(), lease_ttl_s=TTL_S, margin_s=MARGIN_S)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer-{self.node_id}", daemon=True)

    @property
    def leads(self) -> bool:
        return self._term is not None

    def start(self) -> None:
        self.election.campaign(self.node_id, self._begin, self._end)
        self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()
        self.election.resign()

    def _begin(self, term: Leader) -> None:
        self._since_s, self._term = time.monotonic(), term

    def _end(self) -> None:
        self._term = None
        self.reigns.append((self._since_s, time.monotonic()))

    def _run(self) -> None:
        number = 0
        while not self._ending.wait(PAUSE_S):
            if (term := self._term) is not None:
                number += 1
                key = f"{self.prefix}rows/{self.node_id}-{number:06d}"
                # Refused, or its outcome is unknown: it may be there, and need not.
                with suppress(IscpError):
                    self.acked[key] = self.election.write_fenced(term, Put(key, str(term.revision).encode()))


class Follower:
    """What a watch delivers of all rows, from before the first one is written."""

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        self.rows: list[KeyValue] = []
        self.ended_by = ""
        rows = f"{prefix}rows/"
        listing = client.list_prefix(rows)
        assert not listing.items
        self._watch = client.watch(rows, start_revision=listing.revision + 1, prefix=True)
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for item in self._watch:
                match item:
                    case Changed(events):
                        self.rows += [event.kv for event in events]
                    case Compacted():
                        self.ended_by = "the watch has to begin again: rows are lost to it"
                    case Progress():
                        pass
        except IscpError as error:
            self.ended_by = str(error)

    def await_rows(self, count: int) -> None:
        until(lambda: len(self.rows) >= count or self.ended_by, within_s=WATCH_WAIT_S)
        assert self.ended_by == ""

    def stop(self) -> None:
        self._watch.close()
        self._thread.join()


def assert_nothing_lost(writers: list[Writer], kept: dict[str, KeyValue]) -> None:
    """Every row that was confirmed is there as it was confirmed."""
    acked = {key: revision for writer in writers for key, revision in writer.acked.items()}
    assert {key: kept[key].mod_revision if key in kept else 0 for key in acked} == acked


def assert_one_owner(writers: list[Writer], kept: dict[str, KeyValue]) -> None:
    """No two held themselves for owner at once, and no row of a term comes after one of a later term."""
    reigns = sorted(reign for writer in writers for reign in writer.reigns)
    assert all(first[1] <= second[0] for first, second in pairwise(reigns)), reigns
    rows = sorted(kept.values(), key=lambda row: row.mod_revision)
    terms = [int(row.value) for row in rows]
    assert terms == sorted(terms)


def assert_watched_once(follower: Follower, kept: dict[str, KeyValue]) -> None:
    """The watch delivered every row, in the order of their revisions, and none twice."""
    assert follower.rows == sorted(kept.values(), key=lambda row: row.mod_revision)
