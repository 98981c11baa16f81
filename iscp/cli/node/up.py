"""The command `iscp up`: it runs etcd and nodes on this machine until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from iscp.adapters.delta.spark.java import HOME_REMEDY, home_fault
from iscp.adapters.system.clock import SystemClock
from iscp.adapters.telemetry.logging import configure_logging
from iscp.cli.node.data_directory import Layout, choose_ports, data_faults, hold_directory
from iscp.cli.node.local_cluster import LocalCluster, node_command
from iscp.cli.node.wait_notice import WaitNotice
from iscp.cli.shell import render
from iscp.cli.shell.error_words import ERROR_PREFIX
from iscp.cli.shell.terminal import say
from iscp.core.settings.config import LogFormat, LogLevel

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
