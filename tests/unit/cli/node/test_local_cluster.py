"""When `iscp up` restarts a process, and which ports it chooses.

What `iscp up` says while it waits: each thing once, and only after a moment.
"""

from __future__ import annotations

import errno
import json
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

from iscp.cli.node.local_cluster import (
    BACKOFF_CAP_S,
    NOTICE_AFTER_S,
    SETTLED_S,
    Layout,
    LocalCluster,
    SupervisedProcess,
    WaitNotice,
    awaited_of,
    choose_ports,
    hold_directory,
    lack_of_room,
    node_environ,
)
from iscp.model.values.errors import ConfigurationError
from tests.fakes.clock import FakeClock


@dataclass
class Child:
    """What `SupervisedProcess` calls of a process."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode


class Children:
    def __init__(self) -> None:
        self.started: list[Child] = []

    def __call__(self) -> Child:
        self.started.append(Child(len(self.started) + 1))
        return self.started[-1]


def test_the_wait_doubles_up_to_its_cap() -> None:
    children = Children()
    kept = SupervisedProcess("node", children)  # type: ignore[arg-type]
    now_s, waits = 0.0, []
    for _ in range(8):
        kept.tick(now_s)
        children.started[-1].returncode = -9
        kept.tick(now_s)
        waits.append(kept.due_s - now_s)
        kept.tick(kept.due_s - 0.01)
        assert kept.child is None
        now_s = kept.due_s
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, BACKOFF_CAP_S, BACKOFF_CAP_S, BACKOFF_CAP_S]


def test_a_child_that_cannot_be_started_is_tried_again() -> None:
    faults = [OSError(errno.ENOSPC, "No space left on device")] * 2
    children = Children()

    def start() -> Child:
        if faults:
            raise faults.pop()
        return children()

    kept = SupervisedProcess("node", start)  # type: ignore[arg-type]
    kept.tick(0.0)
    assert (kept.child, kept.due_s) == (None, 0.5)
    kept.tick(0.5)
    assert (kept.child, kept.due_s) == (None, 1.5)
    kept.tick(1.5)
    assert kept.child is children.started[0]  # type: ignore[comparison-overlap]


def test_too_little_room_names_the_directory_and_how_much_to_free(tmp_path: Path) -> None:
    assert lack_of_room(tmp_path, 0) is None
    assert lack_of_room(tmp_path / "none") is None
    lack = lack_of_room(tmp_path, 2**60)
    assert lack is not None
    assert str(tmp_path) in lack.message
    assert "Free 1099511627776 MiB" in lack.remedy


def test_a_child_that_ran_long_starts_again_soon() -> None:
    children = Children()
    kept = SupervisedProcess("node", children, failures=5)  # type: ignore[arg-type]
    kept.tick(0.0)
    children.started[-1].returncode = 1
    kept.tick(SETTLED_S)
    assert kept.due_s == SETTLED_S + 0.5


def test_one_that_runs_is_left_alone() -> None:
    children = Children()
    kept = SupervisedProcess("node", children)  # type: ignore[arg-type]
    for now_s in range(10):
        kept.tick(float(now_s))
    assert (len(children.started), kept.pid) == (1, 1)


def test_ports_are_kept_while_they_are_free(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    first = choose_ports(layout, 0)
    assert len({first.nodes[0], first.etcd_client, first.etcd_peer, first.pages[0]}) == 4
    assert choose_ports(layout, None) == first
    with socket.create_server(("127.0.0.1", first.nodes[0])):
        moved = choose_ports(layout, None)
        assert moved.nodes[0] != first.nodes[0]
        assert moved.etcd_client == first.etcd_client
        assert (first.taken, moved.taken) == (0, first.nodes[0])
        with pytest.raises(ConfigurationError, match="--port"):
            choose_ports(layout, first.nodes[0])


@pytest.mark.parametrize("data", ["/proc/foo", "/dev/null/foo"])
def test_a_directory_that_cannot_be_made_is_a_fault_of_the_option(data: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written") as refused, hold_directory(Layout(Path(data))):
        pass
    assert refused.value.field == "--data"
    assert "file system with room" in refused.value.remedy


def test_a_setting_that_is_wrong_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Not by each node, each time that it is started again."""
    layout = Layout(tmp_path / "data")
    with hold_directory(layout):
        environ = {"ISCP_BACKOFF__BASE_S": "soon", "ISCP_NODE_ID": "another's"}
        cluster = LocalCluster(
            layout, choose_ports(layout, 0), FakeClock(), environ, lambda config: ["/no/such/program"]
        )
        with pytest.raises(ConfigurationError, match=r"backoff\.base_s|ISCP_BACKOFF__BASE_S"):
            cluster.start()
        cluster.kill()
    assert not layout.etcd.exists()


