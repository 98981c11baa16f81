"""One process in which Spark analyzes users' SQL: it is started, given requests, and killed."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from subprocess import DEVNULL, Popen

from iscp.adapters.delta.spark.jvm_launch import SparkSettings
from iscp.adapters.delta.spark.jvm_log import relay_output
from iscp.adapters.system.child_process import KILL_WAIT_S, spawn_watched
from iscp.core.values.errors import Canceled, EngineError, TimedOut

ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of the answer to one query; more counts as the process's end."""

POLL_S = 0.05
"""Pause between two checks whether whoever requested an analysis still waits for it."""

_COMMAND = (sys.executable, "-P", "-m", "iscp.views.analysis.analysis_worker")


class AnalysisEndedError(Exception):
    """The process has ended, and not because it was to."""


class AnalysisProcess:
    """The process. It is not safe for threads, but for `kill`. It ends with this process, as its JVM does with it."""

    def __init__(self, child: Popen[bytes], ended: threading.Event, connection: Connection) -> None:
        self._child = child
        self._ended = ended
        self._connection = connection
        self.ready = False
        """True once its Spark has started."""

    @classmethod
    def start(cls, settings: SparkSettings) -> AnalysisProcess:
        """Start a process and return at once; its Spark is there when it answers for the first time. Raises
        EngineError.
        """
        ours, theirs = Pipe()
        output, _ = relay_output()
        try:
            child, ended = spawn_watched(
                [*_COMMAND, str(theirs.fileno())],
                "iscp-sql-analysis",
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        except OSError as error:
            ours.close()
            raise EngineError(f"the process that analyzes SQL cannot be started ({error})") from error
        finally:
            theirs.close()
            os.close(output)
        process = cls(child, ended, ours)
        try:
            process.send(_plain(settings))
        except AnalysisEndedError as error:
            raise EngineError("the process that analyzes SQL ended as it started") from error
        return process

    def alive(self) -> bool:
        return not self._ended.is_set()

    def send(self, content: dict[str, object]) -> None:
        """Send a request; raise AnalysisEndedError if the process has ended."""
        try:
            self._connection.send_bytes(json.dumps(content).encode())
        except OSError as error:
            raise AnalysisEndedError from error

    def receive(self, wait_s: float, wanted: Callable[[], bool]) -> bytes:
        """Return the next answer. Raises AnalysisEndedError, Canceled (nobody wants it any more), TimedOut."""
        deadline_s = time.monotonic() + wait_s
        try:
            while not self._connection.poll(POLL_S):
                if not wanted():
                    raise Canceled("the caller does not wait for the analysis of its SQL any more")
                if time.monotonic() > deadline_s:
                    raise TimedOut(f"the analysis of SQL has not answered within {wait_s:g} s")
            return self._connection.recv_bytes(ANSWER_BYTES_MAX)
        except (EOFError, OSError) as error:
            raise AnalysisEndedError from error

    def kill(self) -> None:
        """Kill the process and its JVM by SIGKILL; return when it is gone."""
        self._child.kill()
        self._ended.wait(KILL_WAIT_S)

    def close(self) -> None:
        """Close the connection, after `kill`, as the user of the process."""
        self._connection.close()


def _plain(settings: SparkSettings) -> dict[str, object]:
    """Return the settings as JSON, without a storage's keys."""
    given = {each.name: getattr(settings, each.name) for each in dataclasses.fields(settings) if each.name != "s3"}
    return (
        given
        | {"work_dir": str(settings.work_dir), "cache_dir": str(settings.cache_dir)}
        | {"conf": dict(settings.conf)}
    )
