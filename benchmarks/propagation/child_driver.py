"""Engines that are Python programs: each runs in a process of its own, which takes its commands from a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import IO, Any, ClassVar

from benchmarks.propagation.driver import Driver, PausedDriver, Place
from benchmarks.propagation.processes import spent_s
from iscp.system.child_process import end, tail, tied_to_parent

STOP_WAIT_S = 30.0
NO_CHANGES = "it computes results from all rows, and has no changes to write down"


class ChildDriver(Driver):
    """The driver of an engine of `engine_process`, by its name."""

    engine: ClassVar[str]

    def __init__(self, place: Place, *, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(place)
        self._options = options or {}
        self._child: subprocess.Popen[str] | None = None
        self._pending = 0

    @property
    def _process(self) -> subprocess.Popen[str]:
        assert self._child is not None
        return self._child

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        self._spawn()
        self._await_answers()

    def create(self) -> None:
        self.place.targets.mkdir()
        self._send("create")

    def notify(self, tables: Iterable[str]) -> None:
        self._send("changed", tables=list(tables))

    def settle(self) -> None:
        self._send("settle")
        self._await_answers()

    def fail(self) -> None:
        self.lost_s += spent_s(self.pid)
        self._process.kill()
        self._process.wait()
        self._pending = 0
        self._spawn()
        self._send("resume")

    def stop(self) -> None:
        if self._child is None:
            return
        self.resume()
        self._pipe(self._child.stdin).close()
        try:
            self._child.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(STOP_WAIT_S)
        self._pipe(self._child.stdout).close()

    def _spawn(self) -> None:
        log = self.place.folder.parent / f"{self.name.replace(' ', '-')}.log"
        self._log = log
        command = tied_to_parent([sys.executable, "-m", "benchmarks.propagation.engine_process", self.engine])
        with log.open("ab") as stderr:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=dict(os.environ),
                start_new_session=True,
            )
        self._send(
            "start",
            folder=str(self.place.folder),
            sources=dict(self.place.lake.uris),
            derived=[each.name for each in self.derived],
            options=dict(self._options),
        )

    def _send(self, command: str, **arguments: Any) -> None:
        pipe = self._pipe(self._process.stdin)
        pipe.write(json.dumps({"command": command, **arguments}) + "\n")
        pipe.flush()
        self._pending += 1

    def _await_answers(self) -> None:
        """Raises RuntimeError, with the end of its log, if the engine has failed."""
        while self._pending:
            if not self._pipe(self._process.stdout).readline():
                end(self._process, STOP_WAIT_S)  # type: ignore[arg-type]  # of texts, and not of bytes
                raise RuntimeError(f"{self.name} has ended:\n{tail(self._log)}")
            self._pending -= 1

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


class DuckdbDriver(ChildDriver):
    name, engine = "duckdb", "duckdb"
    warm = (
        "A process of Python with DuckDB runs. It is called after each commit, and computes all tables below the "
        "changed ones from all rows."
    )
    cannot: ClassVar[Mapping[str, str]] = {"trips_feed": NO_CHANGES}


class SparkDriver(ChildDriver):
    name, engine = "spark", "spark"
    warm = (
        "A Spark session runs, with the settings of a node of iscp. It is called after each commit, and computes all "
        "tables below the changed ones from all rows."
    )
    cannot: ClassVar[Mapping[str, str]] = {"trips_feed": NO_CHANGES}


class StreamingDriver(ChildDriver, PausedDriver):
    name, engine = "streaming", "streaming"
    warm = (
        "A Spark session runs, with the settings of a node of iscp, and in it a streaming query for each table, which "
        "looks for changes once a batch interval. All its processes are stopped while it is another's turn."
    )
    cannot: ClassVar[Mapping[str, str]] = {}
