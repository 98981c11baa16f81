"""A real node with custom consumers that answer and raise anything: other jobs go on, and the node stops in order."""

from __future__ import annotations

import json
import signal

import pyarrow as pa
import pytest

from iscp.model.job.iteration import MaintenanceFigures
from tests.e2e.evidence import admin, admin_process
from tests.e2e.harness import STOP_WAIT_S, Cluster, append, assert_equal, read, wait_for
from tests.fakes.packages import install

CONSUMER = '''
import json
import time
from pathlib import Path

import numpy

from iscp.consumers.custom import CustomConsumer, PermanentError, Position, position_of


class Silent(Exception):
    def __str__(self):
        raise SystemExit("no text")


class Keeper(CustomConsumer):
    """Keeps nothing but the record, in a file; its option says what it does wrong."""

    def position(self):
        if self.options["wrong"] == "position":
            return Position(seq="1")
        path = Path(self.spec.target)
        return position_of(path.read_text() if path.exists() else None)

    def consume(self, context, retriever):
        match self.options["wrong"]:
            case "surrogate":
                raise ValueError("\\ud800 \\x1b[2J \\x00")
            case "long":
                raise ValueError("cause " + "x" * 100_000_000 + " end")
            case "silent":
                raise Silent()
            case "code":
                raise PermanentError("mine", code="soon")
            case "text":
                rows = "7"
            case "slow":
                retriever.next()
                while not Path(self.options["go"]).exists():
                    time.sleep(0.1)
                rows = 2
            case _:
                rows = numpy.int64(7)
        retriever.update_watermark(self)
        return rows

    def get(self, key):
        path = Path(self.spec.target)
        return path.read_text() if path.exists() else None

    def put(self, key, value):
        Path(self.spec.target).write_text(value)
'''

REFRESHING = (
    CONSUMER
    + '''

class Refreshing(Keeper):
    """Two of its jobs hang in their refreshes, one has them done each second, and one answers no time."""

    @classmethod
    def refresh(cls, job):
        if job.key.job_name.startswith("hangs"):
            threading.Event().wait()
        return [job.key.table_id], (None if job.key.job_name == "wrong" else time.time() + 1.0)
'''
)
REFRESHING = "import threading\nimport time\n" + REFRESHING

SAID = {
    "surrogate": "ValueError: \\ud800 \\x1b[2J \\x00",
    "long": "ValueError: cause xxx",
    "silent": "Silent: its text cannot be read",
    "code": "mine",
    "text": "the number of rows is '7'",
    "position": "seq is '1'",
}


def assert_progress_shows(cluster: Cluster, source: str) -> None:
    """Of an iteration that takes as long as it is to, and no more once it is over."""
    target, go = cluster.root / "slow.json", cluster.root / "go"
    options = {"wrong": "slow", "go": str(go)}
    cluster.client.register(source, "slow", consumer="poison", target=str(target), key=["id"], options=options)
    both = lambda: (found := cluster.client.status(source, "slow").progress) and found.rows_written == 2  # noqa: E731
    wait_for("its progress shows the rows handed", both)
    found = cluster.client.status(source, "slow").progress
    assert found is not None
    assert (found.purpose, found.rows_total, found.left_s) == ("apply", 2, 0.0)
    assert found.bytes_total > 0
    shown = admin_process(cluster.endpoint, "job", "status", source, "slow")
    assert "2 of 2 rows" in shown.out
    go.touch()
    assert cluster.client.wait(source, "slow", timeout_s=60).status.rows == 2
    assert cluster.client.status(source, "slow").progress is None


