"""etcd and nodes on one machine, as child processes of this one, started again when they die.

Decides what lies where in the directory of `iscp up`, which ports are used, and when a child is started again. It has
no thread: `tick` does what is due, and has to be called again and again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iscp.adapters.etcd.server import EtcdServer
from iscp.adapters.system.child_process import end, how_it_ended, spawn, tail
from iscp.adapters.system.free_port import free_port, is_free
from iscp.adapters.system.settings import to_toml, variable
from iscp.core.config import ADMIN_PORT, EtcdConfig, JobLogConfig, NodeConfig
from iscp.core.errors import EXIT_JOB_LOG_DAMAGED, ConfigurationError, JobLogDamaged, Unavailable
from iscp.ports.system import Clock

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
BACKOFF_BASE_S, BACKOFF_CAP_S = 0.5, 10.0
SETTLED_S = 60.0
"""A process that ran for so long starts again without a growing pause."""

FIRST_FAILURES_MAX = 3
"""Ends of a node before it ever served; then `iscp up` gives up, as it would not do better the next time."""

NODE_STOP_WAIT_S = 30.0
"""How long a node or etcd of `iscp up` may take to stop in order; then it is killed."""

HEALTH_TIMEOUT_S = 1.0
"""How long a node may take to answer whether it serves; then it counts as one that does not."""

_OURS = ("node_id", "listen", "advertise", "data_dir", "log.uri", "etcd.endpoints")


@dataclass(frozen=True, slots=True)
class Layout:
    """What lies where in the directory of `iscp up`."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def ports(self) -> Path:
        return self.root / "ports.json"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def job_log(self) -> Path:
        return self.root / "joblog"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def create(self) -> None:
        """Whatever is not there yet. A node does not make the job log's directory: it may not be mounted.

        Raises JobLogDamaged if the directory was used before and the job log's is gone: it is made before the nodes'.
        """
        if (self.root / "nodes").is_dir() and not self.job_log.is_dir():
            raise JobLogDamaged(
                f"the job log's directory {self.job_log} is gone, and this data directory has had one: all its "
                "registrations would be lost",
                remedy="Restore it from a backup; to begin without its jobs, name another data directory",
            )
        for each in (self.root, self.job_log, self.logs, self.root / "nodes"):
            each.mkdir(parents=True, exist_ok=True)

    def config(self, node_id: str) -> Path:
        return self.root / "nodes" / f"{node_id}.toml"

    def scratch(self, node_id: str) -> Path:
        return self.root / "nodes" / node_id

    def node_log(self, node_id: str) -> Path:
        return self.logs / f"{node_id}.log"


@contextmanager
def hold_directory(layout: Layout) -> Iterator[None]:
    """Hold the directory; raises ConfigurationError if another process does."""
    layout.root.mkdir(parents=True, exist_ok=True)
    with layout.lock.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ConfigurationError(
                f"{layout.root} is in use by process {lock.read().strip()}",
                field="--data",
                remedy="Stop that one, or name another directory",
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@dataclass(frozen=True, slots=True)
class Ports:
    """What this directory's processes listen on; kept, so that clients find them again after a restart."""

    nodes: tuple[int, ...]
    etcd_client: int
    etcd_peer: int


def choose_ports(layout: Layout, port: int | None, nodes: int = 1) -> Ports:
    """Those of the last time as far as they are free; `port` is the user's wish for the first node (0: any).

    Raises ConfigurationError if that one is taken.
    """
    try:
        kept = json.loads(layout.ports.read_text())
    except (FileNotFoundError, ValueError):
        kept = {}
    if port and not is_free(port):
        raise ConfigurationError(f"{port} is in use", field="--port", remedy="Name another port, or 0 for any")
    before = [*kept.get("nodes", [ADMIN_PORT]), *([0] * nodes)]
    wishes = [before[0] if port is None else port, *before[1:nodes]]
    client, peer = (_port(kept.get(name, 0)) for name in ("etcd_client", "etcd_peer"))
    chosen = Ports(tuple(_port(wish) for wish in wishes), client, peer)
    layout.ports.write_text(
        json.dumps({"nodes": chosen.nodes, "etcd_client": chosen.etcd_client, "etcd_peer": chosen.etcd_peer})
    )
    return chosen


def _port(wish: int) -> int:
    return wish if wish and is_free(wish) else free_port()


@dataclass(slots=True)
class SupervisedProcess:
    """A child that is started again when it dies, after 0.5 s doubling to 10 s.

    Invariant: either `child` runs, or `due_s` says when it is started (monotonic seconds).
    """

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    child: subprocess.Popen[bytes] | None = None
    due_s: float = 0.0
    started_s: float = 0.0
    failures: int = 0
    status: int = 0
    """How it ended last."""

    @property
    def pid(self) -> int:
        return self.child.pid if self.child else 0

    def tick(self, now_s: float) -> None:
        if self.child is not None:
            returncode = self.child.poll()
            if returncode is None:
                return
            self._plan_restart(returncode, now_s)
        if now_s >= self.due_s:
            self.child, self.started_s = self.start(), now_s
            log.info("child.started", extra={"child": self.name, "pid": self.pid})

    def _plan_restart(self, returncode: int, now_s: float) -> None:
        self.status = returncode
        self.failures = 1 if now_s - self.started_s >= SETTLED_S else self.failures + 1
        wait_s = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2 ** (self.failures - 1))
        extra = {"child": self.name, "pid": self.pid, "by": how_it_ended(returncode), "again_in_s": wait_s}
        log.warning("child.died", extra=extra)
        self.child, self.due_s = None, now_s + wait_s


