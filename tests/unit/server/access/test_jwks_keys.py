"""Tokens count that one of the provider's keys has signed, by an algorithm of its own; all others are refused.

Fetching keys of a real server on this machine that is there, away, slow, endless, or talks nonsense.
"""

from __future__ import annotations

import base64
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import assume, given
from hypothesis import strategies as st

from iscp.model.access.authorization import TOKEN_CHARS_MAX, is_jwt
from iscp.model.access.security_config import SIGNATURE_ALGORITHMS
from iscp.model.values.errors import NotAuthenticated, Unavailable
from iscp.ports.admin import UnknownKey
from iscp.server.access.jwks_keys import JWKS_BYTES_MAX, KEYS_MAX, HttpJwks, JwksKeys, read_jwks
from iscp.system.tls.development_authority import CertificateKind, CertificateRequest, DevelopmentAuthority
from tests.fakes.provider import CONFIG, OidcProvider, answer_with, claims_at, jwks, private_key, public_jwk, sign

NOW_S = 1_700_000_000.0
CLAIMS = claims_at(NOW_S)
ALL = replace(CONFIG, algorithms=SIGNATURE_ALGORITHMS)
KEYS = read_jwks(jwks("rsa-1", "p256-1", "ed-1"), CONFIG)


def keys_of(*listed: object, config: Any = CONFIG) -> JwksKeys:
    return read_jwks(json.dumps({"keys": listed}).encode(), config)


def encoded(part: object) -> str:
    text = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


@pytest.mark.parametrize("key", ["rsa-1", "p256-1"])
def test_a_token_that_a_key_has_signed_says_its_claims(key: str) -> None:
    token = sign(CLAIMS, key)
    assert is_jwt(token)
    assert KEYS.verify(token) == CLAIMS
    assert KEYS.verify(sign({**CLAIMS, "aud": ["other", "iscp"], "jti": 7}, key))["jti"] == 7


@pytest.mark.parametrize("algorithm", SIGNATURE_ALGORITHMS)
def test_each_algorithm_is_for_keys_of_its_kind(algorithm: str) -> None:
    names = ("rsa-1", "p256-1", "p384-1", "p521-1", "ed-1")
    keys = read_jwks(jwks(*names), ALL)
    own = {"ES256": "p256-1", "ES384": "p384-1", "ES512": "p521-1", "EdDSA": "ed-1"}.get(algorithm, "rsa-1")
    token = sign(CLAIMS, own, algorithm)
    assert keys.verify(token) == CLAIMS
    for other in set(names) - {own}:
        with pytest.raises(NotAuthenticated, match="not its key's"):
            keys.verify(sign(CLAIMS, own, algorithm, {"kid": other}))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"aud": "other"}, "another audience"),
        ({"aud": ["other"]}, "another audience"),
        ({"aud": {"iscp": 1}}, "another audience"),
        ({"aud": None}, "`aud`"),
        ({"aud": []}, "`aud`"),
        ({"iss": "https://login.example/"}, "another issuer"),
        ({"iss": None}, "`iss`"),
        ({"exp": None}, "`exp`"),
        ({"iat": None}, "`iat`"),
        ({"sub": None}, "`sub`"),
    ],
)
def test_claims_have_to_be_for_this_cluster(changed: dict[str, object], message: str) -> None:
    with pytest.raises(NotAuthenticated, match=message) as refused:
        KEYS.verify(sign(claims_at(NOW_S, **changed)))
    assert "other" not in str(refused.value).replace("another", "")
    assert refused.value.remedy


def test_who_has_a_public_key_cannot_sign_by_it() -> None:
    """Neither as the secret of a symmetric algorithm, nor without a signature, nor by a key of one's own."""
    public = private_key("rsa-1").public_key()
    secrets = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(public_jwk("rsa-1")).encode(),
        b"",
    ]
    for keys in (KEYS, read_jwks(jwks("rsa-1"), ALL)):
        for secret in secrets:
            head = f"{encoded({'alg': 'HS256', 'kid': 'rsa-1'})}.{encoded(CLAIMS)}"
            signature = hmac.digest(secret, head.encode(), "sha256")
            with pytest.raises(NotAuthenticated, match="algorithm that counts"):
                keys.verify(f"{head}.{encoded(signature)}")
        for nothing in ("none", "None", "NONE", "", None, 0, ["RS256"], {"RS256": 1}):
            with pytest.raises(NotAuthenticated):
                keys.verify(f"{encoded({'alg': nothing, 'kid': 'rsa-1'})}.{encoded(CLAIMS)}.")
        own: dict[str, Any] = {"jwk": public_jwk("rsa-9"), "jku": "https://evil/keys", "x5u": "https://evil/x"}
        with pytest.raises(NotAuthenticated, match="has not made"):
            keys.verify(jwt.encode(CLAIMS, private_key("rsa-9"), "RS256", {"kid": "rsa-1", **own}))


