"""A custom consumer that answers and raises anything at all, from its iteration to what is stored of it.

The job beside it goes on, and whatever is reported fits on the wire, into the job log and into the history.

A job of whose work the process has died runs apart from others, and after the second time no more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cluster.owner.job_log_writer import HistoryWriter
from iscp.consumers.custom.custom_kind import CustomConsumer, CustomKind
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.delta.joblog.log_schema import history_table, job_rows, log_table
from iscp.model.job.iteration import Bounds, HistoryEntry, Iteration, JobOutcome, exact_entry, exact_report
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason, apply_report
from iscp.model.job.start_rule import ACCOUNT_DEATHS_FEARED, ACCOUNT_DEATHS_MAX, Deaths, ProbeState
from iscp.model.job.watermark_record import position_of, record_key
from iscp.model.protocol.events import Reports, StartShard
from iscp.model.protocol.messages import Checkpoint, ShardCheckpoint
from iscp.model.settings.config import BackoffConfig, ProbeConfig
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import ErrorCode, IscpError, LeaseLost, PermanentError, TemporaryError
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.model.values.watermark import DeadLetters, Position, Watermark
from iscp.ports.consumer import ConsumeContext, Retriever
from iscp.ports.system import Guard
from iscp.schedule.runner import Runner, SurvivingRunner
from iscp.schedule.schedule_events import IterationEnded, IterationStarted, ProbeAnswered, Submit
from iscp.schedule.schedule_machine import Schedule
from iscp.server.node.node_messages import decode_node, encode_node
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.deaths import FakeDeaths
from tests.fakes.guards import OpenGuard
from tests.fakes.loopback import entry
from tests.fakes.pipeline import FakeKind, FakeSource, fake_ports
from tests.fakes.poison import ERRORS, LONE, POISON, RaisesWhenRead, StrExitsError
from tests.fakes.runner import FakeRunner, GatedRunner, applied
from tests.fakes.waiting import until

SHARD, URI = ShardId("t-1"), "/tables/t-1"


def job(kind: str) -> JobRow:
    spec = JobSpec(ConsumerSpec(kind, f"/{kind}", key=("id",)))
    return JobRow(JobKey("a", "t-1", kind), f"000000000001-{kind}", spec.to_json(), "t", URI)


class Poisoned(CustomConsumer):
    """Calls its class's `asked` for everything: what that answers or raises is its own."""

    asked: Callable[[str, Any], Any]

    def position(self) -> Position:
        return type(self).asked("position", position_of(None))  # type: ignore[no-any-return]

    def consume(self, context: ConsumeContext, retriever: Retriever) -> int:
        return type(self).asked("consume", retriever)  # type: ignore[no-any-return]


