"""Run etcd and nodes on one machine, as child processes of this one, and start them again when they die.

The cluster has no thread: `tick` does what is due, and has to be called again and again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iscp.adapters.etcd.server import EtcdServer
from iscp.adapters.system.child_process import end, spawn, tail
from iscp.adapters.tls.certificate_watch import CertificateWatch
from iscp.adapters.tls.node_certificates import certificate_watch
from iscp.adapters.tls.tls_files import TlsSource
from iscp.bootstrap.configuration.settings import check_files, load_settings, to_toml, variable
from iscp.cli.node.data_directory import Layout, Ports, data_faults, lack_of_room
from iscp.cli.node.supervised_process import SupervisedProcess
from iscp.cli.node.wait_notice import awaited_of
from iscp.core.settings.config import EtcdConfig, JobLogConfig, NodeConfig, PageConfig
from iscp.core.values.errors import EXIT_JOB_LOG_DAMAGED, ConfigurationError, Unavailable
from iscp.ports.system import Clock

HOST = "127.0.0.1"

PORT_MAX = 65_535
"""The greatest number of a TCP port."""

FIRST_FAILURES_MAX = 3
"""Ends of a node before it ever served; then `iscp up` gives up, as it would not do better the next time."""

NODE_STOP_WAIT_S = 30.0
"""Seconds that a node or etcd of `iscp up` may take to stop in order; then it is killed."""

HEALTH_TIMEOUT_S = 1.0
"""Seconds that a node may take to answer whether it serves; then it counts as one that does not."""

_OURS = ("node_id", "listen", "advertise", "data_dir", "log.uri", "etcd.endpoints", "page.listen")

_PORTS_OF_ALL = ("metrics.listen", "gateway.listen", "health.listen")
"""Settings that a variable gives all nodes, and that no two nodes of a machine can share."""


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
    _unready: str = field(init=False, default="")
    _full: bool = field(init=False, default=False)
    _tls: CertificateWatch | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._etcd = SupervisedProcess("etcd", lambda: self._start_etcd(wait=False))

    def start(self, on_wait: Callable[[], None] = lambda: None) -> None:
        """Write the nodes' configurations, start etcd and then the nodes; `on_wait` as in EtcdServer.start.

        Raises ConfigurationError, Unavailable, JobLogDamaged.
        """
        with data_faults(self.layout.root):
            self.layout.create()
        for number in range(len(self.ports.nodes)):
            node_id = f"iscp-{number}"
            with data_faults(self.layout.root):
                self.layout.config(node_id).write_text(to_toml(node_config(self.layout, self.ports, node_id, number)))
            # A node would say the same, and be started again and again.
            environ = node_environ(self.environ, number)
            config = check_files(load_settings(self.layout.config(node_id), environ), self.environ)
            self._tls = certificate_watch(config)
            self._nodes.append(SupervisedProcess(node_id, self._starter(node_id, number)))
        with self._room_blamed(), data_faults(self.layout.root):
            self._etcd.child = self._start_etcd(wait=True, on_wait=on_wait)
            self._etcd.started_s = self.clock.monotonic_s()
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
                with self._room_blamed():
                    raise Unavailable(f"{node.name} does not start:\n{tail(file)}", remedy=f"See {file}")

    def awaited(self) -> str:
        """Return what prevents a cluster that is starting from serving."""
        if self._etcd.child is None:
            return "etcd to start again"
        return awaited_of(self._unready, self.layout.node_log(self._unready)) if self._unready else ""

    def new_fault(self) -> str:
        """Return why etcd or a node has ended if the disk is full; empty if none has, or it is not that, or was
        reported.
        """
        if not self._full and all(each.child is not None for each in (self._etcd, *self._nodes)):
            return ""
        reported, lack = self._full, lack_of_room(self.layout.root)
        self._full = lack is not None
        return "" if reported or lack is None else str(lack)

    @contextmanager
    def _room_blamed(self) -> Iterator[None]:
        """Turn what etcd and nodes say of a full disk, as stacks of Go and Python, into a sentence."""
        try:
            yield
        except Unavailable as error:
            if (lack := lack_of_room(self.layout.root)) is None:
                raise
            raise lack from error

    def serving(self) -> bool:
        """Return whether every node says that it serves (gRPC health)."""
        down = (
            node.name
            for n, node in enumerate(self._nodes)
            if node.child is None or not healthy(self._address(n), self._tls)
        )
        self._unready = next(down, "")
        ready = not self._unready
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
        """Return what `iscp up -o json` prints once it is ready."""
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

    def page(self) -> str:
        """Return the address of the first node's page for browsers."""
        return f"{'http' if self._tls is None else 'https'}://{HOST}:{self.ports.pages[0]}/"

    def _start_etcd(self, *, wait: bool, on_wait: Callable[[], None] = lambda: None) -> subprocess.Popen[bytes]:
        ports = self.ports.etcd_client, self.ports.etcd_peer
        return EtcdServer.start(self.layout.etcd, *ports, clock=self.clock, wait=wait, on_wait=on_wait).child

    def _starter(self, node_id: str, number: int) -> Callable[[], subprocess.Popen[bytes]]:
        command = self.node_command(self.layout.config(node_id))
        environ = node_environ(self.environ, number)
        return lambda: spawn(command, self.layout.node_log(node_id), environ, death_signal=signal.SIGKILL)


def node_config(layout: Layout, ports: Ports, node_id: str, number: int = 0) -> NodeConfig:
    """Return the configuration of the `number`th node of this directory; the rest are defaults and variables."""
    return NodeConfig(
        node_id=node_id,
        listen=f"{HOST}:{ports.nodes[number]}",
        data_dir=str(layout.scratch(node_id).absolute()),
        log=JobLogConfig(uri=str(layout.job_log.absolute())),
        etcd=EtcdConfig(endpoints=(f"{HOST}:{ports.etcd_client}",), accept_faulty_release=True),
        page=PageConfig(listen=f"{HOST}:{ports.pages[number]}" if ports.pages else ""),
    )


def node_environ(environ: Mapping[str, str], number: int = 0) -> dict[str, str]:
    """Return `environ` for the `number`th node, without what is a node's own.

    A port that a variable names is the first node's; each further node has the next one. Raises ConfigurationError
    where there is no such port.
    """
    ours, shared = ({variable(path) for path in paths} for paths in (_OURS, _PORTS_OF_ALL))
    given = {name: value for name, value in environ.items() if name not in ours}
    return {name: _next_port(name, value, number) if name in shared else value for name, value in given.items()}


def _next_port(name: str, address: str, number: int) -> str:
    """Return HOST:PORT with the port of the `number`th node; what is no such address is left to its own check."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or not int(port) or not number:
        return address
    if int(port) + number > PORT_MAX:
        raise ConfigurationError(
            f"{address} leaves no port for node {number}, which would have {int(port) + number}",
            about=name,
            remedy="Give a lower port, or port 0 for free ones",
        )
    return f"{host}:{int(port) + number}"


def node_command(config: Path) -> list[str]:
    """Return the command `iscp node` of this very installation; -P: the working directory is not where modules come
    from.
    """
    return [sys.executable, "-P", "-m", "iscp.cli.iscp", "node", "--config", str(config)]


def healthy(address: str, tls: TlsSource | None = None) -> bool:
    """Return whether the node there says that it serves (gRPC health)."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from iscp.adapters.grpc.channel.call_metadata import open_channel
    from iscp.wire.v1 import admin_pb2

    # By name: other servers, etcd among them, answer to the general question.
    service = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name

    with open_channel(address, tls) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=HEALTH_TIMEOUT_S
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
