"""Real processes for end-to-end tests: etcd and one node, each of which can be killed, stopped and started again.

    def test_x(cluster: Cluster) -> None:          # the fixture stops everything at the end
        source = cluster.table("orders", rows)     # a Delta table with change data feed, written by delta-rs
        cluster.start(ISCP_FAILPOINTS="…")         # etcd, and a node with these variables besides the usual ones
        job = cluster.replica("copy", source, key=("id",))
        cluster.node.kill()                        # SIGKILL; .freeze() and .thaw() for SIGSTOP and SIGCONT
        cluster.start_node()                       # again, without a failpoint
        upsert(source, more_rows, ("id",))
        cluster.settle(job)                        # waits until it is at the source's newest version
        assert_equal(job.target, read(source))     # row by row, against what you computed yourself

Nothing here derives anything: what a target must hold is computed from the source by the test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from iscp.app.settings import to_toml
from iscp.cli.demo.lake import differences, read
from iscp.cli.node.local_cluster import Layout, Ports, choose_ports, healthy, node_command, node_config, node_environ
from iscp.client.admin_client import Client
from iscp.etcd.server import EtcdServer
from iscp.model.api.api_requests import JobView
from iscp.model.settings.config import NodeConfig
from iscp.system.child_process import end, spawn, tail
from iscp.system.threads import SystemClock
from tests import quick_spark

__all__ = [
    "Cluster",
    "Job",
    "Process",
    "Reader",
    "append",
    "assert_equal",
    "delete",
    "leftovers",
    "read",
    "upsert",
    "wait_for",
]

START_WAIT_S = 120.0
SETTLE_WAIT_S = 120.0
STOP_WAIT_S = 45.0
POLL_S = 0.1
NODE_ID = "iscp-0"

MARK = "E2E_MARK"
"""A variable that all processes of a cluster inherit, by which those left behind are found."""

QUICK = {
    # So that tests do not wait for what production waits for.
    "ISCP_PROBE__INTERVAL_MIN_S": "1",
    "ISCP_PROBE__INTERVAL_MAX_S": "2",
    "ISCP_BACKOFF__BASE_S": "0.5",
    "ISCP_BACKOFF__CAP_S": "2",
    "ISCP_ETCD__LEASE_TTL_S": "3",
    "ISCP_ETCD__MARGIN_S": "1",
    **quick_spark.VARIABLES,
}


def wait_for(what: str, true: Callable[[], object], timeout_s: float = START_WAIT_S) -> None:
    """Poll until `true`; fails with `what` after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(POLL_S)


