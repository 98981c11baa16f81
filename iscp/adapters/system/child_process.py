"""Child processes that end with their parent, whatever kills it.

Decides how a child is started, watched and ended; what it is, only its command says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

KILL_WAIT_S = 10.0
"""How long a killed process is waited for; then TimeoutExpired is raised."""

# Runs in between, because code between fork and exec is not safe beside threads (gRPC's are there). The death signal
# (PR_SET_PDEATHSIG = 1) survives exec; a parent that died before it was set is noticed.
_TIED_TO_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(sys.argv[2]))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process is gone")
os.execvp(sys.argv[3], sys.argv[3:])
"""


def tied_to_parent(command: Sequence[str], death_signal: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return how to start `command` as a child that gets `death_signal` when the thread that forked it ends.

    This works on Linux; elsewhere it is the command itself that has to notice.
    """
    return [sys.executable, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), str(int(death_signal)), *command]


def spawn(
    command: Sequence[str],
    log_file: Path,
    environ: Mapping[str, str],
    *,
    death_signal: signal.Signals = signal.SIGKILL,
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, so that Ctrl-C at a terminal goes to this process alone.

    Its output goes to the end of `log_file`, but its stdout to `stdout` where that is given. On Linux it gets
    `death_signal` when the thread that calls this ends: call it from the main thread.
    """
    with log_file.open("ab") as log:
        return subprocess.Popen(
            tied_to_parent(command, death_signal),
            stdin=subprocess.DEVNULL,
            stdout=log if stdout is None else stdout,
            stderr=log,
            env=dict(environ),
            start_new_session=True,
        )


def spawn_watched(
    command: Sequence[str], thread_name: str, **options: Any
) -> tuple[subprocess.Popen[bytes], threading.Event]:
    """Start `command` from whatever thread, with the options of Popen; the event is set when it has ended.

    The child lives no longer than this process: each has a thread of its own, which starts it and waits for its end, as
    Linux ends a child with the thread that forked it. Raises OSError.
    """
    born, ended = threading.Event(), threading.Event()
    children: list[subprocess.Popen[bytes]] = []
    faults: list[OSError] = []

    def live() -> None:
        try:
            children.append(subprocess.Popen(tied_to_parent(command), **options))
        except OSError as fault:
            faults.append(fault)
        finally:
            born.set()
        for child in children:
            child.wait()
        ended.set()

    threading.Thread(target=live, name=thread_name, daemon=True).start()
    born.wait()
    if faults:
        raise faults[0]
    return children[0], ended


def end(child: subprocess.Popen[bytes], wait_s: float) -> None:
    """Send SIGTERM, and SIGKILL after `wait_s`; return when the child is gone."""
    child.terminate()
    try:
        child.wait(wait_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(KILL_WAIT_S)  # bounded, as a process in the kernel's hands may not even take a SIGKILL


def how_it_ended(returncode: int) -> str:
    """Return `status 3` or `SIGKILL`, as the case may be."""
    return f"status {returncode}" if returncode >= 0 else signal.Signals(-returncode).name


def tail(file: Path, bytes_max: int = 2_000) -> str:
    """Return the end of a log; empty if there is none."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - bytes_max))
            return log.read().decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
