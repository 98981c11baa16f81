"""Each request for a comparison gets its answer or its error, and is withdrawn when the caller has gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from iscp.adapters.system.clock import SystemClock
from iscp.coordination.schedule.schedule_events import VerifyAnswered, VerifyRequested, VerifyWithdrawn
from iscp.core.job.verification import Comparison, VerifyReport
from iscp.core.values.errors import EngineError, QueueFull, TimedOut, Unavailable
from iscp.core.values.ids import ShardId
from iscp.runtime.worker.verify_requests import VerifyDesk

SHARD = ShardId("t-1")
REPORT = VerifyReport(7, 3, Comparison())


class Node:
    """What is sent to it, answered at once with what `answers` holds."""

    def __init__(self, *answers: VerifyReport | EngineError) -> None:
        self.sent: list[VerifyRequested | VerifyWithdrawn] = []
        self.desk = VerifyDesk(self.hear, SystemClock())
        self._answers = list(answers)

    def hear(self, event: VerifyRequested | VerifyWithdrawn) -> None:
        self.sent.append(event)
        if isinstance(event, VerifyRequested) and self._answers:
            self.desk.answer(VerifyAnswered(event.request.verify_id, self._answers.pop(0)))


def test_answers_and_faults_come_back_to_the_caller() -> None:
    node = Node(REPORT, EngineError("out of memory"))
    assert node.desk.verify(SHARD, "j-1", False, 5.0, lambda: True) is REPORT
    with pytest.raises(EngineError, match="out of memory"):
        node.desk.verify(SHARD, "j-1", False, 5.0, lambda: True)
    assert all(isinstance(event, VerifyRequested) for event in node.sent)


def test_each_gets_its_own_answer() -> None:
    node = Node()
    with ThreadPoolExecutor(8) as pool:
        waiting = {
            number: pool.submit(node.desk.verify, SHARD, f"j-{number}", False, 30.0, lambda: True)
            for number in range(8)
        }
        while len(node.sent) < 8:
            pass
        for event in list(node.sent):
            assert isinstance(event, VerifyRequested)
            seq = int(event.request.job_id[2:])
            node.desk.answer(VerifyAnswered(event.request.verify_id, VerifyReport(7, seq, Comparison())))
        assert {number: future.result(10).seq for number, future in waiting.items()} == {n: n for n in range(8)}


@pytest.mark.parametrize(
    ("timeout_s", "alive", "error"), [(0.05, True, TimedOut), (30.0, False, Unavailable)], ids=["late", "gone"]
)
def test_who_goes_away_takes_the_question_along(timeout_s: float, alive: bool, error: type[Exception]) -> None:
    node = Node()
    with pytest.raises(error, match="given up"):
        node.desk.verify(SHARD, "j-1", True, timeout_s, lambda: alive)
    asked, withdrawn = node.sent
    assert isinstance(asked, VerifyRequested)
    assert withdrawn == VerifyWithdrawn(SHARD, asked.request.verify_id)
    node.desk.answer(VerifyAnswered(asked.request.verify_id, REPORT))  # too late: nobody hears it


def test_a_node_that_cannot_be_reached_is_said_to_be_so() -> None:
    def refuse(event: VerifyRequested | VerifyWithdrawn) -> None:
        if isinstance(event, VerifyRequested):
            raise QueueFull("the scheduler's inbox does not keep up")

    with pytest.raises(QueueFull):
        VerifyDesk(refuse, SystemClock()).verify(SHARD, "j-1", False, 5.0, lambda: True)
