"""Jobs that end with their targets: what the requests lead to, what reports say of them, and when they are dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import (
    EndDeleted,
    Pause,
    PendingChanges,
    Register,
    Request,
    Resume,
    Resync,
    Unregister,
    Update,
)
from iscp.model.api.api_requests import RegisterResult
from iscp.model.job.job_row import Deletion, JobReport, JobRow, JobState, JobStatus, Reason, Registration, parse_status
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import ErrorCode, InvalidRequest
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Watermark

NOW_S = 1_000.0
DELETE = Unregister(JobKey("default", "t1", "a"), "r1", delete_target=True)


def row(name: str = "a", table: str = "t1", target: str = "", uri: str = "", account: str = "default") -> JobRow:
    spec = JobSpec(ConsumerSpec("replica", target or f"/targets/{name}"))
    key = JobKey(account, table, name)
    return JobRow(key, f"id-{name}", spec.to_json(), table, uri or f"/tables/{table}", create_at_s=1.0)


def decide(book: JobBook, *requests: Request) -> list[object]:
    draft = PendingChanges(book, NOW_S)
    answers: list[object] = [draft.decide(request) for request in requests]
    book.commit(draft.entries)
    return answers


def reported(book: JobBook, **status: object) -> JobRow:
    there = book.job(DELETE.key)
    assert there is not None
    state = JobState.ERROR if status.get("error_code") else JobState.COMPLETED
    found = JobStatus(**status)  # type: ignore[arg-type]
    book.apply([JobReport(there.key, there.job_id, Watermark(7, 1.0), there.seq + 1, state, Reason.NONE, found)])
    after = book.job(DELETE.key)
    assert after is not None
    return after


def test_the_job_is_there_and_paused_until_its_target_is_gone() -> None:
    book = JobBook([row()])
    assert decide(book, DELETE, DELETE) == [True, True]
    there = book.job(DELETE.key)
    assert there is not None
    assert (there.deletion, there.reason, there.drop_at_s) == (Deletion.WANTED, Reason.PAUSED, None)
    assert decide(book, EndDeleted(there.key, there.job_id)) == [False], "not before a node says so"
    assert book.deleted() == []
    assert reported(book, deletion=Deletion.DONE).deletion is Deletion.DONE
    assert [each.job_id for each in book.deleted()] == ["id-a"]
    assert decide(book, EndDeleted(there.key, "id-other"), EndDeleted(there.key, "id-a")) == [False, True]
    assert (book.job(there.key), book.deleted()) == (None, [])
    assert decide(book, DELETE) == [True], "the same request gets the same answer"
    assert decide(book, replace(DELETE, request_id="r2")) == [False]


def test_what_was_under_way_for_the_job_does_not_take_back_that_it_ends() -> None:
    book = JobBook([row()])
    decide(book, DELETE)
    assert reported(book, rows=3).deletion is Deletion.WANTED
    failed = reported(book, error_code=int(ErrorCode.STORAGE), error_msg="the disk is away")
    assert (failed.deletion, failed.reason, failed.status.error_msg) == (
        Deletion.WANTED,
        Reason.PAUSED,
        "the disk is away",
    )


def test_no_report_of_a_job_that_does_not_end_makes_it_end() -> None:
    book = JobBook([row()])
    for deletion in (Deletion.WANTED, Deletion.DONE):
        assert reported(book, deletion=deletion).status.deletion is Deletion.NONE
    assert book.deleted() == []


def test_a_deletion_that_was_refused_is_tried_again_when_it_is_requested_again() -> None:
    book = JobBook([row()])
    decide(book, DELETE)
    assert reported(book, error_code=int(ErrorCode.TARGET_UNUSABLE), error_msg="it is another's").failed_for_good
    assert decide(book, replace(DELETE, request_id="r2")) == [True]
    again = book.job(DELETE.key)
    assert again is not None
    assert (again.state, again.status.error_code, again.deletion) == (JobState.COMPLETED, 0, Deletion.WANTED)


def test_the_target_is_left_by_a_job_that_is_dropped_without_it_after_all() -> None:
    book = JobBook([row()])
    decide(book, DELETE)
    assert decide(book, Unregister(DELETE.key, "r2")) == [True]
    assert (book.job(DELETE.key), book.deleted()) == (None, [])
    assert decide(book, Register((Registration(row()._replace(job_id="id-b")),)))[0] is not None


def test_the_owner_after_the_one_that_died_drops_what_was_deleted() -> None:
    ends = row()._replace(reason=Reason.PAUSED, status_json=JobStatus(deletion=Deletion.DONE).to_json())
    assert [each.job_id for each in JobBook([ends, row("b", "t2")]).deleted()] == ["id-a"]


@pytest.mark.parametrize(
    "request_",
    [
        Pause(DELETE.key),
        Resume(DELETE.key),
        Update(DELETE.key, '{"priority": 3}'),
        Register((Registration(row()),)),
        Register((Registration(row("b", "t2", target="/targets/a")),)),
    ],
    ids=["pause", "resume", "update", "the same job", "another with its target"],
)
def test_nothing_else_is_done_with_the_job_or_its_target_meanwhile(request_: Request) -> None:
    book = JobBook([row()])
    decide(book, DELETE)
    with pytest.raises(InvalidRequest, match="is being deleted") as refused:
        decide(book, request_)
    assert refused.value.remedy


def test_a_job_that_ends_is_not_rebuilt() -> None:
    book = JobBook([row()])
    decide(book, DELETE)
    there = book.get(DELETE.key)
    assert there is not None
    with pytest.raises(InvalidRequest, match="is being deleted"):
        decide(book, Resync(there, Registration(row()._replace(job_id="id-b"))))


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        (row("b", "t2", uri="/targets/a"), "job 'b' reads"),
        (row("b", "t2", target="/targets/a"), "job 'b' keeps"),
        (row("b", "t2", uri="/targets/a", account="theirs"), "another job reads"),
    ],
)
def test_a_target_that_another_job_needs_is_not_deleted_before_that_ends_too(other: JobRow, shown: str) -> None:
    book = JobBook([row(), other])
    with pytest.raises(InvalidRequest, match=f"would delete /targets/a, which {shown}") as refused:
        decide(book, DELETE)
    assert refused.value.field == "delete_target"
    decide(book, Unregister(other.key, delete_target=other.spec.consumer.target != "/targets/a"))
    assert decide(book, DELETE) == [True]


def test_a_request_that_is_refused_leaves_the_others_of_its_batch() -> None:
    book = JobBook([row(), row("b", "t2", uri="/targets/a")])
    draft = PendingChanges(book, NOW_S)
    with pytest.raises(InvalidRequest):
        draft.decide(DELETE)
    assert draft.entries == []
    assert draft.decide(Register((Registration(row("c", "t3")),))) == (RegisterResult(True, "id-c", "t3"),)


def test_a_job_that_a_release_before_has_resumed_does_not_end() -> None:
    """That release knows nothing of it, and shows a job that is paused."""
    book = JobBook([row()])
    decide(book, DELETE)
    resumed = book.job(DELETE.key)
    assert resumed is not None
    book = JobBook([resumed._replace(reason=Reason.NONE)])
    there = book.job(DELETE.key)
    assert there is not None
    assert there.deletion is Deletion.NONE
    decide(book, Pause(DELETE.key))
    paused = book.job(DELETE.key)
    assert paused is not None
    assert (paused.deletion, paused.reason) == (Deletion.NONE, Reason.PAUSED)


def test_a_status_with_a_deletion_that_nobody_knows_is_no_deletion() -> None:
    status = parse_status('{"from":1,"deletion":"soon"}')
    assert (status.deletion, "cannot be read" in status.warning) == (Deletion.NONE, True)