class Bench:
    """A node's runner and schedule with two jobs on one table: a poisoned one, and one that keeps to everything."""

    def __init__(self, asked: Callable[[str, Any], Any]) -> None:
        self.rows = {row.job_id: row for row in (job("poisoned"), job("replica"))}
        self.kinds: dict[str, Any] = {
            "poisoned": CustomKind("poisoned", type("Poisoned", (Poisoned,), {"asked": staticmethod(asked)})),
            "replica": FakeKind(),
        }
        self.source, self.guard = FakeSource(), OpenGuard()
        self.source.commit({1: "a"})
        self.runner = Runner(fake_ports(self.source, lambda name: self.kinds[name], epoch=1), Bounds())
        self.schedule = Schedule("n1", ProbeConfig(), BackoffConfig(), lambda: 0.5)

    def run(self) -> tuple[Checkpoint, dict[str, JobOutcome]]:
        """One iteration of each, and what the node says of them to its owner."""
        outcomes: dict[str, JobOutcome] = {}
        reports, history = list[JobReport](), list[HistoryEntry]()
        todo: list[Any] = [
            StartShard(SHARD, TableEpoch(1, 1), tuple(self.rows.values())),
            ProbeAnswered(SHARD, URI, ProbeState(1, b"1", 1.0)),
        ]
        while todo:
            for effect in self.schedule.step(todo.pop(0), 1.0, 1_000.0):
                match effect:
                    case Submit(iteration):
                        done = self.runner.run(iteration, self.guard)
                        outcomes |= {each.row.key.job_name: each for each in done}
                        todo += [IterationStarted(iteration.number), IterationEnded(iteration.number, done)]
                    case Reports():
                        reports += effect.reports
                        history += effect.history
        return Checkpoint(1, 1, 1, (ShardCheckpoint(SHARD, tuple(reports), tuple(history)),)), outcomes

    def assert_kept(self) -> JobOutcome:
        """Both ways to the owner: of its own node as it is, of another over the wire; the poisoned job's outcome."""
        said, outcomes = self.run()
        (shard,) = said.shards
        assert tuple(map(exact_report, shard.reports)) == shard.reports
        assert tuple(map(exact_entry, shard.history)) == shard.history
        assert decode_node(encode_node(said)) == said
        rows = dict(self.rows)
        for report in said.shards[0].reports:
            rows[report.job_id] = apply_report(rows[report.job_id], report) or rows[report.job_id]
        kept = job_rows(log_table(list(rows.values()), [()] * len(rows)))
        assert [row.status for row in kept] == [row.status for row in rows.values()]
        assert len(history_table(said.shards[0].history)) == len(said.shards[0].history)
        assert outcomes["replica"].ok
        assert rows["000000000001-replica"].watermark.version == 1
        if not outcomes["poisoned"].ok:
            assert rows["000000000001-poisoned"].status.error_msg
        return outcomes["poisoned"]


def exact(record_of: Callable[[str], Any]) -> Callable[[str, Any], Any]:
    """A consumer that keeps its record, and otherwise answers what `record_of` says."""
    records: dict[str, str] = {}
    key = record_key(job("poisoned").key, "/poisoned")

    class Txn:
        def get(self, name: str) -> Any:
            found = record_of("get")
            return records.get(name) if found is None else found

        def put(self, name: str, value: str) -> None:
            records[name] = value

    def asked(what: str, given: Any) -> Any:
        if what == "position":
            found = record_of("position")
            return position_of(records.get(key)) if found is None else found
        given.update_watermark(Txn())
        return record_of("consume")

    return asked


POSITIONS = st.sampled_from([field.name for field in fields(Position)]).flatmap(
    lambda name: POISON.map(lambda value: replace(Position(), **{name: value}))
)
MARKS = st.sampled_from([field.name for field in fields(Watermark)]).flatmap(
    lambda name: POISON.map(lambda value: Position(1, replace(Watermark(1, 1.0), **{name: value})))
)
DEAD = st.builds(lambda seq, rows: Position(dead=DeadLetters(seq, rows)), POISON, POISON)


@given(st.sampled_from(["position", "consume", "get"]), POISON | POSITIONS | MARKS | DEAD)
def test_whatever_it_answers_is_its_own_fault_and_can_be_kept(what: str, answer: object) -> None:
    Bench(exact(lambda asked: answer if asked == what else None)).assert_kept()


@given(st.sampled_from(["position", "consume", "get"]), ERRORS)
def test_whatever_it_raises_is_its_own_fault_and_can_be_kept(what: str, error: BaseException) -> None:
    def asked(of: str) -> None:
        if of == what:
            raise error

    outcome = Bench(exact(asked)).assert_kept()
    assert outcome.error_code == ErrorCode.CONSUMER_FAILED
    assert "'poisoned'" in outcome.error_msg


