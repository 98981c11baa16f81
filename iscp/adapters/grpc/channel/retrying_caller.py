"""Calls to one node, each repeated within its time where that is safe."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import NoneType, TracebackType
from typing import Any, Self, TypeVar

import grpc

from iscp.adapters.grpc.channel.attempts import CHANNEL_OPTIONS, Attempts, Notice, credentials_of
from iscp.adapters.grpc.channel.endpoint import Tls, channel_target, endpoint_or_default
from iscp.adapters.system.clock import SystemClock
from iscp.core.argument_checks import require, require_seconds
from iscp.core.errors import InvalidRequest
from iscp.ports.system import Clock

R = TypeVar("R")


class Caller:
    """A channel to `endpoint`, for several threads at a time. `timeout_s` bounds each call with its retries."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        timeout_s: float = 30.0,
        tls: Tls | None = None,
        notice: Notice = lambda error, left_s: None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        require(tls, (Tls, NoneType), "tls", "Tls")
        self._notice = notice
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._endpoint = endpoint_or_default(endpoint)
        self._timeout_s = require_seconds(timeout_s, "timeout_s")
        self._closed = False
        target = channel_target(self._endpoint)
        if tls is None:
            self.channel = grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        else:
            self.channel = grpc.secure_channel(target, credentials_of(tls), options=CHANNEL_OPTIONS)

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
        self._refuse_closed()
        within_s = self._timeout_s if timeout_s is None else require_seconds(timeout_s, "timeout_s")
        attempts = Attempts(self._endpoint, self._clock.monotonic_s(), within_s, changes, self._notice)
        while True:
            try:
                return method(request, timeout=attempts.left_s(self._clock.monotonic_s()))
            except grpc.RpcError as failure:
                cause = failure
            except ValueError:  # gRPC's own: another thread has closed the channel
                self._refuse_closed()
                raise
            self._sleep(attempts.pause_s(cause, self._clock.monotonic_s()))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InvalidRequest("the client is closed", field="client", remedy="Make another one")


def listing(method: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A streamed answer as a list, so that a retry starts from its beginning."""

    def call(request: Any, *, timeout: float) -> list[Any]:
        return list(method(request, timeout=timeout))

    return call
