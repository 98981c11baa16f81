"""How long a client retries a call, and that it reports once that it does."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from iscp.client.channel.attempts import NOTICE_AFTER_S, Attempts, CallBounds, Endpoints
from iscp.client.channel.grpc_calls import DETAIL_KEY, detail_of
from iscp.client.channel.silent_calls import Caller
from iscp.model.values.errors import (
    ErrorCode,
    InvalidRequest,
    IscpError,
    NotOwner,
    OutcomeUnknown,
    TimedOut,
    Unavailable,
)
from tests.fakes.clock import FakeClock

TIMEOUT_S = 60.0


class Refused(grpc.RpcError):  # type: ignore[misc]
    """As gRPC raises it where nobody listens, or where a node answers with `error`."""

    def __init__(self, error: IscpError | None = None) -> None:
        self._error = error

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "failed to connect to all addresses; last error: Connection refused"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((DETAIL_KEY, detail_of(self._error).SerializeToString()),) if self._error else ()


@dataclass
class Node:
    """Answers from `back_s` after the first call on; before, each call fails with `error`."""

    back_s: float = float("inf")
    error: IscpError | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    asked: int = 0
    notices: list[tuple[IscpError, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begun_s = self.clock.monotonic_s()

    @property
    def past_s(self) -> float:
        return self.clock.monotonic_s() - self._begun_s

    def method(self, request: Any, **how: Any) -> str:
        self.asked += 1
        if self.past_s < self.back_s:
            raise Refused(self.error)
        return "answer"

    def ask(self, *, changes: bool = False) -> str:
        def notice(error: IscpError, left_s: float) -> None:
            self.notices.append((error, left_s))

        caller = Caller("127.0.0.1:1", timeout_s=TIMEOUT_S, notice=notice, clock=self.clock, sleep=self.clock.advance)
        with closing(caller) as on:
            return on.call(self.method, None, changes=changes)


@pytest.mark.parametrize("error", [None, NotOwner("no owner yet"), OutcomeUnknown("perhaps")])
def test_a_node_that_comes_back_before_the_deadline_is_found(error: IscpError | None) -> None:
    node = Node(back_s=TIMEOUT_S - 5, error=error)
    assert node.ask(changes=True) == "answer"
    assert len(node.notices) == 1


def test_the_deadline_is_the_end_and_nothing_before_it() -> None:
    node = Node()
    with pytest.raises(Unavailable, match="does not answer") as raised:
        node.ask()
    assert TIMEOUT_S - 2.0 <= node.past_s < TIMEOUT_S
    assert "has started" in raised.value.remedy
    ((error, left_s),) = node.notices
    assert "127.0.0.1:1 does not answer" in error.message
    assert TIMEOUT_S - NOTICE_AFTER_S - 2.0 <= left_s <= TIMEOUT_S - NOTICE_AFTER_S


def test_a_short_interruption_is_not_reported() -> None:
    node = Node(back_s=NOTICE_AFTER_S / 3)
    assert node.ask() == "answer"
    assert node.notices == []


def test_a_job_log_that_a_person_has_to_restore_is_said_at_once() -> None:
    node = Node(error=NotOwner("7.json is torn", code=ErrorCode.JOB_LOG_DAMAGED))
    with pytest.raises(NotOwner, match="torn"):
        node.ask()
    assert node.asked == 1


def test_a_last_attempt_without_the_time_for_an_answer_hides_no_error_from_before() -> None:
    attempts = Attempts(Endpoints(("n:1",)), 0.0, CallBounds(10.0, 10.0), lambda error, left_s: None)
    attempts.begin(0.0)
    attempts.pause_s(Refused(NotOwner("no owner")), 1.0)
    with pytest.raises(NotOwner):
        attempts.pause_s(Refused(TimedOut("no answer in time")), 10.0)


def test_what_is_not_to_be_made_twice_is_repeated_only_where_it_was_not_made() -> None:
    bounds = CallBounds(10.0, 10.0, changes=True, once=True)
    attempts = Attempts(Endpoints(("n:1",)), 0.0, bounds, lambda error, left_s: None)
    attempts.begin(0.0)
    attempts.pause_s(Refused(Unavailable("not now")), 1.0)
    with pytest.raises(OutcomeUnknown):
        attempts.pause_s(Refused(OutcomeUnknown("no answer")), 2.0)


def test_a_client_that_another_thread_closes_amid_retries_says_so() -> None:
    def close(seconds: float) -> None:
        caller.close()

    caller = Caller("127.0.0.1:1", clock=FakeClock(), sleep=close)
    method = caller.channel.unary_unary("/iscp.wire.v1.Admin/GetCluster")
    with pytest.raises(InvalidRequest, match="the client is closed"):
        caller.call(method, b"")
