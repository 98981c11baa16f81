"""The cluster of `iscp up`: etcd and nodes on one machine, as child processes of this one.

The module has the layout of the directory of `iscp up`, what commands read of the etcd of a cluster, the children that
are started again when they die, and the cluster as a whole. The cluster has no thread: `tick` does what is due, and has
to be called again and again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iscp.app.settings import check_files, load_settings, to_toml
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys, snapshot_of
from iscp.etcd.owner_keys import EtcdElection, EtcdLogMarks
from iscp.etcd.server import EtcdServer
from iscp.model.settings.config import ADMIN_PORT, PAGE_PORT, EtcdConfig, JobLogConfig, NodeConfig, PageConfig
from iscp.model.settings.variables import setting_variable
from iscp.model.values.errors import EXIT_JOB_LOG_DAMAGED, ConfigurationError, JobLogDamaged, Unavailable
from iscp.model.values.ids import WIRE_FORMAT
from iscp.ports.system import Clock
from iscp.system.child_process import end, how_it_ended, spawn, tail
from iscp.system.http_exchange import free_port, is_free
from iscp.system.small_files import private_directory
from iscp.system.threads import SystemClock
from iscp.system.tls.certificate_watch import CertificateWatch, certificate_watch
from iscp.system.tls.tls_files import TlsSource

log = logging.getLogger(__name__)

# --- the directory of `iscp up` ---------------------------------------------------------------------------------------
# The directory has a layout, is locked by one process, and stores which ports its processes use.


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the directory of `iscp up`."""

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
        """Create whatever is not there yet, for this user alone. A node does not make the job log's directory: it may
        not be mounted.

        Raises JobLogDamaged if the directory was used before and the job log's is gone: it is made before the nodes'.
        """
        if (self.root / "nodes").is_dir() and not self.job_log.is_dir():
            raise JobLogDamaged(
                f"the job log's directory {self.job_log} is gone, and this data directory has had one: all its "
                "registrations would be lost",
                remedy="Restore it from a backup; to begin without its jobs, name another data directory",
            )
        for each in (self.job_log, self.logs, self.root / "nodes"):
            private_directory(each)

    def config(self, node_id: str) -> Path:
        return self.root / "nodes" / f"{node_id}.toml"

    def scratch(self, node_id: str) -> Path:
        return self.root / "nodes" / node_id

    def node_log(self, node_id: str) -> Path:
        return self.logs / f"{node_id}.log"


FREE_MIN_BYTES = 256 * 1024**2
"""Free space below which `iscp up` begins no new data directory, and `iscp doctor` calls it a fault: etcd alone
reserves 64 MB for a file of its log.
"""


ROOM_MIN_BYTES = 64 * 1024**2
"""Free space below which it is taken for the cause when etcd or a node ends: etcd reserves as much for a file."""


def lack_of_room(root: Path, needed: int = ROOM_MIN_BYTES) -> ConfigurationError | None:
    """Return an error if the file system of a data directory that is in use is full, or nearly so; else None."""
    try:
        free = shutil.disk_usage(root).free
    except OSError:
        return None
    if free >= needed:
        return None
    return ConfigurationError(
        f"{root} has {free // 1024**2} MiB free, too few for etcd and the nodes to go on",
        about="--data",
        remedy=f"Free {needed // 1024**2} MiB or more there, or enlarge its file system",
    )


@contextmanager
def data_faults(root: Path) -> Iterator[None]:
    """Turn what a file system refuses into a ConfigurationError of `--data`."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or root} cannot be written: {error.strerror or error}",
            about="--data",
            remedy="Name a directory that this user may write to, on a file system with room",
        ) from error


def _require_room(root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < FREE_MIN_BYTES:
        raise ConfigurationError(
            f"{root} has {free // 1024**2} MiB free, and {FREE_MIN_BYTES // 1024**2} MiB are needed",
            about="--data",
            remedy="Free space, or name a directory on another file system",
        )


@contextmanager
def hold_directory(layout: Layout) -> Iterator[None]:
    """Hold the directory; raises ConfigurationError if another process does, or if it cannot be used."""
    with data_faults(layout.root):
        layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)  # others may use one that was there before
        opened = layout.lock.open("a+")
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ConfigurationError(
                f"{layout.root} is in use by process {lock.read().strip()}",
                about="--data",
                remedy="Stop that one, or name another directory",
            ) from None
        with data_faults(layout.root):
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            if not layout.etcd.is_dir():
                _require_room(layout.root)
        yield


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that this directory's processes listen on; they are stored, so that clients find them again after a
    restart.
    """

    nodes: tuple[int, ...]
    etcd_client: int
    etcd_peer: int
    taken: int = 0
    """The port where the first node would listen if no other process did; 0 if none does."""
    pages: tuple[int, ...] = ()
    """The ports of the nodes' pages; empty: they have none."""


