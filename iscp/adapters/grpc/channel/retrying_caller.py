"""Calls to one node, each repeated within its time where that is safe."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import NoneType, TracebackType
from typing import Any, Self, TypeVar

import grpc

from iscp.adapters.grpc.channel.call_metadata import CONNECT_MAX_MS, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, keepalive
from iscp.adapters.grpc.channel.endpoint import MESSAGE_BYTES_MAX, Tls, channel_target, endpoint_or_default
from iscp.adapters.grpc.channel.grpc_errors import from_rpc
from iscp.adapters.system.clock import SystemClock
from iscp.core.argument_checks import require, require_seconds
from iscp.core.errors import (
    ErrorCode,
    InvalidRequest,
    IscpError,
    LeaseLost,
    NotOwner,
    OutcomeUnknown,
    TemporaryError,
    Unavailable,
)
from iscp.ports.system import Clock

R = TypeVar("R")

BACKOFF_S = 0.1
"""Pause before the second attempt; it doubles up to BACKOFF_MAX_S."""

BACKOFF_MAX_S = 2.0
"""Longest pause between two attempts."""

NOTICE_AFTER_S = 3.0
"""Without an answer for so long, a client reports why, once, and goes on trying."""

# The owner is changing, or the node is restarting: soon another answer is to be had. Repeating is safe, as a
# change carries its request_id. (Not Unavailable's siblings: a full disk does not repair itself within seconds.)
_RETRIED = (Unavailable, NotOwner, LeaseLost, OutcomeUnknown)

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Otherwise gRPC itself, once refused, would not try again within our own attempts.
    ("grpc.initial_reconnect_backoff_ms", int(BACKOFF_S * 1000)),
    # A node that is frozen, or cut off, accepts connections and answers nothing: then another one is called.
    ("grpc.min_reconnect_backoff_ms", CONNECT_MAX_MS),
    *keepalive(KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", int(BACKOFF_MAX_S * 1000)),
)


def _retried(error: IscpError) -> bool:
    return isinstance(error, _RETRIED) and error.code not in (ErrorCode.TIMEOUT, ErrorCode.JOB_LOG_DAMAGED)


class Caller:
    """A channel to `endpoint`, for several threads at a time. `timeout_s` bounds each call with its retries.

    `notice` is called once in a call that goes on trying: with the last error, and the seconds for which it will.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        timeout_s: float = 30.0,
        tls: Tls | None = None,
        notice: Callable[[IscpError, float], None] = lambda error, left_s: None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._notice = notice
        self._clock = clock or SystemClock()
        self._sleep = sleep
        require(tls, (Tls, NoneType), "tls", "Tls")
        self._endpoint = endpoint_or_default(endpoint)
        self._timeout_s = require_seconds(timeout_s, "timeout_s")
        self._closed = False
        self._random = random.Random()
        if tls is None:
            self.channel = grpc.insecure_channel(channel_target(self._endpoint), options=_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(tls.authority or None, tls.key or None, tls.certificate or None)
            self.channel = grpc.secure_channel(channel_target(self._endpoint), credentials, options=_OPTIONS)

    def close(self) -> None:
        self._closed = True
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self, method: Callable[..., R], request: Any, *, changes: bool = False, timeout_s: float | None = None
    ) -> R:
        """Call, and repeat the very same request, until `timeout_s` is over."""
        if self._closed:
            raise InvalidRequest("the client is closed", field="client", remedy="Make another one")
        begun_s = self._clock.monotonic_s()
        end_s = begun_s + (self._timeout_s if timeout_s is None else require_seconds(timeout_s, "timeout_s"))
        unknown, noticed, backoff_s = False, False, BACKOFF_S
        while True:
            try:
                return method(request, timeout=max(0.0, end_s - self._clock.monotonic_s()))
            except grpc.RpcError as failure:
                cause = failure
            error = from_rpc(cause, self._endpoint, changes=changes)
            unknown = unknown or isinstance(error, OutcomeUnknown)
            pause_s, now_s = backoff_s * self._random.uniform(0.5, 1.0), self._clock.monotonic_s()
            if not _retried(error) or now_s + pause_s >= end_s:
                break
            if not noticed and now_s - begun_s >= NOTICE_AFTER_S:
                noticed = True
                self._notice(error, end_s - now_s)
            self._sleep(pause_s)
            backoff_s = min(BACKOFF_MAX_S, backoff_s * 2)
        if unknown and isinstance(error, TemporaryError) and not isinstance(error, OutcomeUnknown):
            # This attempt failed for certain, but an earlier one may have been carried out.
            raise OutcomeUnknown(error.message, field=error.field, remedy="Check the job's status") from cause
        raise error from cause


def listing(method: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A streamed answer as a list, so that a retry starts from its beginning."""

    def call(request: Any, *, timeout: float) -> list[Any]:
        return list(method(request, timeout=timeout))

    return call
