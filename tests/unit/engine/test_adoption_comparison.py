"""What is compared with what, when a comparison is refused, and what a repair commits: over a source in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.engine.iteration_ports import CONFLICT_TRIES_MAX
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome, Purpose
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import VerifyReport
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import Conflict, ErrorCode, JobFailed, PermanentError, Superseded
from iscp.model.values.ids import JobKey
from iscp.schedule.runner import Runner
from tests.fakes.guards import OpenGuard
from tests.fakes.pipeline import FakeEngine, FakeKind, FakeSource, FakeTarget, fake_ports
from tests.fakes.tracing import RecordingTracer

URI, TARGET = "/tables/t-1", "/targets/x"


def job(registration: int = 1, **consumer: object) -> JobRow:
    spec = JobSpec(ConsumerSpec("replica", TARGET, **{"key": ("id",), **consumer}))  # type: ignore[arg-type]
    return JobRow(JobKey("a", "t-1", "x"), f"{registration:012x}-x", spec.to_json(), "t", URI)


class Bench:
    """A source with rows at version 1."""

    def __init__(self) -> None:
        self.source, self.kind, self.engine = FakeSource(), FakeKind(), FakeEngine()
        self.tracer = RecordingTracer()
        ports = replace(fake_ports(self.source, lambda name: self.kind, self.engine), tracer=self.tracer)
        self.runner = Runner(ports, Bounds())
        self.source.commit({1: "a", 2: "b"})

    @property
    def target(self) -> FakeTarget:
        return self.kind.target(TARGET)

    def run(self, row: JobRow, purpose: Purpose = Purpose.APPLY) -> JobOutcome:
        iteration = Iteration(1, "t-1", URI, (row,), purpose=purpose)
        (outcome,) = self.runner.run(iteration, OpenGuard())
        assert self.engine.open_sessions == 0
        return outcome

    def verify(self, row: JobRow, purpose: Purpose = Purpose.VERIFY) -> VerifyReport:
        verified = self.run(row, purpose).verified
        assert verified is not None
        return verified


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_source_is_read_as_of_the_watermark_and_nothing_is_written(bench: Bench) -> None:
    row = job()
    bench.run(row)
    bench.source.commit({3: "c"})
    bench.source.snapshots.clear()
    report = bench.verify(row)
    assert (report.equal, report.repaired, report.version, report.seq) == (True, False, 1, 2)
    assert bench.source.snapshots == [1]
    bench.target.rows = {1: "wrong", 4: "d"}
    report = bench.verify(row)
    said = report.comparison
    assert (said.missing, said.extra, said.different, report.repaired) == (1, 1, 1, False)
    assert bench.target.commits == [("claim", 1), ("snapshot", 2)]


def test_a_comparison_is_recorded_with_what_it_found(bench: Bench) -> None:
    row = job()
    bench.run(row)
    bench.target.rows = {1: "wrong"}
    bench.verify(row, Purpose.REPAIR)
    span = bench.tracer.one("iscp.compare")
    noted = {name.removeprefix("iscp."): value for name, value in span.attributes.items()}
    assert (noted["job"], noted["kind"], noted["version"], noted["seq"]) == ("x", "replica", 1, 3)
    assert (noted["equal"], noted["repaired"]) == (False, True)
    assert (noted["rows.missing"], noted["rows.different"]) == (1, 1)
    assert span.ended


def test_a_repair_is_one_commit_at_the_same_watermark_and_only_where_something_is_wrong(bench: Bench) -> None:
    row = job()
    bench.run(row)
    assert bench.verify(row, Purpose.REPAIR).repaired is False
    bench.target.rows = {1: "wrong"}
    outcome = bench.run(row, Purpose.REPAIR)
    assert (outcome.seq, outcome.watermark.version, bench.target.commits[-1]) == (3, 1, ("repair", 3))
    assert outcome.verified is not None
    assert (outcome.verified.repaired, outcome.verified.equal, outcome.verified.seq) == (True, False, 3)
    assert bench.target.rows == bench.source.states[1]


def test_a_doubted_target_is_said_to_be_so_and_repaired_though_it_is_equal(bench: Bench) -> None:
    row = job()
    bench.run(row)
    bench.target.position = replace(bench.target.position, void="version 3 is not ours")
    assert bench.verify(row).void == "version 3 is not ours"
    report = bench.verify(row, Purpose.REPAIR)
    assert (report.repaired, report.equal, report.seq) == (True, True, 3)


def test_a_repair_that_lost_its_seq_starts_over_and_gives_up_in_the_end(bench: Bench) -> None:
    row = job()
    bench.run(row)
    bench.target.rows = {}
    bench.target.faults.append(Conflict("another was first"))
    assert bench.verify(row, Purpose.REPAIR).repaired
    bench.target.rows = {}
    bench.target.faults += [Conflict("another was first")] * CONFLICT_TRIES_MAX
    with pytest.raises(Conflict):
        bench.verify(row, Purpose.REPAIR)


def test_a_job_without_rows_of_its_own_is_refused(bench: Bench) -> None:
    with pytest.raises(JobFailed, match="not built yet"):
        bench.verify(job())
    bench.run(job(registration=2))
    with pytest.raises(Superseded):
        bench.verify(job(registration=1))
    with pytest.raises(JobFailed, match="holds nothing of this job"):
        bench.verify(job(registration=3))


def test_a_version_that_cannot_be_read_or_is_another_tables_is_said(bench: Bench) -> None:
    row = job()
    bench.run(row)
    bench.source.gone = {1}
    with pytest.raises(PermanentError, match="cannot be read any more as it was at version 1") as gone:
        bench.verify(row)
    assert gone.value.code == ErrorCode.VERSION_GONE
    assert "job wait" in gone.value.remedy
    bench.source.gone = set()
    bench.source.anew("t-2", {9: "z"})
    with pytest.raises(PermanentError, match="not the one that was applied"):
        bench.verify(row)


def test_without_a_key_a_difference_says_something_only_while_the_source_grows(bench: Bench) -> None:
    row = job(key=())
    bench.run(row)
    bench.target.rows = {1: "a"}
    with pytest.raises(PermanentError, match="it cannot be known"):
        bench.verify(row)
    bench.source.inserts_only = True
    assert bench.verify(row).comparison.missing == 1
