"""Consumers that read several tables themselves are brought to one version of each, by numbered commits.

A job of any kind has its tables hold before it reads; a table that cannot be held is its own fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from iscp.engine.applier import FIRST_BUILD
from iscp.model.job.iteration import Bounds, DataType, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.job.source_holds import holder_of
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import ErrorCode, StorageError
from iscp.model.values.watermark import Position, Watermark
from iscp.ports.source import ChangesUnavailableError
from iscp.schedule.runner import Runner
from tests.fakes.bench import NUMBERS, URI, Bench, job
from tests.fakes.guards import OpenGuard, ScriptedFailpoints
from tests.fakes.pipeline import FakeEngine, FakeKind, FakeSource, FakeTarget, fake_ports
from tests.fakes.refreshing import CountingConsumer, CountingKind, FakeTables

OTHER = "/tables/t-2"


class Views:
    """Two tables with two rows and one, at version 1 each, and views of how many they are."""

    def __init__(self) -> None:
        self.other = FakeSource("t-2")
        self.own = FakeTables({OTHER: self.other})
        self.kind, self.replicas, self.engine = CountingKind(self.own), FakeKind(), FakeEngine()
        self.failpoints = ScriptedFailpoints()
        kinds = {"view": self.kind, "replica": self.replicas}
        self.committed: list[JobOutcome] = []
        self.runner = Runner(
            fake_ports(self.own, lambda name: kinds[name], self.engine, self.failpoints),
            Bounds(),
            on_committed=self.committed.append,
        )
        self.own.commit({1: "a", 2: "b"})
        self.other.commit({1: "x"})

    def job(self, name: str = "v", registration: int = 1, **given: object) -> JobRow:
        tables = {"own": URI, "other": OTHER}
        return job(name, registration, kind="view", key=(), options={"sql": "…", "tables": tables}, **given)

    def run(self, *jobs: JobRow, to: int | None = None) -> list[JobOutcome]:
        outcomes = list(self.runner.run(Iteration(next(NUMBERS), "t-1", URI, jobs, to), OpenGuard()))
        assert self.engine.open_sessions == 0
        return outcomes

    def consumer(self, row: JobRow) -> CountingConsumer:
        return self.kind.consumers[row.spec.consumer.target]

    def target(self, row: JobRow) -> FakeTarget:
        return self.kind.target(row.spec.consumer.target)


@pytest.fixture
def views() -> Views:
    return Views()


def versions(outcome: JobOutcome) -> dict[str, int]:
    return {uri: mark.watermark.version for uri, mark in outcome.sources.items()}


def applied(row: JobRow, outcome: JobOutcome) -> JobRow:
    return row._replace(watermark=outcome.watermark, seq=outcome.seq)


def test_at_first_the_sink_is_claimed_and_all_is_computed(views: Views) -> None:
    row = views.job()
    (outcome,) = views.run(row)
    assert outcome.ok
    assert (outcome.data_type, outcome.strategy, outcome.strategy_reason) == (DataType.SNAPSHOT, "full", FIRST_BUILD)
    assert (outcome.watermark.version, versions(outcome)) == (1, {URI: 1, OTHER: 1})
    assert views.target(row).commits == [("claim", 1), ("full", 2)]
    assert views.target(row).rows == {0: "2", 1: "1"}
    assert views.committed == [outcome]


def test_a_commit_of_another_table_is_taken_alone(views: Views) -> None:
    row = views.job()
    (first,) = views.run(row)
    views.other.commit({2: "y"})
    (outcome,) = views.run(applied(row, first))
    assert (outcome.data_type, outcome.strategy, outcome.seq) == (DataType.TAIL, "incremental", 3)
    assert (outcome.watermark.version, versions(outcome)) == (1, {URI: 1, OTHER: 2})
    assert views.target(row).rows == {0: "2", 1: "2"}


@pytest.mark.parametrize("known", [0, 1])
def test_a_job_log_that_knows_less_than_the_sink_takes_no_view_back(views: Views, known: int) -> None:
    """As one that was restored: nothing but its first build is known of the view, or not even that."""
    row = views.job()
    (first,) = views.run(row)
    before = applied(row, first) if known else row
    views.own.commit({3: "c"})
    views.run(applied(row, first))
    (outcome,) = views.run(before, to=1)
    assert (outcome.error_msg, outcome.committed, outcome.watermark.version) == ("", False, 2)
    views.own.commit({4: "d"})
    (outcome,) = views.run(before)
    assert (outcome.strategy, outcome.watermark.version) == ("incremental", 3)
    assert views.target(row).rows == {0: "4", 1: "1"}


def test_what_moves_without_rows_moves_the_marks_alone(views: Views) -> None:
    row = views.job()
    (first,) = views.run(row)
    views.own.commit()
    views.other.commit()
    (outcome,) = views.run(applied(row, first))
    assert (outcome.committed, outcome.seq, outcome.watermark.version) == (False, 2, 2)
    assert versions(outcome) == {URI: 2, OTHER: 2}
    views.consumer(row).renews = True
    (outcome,) = views.run(applied(row, outcome))
    assert (outcome.committed, outcome.seq, versions(outcome)) == (True, 3, {URI: 2, OTHER: 2})
    assert views.target(row).position.sources == outcome.sources


def test_who_loses_the_seq_starts_over_from_what_the_sink_says(views: Views) -> None:
    row = views.job()
    (first,) = views.run(row)
    views.other.commit({2: "y"})
    target = views.target(row)

    def overtake() -> None:
        views.consumer(row).before_read = lambda: None
        target.position = replace(target.position, seq=3)

    views.consumer(row).before_read = overtake
    (outcome,) = views.run(applied(row, first))
    assert (outcome.ok, outcome.seq) == (True, 4)
    assert target.commits[-1] == ("incremental", 4)
    assert len(views.consumer(row).orders) == 3


def test_rows_that_cannot_be_trusted_are_recomputed(views: Views) -> None:
    row = views.job()
    (first,) = views.run(row)
    views.target(row).position = replace(views.target(row).position, void="somebody wrote to it")
    (outcome,) = views.run(applied(row, first))
    assert (outcome.data_type, outcome.strategy_reason) == (DataType.DIFFERENCE, "somebody wrote to it")
    assert views.target(row).commits[-1] == ("full", 3)


def test_another_registration_claims_what_it_finds(views: Views) -> None:
    row = views.job()
    views.run(row)
    (outcome,) = views.run(views.job(registration=2))
    assert (outcome.strategy_reason, outcome.seq) == (FIRST_BUILD, 4)


@pytest.mark.parametrize("uri", [URI, OTHER])
def test_a_table_that_was_recreated_stops_the_job_or_is_followed(views: Views, uri: str) -> None:
    table = views.own if uri == URI else views.other
    rows = [views.job("stops"), views.job("follows", on_replace="follow")]
    stops, follows = map(applied, rows, views.run(*rows))
    table.anew("t-9", {1: "x", 2: "y", 3: "z"})
    refused, followed = views.run(stops, follows)
    assert refused.error_code == ErrorCode.SOURCE_REPLACED
    assert (uri in refused.error_msg) == (uri == OTHER)
    assert (followed.strategy_reason, followed.sources[uri].table_id) == (f"{uri} was replaced", "t-9")


def test_rows_that_nobody_can_read_fail_the_job_alone(views: Views) -> None:
    row, replica = views.job(), job("copy")
    (first,) = views.run(row)
    views.other.commit({2: "y"})
    views.consumer(row).faults.append(ChangesUnavailableError("vacuumed"))
    failed, copied = views.run(applied(row, first), replica)
    assert (failed.error_code, failed.seq, copied.ok) == (ErrorCode.STORAGE, 2, True)
    assert views.replicas.target("/targets/copy").rows == views.own.states[-1]


def test_a_consumer_that_answers_what_cannot_be_fails(views: Views) -> None:
    row = views.job()
    views.run(row)
    views.target(row).position = Position(2, Watermark(1, 1.0), row.job_id, "t-1", sources={"/x": 1})  # type: ignore[dict-item]
    (outcome,) = views.run(row)
    assert (outcome.error_code, "SourceMark" in outcome.error_msg) == (ErrorCode.INTERNAL, True)


def test_tests_can_make_it_die_at_each_place(views: Views) -> None:
    row = views.job()
    views.run(row)
    assert views.failpoints.reached == ["read.before", "snapshot.before", "report.before"]


def test_a_refresh_that_is_put_off_leaves_the_marks_where_they_are_and_says_what_it_waits_for(views: Views) -> None:
    row = views.job()
    (first,) = views.run(row)
    row = applied(row, first)
    views.own.commit({3: "c"})
    views.other.commit({2: "y"})
    consumer = views.consumer(row)
    consumer.waits = "b (is behind)", 4.0
    (waiting,) = views.run(row)
    assert (waiting.ok, waiting.committed, waiting.seq) == (True, False, row.seq)
    assert (waiting.waits_for, waiting.wait_s) == ("b (is behind)", 4.0)
    assert (waiting.watermark.version, versions(waiting)) == (1, {URI: 1, OTHER: 1})
    consumer.waits = "", 0.0
    (done,) = views.run(row)
    assert (done.committed, done.waits_for, versions(done)) == (True, "", {URI: 2, OTHER: 2})


def test_a_consumer_is_handed_the_versions_beyond_which_it_does_not_go(views: Views) -> None:
    row = views.job()
    iteration = Iteration(next(NUMBERS), "t-1", URI, (row,), 1, ends={URI: 1, OTHER: 0})
    (outcome,) = views.runner.run(iteration, OpenGuard())
    assert outcome.ok
    assert views.consumer(row).orders[-1].ends == {URI: 1, OTHER: 0}


class HoldingKind(FakeKind):
    """Each job holds its source, for as long as its option says."""

    def held(self, spec: ConsumerSpec) -> Mapping[str, float]:
        return {URI: spec.options["hold_s"]} if "hold_s" in spec.options else {}


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.kind = HoldingKind()
    return bench


def test_a_source_is_held_before_it_is_read_and_once(bench: Bench) -> None:
    row = job("x", options={"hold_s": 60.0})
    held: list[bool] = []
    bench.failpoints.once("snapshot.before", lambda: held.append(bool(bench.holds.held)))
    (outcome,) = bench.run(row)
    assert outcome.ok
    assert held == [True]
    assert bench.holds.held == {(URI, holder_of(row.key)): 60.0}
    bench.source.commit({1: "b"})
    bench.run(row)
    bench.source.commit({1: "c"})
    bench.run(row)
    assert bench.holds.placed == [URI]
    bench.assert_fresh(row)


def test_a_job_without_a_hold_alters_and_reads_no_table_for_one(bench: Bench) -> None:
    bench.run(job("x"))
    assert bench.holds.placed == []


def test_a_table_that_cannot_be_held_fails_the_jobs_that_hold_it_and_no_other(bench: Bench) -> None:
    bench.holds.refusals[URI] = StorageError("is not there")
    holding, plain = job("x", options={"hold_s": 60.0}), job("y")
    failed, fine = bench.run(holding, plain)
    assert (failed.error_code, fine.ok) == (ErrorCode.STORAGE, True)
    assert bench.target(holding).commits == []
    bench.holds.refusals.clear()
    assert all(outcome.ok for outcome in bench.run(holding, plain))
