"""A consumer that crashes the process from within a library: after the second time the node goes on without its job."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from iscp.model.api.api_requests import JobView
from iscp.model.values.errors import ErrorCode
from tests.e2e.harness import NODE_ID, Cluster, append, assert_equal, read, wait_for
from tests.fakes.packages import install
from tests.selection import in_full

CONSUMER = '''
import ctypes
import os
import signal
import threading
import time
from pathlib import Path

from iscp.consumers.custom import CustomConsumer, position_of


def touch_foreign_memory():
    ctypes.string_at(16)


def abort_in_a_thread_of_c():
    libc = ctypes.CDLL(None)
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.abort, None)
    time.sleep(60)


HOW = {
    "aborts": os.abort,
    "segfaults": touch_foreign_memory,
    "aborts elsewhere": abort_in_a_thread_of_c,
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


class Fragile(CustomConsumer):
    """Keeps nothing but the record, in a file; while another file is there, that says how the process is to end."""

    def position(self):
        return position_of(self.get(None))

    def consume(self, context, retriever):
        how = Path(self.options["how"])
        if how.exists():
            HOW[how.read_text()]()
        retriever.update_watermark(self)
        return 0

    def get(self, key):
        path = Path(self.spec.target)
        return path.read_text() if path.exists() else None

    def put(self, key, value):
        Path(self.spec.target).write_text(value)
'''

SIGNALS = {
    "aborts": (signal.SIGABRT, "Aborted"),
    "segfaults": (signal.SIGSEGV, "Segmentation fault"),
    "aborts elsewhere": (signal.SIGABRT, "Aborted"),
}


class Fragile:
    """A cluster with the job `fragile` beside a replica of the same table, and one of another table."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.how = cluster, cluster.root / "how"
        site = cluster.root / "site"
        install(site, "iscp_fragile", CONSUMER, "iscp.consumers", fragile="Fragile")
        path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
        self.environ = {"PYTHONPATH": path, "ISCP_CONSUMERS__ALLOW": "fragile"}
        cluster.start(**self.environ)
        self.source = cluster.table("orders", pa.table({"id": [1, 2]}))
        self.other = cluster.table("others", pa.table({"id": [1, 2]}))
        options = {"how": str(self.how)}
        target = str(cluster.root / "record.json")
        cluster.client.register(self.source, "fragile", consumer="fragile", target=target, key=["id"], options=options)
        self.copies = [cluster.replica(name, source, key=("id",)) for name, source in self.tables.items()]
        self.settle()

    @property
    def tables(self) -> dict[str, str]:
        return {"copy": self.source, "other copy": self.other}

    def settle(self) -> None:
        self.cluster.client.wait(self.source, "fragile", timeout_s=60)
        self.settle_copies()

    def settle_copies(self) -> None:
        for copy in self.copies:
            self.cluster.settle(copy)
            assert_equal(copy.target, read(copy.source))

    def status(self) -> JobView:
        return self.cluster.client.status(self.source, "fragile")

    def ends(self, how: str, times: int, number: signal.Signals) -> None:
        """Have its next iterations end the node, which is started again each time, and at last left."""
        self.how.write_text(how)
        append(self.source, pa.table({"id": [3]}))
        for started in range(times):
            if started:
                self.cluster.launch_node(**self.environ)
            assert self.cluster.node.wait_end() == -number

    def remembered(self) -> dict[str, int]:
        file = Path(self.cluster.layout.scratch(NODE_ID), "crashes", "deaths.json")
        jobs = json.loads(file.read_text())["jobs"] if file.exists() else {}
        return {job_id: each["count"] for job_id, each in jobs.items()}


@pytest.mark.spark
@pytest.mark.parametrize("how", in_full([*SIGNALS]))
@pytest.mark.slow
def test_a_job_that_crashes_the_node_twice_is_left_and_all_others_go_on(cluster: Cluster, how: str) -> None:
    fragile = Fragile(cluster)
    number, named = SIGNALS[how]
    fragile.ends(how, 2, number)
    cluster.start_node(**fragile.environ)
    wait_for("it says why it does not run", lambda: fragile.status().status.error_code == ErrorCode.NODE_KILLED)
    status = fragile.status()
    assert (status.state, status.reason) == ("error", "quarantined")
    assert "2 times in a row, the last time at 20" in status.status.error_msg
    assert f"({named})" in status.status.error_msg
    fragile.settle_copies()
    append(fragile.other, pa.table({"id": [4]}))
    fragile.settle_copies()
    assert cluster.node_events("node.crashed") == 2
    assert 2 in fragile.remembered().values()
    fragile.how.unlink()
    assert cluster.client.resume(fragile.source, "fragile")
    fragile.settle()
    assert 2 not in fragile.remembered().values()


@pytest.mark.further  # each time: processes that end in nine ways in test_crash_ledger.py
@pytest.mark.spark
def test_a_node_that_is_killed_holds_it_against_no_job(cluster: Cluster) -> None:
    """Nor one crash alone: the job runs again."""
    fragile = Fragile(cluster)
    fragile.ends("is killed", 3, signal.SIGKILL)
    fragile.how.write_text("aborts")
    cluster.launch_node(**fragile.environ)
    assert cluster.node.wait_end() == -signal.SIGABRT
    fragile.how.unlink()
    cluster.start_node(**fragile.environ)
    fragile.settle()
    assert fragile.status().status.error_code == 0
    assert fragile.remembered() == {}