def test_a_key_that_is_not_known_is_another_error_than_a_wrong_signature() -> None:
    with pytest.raises(UnknownKey):
        KEYS.verify(sign(CLAIMS, "rsa-2"))
    with pytest.raises(NotAuthenticated, match="has not made") as wrong:
        KEYS.verify(sign(CLAIMS, "rsa-2", headers={"kid": "rsa-1"}))
    assert type(wrong.value) is NotAuthenticated


def test_a_token_need_not_name_the_only_key() -> None:
    nameless = jwt.encode(CLAIMS, private_key("rsa-1"), "RS256")
    assert keys_of(public_jwk("rsa-1")).verify(nameless) == CLAIMS
    with pytest.raises(NotAuthenticated, match="by which key"):
        KEYS.verify(nameless)


def test_only_public_keys_for_signatures_that_are_strong_are_used() -> None:
    private = {**public_jwk("rsa-1"), "kid": "private", "d": "AQAB"}
    listed = [
        *(public_jwk("rsa-1", kid="enc", use="enc"), public_jwk("rsa-1", kid="wrap", key_ops=["wrapKey"])),
        *(
            public_jwk("rsa-1", kid="odd", key_ops=7),
            public_jwk("rsa-1", kid=7),
            public_jwk("rsa-1", kid="rs512", alg="RS512"),
        ),
        *(public_jwk("p256-1", kid="point", x="AAAA"), public_jwk("p256-1", kid="curve", crv="P-1")),
        *(public_jwk("p384-1"), public_jwk("ed-1"), public_jwk("weak-1"), private),
        *({"kty": "oct", "kid": "oct", "k": "c2VjcmV0"}, {"kty": "RSA", "kid": "empty"}, {}, "no key", None, 7),
        *({"kty": "RSA", "kid": "n", "n": 7, "e": None}, {"kty": ["RSA"], "kid": "list"}),
    ]
    assert list(keys_of(*listed, public_jwk("p256-1")).key_ids) == ["p256-1"]
    with pytest.raises(Unavailable, match="no key that can be used"):
        keys_of(*listed)
    assert set(keys_of(*listed, config=ALL).key_ids) == {"rs512", "p384-1", "ed-1"}


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"\xff", b"<html>", b'{"keys": {}}', b'{"keys": []}', b"[" * 100_000, b"7" * 10_000],
)
def test_what_is_no_list_of_keys_is_an_error_of_the_provider(text: bytes) -> None:
    with pytest.raises(Unavailable):
        read_jwks(text, CONFIG)


def test_too_many_keys_are_refused() -> None:
    with pytest.raises(Unavailable, match=str(KEYS_MAX)):
        keys_of(*[public_jwk("p256-1")] * (KEYS_MAX + 1))


def test_a_token_is_bounded() -> None:
    with pytest.raises(NotAuthenticated, match=str(TOKEN_CHARS_MAX)):
        KEYS.verify(sign({**CLAIMS, "groups": ["x" * 10] * 1_000}))


part = st.text(st.sampled_from("abcXYZ019-_="), max_size=40) | st.binary(max_size=40).map(encoded)
header = st.dictionaries(
    st.sampled_from(("alg", "kid", "typ", "crit", "b64", "jwk", "jku", "zip", "enc")),
    st.sampled_from(("RS256", "ES256", "HS256", "none", "rsa-1", "p256-1"))
    | st.booleans()
    | st.integers()
    | st.lists(st.sampled_from(("b64", "exp")), max_size=2),
)


@given(header.map(encoded) | part, st.just(encoded(CLAIMS)) | part, part)
def test_nobody_gets_in_by_what_no_key_has_signed(head: str, payload: str, signature: str) -> None:
    with pytest.raises(NotAuthenticated):
        KEYS.verify(f"{head}.{payload}.{signature}")


tokens = st.sampled_from((sign(CLAIMS), sign(CLAIMS, "p256-1")))


@given(tokens, st.floats(0, 1, exclude_max=True), st.sampled_from("aXZ0-_.="))
def test_nobody_gets_in_by_a_token_that_was_altered(token: str, part: float, other: str) -> None:
    at = int(len(token) * part)
    assume(token[at] != other)
    with pytest.raises(NotAuthenticated):
        KEYS.verify(token[:at] + other + token[at + 1 :])


@given(st.text(max_size=60))
def test_what_is_no_token_is_refused_as_any_other(text: str) -> None:
    with pytest.raises(NotAuthenticated):
        KEYS.verify(text)


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
