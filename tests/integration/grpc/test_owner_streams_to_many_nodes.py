"""One owner's streams to very many nodes, over real sockets: what they take of the process, and that all are heard."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from iscp.model.protocol.messages import (
    Announce,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    NodeShardState,
    Sync,
)
from iscp.model.values.ids import NODES_MAX, NodeRecord, TableEpoch
from iscp.server.node.owner_streams import Peers
from tests.fakes.many_nodes_program import CLUSTER, OWNER_ID
from tests.fakes.prompt_nodes import EPOCH, job_rows, node_records

WAIT_S = 120.0
TABLES_OF_NODE = 20
THREADS_OF_NODE = 3
"""One that opens the stream and reads it, one that sends, and one that gRPC has for its state."""


class Heard:
    def __init__(self) -> None:
        self.synced: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self._came = threading.Condition()

    def take(self, node_id: str, messages: Sequence[NodeMessage]) -> None:
        with self._came:
            for message in messages:
                if isinstance(message, Sync):
                    self.synced[node_id] += 1
                elif isinstance(message, DispatchTableResponse) and message.state is NodeShardState.RUNNING:
                    self.running[node_id] += 1
            self._came.notify_all()

    def wait(self, said: Counter[str], nodes: int, of_each: int) -> None:
        with self._came:
            all_there: Callable[[], bool] = lambda: len(said) == nodes and min(said.values()) >= of_each  # noqa: E731
            assert self._came.wait_for(all_there, WAIT_S), f"{len(said)} of {nodes} were heard"


@contextmanager
def many_nodes(count: int) -> Iterator[tuple[NodeRecord, ...]]:
    command = [sys.executable, "-m", "tests.fakes.many_nodes_program", str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield tuple(replace(record, address=f"127.0.0.1:{port}") for record in node_records(count))
        process.communicate("", WAIT_S)


def held() -> tuple[int, int]:
    """Threads, Python's and gRPC's own, and file descriptors of this process."""
    return len(list(Path("/proc/self/task").iterdir())), len(os.listdir("/proc/self/fd"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [100, pytest.param(NODES_MAX, marks=pytest.mark.full)])
def test_an_owner_is_heard_by_all_of_very_many_nodes(count: int) -> None:
    heard = Heard()
    with many_nodes(count) as records:
        peers = Peers(CLUSTER, OWNER_ID, heard.take)
        threads_before, files_before = held()
        try:
            for record in records:
                peers.send(record, Announce(OWNER_ID, 1, 1, "v"))
            heard.wait(heard.synced, count, 1)
            rows = list(job_rows(TABLES_OF_NODE))
            for number, row in enumerate(rows, start=1):
                for record in records:
                    peers.send(record, DispatchTable(1, EPOCH, TableEpoch(1, number), row.key.shard, False, (row,)))
            heard.wait(heard.running, count, TABLES_OF_NODE)
            threads, files = held()
        finally:
            peers.close()
    assert threads - threads_before <= THREADS_OF_NODE * count + 20
    assert files - files_before <= count + 20
