"""A job on a table that is split is one job to its users, and what cannot be done with it is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from iscp.model.api.api_requests import JobFilter, ResyncRequest, UpdateRequest
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.ids import ShardId
from iscp.server.admin.operator_service import Resharder
from tests.fakes.desk import TABLE, Desk, Waiter, X, asked, request
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until

KEYED = '{"iteration":{"consumer":{"kind":"replica","target":"/targets/%s","key":["id"]}}}'
RANGES = (2, 6, 7)


class Split(Desk):
    """The job `x`, built, on a table of three ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = FakeKind(sharded=True)
        self.world.lead()
        job = request()
        (self.registered,) = self.admin.register([type(job)(job.job, KEYED % "x")])
        until(self.world.runs)
        self.reach(self.row(), 5)
        resharder = Resharder(self.world.owner, self.catalog, self.find_kind, self.intake)
        assert resharder.reshard(False, "t-1", 0, "r-1") == ("t-1", (2, 3))
        assert resharder.reshard(False, "t-1", 3, "r-2") == ("t-1", RANGES)
        until(self.all_run)

    def all_run(self) -> bool:
        return self.world.owner.query(lambda loop: loop.machine.running and len(loop.machine.assignments) == 3)

    def part(self, range_id: int) -> JobRow:
        return next(row for row in self.parts() if row.key.range_id == range_id)

    def parts(self) -> tuple[JobRow, ...]:
        return self.world.owner.current_writer().read(lambda book: book.jobs_on("t-1"))


@pytest.fixture
def desk() -> Iterator[Split]:
    made = Split()
    yield made
    made.moved.close()
    made.world.close()


def test_it_is_shown_as_one_as_far_as_its_slowest_range_and_as_its_worst(desk: Split) -> None:
    desk.world.report(desk.part(2), 9)
    desk.world.report(desk.part(6), 8, JobState.ERROR, status=JobStatus(error_code=10_003, error_msg="gone"))
    until(lambda: desk.admin.status(X).status.error_msg == "gone")
    view = desk.admin.status(X)
    assert (view.ranges, view.applied_version, view.state) == (3, 5, JobState.ERROR)
    assert (view.job_id, view.node_id) == (desk.registered.job_id, "n-1")
    assert [each.name for each in desk.admin.list_jobs(JobFilter())] == ["x"]
    assert desk.admin.count_jobs(JobFilter()) == desk.admin.cluster().jobs == 1
    (again,) = desk.admin.register([request()])
    assert (again.created, again.job_id) == (False, desk.registered.job_id)


def test_a_wait_is_for_all_ranges_and_all_are_notified(desk: Split) -> None:
    waiting = Waiter(desk, 7)
    until(lambda: {shard for shard, _ in desk.notified} == {ShardId("t-1", each) for each in RANGES})
    for each in RANGES:
        assert waiting.waits()
        desk.world.report(desk.part(each), 7)
    assert waiting.answer.result(10.0).applied_version == 7


def test_a_change_is_of_all_ranges(desk: Split) -> None:
    assert asked(desk, "pause", X)
    assert all(row.paused for row in desk.parts())
    assert asked(desk, "resume", X)
    assert desk.admin.update([UpdateRequest(X, '{"iteration":{"priority":3}}', interrupt=True)]) == [True]
    assert {row.spec.priority for row in desk.parts()} == {3}
    until(lambda: {shard for shard, *_ in desk.interrupted} == {ShardId("t-1", each) for each in RANGES})
    assert desk.admin.notify(TABLE.uri) == 1
    assert asked(desk, "unregister", X)
    assert desk.parts() == ()
    until(lambda: not desk.world.owner.query(lambda loop: len(loop.machine.assignments)))


def test_what_goes_by_one_watermark_is_refused_until_it_is_merged(desk: Split) -> None:
    with pytest.raises(InvalidRequest, match="split into 3 ranges") as resync:
        desk.admin.resync(ResyncRequest(X))
    assert "shard merge" in resync.value.remedy
    with pytest.raises(InvalidRequest, match="split into 3 ranges"):
        desk.admin.verify(X, False, 1.0, lambda: True)
    desk.kind.open_range = None
    with pytest.raises(InvalidRequest, match="the sink of a consumer replica is not sharded"):
        desk.admin.register([request("y")])


def test_what_a_range_is_last_heard_of_does_not_make_the_cluster_lag_for_ever(desk: Split) -> None:
    desk.world.see(6, lag_s=3.0)  # of the whole, which is gone
    assert ShardId("t-1") not in desk.world.owner.query(lambda loop: dict(loop.sources.seen))


def test_its_history_is_that_of_the_registration(desk: Split) -> None:
    row = desk.part(2)
    entry = HistoryEntry("default", "t-1", "x", row.registration, 7, 5, 6, 1.0, 2.0, 1.0, 0, "", 1, 1, "tail", "n-1")
    desk.world.report(row, 6, history=[entry])
    until(lambda: desk.admin.history(X, 9) == [entry])


def test_the_nodes_of_its_ranges_are_queried_at_the_same_time(desk: Split) -> None:
    """A frozen one is waited for; several are waited for no longer."""
    for part in desk.parts():
        desk.world.report(part, 6, JobState.RUNNING, Reason.NONE, JobStatus())
    until(lambda: all(part.state is JobState.RUNNING for part in desk.parts()))
    desk.calls.before_progress = threading.Barrier(len(RANGES), timeout=20.0).wait
    desk.admin.status(X)
    assert len(desk.calls.asked) == len(RANGES)
