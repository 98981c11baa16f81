"""The directory of `iscp up`: what lies where in it, who has it locked, and which ports its processes use."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from iscp.adapters.system.file_replace import private_directory
from iscp.adapters.system.free_port import free_port, is_free
from iscp.core.settings.config import ADMIN_PORT, PAGE_PORT
from iscp.core.values.errors import ConfigurationError, JobLogDamaged


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
