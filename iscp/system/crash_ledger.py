"""Notes which jobs each thread works on, and reads after a crash of the process whose work it was.

Four files in a directory that outlives the process: `work`, to which each thread appends what it begins and what it
ends; `crash`, to which Python's fault handler writes when a signal of a crash ends the process, from within C and
without memory of its own; `running`, which names the machine's start and is removed where the process ends in order;
`deaths.json`, what came of these at the starts since. These files are there as long as the machine is, without a sync:
only the process dies. SIGKILL leaves nothing in `crash`; where `running` is there, and the machine has not been started
since, the process was killed.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import (
    KILLED,
    AtWork,
    Crash,
    Deaths,
    counted_together,
    deaths_of_account,
    parse_crash,
    suspects,
)
from iscp.ports.engine import NO_BOARD, DeathBoard
from iscp.system.small_files import private_directory, replace_file

log = logging.getLogger(__name__)

WORK_BYTES_MAX = 1024**2
"""Bytes of the file of what is at work; then it is written again, with what still is."""

DUMP_BYTES_MAX = 256 * 1024
"""Bytes that are read of what the fault handler wrote; the stacks of further threads are left out."""

JOBS_MAX = 1_000
"""Jobs whose deaths are remembered; of more those whose last one is the longest ago are forgotten."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FORMAT = 1
_LIBRARIES = ("iscp", "deltalake", "pyarrow", "pylance")
"""Libraries whose new version has every job tried again."""


class CrashLedger:
    """Port NodeDeaths. Closed when the process ends in order."""

    def __init__(self, directory: Path, now_s: Callable[[], float]) -> None:
        """Reads what the last process left; `now_s` gives Unix seconds. Raises OSError."""
        private_directory(directory)
        self._work, self._deaths_file = directory / "work", directory / "deaths.json"
        self._running = directory / "running"
        self._lock, self._sharing = threading.Lock(), threading.Lock()
        self._threads: dict[int, list[str]] = {}
        self._versions = [_version(name) for name in _LIBRARIES]
        self._deaths = _read_deaths(self._deaths_file, self._versions)
        self._now_s = now_s
        self._board: DeathBoard = NO_BOARD
        self._count_last(directory / "crash", now_s())
        self._fd = _open_empty(self._work)
        self._size = 0
        self._dump: IO[bytes] = (directory / "crash").open("wb")
        faulthandler.enable(self._dump, all_threads=True)
        self._running.write_text(_machine_start())

    def close(self) -> None:
        faulthandler.disable()
        self._dump.close()
        os.close(self._fd)
        with suppress(OSError):  # of a full disk, or one that is gone: then it counts as killed
            self._running.unlink(missing_ok=True)

    @contextmanager
    def at_work(self, rows: Sequence[JobRow]) -> Iterator[None]:
        thread = threading.get_ident()
        jobs = {row.job_id: (row.key.account, row.key.job_name) for row in rows}
        begun = json.dumps([thread, rows[0].table_uri if rows else "", jobs])
        self._note(thread, begun)
        try:
            yield
        finally:
            self._note(thread, None)

    def of(self, row: JobRow) -> Deaths:
        own = self._deaths.get(row.job_id, Deaths())
        elsewhere = [found for each in self._board.others() if (found := each.get(row.job_id)) is not None]
        return counted_together(row, own, elsewhere) if elsewhere else own

    def of_account(self, account: str) -> int:
        known = (each for of_node in (self._deaths, *self._board.others()) for each in of_node.values())
        return deaths_of_account(account, known, self._now_s())

    def forget(self, job_id: str) -> None:
        self._change(job_id, None)

    def forgive(self, job_id: str, reported_at_s: float) -> None:
        self._change(job_id, Deaths(forgiven_at_s=reported_at_s))

    def share(self, board: DeathBoard) -> None:
        self._board = board
        self._share()

    # --- while it runs ------------------------------------------------------------------------------------------

    def _note(self, thread: int, begun: str | None) -> None:
        """Append what a thread works on from now on, or, for None, what it was at before."""
        with self._lock:
            of_thread = self._threads.setdefault(thread, [])
            if begun is None:
                of_thread.pop()
            else:
                of_thread.append(begun)
            now = of_thread[-1] if of_thread else json.dumps([thread, "", {}])
            if not of_thread:
                del self._threads[thread]
            with suppress(OSError):  # a full disk: then a crash is not counted
                self._append(now + "\n")

    def _append(self, line: str) -> None:
        if not self._threads or self._size > WORK_BYTES_MAX:
            line = "".join(f"{stack[-1]}\n" for stack in self._threads.values())
            os.ftruncate(self._fd, 0)
            self._size = 0
        self._size += os.write(self._fd, line.encode()) if line else 0

    def _change(self, job_id: str, deaths: Deaths | None) -> None:
        with self._lock:
            changed = {**self._deaths, job_id: deaths} if deaths else self._without(job_id)
            if changed == self._deaths:
                return
            self._deaths = {name: each for name, each in changed.items() if each is not None}
            try:
                self._save()
            except OSError as error:
                log.warning("node.deaths_not_saved", extra={"error": str(error)})
        self._share()  # which may wait for etcd, and holds up no work that begins

    def _share(self) -> None:
        with self._sharing:  # who comes last puts the newest
            self._board.put(self._deaths)

    def _without(self, job_id: str) -> dict[str, Deaths]:
        return {name: each for name, each in self._deaths.items() if name != job_id}

    def _save(self) -> None:
        jobs = {job_id: asdict(each) for job_id, each in self._deaths.items()}
        document = {"format": _FORMAT, "versions": self._versions, "jobs": jobs}
        replace_file(self._deaths_file, json.dumps(document).encode())

    # --- at the start -------------------------------------------------------------------------------------------

    def _count_last(self, dump: Path, now_s: float) -> None:
        """Count the death of the last process, if it crashed or was killed, for the jobs that were at work."""
        crash = parse_crash(_beginning(dump, DUMP_BYTES_MAX))
        if crash is None:
            began = _beginning(self._running, DUMP_BYTES_MAX)
            if not began or began != _machine_start():
                return
            crash = Crash(KILLED)
        found = suspects(crash, _read_work(self._work))
        jobs = {job_id: names for each in found for job_id, names in each.jobs.items()}
        for job_id, (account, _) in jobs.items():
            before = self._deaths.get(job_id, Deaths())
            kills = crash.signal == KILLED
            counted = {"kills": before.kills + 1} if kills else {"count": before.count + 1}
            self._deaths[job_id] = replace(before, at_s=now_s, signal=crash.signal, account=account, **counted)
        latest = sorted(self._deaths.items(), key=lambda item: item[1].at_s)[-JOBS_MAX:]
        self._deaths = dict(latest)
        self._save()
        _log_crash(crash, found, jobs)