def choose_ports(layout: Layout, port: int | None, nodes: int = 1) -> Ports:
    """Return the ports of the last time as far as they are free; `port` is the user's wish for the first node (0: any).

    Raises ConfigurationError if that one is taken.
    """
    try:
        before_ports = json.loads(layout.ports.read_text())
    except (FileNotFoundError, ValueError):
        before_ports = {}
    if port and not is_free(port):
        raise ConfigurationError(f"{port} is in use", about="--port", remedy="Name another port, or 0 for any")
    before = [*before_ports.get("nodes", [ADMIN_PORT]), *([0] * nodes)]
    wishes = [before[0] if port is None else port, *before[1:nodes]]
    pages = [*before_ports.get("pages", [0 if port == 0 else PAGE_PORT]), *([0] * nodes)][:nodes]
    client, peer = (_port(before_ports.get(name, 0)) for name in ("etcd_client", "etcd_peer"))
    chosen = Ports(tuple(map(_port, wishes)), client, peer, pages=tuple(map(_port, pages)))
    if wishes[0] and chosen.nodes[0] != wishes[0]:
        chosen = replace(chosen, taken=wishes[0])
    layout.ports.write_text(
        json.dumps(
            {
                "nodes": chosen.nodes,
                "etcd_client": chosen.etcd_client,
                "etcd_peer": chosen.etcd_peer,
                "pages": chosen.pages,
            }
        )
    )
    return chosen


def _port(wish: int) -> int:
    return wish if wish and is_free(wish) else free_port()


# --- a cluster whose job log a person works at ------------------------------------------------------------------------
# The cluster is to stand still, or to be of one release, meanwhile. The functions also read what its etcd knows of the
# log.


def layout_of(data: Path) -> Layout:
    """That of `iscp up`; raises ConfigurationError where it has never run there."""
    layout = Layout(data.absolute())
    if not layout.job_log.is_dir() and not layout.etcd.is_dir():
        raise ConfigurationError(
            f"there is no cluster in {data}", about="--data", remedy="Name the directory of `iscp up`"
        )
    return layout


def config_of(layout: Layout) -> NodeConfig | None:
    """Return the last configuration of the first node of `iscp up`; None if it has never run."""
    file = layout.config("iscp-0")
    return load_settings(file, os.environ) if file.is_file() else None


@contextmanager
def marks_of(layout: Layout) -> Iterator[EtcdLogMarks | None]:
    """Yield what etcd of a stopped `iscp up` knows of the log; None if it has never run, or its data is gone."""
    config = config_of(layout)
    if not layout.etcd.is_dir() or config is None:
        yield None
        return
    server = EtcdServer.start(layout.etcd, clock=SystemClock())
    try:
        endpoints = (f"127.0.0.1:{server.client_port}",)
        # Nothing renews the leases of a cluster that was killed, but they come back with all of their time.
        with marks_at(replace(config, etcd=replace(config.etcd, endpoints=endpoints)), stopped=True) as marks:
            yield marks
    finally:
        server.stop()


@contextmanager
def marks_at(config: NodeConfig, stopped: bool = False) -> Iterator[EtcdLogMarks]:
    """Yield what etcd knows of the log.

    Raises ConfigurationError if a node is registered or leads the cluster, unless all are known to have `stopped`;
    Unavailable.
    """
    clock, keys = SystemClock(), Keys(config.etcd_prefix)
    client = EtcdClient(EtcdSettings.of(config.etcd), clock)
    try:
        election = EtcdElection(client, keys, clock, lease_ttl_s=config.etcd.lease_ttl_s, margin_s=config.etcd.margin_s)
        if not stopped:
            _refuse_running(client, election, keys)
        yield EtcdLogMarks(client, election, keys)
    finally:
        client.close()


