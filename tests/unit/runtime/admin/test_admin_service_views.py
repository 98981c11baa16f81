"""What is answered of jobs: their lists, history, lag, refreshes and comparisons."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from iscp.coordination.protocol.messages import VersionAge
from iscp.coordination.schedule.schedule_events import VerifyAnswered, VerifyRequested
from iscp.core.api.api_requests import JobFilter, JobName, UpdateRequest
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.core.job.maintenance_figures import NO_MAINTENANCE, JobMaintenance, MaintenanceFigures
from iscp.core.job.verification import Comparison, VerifyReport
from iscp.core.values.errors import JobFailed, JobNotFound, NotOwner, TableNotFound, TimedOut, Unavailable
from iscp.core.values.ids import ShardId
from iscp.core.values.members import Moment
from iscp.runtime.owner.log.log_marker import ASK_PAUSE_S
from tests.fakes.desk import OTHER, TABLE, Desk, X, asked, fail, request
from tests.fakes.node_calls import PROGRESS
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until


def test_jobs_are_listed_and_counted_by_table_state_and_reason(desk: Desk) -> None:
    desk.admin.register([request("x"), request("y"), request("z", OTHER.uri)])
    asked(desk, "pause", JobName(TABLE.uri, "y"))
    wanted = {
        (JobFilter(), 3),
        (JobFilter(table=TABLE.uri), 2),
        (JobFilter(reason=Reason.PAUSED), 1),
        (JobFilter(table=OTHER.uri, reason=Reason.PAUSED), 0),
        (JobFilter(state=JobState.COMPLETED), 3),
        (JobFilter(state=JobState.ERROR), 0),
        (JobFilter(account="nobody"), 0),
        (JobFilter(table_pattern="/tables/*"), 3),
        (JobFilter(table_pattern="*/items"), 1),
        (JobFilter(table=TABLE.uri, name_pattern="[xz]"), 1),
        (JobFilter(table_pattern="/tables/orders", name_pattern="y", reason=Reason.PAUSED), 1),
        (JobFilter(table_pattern="none*"), 0),
    }
    for each, number in wanted:
        assert len(desk.admin.list_jobs(each)) == desk.admin.count_jobs(each) == number
    assert len(desk.admin.list_jobs(JobFilter(limit=2))) == 2
    assert [view.name for view in desk.admin.list_jobs(JobFilter(name_pattern="[yz]", limit=1))] == ["y"]
    with pytest.raises(TableNotFound):
        desk.admin.list_jobs(JobFilter(table="/tables/none"))


def test_the_history_is_the_newest_first_also_before_it_is_written(desk: Desk) -> None:
    row = desk.running()

    def entry(seq: int) -> HistoryEntry:
        return HistoryEntry(
            "default", "t-1", "x", row.job_id, seq, 0, seq, 1.0, 2.0 + seq, 1.0, 0, "", 1, 1, "tail", "n"
        )

    desk.world.report(row, 1, history=[entry(1), entry(2)])
    until(lambda: [e.seq for e in desk.admin.history(X, 10)] == [2, 1])
    assert [e.seq for e in desk.admin.history(X, 1)] == [2]
    with pytest.raises(JobNotFound):
        desk.admin.history(JobName(TABLE.uri, "none"), 1)


def lag(desk: Desk) -> tuple[float, float]:
    """How much it lags for certain, and at most."""
    view = desk.admin.status(X)
    return view.lag_least_s, view.lag_s


def test_of_a_job_that_is_up_to_date_it_is_known_only_as_of_the_last_probe(desk: Desk) -> None:
    row = desk.running()
    desk.reach(row, 7)
    assert lag(desk) == (-1.0, -1.0), "nobody has probed it"
    desk.world.see(7)
    desk.world.clock.advance(50.0)
    view = desk.admin.status(X)
    assert (view.lag_s, view.source_version, view.applied_version, view.node_id) == (50.0, 7, 7, "n-1")
    assert view.lag_least_s == 0.0
    assert view.checked_at_s == desk.world.clock.now_s() - 50.0


def test_of_a_job_that_is_behind_the_version_that_it_is_at_says_since_when(desk: Desk) -> None:
    row = desk.running()
    desk.world.clock.advance(5.0)
    assert lag(desk) == (5.0, 5.0), "since it was registered, as nothing is built"
    desk.reach(row, 7)
    desk.world.see(9, lag_s=90.0, ages=(VersionAge(4, 90.0), VersionAge(7, 30.0)))
    desk.world.clock.advance(2.0)
    assert lag(desk) == (32.0, 32.0), "the slowest of the table is another job"
    assert desk.admin.status(X).source_version == 9
    desk.world.see(9, lag_s=90.0, ages=(VersionAge(4, 90.0), VersionAge(6, 40.0)))
    assert lag(desk) == (0.001, 40.0), "of versions between two probes only the most is known"
    desk.world.clock.step(-100.0)
    assert lag(desk) == (0.001, 40.0)


def test_a_probe_by_a_clock_that_is_ahead_hides_no_lag(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    ahead_s = desk.world.clock.now_s() + 30 * 86_400.0
    desk.world.see(7, checked_at_s=ahead_s)
    desk.world.clock.advance(40.0)
    assert lag(desk) == (0.0, 40.0)
    desk.world.see(9, lag_s=10.0, checked_at_s=ahead_s, ages=(VersionAge(7, 10.0),))
    desk.world.clock.advance(5.0)
    assert lag(desk) == (15.0, 15.0)


def test_a_job_past_its_target_lag_is_late_and_so_is_one_that_takes_longer_to_build(desk: Desk) -> None:
    row = desk.running()
    desk.admin.update([UpdateRequest(X, '{"target_lag":30}')])
    assert not desk.admin.status(X).late
    desk.world.clock.advance(31.0)
    assert desk.admin.status(X).late, "nothing is built yet"
    desk.reach(row, 7)
    desk.world.see(9, lag_s=1.0, ages=(VersionAge(7, 1.0),))
    assert not desk.admin.status(X).late
    desk.world.clock.advance(31.0)
    assert desk.admin.status(X).late
    desk.admin.register([request("a"), request("b")])
    late = JobFilter(late=True, limit=1)
    assert [job.name for job in desk.admin.list_jobs(late)] == ["x"], "those that are in time do not use up the limit"
    assert desk.admin.count_jobs(late) == 1
    desk.admin.update([UpdateRequest(X, '{"target_lag":60}')])
    assert not desk.admin.status(X).late
    assert desk.admin.count_jobs(late) == 0


def test_lag_counts_the_time_in_which_nobody_probes(desk: Desk) -> None:
    row = desk.running()
    desk.reach(row, 7)
    desk.world.see(7)
    seen_s = desk.world.clock.now_s()
    desk.world.owner.on_members_changed((), Moment(0, desk.world.etcd.revision + 1))
    until(lambda: desk.world.pass_s(1.0) or not desk.admin.status(X).node_id)  # type: ignore[func-returns-value]
    desk.world.clock.advance(seen_s + 40.0 - desk.world.clock.now_s())
    assert desk.admin.status(X).lag_s == 40.0
    assert desk.admin.cluster().lag_max_s == 40.0


def test_lag_counts_the_time_since_the_last_probe_where_the_table_cannot_be_probed(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    probed_at_s = desk.world.clock.now_s()
    desk.world.see(7)
    desk.world.see(7, unreached=True, checked_at_s=probed_at_s)
    desk.world.clock.advance(40.0)
    assert lag(desk) == (0.0, 40.0)
    assert desk.admin.cluster().lag_max_s == 40.0
    desk.world.see(-1, unreached=True, checked_at_s=0.0)
    assert lag(desk) == (0.0, 40.0), "by another node, which never could"
    desk.world.see(7)
    assert lag(desk) == (0.0, 0.0)


def test_of_a_table_that_nobody_could_ever_probe_no_lag_is_known(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    desk.world.see(7, unreached=True, checked_at_s=0.0)
    assert lag(desk) == (-1.0, -1.0)


def test_the_clusters_lag_is_that_of_its_stalest_job_though_it_is_stopped(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    asked(desk, "pause", X)
    desk.world.see(9, lag_s=0.0)
    desk.world.clock.advance(60.0)
    assert lag(desk)[1] >= 60.0
    view = desk.admin.cluster()
    assert (view.lag_max_least_s, view.lag_max_s) == lag(desk)


def test_the_cluster_as_the_owner_sees_it(desk: Desk) -> None:
    desk.running()
    desk.world.clock.advance(4.0)
    view = desk.admin.cluster()
    assert (view.owner, view.owner_rev, view.jobs, view.lag_max_s) == ("n-1", 1, 1, 4.0)
    assert view.counters == desk.calls.counts
    (node,) = view.nodes
    assert (node.state, node.lease_age_s, node.in_flight) == ("ready", 0.0, 0)
    assert (node.node_id, node.pid, node.epoch, node.shards) == ("n-1", 7, 1, 1)
    assert (node.queue_waiting, node.queue_running) == (2, 1)
    (shard,) = view.shards
    assert (shard.table_id, shard.table, shard.node_id, shard.state, shard.jobs) == (
        "t-1",
        TABLE.uri,
        "n-1",
        "running",
        1,
    )


def test_the_cluster_is_not_shown_while_etcd_does_not_answer(desk: Desk) -> None:
    """Nobody knows then whether what the owner has seen is still so."""
    desk.running()
    desk.world.etcd.answers = False
    with pytest.raises(Unavailable, match="etcd does not answer this node") as silent:
        desk.admin.cluster()
    assert silent.value.remedy.startswith("Check whether etcd runs")
    desk.world.owner.on_lost()
    until(lambda: desk.world.owner.writer is None)
    with pytest.raises(NotOwner, match="no owner has claimed the job log yet: etcd does not answer this node"):
        desk.admin.cluster()
    desk.world.etcd.answers = True
    desk.world.clock.advance(ASK_PAUSE_S)
    with pytest.raises(NotOwner, match="try again in a moment"):
        desk.admin.cluster()


def test_a_comparison_is_requested_from_the_tables_node_and_its_answer_comes_back(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    report = VerifyReport(7, 3, Comparison())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(desk.admin.verify, X, True, 30.0, lambda: True)
        until(lambda: desk.asks)
        (asked,) = desk.asks
        assert isinstance(asked, VerifyRequested)
        assert (asked.request.shard, asked.request.job_id, asked.request.repair) == (
            ShardId("t-1"),
            desk.row().job_id,
            True,
        )
        desk.verifying.answer(VerifyAnswered(asked.request.verify_id, report))
        assert waiting.result(10.0) == report


def test_what_cannot_be_compared_is_refused_before_anything_is_called(desk: Desk) -> None:
    row = desk.running()
    with pytest.raises(JobFailed, match="has not been built yet"):
        desk.admin.verify(X, False, 1.0, lambda: True)
    desk.reach(row, 5)
    asked(desk, "pause", X)
    with pytest.raises(JobFailed, match="is paused, and a repair writes") as refused:
        desk.admin.verify(X, True, 1.0, lambda: True)
    assert (refused.value.field, "job resume" in refused.value.remedy) == ("repair", True)
    assert desk.asks == []
    with pytest.raises(TimedOut):  # who only looks may look at a paused job
        desk.admin.verify(X, False, 0.0, lambda: True)
    asked(desk, "resume", X)
    fail(desk, row)
    until(lambda: desk.admin.status(X).state is JobState.ERROR)
    with pytest.raises(JobFailed, match="has failed: rows share a key"):
        desk.admin.verify(X, False, 1.0, lambda: True)
    asked(desk, "unregister", X)
    with pytest.raises((JobNotFound, TableNotFound)):
        desk.admin.verify(X, False, 1.0, lambda: True)


class Refreshing(FakeKind):
    def refresh(self, job: JobRow) -> tuple[list[str], float]:
        return [], 1.0


def test_the_refreshes_of_a_job_are_in_its_status_where_its_consumer_has_any(desk: Desk) -> None:
    row, figures = desk.running(), MaintenanceFigures(submitted=2, failed=1, error_code=3, error_msg="too long")
    desk.calls.upkeeps[row.job_id] = JobMaintenance(refresh=figures)
    assert desk.admin.status(X).upkeep == NO_MAINTENANCE, "a node is not asked in vain"
    desk.kind = Refreshing()
    assert desk.admin.status(X).upkeep == JobMaintenance(refresh=figures)
    assert [job.upkeep for job in desk.admin.list_jobs(JobFilter())] == [NO_MAINTENANCE]
    desk.calls.upkeeps[row.job_id] = Unavailable("away")
    assert desk.admin.status(X).upkeep == NO_MAINTENANCE


def test_progress_is_read_from_the_node_only_while_an_iteration_is_reported_to_run(desk: Desk) -> None:
    row = desk.running()
    desk.calls.runs[row.job_id] = PROGRESS
    assert desk.admin.status(X).progress is None
    assert desk.calls.asked == [], "an idle job costs no call"
    desk.world.report(row, 3, JobState.RUNNING, Reason.NONE, JobStatus())
    until(lambda: desk.admin.status(X).state is JobState.RUNNING)
    assert desk.admin.status(X).progress == PROGRESS
    assert [job.progress for job in desk.admin.list_jobs(JobFilter())] == [None]
    desk.calls.runs[row.job_id] = Unavailable("away")
    assert desk.admin.status(X).progress is None


def test_progress_of_a_comparison_is_read_while_it_is_requested(desk: Desk) -> None:
    row = desk.running()
    desk.reach(row, 7)
    desk.calls.runs[row.job_id] = PROGRESS
    alive = threading.Event()
    alive.set()

    def verify() -> None:
        with pytest.raises(Unavailable):
            desk.admin.verify(X, False, 60.0, alive.is_set)

    caller = threading.Thread(target=verify)
    caller.start()
    until(lambda: bool(desk.asks))
    assert desk.admin.status(X).progress == PROGRESS
    alive.clear()
    caller.join()
    assert desk.admin.status(X).progress is None


def test_a_spec_that_was_damaged_in_the_log_hides_no_job(desk: Desk) -> None:
    row = desk.running()
    writer = desk.world.owner.current_writer()
    writer.read(lambda book: book._jobs.update({row.key: row._replace(spec_json='{"target_lag":')}))
    assert [job.late for job in desk.admin.list_jobs(JobFilter())] == [False]
    assert desk.admin.status(X).upkeep == NO_MAINTENANCE
