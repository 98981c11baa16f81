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
from typing import Any
from uuid import uuid4

from benchmarks.bare_node import TRACE
from iscp.app.settings import to_toml
from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Register
from iscp.cluster.owner.job_log_writer import LogHooks, LogWriter
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.etcd.keys import EtcdSettings
from iscp.etcd.server import EtcdServer
from iscp.model.access.security_config import AccountConfig, OidcConfig, SecurityConfig, TlsConfig
from iscp.model.job.job_row import JobRow, Registration
from iscp.model.settings.config import EtcdConfig, JobLogConfig, NodeConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import IscpError
from iscp.model.values.ids import JobKey
from iscp.server.node.owner_streams import NodeDescription, describe
from iscp.system.child_process import end, spawn, tail
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.http_exchange import free_port
from iscp.system.threads import SystemClock
from iscp.system.tls.certificate_watch import certificate_watch
from iscp.system.tls.development_authority import CertificateKind, CertificateRequest, DevelopmentAuthority
from iscp.system.tls.tls_files import TlsFiles

WAIT_S = 120.0
LOOK_S = 0.02
REGISTER_AT_ONCE = 2_000


def until(what: str, true: Callable[[], object], timeout_s: float = WAIT_S, look_s: float = LOOK_S) -> float:
    """Wait for it; the monotonic seconds at which it was seen."""
    end_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(look_s)
    return time.monotonic()


