"""`iscp up` with a real etcd and real processes; only the node is a stand-in that says it serves.

What is proven: what it prints, that it starts again what dies, that it goes on where it was, and that nothing is
left behind, whatever is killed.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from iscp.cli.node.up import RunningUp, start_up
from iscp.model.values.errors import Unavailable
from iscp.system.threads import SystemClock
from tests.fakes.up_program import COMMAND
from tests.fakes.waiting import until

WAIT_S = 20.0

Start = Callable[..., RunningUp]
OTHERS_OWN = {"ISCP_NODE_ID": "other", "ISCP_LISTEN": "127.0.0.1:1", "ISCP_ETCD__ENDPOINTS": "nowhere:1"}


def launch(data: Path, environ: Mapping[str, str], port: int | None = 0) -> RunningUp:
    return start_up(data, SystemClock(), {**os.environ, **environ}, port=port, command=COMMAND, timeout_s=60.0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[RunningUp] = []

    def once(**environ: str) -> RunningUp:
        # The port: at first any, later the same again.
        running.append(launch(tmp_path, environ, None if running else 0))
        return running[-1]

    yield once
    for each in running:
        each.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningUp, Path]]:
    """One that no test harms; the environment names what is a node's own."""
    data = tmp_path_factory.mktemp("shared")
    up = launch(data, OTHERS_OWN)
    yield up, data
    up.stop()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def gone(up: RunningUp) -> bool:
    return not alive(up.node_pid) and not alive(up.etcd_pid)


def test_it_says_in_one_line_that_it_is_ready_and_where(shared: tuple[RunningUp, Path]) -> None:
    up, data = shared
    assert set(up.ready) == {"ready", "endpoint", "etcd", "nodes"}
    assert up.ready["ready"] is True
    assert up.ready["nodes"] == [{"id": "iscp-0", "pid": up.node_pid, "address": up.endpoint}]
    assert sorted(children(up.child.pid)) == sorted((up.etcd_pid, up.node_pid))
    assert (data / "logs" / "iscp-0.log").exists()
    assert (data / "logs" / "etcd.log").exists()


def test_a_second_one_on_the_same_directory_is_refused(shared: tuple[RunningUp, Path]) -> None:
    up, data = shared
    second = subprocess.run([*COMMAND, "--data", str(data), "--json"], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert second.stdout == ""
    assert f"is in use by process {up.child.pid}" in second.stderr
    assert alive(up.node_pid)


def on_a_disk(data: Path, megabytes: int, between: str = "") -> list[str]:
    """The command line of `iscp up` on a disk of its own, that is gone with it; once `between` was done."""
    mount = "mount -t tmpfs -o size={3}m tmpfs {0} && mkdir {0}/etcd && {1} exec {2} --data {0} --port 0 --json"
    script = mount.format(shlex.quote(str(data)), between, shlex.join(COMMAND), megabytes)
    return ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", script]


def up_on_a_disk(data: Path, between: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(on_a_disk(data, 8, between), capture_output=True, text=True, check=False, timeout=60.0)


def test_a_disk_without_room_for_etcd_is_one_sentence(tmp_path: Path) -> None:
    done = up_on_a_disk(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: {tmp_path} has " in done.stderr
    assert "too few for etcd and the nodes to go on" in done.stderr
    assert "goroutine" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_disk_that_fills_up_meanwhile_is_said_once(tmp_path: Path) -> None:
    disk, errors = tmp_path / "disk", tmp_path / "stderr"
    disk.mkdir()
    with errors.open("w") as stderr:
        # etcd reserves a second file of its log at once: where that finds no room it may end before anything is ready.
        up = subprocess.Popen(on_a_disk(disk, 240), stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert up.stdout is not None
        pid = json.loads(up.stdout.readline() or errors.read_text())["etcd"]["pid"]
        with Path(f"/proc/{pid}/root{disk}/filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(65_536))
        os.kill(pid, signal.SIGKILL)
        until(lambda: "too few for etcd and the nodes to go on" in errors.read_text())
        until(lambda: errors.read_text().count("child.died") > 1 or len(children(up.pid)) > 1)
        assert errors.read_text().count("too few for etcd") == 1
        assert f"error: --data: {disk} has 0 MiB free" in errors.read_text()
        assert "Traceback" not in errors.read_text()
    finally:
        up.terminate()
        up.wait(WAIT_S)


def test_a_read_only_mount_is_one_sentence(tmp_path: Path) -> None:
    done = up_on_a_disk(tmp_path, f"mount -o remount,ro {shlex.quote(str(tmp_path))} &&")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"error: {tmp_path}/lock cannot be written: Read-only file system" in done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["error", "  field", "  remedy"]


def test_a_port_that_is_taken_is_refused(shared: tuple[RunningUp, Path], tmp_path: Path) -> None:
    port = shared[0].endpoint.partition(":")[2]
    command = [*COMMAND, "--data", str(tmp_path), "--port", port]
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "--port" in other.stderr


def test_what_dies_is_started_again_and_a_new_start_goes_on_at_the_same_addresses(start: Start) -> None:
    up = start()
    os.kill(up.node_pid, signal.SIGKILL)
    until(lambda: not alive(up.node_pid))
    until(lambda: len(children(up.child.pid)) == 2)
    assert alive(up.etcd_pid)
    os.kill(up.etcd_pid, signal.SIGKILL)
    until(lambda: not alive(up.etcd_pid))
    until(lambda: len(children(up.child.pid)) == 2)
    second = children(up.child.pid)

    up.child.terminate()
    assert up.child.wait(WAIT_S) == 0
    assert not any(map(alive, second))
    assert up.child.stdout is not None
    assert up.child.stdout.read() == b"", "the ready line is all there is on stdout"

    again = start()
    assert again.endpoint == up.endpoint
    assert again.ready["etcd"]["address"] == up.ready["etcd"]["address"]


def test_ctrl_c_ends_it_and_people_are_shown_where_it_is(tmp_path: Path) -> None:
    up = subprocess.Popen([*COMMAND, "--data", tmp_path, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert up.stdout is not None
        assert up.stdout.readline().startswith("ready at 127.0.0.1:")
        assert up.stdout.readline().startswith("  page    http://127.0.0.1:")
        below = children(up.pid)
        assert len(below) == 2
        up.send_signal(signal.SIGINT)
        assert up.wait(WAIT_S) == 0
        assert not any(map(alive, below))
    finally:
        up.kill()
        up.wait()


def test_a_second_ctrl_c_does_not_wait(start: Start) -> None:
    up = start(FAKE_NODE="stubborn")
    up.child.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert up.child.poll() is None
    up.child.send_signal(signal.SIGINT)
    assert up.child.wait(WAIT_S) == 1
    assert gone(up)


def test_killed_it_takes_everything_along(start: Start) -> None:
    up = start(FAKE_NODE="stubborn")
    up.child.kill()
    until(lambda: gone(up))


def test_a_node_that_never_starts_ends_it_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="this node never starts"):
        launch(tmp_path, {"FAKE_NODE": "exit"})


def test_a_java_home_without_a_java_is_warned_of(start: Start, tmp_path: Path) -> None:
    start(JAVA_HOME="/nonexistent")
    words = "warning: JAVA_HOME is passed over: /nonexistent/bin/java does not run"
    until(lambda: words in (tmp_path / "up.log").read_text(), WAIT_S)
