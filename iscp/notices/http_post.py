"""One receiver of notifications by HTTP, and the signature of what is sent to it.

Only the status line of the answer is read, so that a receiver can neither delay the sender nor fill its memory.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

from iscp.model.job.notification import Notification
from iscp.model.values.errors import ConfigurationError, PermanentError, Unavailable
from iscp.ports.system import Clock
from iscp.system.http_exchange import exchange, failure_words
from iscp.system.small_files import read_named_file

POST_TIMEOUT_S = 10.0
"""How long an attempt to notify a receiver may take in all, until its status has come; then it fails."""

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
        self._name = f"{name} ({urlsplit(url).hostname})"
        self._url = url
        self._secret = secret
        self._clock = clock
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return self._name

    def post(self, notification: Notification) -> None:
        body = notification.to_json()
        try:
            answer = exchange(
                "POST",
                self._url,
                body,
                self._headers(notification.id, body),
                timeout_s=self._timeout_s,
                bytes_max=STATUS_LINE_BYTES_MAX,
                status_alone=True,
            )
        except OSError as error:
            raise Unavailable(f"{self._name} does not accept notifications: {failure_words(error)}") from error
        if answer.good:
            return
        message = f"{self._name} answers {answer.status}"
        raise PermanentError(message) if _refuses(answer.status) else Unavailable(message)

    def _headers(self, notification_id: str, body: bytes) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "user-agent": "iscp",
            ID_HEADER: notification_id,
        }
        if self._secret:
            headers[SIGNATURE_HEADER] = signature(self._secret, int(self._clock.now_s()), body)
        return headers


def webhooks_of(urls: tuple[str, ...], secret_file: str, clock: Clock) -> list[HttpWebhook]:
    """Return one for each URL of `notify.webhooks`. Raises ConfigurationError where the secret cannot be read."""
    secret = read_secret(secret_file)
    return [HttpWebhook(f"notify.webhooks.{number}", url, secret, clock) for number, url in enumerate(urls)]


def _refuses(status: int) -> bool:
    return 300 <= status < 500 and status not in RETRIED_STATUSES
