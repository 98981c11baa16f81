"""Connections on which nobody says anything are bounded, end soon, and leave the node's users served."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from iscp.client.admin_client import Client
from iscp.client.channel.grpc_calls import SERVER_KEEPALIVE_MS, SERVER_KEEPALIVE_TIMEOUT_MS
from iscp.client.channel.silent_calls import (
    GRPC_CONNECTIONS_MAX,
    HANDSHAKE_MAX_MS,
    HOST_RATIO,
    PROBE_CONNECTIONS_MAX,
)
from iscp.server.admin.forwarding import HealthListener
from iscp.system.http_exchange import free_port
from iscp.system.small_files import raise_open_files_limit
from tests.fakes.attacked_node import AttackedNode
from tests.fakes.raw_http2 import begin
from tests.fakes.waiting import until

FEW, MANY = 500, 10_000
MIB_FEW, MIB_MANY = 30, 150
HANDSHAKE_S = HANDSHAKE_MAX_MS / 1_000
MARGIN_S = 10.0


@contextmanager
def connections(address: str, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    host, _, port = address.rpartition(":")
    with ExitStack() as opened:
        made = []
        for _ in range(count):
            made.append(opened.enter_context(socket.create_connection((host, int(port)), timeout=20.0)))
            made[-1].sendall(said)
        yield made


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has not closed it; what it says is dropped."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def say_nothing(node: AttackedNode, count: int, more_mib: int, kept_max: int) -> None:
    files, before_mib = node.files, node.memory_mib
    with Client(node.address, timeout_s=20.0) as client:
        client.cluster()
        with connections(node.address, count) as silent:
            begin_s = time.monotonic()
            until(lambda: node.files >= files + min(count, kept_max) // 2)
            while time.monotonic() < begin_s + HANDSHAKE_S:
                client.cluster()
                assert node.files <= files + kept_max + 20
                assert node.memory_mib <= before_mib + more_mib
                time.sleep(0.5)
            until(lambda: not any(map(is_open, silent)), HANDSHAKE_S + MARGIN_S)
        node.assert_unharmed(before_mib, more_mib)
    until(lambda: node.files <= files + 20)


def test_hundreds_of_silent_connections_end_and_leave_users_served(attacked: AttackedNode) -> None:
    say_nothing(attacked, FEW, MIB_FEW, FEW)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_ten_thousand_silent_connections_are_bounded_and_leave_users_served(attacked: AttackedNode) -> None:
    assert raise_open_files_limit() > MANY + 500, "raise `ulimit -Hn` for this"
    say_nothing(attacked, MANY, MIB_MANY, GRPC_CONNECTIONS_MAX)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_connections_that_begin_and_leave_pings_unanswered_are_closed(attacked: AttackedNode) -> None:
    files = attacked.files
    with connections(attacked.address, FEW, begin()) as silent:
        until(
            lambda: not any(map(is_open, silent)),
            (SERVER_KEEPALIVE_MS + SERVER_KEEPALIVE_TIMEOUT_MS) / 1_000 + MARGIN_S,
        )
    until(lambda: attacked.files <= files + 20)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_thousands_of_connections_without_a_call_leave_room_for_new_ones(attacked: AttackedNode) -> None:
    with (
        Client(attacked.address, timeout_s=20.0) as before,
        connections(attacked.address, GRPC_CONNECTIONS_MAX, begin()),
        Client(attacked.address, timeout_s=20.0) as after,
    ):
        for client in (before, after):
            client.cluster()


def test_connections_without_a_call_give_way_to_new_ones() -> None:
    """At the port for probes, where few are allowed, and from one host, as all others are."""
    listener = HealthListener(health.HealthServicer(), address := f"127.0.0.1:{free_port()}")
    listener.start()
    request = health_pb2.HealthCheckRequest()
    try:
        with grpc.insecure_channel(address) as early:
            watched = health_pb2_grpc.HealthStub(early).Watch(request)
            assert next(watched).status
            with (
                connections(address, 2 * PROBE_CONNECTIONS_MAX, begin()) as idle,
                grpc.insecure_channel(address) as late,
            ):
                for stub in (early, late):
                    check = health_pb2_grpc.HealthStub(stub).Check
                    assert check(request, timeout=MARGIN_S, wait_for_ready=True).status
                until(lambda: sum(map(is_open, idle)) <= PROBE_CONNECTIONS_MAX * HOST_RATIO)
            assert watched.is_active()
            watched.cancel()
    finally:
        listener.stop()


def test_of_too_many_connections_those_beyond_are_closed_at_once() -> None:
    """At the port for probes, where few are allowed; it is probed again when these have ended."""
    listener = HealthListener(health.HealthServicer(), address := f"127.0.0.1:{free_port()}")
    listener.start()
    try:
        with connections(address, FEW) as silent:
            until(lambda: sum(map(is_open, silent)) <= PROBE_CONNECTIONS_MAX, HANDSHAKE_S / 2)
            with grpc.insecure_channel(address) as channel:
                check = health_pb2_grpc.HealthStub(channel).Check
                request = health_pb2.HealthCheckRequest()
                assert check(request, timeout=HANDSHAKE_S + MARGIN_S, wait_for_ready=True).status
    finally:
        listener.stop()
