"""Custom consumers, run as the node runs them: what they are handed, and that their faults affect no other job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import ClassVar

import pytest

from iscp.app.registry import ConsumerRegistry
from iscp.consumers.custom.custom_kind import CustomConsumer, CustomKind, DataType, position_of
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import ErrorCode, InvalidRequest
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Position
from iscp.ports.consumer import ConsumeContext, ConsumerKind, Retriever
from iscp.ports.source import ChangesUnavailableError, TableDescription
from iscp.schedule.runner import Runner
from tests.fakes.catalog import FakeCatalog
from tests.fakes.guards import OpenGuard, ScriptedFailpoints
from tests.fakes.pipeline import FakeKind, FakeSource, fake_ports

URI = "/tables/t-1"


class Store:
    """What all instances of a consumer write to: rows and records, both or none of a transaction."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}
        self.records: dict[str, str] = {}
        self.handed: list[tuple[DataType, int]] = []
        self.body: Callable[[Keeper, ConsumeContext, Retriever], None] = Keeper.keep


class Keeper(CustomConsumer):
    """Keeps rows in memory, as its store's `body` says."""

    store: ClassVar[Store]

    @classmethod
    def check(cls, spec: ConsumerSpec, source: TableDescription) -> None:
        if "fault" in spec.options:
            raise ValueError(spec.options["fault"])

    def position(self) -> Position:
        return position_of(self.store.records.get(self.watermark_key))

    def consume(self, context: ConsumeContext, retriever: Retriever) -> int:
        self.store.handed.append((retriever.data_type, retriever.seq))
        self.store.body(self, context, retriever)
        return 42

    def keep(self, context: ConsumeContext, retriever: Retriever) -> None:
        txn = Txn(self.store.records)
        if retriever.data_type is DataType.SNAPSHOT:
            rows = dict(retriever.snapshot)  # type: ignore[call-overload]
        else:
            rows = {**self.store.rows, **retriever.changes(self.spec.key).frame}  # type: ignore[dict-item]
        retriever.update_watermark(txn)
        self.store.rows, self.store.records = {i: v for i, v in rows.items() if v is not None}, txn


class Txn(dict[str, str]):
    """A transaction is a copy that takes the place of what it was made of."""

    def put(self, key: str, value: str) -> None:
        self[key] = value


class Bench:
    """A source with a row, a job on it, and beside it one with a consumer that keeps to everything."""

    def __init__(self) -> None:
        self.store = Store()
        keeper = type("Keeper", (Keeper,), {"store": self.store})
        self.source, self.guard, self.failpoints = FakeSource(), OpenGuard(), ScriptedFailpoints()
        self.good = FakeKind()
        kinds: dict[str, ConsumerKind] = {"keeper": CustomKind("keeper", keeper), "replica": self.good}

        def find(name: str) -> ConsumerKind:
            return kinds[name] if name in kinds else ConsumerRegistry().kind(name)

        self.runner = Runner(fake_ports(self.source, find, failpoints=self.failpoints, epoch=1), Bounds())
        self.source.commit({1: "a"})
        self.job, self.other = job("keeper"), job("replica")
        self._numbers = count(1)

    def run(self, row: JobRow | None = None) -> JobOutcome:
        """The custom job's outcome; the other one has to come out well each time."""
        jobs = (row or self.job, self.other)
        ours, others = self.runner.run(Iteration(next(self._numbers), "t-1", URI, jobs), self.guard)
        assert others.ok
        assert self.good.target("/replica").rows == self.source.states[-1]
        return ours


def job(kind: str, registration: int = 1) -> JobRow:
    spec = JobSpec(ConsumerSpec(kind, f"/{kind}", key=("id",)))
    return JobRow(JobKey("a", "t-1", kind), f"{registration:012x}-{kind}", spec.to_json(), "t", URI)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_snapshot_and_then_changes_each_under_the_next_seq(bench: Bench) -> None:
    first = bench.run()
    bench.source.commit({2: "b"})
    second = bench.run()
    assert bench.store.handed == [(DataType.SNAPSHOT, 1), (DataType.TAIL, 2)]
    assert [(o.seq, o.watermark.version, o.rows) for o in (first, second)] == [(1, 1, 42), (2, 2, 42)]
    assert bench.store.rows == bench.source.states[-1]


def test_what_cannot_be_read_as_changes_is_a_snapshot(bench: Bench) -> None:
    bench.run()
    bench.source.commit({2: "b"})
    bench.source.commit({1: None})
    bench.source.gone = {2}
    assert bench.run().data_type is DataType.SNAPSHOT
    assert bench.store.rows == bench.source.states[-1]


def test_a_consumer_may_request_a_snapshot_itself(bench: Bench) -> None:
    bench.run()
    bench.source.commit({2: "b"})

    def unfit(keeper: Keeper, context: ConsumeContext, retriever: Retriever) -> None:
        bench.store.body = Keeper.keep
        raise ChangesUnavailableError("its columns are others")

    bench.store.body = unfit
    assert bench.run().data_type is DataType.SNAPSHOT
    assert bench.store.rows == bench.source.states[-1]


def test_a_new_registration_gets_a_snapshot_and_the_former_one_is_turned_away(bench: Bench) -> None:
    bench.run()
    later = job("keeper", registration=2)
    assert (bench.run(later).seq, bench.run(later).seq) == (2, 2)
    assert bench.run().error_code == ErrorCode.SUPERSEDED
    assert bench.store.handed == [(DataType.SNAPSHOT, 1), (DataType.SNAPSHOT, 2)]