@pytest.mark.further  # each time: tests/unit/schedule/test_runner_poisoned_consumers.py
@pytest.mark.spark
def test_poisoned_consumers_harm_nobody_and_the_node_drains(cluster: Cluster) -> None:
    site = cluster.root / "site"
    install(site, "iscp_poison", CONSUMER, "iscp.consumers", poison="Keeper")
    environ = {"PYTHONPATH": str(site), "ISCP_CONSUMERS__ALLOW": "poison"}
    cluster.start(**environ)
    source = cluster.table("orders", pa.table({"id": [1, 2], "text": ["a", "b"]}))
    for wrong in (*SAID, "numpy"):
        target, options = str(cluster.root / f"{wrong}.json"), {"wrong": wrong}
        cluster.client.register(source, wrong, consumer="poison", target=target, key=["id"], options=options)
    copy = cluster.replica("copy", source, key=("id",))
    cluster.settle(copy)
    for wrong, said in SAID.items():
        wait_for(
            f"the job {wrong} says {said}",
            lambda wrong=wrong, said=said: said in cluster.client.status(source, wrong).status.error_msg,  # type: ignore[misc]
        )
        status = cluster.client.status(source, wrong).status
        message = status.error_msg
        assert status.failures > 0
        assert len(message) < 5_000
        assert message.isprintable()
        wait_for("its history is written", lambda wrong=wrong: cluster.client.history(source, wrong))  # type: ignore[misc]
        shown = admin(cluster.endpoint, "job", "status", source, wrong)
        assert said.split(":")[0] in shown.out, shown.out
        assert "\x1b" not in shown.out
    numbers = cluster.client.wait(source, "numpy", timeout_s=60)
    assert (numbers.state, numbers.status.rows) == ("completed", 7)

    assert_progress_shows(cluster, source)
    version = append(source, pa.table({"id": [3], "text": ["c"]}))
    assert cluster.settle(copy).applied_version == version
    assert_equal(copy.target, read(source))
    counters = admin_process(cluster.endpoint, "status", "-o", "json").json["queue"]
    assert counters["quarantined"] == 0, "all was translated where it came in"

    cluster.node.child.send_signal(signal.SIGTERM)
    assert cluster.node.child.wait(STOP_WAIT_S) == 0
    events = [json.loads(line)["event"] for line in cluster.node.log.read_text().splitlines() if line.startswith("{")]
    assert "iteration.failed" in events
    assert not {"node.broken", "log.broken", "history.broken", "inbox.broken", "node.stop_hangs"} & set(events)


@pytest.mark.further  # each time: tests/unit/schedule/test_maintenance.py
@pytest.mark.spark
def test_refreshes_that_hang_hold_up_no_other_and_show_in_the_status(cluster: Cluster) -> None:
    site = cluster.root / "site"
    install(site, "iscp_refreshing", REFRESHING, "iscp.consumers", refreshing="Refreshing")
    environ = {"PYTHONPATH": str(site), "ISCP_CONSUMERS__ALLOW": "refreshing", "ISCP_UPKEEP__TIMEOUT_S": "3"}
    cluster.start(**environ)
    source = cluster.table("orders", pa.table({"id": [1, 2], "text": ["a", "b"]}))
    for name in ("hangs", "hangs too", "good", "wrong"):
        target, options = str(cluster.root / f"{name}.json"), {"wrong": "numpy"}
        cluster.client.register(source, name, consumer="refreshing", target=target, key=["id"], options=options)

    def figures(name: str) -> MaintenanceFigures:
        found = cluster.client.status(source, name).upkeep.refresh
        return found or MaintenanceFigures()

    wait_for("the good one is refreshed again and again", lambda: figures("good").completed >= 2)
    wait_for("those that hang are given up", lambda: figures("hangs").hanging and figures("hangs too").hanging)
    assert [(figures(name).timeout, figures(name).error_code) for name in ("hangs", "hangs too")] == [(1, 3), (1, 3)]
    so_far = figures("good").completed
    wait_for("the good one goes on", lambda: figures("good").completed > so_far)
    assert (figures("wrong").quarantined, "is no time" in figures("wrong").error_msg) == (True, True)
    shown = admin_process(cluster.endpoint, "job", "status", source, "hangs").out
    assert "hanging" in shown
    assert "given up after 3 s" in shown
    assert admin_process(cluster.endpoint, "status", "-o", "json").json["queue"]["upkeep_hanging"] == 2

    cluster.node.child.send_signal(signal.SIGTERM)
    assert cluster.node.child.wait(STOP_WAIT_S) == 0, "the end does not wait for what hangs"
