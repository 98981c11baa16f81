"""Certificates that are renewed while calls are made: no call is lost, and new connections have the new ones."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from iscp.aio import Client as AsyncClient
from iscp.client.admin_client import Client
from iscp.client.channel.grpc_calls import open_channel
from iscp.model.values.errors import ConfigurationError, Unavailable
from iscp.server.admin.admin_server import AdminServer
from iscp.server.http.gateway_server import GatewayServer
from iscp.system.tls.certificate_watch import CertificateWatch
from iscp.system.tls.renewing_channel import secure_channel
from iscp.system.tls.tls_files import Tls, split_address
from tests.fakes.admin import FakeAdmin
from tests.fakes.certs import Certs


class Ticks:
    """Each reading of it is beyond the pause between two checks."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += 10.0
        return self._now_s


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path / "certs")


@pytest.fixture
def server(certs: Certs) -> Iterator[AdminServer]:
    made = AdminServer(FakeAdmin(), "localhost:0", tls=CertificateWatch(certs.files("node"), clock=Ticks()))
    made.start()
    made.ready()
    yield made
    made.stop(0.0)


def shown(address: str, certs: Certs) -> bytes:
    """The certificate with which the server begins a new connection."""
    context = ssl.create_default_context(cafile=str(certs.directory / "ca.pem"))
    context.load_cert_chain(certs.directory / "client.pem", certs.directory / "client.key")
    host, port = split_address(address)
    with socket.create_connection((host, port)) as plain, context.wrap_socket(plain, server_hostname=host) as secure:
        found = secure.getpeercert(binary_form=True)
        assert found
        assert secure.version() in ("TLSv1.2", "TLSv1.3")
        return found


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def test_a_server_shows_the_new_certificate_to_new_connections(server: AdminServer, certs: Certs) -> None:
    before = der(certs.directory / "node.pem")
    assert shown(server.address, certs) == before
    with Client(server.address, tls=certs.files("client")) as client:
        client.cluster()
        certs.authority.renew("node", new_key=True)
        assert shown(server.address, certs) == der(certs.directory / "node.pem") != before
        client.cluster()


def test_half_a_renewal_is_not_shown(server: AdminServer, certs: Certs) -> None:
    before = der(certs.directory / "node.pem")
    (certs.directory / "node.key").write_bytes((certs.directory / "client.key").read_bytes())
    assert shown(server.address, certs) == before


def test_a_client_goes_on_with_the_new_certificate_and_loses_no_call(server: AdminServer, certs: Certs) -> None:
    """Threads call all the time while the client's pair is replaced again and again."""
    watch = CertificateWatch(certs.files("client"), clock=Ticks())
    opened: list[Tls] = []

    class Noting:
        def current(self) -> Tls:
            if not opened or watch.current() is not opened[-1]:
                opened.append(watch.current())
            return opened[-1]

    stop, failures, calls = threading.Event(), list[grpc.RpcError](), [0, 0, 0]
    with secure_channel(grpc, server.address, Noting(), ()) as channel:
        health = channel.unary_unary("/grpc.health.v1.Health/Check")

        def call(number: int) -> None:
            while not stop.is_set():
                try:
                    health(b"", timeout=20)
                    health.future(b"", timeout=20).result()
                    calls[number] += 1
                except grpc.RpcError as error:
                    failures.append(error)
                    return

        threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
        for thread in threads:
            thread.start()
        for _ in range(5):
            done = sum(calls)
            certs.authority.renew("client", new_key=True)
            while sum(calls) < done + 20 and not failures:
                stop.wait(0.01)
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len({tls.certificate for tls in opened}) == 6


def test_a_stream_lasts_on_the_connection_on_which_it_began(server: AdminServer, certs: Certs) -> None:
    watch = CertificateWatch(certs.files("client"), clock=Ticks())
    with open_channel(server.address, watch) as channel:
        watching = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=30)
        assert next(watching)
        certs.authority.renew("client")
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20)
        assert watching.is_active()
        watching.cancel()


def test_a_client_of_asyncio_goes_on_too(server: AdminServer, certs: Certs) -> None:
    async def use() -> None:
        watch = CertificateWatch(certs.files("client"), clock=Ticks())
        channel = secure_channel(grpc.aio, server.address, watch, ())
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        for _ in range(3):
            await asyncio.gather(*(check(b"", timeout=20) for _ in range(5)))
            certs.authority.renew("client", new_key=True)
        await check(b"", timeout=20)
        await channel.close()
        async with AsyncClient(server.address, tls=certs.files("client")) as client:
            await client.cluster()

    asyncio.run(use())


def test_another_authority_is_taken_up_by_both_sides(server: AdminServer, certs: Certs, tmp_path: Path) -> None:
    """As an authority is replaced: both are trusted for a while."""
    others = Certs(tmp_path / "others")
    stranger = others.files("client", server_name="localhost")
    both = (certs.directory / "ca.pem").read_bytes() + (others.directory / "ca.pem").read_bytes()
    (others.directory / "ca.pem").write_bytes(both)
    with Client(server.address, timeout_s=1, tls=stranger) as client, pytest.raises(Unavailable):
        client.cluster()
    (certs.directory / "ca.pem").write_bytes(both)
    with Client(server.address, tls=stranger) as client:
        client.cluster()
    for half in ("pem", "key"):
        shutil.copy(others.directory / f"node.{half}", certs.directory / f"node.{half}")
    assert shown(server.address, others) == der(others.directory / "node.pem")


def test_the_gateway_shows_the_new_certificate_too(certs: Certs) -> None:
    watch = CertificateWatch(certs.files("node", "localhost"), clock=Ticks())
    gateway = GatewayServer(AdminServer(FakeAdmin(), "localhost:0", tls=watch), "localhost:0", "1", tls=watch)
    gateway.start()
    gateway.ready()
    try:
        assert shown(gateway.address, certs) == der(certs.directory / "node.pem")
        certs.authority.renew("node")
        assert shown(gateway.address, certs) == der(certs.directory / "node.pem")
    finally:
        gateway.stop(0.0)


def test_files_that_are_unfit_are_refused_before_anything_is_called(certs: Certs) -> None:
    (certs.directory / "client.key").unlink()
    with pytest.raises(ConfigurationError, match=r"key_file: .*cannot be read"):
        Client("localhost:1", tls=certs.files("client"))
