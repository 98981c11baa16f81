"""The worker's loop passes all that comes in to the machine, and carries out its effects.

Each request for a comparison gets its answer or its error, and is withdrawn when the caller has gone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import get_args

import pytest

from iscp.cluster.worker_loop import VerifyDesk, WorkerLoop
from iscp.cluster.worker_machine import WorkerMachine
from iscp.model.job.job_row import JobReport, JobState, JobStatus
from iscp.model.job.start_rule import Comparison, VerifyReport
from iscp.model.protocol.events import (
    CoordinationTimes,
    Reports,
    Seen,
    ShardOrder,
    ShardStarted,
    ShardStopped,
    StartShard,
    StopAllShards,
)
from iscp.model.protocol.messages import (
    Acknowledge,
    Announce,
    Checkpoint,
    DispatchTable,
    DispatchTableResponse,
    NodeMessage,
    NodeShardState,
    SourceSeen,
    Sync,
)
from iscp.model.values.errors import EngineError, IscpError, QueueFull, TimedOut, Unavailable
from iscp.model.values.ids import JobKey, Leader, ShardId, TableEpoch
from iscp.model.values.watermark import Watermark
from iscp.schedule.schedule_events import VerifyAnswered, VerifyRequested, VerifyWithdrawn
from iscp.system.threads import SystemClock
from tests.fakes.etcd import FakeElection, FakeEtcd
from tests.fakes.loopback import entry, job, report
from tests.fakes.poison import RaisesWhenRead, StrExitsError
from tests.fakes.waiting import until

SHARD = ShardId("t-1")
TIMES = CoordinationTimes(resend_s=0.05, checkpoint_s=0.02)


class Engine:
    """Stands for the scheduler: keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[object] = []

    def give(self, effect: object) -> None:
        self.given.append(effect)


class Election(FakeElection):
    """A probe takes until `answers` is set; `faults` are raised by the next probes."""

    def __init__(self, etcd: FakeEtcd) -> None:
        super().__init__(etcd)
        self.answers = threading.Event()
        self.answers.set()
        self.faults: list[IscpError] = []
        self.looks = 0

    def leader(self) -> Leader | None:
        self.looks += 1
        assert self.answers.wait(10)
        if self.faults:
            raise self.faults.pop(0)
        return super().leader()


class Worker:
    def __init__(self) -> None:
        self.engine, self.election = Engine(), Election(FakeEtcd(SystemClock()))
        self.sent: list[tuple[str, NodeMessage]] = []
        self.broken: list[Exception] = []
        self.loop = WorkerLoop(
            lambda epoch: WorkerMachine("n-1", epoch, "v", TIMES),
            self.election,
            SystemClock(),
            lambda owner_id, message: self.sent.append((owner_id, message)),
            self.broken.append,
        )
        self.loop.orders.subscribe(self.engine.give, *get_args(ShardOrder))
        self.election.campaign("owner", lambda leader: None, lambda: None)

    def heard(self, kind: type) -> list[NodeMessage]:
        return [message for _, message in list(self.sent) if isinstance(message, kind)]

    def announce(self) -> None:
        self.loop.receive([Announce("owner", 5, self.election.term.revision, "v")])

    def obey(self) -> None:
        """Synced with the owner, and one shard started."""
        self.loop.start(3)
        self.announce()
        until(lambda: self.heard(Sync))
        self.loop.receive([Acknowledge(5, 3, 1, 0)])
        self.loop.receive([DispatchTable(5, 3, TableEpoch(5, 1), SHARD, False)])
        until(lambda: self.engine.given)


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.loop.close()
    assert made.broken == []


def test_an_owner_that_the_election_confirms_gets_what_runs_under_the_epoch_of_the_registration(
    worker: Worker,
) -> None:
    worker.loop.start(3)
    worker.announce()
    until(lambda: worker.heard(Sync))
    owner_id, sync = worker.sent[0]
    assert (owner_id, sync.owner_rev, sync.epoch) == ("owner", 5, 3)


def test_what_came_before_the_start_is_not_lost(worker: Worker) -> None:
    worker.announce()
    worker.loop.start(3)
    until(lambda: worker.heard(Sync))


def test_an_election_that_cannot_be_read_confirms_nobody_and_is_read_again(worker: Worker) -> None:
    worker.election.faults.append(Unavailable("etcd does not answer"))
    worker.loop.start(3)
    worker.announce()
    until(lambda: not worker.election.faults)
    worker.loop.report(ShardStopped(ShardId("none")))  # whatever: the loop goes on
    assert worker.sent == []

    # Again and again, as an owner does: the probe that failed may still be on its way.
    def announced() -> list[NodeMessage]:
        worker.announce()
        return worker.heard(Sync)

    until(announced)