def refuse_earlier_nodes(config: NodeConfig) -> None:
    """Raise ConfigurationError where a node is registered that speaks an earlier wire format; Unavailable."""
    client = EtcdClient(EtcdSettings.of(config.etcd), SystemClock())
    try:
        nodes = snapshot_of(client.list_prefix(Keys(config.etcd_prefix).nodes).items)
    except Unavailable as error:
        raise Unavailable(
            f"etcd does not say which nodes run: {error.message}", about="etcd.endpoints", remedy="Start etcd"
        ) from error
    finally:
        client.close()
    if earlier := [node.node_id for node in nodes if node.wire_format < WIRE_FORMAT]:
        raise ConfigurationError(
            f"{', '.join(earlier)} of an earlier release could not be owner any more",
            about="--config",
            remedy="Upgrade all nodes first",
        )


def _refuse_running(client: EtcdClient, election: EtcdElection, keys: Keys) -> None:
    try:
        leader = election.leader()
        nodes = snapshot_of(client.list_prefix(keys.nodes).items)
    except Unavailable as error:
        raise Unavailable(
            f"etcd does not say whether a node runs: {error.message}",
            about="etcd.endpoints",
            remedy="Start etcd, an empty one if it is lost",
        ) from error
    why = f"{leader.node_id} leads the cluster" if leader else f"{nodes[0].node_id} is registered" if nodes else ""
    if why:
        raise ConfigurationError(why, about="--config", remedy="Stop all nodes, and wait for their leases")


# --- child processes that are started again ---------------------------------------------------------------------------

BACKOFF_BASE_S, BACKOFF_CAP_S = 0.5, 10.0
SETTLED_S = 60.0
"""A process that ran for so long starts again without a growing pause."""


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
    """The status with which it ended last."""

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
            try:
                self.child, self.started_s = self.start(), now_s
            except OSError as error:  # its log cannot be opened: the disk may be full, and have room again
                self._wait_before_restart(now_s)
                log.warning("child.not_started", extra={"child": self.name, "error": str(error)})
                return
            log.info("child.started", extra={"child": self.name, "pid": self.pid})

    def _plan_restart(self, returncode: int, now_s: float) -> None:
        self.status = returncode
        wait_s = self._wait_before_restart(now_s)
        extra = {"child": self.name, "pid": self.pid, "by": how_it_ended(returncode), "again_in_s": wait_s}
        log.warning("child.died", extra=extra)
        self.child = None

    def _wait_before_restart(self, now_s: float) -> float:
        self.failures = 1 if now_s - self.started_s >= SETTLED_S else self.failures + 1
        wait_s: float = min(BACKOFF_CAP_S, BACKOFF_BASE_S * 2 ** (self.failures - 1))
        self.due_s = now_s + wait_s
        return wait_s


# --- waiting ----------------------------------------------------------------------------------------------------------
# `iscp up` says what it waits for if it waits for longer than a moment.

NOTICE_AFTER_S = 3.0
"""Seconds that `iscp up` waits for one thing before it says so."""

_AWAITED_AFTER = {
    "node.stopped": "{} to start",
    "jars.downloading": "{} to download jars",
    "spark.starting": "{} to start Spark",
    "spark.started": "{} to be taken in by an owner, which has to be elected first",
}
"""The thing that a node waits for, by the last of these events in its log."""


@dataclass(slots=True)
class WaitNotice:
    """Each thing that is waited for is said once."""

    _awaited: str = ""
    _since_s: float = 0.0
    _announced: str = ""

    def due(self, awaited: str, now_s: float) -> str:
        """Return what is to be said at `now_s` (monotonic); empty if nothing is. `awaited` is empty once all is
        there.
        """
        if awaited != self._awaited:
            self._awaited, self._since_s = awaited, now_s
        if awaited in ("", self._announced) or now_s - self._since_s < NOTICE_AFTER_S:
            return ""
        self._announced = awaited
        return f"waiting for {awaited}"


def awaited_of(node: str, log: Path) -> str:
    """Return what a node that has been started, and does not serve yet, is at, by its log."""
    awaited = "{} to start"
    for line in tail(log).splitlines():
        try:
            found = json.loads(line)
        except ValueError:  # the first one is cut, and others print as well
            continue
        event = found.get("event") if isinstance(found, dict) else None
        awaited = _AWAITED_AFTER.get(event, awaited) if isinstance(event, str) else awaited
    return awaited.format(node)


# --- the cluster ------------------------------------------------------------------------------------------------------

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
    ours, shared = ({setting_variable(path) for path in paths} for paths in (_OURS, _PORTS_OF_ALL))
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

    from iscp.client.channel.grpc_calls import open_channel
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
