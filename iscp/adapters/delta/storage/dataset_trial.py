"""Has a process that may die read the files of a dataset before this process opens them by Lance.

A byte in a file of rows or of a segment may end the process that reads it: Lance reserves what a file claims, and
arrow-rs aborts on an error whose text has a zero byte. So whatever this process has not written itself, nor found to be
in order before, is read whole by another process first. If that dies of it, or cannot read it, the dataset is refused
by its name for as long as these files are as they are. A file is known by its inode, its size and the times of its last
changes, which nobody who may write into it can set; what is known outlives the process if it is given a file for it.

A dataset on S3 is not tried.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from iscp.adapters.delta.storage.dataset_names import DATA, INDICES
from iscp.adapters.delta.storage.locations import S3
from iscp.adapters.delta.storage.regular_files import RefusedFileError
from iscp.adapters.system.expendable_process import ExpendableProcess, ProcessEndedError, give_way
from iscp.core.values.errors import TimedOut
from iscp.core.values.untrusted_values import first_line
from iscp.ports.access.callers import still_wanted

log = logging.getLogger(__name__)

TRIALS_MAX = 8
"""Datasets that processes read at a time for this one; further ones wait for their turn."""

IDLE_MAX = 2
"""Of these processes, those that stay for the next trial."""

TRIAL_S = 60.0
"""Seconds that a trial may take besides those for its bytes; then it has failed."""

TRIAL_BYTES_PER_S = 10_000_000
"""Bytes that a trial reads in a second at the least."""

TRIAL_MEMORY_BYTES = 4 * 1024**3
"""Address space of a process for trials, besides six times the bytes that it has to read."""

DEATHS_MAX = 5
"""Trials of one dataset that may fail within DEATHS_S; then it is refused without one, however its files change."""

DEATHS_S = 3_600.0
"""Seconds after which a failed trial does not count any more."""

KNOWN_MAX = 500_000
"""Files that are known to be in order; of more those that were known first are tried again."""

KNOWN_BYTES_MAX = 128 * 1024**2
"""Bytes of the file with what is known; a longer one is begun again."""

REFUSED_MAX = 1_000
"""Datasets whose failed trials are remembered."""

_REMEDY = "Remove it, and have it rebuilt by `iscp-admin job resync`"
_FEW_THREADS = ("LANCE_CPU_THREADS", "LANCE_IO_THREADS", "TOKIO_WORKER_THREADS", "OMP_NUM_THREADS")
_CACHE_BYTES_MIN = 256 * 1024**2
_MODULE = "iscp.adapters.delta.storage.dataset_trial"

Stamp = tuple[int, int, int, int]


class KnownFiles:
    """The files that are known to be in order, by their paths and stamps. Safe for threads."""

    def __init__(self, file: Path | None) -> None:
        """`file` has what processes before have found; none: nothing is kept."""
        self._file = file
        self._lock = threading.Lock()
        self._stamps: OrderedDict[str, Stamp] = OrderedDict()
        if file is not None:
            self._load(file)

    def unknown(self, paths: Iterable[str]) -> dict[str, Stamp]:
        """Return the files among these that are not known as they are now, with their stamps; those that are gone are
        left out, as Lance says so.
        """
        found = {}
        for path in paths:
            if (stamp := _stamp(path)) is not None and self._stamps.get(path) != stamp:
                found[path] = stamp
        return found

    def add(self, stamps: Mapping[str, Stamp]) -> None:
        with self._lock:
            self._stamps.update(stamps)
            while len(self._stamps) > KNOWN_MAX:
                self._stamps.popitem(last=False)
        if self._file is None or not stamps:
            return
        lines = "".join(f"{json.dumps([path, *stamp])}\n" for path, stamp in stamps.items())
        try:
            with self._file.open("a") as file:
                file.write(lines)
        except OSError as error:  # then they are tried again by the next process
            log.info("trial.not_kept", extra={"error": str(error)})

    def _load(self, file: Path) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileNotFoundError):
                if file.stat().st_size > KNOWN_BYTES_MAX:
                    file.unlink()
                    return
                for line in file.read_text().splitlines():
                    with suppress(ValueError, TypeError):
                        path, inode, changed_ns, modified_ns, size = json.loads(line)
                        self._stamps[path] = inode, changed_ns, modified_ns, size
        except (OSError, UnicodeError) as error:
            log.info("trial.not_kept", extra={"error": str(error)})


class _RootTurn:
    """Whose turn it is to try one dataset: of many who open it at once one tries it for all."""

    def __init__(self) -> None:
        self.place = threading.Semaphore()


class DatasetTrial:
    """Tries datasets, each by one caller at a time. Safe for threads; a trial occupies its caller's."""

    def __init__(self, known: KnownFiles) -> None:
        self._known = known
        self._places = threading.BoundedSemaphore(TRIALS_MAX)
        self._lock = threading.Lock()
        self._turns: WeakValueDictionary[str, _RootTurn] = WeakValueDictionary()
        self._idle: list[ExpendableProcess] = []
        self._failed: OrderedDict[str, list[tuple[float, dict[str, Stamp], str]]] = OrderedDict()

    def add_written(self, paths: Iterable[str]) -> None:
        """Take files that this process has just written for known."""
        stamps = ((path, _stamp(path)) for path in paths if not os.path.isdir(path))
        self._known.add({path: stamp for path, stamp in stamps if stamp is not None})

    def require(self, root: str, version: int, names: Sequence[str]) -> None:
        """Raise RefusedFileError unless the files of a dataset's version, by their names in it, are in order.

        Of a segment, its directory is named. Raises TimedOut where no process is free, and Canceled.
        """
        if not self._known.unknown(_paths(root, names)):
            return
        with self._lock:
            turn = self._turns.setdefault(root, _RootTurn())
        with self._hold_place(turn.place, root), self._hold_place(self._places, root):
            unknown = self._known.unknown(_paths(root, names))  # who was before may have tried them
            if not unknown:
                return
            self._refuse_failed(root, unknown)
            if fault := self._fault_of(root, version, unknown):
                self._note_failure(root, unknown, fault)
                self._refuse_failed(root, unknown)
            self._known.add(unknown)

    @contextmanager
    def _hold_place(self, places: threading.Semaphore, root: str) -> Iterator[None]:
        if not places.acquire(timeout=TRIAL_S):
            raise TimedOut(f"{root} could not be tried within {TRIAL_S:g} s: others are", remedy="Retry later")
        try:
            yield
        finally:
            places.release()

    def _fault_of(self, root: str, version: int, unknown: Mapping[str, Stamp]) -> str:
        """Return what came of reading these files in another process; empty: they are in order."""
        total = sum(stamp[-1] for stamp in unknown.values())
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None or not process.alive():
            process = ExpendableProcess.start(_MODULE, "the trial of a dataset", "iscp-dataset-trial", {})
        answered = False
        try:
            request = {"root": root, "version": version, "paths": list(unknown), "bytes": total}
            process.send(request)
            answer = json.loads(process.receive(TRIAL_S + total / TRIAL_BYTES_PER_S, still_wanted))
            answered = True
            return str(answer["fault"])
        except ProcessEndedError:
            return "reading its files ends a process"
        except TimedOut:
            return "reading its files takes too long"
        finally:
            with self._lock:
                keep = answered and len(self._idle) < IDLE_MAX
                if keep:
                    self._idle.append(process)
            if not keep:
                process.kill()
                process.close()

    def _note_failure(self, root: str, unknown: dict[str, Stamp], fault: str) -> None:
        log.error("index.trial_failed", extra={"index": root, "why": fault, "files": sorted(unknown)[:10]})
        with self._lock:
            failed = self._failed.pop(root, [])
            self._failed[root] = [*failed[1 - DEATHS_MAX :], (time.monotonic(), unknown, fault)]
            if len(self._failed) > REFUSED_MAX:
                self._failed.popitem(last=False)

    def _refuse_failed(self, root: str, unknown: Mapping[str, Stamp]) -> None:
        """Raise RefusedFileError if these files have failed before, or others of the dataset too often."""
        with self._lock:
            failed = [each for each in self._failed.get(root, ()) if time.monotonic() < each[0] + DEATHS_S]
        for _, stamps, fault in failed:
            if stamps.items() <= unknown.items() or len(failed) >= DEATHS_MAX:
                raise RefusedFileError(root, f"is not opened: {fault}. {_REMEDY}")


