"""Has a process that may die read the files of a dataset before this process opens them by Lance.

A byte in a file of rows or of a segment may end the process that reads it: Lance reserves what a file claims, and
arrow-rs aborts on an error whose text has a zero byte. So whatever this process has not written itself, nor found to be
in order before, is read whole by another process first. If that dies of it, or cannot read it, the dataset is refused
by its name for as long as these files are as they are. A file is known by its inode, its size and the times of its last
changes, on S3 by its ETag, its size and when it was written; nobody who may write it can set all of these. What is
known outlives the process if it is given a file for it.

On S3 an opening costs one listing of each directory of the dataset in which its version has files, at most three at
once, and what this process has written one HEAD request for each file. A trial there may also fail for the storage,
whose files may be in order: it is repeated then, but counts among those of which there may be only so many.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from iscp.model.values.errors import TimedOut
from iscp.model.values.untrusted_values import first_line
from iscp.ports.admin import still_wanted
from iscp.storage import files
from iscp.storage.locations import DATA, INDICES, S3
from iscp.storage.regular_files import RefusedFileError
from iscp.storage.s3_settings import table_options
from iscp.system.child_process import ExpendableProcess, ProcessEndedError, give_way

log = logging.getLogger(__name__)

TRIALS_MAX = 8
"""Datasets that processes read at a time for this one; further ones wait for their turn."""

IDLE_MAX = 2
"""Of these processes, those that stay for the next trial."""

TRIAL_S = 60.0
"""Seconds that a trial may take besides those for its bytes; then it has failed."""

TRIAL_BYTES_PER_S = 10_000_000
"""Bytes that a trial reads in a second at the least."""

TRIAL_BYTES_PER_S_S3 = 2_000_000
"""The same where the files are on S3, which may be far away."""

TRIAL_MEMORY_BYTES = 4 * 1024**3
"""Address space of a process for trials, besides six times the bytes that it has to read."""

DEATHS_MAX = 5
"""Trials of one dataset that may fail within DEATHS_S; then it is refused without one, however its files change."""

DEATHS_S = 3_600.0
"""Seconds after which a failed trial does not count any more."""

LISTED_MAX = 100_000
"""Files in one directory of a dataset on S3, which are listed at each opening; one with more is not opened."""

HEADS_MAX = 16
"""Files that this process has written at once on S3, each of which is identified by a request of its own; where they
are more, their directories are listed."""

REQUESTS_AT_ONCE = 4
"""Such requests, or listings, that are made at the same time for one dataset."""

KNOWN_MAX = 500_000
"""Files that are known to be in order; of more those that were known first are tried again."""

KNOWN_BYTES_MAX = 128 * 1024**2
"""Bytes of the file with what is known; a longer one is begun again."""

REFUSED_MAX = 1_000
"""Datasets whose failed trials are remembered."""

_REMEDY = "Remove it, and have it rebuilt by `iscp-admin job resync`"
_LISTING_REMEDY = "Have old versions removed by the maintenance of its job, or remove what is none of the index's"
_PART_BYTES = 8 * 1024**2
_FEW_THREADS = ("LANCE_CPU_THREADS", "LANCE_IO_THREADS", "TOKIO_WORKER_THREADS", "OMP_NUM_THREADS")
_OF_S3 = ("AWS_", "ISCP_S3_")
_CACHE_BYTES_MIN = 256 * 1024**2
_MODULE = "iscp.storage.dataset_trial"

Stamp = tuple[int, ...]


class KnownFiles:
    """The files that are known to be in order, by their paths and stamps. Safe for threads."""

    def __init__(self, file: Path | None) -> None:
        """`file` has what processes before have found; none: nothing is kept."""
        self._file = file
        self._lock = threading.Lock()
        self._stamps: OrderedDict[str, Stamp] = OrderedDict()
        if file is not None:
            self._load(file)

    def unknown(self, stamps: Mapping[str, Stamp]) -> dict[str, Stamp]:
        """Return those of these files that are not known as they are now."""
        return {path: stamp for path, stamp in stamps.items() if self._stamps.get(path) != stamp}

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
                        path, *stamp = json.loads(line)
                        self._stamps[path] = tuple(stamp)
        except (OSError, UnicodeError) as error:
            log.info("trial.not_kept", extra={"error": str(error)})


class _RootTurn:
    """Whose turn it is to try one dataset: of many who open it at once one tries it for all."""

    def __init__(self) -> None:
        self.place = threading.Semaphore()


class _Failure(NamedTuple):
    """A trial of files has failed at `at_s`; unless it `is_sure`, they may be in order."""

    at_s: float
    stamps: Mapping[str, Stamp]
    why: str
    is_sure: bool


class UnsureTrialError(Exception):
    """A trial has failed, maybe for the storage and not for what the files have."""


class DatasetTrial:
    """Tries datasets, each by one caller at a time. Safe for threads; a trial occupies its caller's."""

    def __init__(self, known: KnownFiles) -> None:
        self._known = known
        self._places = threading.BoundedSemaphore(TRIALS_MAX)
        self._lock = threading.Lock()
        self._turns: WeakValueDictionary[str, _RootTurn] = WeakValueDictionary()
        self._idle: list[tuple[dict[str, str], ExpendableProcess]] = []
        self._failed: OrderedDict[str, list[_Failure]] = OrderedDict()

    def add_written(self, root: str, names: Iterable[str]) -> None:
        """Take files of a dataset that this process has just written for known; names are as `require` has them.

        Raises OSError where S3 does not say what they are.
        """
        self._known.add(_stamps_of_few(root, list(names)))

    def require(self, root: str, version: int, names: Sequence[str]) -> None:
        """Raise RefusedFileError unless the files of a dataset's version, by their names in it, are in order.

        Of a segment, its directory is named. Raises TimedOut where no process is free, Canceled, and OSError where the
        storage does not say which files these are, or does not give them.
        """
        unknown = self._known.unknown(_stamps(root, names))
        if not unknown:
            return
        with self._lock:
            turn = self._turns.setdefault(root, _RootTurn())
        with self._hold_place(turn.place, root), self._hold_place(self._places, root):
            unknown = self._known.unknown(unknown)  # who was before may have tried them
            if not unknown:
                return
            self._refuse_failed(root, unknown)
            try:
                fault = self._fault_of(root, version, unknown)
            except UnsureTrialError as error:
                self._note_failure(root, unknown, str(error), is_sure=False)
                self._refuse_failed(root, unknown)
                raise OSError(errno.EIO, f"it cannot be tried now: {error}") from error
            if fault:
                self._note_failure(root, unknown, fault, is_sure=True)
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
        """Return what came of reading these files in another process; empty: they are in order.

        Raises UnsureTrialError where that may be due to S3.
        """
        sizes = {path: stamp[-1] for path, stamp in unknown.items()}
        total, remote = sum(sizes.values()), root.startswith(S3)
        access = {name: value for name, value in os.environ.items() if name.startswith(_OF_S3)}
        process = self._take_process(access)
        answered = False
        try:
            process.send({"root": root, "version": version, "sizes": sizes})
            wait_s = TRIAL_S + total / (TRIAL_BYTES_PER_S_S3 if remote else TRIAL_BYTES_PER_S)
            answer = json.loads(process.receive(wait_s, still_wanted))
            answered = True
        except ProcessEndedError:
            return "reading its files ends a process"
        except TimedOut as error:
            if remote:
                raise UnsureTrialError("reading its files takes too long") from error
            return "reading its files takes too long"
        finally:
            with self._lock:
                keep = answered and len(self._idle) < IDLE_MAX
                if keep:
                    self._idle.append((access, process))
            if not keep:
                process.kill()
                process.close()
        if not_given := str(answer["not_given"]):
            raise UnsureTrialError(f"S3 does not give its files ({not_given})")
        return str(answer["fault"])

    def _take_process(self, access: dict[str, str]) -> ExpendableProcess:
        """Return a process that reaches S3 as this one does now: it has the environment of when it was started."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        if idle is not None and idle[0] == access and idle[1].alive():
            return idle[1]
        if idle is not None:
            idle[1].kill()
            idle[1].close()
        return ExpendableProcess.start(_MODULE, "the trial of a dataset", "iscp-dataset-trial", {})

    def _note_failure(self, root: str, unknown: dict[str, Stamp], why: str, *, is_sure: bool) -> None:
        log.error("index.trial_failed", extra={"index": root, "why": why, "files": sorted(unknown)[:10]})
        with self._lock:
            failed = self._failed.pop(root, [])
            self._failed[root] = [*failed[1 - DEATHS_MAX :], _Failure(time.monotonic(), unknown, why, is_sure)]
            if len(self._failed) > REFUSED_MAX:
                self._failed.popitem(last=False)

    def _refuse_failed(self, root: str, unknown: Mapping[str, Stamp]) -> None:
        """Raise RefusedFileError if these files have failed before, or others of the dataset too often."""
        with self._lock:
            failed = [each for each in self._failed.get(root, ()) if time.monotonic() < each.at_s + DEATHS_S]
        for each in failed:
            if (each.is_sure and each.stamps.items() <= unknown.items()) or len(failed) >= DEATHS_MAX:
                raise RefusedFileError(root, f"is not opened: {each.why}. {_REMEDY}")


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


def _stamps(root: str, names: Sequence[str]) -> dict[str, Stamp]:
    """Return the paths of those of a version's files that are there, and their stamps. Raises OSError."""
    return _listed_stamps(root, names) if root.startswith(S3) else dict(_stamps_here(root, names))


