"""The cluster of a soak: real nodes and a real etcd, each node on links of its own, with all tables and jobs."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings
from iscp.model.api.api_requests import JobView
from iscp.model.values.errors import TemporaryError
from iscp.system.threads import SystemClock
from tests.e2e.harness import Process
from tests.e2e.many_nodes import ManyNodes
from tests.soak.links import Links
from tests.soak.soak_plan import Plan
from tests.soak.writing import first_rows

ROOT = Path(__file__).parents[2]
REGISTERED_AT_ONCE = 250
WRITER_STOP_S = 60.0
ANSWER_WAIT_S = 120.0
"""How long a cluster may give no answer to one request, whatever happens to it; then the soak fails."""

COMPACT_COMMITS = 100
"""Commits of the job log after which it is compacted: fewer than by default, so that ten minutes have some of them."""

HEAP_MIB = 768

ELDER = "iscp-0"
"""The node that is never killed, so that what grows in a node is seen over the whole run."""

ENVIRON = {
    "ISCP_LOG__COMPACT_COMMITS": str(COMPACT_COMMITS),
    "ISCP_BACKOFF__QUARANTINE_AFTER": "1000",
    "ISCP_SPARK__DRIVER_MEMORY_MB": str(HEAP_MIB),
}


@dataclass
class Rig(ManyNodes):
    """As ManyNodes, where each node reaches etcd, and is reached by the others, through a link."""

    links: Links = field(default_factory=Links)
    _addresses: dict[str, dict[str, str]] = field(default_factory=dict)

    def lay_links(self) -> None:
        """Once, before the start; `links` has to be entered."""
        for number in range(self.count):
            node_id = f"iscp-{number}"
            etcd = self.links.relay(f"{node_id} to etcd", self.ports.etcd_client)
            node = self.links.relay(f"to {node_id}", self.ports.nodes[number])
            self._addresses[node_id] = {
                "ISCP_ETCD__ENDPOINTS": f"127.0.0.1:{etcd}",
                "ISCP_ADVERTISE": f"127.0.0.1:{node}",
            }

    def begin(self, node_id: str, **environ: str) -> None:
        super().begin(node_id, **ENVIRON, **self._addresses[node_id], **environ)

    def cut_off(self, node_id: str) -> None:
        """Neither etcd nor the others reach the node any more, nor it etcd; what it calls itself still arrives."""
        self.links.cut(f"{node_id} to etcd")
        self.links.cut(f"to {node_id}")

    def reconnect(self, node_id: str) -> None:
        self.links.heal(f"{node_id} to etcd")
        self.links.heal(f"to {node_id}")

    def limit_files(self, process: Process, bytes_max: int) -> None:
        """No file may grow beyond `bytes_max` in the process and its children: each write to the disk fails."""
        for pid in family(process.pid):
            with suppress(ProcessLookupError):
                hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (bytes_max, hard))

    def make_tables(self, plan: Plan, seed: int) -> None:
        for number, table in enumerate(plan.tables):
            self.table(table.name, first_rows(table, random.Random(f"{seed} {number}")))

    def register(self, plan: Plan) -> None:
        requests = [job.request(str(self.lake), self.derived) for job in plan.jobs]
        for first in range(0, len(requests), REGISTERED_AT_ONCE):
            some = requests[first : first + REGISTERED_AT_ONCE]
            results = insist(lambda some=some: self.client.register_many(some))  # type: ignore[misc]
            assert len(results) == len(some)

    @contextmanager
    def writing(self, plan: Plan, pace_per_s: float, seed: int) -> Iterator[list[int]]:
        """The tables change all the time; afterwards what is yielded has how many commits there were."""
        tables = json.dumps([asdict(table) for table in plan.tables])
        command = [sys.executable, "-m", "tests.soak.writing", str(self.lake), tables, str(pace_per_s), str(seed)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
            commits: list[int] = []
            try:
                yield commits
                assert writer.poll() is None, "the writer has ended by itself"
            finally:
                writer.terminate()
                said, _ = writer.communicate(timeout=WRITER_STOP_S)
            commits.append(int(said))

    def every_job(self) -> list[JobView]:
        found: list[JobView] = insist(lambda: self.client.jobs(limit=1_000_000))
        return found

    def etcd_keys(self) -> dict[str, int]:
        """How many keys there are now, by the first part of their names below the cluster's."""
        counts: dict[str, int] = {}
        settings = EtcdSettings((f"127.0.0.1:{self.ports.etcd_client}",), timeout_s=2.0)
        with EtcdClient(settings, SystemClock()) as client:
            for item in client.list_prefix("/iscp/").items:
                name = "/".join(item.key.split("/")[3:4])
                counts[name] = counts.get(name, 0) + 1
        return counts


def insist(call: Callable[[], Any]) -> Any:
    """Return what `call` returns; repeat it while the cluster cannot answer, as an application would."""
    until_s = time.monotonic() + ANSWER_WAIT_S
    while True:
        try:
            return call()
        except TemporaryError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.5)


def family(pid: int) -> dict[int, int]:
    """Return the process and all its descendants that live, each with its parent."""
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with suppress(OSError):
                state, parent = (directory / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(directory.name))
    found, ahead = {pid: 0}, [pid]
    while ahead:
        parent_pid = ahead.pop()
        of_it = children.get(parent_pid, [])
        found |= dict.fromkeys(of_it, parent_pid)
        ahead += of_it
    return found
