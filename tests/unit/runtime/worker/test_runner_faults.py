"""A fault stays with its job: conflicts of the seq, guards that refuse, failures, and sinks that are gone."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from iscp.core.api.log_lines import JobOfLines
from iscp.core.job.iteration import Bounds, DataType, Iteration, JobOutcome, Purpose
from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import Canceled, Conflict, EngineError, ErrorCode, FileLost, InvalidRequest, PermanentError
from iscp.core.values.watermark import Position, Watermark
from iscp.runtime.iteration.iteration_ports import CONFLICT_TRIES_MAX, LOST_TRIES_MAX
from tests.fakes.bench import NUMBERS, URI, Bench, job
from tests.fakes.deaths import FakeDeaths


def test_the_line_about_an_iteration_says_whose_it_is(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Several accounts may have jobs on a table, and each reads its own lines alone."""
    with caplog.at_level(logging.INFO):
        (built,) = bench.built("x")
    accounts = [vars(record).get("account") for record in caplog.records if record.message == "iteration.done"]
    assert set(accounts) == {built.key.account}


def test_no_line_about_a_job_is_among_those_of_another(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    x, y = bench.built("x", "y")
    bench.source.commit({3: "c"})
    with caplog.at_level(logging.INFO):
        bench.run(x)
        bench.target(y).faults.append(PermanentError("no", code=ErrorCode.TARGET_UNUSABLE))
        bench.run(x, y)
    found: dict[str, list[str]] = {each.key.job_name: [] for each in (x, y)}
    for row in (x, y):
        lines = JobOfLines(row.job_id, row.key.job_name, row.key.account, (row.key.table_id, row.table_name, URI))
        found[row.key.job_name] += [each.message for each in caplog.records if lines.named_in(vars(each))]
    assert found == {"x": ["iteration.done"] * 2, "y": ["iteration.failed", "iteration.done"]}


def test_one_jobs_fault_is_its_own(bench: Bench) -> None:
    x, y, z = bench.built("x", "y", "z")
    bench.source.commit({3: "c"})
    bench.target(y).faults.append(PermanentError("no", code=ErrorCode.TARGET_UNUSABLE))
    outcomes = bench.run(x, y, z)
    assert [o.error_code for o in outcomes] == [0, ErrorCode.TARGET_UNUSABLE, 0]
    assert (outcomes[1].watermark.version, outcomes[1].seq) == (1, 2)  # where its sink stands
    bench.assert_fresh(x, z)


def test_a_job_whose_places_are_none_of_its_accounts_is_refused_before_anything_of_it_is_opened(bench: Bench) -> None:
    x, y = bench.built("x", "y")
    bench.source.commit({3: "c"})

    def require(row: JobRow) -> None:
        if row.key == x.key:
            raise InvalidRequest("lies elsewhere", field="table", code=ErrorCode.OUTSIDE_ROOTS)

    bench.require_places = require
    assert [o.error_code for o in bench.run(x, y)] == [ErrorCode.OUTSIDE_ROOTS, 0]
    bench.assert_fresh(y)
    assert bench.target(x).commits == []
    for purpose in (Purpose.VERIFY, Purpose.REPAIR):
        with pytest.raises(InvalidRequest, match="lies elsewhere"):
            bench.runner.run(Iteration(1, "t-1", URI, (x,), purpose=purpose), bench.guard)
    with pytest.raises(InvalidRequest, match="lies elsewhere"):
        bench.run(x._replace(spec_json=replace(x.spec, adopt_from=1).to_json(), watermark=Watermark()))


def test_an_error_that_nobody_named_is_internal_and_its_own_too(bench: Bench) -> None:
    x, y = bench.built("x", "y")
    bench.source.commit({3: "c"})
    bench.target(x).faults.append(ZeroDivisionError())
    outcomes = bench.run(x, y)
    assert [(o.error_code, o.error_msg) for o in outcomes] == [(ErrorCode.INTERNAL, "ZeroDivisionError"), (0, "")]


def test_a_sink_that_cannot_return_its_position_holds_up_nobody_else(bench: Bench) -> None:
    x, y = bench.built("x", "y")
    bench.source.commit({3: "c"})
    bench.target(x).position = None  # type: ignore[assignment]
    outcomes = bench.run(x, y)
    assert [o.error_code for o in outcomes] == [ErrorCode.INTERNAL, 0]
    bench.assert_fresh(y)


def test_a_key_that_rows_share_fails_the_jobs_of_that_key_alone(bench: Bench) -> None:
    x, y = bench.built("x", "y")
    (z,) = bench.built("z", key=("v",))
    bench.source.commit({3: "c"})
    bench.source.net_faults[("v",)] = PermanentError("rows share a key", code=ErrorCode.DUPLICATE_KEY)
    assert [o.error_code for o in bench.run(x, z, y)] == [0, ErrorCode.DUPLICATE_KEY, 0]
    assert len(bench.source.feeds) == 1
    bench.assert_fresh(x, y)


def test_a_column_that_the_source_has_lost_fails_only_the_jobs_that_keep_it(bench: Bench) -> None:
    (x,) = bench.built("x")
    (y,) = bench.built("y", columns=("id", "v"))
    bench.source.names = ("id", "w")
    bench.source.commit({3: "c"})
    outcomes = bench.run(x, y)
    assert [o.ok for o in outcomes] == [True, False]
    bench.assert_fresh(x)


def test_a_lost_seq_leads_to_another_attempt_from_what_the_sink_says_then(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    target = bench.target(x)

    def another_writer_is_first() -> None:
        target.before_commit = lambda: None
        target.rows = dict(bench.source.states[2])
        target.position = replace(target.position, seq=3, watermark=Watermark(2, bench.source.at_s[2]))
        bench.source.commit({4: "d"})

    target.before_commit = another_writer_is_first
    (outcome,) = bench.run(x)
    assert (outcome.error_code, outcome.seq, outcome.from_version) == (0, 4, 2)
    assert [feed.span.from_version for feed in bench.source.feeds] == [1, 2]
    bench.assert_fresh(x)


def test_only_the_job_that_lost_its_seq_is_run_again_and_not_for_ever(bench: Bench) -> None:
    x, y = bench.built("x", "y")
    bench.source.commit({3: "c"})
    bench.target(x).faults += [Conflict("lost")] * 10
    looks = bench.target(y).looks
    outcomes = bench.run(x, y)
    assert [o.error_code for o in outcomes] == [ErrorCode.CONFLICT, 0]
    assert len(bench.target(x).faults) == 10 - CONFLICT_TRIES_MAX
    assert bench.target(y).commits == [("tail", 3)]
    assert bench.target(y).looks == looks + 1


@pytest.mark.parametrize("lost", [2, LOST_TRIES_MAX - 1, LOST_TRIES_MAX])
def test_files_that_are_removed_while_a_table_is_written_are_read_again_at_its_newest_version(
    bench: Bench, lost: int
) -> None:
    """As where it is vacuumed in a loop; in the end it is an error."""
    x, y = bench.built("x", "y")
    bench.source.commit({3: "c"})
    target = bench.target(x)
    target.faults += [FileLost("a file is not there")] * lost
    target.before_commit = lambda: bench.source.commit({4: "d"}) if target.faults else None
    outcomes = bench.run(x, y)
    ends = lost < LOST_TRIES_MAX
    assert [o.error_code for o in outcomes] == [0 if ends else ErrorCode.FILE_LOST, 0]
    if ends:
        bench.assert_fresh(x)
    assert bench.target(y).commits == [("tail", 3)]


def test_a_file_that_stays_lost_is_searched_once_more_and_not_again(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    bench.target(x).faults += [FileLost("a file is not there")] * 10
    (outcome,) = bench.run(x)
    assert outcome.error_code == ErrorCode.FILE_LOST
    assert len(bench.target(x).faults) == 8


def test_a_shut_guard_stops_before_the_read_and_before_the_commit(bench: Bench) -> None:
    jobs = bench.built("x", "y")
    bench.source.commit({3: "c"})
    bench.guard.shut = True
    assert [o.error_code for o in bench.run(*jobs)] == [ErrorCode.CANCELED] * 2
    assert bench.source.feeds == []
    bench.guard.shut = False
    bench.failpoints.once("read.after", lambda: setattr(bench.guard, "shut", True))
    assert [o.error_code for o in bench.run(*jobs)] == [ErrorCode.CANCELED] * 2
    assert bench.target(jobs[0]).commits == []


def test_a_failed_read_is_reported_of_each_job_with_the_position_of_its_sink(bench: Bench) -> None:
    jobs = bench.built("x", "y")
    bench.source.commit({3: "c"})
    bench.source.net_faults[("id",)] = EngineError("the executor was lost")
    outcomes = bench.run(*jobs)
    assert [(o.error_code, o.watermark.version, o.seq) for o in outcomes] == [(ErrorCode.ENGINE, 1, 2)] * 2


def test_a_sink_that_is_gone_goes_on_from_the_seq_of_the_job_log(bench: Bench) -> None:
    """Otherwise a late commit to the former table could still land in the rebuilt one."""
    (x,) = bench.built("x")
    target = bench.target(x)
    target.position = Position(void="the target is not there")
    # The fake takes any next seq from what it has; a table that is recreated takes the one it is given.
    target.before_commit = lambda: setattr(target, "position", replace(target.position, seq=len(target.commits) + 2))
    target.looks = 0
    (outcome,) = bench.run(x._replace(seq=2, watermark=Watermark(1, 1.0)))
    assert (outcome.error_code, outcome.data_type, outcome.seq) == (0, DataType.SNAPSHOT, 4)
    assert target.commits == [("claim", 3), ("snapshot", 4)]
    assert target.looks == 1


def test_what_a_former_registration_applied_is_not_reported_of_a_later_one_that_could_not_claim(bench: Bench) -> None:
    bench.built("x")
    later = job("x", registration=2)
    bench.target(later).faults.append(EngineError("no"))
    (outcome,) = bench.run(later)
    assert (outcome.error_code, outcome.watermark, outcome.seq) == (ErrorCode.ENGINE, Watermark(), 2)


def test_bounds_cut_a_range_and_the_rest_follows() -> None:
    bench = Bench(Bounds(versions_max=2))
    (x,) = bench.built("x")
    for value in "cdefg":
        bench.source.commit({ord(value): value})
    assert [bench.run(x)[0].watermark.version for _ in range(3)] == [3, 5, 6]
    bench.assert_fresh(x)


def test_every_thread_works_under_the_iterations_label_so_that_a_cancel_reaches_it(bench: Bench) -> None:
    jobs = bench.built("x", "y", "z")
    bench.source.commit({3: "c"})
    iteration = Iteration(next(NUMBERS), "t-1", URI, tuple(jobs))
    worked: set[str] = set()
    for each in jobs:
        bench.target(each).before_commit = lambda: worked.add(threading.current_thread().name)
    bench.runner.run(iteration, bench.guard)
    assert worked
    assert {bench.engine.labels[thread] for thread in worked} == {iteration.label}
    bench.runner.cancel(iteration)
    assert bench.engine.cancelled == [iteration.label]


def test_consumers_run_side_by_side(bench: Bench) -> None:
    jobs = bench.built("x", "y")
    bench.source.commit({3: "c"})
    both = threading.Barrier(2, timeout=5.0)
    for each in jobs:
        bench.target(each).before_commit = both.wait
    assert all(outcome.ok for outcome in bench.run(*jobs))


def test_each_consumer_is_at_work_for_its_own_job_alone() -> None:
    deaths = FakeDeaths()
    bench = Bench(deaths=deaths)
    jobs = bench.built("x", "y")
    deaths.begun.clear()
    bench.source.commit({3: "c"})
    seen: list[bool] = []
    for each in jobs:
        bench.target(each).before_commit = lambda each=each: seen.append(each.job_id in deaths.at)  # type: ignore[misc]
    bench.run(*jobs)
    assert sorted(deaths.begun) == [[each.job_id] for each in jobs]
    assert (seen, deaths.at) == ([True, True], [])


def test_each_commit_is_reported_while_other_consumers_are_still_at_work(bench: Bench) -> None:
    x, y = bench.built("x", "y")
    bench.source.commit({3: "c"})
    told: list[str] = []
    first = threading.Event()

    def tell(outcome: JobOutcome) -> None:
        told.append(outcome.row.key.job_name)
        first.set()

    bench.on_committed = tell
    bench.target(y).before_commit = lambda: told.append(f"y waited: {first.wait(5.0)}")
    assert all(outcome.ok for outcome in bench.run(x, y))
    assert told == ["x", "y waited: True", "y"]


def test_a_consumer_tidies_up_when_its_commit_was_reported_of(bench: Bench) -> None:
    (x,) = bench.built("x")
    told: list[str] = []
    bench.on_committed = lambda outcome: told.append("committed")
    bench.target(x).tidied = lambda: told.append("tidied")
    bench.source.commit()
    assert bench.run(x)[0].ok
    assert told == [], "nothing was committed"
    bench.source.commit({3: "c"})
    assert bench.run(x)[0].ok
    assert told == ["committed", "tidied"]


def test_what_has_not_committed_is_not_reported_of(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.on_committed = lambda outcome: pytest.fail("it has not")
    bench.source.commit()
    assert bench.run(x)[0].ok
    bench.source.commit({3: "c"})
    bench.target(x).faults.append(Canceled("stop"))
    assert not bench.run(x)[0].ok


def test_a_canceled_consumer_is_reported_as_canceled(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    bench.target(x).faults.append(Canceled("stop"))
    assert bench.run(x)[0].error_code == ErrorCode.CANCELED


def test_a_target_that_is_gone_is_rebuilt_and_the_job_says_why(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    (row,) = bench.built("x")
    built = row._replace(watermark=Watermark(bench.source.version, 1.0), seq=bench.target(row).position.seq)
    bench.target(row).position = Position(built.seq, void="the target is not there")
    bench.target(row).rows = {}
    (outcome,) = bench.run(built)
    assert outcome.ok
    assert outcome.warning == "the target was rebuilt: the target is not there"
    assert outcome.seq > built.seq
    bench.assert_fresh(row)
    assert [record.message for record in caplog.records].count("target.rebuilt") == 1
