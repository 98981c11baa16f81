"""What an iteration has cost each of its jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from iscp.core.job.iteration import DataType, Iteration, JobOutcome, Purpose
from iscp.core.job.usage import Usage
from iscp.core.values.errors import EngineError, ErrorCode
from iscp.ports.source import ChangesUnavailableError
from tests.fakes.bench import URI, Bench, job
from tests.fakes.clock import ThreadClock

READ_S, COMMIT_S = 4.0, 0.5


class SlowBench(Bench):
    """A bench on which the next read of changes takes READ_S, and each commit COMMIT_S."""

    def __init__(self) -> None:
        super().__init__(clock=ThreadClock())
        self.reported: list[JobOutcome] = []
        self.on_committed = self.reported.append

    def slow(self, *rows: Any) -> None:
        self.failpoints.once("read.after", lambda: self.clock.advance(READ_S))
        for row in rows:
            self.target(row).before_commit = lambda: self.clock.advance(COMMIT_S)


def test_jobs_share_a_read_and_commit_for_themselves() -> None:
    bench = SlowBench()
    x, y = bench.built("x", "y")
    bench.slow(x, y)
    bench.source.commit({3: "c", 4: "d"})
    bench.reported.clear()
    outcomes = bench.run(x, y)
    usage = Usage(read_s=READ_S, commit_s=COMMIT_S, rows_read=2, rows_written=4)
    assert [each.usage for each in outcomes] == [usage] * 2
    assert sorted(bench.reported, key=lambda each: each.row.job_id) == outcomes, "it is known when it is committed"


def test_a_snapshot_is_as_large_as_its_table() -> None:
    bench = SlowBench()
    x = job("x")
    bench.slow(x)
    (outcome,) = bench.run(x)
    assert outcome.data_type is DataType.SNAPSHOT
    assert outcome.usage == Usage(commit_s=2 * COMMIT_S, rows_read=2, rows_written=2, bytes_read=100)


def test_what_changes_do_not_do_says_why_and_what_it_cost() -> None:
    bench = SlowBench()
    (x,) = bench.built("x")
    bench.slow(x)
    bench.source.commit({3: "c"})
    bench.source.net_faults[("id",)] = ChangesUnavailableError("rows share a key")
    (outcome,) = bench.run(x)
    assert (outcome.data_type, outcome.strategy_reason) == (DataType.DIFFERENCE, "rows share a key")
    assert outcome.usage is not None
    assert (outcome.usage.read_s, outcome.usage.commit_s, outcome.usage.rows_read) == (READ_S, COMMIT_S, 3)


def test_attempts_that_another_writer_won_are_counted() -> None:
    bench = SlowBench()
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    target = bench.target(x)

    def overtake() -> None:
        target.before_commit = lambda: bench.clock.advance(COMMIT_S)
        bench.clock.advance(COMMIT_S)
        target.position = replace(target.position, seq=target.position.seq + 1)

    target.before_commit = overtake
    (outcome,) = bench.run(x)
    assert outcome.ok
    assert outcome.usage is not None
    assert (outcome.usage.conflicts, outcome.usage.commit_s) == (1, 2 * COMMIT_S)


def test_a_failure_has_cost_what_it_took() -> None:
    bench = SlowBench()
    x, y = bench.built("x", "y")
    bench.slow(x, y)
    bench.target(y).faults = [EngineError("died")]
    bench.source.commit({3: "c"})
    good, bad = bench.run(x, y)
    assert (good.ok, bad.error_code) == (True, ErrorCode.ENGINE)
    assert bad.usage == Usage(read_s=READ_S, commit_s=COMMIT_S)


def test_versions_without_rows_cost_no_commit() -> None:
    bench = SlowBench()
    (x,) = bench.built("x")
    bench.source.commit()
    (outcome,) = bench.run(x)
    assert outcome.usage == Usage()


def test_a_repair_is_measured_and_so_are_its_conflicts() -> None:
    bench = SlowBench()
    (x,) = bench.built("x")
    target = bench.target(x)
    target.rows = {1: "other"}

    def overtake() -> None:
        target.before_commit = lambda: bench.clock.advance(COMMIT_S)
        target.position = replace(target.position, seq=target.position.seq + 1)

    target.before_commit = overtake
    (outcome,) = bench.runner.run(Iteration(9, "t-1", URI, (x,), purpose=Purpose.REPAIR), bench.guard)
    assert outcome.usage == Usage(commit_s=COMMIT_S, rows_written=1, conflicts=1)
