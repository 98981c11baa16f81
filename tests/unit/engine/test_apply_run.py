"""What an iteration has cost each of its jobs.

What a consumer is handed: batches in order and bounded, and a watermark that is compared before it is set.

What the frames hold is tried on Spark, in the pipeline's tests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from iscp.engine.apply_run import BATCH_ROWS_MAX, IterationRetriever
from iscp.engine.iteration_ports import JobRun
from iscp.model.job.iteration import ChangeDetail, DataType, Iteration, JobOutcome, Purpose, Usage
from iscp.model.job.job_row import JobRow
from iscp.model.job.watermark_record import WatermarkRecord, position_of
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import Canceled, Conflict, EngineError, ErrorCode
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Position, Watermark
from iscp.ports.consumer import Needs
from iscp.ports.source import ChangesUnavailableError
from tests.fakes.bench import URI, Bench, job
from tests.fakes.clock import ThreadClock
from tests.fakes.guards import OpenGuard
from tests.fakes.pipeline import FakeConsumer, FakeKind, FakeSource, FakeTarget, fake_ports

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


SPEC = JobSpec(ConsumerSpec("custom", "/t", key=("id",)))
ROW = JobRow(JobKey("a", "t-1", "x"), "j-1", SPEC.to_json(), "t", "/t-1")


class Given(IterationRetriever):
    """Its inserts and deletes are lists of numbers, as the fake engine takes them for frames."""

    def __init__(self, inserts: int, deletes: int, detail: ChangeDetail = ChangeDetail.NET, seq: int = 1) -> None:
        record = WatermarkRecord(seq, Watermark(4, 5.0), "j-1", "t-1", 3, 1, "attempt")
        self.guard = OpenGuard()
        base_seq = seq - 1 if seq > 1 else -1
        kind, position = FakeKind(Needs(detail)), Position(base_version=base_seq)
        work = JobRun(ROW, kind, FakeConsumer(FakeTarget()), position)
        super().__init__(DataType.TAIL, work, record, fake_ports(FakeSource(), lambda name: kind), self.guard)
        self._frames: tuple[Any, Any] = (list(range(inserts)), list(range(deletes)))

    @property
    def inserts(self) -> Any:
        return self._frames[0]

    @property
    def deletes(self) -> Any:
        return self._frames[1]

    def all(self) -> Any:
        return self._frames[0]

    def drained(self) -> list[tuple[int, int]]:
        pairs = []
        while (pair := self.next()) is not None:
            assert max(map(len, pair)) <= BATCH_ROWS_MAX
            pairs.append((len(pair[0]), len(pair[1])))
        assert self.next() is None  # and stays at its end
        return pairs


@pytest.mark.parametrize(
    ("inserts", "deletes", "pairs"),
    [
        (0, 0, []),
        (3, 0, [(3, 0)]),
        (0, 2, [(0, 2)]),
        (3, 2, [(3, 2)]),
        (
            BATCH_ROWS_MAX + 1,
            2 * BATCH_ROWS_MAX + 5,
            [(0, BATCH_ROWS_MAX), (0, BATCH_ROWS_MAX), (BATCH_ROWS_MAX, 5), (1, 0)],
        ),
    ],
)
def test_pairs_are_bounded_and_take_deletes_first(inserts: int, deletes: int, pairs: list[tuple[int, int]]) -> None:
    given = Given(inserts, deletes)
    assert given.drained() == pairs
    assert given.rows_given == inserts + deletes


def test_every_change_comes_in_the_first_of_each_pair() -> None:
    given = Given(BATCH_ROWS_MAX + 2, 0, ChangeDetail.ALL)
    assert given.drained() == [(BATCH_ROWS_MAX, 0), (2, 0)]


class Txn(dict[str, str]):
    """A dictionary is a transaction without an end."""

    def put(self, key: str, value: str) -> None:
        self[key] = value


def test_the_watermark_is_set_where_the_sink_still_is_as_it_said() -> None:
    txn = Txn()
    Given(0, 0, seq=1).update_watermark(txn)
    Given(0, 0, seq=2).update_watermark(txn)
    assert {key: position_of(text).seq for key, text in txn.items()} == {"iscp:/t": 2}


@pytest.mark.parametrize("seq", [1, 2, 4], ids=["as if new", "the same seq again", "one that is yet to come"])
def test_a_watermark_of_another_state_of_the_sink_is_a_conflict(seq: int) -> None:
    txn = Txn()
    for done in (1, 2):
        Given(0, 0, seq=done).update_watermark(txn)
    before = dict(txn)
    with pytest.raises(Conflict, match="another writer"):
        Given(0, 0, seq=seq).update_watermark(txn)
    assert txn == before


def test_nothing_is_set_where_the_guard_lets_nothing_be_written() -> None:
    txn, given = Txn(), Given(0, 0)
    given.guard.shut = True
    with pytest.raises(Canceled):
        given.update_watermark(txn)
    assert txn == {}
