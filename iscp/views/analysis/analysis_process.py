"""One process in which Spark analyzes users' SQL: started, given requests, and killed."""

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
"""Bytes of what the analysis of one query may come to; more counts as its end."""

POLL_S = 0.05
"""Pause between two checks whether whoever requested an analysis still waits for it."""

_COMMAND = (sys.executable, "-P", "-m", "iscp.views.analysis.analysis_worker")


class AnalysisEndedError(Exception):
    """The process has ended, and not because it was to."""


class AnalysisProcess:
    """Not safe for threads, but for `kill`. It ends with this process, as its JVM does with it."""

    def __init__(self, child: Popen[bytes], ended: threading.Event, connection: Connection) -> None:
        self._child = child
        self._ended = ended
        self._connection = connection
        self.ready = False
        """Whether its Spark has started."""

    @classmethod
    def start(cls, settings: SparkSettings) -> AnalysisProcess:
        """Returns at once; its Spark is there when it answers for the first time. Raises EngineError."""
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
        """Raises AnalysisEndedError."""
        try:
            self._connection.send_bytes(json.dumps(content).encode())
        except OSError as error:
            raise AnalysisEndedError from error

    def receive(self, wait_s: float, wanted: Callable[[], bool]) -> bytes:
        """The next answer. Raises AnalysisEndedError, Canceled (nobody wants it any more), TimedOut."""
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
        """SIGKILL, with its JVM; returns when the process is gone."""
        self._child.kill()
        self._ended.wait(KILL_WAIT_S)

    def close(self) -> None:
        """After `kill`, by whoever uses it."""
        self._connection.close()


def _plain(settings: SparkSettings) -> dict[str, object]:
    """Without what it has of a storage's keys."""
    given = {each.name: getattr(settings, each.name) for each in dataclasses.fields(settings) if each.name != "s3"}
    return (
        given
        | {"work_dir": str(settings.work_dir), "cache_dir": str(settings.cache_dir)}
        | {"conf": dict(settings.conf)}
    )
