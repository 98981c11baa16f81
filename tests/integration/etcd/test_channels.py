"""Three members: what the loss of one, leader or not, costs a client."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from iscp.app.coordination_parts import check_releases
from iscp.etcd.channels import EtcdOutcomeUnknown, EtcdUnavailable
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Changed, EtcdSettings
from iscp.etcd.server import EtcdServer, member_releases
from iscp.model.values.errors import ConfigurationError
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


def test_the_release_of_each_member_is_known_that_answers(
    members: list[EtcdServer], connect: Callable[..., EtcdClient], clock: Clock, eventually: Callable[..., float]
) -> None:
    """By the cluster's list, of which one endpoint is enough."""
    settings = EtcdSettings((members[0].endpoint,))
    client = connect(members[0].endpoint, timeout_s=15.0)
    client.put("/k", b"")  # there is a quorum
    eventually(lambda: "" not in member_releases(client, settings, clock, 5.0), within_s=20)
    releases = member_releases(client, settings, clock, 5.0)
    assert releases == dict.fromkeys(("m0", "m1", "m2"), client.status().version)
    with pytest.raises(ConfigurationError, match=r"member m1: .* can corrupt"):
        check_releases({"m0": "3.6.16", "m1": "3.5.1", "m2": "3.6.16"}, accepted=False)
    members[2].kill()
    assert member_releases(client, settings, clock, 5.0)["m2"] == ""
    check_releases({"m0": "3.6.16", "m2": ""}, accepted=False)


def _put(client: EtcdClient, value: bytes) -> bool:
    try:
        client.put("/k", value)
    except EtcdUnavailable:
        return False
    except EtcdOutcomeUnknown:
        found = client.get("/k")
        return found is not None and found.value == value
    return True
