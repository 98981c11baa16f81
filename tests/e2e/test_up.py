"""`iscp up` with a real node: it becomes ready, restarts what dies, resumes, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.cli.node.local_cluster import healthy
from iscp.cli.node.up import RunningUp, start_up
from iscp.client.admin_client import Client
from iscp.system.threads import SystemClock
from tests.e2e.harness import MARK, QUICK, append, assert_equal, leftovers, read, upsert, wait_for

Start = Callable[[], RunningUp]


@pytest.fixture
def mark() -> str:
    return uuid4().hex


@pytest.fixture
def start(tmp_path: Path, mark: str) -> Iterator[Start]:
    running: list[RunningUp] = []

    def once() -> RunningUp:
        # The port: the first time any, later the same again.
        port = None if running else 0
        running.append(start_up(tmp_path / "iscp", SystemClock(), os.environ | QUICK | {MARK: mark}, port=port))
        return running[-1]

    yield once
    for each in running:
        each.stop()


def rows(first: int, count: int, text: str = "a") -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "text": [text] * count})


@pytest.mark.spark
@pytest.mark.full
def test_a_job_goes_on_after_the_node_is_killed_and_after_a_new_start(start: Start, mark: str, tmp_path: Path) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    write_deltalake(source, rows(0, 100), configuration={"delta.enableChangeDataFeed": "true"})
    up = start()

    with Client(up.endpoint) as client:
        (node,) = client.cluster().nodes
        assert (node.node_id, node.pid, node.address) == ("iscp-0", up.node_pid, up.endpoint)
        assert client.register(source, "copy", target=target, key=["id"]).created
        client.wait(source, "copy", timeout_s=90.0)
        assert_equal(target, read(source))

        os.kill(up.node_pid, signal.SIGKILL)
        upsert(source, rows(50, 100, "b"), ["id"])
        wait_for("the node died", lambda: not healthy(up.endpoint))
        wait_for("the node serves again", lambda: healthy(up.endpoint))
        client.wait(source, "copy", timeout_s=90.0)
        assert_equal(target, read(source))
        assert client.cluster().nodes[0].pid not in (0, up.node_pid)

    assert up.stop() == 0
    logs = list((tmp_path / "iscp" / "logs").iterdir())
    assert {"iscp-0.log", "etcd.log"} <= {each.name for each in logs}
    for each in logs:
        for line in each.read_text().splitlines():
            assert isinstance(json.loads(line), dict), f"{each.name}: {line}"
    wait_for("nothing is left behind", lambda: not leftovers(mark))

    append(source, rows(1_000, 10, "c"))
    again = start()
    assert again.endpoint == up.endpoint
    with Client(again.endpoint) as client:
        assert [job.name for job in client.jobs()] == ["copy"]
        client.wait(source, "copy", timeout_s=90.0)
        assert_equal(target, read(source))

    again.child.kill()
    wait_for("killed, it leaves nothing either", lambda: not leftovers(mark))
