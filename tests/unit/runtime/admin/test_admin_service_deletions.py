"""Jobs that are deleted with their targets: what is refused at once, and what follows when a node has done it."""

from __future__ import annotations

import pytest

from iscp.core.api.api_requests import ChangeVerb, JobChange
from iscp.core.job.job_row import Deletion, JobRow, JobState, JobStatus, Reason
from iscp.core.values.errors import ErrorCode, InvalidRequest, StorageError, TableNotFound
from iscp.ports.consumer import ConsumerEnvironment
from iscp.ports.sink import Deleted, DeletionOrder
from tests.fakes.desk import TABLE, Desk, X, asked, request
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until


class DeletingKind(FakeKind):
    def delete_target(self, order: DeletionOrder, environment: ConsumerEnvironment) -> Deleted:
        raise AssertionError("the owner deletes nothing itself")


@pytest.fixture
def deleting(desk: Desk) -> Desk:
    desk.kind = DeletingKind()
    return desk


def done(desk: Desk, row: JobRow) -> None:
    status = JobStatus(deletion=Deletion.DONE, warning="left there: notes.txt")
    desk.world.report(row._replace(seq=row.seq + 1), 7, JobState.COMPLETED, Reason.PAUSED, status)


def test_the_job_is_dropped_once_a_node_has_deleted_its_target(deleting: Desk) -> None:
    row = deleting.running()
    assert asked(deleting, "delete_target", X, "r-1")
    view = deleting.admin.status(X)
    assert (view.reason, view.status.deletion) == (Reason.PAUSED, Deletion.WANTED)
    done(deleting, row)
    until(lambda: deleting.row().drop_at_s is not None)
    with pytest.raises(TableNotFound):
        deleting.admin.status(X)
    assert [asked(deleting, "delete_target", X, each) for each in ("r-1", "r-2")] == [True, False]
    assert deleting.admin.register([request()])[0].created


def test_a_job_that_cannot_be_dropped_yet_is_dropped_when_the_log_can_be_written_again(deleting: Desk) -> None:
    row = deleting.running()
    assert asked(deleting, "delete_target", X)
    deleting.world.logs[-1].faults += [StorageError("the disk is away"), StorageError("the disk is away")]
    done(deleting, row)

    def dropped() -> bool:
        deleting.world.clock.advance(60.0)  # the next attempt is due
        return deleting.row().drop_at_s is not None

    until(dropped)
    assert deleting.world.logs[-1].faults == []


def test_why_a_target_is_not_deleted_is_in_the_jobs_status(deleting: Desk) -> None:
    row = deleting.running()
    asked(deleting, "delete_target", X)
    status = JobStatus(error_code=ErrorCode.TARGET_UNUSABLE, error_msg="it is another's")
    deleting.world.report(row, 7, JobState.ERROR, Reason.PAUSED, status)
    until(lambda: deleting.admin.status(X).state is JobState.ERROR)
    view = deleting.admin.status(X)
    assert (view.status.error_msg, view.status.deletion) == ("it is another's", Deletion.WANTED)
    assert asked(deleting, "unregister", X)


def test_a_kind_that_deletes_no_targets_refuses_it_and_the_job_stays(desk: Desk) -> None:
    desk.running()
    with pytest.raises(InvalidRequest, match="which nodes cannot") as refused:
        asked(desk, "delete_target", X)
    assert (refused.value.field, bool(refused.value.remedy)) == ("delete_target", True)
    assert desk.admin.status(X).reason is Reason.NONE


def test_its_target_is_taken_until_it_is_gone(deleting: Desk) -> None:
    deleting.running()
    asked(deleting, "delete_target", X)
    with pytest.raises(InvalidRequest, match="/targets/x is being deleted, with job 'x'"):
        deleting.admin.register([request("y", target="/targets/x")])
    with pytest.raises(InvalidRequest, match="'x' is being deleted with its target /targets/x"):
        deleting.admin.register([request("x")])
    (checked,) = deleting.admin.check([request("y", target="/targets/x")])
    assert checked.error is not None
    (outcome,) = deleting.admin.change([JobChange(ChangeVerb.RESUME, X)])
    assert isinstance(outcome, InvalidRequest)


def test_what_it_holds_is_released_when_it_ends(deleting: Desk) -> None:
    class HoldingKind(DeletingKind):
        def held(self, spec: object) -> dict[str, float]:
            return {TABLE.uri: 60.0}

    deleting.kind = HoldingKind()
    deleting.running()
    assert asked(deleting, "delete_target", X)
    assert [uri for uri, _ in deleting.holds.released] == [TABLE.uri]