def test_a_slow_check_of_the_election_holds_up_nothing_else(worker: Worker) -> None:
    worker.obey()
    worker.election.answers.clear()
    worker.loop.receive([Announce("owner", 6, worker.election.term.revision, "v")])
    until(lambda: worker.election.looks == 2)
    worker.loop.report(ShardStarted(SHARD))
    until(lambda: worker.heard(DispatchTableResponse)[-1].state is NodeShardState.RUNNING)  # type: ignore[union-attr]
    worker.election.answers.set()
    until(lambda: {message.owner_rev for message in worker.heard(Sync)} == {5, 6})


def test_orders_go_to_the_scheduler_and_its_news_to_the_owner(worker: Worker) -> None:
    worker.obey()
    assert worker.engine.given == [StartShard(SHARD, TableEpoch(5, 1), (), 3)]
    worker.loop.report(ShardStarted(SHARD))
    report = JobReport(JobKey("a", "t-1", "x"), "id-x", Watermark(4, 1.0), 2)
    worker.loop.report(Reports(SHARD, (report,)))
    until(lambda: worker.heard(Checkpoint))
    assert worker.heard(Checkpoint)[0].shards[0].reports == (report,)  # type: ignore[union-attr]


def test_what_is_not_acknowledged_is_sent_again_when_it_is_due(worker: Worker) -> None:
    worker.obey()
    worker.loop.report(Reports(SHARD, (JobReport(JobKey("a", "t-1", "x"), "id-x", Watermark(4, 1.0), 2),)))
    until(lambda: len(worker.heard(Checkpoint)) >= 3)
    assert {message.number for message in worker.heard(Checkpoint)} == {1}  # type: ignore[union-attr]


def test_a_lost_lease_stops_all_and_a_regained_one_starts_over_under_its_epoch(worker: Worker) -> None:
    worker.obey()
    worker.loop.on_lease_lost()
    until(lambda: worker.engine.given[-1] == StopAllShards())
    worker.loop.report(ShardStopped(SHARD))
    worker.loop.on_lease_regained(4)
    until(lambda: worker.heard(Sync)[-1].epoch == 4)
    assert worker.heard(Sync)[-1].shards == ()  # type: ignore[union-attr]


def test_a_flush_waits_until_the_owner_has_recorded_what_was_reported(worker: Worker) -> None:
    worker.obey()
    assert worker.loop.flush(5.0)
    worker.loop.report(Reports(SHARD, (JobReport(JobKey("a", "t-1", "x"), "id-x", Watermark(4, 1.0), 2),)))
    assert not worker.loop.flush(0.1)
    worker.loop.receive([Acknowledge(5, 3, 1, 1)])
    assert worker.loop.flush(5.0)


def _break(order: object) -> None:
    raise ZeroDivisionError


def test_a_broken_machine_is_reported() -> None:
    worker = Worker()
    worker.loop.orders.subscribe(_break, StartShard)
    worker.loop.start(3)
    worker.announce()
    until(lambda: worker.heard(Sync))
    worker.loop.receive([Acknowledge(5, 3, 1, 0)])
    worker.loop.receive([DispatchTable(5, 3, TableEpoch(5, 1), SHARD, False)])
    until(lambda: worker.broken)
    assert isinstance(worker.broken[0], ZeroDivisionError)
    worker.loop.close()


def test_a_report_that_cannot_be_is_left_out_and_all_else_reaches_the_owner_and_the_shard_drains(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    worker.obey()
    worker.loop.report(ShardStarted(SHARD))
    good = job("t-1")
    bad = [
        replace(report(good, 3), seq=RaisesWhenRead()),  # type: ignore[arg-type]
        replace(report(good, 3), watermark=Watermark(3, float("nan"))),
        replace(report(good, 3), status=replace(JobStatus(), rows="5")),  # type: ignore[arg-type]
    ]
    lost = replace(entry(good, 3), error_msg=StrExitsError())  # type: ignore[arg-type]
    news = Reports(SHARD, (*bad, report(good, 4, JobState.ERROR, "\ud800\x00")), (lost, entry(good, 4, "n", "\ud800")))
    worker.loop.report(news)
    worker.loop.report(Seen(SourceSeen(SHARD, 4, 1.0, float("nan"))))
    until(lambda: worker.heard(Checkpoint))
    (said,) = {each.number: each for each in worker.heard(Checkpoint)}.values()  # type: ignore[union-attr]
    assert isinstance(said, Checkpoint)
    (told,) = said.shards
    assert [(each.seq, each.status and each.status.error_msg) for each in told.reports] == [(4, "\\ud800\\x00")]
    assert [(each.seq, each.error_msg) for each in told.history] == [(4, "\\ud800")]
    assert told.seen is None
    assert worker.loop.quarantined == 5
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["report.quarantined"] * 5
    worker.loop.receive([Acknowledge(5, 3, 1, said.number)])
    worker.loop.receive([DispatchTable(5, 3, TableEpoch(5, 2), SHARD, True)])
    worker.loop.report(ShardStopped(SHARD))
    assert worker.loop.wait_handed_over(10.0)


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
