"""Fetches the public keys of a provider of OpenID Connect, within a bounded time and size."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlsplit

from iscp.adapters.oidc.jwks_keys import JwksKeys, read_jwks
from iscp.adapters.system.http_exchange import HttpPeers, exchange, failure_words
from iscp.core.access.security_config import OidcConfig
from iscp.core.values.errors import Unavailable

FETCH_TIMEOUT_S = 5.0
"""How long a fetch of a provider's keys may take, connecting and the whole answer included; then it has failed."""

JWKS_BYTES_MAX = 256 * 1024
"""Bytes of the answer with a provider's keys, headers included; a longer one is not read to its end, and has failed."""


class HttpJwks:
    """The port `KeySource` on a URL that `oidc_faults` has nothing against. Redirects are not followed."""

    def __init__(self, config: OidcConfig, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        self._config = config
        self._host = urlsplit(config.jwks_url).hostname or ""
        self._timeout_s = timeout_s

    def fetch(self) -> JwksKeys:
        try:
            answer = exchange(
                "GET",
                self._config.jwks_url,
                None,
                {"accept": "application/json"},
                timeout_s=self._timeout_s,
                bytes_max=JWKS_BYTES_MAX,
                peers=HttpPeers(ca_file=self._config.ca_file),
            )
        except OSError as error:
            late = isinstance(error, TimeoutError)
            why = f"{self._host} did not answer in time" if late else failure_words(error)
            raise Unavailable(
                f"the provider's keys cannot be fetched: {why}", about="security.oidc.jwks_url"
            ) from error
        if answer.status != HTTPStatus.OK:
            raise Unavailable(f"{self._host} answers {answer.status} instead of keys", about="security.oidc.jwks_url")
        return read_jwks(answer.body, self._config)
