"""A report of a commit says whose source that was: the tables with jobs that read the committed target.

Whose a request id is: the account's of the job that it is about, or the operators'.
"""

from __future__ import annotations

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Pause, Register, Resume
from iscp.model.api.api_requests import RegisterResult
from iscp.model.job.job_row import JobReport, JobRow, JobState, LogEntry, Reason, Registration
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey, ShardId
from iscp.model.values.watermark import Watermark
from tests.unit.cluster.jobs.test_job_book import NOW_S, decide, key, row
from tests.unit.cluster.jobs.test_job_changes_reshard import reshard


def on(table: str, target: str, *further: str, range_id: int = 1) -> JobRow:
    """A job on /tables/`table` that keeps `target`, and is called so; `further`: what it reads besides."""
    tables = {"own": f"/tables/{table}", **{uri: uri for uri in further}}
    spec = JobSpec(ConsumerSpec("view", target, options={"tables": tables}))
    key = JobKey("default", table, target, range_id)
    return JobRow(key, f"{target}-{table}-{range_id}", spec.to_json(), table, f"/tables/{table}")


def commit(row: JobRow, seq: int = 1, version: int = 1, state: JobState | None = JobState.COMPLETED) -> JobReport:
    return JobReport(row.key, row.job_id, Watermark(version), seq, state)


BELOW = on("t1", "/tables/t2")


def test_a_commit_wakes_each_table_whose_jobs_read_its_target_once() -> None:
    readers = [on("t2", "/a"), on("t2", "/b"), on("t3", "/c", "/tables/t2"), on("t3", "/d", "/tables/t2")]
    book = JobBook([BELOW, *readers, on("t4", "/e"), on("t1", "/f")])
    assert book.apply([commit(BELOW)]).woken == (ShardId("t2"), ShardId("t3"))
    assert book.apply([commit(BELOW, 2), commit(BELOW, 3)]).woken == (ShardId("t2"), ShardId("t3"))


def test_a_commit_to_a_target_that_nobody_reads_wakes_nobody() -> None:
    book = JobBook([BELOW, on("t1", "/a"), on("t3", "", "/tables/t4")])
    assert book.apply([commit(on("t1", "/a"))]).woken == ()
    assert book.apply([commit(on("t3", "", "/tables/t4"))]).woken == ()
    assert book.apply([commit(BELOW)]).woken == ()


def test_only_a_new_commit_wakes() -> None:
    book = JobBook([BELOW, on("t2", "/a")])
    assert book.apply([commit(BELOW, seq=0, state=JobState.RUNNING)]).woken == ()
    assert book.apply([commit(BELOW, seq=1, version=1)]).woken == (ShardId("t2"),)
    # Versions of the source without rows move the watermark, and leave the target as it is.
    assert book.apply([commit(BELOW, seq=1, version=2, state=None)]).woken == ()
    assert book.apply([commit(BELOW, seq=1, version=1)]).woken == ()


def test_every_range_of_a_split_table_is_woken() -> None:
    book = JobBook([BELOW, on("t2", "/a", range_id=2), on("t2", "/a", range_id=3)])
    assert book.apply([commit(BELOW)]).woken == (ShardId("t2", 2), ShardId("t2", 3))


def test_jobs_that_come_and_go_are_known() -> None:
    book, reader = JobBook([BELOW]), on("t5", "/b", "/tables/t2")
    assert book.apply([commit(BELOW, 1)]).woken == ()
    book.commit([LogEntry(reader)])
    assert book.apply([commit(BELOW, 2)]).woken == (ShardId("t5"),)
    book.commit([LogEntry(reader._replace(drop_at_s=5.0))])
    assert book.apply([commit(BELOW, 3)]).woken == ()


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