@dataclass(slots=True)
class LocalCluster:
    """etcd and as many nodes as there are ports. `node_command` makes a node's command line from its configuration."""

    layout: Layout
    ports: Ports
    clock: Clock
    environ: Mapping[str, str]
    node_command: Callable[[Path], Sequence[str]]
    _etcd: SupervisedProcess = field(init=False)
    _nodes: list[SupervisedProcess] = field(init=False, default_factory=list)
    _served: bool = field(init=False, default=False)

    def start(self) -> None:
        """Write the nodes' configurations, start etcd and then the nodes.

        Raises ConfigurationError, Unavailable, JobLogDamaged.
        """
        self.layout.create()
        for number in range(len(self.ports.nodes)):
            node_id = f"iscp-{number}"
            self.layout.config(node_id).write_text(to_toml(node_config(self.layout, self.ports, node_id, number)))
            self._nodes.append(SupervisedProcess(node_id, self._starter(node_id)))
        self._etcd = SupervisedProcess("etcd", lambda: self._start_etcd(wait=False))
        self._etcd.child, self._etcd.started_s = self._start_etcd(wait=True), self.clock.monotonic_s()
        link = self.layout.logs / "etcd.log"
        if not link.is_symlink():
            link.symlink_to(self.layout.etcd.absolute() / "etcd.log")
        self.tick()

    def tick(self) -> None:
        """Start again what has died and is due. Raises Unavailable if a node never came to serve."""
        now_s = self.clock.monotonic_s()
        for each in (self._etcd, *self._nodes):
            each.tick(now_s)
        for node in self._nodes:
            hopeless = node.failures >= FIRST_FAILURES_MAX or node.status == EXIT_JOB_LOG_DAMAGED
            if hopeless and not self._served:
                file = self.layout.node_log(node.name)
                raise Unavailable(f"{node.name} does not start:\n{tail(file)}", remedy=f"See {file}")

    def serving(self) -> bool:
        """Whether every node says that it serves (gRPC health)."""
        ready = all(node.child is not None and healthy(self._address(n)) for n, node in enumerate(self._nodes))
        self._served = self._served or ready
        return ready

    def stop(self) -> None:
        """End the nodes in order, and then etcd; what does not end is killed."""
        running = [node.child for node in self._nodes if node.child is not None]
        for child in running:
            child.terminate()
        for child in running:
            end(child, NODE_STOP_WAIT_S)
        if self._etcd.child is not None:
            end(self._etcd.child, NODE_STOP_WAIT_S)

    def kill(self) -> None:
        """End everything at once."""
        for each in (*self._nodes, self._etcd):
            if each.child is not None:
                each.child.kill()
                each.child.wait()

    def ready_line(self) -> dict[str, Any]:
        """What `iscp up --json` prints once it is ready."""
        return {
            "ready": True,
            "endpoint": self._address(),
            "etcd": {"pid": self._etcd.pid, "address": f"{HOST}:{self.ports.etcd_client}"},
            "nodes": [
                {"id": node.name, "pid": node.pid, "address": self._address(n)} for n, node in enumerate(self._nodes)
            ],
        }

    def _address(self, number: int = 0) -> str:
        return f"{HOST}:{self.ports.nodes[number]}"

    def _start_etcd(self, *, wait: bool) -> subprocess.Popen[bytes]:
        ports = self.ports.etcd_client, self.ports.etcd_peer
        return EtcdServer.start(self.layout.etcd, *ports, clock=self.clock, wait=wait).child

    def _starter(self, node_id: str) -> Callable[[], subprocess.Popen[bytes]]:
        command = self.node_command(self.layout.config(node_id))
        environ = node_environ(self.environ)
        return lambda: spawn(command, self.layout.node_log(node_id), environ, death_signal=signal.SIGKILL)


def node_config(layout: Layout, ports: Ports, node_id: str, number: int = 0) -> NodeConfig:
    """What a node of this directory, the `number`th, is started with; the rest are defaults and variables."""
    return NodeConfig(
        node_id=node_id,
        listen=f"{HOST}:{ports.nodes[number]}",
        data_dir=str(layout.scratch(node_id).absolute()),
        log=JobLogConfig(uri=str(layout.job_log.absolute())),
        etcd=EtcdConfig(endpoints=(f"{HOST}:{ports.etcd_client}",)),
    )


def node_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what is a node's own."""
    ours = {variable(path) for path in _OURS}
    return {name: value for name, value in environ.items() if name not in ours}


def node_command(config: Path) -> list[str]:
    """`iscp node` of this very installation; -P: the working directory is not where modules come from."""
    return [sys.executable, "-P", "-m", "iscp.cli.iscp", "node", "--config", str(config)]


def healthy(address: str) -> bool:
    """Whether the node there says that it serves (gRPC health)."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from iscp.wire.v1 import admin_pb2

    # By name: other servers, etcd among them, answer to the general question.
    service = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name

    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=HEALTH_TIMEOUT_S
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
