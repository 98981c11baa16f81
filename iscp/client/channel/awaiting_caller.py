"""Calls to one node from asyncio, each repeated within its time where that is safe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc

from iscp.client.channel.attempts import CallerBase, GivenToken, Notice
from iscp.model.values.errors import Canceled, InvalidRequest
from iscp.ports.system import Clock
from iscp.system.child_process import Before, refuse_fork
from iscp.system.tls.tls_files import GivenTls

R = TypeVar("R")


class AsyncCaller(CallerBase):
    """A channel to `endpoint`, for the tasks of the event loop in which it is made.

    `timeout_s` bounds each call with its retries. A task that is cancelled ends its call at the node too.
    """

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
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(endpoint, timeout_s, tls, token, notice, wait_for_ready, clock)
        self._sleep = sleep
        refuse_fork("client", Before.ASYNCIO)
        self._loop = _running_loop()
        self.channel = self._open_channels(grpc.aio)

    async def close(self) -> None:
        """Ends the calls that are under way with Canceled."""
        self._closed = True
        await asyncio.gather(*(each.close() for each in self.channel.drain()))

    async def call(
        self,
        method: Callable[..., Awaitable[R]],
        request: Any,
        *,
        changes: bool = False,
        once: bool = False,
        timeout_s: float | None = None,
    ) -> R:
        """Call, and repeat the very same request, until `timeout_s` is over; `once`: as in Attempts."""
        self._refuse_misuse()
        attempts = self._attempts(changes, once, timeout_s)
        while True:
            try:
                return await method(request, **attempts.begin(self._clock.monotonic_s()))
            except grpc.RpcError as failure:
                cause = failure
            except asyncio.CancelledError as ended:
                # gRPC raises it too where another task has closed the channel: that one does not cancel this task.
                if not self._closed or _is_cancelled():
                    raise
                raise Canceled("the client was closed during the call", about="client") from ended
            await self._sleep(attempts.pause_s(cause, self._clock.monotonic_s()))
            self._refuse_misuse()

    def _refuse_misuse(self) -> None:
        refuse_fork("client", Before.ASYNCIO)
        self._refuse_closed()
        if _running_loop() is not self._loop:
            raise InvalidRequest(
                "the client belongs to another event loop", about="client", remedy="Make one in each loop"
            )


def listing(method: Callable[..., Any]) -> Callable[..., Awaitable[list[Any]]]:
    """Return the method with its streamed answer as a list, so that a retry starts from its beginning."""

    async def call(request: Any, **how: Any) -> list[Any]:
        stream = method(request, **how)
        try:
            return [page async for page in stream]
        finally:
            stream.cancel()  # where this task was cancelled; of a stream that has ended it changes nothing

    return call


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise InvalidRequest(
            "there is no running event loop", about="client", remedy="Make and use the client within a coroutine"
        ) from error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