def _stamps_of_few(root: str, names: Sequence[str]) -> dict[str, Stamp]:
    """Return the same for a few of a version's files."""
    if not root.startswith(S3) or len(names) > HEADS_MAX:
        return _stamps(root, names)

    def found(name: str) -> dict[str, Stamp]:
        path = f"{root}/{name}"
        if name.startswith(f"{INDICES}/"):
            return {f"{path}/{each}": stamp for each, stamp in _listed(path).items()}
        stamp = files.stamp(path)
        return {path: _of_seconds(stamp)} if stamp else {}

    return {path: stamp for each in _at_once(found, names) for path, stamp in each.items()}


def _listed_stamps(root: str, names: Sequence[str]) -> dict[str, Stamp]:
    """Return the same for files on S3, by one listing for each directory of the dataset that is named."""
    folders, wanted = sorted({name.partition("/")[0] for name in names}), frozenset(names)
    found = {}
    for folder, listed in zip(folders, _at_once(lambda folder: _listed(f"{root}/{folder}"), folders), strict=True):
        for name, stamp in listed.items():
            named = name.partition("/")[0] if folder == INDICES else name
            if f"{folder}/{named}" in wanted:
                found[f"{root}/{folder}/{name}"] = stamp
    return found


def _listed(folder: str) -> dict[str, Stamp]:
    listed = files.first_stamps(folder, LISTED_MAX + 1)
    if len(listed) > LISTED_MAX:
        raise RefusedFileError(folder, f"has more than {LISTED_MAX} files. {_LISTING_REMEDY}")
    return {name: _of_seconds(stamp) for name, stamp in listed.items()}


