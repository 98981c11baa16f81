"""What lies where in the directory of `iscp up`, who holds it, and which ports its processes use."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iscp.adapters.system.free_port import free_port, is_free
from iscp.core.config import ADMIN_PORT
from iscp.core.errors import ConfigurationError, JobLogDamaged


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
