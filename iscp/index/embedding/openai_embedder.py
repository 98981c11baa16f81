"""Get vectors from an HTTP endpoint with OpenAI's API for embeddings (`/v1/embeddings`), as many servers offer it.

The answer comes over a network from somebody else: its time, its size and each of its values are bounded and checked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from iscp.index.embedding.embedder_registry import EmbedderBusy, TextsRefusedError, Vectors
from iscp.model.settings.embedder_config import EmbedderConfig
from iscp.model.values.errors import ConfigurationError, ErrorCode, PermanentError, Unavailable
from iscp.model.values.untrusted_values import named_error, one_line
from iscp.ports.system import Clock
from iscp.system.http_exchange import Answer, exchange
from iscp.system.small_files import read_named_file
from iscp.system.threads import SystemClock

OPENAI_BATCH_DEFAULT = 64
"""Texts in a request where `batch` is not given."""

OPENAI_CHARS_MAX = 24_000
"""Characters of a text that are sent where `chars_max` is not given; the rest is left out."""

OPENAI_TIMEOUT_S = 60.0
"""How long a request may take where `timeout_s` is not given, connecting and the whole answer included; then it has
failed, and is tried again.
"""

KEY_BYTES_MAX = 4_096
"""Bytes of the file with the key; a larger one is refused."""

NUMBER_BYTES_MAX = 40
"""Bytes that the answer may have for each number of a vector; a longer answer is not read to its end, and has failed.
"""

ANSWER_BYTES_BESIDES = 65_536
"""Bytes that the answer may have besides its numbers, headers included; a longer one has failed."""

SAID_CHARS_MAX = 300
"""Characters that are shown of what the endpoint says of its refusal; the rest is cut off."""

_PATH = "/v1/embeddings"
_TEMPORARY = frozenset({408, 425, 429})
_OF_THE_TEXTS = frozenset({400, 413, 422})
_OF_THE_KEY = frozenset({401, 403})


class OpenAiEmbedder:
    """The embedder `openai` reads its key from the file for each request, so that the key may be replaced."""

    def __init__(self, config: EmbedderConfig, clock: Clock | None = None) -> None:
        parts = urlsplit(config.url)
        self._url = config.url if parts.path not in ("", "/") else parts._replace(path=_PATH).geturl()
        self._host = parts.hostname or ""
        self._model, self._key_file = config.model, config.key_file
        self._chars_max = config.chars_max or OPENAI_CHARS_MAX
        self._timeout_s = config.timeout_s or OPENAI_TIMEOUT_S
        self._clock = clock or SystemClock()
        self.batch_max = config.batch or OPENAI_BATCH_DEFAULT
        self.dimension = config.dimension
        # The URL's query may hold a secret; all else of it may decide which model answers.
        where = urlsplit(self._url)._replace(query="").geturl()
        self.fingerprint = f"openai/{where}/{self._model}/{self.dimension}/{self._chars_max}"

    def embed(self, texts: Sequence[str], /) -> Vectors:
        """Return the vectors of `texts`, cut to `chars_max` characters each."""
        given = {"model": self._model, "input": [text[: self._chars_max] or " " for text in texts]}
        headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "iscp"}
        if key := self._key():
            headers["authorization"] = f"Bearer {key}"
        body = json.dumps({**given, "encoding_format": "float"}).encode()
        bytes_max = ANSWER_BYTES_BESIDES + len(texts) * (self.dimension * NUMBER_BYTES_MAX + 256)
        try:
            answer = exchange("POST", self._url, body, headers, timeout_s=self._timeout_s, bytes_max=bytes_max)
        except OSError as error:
            why = (
                "did not answer in time"
                if isinstance(error, TimeoutError)
                else f"does not answer: {named_error(error)}"
            )
            raise Unavailable(f"{self._host} {why}") from error
        if answer.status != HTTPStatus.OK:
            raise self._refusal(answer, key)
        return self._vectors(answer.body, len(texts))

    def _key(self) -> str:
        """Return the key; empty: no file is named. A file that cannot be read may just be replaced."""
        if not self._key_file:
            return ""
        try:
            return read_key(self._key_file, "key_file")
        except ConfigurationError as error:
            raise Unavailable.from_error(error) from error

    def _refusal(self, answer: Answer, key: str) -> Exception:
        status = answer.status
        message = f"{self._host} answers {status}"
        if 300 <= status < 400:
            return PermanentError(
                f"{message}, and redirects are not followed", remedy="Give the URL where the endpoint is"
            )
        if status >= 500 or status in _TEMPORARY:
            after_s = _seconds(answer.headers.get("retry-after", ""), self._clock.now_s())
            return EmbedderBusy(message, retry_after_s=after_s)
        if status in _OF_THE_KEY:
            return PermanentError(message, remedy="See that key_file has a key that may embed with this model")
        message += _said(answer.body, key)
        if status in _OF_THE_TEXTS:
            return TextsRefusedError(message)
        return PermanentError(message, remedy="Set url and model of the embedder right")

    def _vectors(self, body: bytes, count: int) -> Vectors:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"{self._host} answers no JSON") from error
        listed = document.get("data") if isinstance(document, dict) else None
        if not isinstance(listed, list) or len(listed) != count:
            found = len(listed) if isinstance(listed, list) else "no"
            raise self._broken(f"answers {found} vectors for {count} texts")
        vectors = np.zeros((count, self.dimension), np.float32)
        seen = set()
        for place, each in enumerate(listed):
            number = each.get("index", place) if isinstance(each, dict) else None
            if type(number) is not int or not 0 <= number < count or number in seen:
                raise self._broken("does not say of which texts its vectors are")
            seen.add(number)
            vectors[number] = self._numbers(each.get("embedding"))
        return vectors

    def _numbers(self, given: Any) -> Vectors:
        if not isinstance(given, list) or not all(type(each) in (int, float) for each in given):
            raise self._broken("answers a vector that is no list of numbers")
        if len(given) != self.dimension:
            raise self._broken(f"answers vectors of {len(given)} numbers, and dimension is {self.dimension}")
        try:
            with np.errstate(over="ignore"):
                found = np.array(given, np.float64).astype(np.float32)
        except (ValueError, OverflowError):  # a whole number of hundreds of digits
            found = np.full(self.dimension, np.inf, np.float32)
        if not np.isfinite(found).all():
            raise self._broken("answers a vector with a number that is not finite")
        return found

    def _broken(self, what: str) -> PermanentError:
        return PermanentError(
            f"{self._host} {what}",
            remedy="See that url, model and dimension are those of one model",
            code=ErrorCode.EMBEDDER_BROKEN,
        )


def read_key(file: str, field: str) -> str:
    """Return the key in a file, without blanks around it. Raises ConfigurationError, which shows nothing of it."""
    content = read_named_file(file, field, KEY_BYTES_MAX)
    key = content.strip().decode("latin-1")
    if not key or len(content) > KEY_BYTES_MAX or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError(
            f"{file} holds no key", about=field, remedy="Write the key into it, and nothing else, in one line"
        )
    return key


def _seconds(retry_after: str, now_s: float) -> float:
    """Return the seconds that `Retry-After` says, as a number or a date (RFC 9110), or 0."""
    text = retry_after.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        return max(parsedate_to_datetime(text).timestamp() - now_s, 0.0)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _said(body: bytes, key: str) -> str:
    """Return what the endpoint says of its refusal, with a colon before, or nothing; the key is not repeated."""
    try:
        document = json.loads(body)
        error = document.get("error", document)
        text = error.get("message") if isinstance(error, dict) else error
    except (ValueError, RecursionError, AttributeError):
        return ""
    if not isinstance(text, str) or (key and key in text):
        return ""
    return f": {one_line(text, SAID_CHARS_MAX)}"
