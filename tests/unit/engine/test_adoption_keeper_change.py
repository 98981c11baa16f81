"""A target goes from a run to a cluster and back with its rows, if both want the same of it; otherwise it is built."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from iscp.engine.adoption import may_take_over
from iscp.engine.iteration_ports import CONFLICT_TRIES_MAX
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import marked_job_id, spec_mark
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import Conflict, ErrorCode
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import DeadLetters, Position, SourceMark, Watermark
from iscp.schedule.runner import Runner
from tests.fakes.guards import OpenGuard
from tests.fakes.pipeline import FakeConsumer, FakeEngine, FakeKind, FakeSource, FakeTarget, fake_ports

URI, TARGET = "/tables/t-1", "/targets/x"


def job(time: int, *, run: bool = False, full: bool = False, key: tuple[str, ...] = ("id",), where: str = "") -> JobRow:
    """A registration at this time, in a cluster or of a run."""
    consumer = ConsumerSpec("replica", TARGET, key, where=where)
    job_id = marked_job_id(f"{time:012x}", spec_mark(URI, consumer), run=run, full=full)
    return JobRow(JobKey("a", "t-1", "x"), job_id, JobSpec(consumer).to_json(), "t", URI)


class BuildingConsumer(FakeConsumer):
    """One as those of other people's making, which take nothing over."""

    go_on_from = None  # type: ignore[assignment]


class Bench:
    """A source at version 2, whose rows at version 1 the target has from the job `kept_by`."""

    def __init__(self, kept_by: JobRow) -> None:
        self.source, self.kind, self.engine = FakeSource(), FakeKind(), FakeEngine()
        self._numbers = itertools.count(1)
        self.runner = Runner(fake_ports(self.source, lambda name: self.kind, self.engine), Bounds())
        self.source.commit({1: "a", 2: "b"})
        assert self.run(kept_by).watermark.version == 1
        assert self.kinds == ["claim", "snapshot"]
        self.source.commit({2: None, 3: "c"})
        self.source.snapshots.clear()

    @property
    def target(self) -> FakeTarget:
        return self.kind.target(TARGET)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.target.commits]

    def run(self, row: JobRow) -> JobOutcome:
        (outcome,) = self.runner.run(Iteration(next(self._numbers), "t-1", URI, (row,)), OpenGuard())
        return outcome

    def assert_right(self) -> None:
        assert self.target.rows == self.source.states[-1]


@pytest.mark.parametrize("run", [False, True])
def test_the_other_keeper_goes_on_at_the_position_without_reading_all_rows(run: bool) -> None:
    bench = Bench(job(1, run=not run))
    outcome = bench.run(job(2, run=run))
    assert (outcome.ok, outcome.watermark.version, outcome.seq) == (True, 2, 4)
    assert bench.kinds == ["claim", "snapshot", "takeover", "tail"]
    assert bench.source.snapshots == []
    assert bench.target.position.job_id == job(2, run=run).job_id
    bench.assert_right()


def test_with_nothing_new_in_the_source_the_empty_commit_is_reported() -> None:
    bench = Bench(job(1, run=True))
    assert bench.run(job(1, run=True)._replace(watermark=Watermark(1, 2.0), seq=2)).watermark.version == 2
    outcome = bench.run(job(2))
    assert (outcome.ok, outcome.watermark.version, outcome.seq) == (True, 2, 4)
    assert bench.kinds == ["claim", "snapshot", "tail", "takeover"]
    again = bench.run(job(2)._replace(watermark=outcome.watermark, seq=outcome.seq))
    assert (again.seq, len(bench.kinds)) == (4, 4)


def test_the_commit_repeats_all_that_the_position_says_but_the_id() -> None:
    bench = Bench(job(1, run=True))
    marks = {"/tables/other": SourceMark("t-1", Watermark(1, 5.0)), URI: SourceMark("t-1", Watermark(2, 3.0))}
    before = Position(
        7,
        Watermark(2, bench.source.at_s[2]),
        job(1, run=True).job_id,
        "t-1",
        dead=DeadLetters(3, 4),
        column_ids={"id": "c-1"},
        sources=marks,
    )
    bench.target.position = before
    assert bench.run(job(2)).ok
    assert bench.target.commits[-1] == ("takeover", 8)
    assert bench.target.position == replace(before, seq=8, job_id=job(2).job_id)


@pytest.mark.parametrize(
    "taker",
    [
        job(2, full=True),
        job(2, where="id > 1"),
        job(2)._replace(job_id="000000000002"),
        job(2, run=True),
    ],
    ids=["a resync", "another spec", "of a release before marks", "another run"],
)
def test_others_build_the_target(taker: JobRow) -> None:
    bench = Bench(job(1, run=True))
    assert bench.run(taker).watermark.version == 2
    assert bench.kinds == ["claim", "snapshot", "claim", "snapshot"]
    bench.assert_right()


def test_a_later_registration_of_a_cluster_builds_what_an_earlier_one_has_left() -> None:
    bench = Bench(job(1))
    assert bench.run(job(2)).watermark.version == 2
    assert bench.kinds == ["claim", "snapshot", "claim", "snapshot"]