@given(st.sampled_from([TemporaryError, PermanentError, IscpError]), POISON, POISON, POISON)
def test_an_error_of_iscps_own_in_other_hands_can_be_kept(
    kind: type[IscpError], message: Any, field: Any, code: Any
) -> None:
    def asked(of: str) -> None:
        if of == "get":
            raise kind(message, field=field, remedy=message, code=code)

    outcome = Bench(exact(asked)).assert_kept()
    assert outcome.error_code != ErrorCode.OK


@pytest.mark.parametrize("rows", [np.int64(7), np.uint8(7), 7])
def test_a_number_of_numpys_is_as_good_as_any(rows: Any) -> None:
    outcome = Bench(exact(lambda asked: rows if asked == "consume" else None)).assert_kept()
    assert (outcome.ok, outcome.rows, type(outcome.rows)) == (True, 7, int)


@pytest.mark.parametrize(
    ("what", "answer", "said"),
    [
        ("consume", "7", "the number of rows is '7'"),
        ("consume", -1, "the number of rows is -1"),
        ("position", Position(seq="1"), "seq is '1'"),  # type: ignore[arg-type]
        ("position", Position(watermark=Watermark(1, float("nan"))), "watermark.at_s is nan"),
        ("position", RaisesWhenRead(), "a value of RaisesWhenRead, which is no Position"),
        ("get", 5, "cannot be read"),
        ("get", "[" * 100_000, "cannot be read"),
        ("get", '{"format":1,"seq":"1"}', "cannot be read"),
    ],
)
def test_a_wrong_value_is_reported_by_its_name(what: str, answer: Any, said: str) -> None:
    outcome = Bench(exact(lambda asked: answer if asked == what else None)).assert_kept()
    assert (outcome.error_code, said in outcome.error_msg) == (ErrorCode.CONSUMER_BROKEN, True), outcome.error_msg


@pytest.mark.parametrize("code", [ErrorCode.CANCELED, ErrorCode.QUEUE_FULL, ErrorCode.LEASE_LOST])
def test_a_fault_that_only_the_node_may_have_is_not_taken_from_it(code: ErrorCode) -> None:
    def asked(of: str) -> None:
        if of == "consume":
            raise LeaseLost("let me off", code=code)

    assert Bench(exact(asked)).assert_kept().error_code == ErrorCode.CONSUMER_FAILED


