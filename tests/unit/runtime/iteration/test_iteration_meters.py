"""The progress of a running iteration: measured only on request, and at a bounded rate."""

from __future__ import annotations

import threading

from iscp.core.job.iteration import Iteration
from iscp.core.values.errors import EngineError
from iscp.core.values.progress import UNKNOWN, RunProgress, StageWork, TableSize
from iscp.core.values.watermark import Watermark
from iscp.runtime.iteration.iteration_meters import MEASURED_EVERY_S, IterationMeter
from tests.fakes.bench import Bench, job

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
