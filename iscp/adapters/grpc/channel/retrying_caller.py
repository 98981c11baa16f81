"""Calls to one node, each repeated within its time where that is safe."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from iscp.adapters.grpc.channel.attempts import CallerBase, Notice
from iscp.adapters.grpc.channel.caller_token import GivenToken
from iscp.adapters.tls.tls_files import GivenTls
from iscp.ports.system import Clock

R = TypeVar("R")


class Caller(CallerBase):
    """A channel to `endpoint`, for several threads at a time. `timeout_s` bounds each call with its retries."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        timeout_s: float = 30.0,
        tls: GivenTls = None,
        token: GivenToken = None,
        notice: Notice = lambda error, left_s: None,
        wait_for_ready: bool = True,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(endpoint, timeout_s, tls, token, notice, wait_for_ready, clock)
        self._sleep = sleep
        self.channel = self._open_channels(grpc)

    def close(self) -> None:
        self._closed = True
        for each in self.channel.drain():
            each.close()

    def call(
        self,
        method: Callable[..., R],
        request: Any,
        *,
        changes: bool = False,
        once: bool = False,
        timeout_s: float | None = None,
    ) -> R:
        """Call, and repeat the very same request, until `timeout_s` is over; `once`: as in Attempts."""
        self._refuse_closed()
        attempts = self._attempts(changes, once, timeout_s)
        while True:
            try:
                return method(request, **attempts.begin(self._clock.monotonic_s()))
            except grpc.RpcError as failure:
                cause = failure
            except ValueError:  # gRPC's own: another thread has closed the channel
                self._refuse_closed()
                raise
            self._sleep(attempts.pause_s(cause, self._clock.monotonic_s()))


def listing(method: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return the method with its streamed answer as a list, so that a retry starts from its beginning."""

    def call(request: Any, **how: Any) -> list[Any]:
        return list(method(request, **how))

    return call