class Exits(FakeKind):
    """A kind of somebody else's that is no CustomConsumer, and ends the thread that it runs in."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def columns(self, *given: Any) -> Any:
        self._reach("columns")
        return super().columns(*given)

    def open(self, *given: Any) -> Any:
        self._reach("open")
        return super().open(*given)

    def _reach(self, where: str) -> None:
        if where == self._where:
            raise SystemExit(LONE)


def test_a_kind_that_exits_ends_no_iteration_of_others() -> None:
    bench = Bench(exact(lambda asked: None))
    bench.kinds = {"poisoned": Exits("open"), "replica": FakeKind()}
    outcome = bench.assert_kept()
    assert outcome.error_msg == "SystemExit: \\ud800"


def test_a_kind_that_opens_no_consumer_is_reported_and_ends_no_iteration_of_others() -> None:
    bench = Bench(exact(lambda asked: None))
    bench.kinds = {"poisoned": type("Opens", (FakeKind,), {"open": lambda *given: object()})(), "replica": FakeKind()}
    outcome = bench.assert_kept()
    assert outcome.error_code == ErrorCode.CONSUMER_BROKEN
    assert "'poisoned' opens object, which is no Consumer" in outcome.error_msg


def poisoned_entry(seq: int, **wrong: Any) -> HistoryEntry:
    return replace(entry(job("replica"), seq), **wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"error_msg": LONE}, {"end_at_s": float("nan")}, {"rows": "5"}, {"rows": 2**63}, {"node_id": StrExitsError()}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_entry_that_no_table_can_hold_stops_no_other(
    tmp_path: Path, wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    clock = SystemClock()
    log = DeltaJobLog(str(tmp_path), clock, EnvironmentFailpoints())
    writer, written = HistoryWriter(log, clock, retry_s=0.1, tidy_every_s=1e9), list[str]()
    good = [poisoned_entry(seq) for seq in (1, 2, 3, 4)]
    writer.add([*good[:2], poisoned_entry(9, **wrong), *good[2:]], lambda: written.append("first"))
    assert writer.turn()
    writer.add([poisoned_entry(5)], lambda: written.append("second"))
    assert writer.turn()
    assert written == ["first", "second"]
    assert [each.seq for each in log.history(good[0].job_id, 10)] == [5, 4, 3, 2, 1]
    assert writer.quarantined == 1
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["history.quarantined"]


def row(name: str) -> JobRow:
    return JobRow(JobKey("default", "t1", name), name, "{}", "/lake/t1", "/lake/t1", watermark=Watermark(3, 3.0), seq=7)


def iteration(*names: str, number: int = 1) -> Iteration:
    return Iteration(number, "t1", "/lake/t1", tuple(map(row, names)))


def said(outcomes: Sequence[JobOutcome]) -> list[tuple[str, int]]:
    return [(outcome.row.job_id, outcome.error_code) for outcome in outcomes]


def resumed(job: JobRow, error_code: int = ErrorCode.NODE_KILLED, reported_at_s: float = 5.0) -> JobRow:
    status = JobStatus(end_at_s=reported_at_s, error_code=error_code)
    return job._replace(state=JobState.COMPLETED, reason=Reason.NONE, status_json=status.to_json())


def test_jobs_are_at_work_as_long_as_their_iteration_runs() -> None:
    deaths = FakeDeaths()
    seen: list[list[str]] = []

    def body(each: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        seen.append([*deaths.at])
        return applied(each, 4)

    runner = SurvivingRunner(FakeRunner(body), deaths)
    assert said(runner.run(iteration("a", "b"), OpenGuard())) == [("a", 0), ("b", 0)]
    assert (seen, deaths.at) == ([["a", "b"]], [])


def test_one_that_the_process_died_of_twice_does_not_run_and_says_why() -> None:
    inner, deaths = FakeRunner(), FakeDeaths(b=2)
    a, b, c = SurvivingRunner(inner, deaths).run(iteration("a", "b", "c"), OpenGuard())
    assert (a.ok, c.ok) == (True, True)
    assert deaths.begun == [["a", "c"]]
    assert (b.error_code, b.seq, b.watermark) == (ErrorCode.NODE_KILLED, 7, Watermark(3, 3.0))
    assert "2 times in a row, the last time at 1970-01-01T00:00:01+00:00 (Aborted)" in b.error_msg
    assert "iscp-admin job resume" in b.error_msg


def test_one_that_it_died_of_once_runs_alone_and_is_forgotten_when_it_has_run_well() -> None:
    deaths = FakeDeaths(b=1)
    runner = SurvivingRunner(FakeRunner(), deaths)
    assert said(runner.run(iteration("a", "b", "c"), OpenGuard())) == [("a", 0), ("b", 0), ("c", 0)]
    assert deaths.begun == [["a", "c"], ["b"]]
    assert deaths.known == {}
    runner.run(iteration("a", "b", "c"), OpenGuard())
    assert deaths.begun[2:] == [["a", "b", "c"]]


@pytest.mark.parametrize("failing", [True, False])
def test_one_that_fails_or_waits_for_its_build_is_not_forgotten(failing: bool) -> None:
    deaths = FakeDeaths(b=1)

    def body(each: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        (outcome,) = applied(each, 4)
        other = {"error_code": ErrorCode.STORAGE} if failing else {"build": object()}
        return (replace(outcome, **other),)

    SurvivingRunner(FakeRunner(body), deaths).run(iteration("b"), OpenGuard())
    assert deaths.known["b"].count == 1


def test_what_fails_as_a_whole_leaves_the_outcomes_of_the_others() -> None:
    def body(each: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        if each.jobs[0].job_id == "b":
            raise LeaseLost("the lease has ended")
        return applied(each, 4)

    done = SurvivingRunner(FakeRunner(body), FakeDeaths(b=1)).run(iteration("b", "a"), OpenGuard())
    assert said(done) == [("b", ErrorCode.LEASE_LOST), ("a", 0)]


def test_those_that_it_died_of_run_one_after_the_other_and_wait_no_longer_than_they_may() -> None:
    inner = GatedRunner()
    runner, guard = SurvivingRunner(inner, FakeDeaths(a=1, b=1, c=1)), OpenGuard()
    done: list[tuple[str, int]] = []

    def run(name: str, number: int, guard: OpenGuard) -> threading.Thread:
        thread = threading.Thread(target=lambda: done.extend(said(runner.run(iteration(name, number=number), guard))))
        thread.start()
        return thread

    first = run("a", 1, OpenGuard())
    until(lambda: inner.running == 1)
    second, third = run("b", 2, OpenGuard()), run("c", 3, guard)
    guard.shut = True
    third.join(10.0)
    assert done == [("c", ErrorCode.CANCELED)]
    assert inner.order == [1]
    for number in (1, 2):
        inner.gate(number).set()
    first.join(10.0)
    second.join(10.0)
    assert done[1:] == [("a", 0), ("b", 0)]
    assert inner.most_running == 1


def test_an_account_whose_jobs_end_nodes_in_turn_has_each_run_alone_and_then_none() -> None:
    deaths, inner = FakeDeaths(), FakeRunner()
    runner = SurvivingRunner(inner, deaths)
    deaths.accounts = {"default": ACCOUNT_DEATHS_FEARED, "other": ACCOUNT_DEATHS_MAX}
    assert said(runner.run(iteration("a", "b"), OpenGuard())) == [("a", 0), ("b", 0)]
    assert deaths.begun == [["a"], ["b"]]
    deaths.accounts = {"default": ACCOUNT_DEATHS_MAX}
    a, b = runner.run(iteration("a", "b"), OpenGuard())
    assert (a.error_code, b.error_code) == (ErrorCode.NODE_KILLED, ErrorCode.NODE_KILLED)
    assert "died 4 times within a day while they worked for jobs of the account 'default'" in a.error_msg
    assert len(deaths.begun) == 2


def test_a_person_has_one_tried_again_once_for_each_time_that_it_was_reported() -> None:
    deaths, inner = FakeDeaths(b=2), FakeRunner(lambda each, guard: tuple(failed(each)))
    runner = SurvivingRunner(inner, deaths)

    def run(job: JobRow) -> int:
        (outcome,) = runner.run(replace(iteration("b"), jobs=(job,)), OpenGuard())
        return outcome.error_code

    assert run(row("b")) == ErrorCode.NODE_KILLED
    assert run(resumed(row("b"), ErrorCode.STORAGE)) == ErrorCode.NODE_KILLED
    assert run(resumed(row("b"))._replace(reason=Reason.QUARANTINED)) == ErrorCode.NODE_KILLED
    assert run(resumed(row("b"))) == ErrorCode.STORAGE
    deaths.known["b"] = Deaths(2, 9.0, "Aborted", forgiven_at_s=deaths.of(row("b")).forgiven_at_s)
    assert run(resumed(row("b"))) == ErrorCode.NODE_KILLED, "its row is as it was before it died again"
    assert run(resumed(row("b"), reported_at_s=10.0)) == ErrorCode.STORAGE


def failed(each: Iteration) -> Iterator[JobOutcome]:
    for outcome in applied(each, 4):
        yield replace(outcome, error_code=ErrorCode.STORAGE)


def test_a_cancellation_is_passed_on() -> None:
    inner = FakeRunner()
    SurvivingRunner(inner, FakeDeaths()).cancel(iteration("a", number=4))
    assert inner.cancelled == [4]
