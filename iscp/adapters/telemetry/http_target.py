"""A receiver of telemetry by HTTP, with the headers by which it knows who sends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from iscp.adapters.system.http_exchange import exchange, failure_words
from iscp.adapters.system.named_files import read_named_file
from iscp.core.values.errors import ConfigurationError, PermanentError, Unavailable

POST_TIMEOUT_S = 10.0
"""Seconds that one request to a receiver of telemetry may take in all; then the attempt has failed."""

ANSWER_BYTES_MAX = 65_536
"""Bytes of a receiver's answer, with its headers; if it is longer the attempt has failed."""

HEADERS_BYTES_MAX = 16_384
"""Bytes of a file with headers; a larger one is refused at the node's start."""

RETRIED = frozenset({408, 425, 429})

_HEADER = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[\x20-\x7e]*)")
_OWN = frozenset({"host", "content-length", "content-type", "connection", "transfer-encoding"})


def read_headers(file: str, field: str) -> Mapping[str, str]:
    """Return the headers of a file, which has one a line, `NAME: VALUE`; empty lines, and those with # first, are left
    out. None are returned if no file is named. Raises ConfigurationError on `field`, without what the file holds.
    """
    if not file:
        return {}
    content = read_named_file(file, field, HEADERS_BYTES_MAX)
    if len(content) > HEADERS_BYTES_MAX:
        raise ConfigurationError(f"{file} has more than {HEADERS_BYTES_MAX} bytes", about=field, remedy="Shorten it")
    headers: dict[str, str] = {}
    for number, line in enumerate(content.decode("latin-1").split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _HEADER.fullmatch(line.rstrip())
        if found is None or found["name"].lower() in _OWN:
            raise ConfigurationError(
                f"{file} has a line {number} that is no header",
                about=field,
                remedy="Write NAME: VALUE, as in authorization: Bearer TOKEN",
            )
        headers[found["name"].lower()] = found["value"]
    return headers


class HttpTarget:
    """Post to a URL that `url_fault` has nothing against. No redirect is followed."""

    def __init__(self, url: str, headers: Mapping[str, str], content_type: str) -> None:
        self._url = url
        self._host = urlsplit(url).hostname
        self._headers = {"user-agent": "iscp", **headers, "content-type": content_type}

    def post(self, body: bytes) -> bytes:
        """Return the body of the answer. Raises Unavailable, or PermanentError if another attempt would be useless."""
        try:
            answer = exchange(
                "POST", self._url, body, self._headers, timeout_s=POST_TIMEOUT_S, bytes_max=ANSWER_BYTES_MAX
            )
        except OSError as error:
            raise Unavailable(f"{self._host} cannot be reached: {failure_words(error)}") from error
        if answer.good:
            return answer.body
        message = f"{self._host} answers {answer.status}"
        if answer.status >= 500 or answer.status in RETRIED:
            raise Unavailable(message)
        raise PermanentError(message)
