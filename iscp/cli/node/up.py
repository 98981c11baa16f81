"""The command `iscp up`: it runs etcd and nodes on this machine until Ctrl-C or SIGTERM.

`iscp up` as a child process, for what needs a cluster of its own: demos, tests and benchmarks.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from iscp.cli.node.local_cluster import (
    Layout,
    LocalCluster,
    WaitNotice,
    choose_ports,
    data_faults,
    hold_directory,
    node_command,
)
from iscp.cli.shell import render
from iscp.cli.shell.root_group import ERROR_PREFIX
from iscp.cli.shell.terminal import say
from iscp.model.settings.config import LogFormat
from iscp.model.values.errors import Unavailable
from iscp.model.values.untrusted_values import LogLevel
from iscp.notices.log_ring import configure_logging
from iscp.ports.system import Clock
from iscp.spark.java import HOME_REMEDY, home_fault
from iscp.system.child_process import end, tail
from iscp.system.child_process import spawn as spawn_tied
from iscp.system.threads import SystemClock

POLL_S = 0.1
"""Pause between two checks of the processes of `iscp up`."""

_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A second signal: do not wait any longer."""


class _Signals:
    """The first signal has the loop end, a second one interrupts whatever goes on."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise Stopped
        self.requested = True


@contextmanager
def _ending_by_signal() -> Iterator[_Signals]:
    ours = _Signals()
    before = {number: signal.signal(number, ours) for number in _END}
    try:
        yield ours
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def run(
    data: Path,
    port: int | None,
    output: str,
    nodes: int = 1,
    command: Callable[[Path], Sequence[str]] = node_command,
) -> int:
    """Run etcd and nodes until a signal, and return the exit status. Raises ConfigurationError, Unavailable."""
    configure_logging(LogFormat.TEXT, LogLevel.WARNING, {})
    layout = Layout(data.absolute())
    with _ending_by_signal() as signals, hold_directory(layout):
        with data_faults(layout.root):
            ports = choose_ports(layout, port, nodes)
        stack = LocalCluster(layout, ports, SystemClock(), os.environ, command)
        try:
            _keep_up(stack, signals, output)
            stack.stop()
        except Stopped:
            return 1
        finally:
            stack.kill()
    return 0


def _keep_up(stack: LocalCluster, signals: _Signals, output: str) -> None:
    clock, notice = SystemClock(), WaitNotice()

    def say(awaited: str) -> None:
        _say(notice.due(awaited, clock.monotonic_s()))

    say("etcd to start")
    stack.start(lambda: say("etcd to start"))
    if unfit := home_fault(os.environ):  # the nodes, which have been started, write it into their logs alone
        _say(f"warning: {unfit}; another Java is taken if there is one. {HOME_REMEDY}")
    announced = False
    while not signals.requested:
        stack.tick()
        if fault := stack.new_fault():
            _say(f"{ERROR_PREFIX}{fault}")
        if not announced and stack.serving():
            _tell(stack, output)
            announced = True
        elif not announced:
            say(stack.awaited())
        time.sleep(POLL_S)


def _say(words: str) -> None:
    if words:
        say(words, err=True)


def _tell(stack: LocalCluster, output: str) -> None:
    ready = stack.ready_line()
    if taken := stack.ports.taken:
        say(
            f"port {taken} is in use by another process, which commands would speak to: give them "
            f"--endpoint {ready['endpoint']}, or set ISCP_ENDPOINT",
            err=True,
        )
    if render.show_line(ready, output):
        return
    say(f"ready at {ready['endpoint']}   (iscp-admin --endpoint {ready['endpoint']} status)")
    say(f"  page    {stack.page()}")
    say(f"  etcd    {ready['etcd']['address']}  pid {ready['etcd']['pid']}")
    for node in ready["nodes"]:
        say(f"  {node['id']}  {node['address']}  pid {node['pid']}")
    say(f"  logs    {stack.layout.logs}\nCtrl-C stops it; it goes on where it was with the same directory.")


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
