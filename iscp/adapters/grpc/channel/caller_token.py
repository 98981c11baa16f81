"""The token that a client sends with each of its calls, and the channel that adds it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from iscp.core.access.access_token import TOKEN_CHARS_MAX
from iscp.core.values.errors import ConfigurationError
from iscp.core.values.setting_faults import is_loopback

TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "ISCP_TOKEN", "ISCP_TOKEN_FILE"

TOKEN_CHECK_S = 1.0
"""Least time between two checks whether a file with a token has changed; calls that begin later send what it holds."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")

GivenToken = str | Path | None
"""The token that clients take: a text, the file that has it, or nothing."""


def token_of_environment(environ: Mapping[str, str]) -> GivenToken:
    """Return the token in ISCP_TOKEN, or the file in ISCP_TOKEN_FILE. Raises ConfigurationError where both are set."""
    token, file = environ.get(TOKEN_VARIABLE, ""), environ.get(TOKEN_FILE_VARIABLE, "")
    if token and file:
        raise ConfigurationError(f"is set beside {TOKEN_FILE_VARIABLE}", field=TOKEN_VARIABLE, remedy="Unset one")
    return Path(file) if file else token or None


class CallerToken:
    """A token, or what a file holds, which may be replaced while it is in use. Safe to use from several threads.

    Raises ConfigurationError, which never shows the token, where it can be none; of a later one, the one before stays.
    """

    def __init__(self, given: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = given if isinstance(given, Path) else None
        self._clock = clock
        self._stamp: object = _stamp_of(self._file) if self._file else None
        self._token = _read(self._file) if self._file else _checked(str(given), "token")
        self._due_s = clock() + TOKEN_CHECK_S

    def current(self) -> str:
        if self._file is not None and self._clock() >= self._due_s:
            self._due_s = self._clock() + TOKEN_CHECK_S
            stamp = _stamp_of(self._file)
            if stamp != self._stamp:
                # Of half a renewal what was read before it is used, and refused where it is not good any more.
                with suppress(ConfigurationError):
                    self._token, self._stamp = _read(self._file), stamp
        return self._token


class TokenChannel:
    """The part of a channel, of threads or of asyncio, that clients use: each call shows by a token who makes it."""

    def __init__(self, channel: Any, token: CallerToken) -> None:
        self._channel = channel
        self._token = token

    def unary_unary(self, *arguments: Any, **given: Any) -> Callable[..., Any]:
        return self._with_token(self._channel.unary_unary(*arguments, **given))

    def unary_stream(self, *arguments: Any, **given: Any) -> Callable[..., Any]:
        return self._with_token(self._channel.unary_stream(*arguments, **given))

    def close(self) -> Any:
        return self._channel.close()

    def _with_token(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(request: Any, *, metadata: Sequence[tuple[str, str]] = (), **given: Any) -> Any:
            shown = "authorization", f"Bearer {self._token.current()}"
            return method(request, metadata=(shown, *metadata), **given)

        return call


def refuse_plain(endpoint: str) -> None:
    """Raise ConfigurationError where a token would go over a network that anybody may read."""
    for address in endpoint.split(","):
        if not is_loopback(address):
            raise ConfigurationError(
                f"would go to {address} in clear text",
                field="token",
                remedy="Use TLS: name the authority (ISCP_CA_FILE, `iscp-admin context set --ca-file`)",
            )


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror or error}", about="token_file", remedy="Give a file with a token"
        ) from error
    return _checked(text.strip(), "token_file")


def _checked(token: str, field: str) -> str:
    if not _TOKEN.fullmatch(token) or len(token) > TOKEN_CHARS_MAX:
        raise ConfigurationError(
            "holds no token", field=field, remedy="Give what `iscp-admin token create` or your provider has shown"
        )
    return token


def _stamp_of(file: Path) -> object:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
