"""`iscp up` as a child process, for what needs a cluster of its own: demos, tests and benchmarks."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iscp.adapters.system.child_process import end, tail
from iscp.adapters.system.child_process import spawn as spawn_tied
from iscp.core.values.errors import Unavailable
from iscp.ports.system import Clock

START_TIMEOUT_S = 180.0
"""Seconds that the cluster of a demonstration may take to start; then it is ended with an error."""

STOP_WAIT_S = 60.0
"""Seconds that it may take to stop in order; then it is killed."""

_UP = (sys.executable, "-P", "-m", "iscp.cli.iscp", "up")


@dataclass(frozen=True, slots=True)
class RunningUp:
    """A running `iscp up`, and what it said when it was ready.

    The process ends with the thread that started it, and with it all that it started.
    """

    child: subprocess.Popen[bytes]
    ready: Mapping[str, Any]

    @property
    def endpoint(self) -> str:
        return str(self.ready["endpoint"])

    @property
    def endpoints(self) -> str:
        """Return all nodes' endpoints, for a client that is to go on when one of them is gone."""
        return ",".join(str(node["address"]) for node in self.ready["nodes"])

    @property
    def etcd_pid(self) -> int:
        return int(self.ready["etcd"]["pid"])

    @property
    def node_pid(self) -> int:
        """Return the first node's process id; a node that died and was started again has another one."""
        return int(self.ready["nodes"][0]["pid"])

    def stop(self) -> int:
        """End it in order, or otherwise after STOP_WAIT_S; the exit status."""
        end(self.child, STOP_WAIT_S)
        if self.child.stdout is not None:
            self.child.stdout.close()
        return self.child.returncode


def start_up(
    data: Path,
    clock: Clock,
    environ: Mapping[str, str],
    *,
    port: int | None = None,
    nodes: int = 1,
    command: Sequence[str] = _UP,
    timeout_s: float = START_TIMEOUT_S,
) -> RunningUp:
    """Start `iscp up` on `data` and wait until it is ready. Its stderr is in `up.log`.

    Raises Unavailable, with the end of that log, if it ends instead or is not ready in time.
    """
    log = data / "up.log"
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    arguments = [*command, "--data", str(data), "-o", "json", "--nodes", str(nodes)]
    arguments += [] if port is None else ["--port", str(port)]
    child = spawn_tied(arguments, log, environ, death_signal=signal.SIGTERM, stdout=subprocess.PIPE)
    try:
        return RunningUp(child, json.loads(_first_line(child, clock, clock.monotonic_s() + timeout_s, log)))
    except BaseException:
        end(child, STOP_WAIT_S)
        raise


def _first_line(child: subprocess.Popen[bytes], clock: Clock, deadline_s: float, log: Path) -> bytes:
    assert child.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([child.stdout], [], [], max(0.0, deadline_s - clock.monotonic_s()))
        if not readable:
            raise Unavailable("`iscp up` is not ready in time", remedy=f"See {log.parent}")
        part = os.read(child.stdout.fileno(), 65_536)
        if not part:
            raise Unavailable(f"`iscp up` has ended:\n{tail(log)}", remedy=f"See {log.parent}")
        line += part
    return line
