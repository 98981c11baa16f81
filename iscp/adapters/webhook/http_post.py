"""One receiver of notifications by HTTP, and the signature of what is sent to it.

Only the status line of the answer is read, so that a receiver can neither delay the sender nor fill its memory.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ssl
import time
from urllib.parse import urlsplit

from iscp.adapters.system.named_files import read_named_file
from iscp.core.job.notification import Notification
from iscp.core.values.errors import ConfigurationError, PermanentError, Unavailable
from iscp.ports.system import Clock

POST_TIMEOUT_S = 10.0
"""How long connecting to a receiver may take, and sending, and waiting for its status, each; then the attempt fails."""

STATUS_LINE_BYTES_MAX = 4_096
"""Bytes of a receiver's status line; if it is longer the attempt fails. The rest of the answer is not read."""

SECRET_BYTES_MAX = 4_096
"""Bytes of the file with the secret; a larger one is refused at the node's start."""

SIGNATURE_HEADER = "iscp-signature"
ID_HEADER = "iscp-notification-id"

RETRIED_STATUSES = frozenset({408, 429})


def read_secret(file: str) -> bytes:
    """Return the content of the file, without blanks around it; empty: no file is named. Raises ConfigurationError."""
    if not file:
        return b""
    secret = read_named_file(file, "notify.secret_file", SECRET_BYTES_MAX)
    if not secret.strip() or len(secret) > SECRET_BYTES_MAX:
        raise ConfigurationError(
            f"{file} is empty, or has more than {SECRET_BYTES_MAX} bytes",
            about="notify.secret_file",
            remedy="Write a secret into it, as `openssl rand -hex 32` makes one",
        )
    return secret.strip()


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    """Return `t=` Unix seconds, and `v1=` the HMAC-SHA256 of these, a dot and the body, in hexadecimal digits."""
    digest = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


class HttpWebhook:
    """The port `Webhook` on a URL that `url_fault` has nothing against."""

    def __init__(self, name: str, url: str, secret: bytes, clock: Clock, timeout_s: float = POST_TIMEOUT_S) -> None:
        parts = urlsplit(url)
        self._name = f"{name} ({parts.hostname})"
        self._host, self._port, self._tls = parts.hostname or "", parts.port, parts.scheme == "https"
        if self._port is None:
            # Else http.client takes the end of an IPv6 address for one.
            self._port = 443 if self._tls else 80
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._secret = secret
        self._clock = clock
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return self._name

    def post(self, notification: Notification) -> None:
        body = notification.to_json()
        connection = self._connection()
        try:
            connection.request("POST", self._target, body, self._headers(notification.id, body))
            status = self._read_status(connection)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(f"{self._name} does not accept notifications: {_cause(error)}") from error
        finally:
            connection.close()
        if 200 <= status < 300:
            return
        message = f"{self._name} answers {status}"
        raise PermanentError(message) if _refuses(status) else Unavailable(message)

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _headers(self, notification_id: str, body: bytes) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "user-agent": "iscp",
            "connection": "close",
            ID_HEADER: notification_id,
        }
        if self._secret:
            headers[SIGNATURE_HEADER] = signature(self._secret, int(self._clock.now_s()), body)
        return headers

    def _read_status(self, connection: http.client.HTTPConnection) -> int:
        """A trickle of bytes does not put off the end of the wait."""
        until_s, line = time.monotonic() + self._timeout_s, b""
        while not line.endswith(b"\n"):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            connection.sock.settimeout(left_s)
            byte = connection.sock.recv(1)
            line += byte
            if not byte or len(line) > STATUS_LINE_BYTES_MAX:
                raise http.client.BadStatusLine("no status line")
        version, _, rest = line.decode("latin-1").partition(" ")
        status = rest.strip()[:3]
        if not version.startswith("HTTP/1.") or not status.isdecimal():
            raise http.client.BadStatusLine("no status line")
        return int(status)


def webhooks_of(urls: tuple[str, ...], secret_file: str, clock: Clock) -> list[HttpWebhook]:
    """Return one for each URL of `notify.webhooks`. Raises ConfigurationError where the secret cannot be read."""
    secret = read_secret(secret_file)
    return [HttpWebhook(f"notify.webhooks.{number}", url, secret, clock) for number, url in enumerate(urls)]


def _refuses(status: int) -> bool:
    return 300 <= status < 500 and status not in RETRIED_STATUSES


def _cause(error: Exception) -> str:
    return "it did not answer in time" if isinstance(error, TimeoutError) else f"{error}" or type(error).__name__
