"""How long an async client retries a call, and what a cancellation ends."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from iscp.client.channel.awaiting_caller import AsyncCaller
from iscp.model.values.errors import IscpError, OutcomeUnknown, Unavailable
from tests.fakes.clock import FakeClock

TIMEOUT_S = 60.0


class Lost(grpc.RpcError):  # type: ignore[misc]
    """As gRPC raises it where a node goes away, or (`refused`) where there is none."""

    def __init__(self, refused: bool) -> None:
        self._refused = refused

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "failed to connect to all addresses" if self._refused else "Socket closed"

    def trailing_metadata(self) -> tuple[()]:
        return ()


class Node:
    """Answers from `back_s` after the first call on; before, each call fails."""

    def __init__(self, back_s: float = float("inf"), refused: bool = True) -> None:
        self.clock = FakeClock()
        self.begun_s = self.clock.monotonic_s()
        self.back_s, self.refused = back_s, refused
        self.requests: list[object] = []
        self.notices: list[tuple[IscpError, float]] = []

    @property
    def past_s(self) -> float:
        return self.clock.monotonic_s() - self.begun_s

    async def method(self, request: Any, **how: Any) -> str:
        self.requests.append(request)
        if self.past_s < self.back_s:
            raise Lost(self.refused)
        return "answer"

    async def pause(self, span_s: float) -> None:
        self.clock.advance(span_s)

    def call(self, request: object = None, *, changes: bool = False) -> str:
        async def main() -> str:
            caller = AsyncCaller(
                "127.0.0.1:1",
                timeout_s=TIMEOUT_S,
                notice=lambda error, left_s: self.notices.append((error, left_s)),
                clock=self.clock,
                sleep=self.pause,
            )
            try:
                return await caller.call(self.method, request, changes=changes)
            finally:
                await caller.close()

        return asyncio.run(main())


def test_a_node_that_comes_back_before_the_deadline_gets_the_very_same_request() -> None:
    node, request = Node(back_s=TIMEOUT_S - 5), object()
    assert node.call(request, changes=True) == "answer"
    assert len(node.requests) > 10
    assert set(map(id, node.requests)) == {id(request)}
    assert len(node.notices) == 1


@pytest.mark.parametrize(("refused", "kind"), [(True, Unavailable), (False, OutcomeUnknown)])
def test_the_deadline_is_the_end_and_nothing_before_it(refused: bool, kind: type[IscpError]) -> None:
    node = Node(refused=refused)
    with pytest.raises(kind):
        node.call(changes=True)
    assert TIMEOUT_S - 2.0 <= node.past_s < TIMEOUT_S


def test_a_task_that_is_cancelled_between_two_attempts_makes_no_other() -> None:
    node = Node()

    async def main() -> None:
        pauses = asyncio.Event()

        async def pause(span_s: float) -> None:
            pauses.set()
            await asyncio.Event().wait()

        caller = AsyncCaller("127.0.0.1:1", clock=node.clock, sleep=pause)
        call = asyncio.create_task(caller.call(node.method, None))
        await pauses.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await caller.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert len(node.requests) == 1
