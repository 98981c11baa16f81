"""Have callers wait who have requested a comparison, until the node that runs the table has answered."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future

from iscp.coordination.schedule.schedule_events import VerifyAnswered, VerifyRequested, VerifyWithdrawn
from iscp.core.job.verification import VerifyReport, VerifyRequest
from iscp.core.values.errors import TimedOut, Unavailable
from iscp.core.values.ids import ShardId
from iscp.ports.system import Clock

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether the caller of a comparison is still there."""


class VerifyDesk:
    """`send` brings an event to the scheduler of the node that runs the shard, and never waits; what that answers
    comes back through `answer`, on any thread.
    """

    def __init__(self, send: Callable[[VerifyRequested | VerifyWithdrawn], None], clock: Clock) -> None:
        self._send = send
        self._clock = clock
        self._waiting: dict[str, Future[VerifyReport]] = {}
        self._lock = threading.Lock()

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        """Wait for the answer; given up, and the work with it, after `timeout_s` or when `alive` says so.

        Raises TimedOut, Unavailable, and what the comparison has raised.
        """
        request = VerifyRequest(uuid.uuid4().hex, shard, job_id, repair)
        future: Future[VerifyReport] = Future()
        with self._lock:
            self._waiting[request.verify_id] = future
        try:
            self._send(VerifyRequested(request))
            return self._wait_for(future, timeout_s, alive)
        finally:
            with self._lock:
                del self._waiting[request.verify_id]
            if not future.done():
                self._send(VerifyWithdrawn(shard, request.verify_id))

    def answer(self, answer: VerifyAnswered) -> None:
        with self._lock:
            future = self._waiting.get(answer.verify_id)
        if future is None or future.done():
            return
        if isinstance(answer.answer, VerifyReport):
            future.set_result(answer.answer)
        else:
            future.set_exception(answer.answer)

    def _wait_for(self, future: Future[VerifyReport], timeout_s: float, alive: Callable[[], bool]) -> VerifyReport:
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            left_s = until_s - self._clock.monotonic_s()
            try:
                return future.result(max(0.0, min(left_s, ALIVE_LOOK_S)))
            except TimeoutError:
                # The answer came in the very moment in which the wait ended.
                if future.done():
                    continue
            if left_s <= 0:
                raise TimedOut(
                    f"the comparison did not end within {timeout_s:.3g} s, and was given up",
                    remedy="Allow more time. Whether a repair was committed says `iscp-admin job history`",
                )
            if not alive():
                raise Unavailable("the comparison was given up: the node stops, or the caller is gone")