def test_a_file_of_ports_that_was_torn_is_recreated(tmp_path: Path) -> None:
    Layout(tmp_path).ports.write_text('{"nodes": [1')
    chosen = choose_ports(Layout(tmp_path), 0)
    assert json.loads(Layout(tmp_path).ports.read_text())["nodes"] == list(chosen.nodes)


def test_a_directory_has_one_holder_at_a_time(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "new")
    with (
        hold_directory(layout),
        pytest.raises(ConfigurationError, match="is in use by process"),
        hold_directory(layout),
    ):
        pass
    with hold_directory(layout):
        pass


@pytest.mark.parametrize("setting", ["ISCP_METRICS__LISTEN", "ISCP_GATEWAY__LISTEN", "ISCP_HEALTH__LISTEN"])
def test_each_node_has_a_port_of_its_own_of_one_that_a_variable_names(setting: str) -> None:
    environ = {setting: "127.0.0.1:9464", "ISCP_NODE_ID": "mine", "OTHER": "127.0.0.1:9464"}
    given = [node_environ(environ, number) for number in range(3)]
    assert [each[setting] for each in given] == ["127.0.0.1:9464", "127.0.0.1:9465", "127.0.0.1:9466"]
    assert {each["OTHER"] for each in given} == {"127.0.0.1:9464"}
    assert not any("ISCP_NODE_ID" in each for each in given)
    with pytest.raises(ConfigurationError, match="no port for node 2") as refused:
        node_environ({setting: "127.0.0.1:65534"}, 2)
    assert refused.value.field == setting


@pytest.mark.parametrize("address", ["127.0.0.1:0", "", "nonsense", "9464", "h:²"])
def test_a_free_port_and_what_is_no_address_stay_as_they_are(address: str) -> None:
    assert node_environ({"ISCP_METRICS__LISTEN": address}, 2)["ISCP_METRICS__LISTEN"] == address


def test_nobody_else_may_read_what_it_keeps(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "new")
    layout.logs.mkdir(parents=True, mode=0o755)  # of an earlier release
    layout.root.chmod(0o755)
    with hold_directory(layout):
        layout.create()
    kept = [each for each in layout.root.iterdir() if each.is_dir()]
    assert len(kept) == 3
    assert [each.name for each in kept if each.stat().st_mode & 0o077] == []
    fresh = Layout(tmp_path / "fresh")
    with hold_directory(fresh):
        assert fresh.root.stat().st_mode & 0o077 == 0


def test_each_thing_is_said_once_after_a_moment() -> None:
    notice = WaitNotice()
    assert notice.due("etcd", 10.0) == ""
    assert notice.due("etcd", 10.0 + NOTICE_AFTER_S - 0.1) == ""
    assert notice.due("etcd", 10.0 + NOTICE_AFTER_S) == "waiting for etcd"
    assert notice.due("etcd", 100.0) == ""
    assert notice.due("a node", 100.0) == "", "its own moment begins"
    assert notice.due("a node", 100.0 + NOTICE_AFTER_S) == "waiting for a node"


def test_a_quick_start_says_nothing() -> None:
    notice = WaitNotice()
    said = [notice.due(awaited, 0.5 * n) for n, awaited in enumerate(("etcd", "a node", "Spark", "", ""))]
    assert said == [""] * 5
    assert notice.due("", 1_000.0) == ""


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "n-1 to start"),
        (["jars.downloading"], "n-1 to download jars"),
        (["jars.downloading", "jars.resolved", "spark.starting"], "n-1 to start Spark"),
        (["spark.starting", "spark.started", "selftest.passed"], "n-1 to be taken in by an owner"),
        (["spark.started", "node.ready", "node.stopped"], "n-1 to start"),
    ],
)
def test_a_nodes_log_shows_what_it_is_at(tmp_path: Path, events: list[str], words: str) -> None:
    log = tmp_path / "n-1.log"
    log.write_text("half a line}\n[1]\n" + "".join(json.dumps({"event": each}) + "\n" for each in events))
    assert awaited_of("n-1", log).startswith(words)
    assert awaited_of("n-1", tmp_path / "none") == "n-1 to start"
