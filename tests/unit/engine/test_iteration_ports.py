"""The progress of a running iteration: measured only on request, and at a bounded rate.

Sinks are kept for as long as they are in use, and no more than a bound.

How a job's policies read a range of its source, and what they do when the source was replaced.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from iscp.engine import iteration_ports
from iscp.engine.iteration_ports import MEASURED_EVERY_S, SINKS_CACHED_MAX, IterationMeter, Reading, SinkPool
from iscp.model.job.iteration import Iteration
from iscp.model.spec.spec import ChangeMode, ConsumerSpec, JobSpec, OnReplace
from iscp.model.values.errors import EngineError, ErrorCode, InvalidRequest, PermanentError, StorageError
from iscp.model.values.progress import UNKNOWN, RunProgress, StageWork, TableSize
from iscp.model.values.watermark import Position, Watermark
from iscp.ports.source import SourceRange, TableDescription
from tests.fakes.bench import Bench, job
from tests.fakes.clock import FakeClock
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.pipeline import FakeSource

WRITING = StageWork(4, 1, 2, 200, 1, 50, began_at_s=1_700_000_000.0)


def seen_while_it_commits(bench: Bench, job_id: str) -> list[RunProgress | None]:
    """What is answered for the job, each time something is committed to the target of `a`."""
    found: list[RunProgress | None] = []

    def look() -> None:
        bench.clock.advance(MEASURED_EVERY_S)
        found.append(bench.runner.progress(job_id))

    bench.target(job("a")).before_commit = look
    return found


def test_an_iteration_whose_progress_nobody_requests_is_not_measured(bench: Bench) -> None:
    bench.built("a")
    assert bench.engine.looked == []


def test_a_snapshot_shows_rows_of_all_rows_and_the_time_left(bench: Bench) -> None:
    bench.engine.works = {1: WRITING}
    found = seen_while_it_commits(bench, job("a").job_id)
    assert bench.run(job("a"))[0].ok
    claim, snapshot = found
    assert (claim, snapshot) != (None, None)
    assert snapshot is not None
    assert (snapshot.rows_written, snapshot.rows_total, snapshot.bytes_total, snapshot.tasks) == (1, 2, 100, 4)
    assert (snapshot.purpose, snapshot.elapsed_s, snapshot.left_s) == ("apply", 2.0, 2.0)
    assert bench.runner.progress(job("a").job_id) is None, "it is over"


def test_a_filtered_snapshot_has_no_total(bench: Bench) -> None:
    bench.engine.works = {1: WRITING}
    found = seen_while_it_commits(bench, job("a").job_id)
    assert bench.run(job("a", where="id > 0"))[0].ok
    assert [(each.rows_total, each.left_s) for each in found if each] == [(UNKNOWN, UNKNOWN)] * 2


def test_a_range_shows_what_is_to_be_read_and_no_time_left(bench: Bench) -> None:
    (built,) = bench.built("a")
    bench.source.commit({3: "c"})
    bench.engine.works = {1: WRITING}
    found = seen_while_it_commits(bench, built.job_id)
    assert bench.run(built)[0].ok
    (tail,) = found
    assert tail is not None
    assert (tail.rows_read, tail.bytes_total, tail.rows_total, tail.left_s) == (2, 0, UNKNOWN, UNKNOWN)


def test_many_requests_are_given_one_measure(bench: Bench) -> None:
    def look() -> None:
        for _ in range(5):
            assert bench.runner.progress(job("a").job_id) is not None

    bench.target(job("a")).before_commit = look
    assert bench.run(job("a"))[0].ok
    assert len(bench.engine.looked) == 1, "the clock stood still"


def test_what_the_engine_has_forgotten_still_counts(bench: Bench) -> None:
    found: list[int] = []

    def look() -> None:
        bench.clock.advance(MEASURED_EVERY_S)
        measure = bench.runner.progress(job("a").job_id)
        assert measure is not None
        found.append(measure.rows_read)
        bench.engine.works = {2: StageWork(rows_read=5)}

    bench.engine.works = {1: StageWork(rows_read=7)}
    bench.target(job("a")).before_commit = look
    assert bench.run(job("a"))[0].ok
    assert found == [7, 12]


def test_an_engine_that_hangs_holds_up_one_request(bench: Bench) -> None:
    hangs, go = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        assert go.wait(30.0)

    def look() -> None:
        bench.engine.before_look = hang
        first = threading.Thread(target=bench.runner.progress, args=(job("a").job_id,))
        first.start()
        assert hangs.wait(30.0)
        try:
            assert bench.runner.progress(job("a").job_id) is None, "nothing is known yet, and nobody waits"
        finally:
            go.set()
            first.join()
            bench.target(job("a")).before_commit = lambda: None

    bench.target(job("a")).before_commit = look
    assert bench.run(job("a"))[0].ok


def test_a_size_that_cannot_be_read_is_not_shown_and_harms_nothing(bench: Bench) -> None:
    def broken(uri: str, version: int) -> TableSize:
        raise EngineError("the log is away")

    bench.source.size_of = broken
    found = seen_while_it_commits(bench, job("a").job_id)
    assert bench.run(job("a"))[0].ok
    assert [(each.rows_total, each.bytes_total) for each in found if each] == [(UNKNOWN, UNKNOWN)] * 2


def test_ranges_read_again_after_a_conflict_count_once() -> None:
    meter = IterationMeter(Iteration(1, "t-1", "/t", (job("a"),)), 0.0, 0.0)
    for _ in range(2):
        meter.note_range(Watermark(1), 7)
    assert meter.read({}, 1.0, 1.0).bytes_total == 7


class Opened:
    def __init__(self) -> None:
        self.uris: list[str] = []

    def __call__(self, uri: str) -> object:
        self.uris.append(uri)
        return object()


def new_pool(opened: Opened) -> SinkPool:
    return SinkPool(opened, lambda uri: uri, FakeClock(), ScriptedFailpoints(), FakeSource())  # type: ignore[arg-type]


def test_a_target_has_one_sink() -> None:
    opened = Opened()
    pool = new_pool(opened)
    assert pool.sink("/x") is pool.sink("/x")
    assert pool.sink("/y") is not pool.sink("/x")
    assert opened.uris == ["/x", "/y"]


def test_what_a_kind_keeps_has_a_name_of_its_own() -> None:
    opened = Opened()
    pool = new_pool(opened)
    assert pool.keep("range 2", "/x", opened) is pool.keep("range 2", "/x", opened)
    assert pool.keep("range 3", "/x", opened) is not pool.keep("range 2", "/x", opened)
    assert pool.sink("/x") is not pool.keep("range 2", "/x", opened)
    assert opened.uris == ["/x"] * 3


def test_a_target_that_is_refused_is_not_opened_and_not_kept() -> None:
    opened, refused = Opened(), ["/x"]

    def check(uri: str) -> str:
        if refused:
            raise StorageError(refused.pop())
        return uri

    pool = SinkPool(opened, check, FakeClock(), ScriptedFailpoints(), FakeSource())  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        pool.keep("feed", "/x", opened)
    assert opened.uris == []
    assert pool.keep("feed", "/x", opened) is pool.keep("feed", "/x", opened)


def test_a_target_whose_check_hangs_holds_up_no_other() -> None:
    let_go, begun = threading.Event(), threading.Event()

    def check(uri: str) -> str:
        if uri == "/hung":
            begun.set()
            assert let_go.wait(20.0)
        return uri

    opened = Opened()
    pool = SinkPool(opened, check, FakeClock(), ScriptedFailpoints(), FakeSource())  # type: ignore[arg-type]
    with ThreadPoolExecutor(2) as threads:
        hung = threads.submit(pool.sink, "/hung")
        assert begun.wait(20.0)
        threads.submit(pool.sink, "/x").result(timeout=10.0)
        assert not hung.done()
        let_go.set()
        assert hung.result(timeout=20.0) is pool.sink("/hung")


def test_the_longest_unused_is_given_up_first() -> None:
    opened = Opened()
    pool = new_pool(opened)
    for number in range(SINKS_CACHED_MAX):
        pool.sink(f"/{number}")
    pool.sink("/0")
    pool.sink("/new")
    opened.uris.clear()
    pool.sink("/0")
    pool.sink("/2")
    assert opened.uris == []
    pool.sink("/1")
    assert opened.uris == ["/1"]


def test_threads_that_open_it_at_once_get_the_same_sink() -> None:
    opened, threads = Opened(), 8
    pool, together = new_pool(opened), threading.Barrier(threads)

    def ask(number: int) -> int:
        together.wait()
        return id(pool.sink("/x"))

    with ThreadPoolExecutor(threads) as executor:
        assert len(set(executor.map(ask, range(threads)))) == 1
    assert opened.uris == ["/x"]


SPEC = JobSpec(ConsumerSpec("replica", "/lake/target"))
SPAN = SourceRange(1, Watermark(3, 30.0), "t-1", from_at_s=10.0, cdf_on=True)
APPLIED = Position(seq=2, watermark=Watermark(1, 10.0), source_id="t-1")


@pytest.mark.parametrize(
    ("source", "cdf_on", "inserts_only", "expected"),
    [
        (ChangeMode.AUTO, True, False, Reading.CDF),
        (ChangeMode.AUTO, True, True, Reading.CDF),
        (ChangeMode.AUTO, False, True, Reading.FILES),
        (ChangeMode.AUTO, False, False, Reading.COMPARE),
        (ChangeMode.CDF, True, True, Reading.CDF),
        (ChangeMode.CDF, False, True, Reading.CDF),
        (ChangeMode.APPEND, True, True, Reading.FILES),
        (ChangeMode.APPEND, True, False, Reading.COMPARE),
        (ChangeMode.DIFF, True, True, Reading.COMPARE),
    ],
)
def test_how_a_range_is_read(source: ChangeMode, cdf_on: bool, inserts_only: bool, expected: Reading) -> None:
    span = replace(SPAN, cdf_on=cdf_on, inserts_only=inserts_only)
    assert iteration_ports.reading(replace(SPEC, change_source=source), span) is expected


def test_only_auto_warns_of_a_feed_that_is_off_and_who_compares_by_choice_is_not_warned() -> None:
    off = replace(SPAN, cdf_on=False)
    assert "is off" in iteration_ports.warning(SPEC, off, "")
    assert iteration_ports.warning(replace(SPEC, change_source=ChangeMode.APPEND), off, "") == ""
    assert iteration_ports.warning(SPEC, SPAN, "vacuumed") == "all rows were compared: vacuumed"
    assert iteration_ports.warning(SPEC, SPAN, "") == ""


@pytest.mark.parametrize(("configured", "refused"), [({}, True), ({"delta.enableChangeDataFeed": "true"}, False)])
def test_cdf_is_refused_at_once_where_the_feed_is_off(configured: dict[str, str], refused: bool) -> None:
    source = TableDescription("t-1", "orders", "/lake/orders", 3, 1.0, configuration=configured)
    iteration_ports.refuse_unfit(SPEC, source)
    if not refused:
        iteration_ports.refuse_unfit(replace(SPEC, change_source=ChangeMode.CDF), source)
        return
    with pytest.raises(InvalidRequest, match="is off") as fault:
        iteration_ports.refuse_unfit(replace(SPEC, change_source=ChangeMode.CDF), source)
    assert fault.value.field == "spec.iteration.change_source"


@pytest.mark.parametrize(
    ("now", "applied_at_s", "fault"),
    [
        (SPAN, 10.0, ""),
        (replace(SPAN, table_id="t-2"), 10.0, ""),  # replaced, and the log goes on
        (replace(SPAN, table_id="t-2"), 11.0, "recreated"),
        # The commit is gone: nobody can know that the log goes on.
        (replace(SPAN, table_id="t-2"), 0.0, "does not show whether it goes on"),
        (SPAN, 11.0, ""),  # restored from a backup, and written on
        (replace(SPAN, to=Watermark(0, 5.0)), 0.0, "ends at version 0"),
    ],
)
def test_a_log_that_was_recreated_is_distinguished_from_one_that_goes_on(
    now: SourceRange, applied_at_s: float, fault: str
) -> None:
    iteration_ports.refuse_rebuild(replace(SPEC, on_replace=OnReplace.FOLLOW), APPLIED, now, lambda: applied_at_s)
    if not fault:
        iteration_ports.refuse_rebuild(SPEC, APPLIED, now, lambda: applied_at_s)
        return
    with pytest.raises(PermanentError, match=fault) as refused:
        iteration_ports.refuse_rebuild(SPEC, APPLIED, now, lambda: applied_at_s)
    assert (refused.value.code, "resync" in refused.value.remedy) == (ErrorCode.SOURCE_REPLACED, True)
