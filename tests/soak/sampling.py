"""What the processes of a soak take, and what lies in etcd and in the job log, read from outside again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from iscp.model.values.errors import IscpError
from tests.soak.rig import Rig, family

PAGE_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process at one time (Unix seconds). `role` is `node`, `jvm`, `analysis` (of users' SQL) or `etcd`."""

    at_s: float
    role: str
    whose: str
    pid: int
    memory_bytes: int
    handles: int
    threads: int


@dataclass(frozen=True, slots=True)
class StoreSample:
    """What is stored at one time; a count is -1 where it could not be read, as during a fault."""

    at_s: float
    etcd_keys: int
    etcd_bytes: int
    log_files: int
    log_bytes: int
    history_files: int
    history_bytes: int


def read_process(pid: int) -> tuple[int, int, int]:
    """Return memory (bytes, resident), handles and threads; raise OSError where it has ended."""
    place = Path(f"/proc/{pid}")
    resident = int((place / "statm").read_text().split()[1]) * PAGE_BYTES
    return resident, len(list((place / "fd").iterdir())), len(list((place / "task").iterdir()))


def role_of(pid: int, root: int, parent: int) -> str:
    """Return which of a node's processes it is: its JVM is its own child, that of the analysis a grandchild."""
    if pid == root:
        return "node"
    is_java = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"java")
    return "jvm" if is_java and parent == root else "analysis"


def sample_processes(rig: Rig) -> Iterator[ProcessSample]:
    at_s = time.time()
    roots = {node_id: member.pid for node_id, member in list(rig.members.items()) if member.alive}
    for node_id, root in roots.items():
        for pid, parent in family(root).items():
            with suppress(OSError):
                yield ProcessSample(at_s, role_of(pid, root, parent), node_id, pid, *read_process(pid))
    if rig.etcd.alive:
        with suppress(OSError):
            yield ProcessSample(at_s, "etcd", "etcd", rig.etcd.pid, *read_process(rig.etcd.pid))


def sample_stores(rig: Rig) -> StoreSample:
    at_s = time.time()
    try:
        keys = sum(rig.etcd_keys().values())
    except IscpError:
        keys = -1
    log, history = (rig.layout.job_log / name for name in ("iscp_log", "iscp_history"))
    return StoreSample(
        at_s,
        keys,
        tree_bytes(rig.layout.etcd),
        live_files(log),
        tree_bytes(log),
        live_files(history),
        tree_bytes(history),
    )


def live_files(table: Path) -> int:
    """Return how many data files the newest version has; -1 where that cannot be read at the moment."""
    try:
        return len(DeltaTable(str(table)).file_uris())
    except (DeltaError, OSError):
        return -1


def tree_bytes(root: Path) -> int:
    """Return the bytes of all files below `root` that are there all the while."""
    total = 0
    for path in root.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


class Sampler:
    """Samples every `interval_s` on a thread of its own, as long as its context lasts."""

    def __init__(self, rig: Rig, interval_s: float) -> None:
        self._rig, self._interval_s = rig, interval_s
        self._ends = threading.Event()
        self.processes: list[ProcessSample] = []
        self.stores: list[StoreSample] = []
        self.fault: Exception | None = None

    @contextmanager
    def sampling(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="sampler")
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join()
        if self.fault is not None:
            raise self.fault

    def _run(self) -> None:
        try:
            while True:
                self.processes += sample_processes(self._rig)
                self.stores.append(sample_stores(self._rig))
                if self._ends.wait(self._interval_s):
                    return
        except Exception as error:  # noqa: BLE001  (raised again at the end, on the thread that waits for it)
            self.fault = error
