"""Fetching keys of a real server on this machine that is there, away, slow, endless, or talks nonsense."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from iscp.adapters.oidc.jwks_source import JWKS_BYTES_MAX, HttpJwks
from iscp.adapters.tls.development_authority import CertificateKind, CertificateRequest, DevelopmentAuthority
from iscp.core.values.errors import Unavailable
from tests.fakes.provider import OidcProvider, answer_with, claims_at, jwks, sign

SHORT_S = 0.5


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    made = OidcProvider("rsa-1", "p256-1")
    yield made
    made.close()


def source(provider: OidcProvider, timeout_s: float = 20.0) -> HttpJwks:
    return HttpJwks(provider.config(), timeout_s)


def test_keys_are_those_that_the_provider_publishes(provider: OidcProvider) -> None:
    claims = claims_at(0.0)
    keys = source(provider).fetch()
    assert list(keys.key_ids) == ["rsa-1", "p256-1"]
    assert keys.verify(sign(claims, "p256-1")) == claims
    provider.keys = ("rsa-2",)
    assert list(source(provider).fetch().key_ids) == ["rsa-2"]


def chunked(connection: socket.socket) -> None:
    body = jwks("rsa-1")
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    connection.sendall(head + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")


def test_an_answer_may_come_in_chunks(provider: OidcProvider) -> None:
    provider.answer = chunked
    assert list(source(provider).fetch().key_ids) == ["rsa-1"]


def endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b" " * 65_536)


def trickling(connection: socket.socket) -> None:
    """A byte now and then, so that no single wait is long."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for _ in range(200):
        connection.sendall(b"x")
        time.sleep(SHORT_S / 10)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (answer_with(b"", "503 Service Unavailable"), "answers 503"),
        (answer_with(b"", "302 Found"), "answers 302"),
        (answer_with(b"<html>"), "not JSON"),
        (answer_with(b'{"keys": []}'), "no key that can be used, of 0"),
        (answer_with(b" " * JWKS_BYTES_MAX), "too long"),
        (endless, "too long"),
        (lambda connection: None, "cannot be fetched"),
        (lambda connection: connection.sendall(b"SSH-2.0\r\n\r\n"), "cannot be fetched"),
        (lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"), "cannot be fetched"),
    ],
)
def test_other_answers_are_a_temporary_error(
    provider: OidcProvider, answer: Callable[[socket.socket], None], message: str
) -> None:
    provider.answer = answer
    with pytest.raises(Unavailable, match=message):
        source(provider).fetch()


@pytest.mark.parametrize("answer", [trickling, lambda connection: threading.Event().wait(4 * SHORT_S)])
def test_a_fetch_ends_in_time(provider: OidcProvider, answer: Callable[[socket.socket], None]) -> None:
    provider.answer = answer
    began_s = time.monotonic()
    with pytest.raises(Unavailable, match="cannot be fetched"):
        source(provider, SHORT_S).fetch()
    assert time.monotonic() - began_s < 3 * SHORT_S


def test_a_provider_that_is_away_is_a_temporary_error(provider: OidcProvider) -> None:
    provider.close()
    with pytest.raises(Unavailable, match="cannot be fetched"):
        source(provider).fetch()


def serve_tls(listener: socket.socket, context: ssl.SSLContext, times: int) -> None:
    for _ in range(times):
        connection, _ = listener.accept()
        try:
            with context.wrap_socket(connection, server_side=True) as guarded:
                guarded.recv(4_096)
                answer_with(jwks("rsa-1"))(guarded)
        except OSError:
            connection.close()  # the client has not believed the certificate


def test_https_is_believed_by_the_authorities_that_are_named(tmp_path: Path, provider: OidcProvider) -> None:
    authority, _ = DevelopmentAuthority.init(tmp_path / "a"), DevelopmentAuthority.init(tmp_path / "b")
    authority.make(CertificateRequest(CertificateKind.ETCD, "localhost", hosts=("localhost",)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "a" / "localhost.pem", tmp_path / "a" / "localhost.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve_tls, args=(listener, context, 3), daemon=True)
        server.start()
        url = f"https://localhost:{listener.getsockname()[1]}/keys"
        config = replace(provider.config(), jwks_url=url, ca_file=str(tmp_path / "a" / "ca.pem"))
        assert list(HttpJwks(config).fetch().key_ids) == ["rsa-1"]
        for refused in (replace(config, ca_file=str(tmp_path / "b" / "ca.pem")), replace(config, ca_file="")):
            with pytest.raises(Unavailable, match="certificate verify failed"):
                HttpJwks(refused).fetch()
        server.join(10)