class _OfProcess:
    """The choice of this process: it tries datasets, or not, as its session of Lance is one for all."""

    wanted = False
    file: Path | None = None


def try_datasets(file: Path | None) -> None:
    """Have this process try datasets from now on, before it opens them; `file` is as KnownFiles has it."""
    _OfProcess.wanted, _OfProcess.file = True, file
    _made_trial.cache_clear()


def try_datasets_as_user() -> None:
    """Have a process of a user's try datasets, with what is known below the user's own directory of caches.

    A process that tries them already goes on as it does.
    """
    if _OfProcess.wanted:
        return
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try_datasets(Path(caches) / "iscp" / "index-files")


def current_trial() -> DatasetTrial | None:
    """Return what tries datasets for this process; None where it opens them as they are."""
    return _made_trial() if _OfProcess.wanted else None


@cache
def _made_trial() -> DatasetTrial:
    file = _OfProcess.file
    # Another release of Lance may read what one before did not.
    return DatasetTrial(KnownFiles(file and file.with_name(f"{file.name}-{metadata.version('pylance')}")))


def _paths(root: str, names: Iterable[str]) -> Iterator[str]:
    if root.startswith(S3):
        return
    for name in names:
        path = f"{root}/{name}"
        if not name.startswith(f"{INDICES}/"):
            yield path
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from (f"{path}/{each}" for each in os.listdir(path))


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size