def leftovers(mark: str) -> list[int]:
    """The processes that were started with `MARK=mark`, whoever their parents are; zombies do not count."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and int(directory.name) != os.getpid():
            with suppress(OSError):
                if wanted in (directory / "environ").read_bytes().split(b"\0"):
                    found.append(int(directory.name))
    return found


class Process:
    """One child, to be treated badly."""

    def __init__(self, child: subprocess.Popen[bytes], log: Path) -> None:
        self.child, self.log = child, log

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.child.kill()
        self.child.wait()

    def freeze(self) -> None:
        """SIGSTOP: it is still there, but does nothing. (Its JVM, if it has one, goes on.)"""
        self.child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.child.send_signal(signal.SIGCONT)

    def wait_end(self, timeout_s: float = START_WAIT_S) -> int:
        """The exit status of a process that is to die by itself, as at a failpoint."""
        return self.child.wait(timeout_s)

    def stop(self) -> int:
        """SIGTERM, and SIGKILL if that does not help; the exit status."""
        if self.alive:
            self.thaw()
            end(self.child, STOP_WAIT_S)
        return int(self.child.returncode)


@dataclass(frozen=True, slots=True)
class Job:
    source: str
    name: str
    target: str


@dataclass
class Cluster:
    """etcd and one node below `root`; not started until `start`."""

    root: Path
    mark: str = field(default_factory=lambda: uuid4().hex)
    within: Sequence[str] = ()
    """The command that runs nodes, where another one does."""
    _etcd: Process | None = None
    _node: Process | None = None
    _client: Client | None = None

    def __post_init__(self) -> None:
        self.layout = Layout(self.root / "iscp")
        self.layout.create()
        self.ports: Ports = choose_ports(self.layout, 0)
        self.lake = self.root / "lake"
        self.derived = str(self.lake / "derived")
        """Where targets lie; on S3, if a test says so."""
        Path(self.derived).mkdir(parents=True)

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.ports.nodes[0]}"

    @property
    def etcd(self) -> Process:
        assert self._etcd is not None, "start it first"
        return self._etcd

    @property
    def node(self) -> Process:
        assert self._node is not None, "start it first"
        return self._node

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = Client(self.endpoint)
        return self._client

    def start(self, **environ: str) -> None:
        """etcd and a node, ready to serve; `environ` goes to the node."""
        self.start_etcd()
        self.start_node(**environ)

    def start_etcd(self, binary: Path | None = None) -> None:
        """At the same address and with the same data each time."""
        ports = self.ports.etcd_client, self.ports.etcd_peer
        server = EtcdServer.start(self.layout.etcd, *ports, clock=SystemClock(), binary=binary)
        self._etcd = Process(server.child, self.layout.etcd / "etcd.log")

    def start_node(self, **environ: str) -> None:
        """The node of the same name, whether or not the last one ended well, ready to serve."""
        self.launch_node(**environ)
        self.wait_serving()

    def launch_node(self, **environ: str) -> None:
        """As `start_node`, without a wait."""
        self._node = self.spawn_node(NODE_ID, self.ports, environ=environ)

    def spawn_node(
        self, node_id: str, ports: Ports, number: int = 0, environ: Mapping[str, str] = MappingProxyType({})
    ) -> Process:
        """A node that the cluster does not otherwise know of, as for two that fight; stop it yourself."""
        config = self.layout.config(node_id)
        config.write_text(to_toml(self.config_of(node_config(self.layout, ports, node_id, number))))
        log = self.layout.node_log(node_id)
        variables = node_environ(os.environ) | QUICK | {MARK: self.mark, **environ}
        variables = {name: value for name, value in variables.items() if value}
        return Process(spawn([*self.within, *node_command(config)], log, variables), log)

    def config_of(self, config: NodeConfig) -> NodeConfig:
        """Return the settings of a node that are written, of those that a local cluster has."""
        return config

    def wait_serving(self) -> None:
        def serving() -> bool:
            assert self.node.alive, f"the node has ended ({self.node.child.returncode}):\n{tail(self.node.log, 8_000)}"
            return healthy(self.endpoint)

        wait_for("the node serves", serving)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
        for each in (self._node, self._etcd):
            if each is not None:
                each.stop()
        wait_for("no process is left", lambda: not leftovers(self.mark), STOP_WAIT_S)

    def table(self, name: str, rows: pa.Table, **configuration: str) -> str:
        """A new source table; version 0 holds `rows`."""
        path = str(self.lake / name)
        write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"} | configuration)
        return path

    def replica(
        self, name: str, source: str, key: Sequence[str] = (), columns: Sequence[str] = (), where: str = ""
    ) -> Job:
        """Register a job; its target is a table of the lake by the job's name."""
        job = Job(source, name, f"{self.derived}/{name}")
        self.client.register(source, name, target=job.target, key=key, columns=columns, where=where)
        return job

    def settle(self, job: Job, version: int | None = None, timeout_s: float = SETTLE_WAIT_S) -> JobView:
        """Wait until the job has applied `version` (None: the source's newest)."""
        return self.client.wait(job.source, job.name, version, timeout_s=timeout_s)

    def status(self, job: Job) -> JobView:
        return self.client.status(job.source, job.name)

    def node_events(self, name: str) -> int:
        """How often the node has logged the event `name`."""
        return self.node.log.read_text().count(f'"event": "{name}"')


def append(table: str, rows: pa.Table) -> int:
    """Append to a source; the new version."""
    write_deltalake(table, rows, mode="append")
    return int(DeltaTable(table).version())


def upsert(table: str, rows: pa.Table, key: Sequence[str]) -> int:
    """Update the rows with these keys, insert the others; the new version."""
    match = " AND ".join(f"t.{name} = s.{name}" for name in key)
    merge = DeltaTable(table).merge(rows, match, source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    return int(DeltaTable(table).version())


def delete(table: str, condition: str) -> int:
    """Delete the rows for which the SQL `condition` holds; the new version."""
    source = DeltaTable(table)
    source.delete(condition)
    return int(source.version())


class Reader:
    """Reads a table over and over on a thread of its own: `seen` are the different contents that there were, in order.

    with Reader(job.target) as reader: ...
    assert reader.seen == [Reader.rows(old), Reader.rows(new)]
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.seen: list[list[str]] = []

    def __enter__(self) -> Self:
        self._look()
        self._reading = self._pool.submit(self._read)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        self._reading.result()
        self._look()

    def _read(self) -> None:
        while not self._stop.is_set():
            self._look()

    def _look(self) -> None:
        rows = self.rows(read(self._table))
        if not self.seen or rows != self.seen[-1]:
            self.seen.append(rows)

    @staticmethod
    def rows(table: pa.Table) -> list[str]:
        return sorted(str(sorted(row.items())) for row in table.to_pylist())


def assert_equal(target: str, expected: pa.Table) -> None:
    """The target holds exactly the rows of `expected`, each as often; in any order."""
    found = differences(expected, read(target))
    shown = found.slice(0, 10).to_pylist()
    assert found.num_rows == 0, f"{found.num_rows} rows differ (_count > 0: too many in the target), as {shown}"
