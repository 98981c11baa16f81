"""A table that is there becomes a job's target only if it holds the source's rows at the version that is named."""

from __future__ import annotations

import pytest

from iscp.engine.iteration_ports import CONFLICT_TRIES_MAX
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import Conflict, ErrorCode, PermanentError
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import NO_DEAD_LETTERS, DeadLetters, Position, Watermark
from iscp.schedule.runner import Runner
from tests.fakes.guards import OpenGuard
from tests.fakes.pipeline import FakeEngine, FakeKind, FakeSource, FakeTarget, fake_ports

URI, TARGET = "/tables/t-1", "/targets/x"


def job(adopt_from: int | None = 1) -> JobRow:
    spec = JobSpec(ConsumerSpec("replica", TARGET, ("id",)), adopt_from=adopt_from)
    return JobRow(JobKey("a", "t-1", "x"), "000000000001-x", spec.to_json(), "t", URI)


class Bench:
    """A source at version 2, and a target that holds its rows at version 1 and is nobody's."""

    def __init__(self) -> None:
        self.source, self.kind, self.engine = FakeSource(), FakeKind(), FakeEngine()
        self.runner = Runner(fake_ports(self.source, lambda name: self.kind, self.engine), Bounds())
        self.source.commit({1: "a", 2: "b"})
        self.source.commit({2: None, 3: "c"})
        self.target.rows = dict(self.source.states[1])

    @property
    def target(self) -> FakeTarget:
        return self.kind.target(TARGET)

    def run(self, row: JobRow) -> JobOutcome:
        (outcome,) = self.runner.run(Iteration(1, "t-1", URI, (row,)), OpenGuard())
        assert self.engine.open_sessions == 0
        return outcome

    def refused(self, row: JobRow) -> PermanentError:
        with pytest.raises(PermanentError) as refused:
            self.run(row)
        assert self.target.commits == []
        assert refused.value.field == "spec.iteration.adopt_from"
        return refused.value


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_equal_table_is_taken_over_by_one_empty_commit_and_followed_from_there(bench: Bench) -> None:
    outcome = bench.run(job())
    assert (outcome.watermark.version, outcome.seq, outcome.ok) == (1, 1, True)
    assert bench.target.commits == [("adopt", 1)]
    assert bench.target.rows == bench.source.states[1]
    outcome = bench.run(job()._replace(watermark=outcome.watermark, seq=outcome.seq))
    assert (outcome.watermark.version, bench.target.commits) == (2, [("adopt", 1), ("tail", 2)])
    assert bench.target.rows == bench.source.states[2]
    assert bench.source.snapshots == [1], "rows are read for the comparison alone"


def test_a_table_with_other_rows_is_left_as_it_is_and_the_difference_reported(bench: Bench) -> None:
    bench.target.rows = {1: "A", 9: "z"}
    error = bench.refused(job())
    assert error.code == ErrorCode.ADOPT_DIFFERS
    assert "1 rows are missing, 1 are too many, 1 are different" in str(error)
    assert "job resync" in error.remedy
    assert bench.target.rows == {1: "A", 9: "z"}
    assert "version 2" in str(bench.refused(job(adopt_from=2)))


def test_a_version_that_cannot_be_read_any_more_is_a_fault_of_the_job(bench: Bench) -> None:
    bench.source.gone.add(1)
    error = bench.refused(job())
    assert (error.code, "version 1 is gone" in str(error)) == (ErrorCode.VERSION_GONE, True)
    bench.source.gone.clear()
    bench.target.rows_gone = True  # its files are, which shows only when they are read
    assert bench.refused(job()).code == ErrorCode.VERSION_GONE


def test_a_source_with_rows_that_share_a_key_is_not_adopted_from(bench: Bench) -> None:
    bench.target.shared = 2
    error = bench.refused(job())
    assert (error.code, "2 keys of the source" in str(error)) == (ErrorCode.ADOPT_DIFFERS, True)


def test_rows_that_a_former_job_has_set_aside_are_not_taken_over(bench: Bench) -> None:
    bench.target.position = Position(3, Watermark(9), "0-former", "s-1", dead=DeadLetters(seq=1, rows=4))
    assert bench.run(job()).seq == 4
    assert bench.target.position.dead == NO_DEAD_LETTERS


def test_what_was_adopted_before_the_node_died_is_not_probed_again(bench: Bench) -> None:
    bench.run(job())
    bench.target.rows = dict(bench.source.states[1])
    assert bench.run(job()).watermark.version == 2
    assert bench.target.commits == [("adopt", 1), ("tail", 2)]


def test_a_claim_that_was_lost_is_made_again_on_what_is_there_then_but_not_for_ever(bench: Bench) -> None:
    bench.target.faults += [Conflict("another was first")] * (CONFLICT_TRIES_MAX - 1)
    assert bench.run(job()).watermark.version == 1
    other = Bench()
    other.target.faults += [Conflict("another was first")] * CONFLICT_TRIES_MAX
    with pytest.raises(Conflict):
        other.run(job())


def test_a_target_of_an_earlier_registration_can_be_taken_over_too(bench: Bench) -> None:
    bench.target.position = Position(5, Watermark(0, 1.0), "000000000000-x", "t-1")
    assert bench.run(job()).seq == 6


def test_other_jobs_are_run_as_ever(bench: Bench) -> None:
    assert bench.run(job(adopt_from=None)).watermark.version == 2
    assert bench.target.commits == [("claim", 1), ("snapshot", 2)]
