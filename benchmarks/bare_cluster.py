"""etcd and bare nodes as child processes, and what is known of who ran which shard when."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGKILL
from uuid import uuid4

from benchmarks.bare_node import TRACE
from iscp.adapters.children import end, spawn, tail
from iscp.adapters.clock import SystemClock
from iscp.adapters.delta.joblog import DeltaJobLog
from iscp.adapters.etcd.server import EtcdServer
from iscp.adapters.failpoints import EnvironmentFailpoints
from iscp.adapters.free_port import free_port
from iscp.adapters.grpc.node_calls import NodeDescription, describe
from iscp.adapters.settings import to_toml
from iscp.coordination.book import JobBook
from iscp.coordination.draft import Register, Registration
from iscp.core.config import EtcdConfig, JobLogConfig, NodeConfig
from iscp.core.errors import IscpError
from iscp.core.ids import JobKey
from iscp.core.job import JobRow
from iscp.core.spec import ConsumerSpec, JobSpec
from iscp.runtime.log_writer import LogLimits, LogWriter

WAIT_S = 120.0
LOOK_S = 0.02
REGISTER_AT_ONCE = 2_000


def until(what: str, true: Callable[[], object], timeout_s: float = WAIT_S) -> float:
    """Wait for it; the monotonic seconds at which it was seen."""
    end_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(LOOK_S)
    return time.monotonic()


def fill_log(uri: str, shards: int) -> None:
    """Jobs on so many tables, one each, in a job log that is new."""
    joblog = DeltaJobLog(uri, SystemClock(), EnvironmentFailpoints({}))
    joblog.claim_term()
    writer = LogWriter(joblog, JobBook(), SystemClock(), LogLimits(), lambda _: None, lambda _: None)
    writer.start()
    rows = [
        JobRow(
            JobKey("default", f"table-{n}", "copy"),
            uuid4().hex,
            JobSpec(ConsumerSpec("replica", f"/targets/{n}", ("id",))).to_json(),
            f"/lake/{n}",
            f"/lake/{n}",
            create_at_s=time.time(),
        )
        for n in range(shards)
    ]
    for first in range(0, shards, REGISTER_AT_ONCE):
        some = rows[first : first + REGISTER_AT_ONCE]
        writer.submit(Register(tuple(map(Registration, some)))).result()
    writer.close()


@dataclass
class BareNode:
    config: NodeConfig
    root: Path
    environ: Mapping[str, str]
    child: subprocess.Popen[bytes] | None = None
    _read: int = 0

    @property
    def name(self) -> str:
        return self.config.node_id

    @property
    def log(self) -> Path:
        return self.root / f"{self.name}.log"

    @property
    def trace(self) -> Path:
        return self.root / f"{self.name}.trace"

    def start(self) -> None:
        file = self.root / f"{self.name}.toml"
        file.write_text(to_toml(self.config))
        environ = {**os.environ, **self.environ, TRACE: str(self.trace)}
        self.child = spawn(
            [sys.executable, "-m", "benchmarks.bare_node", str(file)], self.log, environ, death_signal=SIGKILL
        )

    def told(self) -> NodeDescription | None:
        """What it says of itself; None while it does not answer."""
        try:
            return describe(self.config.address, timeout_s=1.0)
        except IscpError:
            return None

    def count(self, name: str) -> int:
        told = self.told()
        return told.counters.get(name, 0) if told else 0

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        self.child.wait()

    def noted(self) -> list[tuple[int, str, str]]:
        """What it took in (+) and gave up (-) since the last look: nanoseconds of the monotonic clock, sign, shard."""
        if not self.trace.exists():
            return []
        with self.trace.open() as trace:
            trace.seek(self._read)
            lines = trace.readlines()
            if lines and not lines[-1].endswith("\n"):
                lines.pop()
            self._read += sum(len(line) for line in lines)
        return [(int(at), sign, shard) for at, sign, shard in (line.split() for line in lines)]


@dataclass
class BareCluster:
    """`root` is a directory of its own; the job log is filled before any node starts."""

    root: Path
    nodes: int
    shards: int
    ttl_s: float = 5.0
    margin_s: float = 0.5
    environ: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        joblog = self.root / "joblog"
        joblog.mkdir(parents=True)
        fill_log(str(joblog), self.shards)
        self.etcd = EtcdServer.start(self.root / "etcd", free_port(), free_port(), clock=SystemClock())
        etcd = EtcdConfig(endpoints=(self.etcd.endpoint,), lease_ttl_s=self.ttl_s, margin_s=self.margin_s)
        base = NodeConfig(node_id="-", log=JobLogConfig(uri=str(joblog)), etcd=etcd)
        self.members = [
            BareNode(replace(base, node_id=f"n{n}", listen=f"127.0.0.1:{free_port()}"), self.root, self.environ)
            for n in range(self.nodes)
        ]

    def start(self) -> None:
        for node in self.members:
            node.start()
        until("all nodes have joined, and all shards run", self.settled)

    def settled(self) -> bool:
        """Whether every shard runs and every node has its share."""
        for node in self.members:
            if node.child is not None and node.child.poll() is not None:
                raise RuntimeError(f"{node.name} has ended:\n{tail(node.log)}")
        counts = [node.count("shards") for node in self.members]
        return sum(counts) == self.shards and all(counts)

    def owner(self) -> BareNode:
        """Whoever has the newest term."""
        return max(self.members, key=lambda node: node.count("owner_rev"))

    def stop(self) -> None:
        for node in self.members:
            if node.child is not None:
                node.child.terminate()
        for node in self.members:
            if node.child is not None:
                end(node.child, 10.0)
        self.etcd.stop()
