"""How an iteration reads: a snapshot, changes or a difference, shared by the jobs of one watermark.

A fault stays with its job: conflicts of the seq, guards that refuse, failures, and sinks that are gone.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from iscp.engine.iteration_ports import CONFLICT_TRIES_MAX, LOST_TRIES_MAX
from iscp.model.api.api_requests import JobOfLines
from iscp.model.job.iteration import Bounds, DataType, Iteration, JobOutcome, Purpose
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ChangeMode, OnReplace
from iscp.model.values.errors import (
    Canceled,
    Conflict,
    EngineError,
    ErrorCode,
    FileLost,
    InvalidRequest,
    PermanentError,
)
from iscp.model.values.watermark import Position, Watermark
from iscp.ports.source import ChangesUnavailableError
from tests.fakes.bench import NUMBERS, URI, Bench, job
from tests.fakes.deaths import FakeDeaths


def test_a_new_registration_claims_the_sink_and_then_takes_a_snapshot(bench: Bench) -> None:
    x = job("x")
    (outcome,) = bench.run(x)
    assert bench.target(x).commits == [("claim", 1), ("snapshot", 2)]
    assert (outcome.seq, outcome.watermark.version, outcome.data_type) == (2, 1, DataType.SNAPSHOT)
    assert (outcome.from_version, outcome.rows) == (-1, 2)
    bench.assert_fresh(x)


def test_a_snapshot_stops_at_the_version_that_was_requested_unless_it_is_gone(bench: Bench) -> None:
    bench.source.commit({3: "c"})
    assert bench.run(job("x"), to=1)[0].watermark.version == 1
    bench.source.gone = {1}
    assert bench.run(job("y"), to=1)[0].watermark.version == 2


def test_the_session_of_rows_that_are_handed_on_is_lent_to_nobody_else_meanwhile(bench: Bench) -> None:
    met = []

    def borrow() -> None:
        with bench.engine.session() as theirs:
            met.append(theirs is bench.source.snapshot_sessions[-1])

    x = job("x")
    bench.failpoints.once("snapshot.before", borrow)
    bench.run(x)
    bench.target(x).before_commit = borrow
    bench.source.commit({3: "c"})
    bench.source.gone = {2}
    bench.source.commit({4: "d"})
    bench.failpoints.once("snapshot.before", borrow)
    assert bench.run(x)[0].data_type is DataType.DIFFERENCE
    assert met == [False] * 3


def test_a_claim_whose_snapshot_failed_is_not_made_again(bench: Bench) -> None:
    x = job("x")
    target = bench.target(x)
    bench.failpoints.once("snapshot.before", lambda: target.faults.append(EngineError("died")))
    assert bench.run(x)[0].error_code == ErrorCode.ENGINE
    (outcome,) = bench.run(x)
    assert target.commits == [("claim", 1), ("snapshot", 2)]
    assert outcome.ok


def test_a_later_registration_takes_the_sink_over_and_its_seq_goes_on(bench: Bench) -> None:
    (former,) = bench.built("x")
    later = job("x", registration=2)
    (outcome,) = bench.run(later)
    assert bench.target(later).commits == [("claim", 3), ("snapshot", 4)]
    assert bench.target(later).position.job_id == later.job_id != former.job_id
    assert outcome.seq == 4


def test_a_former_registration_is_refused_and_touches_nothing(bench: Bench) -> None:
    (later,) = bench.built("x")
    former = job("x", registration=0)
    bench.source.commit({3: "c"})
    (outcome,) = bench.run(former)
    assert outcome.error_code == ErrorCode.SUPERSEDED
    assert bench.target(later).commits == []
    assert outcome.watermark == former.watermark  # the sink's is another's


def test_jobs_of_one_watermark_share_one_read(bench: Bench) -> None:
    jobs = bench.built("x", "y", "z")
    bench.source.commit({1: "A", 2: None, 3: "c"})
    outcomes = bench.run(*jobs)
    assert len(bench.source.feeds) == 1
    assert bench.source.snapshots == []
    assert [(o.data_type, o.from_version, o.watermark.version, o.seq) for o in outcomes] == [
        (DataType.TAIL, 1, 2, 3)
    ] * 3
    bench.assert_fresh(*jobs)


def test_jobs_of_other_watermarks_are_read_for_by_themselves(bench: Bench) -> None:
    ahead = bench.built("x", "y")
    behind = bench.built("z")
    bench.source.commit({3: "c"})
    bench.run(*ahead)
    bench.source.commit({4: "d"})
    bench.source.feeds.clear()
    outcomes = bench.run(*ahead, *behind)
    assert sorted(feed.span.from_version for feed in bench.source.feeds) == [1, 2]
    assert [o.from_version for o in outcomes] == [2, 2, 1]
    bench.assert_fresh(*ahead, *behind)


def test_only_the_columns_that_some_job_wants_are_read_in_the_sources_order(bench: Bench) -> None:
    bench.source.names = ("id", "a", "b", "c")
    jobs = bench.built("x", columns=("c", "id")) + bench.built("y", columns=("id", "a"))
    bench.source.commit({3: "c"})
    bench.run(*jobs)
    assert bench.source.read_columns == [("id", "a", "c")]


def test_what_cannot_be_read_as_changes_is_a_difference_for_each_job(bench: Bench) -> None:
    jobs = bench.built("x", "y")
    bench.source.commit({1: "A"})
    bench.source.commit({2: None})
    bench.source.gone = {2}
    outcomes = bench.run(*jobs)
    assert bench.source.feeds == []
    assert [(o.data_type, o.from_version, o.watermark.version, o.seq) for o in outcomes] == [
        (DataType.DIFFERENCE, 1, 3, 3)
    ] * 2
    assert [commit for each in jobs for commit in bench.target(each).commits] == [("difference", 3)] * 2
    bench.assert_fresh(*jobs)


def test_changes_that_turn_out_unreadable_only_while_they_are_read_are_a_difference_too(bench: Bench) -> None:
    jobs = bench.built("x", "y")
    bench.source.commit({1: "A"})
    bench.source.net_faults[("id",)] = ChangesUnavailableError("vacuumed")
    assert [o.data_type for o in bench.run(*jobs)] == [DataType.DIFFERENCE] * 2
    bench.assert_fresh(*jobs)


def test_a_source_whose_id_changed_is_taken_by_difference_and_the_new_id_is_kept(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({9: "new"}, table_id="t-2")
    assert bench.run(x)[0].data_type is DataType.DIFFERENCE
    assert bench.target(x).position.source_id == "t-2"
    bench.source.commit({10: "tail"})
    assert bench.run(x)[0].data_type is DataType.TAIL
    bench.assert_fresh(x)


def test_a_changed_id_counts_also_where_no_rows_changed_with_it(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit(table_id="t-2")
    assert bench.run(x)[0].data_type is DataType.DIFFERENCE
    assert bench.target(x).position.source_id == "t-2"


def test_a_source_recreated_is_followed_by_those_who_are_to_and_no_other(bench: Bench) -> None:
    """Also at the very version of the watermark, and below it."""
    (fails,), (follows,) = bench.built("fails"), bench.built("follows", on_replace=OnReplace.FOLLOW)
    bench.source.anew("t-2", {7: "other"})
    first, second = bench.run(fails, follows)
    assert (first.error_code, "resync" in first.error_msg) == (ErrorCode.SOURCE_REPLACED, True)
    assert (first.watermark.version, bench.target(fails).commits) == (1, [])
    assert second.data_type is DataType.DIFFERENCE
    bench.assert_fresh(follows)
    bench.source.restored(0)
    outcomes = bench.run(fails, follows)
    assert [(o.error_code, o.watermark.version) for o in outcomes] == [(ErrorCode.SOURCE_REPLACED, 1), (0, 0)]
    bench.assert_fresh(follows)


def test_changes_are_read_as_each_jobs_policy_says(bench: Bench) -> None:
    """The feed by `auto` and `cdf`, once; added files by `append`, all rows by `diff`; nothing where there is none."""
    (auto,), (cdf,) = bench.built("auto"), bench.built("cdf", change_source=ChangeMode.CDF)
    (append,) = bench.built("append", change_source=ChangeMode.APPEND)
    (diff,) = bench.built("diff", change_source=ChangeMode.DIFF)
    jobs = (auto, cdf, append, diff)
    bench.source.commit()
    assert [o.watermark.version for o in bench.run(*jobs)] == [2] * 4
    assert (bench.source.feeds, bench.source.snapshots) == ([], [])
    bench.source.commit({3: "c"})
    bench.source.inserts_only = True
    tail, difference = DataType.TAIL, DataType.DIFFERENCE
    assert [o.data_type for o in bench.run(*jobs)] == [tail, tail, tail, difference]
    assert (len(bench.source.feeds), bench.source.added_ranges, bench.source.snapshots) == (2, [(1, 3)], [3])
    bench.source.commit({3: None})
    bench.source.inserts_only = False
    outcomes = bench.run(*jobs)
    assert [o.data_type for o in outcomes] == [tail, tail, difference, difference]
    assert ["took rows away" in o.warning for o in outcomes] == [False, False, True, False]
    bench.assert_fresh(*jobs)


def test_a_feed_that_is_off_stops_cdf_and_costs_auto_a_warning(bench: Bench) -> None:
    (auto,), (cdf,) = bench.built("auto"), bench.built("cdf", change_source=ChangeMode.CDF)
    bench.source.cdf_on = False
    bench.source.net_faults[("id",)] = ChangesUnavailableError("off")
    bench.source.commit({3: "c"})
    outcomes = bench.run(auto, cdf)
    assert [(o.error_code, o.data_type) for o in outcomes[:1]] == [(0, DataType.DIFFERENCE)]
    assert "is off" in outcomes[0].warning
    assert (outcomes[1].error_code, outcomes[1].watermark.version) == (ErrorCode.CDF_OFF, 1)
    bench.assert_fresh(auto)
    bench.source.cdf_on = True
    healed = bench.run(cdf)[0]
    assert (healed.error_code, healed.data_type, healed.warning) == (
        0,
        DataType.DIFFERENCE,
        "all rows were compared: off",
    )


def test_a_feed_is_switched_on_only_for_a_job_that_may(bench: Bench) -> None:
    bench.source.cdf_on = False
    (auto,) = bench.built("auto")
    assert not bench.source.cdf_on
    (cdf,) = bench.built("cdf", change_source=ChangeMode.CDF, enable_cdf=True)
    assert bench.source.cdf_on
    bench.source.cdf_on = False
    bench.source.net_faults[("id",)] = ChangesUnavailableError("off")
    bench.source.commit({3: "c"})
    outcomes = bench.run(auto, cdf)
    assert [(o.error_code, o.data_type, "is off" in o.warning) for o in outcomes] == [
        (0, DataType.DIFFERENCE, True),
        (0, DataType.DIFFERENCE, False),
    ]
    bench.assert_fresh(cdf)
    del bench.source.net_faults[("id",)]
    bench.source.commit({4: "d"})
    assert [o.data_type for o in bench.run(cdf)] == [DataType.TAIL]


def test_a_source_restored_from_a_backup_and_written_on_is_not_taken_for_the_log_it_was(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({8: "lost with the restore"})
    bench.run(x)
    bench.source.restored(0)
    bench.source.commit({9: "other"})
    bench.source.commit({10: "more"})
    assert bench.run(x)[0].data_type is DataType.DIFFERENCE
    bench.assert_fresh(x)
    bench.source.commit({11: "tail"})
    assert bench.run(x)[0].data_type is DataType.TAIL


@pytest.mark.parametrize("tells", [True, False])
def test_a_name_that_represents_another_column_is_compared_by_those_who_keep_it(bench: Bench, tells: bool) -> None:
    """A sink that does not say which columns it was written from: the source says it as of the watermark."""
    bench.source.names, bench.source.column_ids = ("id", "v", "w"), {0: {"v": "first", "w": "first"}}
    jobs = [job("x"), job("y", columns=("id", "w")), job("f", columns=("id", "w"), where="v > 3")]
    for each in jobs:
        bench.target(each).tells_columns = tells
    assert all(outcome.ok for outcome in bench.run(*jobs))
    bench.source.commit()
    bench.source.column_ids[bench.source.version] = {"v": "second", "w": "first"}
    outcomes = bench.run(*jobs)
    assert [outcome.data_type for outcome in outcomes] == [DataType.DIFFERENCE, DataType.TAIL, DataType.DIFFERENCE]
    assert all("the column v is another" in outcome.warning for outcome in (outcomes[0], outcomes[2]))
    bench.source.commit({5: "e"})
    assert [outcome.data_type for outcome in bench.run(*jobs)] == [DataType.TAIL] * 3
    bench.assert_fresh(*jobs)


@pytest.mark.parametrize(("ids", "expected"), [({"v": "one"}, DataType.DIFFERENCE), ({}, DataType.TAIL)])
def test_columns_that_nobody_knows_any_more_are_compared_where_names_are_mapped(
    bench: Bench, ids: dict[str, str], expected: DataType
) -> None:
    x = job("x")
    bench.target(x).tells_columns = False
    bench.source.column_ids = {0: ids}
    bench.run(x)
    bench.source.commit({5: "e"})
    bench.source.column_ids[bench.source.version] = ids
    bench.source.gone = {1}
    (outcome,) = bench.run(x)
    assert (outcome.ok, outcome.data_type) == (True, expected)
    bench.assert_fresh(x)


@pytest.mark.parametrize("source", [ChangeMode.AUTO, ChangeMode.DIFF])
@pytest.mark.parametrize("spec", [{"key": ("id", "v")}, {"where": "v > 3"}, {"columns": ("id", "v")}])
def test_a_column_that_a_job_names_and_the_source_has_lost_is_reported_however_it_reads(
    bench: Bench, source: ChangeMode, spec: dict[str, Any]
) -> None:
    (x,) = bench.built("x", change_source=source, **spec)
    bench.source.names = ("id",)
    bench.source.commit({5: "e"})
    (outcome,) = bench.run(x)
    assert outcome.error_code == ErrorCode.SCHEMA_CHANGED
    assert bench.target(x).commits == []


def test_a_void_sink_is_repaired_by_difference_while_the_others_tail(bench: Bench) -> None:
    x, y = bench.built("x", "y")
    bench.target(x).rows = {99: "foreign"}
    bench.target(x).position = replace(bench.target(x).position, void="somebody wrote")
    bench.source.commit({3: "c"})
    assert [o.data_type for o in bench.run(x, y)] == [DataType.DIFFERENCE, DataType.TAIL]
    bench.assert_fresh(x, y)


def test_commits_without_rows_move_only_the_watermark(bench: Bench) -> None:
    jobs = bench.built("x", "y")
    bench.source.commit()
    bench.source.commit()
    outcomes = bench.run(*jobs)
    assert [(o.watermark.version, o.seq) for o in outcomes] == [(3, 2)] * 2
    assert (bench.source.feeds, bench.source.snapshots) == ([], [])
    assert bench.target(jobs[0]).commits == []


def test_a_job_that_is_ahead_of_the_goal_does_not_go_back(bench: Bench) -> None:
    (x,) = bench.built("x")
    bench.source.commit({3: "c"})
    bench.run(x)
    (outcome,) = bench.run(x, to=1)
    assert (outcome.ok, outcome.watermark.version) == (True, 2)


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
