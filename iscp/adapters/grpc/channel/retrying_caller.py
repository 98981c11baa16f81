"""Calls to one node, each repeated within its time where that is safe."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from iscp.adapters.grpc.channel.call_metadata import CONNECT_MAX_MS, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, keepalive
from iscp.adapters.grpc.channel.endpoint import MESSAGE_BYTES_MAX, Tls, channel_target, endpoint_or_default
from iscp.adapters.grpc.channel.grpc_errors import from_rpc
from iscp.core.errors import ErrorCode, IscpError, LeaseLost, NotOwner, OutcomeUnknown, TemporaryError, Unavailable

R = TypeVar("R")

ATTEMPTS_MAX = 6
"""Attempts of a client's call within its timeout; then it fails with the last attempt's error."""

BACKOFF_S = 0.1
"""Pause before the second attempt; it doubles up to BACKOFF_MAX_S."""

BACKOFF_MAX_S = 2.0
"""Longest pause between two attempts."""

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
    return isinstance(error, _RETRIED) and error.code is not ErrorCode.TIMEOUT


class Caller:
    """A channel to `endpoint`, for several threads at a time. `timeout_s` bounds each call with its retries."""

    def __init__(self, endpoint: str | None = None, *, timeout_s: float = 30.0, tls: Tls | None = None) -> None:
        self._endpoint = endpoint_or_default(endpoint)
        self._timeout_s = timeout_s
        self._random = random.Random()
        if tls is None:
            self.channel = grpc.insecure_channel(channel_target(self._endpoint), options=_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(tls.authority or None, tls.key or None, tls.certificate or None)
            self.channel = grpc.secure_channel(channel_target(self._endpoint), credentials, options=_OPTIONS)

    def close(self) -> None:
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
        """Call, and repeat the very same request, within `timeout_s` and ATTEMPTS_MAX."""
        end_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        unknown = False
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return method(request, timeout=max(0.0, end_s - time.monotonic()))
            except grpc.RpcError as failure:
                cause = failure
            error = from_rpc(cause, self._endpoint, changes=changes)
            unknown = unknown or isinstance(error, OutcomeUnknown)
            pause_s = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (attempt - 1)) * self._random.uniform(0.5, 1.0)
            if not _retried(error) or attempt == ATTEMPTS_MAX or time.monotonic() + pause_s >= end_s:
                break
            time.sleep(pause_s)
        if unknown and isinstance(error, TemporaryError) and not isinstance(error, OutcomeUnknown):
            # This attempt failed for certain, but an earlier one may have been carried out.
            raise OutcomeUnknown(error.message, field=error.field, remedy="Check the job's status") from cause
        raise error from cause


def listing(method: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A streamed answer as a list, so that a retry starts from its beginning."""

    def call(request: Any, *, timeout: float) -> list[Any]:
        return list(method(request, timeout=timeout))

    return call
