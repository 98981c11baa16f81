"""A process that may die of what it is given: it is started, given requests, and killed.

Whatever parses or runs what a tenant wrote, and may be ended by it, runs in such a process. It has one Connection, over
which come first what it needs to begin, and then one request after another, as JSON; what it answers is no pickle, as
it may do what that tenant wants.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import DEVNULL, Popen

from iscp.adapters.system.child_process import KILL_WAIT_S, spawn_watched
from iscp.core.values.errors import Canceled, EngineError, TimedOut

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
