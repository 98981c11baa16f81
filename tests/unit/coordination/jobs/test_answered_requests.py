"""Whose a request id is: the account's of the job that it is about, or the operators'."""

from __future__ import annotations

from iscp.coordination.jobs.job_book import JobBook
from iscp.coordination.jobs.job_requests import Pause, Register, Registration, Resume
from iscp.core.api.api_views import RegisterResult
from iscp.core.job.job_row import Reason
from tests.unit.coordination.jobs.test_job_book import NOW_S, decide, key, row
from tests.unit.coordination.jobs.test_reshard import reshard


def test_a_request_id_is_its_accounts_own() -> None:
    """Two accounts that call their requests by the day do not meet, in the book, in a draft and after a restart."""
    ours, theirs = row(), row("b", table="t2")._replace(key=key("b", "t2", "acme"))
    for book in (JobBook(), JobBook([ours], {ours.job_id: ["nightly"]})):
        made = Register((Registration(ours, "nightly"),)), Register((Registration(theirs, "nightly"),))
        answers, _ = decide(book, *made)
        assert answers == [(RegisterResult(True, "id-a", "t1"),), (RegisterResult(True, "id-b", "t2"),)]
        assert decide(book, *made)[0] == answers
        assert decide(book, Pause(theirs.key, "nightly"))[0] == [True]
        assert book.rows_of(theirs.key)[0].reason is Reason.NONE  # it was that of its registration


def test_an_operators_request_id_is_none_of_the_accounts() -> None:
    book = JobBook([row("a", job_id="00")])
    decide(book, Pause(key("a"), "nightly"))
    assert reshard(book, "02", request_id="nightly") == 2
    assert reshard(book, "03", request_id="other") == 4  # ends the row with which the one before was logged
    assert reshard(book, "04", request_id="nightly") == 4
    assert decide(book, Resume(key("a"), "other"))[0] == [True]
    assert [each.reason for each in book.rows_of(key("a"))] == [Reason.NONE] * 4


def test_a_split_that_the_release_before_has_logged_is_not_repeated() -> None:
    """It logged the operator's request id as if it were the account's."""
    before = JobBook([row("a", job_id="00")])
    assert reshard(before, "02") == 2
    ended = row("a", job_id="00")._replace(drop_at_s=NOW_S)
    book = JobBook([ended, *before.rows_of(key("a"))], {"00": ["r-1"]})
    assert reshard(book, "03", request_id="r-1") == 2
    assert reshard(book, "03", request_id="r-2") == 4