def fill_log(uri: str, shards: int) -> None:
    """Jobs on so many tables, one each, in a job log that is new."""
    joblog = DeltaJobLog(uri, SystemClock(), EnvironmentFailpoints({}), cluster="default")
    joblog.claim_term()
    writer = LogWriter(joblog, JobBook(), SystemClock(), JobLogConfig(uri=""), LogHooks(lambda _: None, lambda _: None))
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
    prefix: tuple[str, ...] = ()
    program: tuple[str, ...] = ("-m", "benchmarks.bare_node")
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
        environ = {name: value for name, value in environ.items() if value}
        self.child = spawn(
            [*self.prefix, sys.executable, *self.program, str(file)],
            self.log,
            environ,
            death_signal=SIGKILL,
        )

    def told(self) -> NodeDescription | None:
        """What it says of itself; None while it does not answer."""
        try:
            return describe(self.config.address, tls=certificate_watch(self.config), timeout_s=1.0)
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
        """What it took in (+) and gave up (-) since the last call: nanoseconds of the monotonic clock, sign, shard."""
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
    """`root` is a directory of its own; the job log is filled before any node starts.

    With `tls` there is an authority in `certs`, with a certificate for each node by its name, for `etcd`, for this
    process towards etcd (`watcher`) and for a `client`. With `accounts`, which needs that, callers are authenticated;
    there is a certificate for each name in them.
    """

    root: Path
    nodes: int
    shards: int
    ttl_s: float = 5.0
    margin_s: float = 0.5
    environ: Mapping[str, str] = field(default_factory=dict)
    etcd_host: str = "127.0.0.1"
    tls: bool = False
    accounts: Mapping[str, AccountConfig] = field(default_factory=dict)
    oidc: OidcConfig = field(default_factory=OidcConfig)

    def __post_init__(self) -> None:
        if self.tls:
            self._make_certificates()
        joblog = self.root / "joblog"
        joblog.mkdir(parents=True)
        fill_log(str(joblog), self.shards)
        self._etcd_ports = free_port(), free_port()
        self._start_etcd()
        endpoint = f"{self.etcd_host}:{self._etcd_ports[0]}"
        etcd = EtcdConfig(
            endpoints=(endpoint,), lease_ttl_s=self.ttl_s, margin_s=self.margin_s, accept_faulty_release=True
        )
        if self.tls:
            own: dict[str, Any] = {**self._files("watcher")}
            etcd = replace(etcd, **own)
        self._base = NodeConfig(node_id="-", log=JobLogConfig(uri=str(joblog)), etcd=etcd)
        self.members = [BareNode(self.config(f"n{n}"), self.root, self.environ) for n in range(self.nodes)]

    def config(self, node_id: str, **changed: Any) -> NodeConfig:
        """As the cluster's own nodes have it, at a port of its own."""
        if self.tls:
            tls = TlsConfig(**self._files(node_id))
            security = SecurityConfig(tls=tls, authentication=bool(self.accounts), oidc=self.oidc)
            changed = {"security": security, "accounts": self.accounts, **changed}
        return replace(self._base, node_id=node_id, **{"listen": f"127.0.0.1:{free_port()}", **changed})

    @property
    def etcd_settings(self) -> EtcdSettings:
        """This process's own."""
        return EtcdSettings((self.etcd.endpoint,), tls=self.files("watcher") if self.tls else None)

    @property
    def certs(self) -> Path:
        return self.root / "certs"

    def files(self, name: str, server_name: str = "") -> TlsFiles:
        """A client's, of that certificate."""
        ca, cert, key = map(Path, self._files(name).values())
        return TlsFiles(ca, cert, key, server_name)

    def _files(self, name: str) -> dict[str, str]:
        own = self.certs / f"{name}.pem", self.certs / f"{name}.key"
        return dict(zip(("ca_file", "cert_file", "key_file"), map(str, (self.certs / "ca.pem", *own)), strict=True))

    def _make_certificates(self) -> None:
        authority = DevelopmentAuthority.init(self.certs)
        callers = dict.fromkeys(name for each in self.accounts.values() for name in each.certificates)
        for name in dict.fromkeys(("watcher", "client", *callers)):
            authority.make(CertificateRequest(CertificateKind.CLIENT, name))
        authority.make(CertificateRequest(CertificateKind.ETCD, "etcd"))
        for number in range(self.nodes):
            authority.make(CertificateRequest(CertificateKind.NODE, f"n{number}", node_name="node.default.iscp"))

    def start(self) -> None:
        for node in self.members:
            node.start()
        until("all nodes have joined, and all shards run where they belong", self.settled)

    def settled(self) -> bool:
        """Whether every node is there, and every shard runs where it belongs."""
        for node in self.members:
            if node.child is not None and node.child.poll() is not None:
                raise RuntimeError(f"{node.name} has ended:\n{tail(node.log)}")
        counts = [node.count("shards") for node in self.members]
        return sum(counts) == self.shards and all(counts) and self.owner().count("settled") == 1

    def others_have_all(self, victim: BareNode) -> bool:
        """Whether all shards run at nodes other than this one."""
        return sum(node.count("shards") for node in self.members if node is not victim) == self.shards

    def owner(self) -> BareNode:
        """Whoever has the newest term."""
        return max(self.members, key=lambda node: node.count("owner_rev"))

    def restart_etcd(self) -> None:
        """With the same data, at the same address."""
        self.etcd.kill()
        self._start_etcd()

    def _start_etcd(self) -> None:
        port, local = self._etcd_ports[0], self.etcd_host == "127.0.0.1"
        listen: tuple[str, ...] = () if local else ("--listen-client-urls", f"http://0.0.0.0:{port}")
        tls = None
        if self.tls:
            own, tls = self._files("etcd"), self.files("watcher")
            listen += ("--client-cert-auth", f"--trusted-ca-file={own['ca_file']}")
            listen += (f"--cert-file={own['cert_file']}", f"--key-file={own['key_file']}")
        ports, clock = self._etcd_ports, SystemClock()
        self.etcd = EtcdServer.start(self.root / "etcd", *ports, clock=clock, tls=tls, extra_args=listen)

    def stop(self) -> None:
        for node in self.members:
            if node.child is not None:
                node.child.terminate()
        for node in self.members:
            if node.child is not None:
                end(node.child, 10.0)
        self.etcd.stop()
