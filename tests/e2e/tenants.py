"""Two accounts on one real node, each with a root of its own: one writes what it likes, the other's table goes on.

with Tenants(tmp_path) as tenants:
    tenants.evil.register(…)                   # what the hostile account does
    tenants.neighbour.commits(10)              # the other's table meanwhile
    tenants.assert_unharmed()
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
from deltalake import DeltaTable

from iscp.client.admin_client import Client
from tests.e2e.harness import NODE_ID, Cluster, Job, append
from tests.fakes.attacked_node import AttackedNode
from tests.fakes.s3 import FakeS3

PROBE_S = 0.2
"""Between two probes of a table: what a commit waits for at most before its iteration begins."""

APPLIED_P95_S = 1.0
APPLIED_MAX_S = 60.0
MORE_MIB = 400
"""What the node's process may need besides, without its JVM and its analyzer."""

SECRET = "s3cr3t-of-the-neighbour"
"""In every row of the neighbour's: it may be nowhere in what the hostile account gets."""


@dataclass
class Neighbour:
    """The table of an account that does nothing wrong, and a replica of it."""

    cluster: Cluster
    client: Client
    job: Job
    rows: int = 1
    took_s: list[float] = field(default_factory=list)

    def commit(self) -> None:
        """Append a row, and measure the seconds until the replica has it."""
        append(self.job.source, row(self.rows))
        self.rows += 1
        committed_s = time.monotonic()
        while self._applied() < self.rows:
            took_s = time.monotonic() - committed_s
            assert took_s < APPLIED_MAX_S, f"the neighbour's commit was not applied within {took_s:.0f} s"
            time.sleep(0.02)
        self.took_s.append(time.monotonic() - committed_s)

    def commits(self, count: int) -> None:
        for _ in range(count):
            self.commit()

    def p95_s(self) -> float:
        return sorted(self.took_s)[int(0.95 * (len(self.took_s) - 1))]

    def _applied(self) -> int:
        adds = pa.table(DeltaTable(self.job.target).get_add_actions(flatten=True))
        return sum(adds["num_records"].to_pylist())


class Tenants:
    """The accounts `acme`, whose table is followed, and `evil`; `elsewhere` is in nobody's root.

    `s3`: a store where `evil` has a root too.
    """

    def __init__(self, root: Path, s3: FakeS3 | None = None) -> None:
        self.cluster = Cluster(root)
        lake = self.cluster.lake
        self.roots = {account: lake / account for account in ("acme", "evil")}
        self.elsewhere = root / "elsewhere"
        for directory in (*self.roots.values(), self.elsewhere):
            directory.mkdir()
        Path(self.elsewhere, "kept.txt").write_text(SECRET)
        allowed = {account: [str(at)] for account, at in self.roots.items()}
        if s3 is not None:
            allowed["evil"].append(s3.uri("evil"))
        self.environ = (s3.settings if s3 is not None else {}) | {
            "ISCP_SECURITY__AUTHENTICATION": "true",
            "ISCP_SECURITY__INSECURE": "true",  # without TLS: callers are known by tokens
            "ISCP_ACCOUNTS": json.dumps({name: {"roots": roots} for name, roots in allowed.items()}),
            "ISCP_PROBE__INTERVAL_MIN_S": str(PROBE_S),
            "ISCP_PROBE__INTERVAL_MAX_S": str(PROBE_S),
        }
        self._clients: list[Client] = []
        self._before_mib = 0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        self.cluster.stop()

    def _start(self) -> None:
        self.cluster.start(**self.environ)
        self.admin = self.connect(self._bootstrap())
        self.evil = self.connect(self._token("evil"))
        source = self.cluster.table("acme/orders", row(0))
        job = Job(source, "copy", str(self.roots["acme"] / "copy"))
        client = self.connect(self._token("acme"))
        client.register(source, job.name, target=job.target, key=["id"])
        client.wait(source, job.name, timeout_s=60)
        self.neighbour = Neighbour(self.cluster, client, job)
        self.neighbour.commits(5)
        self.neighbour.took_s.clear()
        self._before_mib = self.node.memory_mib

    def connect(self, token: str) -> Client:
        self._clients.append(Client(self.cluster.endpoint, token=token, timeout_s=30.0))
        return self._clients[-1]

    def _bootstrap(self) -> str:
        command = [sys.executable, "-P", "-m", "iscp.cli.iscp", "token", "bootstrap"]
        command += ["--config", str(self.cluster.layout.config(NODE_ID))]
        return subprocess.run(
            command, env=os.environ | self.environ, capture_output=True, text=True, check=True, timeout=120
        ).stdout.strip()

    def _token(self, account: str) -> str:
        return self.admin.access.create_token("editor", ttl_s=3_600, account=account)[0]

    @property
    def node(self) -> AttackedNode:
        child = self.cluster.node.child
        return AttackedNode(self.cluster.endpoint, "", child.pid, lambda: child.poll() is None, self.cluster.node.log)

    def assert_unharmed(self, p95_s: float = APPLIED_P95_S) -> None:
        """The process lives and has not grown, the neighbour's commits were applied in time, and roots have held."""
        assert self.node.alive(), self.cluster.node.log.read_text()[-4_000:]
        assert self.node.memory_mib <= self._before_mib + MORE_MIB
        assert self.neighbour.p95_s() <= p95_s, sorted(self.neighbour.took_s)
        assert [each.name for each in self.elsewhere.iterdir()] == ["kept.txt"]
        assert Path(self.elsewhere, "kept.txt").read_text() == SECRET
        assert not [path for path in self.written_by_evil() if SECRET.encode() in path.read_bytes()]

    def written_by_evil(self) -> list[Path]:
        """The regular files below the hostile account's root, without what lies behind links, or is large."""
        found = [Path(at, name) for at, _, names in os.walk(self.roots["evil"]) for name in names]
        regular = [path for path in found if path.is_file() and not path.is_symlink()]
        return [path for path in regular if path.stat().st_size < 1 << 20]


def row(number: int) -> pa.Table:
    return pa.table({"id": [number], "text": [SECRET]})
