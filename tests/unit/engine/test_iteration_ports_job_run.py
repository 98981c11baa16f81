"""The position that is reported for a job that failed, and what the log says of the work.

An iteration records its shared read and each job's part, and every commit is made within its job's span.
"""

from __future__ import annotations

import pytest

from iscp.engine.iteration_ports import longest_parts, record_failure
from iscp.model.job.iteration import JobOutcome, Usage
from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import EngineError, ErrorCode, FileLost, StorageError
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import DeadLetters, Position, SourceMark, Watermark
from iscp.ports.source import ChangesUnavailableError
from iscp.ports.system import current_trace
from tests.fakes.bench import Bench, job
from tests.fakes.tracing import RecordingTracer

ROW = JobRow(JobKey("a", "t-1", "x"), "job-2", "{}", "orders", "/orders", watermark=Watermark(5, 5.0), seq=3)


@pytest.mark.parametrize(
    ("job_id", "version", "expected"),
    [
        ("job-2", 7, (7, 9, "t-2")),
        ("job-2", 4, (5, 3, "t-2")),
        # What the sink was for a former job says nothing of this one.
        ("job-1", 7, (5, 3, "")),
    ],
)
def test_it_never_goes_back_and_takes_nothing_from_a_former_job(
    job_id: str, version: int, expected: tuple[int, int, str]
) -> None:
    position = Position(9, Watermark(version, 7.0), job_id, "t-2", dead=DeadLetters(1, 4))
    outcome = record_failure(ROW, position, StorageError("away"))
    assert (outcome.watermark.version, outcome.seq, outcome.source_id) == expected
    assert (outcome.error_code, outcome.dead_letters) == (ErrorCode.STORAGE, 4)


@pytest.mark.parametrize(("seq", "read"), [(4, True), (3, False)])
def test_versions_of_several_tables_are_those_of_a_commit_that_nobody_knew_of(seq: int, read: bool) -> None:
    """A commit may be followed by a failure. The one that is known may be known to cover later versions too."""
    marks = {"/orders": SourceMark("t-1", Watermark(6, 6.0)), "/customers": SourceMark("t-3", Watermark(2, 2.0))}
    position = Position(seq, Watermark(6, 6.0), "job-2", "t-1", sources=marks)
    outcome = record_failure(ROW, position, StorageError("away"))
    assert outcome.sources == (marks if read else {})


def test_the_log_says_of_which_table_and_job_and_where_it_came_from(caplog: pytest.LogCaptureFixture) -> None:
    """Jobs of several tables may have one name."""
    error = StorageError("the disk is full")
    error.__cause__ = OSError("no space")
    caplog.set_level("INFO")
    for each in (StorageError("away"), error, ValueError()):
        record_failure(ROW, None, each)
    told = [vars(record) for record in caplog.records]
    for fields in told:
        assert [fields[name] for name in ("message", "table", "job", "account", "job_id", "range_id", "seq")] == [
            "iteration.failed",
            "orders",
            "x",
            "a",
            "job-2",
            1,
            3,
        ]
    assert [each["code"] for each in told] == [9, 9, 99]
    assert [each["exc_info"] is not None for each in told] == [False, True, True]


def test_an_error_that_nobody_has_translated_is_an_internal_one() -> None:
    outcome = record_failure(ROW, None, ValueError())
    assert (outcome.error_code, outcome.error_msg, outcome.watermark) == (
        ErrorCode.INTERNAL,
        "ValueError",
        ROW.watermark,
    )


@pytest.mark.parametrize(
    ("cause", "code"),
    [(FileLost("/orders/a is not there"), ErrorCode.FILE_LOST), (OSError("away"), ErrorCode.STORAGE), (None, 9)],
)
def test_changes_that_no_comparison_could_represent_are_a_lost_file_where_one_is(
    cause: Exception | None, code: int
) -> None:
    gone = ChangesUnavailableError("/orders/a is not there")
    gone.__cause__ = cause
    outcome = record_failure(ROW, None, gone)
    assert (outcome.error_code, "/orders/a is not there" in outcome.error_msg) == (code, True)


def test_a_log_line_has_the_parts_of_the_job_for_which_each_took_longest() -> None:
    usages = [None, Usage(9.0, 1.0, 2.0, 3.00001), Usage(9.0, 4.0, 1.0, 0.0)]
    outcomes = [JobOutcome(ROW, ROW.watermark, 1, usage=usage) for usage in usages]
    assert longest_parts(outcomes) == {"read_s": 4.0, "compute_s": 2.0, "commit_s": 3.0}
    assert longest_parts([]) == {"read_s": 0.0, "compute_s": 0.0, "commit_s": 0.0}


@pytest.fixture
def tracer() -> RecordingTracer:
    return RecordingTracer()


@pytest.fixture
def bench(tracer: RecordingTracer) -> Bench:
    return Bench(tracer=tracer)


def test_jobs_of_one_read_are_parts_of_their_own_also_on_threads_of_their_own(
    bench: Bench, tracer: RecordingTracer
) -> None:
    rows = bench.built("x", "y")
    tracer.spans.clear()
    committed: dict[str, str] = {}
    for row in rows:

        def note(name: str = row.key.job_name) -> None:
            committed[name] = current_trace()

        bench.target(row).before_commit = note
    bench.source.commit({3: "c"})
    with tracer.span("iteration", {}) as above:
        bench.run(*rows)
    assert current_trace() == ""
    read, parts = tracer.one("iscp.read"), tracer.named("iscp.consume")
    assert {span.parent for span in (read, *parts)} == {above.trace}
    assert committed == {str(span.attributes["iscp.job"]): span.trace for span in parts}
    assert (read.attributes["iscp.read"], read.attributes["iscp.version"], read.ended) == ("cdf", 2, True)
    for span in parts:
        assert span.attributes["iscp.committed"] is True
        assert (span.attributes["iscp.rows"], span.attributes["iscp.data"], span.failure) == (3, "tail", None)


def test_a_job_that_fails_is_a_span_that_failed_and_the_others_are_not(bench: Bench, tracer: RecordingTracer) -> None:
    x, y = bench.built("x", "y")
    tracer.spans.clear()
    bench.target(y).faults.append(EngineError("died"))
    bench.source.commit({3: "c"})
    bench.run(x, y)
    failures = {span.attributes["iscp.job"]: span.failure for span in tracer.named("iscp.consume")}
    assert failures["x"] is None
    kind, message = failures["y"] or ("", "")
    assert (kind, "died" in message) == ("EngineError", True)


def test_a_job_that_has_to_compare_all_rows_does_so_within_its_span(bench: Bench, tracer: RecordingTracer) -> None:
    (x,) = bench.built("x")
    tracer.spans.clear()
    bench.source.commit({3: "c"})
    bench.source.net_faults = {("id",): ChangesUnavailableError("a file is gone")}
    bench.run(x)
    outer, inner = tracer.named("iscp.consume")
    assert inner.parent == outer.trace
    changes, rows = tracer.named("iscp.read")
    assert (changes.attributes["iscp.read"], rows.attributes["iscp.read"]) == ("cdf", "snapshot")
    assert (rows.parent, inner.attributes["iscp.data"]) == (inner.trace, "difference")


def test_without_a_tracer_the_outcome_is_the_same() -> None:
    plain, recorded = Bench(), Bench(tracer=RecordingTracer())
    first, second = (bench.run(job("x")) for bench in (plain, recorded))
    assert first == second