def test_a_sink_that_is_gone_is_filled_again_and_its_seq_goes_on(bench: Bench) -> None:
    done = bench.run()
    bench.store.rows, bench.store.records = {}, {}
    outcome = bench.run(bench.job._replace(seq=done.seq, watermark=done.watermark))
    assert (outcome.data_type, outcome.seq) == (DataType.SNAPSHOT, 2)
    assert bench.store.rows == bench.source.states[-1]


@pytest.mark.parametrize("fault", [ZeroDivisionError("by nothing"), SystemExit("gone"), KeyboardInterrupt()])
def test_whatever_it_raises_is_tried_again_and_is_nobody_elses_fault(bench: Bench, fault: BaseException) -> None:
    def fails(keeper: Keeper, context: ConsumeContext, retriever: Retriever) -> None:
        raise fault

    bench.store.body = fails
    outcome = bench.run()
    assert outcome.error_code == ErrorCode.CONSUMER_FAILED
    assert type(fault).__name__ in outcome.error_msg
    assert "'keeper'" in outcome.error_msg


def test_a_fault_after_its_end_was_ordered_is_not_put_down_to_it(bench: Bench) -> None:
    bench.run()

    def fails(keeper: Keeper, context: ConsumeContext, retriever: Retriever) -> None:
        bench.guard.shut = True
        raise ConnectionError("closed")

    bench.store.body = fails
    later = job("keeper", registration=2)
    (outcome,) = bench.runner.run(Iteration(99, "t-1", URI, (later,)), bench.guard)
    assert outcome.error_code == ErrorCode.CANCELED


def _forgets(keeper: Keeper, context: ConsumeContext, retriever: Retriever) -> None:
    pass


def _rolls_back(keeper: Keeper, context: ConsumeContext, retriever: Retriever) -> None:
    retriever.update_watermark(Txn(keeper.store.records))


def _writes_another(keeper: Keeper, context: ConsumeContext, retriever: Retriever) -> None:
    keeper.store.records[keeper.watermark_key] = replace(retriever.record, job_id="another").to_json()


@pytest.mark.parametrize("body", [_forgets, _rolls_back, _writes_another])
def test_a_consumer_that_is_not_where_it_should_is_stopped(
    bench: Bench, body: Callable[[Keeper, ConsumeContext, Retriever], None]
) -> None:
    bench.store.body = body
    outcome = bench.run()
    assert outcome.error_code == ErrorCode.CONSUMER_BROKEN
    assert "instead of seq 1" in outcome.error_msg


def test_a_position_that_is_none_is_reported(bench: Bench) -> None:
    bench.store.records["iscp:/keeper"] = "garbage"
    assert bench.run().error_code == ErrorCode.CONSUMER_BROKEN


def test_a_job_in_the_log_whose_consumer_is_not_there_any_more_gets_an_error_alone(bench: Bench) -> None:
    outcome = bench.run(job("gone"))
    assert outcome.error_code == ErrorCode.CONSUMER_UNKNOWN
    assert not ErrorCode(outcome.error_code).temporary
    assert "'gone' is not a consumer" in outcome.error_msg


def test_another_writer_of_the_seq_makes_it_start_over(bench: Bench) -> None:
    bench.run()
    bench.source.commit({2: "b"})
    bench.failpoints.once("commit.before", bench.run)
    assert bench.run().ok
    assert bench.store.handed == [(DataType.SNAPSHOT, 1), (DataType.TAIL, 2), (DataType.TAIL, 2)]
    assert bench.store.rows == bench.source.states[-1]


SOURCE = TableDescription("t-1", "t", URI, 1, 0.0, {"id": "bigint", "v": "string"})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (ConsumerSpec("keeper", ""), "target"),
        (ConsumerSpec("keeper", "x", key=("nope",)), "key"),
        (ConsumerSpec("keeper", "x", columns=("nope",)), "columns"),
        (ConsumerSpec("keeper", "x", where="nope = 1"), "where"),
    ],
)
def test_a_faulty_spec_is_refused_before_the_class_is_called(spec: ConsumerSpec, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        CustomKind("keeper", Keeper).validate(spec, SOURCE, FakeCatalog())
    assert refusal.value.field == f"spec.iteration.consumer.{field}"


def test_a_check_that_breaks_is_reported_and_a_target_counts_as_it_is_written() -> None:
    kind = CustomKind("keeper", Keeper)
    kind.validate(ConsumerSpec("keeper", "amqp://host/x", options={"a": 1}), SOURCE, FakeCatalog())
    assert kind.target_of(ConsumerSpec("keeper", "amqp://host/x"), FakeCatalog()) == "amqp://host/x"
    with pytest.raises(InvalidRequest, match="ValueError: boom") as refusal:
        kind.validate(ConsumerSpec("keeper", "x", options={"fault": "boom"}), SOURCE, FakeCatalog())
    assert refusal.value.code is ErrorCode.CONSUMER_BROKEN


def test_a_class_that_refreshes_or_purges_makes_its_kind_one_that_does() -> None:
    class Merging(Keeper):
        @classmethod
        def refresh(cls, job: JobRow) -> tuple[list[str], float]:
            return [job.key.table_id], 7.0

    kind, plain = CustomKind("merging", Merging), CustomKind("keeper", Keeper)
    assert kind.refresh is not None
    assert kind.refresh(job("merging")) == (["t-1"], 7.0)
    assert (kind.purge, plain.refresh, plain.purge) == (None, None, None)