# --- in the other process -----------------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    logging.disable()
    give_way()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(dict.fromkeys(_FEW_THREADS, "2"))  # each takes address space
    with Connection(descriptor) as connection:
        connection.recv_bytes()
        while True:
            try:
                request = json.loads(connection.recv_bytes())
            except EOFError:
                return
            connection.send_bytes(json.dumps({"fault": _fault(request)}).encode())


@contextmanager
def _memory(more: int) -> Iterator[None]:
    """Let this process have so many bytes of address space more than now."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    bound = used + more
    resource.setrlimit(resource.RLIMIT_AS, (bound if most == resource.RLIM_INFINITY else min(bound, most), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _fault(request: Mapping[str, Any]) -> str:
    """Read the files, and return why they cannot be read."""
    try:
        with _memory(TRIAL_MEMORY_BYTES + 6 * request["bytes"]):
            _read(request["root"], request["version"], frozenset(request["paths"]), request["bytes"])
    except BaseException as error:  # noqa: BLE001  (Lance's panics are no exceptions)
        return f"its files cannot be read ({first_line(error)[:200]})"
    return ""


def _read(root: str, version: int, paths: frozenset[str], size: int) -> None:
    import lance

    # What a segment becomes in memory has to fit into the cache.
    cache = _CACHE_BYTES_MIN + 3 * size
    dataset = lance.dataset(root, version=version, index_cache_size_bytes=cache, metadata_cache_size_bytes=0)
    wanted = []
    for each in dataset.get_fragments():
        about = each.metadata
        names = [f"{DATA}/{file.path}" for file in about.files]
        names += [] if about.deletion_file is None else [about.deletion_file.path(each.fragment_id)]
        if not paths.isdisjoint(f"{root}/{name}" for name in names):
            wanted.append(each)
    if wanted:
        for batch in dataset.scanner(fragments=wanted, batch_size=1_024, with_row_address=True).to_batches():
            batch.validate(full=True)
    folders = {path.rsplit("/", 1)[0] for path in paths}
    for index in dataset.describe_indices():
        if not folders.isdisjoint(f"{root}/{INDICES}/{segment.uuid}" for segment in index.segments):
            dataset.prewarm_index(index.name)


if __name__ == "__main__":
    main(int(sys.argv[1]))
