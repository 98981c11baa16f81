"""Proves that a watch follows its jobs' tables, waits for those that are not there, and ends in order.

The first snapshots that a watch builds: which jobs are built together, and how far they are.

What a page is shown of a watch: rows as reports make them, and why a job is not taken in.

What the jobs of a watch needed Spark for is kept until it is taken, and once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from iscp.model.api.api_requests import RegisterRequest
from iscp.model.build.build_progress import BuildStage
from iscp.model.job.iteration import Iteration, JobOutcome, SparkNeed
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason
from iscp.model.protocol.events import Reports, Seen
from iscp.model.protocol.messages import SourceSeen
from iscp.model.run.run_plan import ResultState, RunPlan, RunResult
from iscp.model.settings.config import BackoffConfig, MaintenanceConfig, ProbeConfig, SchedulerConfig
from iscp.model.values.errors import ErrorCode, InvalidRequest, JobNotFound, TableNotFound
from iscp.model.values.ids import JobKey
from iscp.model.values.progress import UNKNOWN, RunProgress
from iscp.model.values.watermark import DeadLetters, Position, Watermark
from iscp.ports.engine import leave_to_spark, note_spark
from iscp.ports.source import TableDescription
from iscp.ports.system import Guard
from iscp.schedule.executor import Executor
from iscp.schedule.maintenance import Maintenance
from iscp.schedule.schedule_machine import Schedule
from iscp.schedule.scheduler import Scheduler, TableNotices
from iscp.standalone import local_watch
from iscp.standalone.local_run import RunOrders, failed
from iscp.standalone.local_watch import HISTORY_MAX, LocalWatch, SparkNeeds, WatchedJobs, WatchParts, watched_builds
from iscp.system.threads import SystemClock
from tests.fakes.clock import FakeClock
from tests.fakes.local_runs import TABLE, FailingRunner, Heard, Local, failing
from tests.fakes.pipeline import FakeKind
from tests.fakes.probe import FakeProbe
from tests.fakes.runner import FakeRunner, GatedRunner, applied
from tests.fakes.targets import FakeTargets
from tests.fakes.viewed_cluster import history_entry
from tests.fakes.waiting import until

STOP_S = 20.0
NEVER_S = 1_000.0
"""Seconds between two probes of a table whose commits a test notifies of."""


class Refreshed(FakeKind):
    """A kind whose jobs are refreshed now and then; `refreshed_names` are those that were."""

    def __init__(self) -> None:
        super().__init__()
        self.refreshed_names: list[str] = []

    def refresh(self, job: JobRow) -> tuple[list[str], float]:
        self.refreshed_names.append(job.key.job_name)
        return [], SystemClock().now_s() + NEVER_S


@dataclass
class Notices:
    """The notices of a kernel that says what a test says."""

    on_commit: Callable[[str], None]
    followed_uris: list[str] = field(default_factory=list)
    closed: bool = False

    def follow(self, table_uri: str) -> None:
        self.followed_uris = sorted([*self.followed_uris, table_uri])

    def leave(self, table_uri: str) -> None:
        self.followed_uris.remove(table_uri)

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self.closed = True


class Watching:
    """A watch on a thread of its own, over tables whose versions a test sets."""

    def __init__(self, local: Local, interval_s: float = 0.02) -> None:
        self.local, self.alive = local, True
        self.probe = FakeProbe()
        self.probe.commit(TABLE)
        self.runner: FakeRunner = FakeRunner(self.apply)
        self.ended: list[bool] = []
        self.broken: list[Exception] = []
        self.needs = SparkNeeds(SystemClock())
        self._interval_s = interval_s

    def apply(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        return applied(iteration, self.probe.versions[iteration.table_uri])

    def apply_by_spark(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        need = SparkNeed((f"version {self.probe.versions[iteration.table_uri]}",))
        outcomes = tuple(replace(each, spark=need) for each in self.apply(iteration, guard))
        for each in outcomes:
            self.needs.hear(each)  # as at its commit
        return outcomes

    def start(self, *requests: RegisterRequest) -> None:
        clock, jobs = SystemClock(), self.local.requested(*requests)
        probe = ProbeConfig(interval_min_s=self._interval_s, interval_max_s=self._interval_s)
        schedule = Schedule("run", probe, BackoffConfig(base_s=0.05, cap_s=0.1), lambda: 0.5)
        scheduler = Scheduler(schedule, self.probe, FakeTargets(), clock, self.broken.append)
        config = SchedulerConfig(concurrency=2, cancel_wait_s=STOP_S)
        executor = Executor(self.runner, clock, config, lambda epoch: None, scheduler.post, lambda iteration: None)
        maintenance = Maintenance(
            lambda name: self.local.kind,
            clock,
            MaintenanceConfig(),
            BackoffConfig(),
            lambda: 0.5,
            lambda: None,
            self.broken.append,
        )
        parts = WatchParts(
            self.local.registrar,
            scheduler,
            executor,
            maintenance,
            TableNotices(self._notices, lambda shard: scheduler.notify(shard, targets=False)),
            lambda: self.alive,
            lambda job_id: None,
            self.needs,
        )
        self.heard = Heard([each.planned.name for each in jobs])
        plan = RunPlan([each.planned for each in jobs], range(len(jobs)))
        self.watch = LocalWatch(parts, jobs, plan, RunOrders(), self.heard)
        self._thread = threading.Thread(target=lambda: self.ended.append(self.watch.run(STOP_S)))
        self._thread.start()

    def _notices(self, on_commit: Callable[[str], None]) -> Notices:
        self.notices = Notices(on_commit)
        return self.notices

    def of(self, name: str) -> list[RunResult]:
        return [each for each in [*self.heard.ended_results] if each.name == name]

    def versions(self, name: str) -> list[int]:
        return [each.to_version for each in self.of(name) if each.state is ResultState.UPDATED]

    def close(self) -> None:
        """Stop the watch as a signal does, and wait for its end."""
        self.watch.stop()
        self._thread.join(STOP_S)
        assert not self._thread.is_alive()
        assert self.notices.closed
        assert not self.broken


@pytest.fixture
def watching(local: Local) -> Iterator[Watching]:
    made = Watching(local)
    yield made
    made.close()


def test_jobs_are_built_and_follow_each_commit_until_the_end(local: Local, watching: Watching) -> None:
    watching.start(local.request("a"), local.request("b"))
    until(lambda: watching.versions("a") == watching.versions("b") == [0])
    assert sorted(watching.heard.begun_names) == ["a", "b"]
    watching.probe.commit(TABLE, 2)
    until(lambda: watching.versions("a") == watching.versions("b") == [0, 2])
    assert (watching.of("a")[1].from_version, watching.of("a")[1].rows) == (0, 1)
    watching.close()
    assert watching.ended == [True]


def test_a_notice_of_a_table_has_its_jobs_run_at_once(local: Local) -> None:
    watching = Watching(local, interval_s=NEVER_S)
    watching.start(local.request("a"))
    until(lambda: watching.versions("a") == [0])
    until(lambda: watching.notices.followed_uris == [TABLE])
    watching.probe.commit(TABLE)
    watching.notices.on_commit("/lake/others")  # of which nobody reads
    watching.notices.on_commit(TABLE)
    until(lambda: watching.versions("a") == [0, 1])
    watching.close()


def test_a_job_whose_table_is_not_there_begins_once_it_is(local: Local, watching: Watching) -> None:
    watching.start(local.request("late", "/lake/elsewhere"), local.request("a"))
    until(lambda: watching.versions("a") == [0])
    (fault,) = watching.of("late")
    assert (fault.state, fault.error_code) == (ResultState.FAILED, ErrorCode.TABLE_NOT_FOUND)
    local.catalog.tables["/lake/elsewhere"] = TableDescription("t-2", "late", "/lake/elsewhere", 1, 1.0, {"id": "long"})
    watching.probe.commit("/lake/elsewhere")
    until(lambda: watching.versions("late") == [0])
    assert watching.of("late")[0] is fault, "the fault was said once"
    until(lambda: watching.notices.followed_uris == ["/lake/elsewhere", TABLE])


def test_a_job_that_is_refused_is_said_once_and_the_others_are_followed(local: Local, watching: Watching) -> None:
    local.kind.refusals["/lake/bad"] = InvalidRequest("is wrong", field="key", remedy="Correct it")
    watching.start(local.request("bad"), local.request("a"))
    until(lambda: watching.versions("a") == [0])
    watching.probe.commit(TABLE)
    until(lambda: watching.versions("a") == [0, 1])
    (fault,) = watching.of("bad")
    assert (fault.state, fault.error) == (ResultState.FAILED, "key is wrong. Correct it")


def test_a_fault_is_said_once_while_it_lasts_and_the_job_is_tried_again(local: Local, watching: Watching) -> None:
    runner = FailingRunner()
    runner.version = 0
    runner.faults["a"] = [failing(ErrorCode.STORAGE, "the disk is gone")] * 3
    watching.runner = runner
    watching.start(local.request("a"))
    until(lambda: watching.versions("a") == [0])
    assert [each.error for each in watching.of("a")] == ["the disk is gone", ""]
    assert runner.ran.count("a") == 4


def test_kinds_are_maintained_as_on_a_node(local: Local) -> None:
    local.kind = kind = Refreshed()
    watching = Watching(local)
    watching.start(local.request("a"))
    until(lambda: kind.refreshed_names == ["a"])
    watching.close()


def test_what_runs_at_the_end_is_waited_for(local: Local, watching: Watching) -> None:
    watching.runner = runner = GatedRunner()
    watching.start(local.request("a"))
    until(lambda: runner.running)
    watching.watch.stop()
    assert not watching.ended
    runner.gate(1).set()
    until(lambda: watching.ended == [True])
    assert runner.cancelled == []


def test_the_end_of_spark_ends_the_watch_as_failed(local: Local, watching: Watching) -> None:
    watching.start(local.request("a"))
    until(lambda: watching.versions("a") == [0])
    watching.alive = False
    until(lambda: watching.ended == [False])


def test_a_commit_says_what_its_job_needed_spark_for_since_the_last_one(local: Local, watching: Watching) -> None:
    watching.runner = FakeRunner(watching.apply_by_spark)
    watching.start(local.request("a"))
    until(lambda: watching.versions("a") == [0])
    watching.probe.commit(TABLE, 2)
    until(lambda: watching.versions("a") == [0, 2])
    assert [each.spark for each in watching.of("a")] == ["version 0", "version 2"]


PROGRESS = RunProgress("apply", 100.0, 4.0, rows_read=300, rows_written=30, rows_total=120, left_s=8.0)


def row(name: str, state: JobState, table: str = "t-1", version: int = -1, at_s: float = 100.0) -> JobRow:
    status = JobStatus(to_version=7, start_at_s=at_s).to_json()
    made = JobRow(JobKey("acme", table, name), f"id-{name}", "{}", table, f"/lake/{table}", state)
    return made._replace(watermark=Watermark(version, 1.0), status_json=status)


def test_jobs_that_are_built_together_are_one_build() -> None:
    rows = [row("b", JobState.RUNNING), row("a", JobState.RUNNING), row("later", JobState.RUNNING, at_s=200.0)]
    built, later = watched_builds(rows, lambda job_id: PROGRESS if job_id == "id-b" else None)
    assert (built.table, built.jobs, built.version, built.state) == ("/lake/t-1", ("a", "b"), 7, BuildStage.BUILDING)
    assert (built.done_share, built.rows_done, built.rows_total, built.left_s) == (0.25, 30, 120, 8.0)
    assert (later.jobs, later.done_share, later.rows_done) == (("later",), 0.0, UNKNOWN)


def test_what_runs_comes_before_what_waits() -> None:
    rows = [row("waits", JobState.PENDING), row("runs", JobState.RUNNING, "t-2")]
    found = watched_builds(rows, lambda job_id: PROGRESS)
    assert [(build.jobs, build.state, build.version) for build in found] == [
        (("runs",), BuildStage.BUILDING, 7),
        (("waits",), BuildStage.WAITING, -1),
    ]
    assert found[1].done_share == 0.0


def test_no_other_job_is_built() -> None:
    rows = [row("built", JobState.RUNNING, version=0), row("failed", JobState.ERROR), row("new", JobState.COMPLETED)]
    assert watched_builds(rows, lambda job_id: PROGRESS) == []


def test_of_a_query_it_is_not_known_how_much_there_is_to_write() -> None:
    progress = RunProgress("apply", 1.0, 4.0, rows_read=30, rows_written=5, rows_per_s=7.5)
    (build,) = watched_builds([row("totals", JobState.RUNNING)], lambda job_id: progress)
    assert (build.done_share, build.rows_done, build.rows_total, build.rows_per_s) == (0.0, UNKNOWN, UNKNOWN, 7.5)


def test_no_more_is_done_than_there_is() -> None:
    progress = RunProgress("apply", 1.0, 4.0, rows_written=9, rows_total=6)
    (build,) = watched_builds([row("copy", JobState.RUNNING)], lambda job_id: progress)
    assert (build.done_share, build.rows_done) == (1.0, 6)
    (empty,) = watched_builds(
        [row("copy", JobState.RUNNING)], lambda job_id: RunProgress("apply", 1.0, 4.0, rows_total=0)
    )
    assert (empty.done_share, empty.rows_done) == (0.0, 0)


class Watched:
    """Two replicas of one table, of which the first is taken in."""

    def __init__(self, local: Local) -> None:
        self.local = local
        requests = local.request("copy"), local.request("late")
        self.requested = dict(enumerate(local.requested(*requests)))
        self.jobs = WatchedJobs(self.requested, "run", local.clock)
        self.row = local.registrar.register(requests[0], RunOrders()).row
        self.jobs.take(0, self.row)

    def report(self, version: int, seq: int, state: JobState = JobState.COMPLETED, rows: int = 0) -> None:
        status = JobStatus(rows=rows)
        report = JobReport(self.row.key, self.row.job_id, Watermark(version, 1.0), seq, state, Reason.NONE, status)
        self.jobs.hear_reports(Reports(self.row.key.shard, (report,)))

    def see(self, version: int, lag_s: float = 0.0) -> None:
        at_s = self.local.clock.now_s()
        self.jobs.hear_seen(Seen(SourceSeen(self.row.key.shard, version, at_s, lag_s)))

    def iterate(self, row: JobRow, *seqs: int) -> None:
        named = {"account": row.key.account, "table_id": row.key.table_id, "job_name": row.key.job_name}
        self.jobs.hear_reports(Reports(row.key.shard, (), tuple(history_entry(seq, **named) for seq in seqs)))


@pytest.fixture
def watched(local: Local) -> Watched:
    return Watched(local)


def test_a_job_is_as_its_last_report_and_probe_say(watched: Watched) -> None:
    watched.report(4, 2, JobState.RUNNING)
    watched.report(5, 3, rows=7)
    watched.report(4, 2)  # has come late
    watched.see(5)
    view = watched.jobs.view(TABLE, "copy", "")
    assert (view.state, view.applied_version, view.source_version, view.seq) == (JobState.COMPLETED, 5, 5, 3)
    assert (view.status.rows, view.lag_s, view.node_id) == (7, 0.0, "run")
    watched.see(9, lag_s=3.0)
    assert watched.jobs.view(TABLE, "copy", "").lag_s == pytest.approx(3.0)


def test_reports_of_another_registration_are_ignored(watched: Watched) -> None:
    watched.row = watched.row._replace(job_id="of-before")
    watched.report(5, 3)
    assert watched.jobs.view(TABLE, "copy", "").applied_version == -1


def test_a_job_that_waits_for_its_table_says_so_until_it_is_taken_in(watched: Watched) -> None:
    assert [view.reason for view in watched.jobs.views()] == [Reason.NONE, Reason.NONE]
    fault = failed(watched.requested[1], TableNotFound("is not a table", field="table", remedy="Create it"))
    watched.jobs.refuse(1, fault, again=True)
    late = watched.jobs.views()[1]
    assert (late.state, late.reason, late.name) == (JobState.COMPLETED, Reason.RETRYING, "late")
    assert late.status.error_code == ErrorCode.TABLE_NOT_FOUND
    assert "Create it" in late.status.error_msg

    row = watched.local.registrar.register(watched.requested[1].request, RunOrders()).row
    watched.jobs.take(1, row)
    assert [(view.job_id, view.reason) for view in watched.jobs.views()][1] == (row.job_id, Reason.NONE)


def test_a_job_that_is_refused_for_good_has_failed(watched: Watched) -> None:
    watched.jobs.refuse(1, failed(watched.requested[1], ValueError("odd")), again=False)
    assert [view.state for view in watched.jobs.views()] == [JobState.COMPLETED, JobState.ERROR]
    assert watched.jobs.row(TABLE, "late", "") is None
    assert watched.jobs.history(TABLE, "late", "", 9) == []


def test_the_last_iterations_are_remembered_the_newest_first(watched: Watched) -> None:
    watched.iterate(watched.row, *range(1, HISTORY_MAX + 3))
    found = watched.jobs.history(TABLE, "copy", "", 3)
    assert [each.seq for each in found] == [HISTORY_MAX + 2, HISTORY_MAX + 1, HISTORY_MAX]
    assert len(watched.jobs.history(TABLE, "copy", "", 10_000)) == HISTORY_MAX


def test_of_many_jobs_fewer_iterations_are_remembered(local: Local) -> None:
    (job,) = local.requested(local.request("copy"))
    many = dict.fromkeys(range(local_watch.ENTRIES_MAX // 2), job)
    jobs = WatchedJobs(many, "run", local.clock)
    watched = Watched(local)
    watched.jobs = jobs
    jobs.take(0, watched.row)
    watched.iterate(watched.row, 1, 2, 3)
    assert [each.seq for each in jobs.history(TABLE, "copy", "", 10)] == [3, 2]


@pytest.mark.parametrize("named", [("/lake/other", "copy", ""), (TABLE, "other", ""), (TABLE, "copy", "acme")])
def test_a_job_that_is_none_of_the_run_is_not_found(watched: Watched, named: tuple[str, str, str]) -> None:
    with pytest.raises(JobNotFound):
        watched.jobs.view(*named)


def test_a_job_is_found_by_the_id_and_the_place_of_its_table(watched: Watched) -> None:
    for table in (TABLE, watched.row.key.table_id):
        assert watched.jobs.row(table, "copy", watched.row.key.account) == watched.row


def test_jobs_that_lag_are_found_those_that_lag_most_first(watched: Watched) -> None:
    row = watched.local.registrar.register(watched.requested[1].request, RunOrders()).row
    now_s = watched.local.clock.now_s()
    watched.jobs.take(0, watched.row._replace(watermark=Watermark(1, now_s - 50.0)))
    watched.jobs.take(1, row._replace(watermark=Watermark(1, now_s - 90.0)))
    watched.see(2, lag_s=100.0)
    assert [each.key.job_name for each in watched.jobs.lagging(40.0)] == ["late", "copy"]
    assert [each.key.job_name for each in watched.jobs.lagging(60.0)] == ["late"]
    assert watched.jobs.lagging(95.0) == []


def test_a_job_is_found_by_the_place_of_its_target_once_it_is_taken_in(watched: Watched) -> None:
    assert [row.key.job_name for row in watched.jobs.at("/lake/copy")] == ["copy"]
    assert watched.jobs.at("/lake/late") == []
    assert watched.jobs.at(TABLE) == []


def test_a_job_is_shown_with_what_its_source_retains(local: Local) -> None:
    (job,) = local.requested(local.request("copy"))
    jobs = WatchedJobs({0: job}, "run", local.clock, lambda row: 60.0)
    assert jobs.views()[0].retained_s == 0.0
    jobs.take(0, local.registrar.register(job.request, RunOrders()).row)
    assert jobs.views()[0].retained_s == 60.0


def test_a_job_is_shown_with_what_its_target_says_until_it_has_run(watched: Watched) -> None:
    position = Position(3, Watermark(1, 1.0), "id", "t-1", dead=DeadLetters(1, 4))
    watched.jobs.take(0, watched.row, position)
    assert watched.jobs.view(TABLE, "copy", "").status.dead_letters == 0  # it is to be built again
    watched.jobs.take(0, watched.row._replace(watermark=position.watermark), position)
    assert watched.jobs.view(TABLE, "copy", "").status.dead_letters == 4


def test_needs_come_together_until_they_are_taken_once() -> None:
    needs = SparkNeeds(FakeClock())
    with needs.noting() as tally:
        leave_to_spark("its query is analyzed")
        note_spark(started=True)
    needs.add("j-1", tally.spark)
    needs.add("j-1", None)
    needs.add("j-1", SparkNeed(("all rows are computed",)))
    needs.add("j-2", None)
    assert needs.take("j-1") == SparkNeed(("its query is analyzed", "all rows are computed"), started=True)
    assert (needs.take("j-1"), needs.take("j-2")) == (None, None)
