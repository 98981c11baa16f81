"""The attempts of a call, whatever nodes answer: within their time, and never again what is to be done once.

Which of several nodes a client calls: whoever answers, on and on; who failed is avoided for a while.

How long an async client retries a call, and what a cancellation ends.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.client.channel.attempts import (
    BACKOFF_MAX_S,
    BACKOFF_S,
    ENDPOINT_AVOIDED_S,
    NOTICE_AFTER_S,
    AsyncCaller,
    Attempts,
    CallBounds,
    EndpointChannel,
    Endpoints,
)
from iscp.model.values.errors import (
    Conflict,
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
from tests.fakes.clock import FakeClock
from tests.unit.client.channel.test_silent_calls_retrying_caller import Refused

RETRIED = (None, Unavailable("busy"), NotOwner("no owner"), LeaseLost("gone"), OutcomeUnknown("perhaps"))
FINAL = (
    InvalidRequest("wrong", about="f"),
    Conflict("another was first"),
    NotOwner("torn", code=ErrorCode.JOB_LOG_DAMAGED),
)
BOUNDS = CallBounds(10.0, 10.0)


class Late(grpc.RpcError):  # type: ignore[misc]
    """A node that has not answered in time."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.DEADLINE_EXCEEDED

    def details(self) -> str:
        return "Deadline Exceeded"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ()


def attempts_of(bounds: CallBounds, *nodes: str) -> Attempts:
    return Attempts(Endpoints(nodes or ("n:1",)), 0.0, bounds, lambda error, left_s: None)


@settings(max_examples=150)
@given(
    st.builds(
        CallBounds,
        st.floats(0.5, 30),
        st.floats(0.5, 30),
        changes=st.booleans(),
        once=st.booleans(),
        wait_for_ready=st.booleans(),
        shared=st.booleans(),
    ),
    st.lists(st.tuples(st.sampled_from([*RETRIED, *FINAL]), st.floats(0, 4)), max_size=14),
)
def test_a_call_ends_in_time_and_with_an_error_that_says_what_may_have_been_done(
    bounds: CallBounds, answers: list[tuple[IscpError | None, float]]
) -> None:
    notices: list[tuple[float, float]] = []
    now_s, backoff_s, unknown = 0.0, BACKOFF_S, False
    attempts = Attempts(Endpoints(("n:1",)), 0.0, bounds, lambda error, left_s: notices.append((now_s, left_s)))
    for answer, took_s in answers:
        how = attempts.begin(now_s)
        assert how == {"endpoint": "n:1", "timeout": max(0.0, bounds.timeout_s - now_s)}
        now_s += min(took_s, how["timeout"])
        unknown = unknown or isinstance(answer, OutcomeUnknown)
        raised = None
        try:
            pause_s = attempts.pause_s(Refused(answer), now_s)
        except IscpError as error:
            raised = error
        if raised is not None:
            expected = Unavailable if answer is None else type(answer)
            certain = not unknown or not issubclass(expected, TemporaryError)
            assert type(raised) is (expected if certain else OutcomeUnknown)
            break
        assert answer in RETRIED
        assert not (bounds.once and unknown)
        assert backoff_s / 2 <= pause_s <= backoff_s
        now_s += pause_s
        assert now_s < bounds.timeout_s
        backoff_s = min(BACKOFF_MAX_S, backoff_s * 2)
    assert len(notices) <= 1
    assert all(at_s >= NOTICE_AFTER_S and 0 < left_s <= bounds.timeout_s - at_s for at_s, left_s in notices)


@pytest.mark.parametrize("answer", FINAL)
def test_what_another_attempt_would_not_change_is_raised_at_once(answer: IscpError) -> None:
    attempts = attempts_of(BOUNDS)
    attempts.begin(0.0)
    with pytest.raises(type(answer), match=answer.message):
        attempts.pause_s(Refused(answer), 0.1)


def test_nodes_that_cannot_be_reached_are_tried_for_a_time_of_their_own_after_the_last_contact() -> None:
    attempts = attempts_of(replace(BOUNDS, timeout_s=60.0, reach_s=5.0))
    attempts.begin(0.0)
    attempts.pause_s(Refused(None), 4.0)
    attempts.pause_s(Refused(NotOwner("no owner")), 4.5)
    attempts.pause_s(Refused(None), 9.0)
    with pytest.raises(Unavailable):
        attempts.pause_s(Refused(None), 9.5)