def _log_crash(crash: Crash, found: Iterable[AtWork], jobs: Mapping[str, tuple[str, str]]) -> None:
    about = {
        "signal": crash.signal,
        "tables": sorted({each.table_uri for each in found}),
        "jobs": sorted(name for _, name in jobs.values()),
        "accounts": sorted({account for account, _ in jobs.values()}),
    }
    log.error("node.crashed", extra={**about, "job_ids": sorted(jobs), "stack": crash.stack})


def _read_work(file: Path) -> list[AtWork]:
    """Return what each thread was at last; a line that was not written to its end is left out."""
    found: dict[int, AtWork] = {}
    for line in _beginning(file, 2 * WORK_BYTES_MAX).splitlines():
        with suppress(ValueError, TypeError, AttributeError):
            thread, table_uri, jobs = json.loads(line)
            found[thread] = AtWork(thread, table_uri, {job_id: (of, name) for job_id, (of, name) in jobs.items()})
    return [each for each in found.values() if each.jobs]


def _read_deaths(file: Path, versions: Sequence[str]) -> dict[str, Deaths]:
    try:
        document: Any = json.loads(_beginning(file, WORK_BYTES_MAX))
        if document["format"] != _FORMAT or document["versions"] != versions:
            return {}
        return {job_id: Deaths(**each) for job_id, each in document["jobs"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _beginning(file: Path, bytes_max: int) -> str:
    """Return the beginning of the file, empty where there is none."""
    try:
        with file.open("rb") as opened:
            return opened.read(bytes_max).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _machine_start() -> str:
    """Return what names the start of this machine; empty where it has no name, and nothing counts as killed then."""
    try:
        return _BOOT_ID.read_text()
    except OSError:
        return ""


def _open_empty(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
