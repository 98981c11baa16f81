"""A process that is at work for jobs, and ends as its arguments say: `crash_program.py DIRECTORY HOW`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from iscp.model.job.job_row import JobRow
from iscp.model.values.ids import JobKey
from iscp.system.crash_ledger import CrashLedger


def row(name: str) -> JobRow:
    return JobRow(JobKey("default", "t1", name), f"id-{name}", "{}", "/lake/t1", "/lake/t1")


def abort_in_a_thread_of_c() -> None:
    libc = ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.abort, None)
    time.sleep(60)


def abort_in_a_pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(os.abort).result()


HOW: dict[str, Callable[[], object]] = {
    "abort": os.abort,
    "segv": lambda: ctypes.string_at(16),
    "library": abort_in_a_thread_of_c,
    "pool": abort_in_a_pool,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "exit": lambda: os._exit(1),
}


def main(directory: Path, how: str) -> None:
    """Jobs `a` and `b` are at work in one thread, of which `b` ends the process; `c` in another; `d` was."""
    ledger = CrashLedger(directory, time.time)
    ready = threading.Event()

    def other() -> None:
        with ledger.at_work([row("d")]):
            pass
        with ledger.at_work([row("c")]):
            ready.set()
            time.sleep(60)

    def own() -> None:
        with ledger.at_work([row("a"), row("b")]), ledger.at_work([row("b")]):
            HOW[how]()
            time.sleep(60)

    threading.Thread(target=other, daemon=True).start()
    ready.wait()
    if how == "main":
        os.abort()
    if how == "order":
        ledger.close()
        os._exit(0)
    thread = threading.Thread(target=own, daemon=True)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
