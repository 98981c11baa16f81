"""Fetches the public keys of a provider of OpenID Connect, within a bounded time and size."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from urllib.parse import urlsplit

from iscp.adapters.oidc.jwks_keys import JwksKeys, read_jwks
from iscp.adapters.system.bounded_post import BoundedAnswer
from iscp.core.access.security_config import OidcConfig
from iscp.core.values.errors import Unavailable

FETCH_TIMEOUT_S = 5.0
"""How long a fetch of a provider's keys may take, connecting and the whole answer included; then it has failed."""

JWKS_BYTES_MAX = 256 * 1024
"""Bytes of the answer with a provider's keys, headers included; a longer one is not read to its end, and has failed."""


class HttpJwks:
    """The port `KeySource` on a URL that `oidc_faults` has nothing against. Redirects are not followed."""

    def __init__(self, config: OidcConfig, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        parts = urlsplit(config.jwks_url)
        self._config = config
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._headers = {"host": parts.netloc, "accept": "application/json", "connection": "close"}
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._timeout_s = timeout_s

    def fetch(self) -> JwksKeys:
        until_s = time.monotonic() + self._timeout_s
        try:
            status, body = self._get(until_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = isinstance(error, TimeoutError)
            why = f"{self._host} did not answer in time" if late else f"{error}" or type(error).__name__
            raise Unavailable(
                f"the provider's keys cannot be fetched: {why}", about="security.oidc.jwks_url"
            ) from error
        if status != http.HTTPStatus.OK:
            raise Unavailable(f"{self._host} answers {status} instead of keys", about="security.oidc.jwks_url")
        return read_jwks(body, self._config)

    def _get(self, until_s: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port)
        try:
            connection.sock = opened = self._connect(until_s)
            connection.request("GET", self._target, headers=self._headers)
            answer = http.client.HTTPResponse(BoundedAnswer(opened, _left(until_s), JWKS_BYTES_MAX))  # type: ignore[arg-type]
            answer.begin()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _connect(self, until_s: float) -> socket.socket:
        opened = socket.create_connection((self._host, self._port), _left(until_s))
        if not self._tls:
            return opened
        try:
            # Made for each fetch: files of authorities may have been replaced.
            context = ssl.create_default_context(cafile=self._config.ca_file or None)
            opened.settimeout(_left(until_s))
            return context.wrap_socket(opened, server_hostname=self._host)
        except BaseException:
            opened.close()
            raise


def _left(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
