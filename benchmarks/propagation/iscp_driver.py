"""iscp: nodes as `iscp up` starts them, with a job for each derived table. The cluster's owner is what is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from benchmarks.propagation.driver import Driver, Place
from benchmarks.propagation.medallion import Derived, Kind
from benchmarks.propagation.processes import tree
from iscp.cli.node.up import RunningUp, start_up
from iscp.client.admin_client import Client
from iscp.model.values.errors import OutcomeUnknown, Unavailable
from iscp.system.threads import SystemClock

WAIT_S = 600.0
"""Seconds that a job may take until it has its first rows, or has caught up; then the run fails."""


class IscpDriver(Driver):
    """A cluster of `nodes` nodes on this machine, with etcd."""

    name = "iscp"
    warm = "The nodes run, each with its JVM. They are notified of each commit, and probe the tables besides."
    cannot: ClassVar[Mapping[str, str]] = {}

    def __init__(self, place: Place, nodes: int) -> None:
        super().__init__(place)
        self._nodes = nodes
        self._up: RunningUp | None = None
        self._client: Client | None = None

    @property
    def pid(self) -> int:
        return self._running.child.pid

    @property
    def _running(self) -> RunningUp:
        assert self._up is not None
        return self._up

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def start(self) -> None:
        self._up = start_up(self.place.folder / "iscp", SystemClock(), os.environ, port=0, nodes=self._nodes)
        self._client = Client(self._up.endpoints, timeout_s=WAIT_S)

    def create(self) -> None:
        self.place.targets.mkdir()
        for each in self.derived:
            self._register(each)
            if any(each.name in other.inputs for other in self.derived):
                # A job is registered on a table that is there.
                self.client.wait(self._table(each), each.name, timeout_s=WAIT_S)

    def _table(self, derived: Derived) -> str:
        return self.place.uri(derived.inputs[0])

    def _register(self, derived: Derived) -> None:
        target, table = self.place.target(derived.name), self._table(derived)
        match derived.kind:
            case Kind.VIEW:
                tables = {name: self.place.uri(name) for name in derived.inputs}
                self.client.create_view(derived.name, derived.sql, target=target, tables=tables)
            case Kind.REPLICA:
                self.client.register(table, derived.name, target=target, key=derived.key)
            case Kind.FEED:
                self.client.register(table, derived.name, "changefeed", target=target, key=derived.key)

    def notify(self, tables: Iterable[str]) -> None:
        for table in tables:
            with suppress(Unavailable, OutcomeUnknown):  # of a node that is gone; the others probe the table
                self.client.notify(self.place.uri(table))

    def settle(self) -> None:
        for each in self.derived:
            self.client.wait(self._table(each), each.name, timeout_s=WAIT_S)

    def fail(self) -> None:
        cluster = self.client.cluster()
        (owner,) = (node.pid for node in cluster.nodes if node.node_id == cluster.owner)
        below = tree(owner)
        # What is below it nobody waits for, so its time would be lost.
        self.lost_s += sum(spent for pid, spent in below.items() if pid != owner)
        os.kill(owner, signal.SIGKILL)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._up is not None:
            self._up.stop()

    def written_folders(self) -> Sequence[Path]:
        """Leave out etcd's files, which are reserved as a whole, and the nodes' logs."""
        return self.place.targets, self.place.folder / "iscp" / "joblog"
