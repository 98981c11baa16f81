"""`iscp up` with a real etcd and real processes; only the node is a stand-in that says it serves.

What is proven: what it prints, that it starts again what dies, that it goes on where it was, and that nothing is
left behind, whatever is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from iscp.adapters.clock import SystemClock
from iscp.cli.launch import RunningUp, start_up
from iscp.core.errors import Unavailable
from tests.fakes.up_program import COMMAND

WAIT_S = 20.0

Start = Callable[..., RunningUp]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[RunningUp] = []

    def once(**environ: str) -> RunningUp:
        running.append(start_up(tmp_path, SystemClock(), os.environ | environ, port=0, command=COMMAND, timeout_s=30.0))
        return running[-1]

    yield once
    for each in running:
        each.stop()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def test_it_says_in_one_line_that_it_is_ready_and_where(start: Start, tmp_path: Path) -> None:
    up = start()
    assert set(up.ready) == {"ready", "endpoint", "etcd", "nodes"}
    assert up.ready["ready"] is True
    assert up.ready["nodes"] == [{"id": "iscp-0", "pid": up.node_pid, "address": up.endpoint}]
    assert sorted(children(up.child.pid)) == sorted((up.etcd_pid, up.node_pid))
    assert (tmp_path / "logs" / "iscp-0.log").exists()
    assert (tmp_path / "logs" / "etcd.log").exists()


def test_sigterm_ends_everything_in_order(start: Start) -> None:
    up = start()
    assert up.stop() == 0
    assert not alive(up.node_pid)
    assert not alive(up.etcd_pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_so_do_ctrl_c_and_a_closed_terminal(start: Start, number: signal.Signals) -> None:
    up = start()
    up.child.send_signal(number)
    assert up.child.wait(WAIT_S) == 0
    assert not alive(up.node_pid)
    assert not alive(up.etcd_pid)


def test_a_second_ctrl_c_does_not_wait(start: Start) -> None:
    up = start(FAKE_NODE="stubborn")
    up.child.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert up.child.poll() is None
    up.child.send_signal(signal.SIGINT)
    assert up.child.wait(WAIT_S) == 1
    assert not alive(up.node_pid)
    assert not alive(up.etcd_pid)


def test_killed_it_takes_everything_along(start: Start) -> None:
    up = start(FAKE_NODE="stubborn")
    up.child.kill()
    wait_for(lambda: not alive(up.node_pid) and not alive(up.etcd_pid))


def test_a_node_that_dies_is_started_again(start: Start) -> None:
    up = start()
    os.kill(up.node_pid, signal.SIGKILL)
    wait_for(lambda: not alive(up.node_pid))
    wait_for(lambda: len(children(up.child.pid)) == 2)
    assert alive(up.etcd_pid)


def test_so_is_etcd(start: Start) -> None:
    up = start()
    os.kill(up.etcd_pid, signal.SIGKILL)
    wait_for(lambda: not alive(up.etcd_pid))
    wait_for(lambda: len(children(up.child.pid)) == 2)
    assert alive(up.node_pid)


def test_the_same_directory_has_the_same_addresses(start: Start) -> None:
    first = start()
    first.stop()
    again = start_up(first_data(first), SystemClock(), os.environ, command=COMMAND, timeout_s=30.0)
    try:
        assert again.endpoint == first.endpoint
        assert again.ready["etcd"]["address"] == first.ready["etcd"]["address"]
    finally:
        again.stop()


def first_data(up: RunningUp) -> Path:
    arguments = list(map(str, up.child.args if isinstance(up.child.args, list) else ()))
    return Path(arguments[arguments.index("--data") + 1])


def test_a_second_one_on_the_same_directory_is_refused(start: Start, tmp_path: Path) -> None:
    up = start()
    second = subprocess.run([*COMMAND, "--data", tmp_path, "--json"], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert second.stdout == ""
    assert f"is in use by process {up.child.pid}" in second.stderr
    assert alive(up.node_pid)


def test_a_port_that_is_taken_is_refused(start: Start, tmp_path: Path) -> None:
    port = start().endpoint.partition(":")[2]
    other = subprocess.run(
        [*COMMAND, "--data", tmp_path / "other", "--port", port], capture_output=True, text=True, check=False
    )
    assert other.returncode == 1
    assert "--port" in other.stderr


def test_a_node_that_never_starts_ends_it_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="this node never starts"):
        start_up(tmp_path, SystemClock(), os.environ | {"FAKE_NODE": "exit"}, port=0, command=COMMAND, timeout_s=30.0)


def test_variables_do_not_take_from_a_node_what_is_its_own(start: Start) -> None:
    up = start(ISCP_NODE_ID="other", ISCP_LISTEN="127.0.0.1:1", ISCP_ETCD__ENDPOINTS="nowhere:1")
    assert up.ready["nodes"][0]["id"] == "iscp-0"


def test_people_are_told_too(tmp_path: Path) -> None:
    up = subprocess.Popen([*COMMAND, "--data", tmp_path, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert up.stdout is not None
        assert up.stdout.readline().startswith("ready at 127.0.0.1:")
    finally:
        up.terminate()
        up.wait(WAIT_S)


def test_the_ready_line_is_all_there_is_on_stdout(start: Start) -> None:
    up = start()
    os.kill(up.node_pid, signal.SIGKILL)
    wait_for(lambda: not alive(up.node_pid))
    up.child.terminate()
    up.child.wait(WAIT_S)
    assert up.child.stdout is not None
    assert up.child.stdout.read() == b""
    json.dumps(up.ready)