def test_whoever_does_not_wait_for_a_node_has_all_nodes_tried_once() -> None:
    attempts = attempts_of(replace(BOUNDS, wait_for_ready=False), "a:1", "b:1")
    first = attempts.begin(0.0)["endpoint"]
    attempts.pause_s(Refused(None), 0.1)
    assert {first, attempts.begin(0.2)["endpoint"]} == {"a:1", "b:1"}
    with pytest.raises(Unavailable):
        attempts.pause_s(Refused(None), 0.3)


def test_of_several_nodes_each_that_did_not_answer_is_named() -> None:
    attempts = attempts_of(replace(BOUNDS, wait_for_ready=False), "a:1", "b:1", "c:1")
    for _ in range(2):
        attempts.begin(0.0)
        attempts.pause_s(Refused(None), 0.1)
    attempts.begin(0.2)
    with pytest.raises(Unavailable) as failed:
        attempts.pause_s(Refused(None), 0.3)
    said = [each.message.split()[0] for each in (failed.value, *failed.value.others)]
    assert said == ["c:1", "a:1", "b:1"]


def test_a_node_that_cannot_reach_the_owner_is_a_node_that_is_there() -> None:
    """Its answer has gRPC's own words for a node that is not there."""
    attempts = attempts_of(replace(BOUNDS, reach_s=1.0, wait_for_ready=False))
    attempts.begin(0.0)
    unreached = Unavailable("the owner cannot be reached (failed to connect to all addresses: Connection refused)")
    attempts.pause_s(Refused(unreached), 0.1)
    attempts.pause_s(Refused(unreached), 5.0)
    with pytest.raises(Unavailable, match="the owner cannot be reached"):
        attempts.pause_s(Refused(unreached), 9.95)


def test_a_silent_node_leaves_half_of_the_time_to_another_one() -> None:
    attempts = attempts_of(replace(BOUNDS, shared=True), "a:1", "b:1")
    assert attempts.begin(0.0) == {"endpoint": "a:1", "timeout": 5.0}
    attempts.pause_s(Late(), 5.0)
    assert attempts.begin(6.0) == {"endpoint": "b:1", "timeout": 4.0}
    with pytest.raises(TimedOut):
        attempts.pause_s(Late(), 8.0)


def test_a_call_with_a_time_of_its_own_has_all_of_it_at_one_node() -> None:
    attempts = attempts_of(BOUNDS, "a:1", "b:1")
    assert attempts.begin(0.0) == {"endpoint": "a:1", "timeout": 10.0}
    with pytest.raises(TimedOut):
        attempts.pause_s(Late(), 5.0)


def test_who_answers_is_called_on_and_on_and_who_fails_is_avoided_for_a_while() -> None:
    endpoints = Endpoints(("a:1", "b:1", "c:1"))
    assert endpoints.choose(0.0) == "a:1"
    endpoints.avoid("a:1", 0.0)
    assert endpoints.choose(0.1) == "b:1"
    assert endpoints.choose(2 * ENDPOINT_AVOIDED_S) == "b:1"
    endpoints.avoid("b:1", 2 * ENDPOINT_AVOIDED_S)
    assert endpoints.choose(2 * ENDPOINT_AVOIDED_S) == "a:1"


def test_where_all_have_failed_the_first_that_did_is_called() -> None:
    endpoints = Endpoints(("a:1", "b:1"))
    endpoints.avoid("b:1", 0.0)
    endpoints.avoid("a:1", 1.0)
    assert endpoints.choose(2.0) == "b:1"
    endpoints.avoid("b:1", 3.0)
    assert endpoints.choose(4.0) == "a:1"


def test_one_node_alone_is_never_avoided() -> None:
    endpoints = Endpoints(("a:1",))
    endpoints.avoid("a:1", 0.0)
    assert endpoints.choose(0.0) == "a:1"


class Channel:
    def __init__(self, address: str) -> None:
        self.address = address

    def unary_unary(self, name: str) -> object:
        return lambda request, timeout: (self.address, name, request, timeout)


def test_a_channel_is_opened_with_the_first_call_to_its_node() -> None:
    opened: list[str] = []

    def open_channel(address: str) -> Channel:
        opened.append(address)
        return Channel(address)

    channel = EndpointChannel(("a:1", "b:1"), open_channel)
    method = channel.unary_unary("/Admin/GetJob")
    assert opened == []
    assert method("x", timeout=1.0, endpoint="b:1") == ("b:1", "/Admin/GetJob", "x", 1.0)
    assert method("y", timeout=1.0, endpoint="b:1")[2] == "y"
    assert method("z", timeout=1.0)[0] == "a:1"
    assert opened == ["b:1", "a:1"]
    assert [each.address for each in channel.drain()] == ["b:1", "a:1"]
    with pytest.raises(ValueError, match="closed"):
        channel.unary_unary("/Admin/ListJobs")("x", endpoint="a:1")


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
