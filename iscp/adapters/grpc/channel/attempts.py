"""What calls to a node share, for threads and for asyncio: the channel, how often they are repeated, their errors."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

import grpc

from iscp.adapters.grpc.channel.call_metadata import CONNECT_MAX_MS, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, keepalive
from iscp.adapters.grpc.channel.caller_token import (
    CallerToken,
    GivenToken,
    TokenChannel,
    refuse_plain,
    token_of_environment,
)
from iscp.adapters.grpc.channel.endpoint import MESSAGE_BYTES_MAX, Tls, channel_target, endpoint_or_default
from iscp.adapters.grpc.channel.grpc_errors import from_rpc
from iscp.adapters.system.clock import SystemClock
from iscp.adapters.tls.certificate_watch import CertificateWatch
from iscp.adapters.tls.renewing_channel import secure_channel
from iscp.adapters.tls.tls_files import GivenTls, TlsFiles, tls_of_environment
from iscp.core.argument_checks import require, require_seconds
from iscp.core.errors import (
    ErrorCode,
    InvalidRequest,
    IscpError,
    LeaseLost,
    NotOwner,
    OutcomeUnknown,
    TemporaryError,
    TimedOut,
    Unavailable,
)
from iscp.ports.system import Clock

BACKOFF_S = 0.1
"""Pause before the second attempt; it doubles up to BACKOFF_MAX_S."""

BACKOFF_MAX_S = 2.0
"""Longest pause between two attempts."""

NOTICE_AFTER_S = 3.0
"""Without an answer for so long, a client reports why, once, and goes on trying."""

# The owner is changing, or the node is restarting: soon another answer is to be had. Repeating is safe, as a
# change carries its request_id. (Not Unavailable's siblings: a full disk does not repair itself within seconds.)
_RETRIED = (Unavailable, NotOwner, LeaseLost, OutcomeUnknown)

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Otherwise gRPC itself, once refused, would not try again within our own attempts.
    ("grpc.initial_reconnect_backoff_ms", int(BACKOFF_S * 1000)),
    # A node that is frozen, or cut off, accepts connections and answers nothing: then another one is called.
    ("grpc.min_reconnect_backoff_ms", CONNECT_MAX_MS),
    *keepalive(KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", int(BACKOFF_MAX_S * 1000)),
)

Notice = Callable[[IscpError, float], None]
"""Called once in a call that goes on trying: with the last error, and the seconds for which it will."""


class Attempts:
    """Those of one call, from `begun_s` of the caller's monotonic clock on, for `timeout_s`.

    `once`: the change carries no request_id; where it may have been made it is not repeated, as that makes it twice.
    """

    def __init__(
        self, endpoint: str, begun_s: float, timeout_s: float, changes: bool, notice: Notice, once: bool = False
    ) -> None:
        self._endpoint = endpoint
        self._begun_s = begun_s
        self._end_s = begun_s + timeout_s
        self._changes = changes
        self._once = once
        self._notice = notice
        self._unknown, self._noticed, self._backoff_s = False, False, BACKOFF_S
        self._met: IscpError | None = None

    def left_s(self, now_s: float) -> float:
        return max(0.0, self._end_s - now_s)

    def pause_s(self, cause: grpc.RpcError, now_s: float) -> float:
        """For how long to wait before the next attempt; raises the call's error where there is to be none."""
        error = from_rpc(cause, self._endpoint, changes=self._changes)
        self._unknown = self._unknown or isinstance(error, OutcomeUnknown)
        # Jitter: those who lost the same owner must not come back at the same moment.
        pause_s = self._backoff_s * random.uniform(0.5, 1.0)
        again = _retried(error) and not (self._once and self._unknown)
        if not again or now_s + pause_s >= self._end_s:
            raise self._final(error) from cause
        if not self._noticed and now_s - self._begun_s >= NOTICE_AFTER_S:
            self._noticed = True
            self._notice(error, self._end_s - now_s)
        self._met, self._backoff_s = error, min(BACKOFF_MAX_S, self._backoff_s * 2)
        return pause_s

    def _final(self, error: IscpError) -> IscpError:
        """Where this attempt failed for certain, an earlier one may still have been carried out."""
        if self._unknown and isinstance(error, TemporaryError) and not isinstance(error, OutcomeUnknown):
            return OutcomeUnknown(error.message, field=error.field, remedy="Check the job's status")
        if isinstance(error, TimedOut) and self._met is not None:
            return self._met  # the last attempt had but the rest of the time: what the one before it met says more
        return error


def _retried(error: IscpError) -> bool:
    return isinstance(error, _RETRIED) and error.code not in (ErrorCode.TIMEOUT, ErrorCode.JOB_LOG_DAMAGED)


class CallerBase:
    """What a caller knows of its node; `timeout_s` bounds each call with its retries."""

    def __init__(
        self,
        endpoint: str | None,
        timeout_s: float,
        tls: GivenTls,
        token: GivenToken,
        notice: Notice,
        clock: Clock | None,
    ) -> None:
        """Raises InvalidRequest, ConfigurationError."""
        require(tls, (Tls, TlsFiles, NoneType), "tls", "Tls or TlsFiles")
        given = tls_of_environment(os.environ) if tls is None else tls
        self._tls = CertificateWatch(given) if isinstance(given, TlsFiles) else given
        self._notice = notice
        self._clock = clock or SystemClock()
        self._endpoint = endpoint_or_default(endpoint)
        require(token, (str, Path, NoneType), "token", "a token, or the path of its file")
        shown = token_of_environment(os.environ) if token is None else token
        self._token = CallerToken(shown) if shown is not None else None
        if self._token is not None and self._tls is None:
            refuse_plain(self._endpoint)
        self._timeout_s = require_seconds(timeout_s, "timeout_s")
        self._closed = False

    def _open_channel(self, library: Any) -> Any:
        """A channel of `grpc`, or of `grpc.aio`."""
        target = channel_target(self._endpoint)
        if self._tls is None:
            # A proxy would be given the token in clear text, though the node is on this machine.
            direct = (("grpc.enable_http_proxy", 0),) if self._token is not None else ()
            channel = library.insecure_channel(target, options=(*_CHANNEL_OPTIONS, *direct))
        else:
            channel = secure_channel(library, target, self._tls, _CHANNEL_OPTIONS)
        return channel if self._token is None else TokenChannel(channel, self._token)

    def _attempts(self, changes: bool, once: bool, timeout_s: float | None) -> Attempts:
        """Those of a call that begins now; raises InvalidRequest."""
        within_s = self._timeout_s if timeout_s is None else require_seconds(timeout_s, "timeout_s")
        return Attempts(self._endpoint, self._clock.monotonic_s(), within_s, changes, self._notice, once)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InvalidRequest("the client is closed", field="client", remedy="Make another one")