def put(**changes: object) -> Callable[[Bench], None]:
    def change(bench: Bench) -> None:
        bench.target.position = replace(bench.target.position, **changes)  # type: ignore[arg-type]

    return change


def recreated(bench: Bench) -> None:
    bench.source.anew("t-2", {8: "h"})


def refusing(bench: Bench) -> None:
    bench.target.takes_empty_commits = False


SPOILED = {
    "rows that nobody vouches for": put(void="others wrote"),
    "another table in the source's place": recreated,
    "a further table that was replaced": put(sources={"/tables/further": SourceMark("t-0", Watermark(1, 1.0))}),
    "a target that takes no empty commit": refusing,
}


@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED)
def test_what_cannot_be_gone_on_with_is_built_by_key(spoiled: Callable[[Bench], None]) -> None:
    bench = Bench(job(1, run=True))
    spoiled(bench)
    assert bench.run(job(2)).watermark.version == 2
    assert bench.kinds == ["claim", "snapshot", "claim", "snapshot"]
    bench.assert_right()


@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED)
def test_what_cannot_be_gone_on_with_is_left_alone_without_a_key(spoiled: Callable[[Bench], None]) -> None:
    bench = Bench(job(1, run=True, key=()))
    rows = bench.target.rows
    spoiled(bench)
    outcome = bench.run(job(2, key=()))
    assert (outcome.error_code, bench.kinds) == (ErrorCode.TARGET_UNUSABLE, ["claim", "snapshot"])
    assert "append-only" in outcome.error_msg
    assert "job resync" in outcome.error_msg
    assert bench.target.rows is rows
    assert bench.run(job(3, key=(), full=True)).ok, "whoever asks for it has it built"


def test_a_claim_without_rows_is_built_from() -> None:
    bench = Bench(job(1, run=True))
    bench.target.position = replace(bench.target.position, watermark=Watermark())
    assert bench.run(job(2)).ok
    assert bench.kinds == ["claim", "snapshot", "claim", "snapshot"]


@pytest.mark.parametrize("run", [False, True])
def test_what_the_former_keeper_has_on_its_way_fails_once_the_target_is_taken_over(run: bool) -> None:
    former, taker = job(1, run=not run), job(2, run=run)
    bench = Bench(former)
    on_its_way = former._replace(watermark=Watermark(1, 2.0), seq=2)

    def overtake() -> None:
        bench.target.before_commit = lambda: None
        assert bench.run(taker).seq == 4

    bench.target.before_commit = overtake
    outcome = bench.run(on_its_way)
    assert outcome.error_code == ErrorCode.SUPERSEDED
    assert taker.job_id in outcome.error_msg
    assert bench.kinds == ["claim", "snapshot", "takeover", "tail"]
    bench.assert_right()


@pytest.mark.parametrize("run", [False, True])
def test_a_former_keeper_that_commits_first_is_taken_over_where_it_has_come_to(run: bool) -> None:
    former, taker = job(1, run=not run), job(2, run=run)
    bench = Bench(former)

    def commit_first() -> None:
        bench.target.before_commit = lambda: None
        assert bench.run(former._replace(watermark=Watermark(1, 2.0), seq=2)).seq == 3

    bench.target.before_commit = commit_first
    outcome = bench.run(taker)
    assert (outcome.ok, outcome.watermark.version, outcome.seq) == (True, 2, 4)
    assert bench.kinds == ["claim", "snapshot", "tail", "takeover"]
    bench.assert_right()


def test_a_target_that_is_lost_again_and_again_is_not_tried_for_ever() -> None:
    bench = Bench(job(1, run=True))
    bench.target.faults += [Conflict("another was first")] * CONFLICT_TRIES_MAX
    assert bench.run(job(2)).error_code == ErrorCode.CONFLICT
    assert bench.run(job(2)).ok
    assert bench.kinds == ["claim", "snapshot", "takeover", "tail"]


def test_an_earlier_registration_does_not_take_a_target_back() -> None:
    bench = Bench(job(2, run=True))
    assert bench.run(job(1)).error_code == ErrorCode.SUPERSEDED


def test_a_job_that_was_built_and_lost_its_target_to_a_run_does_not_take_it_back() -> None:
    built = job(1)
    bench = Bench(built)
    assert bench.run(job(2, run=True)).ok
    assert bench.run(built._replace(watermark=Watermark(1, 2.0), seq=2)).error_code == ErrorCode.SUPERSEDED


def test_ranges_jobs_that_were_built_and_consumers_that_cannot_take_nothing_over() -> None:
    row, kind = job(2), FakeKind()
    consumer = FakeConsumer(kind.target(TARGET))
    assert may_take_over(row, consumer)
    assert not may_take_over(row._replace(key=row.key.of_range(2)), consumer)
    assert not may_take_over(row._replace(watermark=Watermark(0, 1.0)), consumer)
    assert not may_take_over(row._replace(job_id="000000000002"), consumer)
    adopting = replace(row.spec, adopt_from=1).to_json()
    assert not may_take_over(row._replace(spec_json=adopting), consumer)
    assert not may_take_over(row, BuildingConsumer(kind.target(TARGET)))
