"""Child processes that end with their parent, whatever kills it, and what a process knows of itself: whether it is a
fork, and the memory that it has.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any, ClassVar

from iscp.model.values.errors import Canceled, EngineError, InvalidRequest, TimedOut

# --- children ---------------------------------------------------------------------------------------------------------
# This part decides how a child is started, watched and ended; what the child is, only its command says.

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


# --- processes that may die of what they are given --------------------------------------------------------------------
# Such a process is started, given requests, and killed. Whatever parses or runs what a tenant wrote, and may be ended
# by it, runs in one. The process has one Connection, over which come first what it needs to begin, and then one request
# after another, as JSON; its answers are no pickles, as the process may do what that tenant wants.

ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of one answer; more counts as the process's end."""

POLL_S = 0.05
"""Pause between two checks whether whoever made a request still waits for its answer."""

NICENESS = 5
"""The niceness by which such a process gives way to all else on its machine."""

_FIRST_TO_BE_KILLED = "1000"


class ProcessEndedError(Exception):
    """The process has ended, and not because it was to."""


class ExpendableProcess:
    """The process. It is not safe for threads, but for `kill`. It ends with this process, as its children do with it.

    `what` is how errors call what it does.
    """

    def __init__(self, child: Popen[bytes], ended: threading.Event, connection: Connection, what: str) -> None:
        self._child = child
        self._ended = ended
        self._connection = connection
        self._what = what
        self.ready = False
        """True once it has answered for the first time."""

    @classmethod
    def start(
        cls, module: str, what: str, thread_name: str, first: Mapping[str, object], output: int = DEVNULL
    ) -> ExpendableProcess:
        """Start a process that runs `module` with the descriptor of a Connection, and return at once.

        It gets `first` before any request, and writes to the descriptor `output`. Raises EngineError.
        """
        ours, theirs = Pipe()
        try:
            child, ended = spawn_watched(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                thread_name,
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        except OSError as error:
            ours.close()
            raise EngineError(f"the process for {what} cannot be started ({error})") from error
        finally:
            theirs.close()
        process = cls(child, ended, ours, what)
        try:
            process.send(first)
        except ProcessEndedError as error:
            raise EngineError(f"the process for {what} ended as it started") from error
        return process

    def alive(self) -> bool:
        return not self._ended.is_set()

    def send(self, content: Mapping[str, object]) -> None:
        """Send a request; raise ProcessEndedError if the process has ended."""
        try:
            self._connection.send_bytes(json.dumps(content).encode())
        except OSError as error:
            raise ProcessEndedError from error

    def receive(self, wait_s: float, wanted: Callable[[], bool]) -> bytes:
        """Return the next answer. Raises ProcessEndedError, Canceled (nobody wants it any more), TimedOut."""
        deadline_s = time.monotonic() + wait_s
        try:
            while not self._connection.poll(POLL_S):
                if not wanted():
                    raise Canceled(f"the caller does not wait for {self._what} any more")
                if time.monotonic() > deadline_s:
                    raise TimedOut(f"{self._what} has not answered within {wait_s:g} s")
            return self._connection.recv_bytes(ANSWER_BYTES_MAX)
        except (EOFError, OSError) as error:
            raise ProcessEndedError from error

    def kill(self) -> None:
        """Kill the process by SIGKILL; return when it is gone."""
        self._child.kill()
        self._ended.wait(KILL_WAIT_S)

    def close(self) -> None:
        """Close the connection, after `kill`, as the user of the process."""
        self._connection.close()


def give_way() -> None:
    """Have this process, which may die, yield to others, and be the first that is killed where memory is short."""
    with suppress(OSError):  # of a system that has no such things
        os.nice(NICENESS)
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_BE_KILLED)


# --- forks ------------------------------------------------------------------------------------------------------------
# What needs threads of the process that this one was forked from is refused in a fork: only the thread that forks is in
# a fork. Libraries in Rust panic there, or wait without end for threads that are gone. So do channels of gRPC; a fork
# may open others, but for asyncio.


class Before(Enum):
    """Something that a process has done, after which its forks cannot do the same."""

    TABLES = "read tables"
    INDEXES = "searched indexes"
    ASYNCIO = "used a client of asyncio"
    SPARK = "started Spark"


_THREADS = {"tokio-rt-worker": Before.TABLES, "lance-cpu": Before.INDEXES, "lance_backgroun": Before.INDEXES}
"""Threads of libraries by their names on Linux, which show that a program has used these by itself."""


class _DeedsBeforeForks:
    """The deeds of this process, and those of the ones that it was forked from, with the newest of these."""

    done: ClassVar[set[Before]] = set()
    lost: ClassVar[set[Before]] = set()
    forked_from = 0


def refuse_fork(what: str, *deeds: Before) -> None:
    """Note what this process does, by `what`.

    Raises InvalidRequest if one that it was forked from has done the same.
    """
    for each in deeds:
        if each in _DeedsBeforeForks.lost:
            raise InvalidRequest(
                f"cannot be used in the process {os.getpid()}: it was forked from {_DeedsBeforeForks.forked_from}, "
                f"which had {each.value} by then",
                field=what,
                remedy="Start processes by `spawn` or `forkserver`, or do that in no process that forks",
            )
        _DeedsBeforeForks.done.add(each)


class OwnProcess:
    """The process that something was made in, which alone may use it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        return self._pid == os.getpid()

    def require(self) -> None:
        """Raise InvalidRequest in a fork."""
        if not self.is_this:
            raise InvalidRequest(
                f"was made in the process {self._pid}, which this one ({os.getpid()}) was forked from",
                field=self._what,
                remedy="Make another one after the fork",
            )


def _note_deeds() -> None:
    _DeedsBeforeForks.forked_from = os.getpid()
    spark = sys.modules.get("pyspark")
    if getattr(getattr(spark, "SparkContext", None), "_gateway", None) is not None:
        _DeedsBeforeForks.done.add(Before.SPARK)
    with suppress(OSError):  # no Linux
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has just ended
                if (deed := _THREADS.get((thread / "comm").read_text().strip())) is not None:
                    _DeedsBeforeForks.done.add(deed)


def _lose_deeds() -> None:
    _DeedsBeforeForks.lost |= _DeedsBeforeForks.done
    _DeedsBeforeForks.done = set()


os.register_at_fork(before=_note_deeds, after_in_child=_lose_deeds)


# --- memory -----------------------------------------------------------------------------------------------------------

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident memory of this process, without its children's."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
