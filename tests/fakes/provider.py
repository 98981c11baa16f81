"""A provider of OpenID Connect on this machine: its keys, tokens signed by them, and a server that publishes them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, SECP521R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as make_ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as make_rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from iscp.model.access.security_config import OidcConfig
from tests.fakes.webhooks import HttpReceiver

ISSUER, AUDIENCE = "https://login.example", "iscp"
CONFIG = OidcConfig(issuer=ISSUER, audience=AUDIENCE, jwks_url="https://login.example/keys")

ALGORITHMS = {"rsa": "RS256", "weak": "RS256", "p256": "ES256", "p384": "ES384", "p521": "ES512"}

_MAKING = threading.Lock()

Private = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey


def private_key(name: str) -> Private:
    """The same one for a name each time: `rsa-…`, `weak-…`, `p256-…`, `p384-…`, `p521-…` or `ed-…`."""
    with _MAKING:  # else two threads could make one each
        return _make_key(name)


@cache
def _make_key(name: str) -> Private:
    match name.partition("-")[0]:
        case "rsa":
            return make_rsa(65_537, 2_048)
        case "weak":
            return make_rsa(65_537, 1_024)
        case "p256":
            return make_ec(SECP256R1())
        case "p384":
            return make_ec(SECP384R1())
        case "p521":
            return make_ec(SECP521R1())
        case _:
            return Ed25519PrivateKey.generate()


def public_jwk(name: str, **changed: object) -> dict[str, object]:
    """As providers publish it."""
    match private_key(name):
        case RSAPrivateKey() as rsa:
            known: dict[str, object] = RSAAlgorithm.to_jwk(rsa.public_key(), as_dict=True)
        case EllipticCurvePrivateKey() as ec:
            known = ECAlgorithm.to_jwk(ec.public_key(), as_dict=True)
        case ed:
            known = OKPAlgorithm.to_jwk(ed.public_key(), as_dict=True)
    return {**known, "kid": name, "use": "sig", **changed}


def jwks(*names: str) -> bytes:
    return json.dumps({"keys": [public_jwk(name) for name in names]}).encode()


def claims_at(now_s: float, **changed: object) -> dict[str, object]:
    """Of somebody who may do nothing wrong. Those that are None are left out."""
    known = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ana", "account": "acme", "role": "editor"}
    times = {"iat": int(now_s), "exp": int(now_s) + 600}
    return {name: value for name, value in {**known, **times, **changed}.items() if value is not None}


def sign(
    claims: Mapping[str, Any], key: str = "rsa-1", algorithm: str = "", headers: Mapping[str, Any] | None = None
) -> str:
    default = ALGORITHMS.get(key.partition("-")[0], "EdDSA")
    return jwt.encode(dict(claims), private_key(key), algorithm or default, {"kid": key, **(headers or {})})


def answer_with(body: bytes, status: str = "200 OK") -> Callable[[socket.socket], None]:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return lambda connection: connection.sendall(head.encode() + body)


class OidcProvider:
    """Publishes `keys` by HTTP, unless `answer` says otherwise."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys
        self.answer: Callable[[socket.socket], None] | None = None
        self._receiver = HttpReceiver(self._publish)

    def config(self, **changed: Any) -> OidcConfig:
        url = f"http://127.0.0.1:{self._receiver.port}/keys?of=iscp"
        return OidcConfig(**{"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": url, **changed})

    def token(self, key: str = "", **changed: object) -> str:
        return sign(claims_at(time.time(), **changed), key or self.keys[0])

    def close(self) -> None:
        self._receiver.close()

    def _publish(self, connection: socket.socket) -> None:
        (self.answer or answer_with(jwks(*self.keys)))(connection)
