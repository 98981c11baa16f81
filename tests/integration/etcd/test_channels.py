"""Three members: what the loss of one, leader or not, costs a client."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.etcd_errors import EtcdOutcomeUnknown, EtcdUnavailable
from iscp.adapters.etcd.server import EtcdServer
from iscp.adapters.etcd.values import Changed
from iscp.ports.system import Clock


@pytest.fixture
def members(tmp_path: Path, clock: Clock) -> Iterator[list[EtcdServer]]:
    with ExitStack() as ports:
        probes = [ports.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        cluster = {f"m{number}": int(probe.getsockname()[1]) for number, probe in enumerate(probes)}
    with ExitStack() as stack:
        started = []
        for name, port in cluster.items():
            server = EtcdServer.start(
                tmp_path / name, peer_port=port, name=name, cluster=cluster, clock=clock, wait=False
            )
            stack.callback(server.kill)
            started.append(server)
        yield started


def test_killing_the_connected_member_interrupts_neither_calls_nor_the_watch(
    members: list[EtcdServer],
    connect: Callable[..., EtcdClient],
    eventually: Callable[..., float],
) -> None:
    """The first endpoint is the one in use: it dies, be it raft's leader or not, and the next one takes over."""
    client = connect(*(member.endpoint for member in members), timeout_s=15.0)
    start = client.put("/k", b"0") + 1
    told: list[bytes] = []
    with client.watch("/k", start_revision=start) as watch:
        assert client.put("/k", b"1") == start
        items = (item for item in watch if isinstance(item, Changed))
        told += [event.kv.value for event in next(items).events]
        members[0].kill()
        failover_s = eventually(lambda: _put(client, b"2"), within_s=20)
        told += [event.kv.value for event in next(items).events]
    assert told == [b"1", b"2"]
    assert failover_s < 10
    found = client.get("/k")
    assert found is not None
    assert found.value == b"2"


def _put(client: EtcdClient, value: bytes) -> bool:
    try:
        client.put("/k", value)
    except EtcdUnavailable:
        return False
    except EtcdOutcomeUnknown:
        found = client.get("/k")
        return found is not None and found.value == value
    return True