def _of_seconds(stamp: Stamp) -> Stamp:
    """Return a stamp as a HEAD request and a listing both show it: some stores have parts of seconds in the latter."""
    identity, written_ns, size = stamp
    return identity, written_ns // 10**9, size


def _at_once(call: Callable[[str], dict[str, Stamp]], names: Sequence[str]) -> list[dict[str, Stamp]]:
    """Return what `call` returns for each of these names; it makes a request to S3."""
    if len(names) <= 1:
        return [call(name) for name in names]
    with ThreadPoolExecutor(min(len(names), REQUESTS_AT_ONCE), "iscp-dataset-list") as pool:
        return list(pool.map(call, names))


def _stamps_here(root: str, names: Iterable[str]) -> Iterator[tuple[str, Stamp]]:
    for path in _paths(root, names):
        with suppress(FileNotFoundError, NotADirectoryError):
            found = os.lstat(path)
            yield path, (found.st_ino, found.st_ctime_ns, found.st_mtime_ns, found.st_size)


def _paths(root: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        path = f"{root}/{name}"
        if not name.startswith(f"{INDICES}/"):
            yield path
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from (f"{path}/{each}" for each in os.listdir(path))


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
            connection.send_bytes(json.dumps(_answer(**request)).encode())


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


def _answer(root: str, version: int, sizes: Mapping[str, int]) -> dict[str, str]:
    """Read the files, and return why they cannot be read, or why S3 does not give them."""
    total = sum(sizes.values())
    try:
        with _memory(TRIAL_MEMORY_BYTES + 6 * total):
            _read(root, version, frozenset(sizes), total)
    except BaseException as error:  # noqa: BLE001  (Lance's panics are no exceptions)
        why = f"its files cannot be read ({first_line(error)[:200]})"
        return {"fault": why, "not_given": _not_given(sizes) if root.startswith(S3) else ""}
    return {"fault": "", "not_given": ""}


def _not_given(sizes: Mapping[str, int]) -> str:
    """Return why S3 does not give all bytes of these files; empty: it does, so that the fault is in what they have."""
    try:
        for path, size in sizes.items():
            for begin in range(0, size, _PART_BYTES):
                files.read_part(path, begin, _PART_BYTES)
    except OSError as error:
        return first_line(error)[:200] or "no reason is given"
    return ""


def _read(root: str, version: int, paths: frozenset[str], size: int) -> None:
    import lance

    # What a segment becomes in memory has to fit into the cache.
    cache = _CACHE_BYTES_MIN + 3 * size
    dataset = lance.dataset(
        root,
        version=version,
        index_cache_size_bytes=cache,
        metadata_cache_size_bytes=0,
        storage_options=table_options(root),
    )
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
