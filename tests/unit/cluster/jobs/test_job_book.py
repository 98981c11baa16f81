"""The job book and its drafts: the effect of requests and reports, and the rows that are logged for them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cluster.jobs.job_book import BookChange, JobBook, by_shard
from iscp.cluster.jobs.job_changes import (
    TARGET_FIELD,
    Answer,
    Pause,
    PendingChanges,
    Register,
    Request,
    Reshard,
    Resume,
    Resync,
    Unregister,
    Update,
)
from iscp.model.api.api_requests import RegisterResult
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, Reason, Registration
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import Conflict, ErrorCode, InvalidRequest, InvariantBroken, JobNotFound
from iscp.model.values.ids import JobKey, ShardId
from iscp.model.values.watermark import Watermark

NOW_S = 1_000.0


def key(name: str = "a", table: str = "t1", account: str = "default") -> JobKey:
    return JobKey(account, table, name)


def row(name: str = "a", job_id: str = "", table: str = "t1", target: str = "", kind: str = "replica") -> JobRow:
    spec = JobSpec(ConsumerSpec(kind, target or f"/targets/{name}"))
    return JobRow(key(name, table), job_id or f"id-{name}", spec.to_json(), table, f"/tables/{table}", create_at_s=1.0)


def registration(name: str = "a", request_id: str = "", **fields: str) -> Registration:
    return Registration(row(name, **fields), request_id)


def sharded(name: str = "a", **fields: str) -> Registration:
    return replace(registration(name, **fields), sharded=True)


def reshard(book: JobBook, draft: PendingChanges, table: str, merge: bool, job_id: str) -> None:
    """All ranges, unless there can be no more, or fewer."""
    seen = frozenset(each.registration for each in book.jobs_on(table))
    with suppress(InvalidRequest):
        draft.decide(Reshard(table, merge, 0, seen, job_id))


def check_indexes(book: JobBook, rows: list[JobRow]) -> None:
    """Against the jobs themselves."""
    shards = list(by_shard(book.rows()))
    assert {each.key.job for shard in shards for each in book.jobs_in(shard)} == {each.key for each in rows}
    assert {shard.table_id for shard in shards} == {t for each in rows for t in book.tables_called(each.table_name)}
    for each in rows:
        ids = {row.job_id for row in book.rows_of(each.key)}
        assert set(book.targets().at(each.spec.consumer.target)) == ids
        assert ids <= set(book.sources().at(each.table_uri))


def decide(book: JobBook, *requests: Request, now_s: float = NOW_S) -> tuple[list[Answer], BookChange]:
    """Decide in one draft and commit it, as when the log has taken it."""
    draft = PendingChanges(book, now_s)
    answers = [draft.decide(request) for request in requests]
    return answers, book.commit(draft.entries)


def book_with(*names: str) -> JobBook:
    return JobBook([row(name) for name in names])


def report(job: JobRow, version: int, seq: int = 1, state: JobState | None = None, **fields: object) -> JobReport:
    return JobReport(job.key, job.job_id, Watermark(version, float(version)), seq, state, **fields)  # type: ignore[arg-type]


def test_a_decision_takes_effect_only_when_its_entries_are_committed() -> None:
    book = JobBook()
    draft = PendingChanges(book, NOW_S)
    assert draft.decide(Register((registration(),))) == (RegisterResult(True, "id-a", "t1"),)
    assert len(book) == 0
    change = book.commit(draft.entries)
    assert change == BookChange((row(),), (ShardId("t1"),))
    assert book.get(key()) == row()
    assert list(by_shard(book.rows())) == [ShardId("t1")]


def test_registering_what_exists_answers_with_the_job_that_is_there_and_writes_nothing() -> None:
    book = book_with("a")
    draft = PendingChanges(book, NOW_S)
    assert draft.decide(Register((registration(job_id="other"),))) == (RegisterResult(False, "id-a", "t1"),)
    assert draft.entries == []


def test_the_second_of_two_registrations_in_one_batch_finds_the_first() -> None:
    first, second = decide(JobBook(), Register((registration(),)), Register((registration(job_id="other"),)))[0]
    assert first == (RegisterResult(True, "id-a", "t1"),)
    assert second == (RegisterResult(False, "id-a", "t1"),)


def test_a_retried_request_gets_its_first_answer_in_the_same_batch_and_in_later_ones() -> None:
    book = JobBook()
    request = Register((registration(request_id="r1"),))
    again = Register((registration(request_id="r1", job_id="other"),))
    answers, _ = decide(book, request, again)
    assert answers[0] == answers[1] == (RegisterResult(True, "id-a", "t1"),)
    assert decide(book, again)[0] == [answers[0]]


def test_a_retry_is_answered_from_what_the_log_has_kept_of_it() -> None:
    dropped = row()._replace(drop_at_s=5.0)
    book = JobBook([dropped, row(job_id="id-2")], {"id-a": ["r1", "r3"], "id-2": ["r2"]})
    assert decide(book, Register((registration(request_id="r1", job_id="x"),)))[0] == [
        (RegisterResult(True, "id-a", "t1"),)
    ]
    assert decide(book, Unregister(key(), "r3"))[0] == [True]
    assert book.get(key()) == row(job_id="id-2")


def test_a_request_id_of_another_job_is_refused() -> None:
    book = JobBook([row()], {"id-a": ["r1"]})
    with pytest.raises(InvalidRequest) as refused:
        PendingChanges(book, NOW_S).decide(Register((registration("b", request_id="r1"),)))
    assert refused.value.field == "request_id"


def test_unregister_sets_drop_at_once_and_is_false_where_there_is_nothing() -> None:
    book = book_with("a")
    assert decide(book, Unregister(key()), Unregister(key()))[0] == [True, False]
    assert book.get(key()) is None
    dropped = book.by_id("id-a")
    assert dropped is not None
    assert dropped.drop_at_s == NOW_S
    assert list(by_shard(book.rows())) == []
    assert book.count() == 0


def test_a_job_can_be_created_again_at_once_and_late_reports_of_the_old_one_are_ignored() -> None:
    book = book_with("a")
    old = row()
    answers, change = decide(book, Unregister(key()), Register((registration(job_id="id-2"),)))
    assert answers == [True, (RegisterResult(True, "id-2", "t1"),)]
    assert [each.job_id for each in change.rows] == ["id-a", "id-2"]
    assert book.apply([report(old, 9, state=JobState.COMPLETED)]) == BookChange()
    assert book.get(key()) == row(job_id="id-2")
    assert {each.job_id for each in book.rows()} == {"id-a", "id-2"}


def test_a_report_of_a_dropped_job_never_reaches_its_row() -> None:
    book = book_with("a")
    job = row()
    book.apply([report(job, 3)])
    decide(book, Unregister(key()))
    book.apply([report(job, 4, state=JobState.COMPLETED)])
    assert book.flush_watermarks() == 0
    dropped = book.by_id("id-a")
    assert dropped is not None
    assert (dropped.drop_at_s, dropped.watermark.version) == (NOW_S, 3)


def test_two_jobs_with_one_target_are_refused_in_the_book_and_in_the_batch() -> None:
    book = JobBook([row("a", target="/x")])
    for other in (registration("b", target="/x"), registration("c", target="/x", table="t2")):
        with pytest.raises(InvalidRequest, match="/x is the target of job 'a'") as refused:
            PendingChanges(book, NOW_S).decide(Register((other,)))
        assert refused.value.field == TARGET_FIELD
    draft = PendingChanges(JobBook(), NOW_S)
    draft.decide(Register((registration("a", target="/x"),)))
    with pytest.raises(InvalidRequest):
        draft.decide(Register((registration("b", target="/x"),)))


def test_a_target_is_free_again_as_soon_as_its_job_is_dropped() -> None:
    book = JobBook([row("a", target="/x")])
    answers, _ = decide(book, Unregister(key()), Register((registration("b", target="/x"),)))
    assert answers == [True, (RegisterResult(True, "id-b", "t1"),)]


def test_a_shared_target_is_shared_only_with_jobs_of_the_same_kind() -> None:
    book = JobBook([row("a", target="/x", kind="changefeed")])
    same = Registration(row("b", target="/x", kind="changefeed"), shared_target=True)
    assert decide(book, Register((same,)))[0] == [(RegisterResult(True, "id-b", "t1"),)]
    with pytest.raises(InvalidRequest):
        PendingChanges(book, NOW_S).decide(Register((Registration(row("c", target="/x"), shared_target=True),)))


def test_another_accounts_job_is_not_named() -> None:
    theirs = row("secret", target="/x")._replace(key=key("secret", account="them"))
    with pytest.raises(InvalidRequest, match="target of another job"):
        PendingChanges(JobBook([theirs]), NOW_S).decide(Register((registration("b", target="/x"),)))


def test_a_batch_of_registrations_is_all_or_none_and_leaves_earlier_decisions_alone() -> None:
    book = JobBook([row("z", target="/x")])
    draft = PendingChanges(book, NOW_S)
    draft.decide(Register((registration("a"),)))
    with pytest.raises(InvalidRequest):
        draft.decide(Register((registration("b", "rb", target="/b"), registration("c", target="/x"))))
    assert [entry.row.key.job_name for entry in draft.entries] == ["a"]
    again = draft.decide(Register((registration("b", "rb", target="/b"), registration("d"))))
    assert again == (RegisterResult(True, "id-b", "t1"), RegisterResult(True, "id-d", "t1"))


def test_pause_and_resume_say_whether_they_changed_anything() -> None:
    book = book_with("a")
    assert decide(book, Pause(key()), Pause(key()))[0] == [True, False]
    assert book.count(reason=Reason.PAUSED) == 1
    assert decide(book, Resume(key()), Resume(key()))[0] == [True, False]
    assert book.get(key()) == row()
    for request in (Pause(key("none")), Resume(key("none"))):
        with pytest.raises(JobNotFound):
            PendingChanges(book, NOW_S).decide(request)


@pytest.mark.parametrize(
    ("state", "reason", "code"),
    [
        (JobState.ERROR, Reason.NONE, ErrorCode.TABLE_NOT_FOUND),
        (JobState.ERROR, Reason.QUARANTINED, ErrorCode.STORAGE),
        (JobState.ERROR, Reason.PAUSED, ErrorCode.TABLE_NOT_FOUND),
        (JobState.ERROR, Reason.RETRYING, ErrorCode.STORAGE),
    ],
)
def test_resume_clears_what_stopped_a_job(state: JobState, reason: Reason, code: ErrorCode) -> None:
    status = JobStatus(error_code=code, error_msg="it broke")
    book = JobBook([row()._replace(state=state, reason=reason, status_json=status.to_json())])
    assert decide(book, Resume(key()))[0] == [True]
    job = book.get(key())
    assert job is not None
    assert (job.state, job.reason, job.failed_for_good) == (JobState.COMPLETED, Reason.NONE, False)
    assert job.status.error_msg == "it broke"


def resync(book: JobBook, request_id: str = "", of: str = "a", **fields: str) -> Resync:
    seen = book.get(key(of))
    assert seen is not None
    return Resync(seen, registration(of, request_id, **{"job_id": "new", **fields}))


@pytest.mark.parametrize(
    ("state", "reason", "code"),
    [
        (JobState.COMPLETED, Reason.NONE, ErrorCode.OK),
        (JobState.ERROR, Reason.NONE, ErrorCode.SOURCE_REPLACED),
        (JobState.ERROR, Reason.QUARANTINED, ErrorCode.STORAGE),
    ],
)
def test_a_resync_ends_the_row_and_begins_another_without_its_past_but_for_the_seq(
    state: JobState, reason: Reason, code: ErrorCode
) -> None:
    status = JobStatus(error_code=code, error_msg="it broke")
    old = row()._replace(watermark=Watermark(7, 7.0), seq=4, state=state, reason=reason, status_json=status.to_json())
    book = JobBook([old])
    answers, change = decide(book, resync(book))
    assert answers == [RegisterResult(True, "new", "t1")]
    assert change.rows == (old._replace(drop_at_s=NOW_S), row(job_id="new")._replace(seq=4))
    assert book.get(key()) == row(job_id="new")._replace(seq=4)
    assert book.apply([report(old, 9, seq=9, state=JobState.ERROR)]) == BookChange()
    again = JobBook(change.rows)
    kept = book.get(key())
    assert kept is not None
    assert (again.get(key()), again.targets().at("/targets/a")) == (kept, (kept.job_id,))


def test_a_resync_may_move_a_job_to_another_table_and_target_and_leaves_a_paused_one_so() -> None:
    book = JobBook([row()._replace(seq=4, reason=Reason.PAUSED)])
    _, change = decide(book, resync(book, table="t2", target="/targets/other"))
    assert change.shards == (ShardId("t1"), ShardId("t2"))
    assert (list(by_shard(book.rows())), book.get(key())) == ([ShardId("t2")], None)
    moved = book.get(key(table="t2"))
    assert moved == row(job_id="new", table="t2", target="/targets/other")._replace(reason=Reason.PAUSED)
    assert book.targets().at("/targets/a") == ()
    decide(book, Register((registration("b", target="/targets/a"),)))


def test_a_resync_that_is_refused_leaves_the_job_as_it_was_and_earlier_decisions_too() -> None:
    book = JobBook([row(), row("b"), row(job_id="there", table="t2", target="/x")])
    draft = PendingChanges(book, NOW_S)
    draft.decide(Pause(key("b")))
    for request, why in (
        (resync(book, target="/targets/b"), "is the target of job 'b'"),
        (resync(book, table="t2"), "there is a job 'a' on t2 already"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            draft.decide(request)
    assert [entry.row.key.job_name for entry in draft.entries] == ["b"]
    assert draft.decide(resync(book)) == RegisterResult(True, "new", "t1")


def test_a_resync_of_what_was_decided_about_meanwhile_is_to_be_retried() -> None:
    book = book_with("a")
    request = resync(book)
    for earlier in (Unregister(key()), resync(book, job_id="first"), resync(book, target="/targets/other")):
        draft = PendingChanges(book, NOW_S)
        draft.decide(earlier)
        with pytest.raises(Conflict):
            draft.decide(request)


def test_a_resync_that_is_repeated_gets_its_first_answer_in_the_same_batch_and_in_later_ones() -> None:
    book = book_with("a")
    request = resync(book, "r1")
    again = Resync(request.seen, replace(request.item, row=request.item.row._replace(job_id="newer")))
    first = RegisterResult(True, "new", "t1")
    assert decide(book, request, again)[0] == [first, first]
    assert decide(book, again)[0] == [first]
    assert len(book.rows()) == 2


def test_a_table_that_was_recreated_is_found_by_its_name_under_both_ids() -> None:
    old, new = row("a"), row("b", table="t2")._replace(table_name="t1", table_uri="/tables/t1")
    book = JobBook([old, new])
    assert book.tables_called("t1") == book.tables_called("/tables/t1") == ("t2", "t1")
    decide(book, Unregister(new.key))
    assert book.tables_called("t1") == ("t1",)
    decide(book, Unregister(old.key))
    assert book.tables_called("t1") == ()


def test_a_table_that_was_replaced_is_found_by_the_id_that_its_jobs_follow_now() -> None:
    book = book_with("a", "b")
    a, b = book.select()
    assert book.tables_called("t2") == ()
    book.apply([report(a, 1, status=JobStatus(source_id="t2"))])
    assert JobBook(book.rows()).tables_called("t2") == book.tables_called("t2") == ("t1",)
    book.apply([report(a, 2, seq=2, status=JobStatus(source_id="t1")), report(b, 2, status=JobStatus(source_id="t2"))])
    assert book.tables_called("t2") == ("t1",)
    decide(book, Unregister(b.key))
    assert book.tables_called("t2") == ()
    # Which table comes first follows from its registrations alone, whatever its jobs follow.
    decide(book, Register((registration("c", table="t3", job_id="j-c"),)))
    before = book.tables_called("/tables/t1")
    book.apply([report(a, 3, seq=3, status=JobStatus(source_id="t4"))])
    assert book.tables_called("/tables/t1") == before


def test_an_update_changes_the_spec_and_says_whether_it_did() -> None:
    book = book_with("a")
    book.apply([report(row(), 7, seq=4)])
    answers, change = decide(book, Update(key(), '{"target_lag":60}', "r1"), Update(key(), '{"target_lag":60}', "r2"))
    assert answers == [True, False]
    (after,) = change.rows
    assert (after.spec.target_lag_s, after.spec.consumer) == (60.0, row().spec.consumer)
    assert (after.job_id, after.watermark.version, after.seq) == ("id-a", 7, 4), "it goes on where it was"
    assert change.shards == (ShardId("t1"),)
    assert decide(book, Update(key(), '{"target_lag":5}', "r1"))[0] == [True], "a retry gets the first answer"
    assert book.get(key()) == after


@pytest.mark.parametrize(
    ("state", "reason", "after"),
    [
        (JobState.ERROR, Reason.NONE, (JobState.COMPLETED, Reason.NONE)),
        (JobState.ERROR, Reason.QUARANTINED, (JobState.COMPLETED, Reason.NONE)),
        (JobState.ERROR, Reason.RETRYING, (JobState.ERROR, Reason.RETRYING)),
        (JobState.ERROR, Reason.PAUSED, (JobState.ERROR, Reason.PAUSED)),
        (JobState.RUNNING, Reason.NONE, (JobState.RUNNING, Reason.NONE)),
    ],
)
def test_an_updated_job_that_had_failed_is_tried_by_its_new_spec(
    state: JobState, reason: Reason, after: tuple[JobState, Reason]
) -> None:
    code = ErrorCode.ENGINE if reason is Reason.RETRYING else ErrorCode.DUPLICATE_KEY
    stuck = row()._replace(state=state, reason=reason, status_json=JobStatus(error_code=code).to_json())
    _, change = decide(JobBook([stuck]), Update(key(), '{"iteration":{"on_duplicate":"dead_letter","priority":1}}'))
    assert [(changed.state, changed.reason) for changed in change.rows] == [after]


def test_an_update_that_does_not_hold_leaves_nothing_behind() -> None:
    draft = PendingChanges(book_with("a"), NOW_S)
    with pytest.raises(InvalidRequest) as refused:
        draft.decide(Update(key(), '{"trigger":{"job_type":"periodic"}}'))
    assert refused.value.field == "spec.trigger.schedule.interval"
    with pytest.raises(JobNotFound):
        draft.decide(Update(key("b"), "{}"))
    assert draft.entries == []


def test_reports_move_the_book_at_once_and_only_statuses_are_due_before_the_flush() -> None:
    book = book_with("a", "b")
    a, b = row("a"), row("b")
    change = book.apply([report(a, 3), report(b, 4, state=JobState.COMPLETED), report(b, 5)])
    assert {each.key.job_name: each.watermark.version for each in change.rows} == {"a": 3, "b": 5}
    assert change.shards == ()
    due = book.due(10)
    assert [(each.key.job_name, each.watermark.version) for each in due] == [("b", 5)]
    book.mark_logged(due)
    assert book.due(10) == []
    assert book.flush_watermarks() == 1
    assert [each.key.job_name for each in book.due(10)] == ["a"]


def test_a_decision_carries_the_watermark_of_memory_into_the_log() -> None:
    book = book_with("a")
    book.apply([report(row(), 7)])
    draft = PendingChanges(book, NOW_S)
    draft.decide(Pause(key()))
    assert draft.entries[0].row.watermark.version == 7
    book.commit(draft.entries)
    assert book.flush_watermarks() == 0


def test_late_and_doubled_reports_change_nothing() -> None:
    book = book_with("a")
    newer = report(row(), 5, seq=3, state=JobState.COMPLETED)
    assert len(book.apply([newer]).rows) == 1
    assert book.apply([newer, report(row(), 4, seq=2, state=JobState.ERROR), report(row("b"), 1)]) == BookChange()


def test_collection_forgets_old_dropped_registrations_and_their_requests() -> None:
    book = JobBook(
        [row("a")._replace(drop_at_s=10.0), row("b")._replace(drop_at_s=20.0), row("c")],
        {"id-a": ["ra"], "id-b": ["rb"]},
    )
    assert book.collect(dropped_before_s=15.0) == 1
    assert {each.job_id for each in book.rows()} == {"id-b", "id-c"}
    kept = book.request("default", "rb")
    assert book.request("default", "ra") is None
    assert kept is not None
    assert kept.job_id == "id-b"


def test_one_key_cannot_have_two_wanted_registrations() -> None:
    with pytest.raises(InvariantBroken):
        JobBook([row(), row(job_id="id-2")])


NAMES, TABLES = st.sampled_from("abc"), st.sampled_from(["t1", "t2"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["register", "unregister", "pause", "resume", "resync", "report", "flush", "lose", "split", "merge"]
        ),
        NAMES,
        TABLES,
    ),
    max_size=40,
)


@given(STEPS)
def test_indexes_and_counts_are_those_of_the_rows_and_a_reload_equals_the_book(
    steps: list[tuple[str, str, str]],
) -> None:
    """After any requests: the log's last rows, reread, give the same book; what was not committed leaves no trace."""
    book, logged = JobBook(), dict[str, JobRow]()
    for number, (step, name, table) in enumerate(steps):
        job = book.job(key(name, table))
        draft = PendingChanges(book, NOW_S + number)
        match step:
            case "register" | "lose":
                draft.decide(Register((sharded(name, table=table, job_id=f"j{number:02}", target=f"/{table}{name}"),)))
            case "unregister":
                draft.decide(Unregister(key(name, table)))
            case "pause" if job:
                draft.decide(Pause(job.key))
            case "resume" if job:
                draft.decide(Resume(job.key))
            case "split" | "merge" if book.has_jobs_on(table):
                reshard(book, draft, table, step == "merge", f"j{number:02}")
            case "resync" if job and book.ranges(table) == (1,):
                anew = job._replace(origin="", job_id=f"j{number:02}", seq=0, watermark=Watermark(), status_json="")
                draft.decide(Resync(job, Registration(anew)))
            case "report" if job:
                state = JobState.ERROR if number % 2 else None
                book.apply([report(book.rows_of(job.key)[-1], number, seq=number, state=state)])
            case "flush":
                book.flush_watermarks()
                logged |= {each.job_id: each for each in book.due(100)}
                book.mark_logged(book.due(100))
        if step != "lose":
            logged |= {entry.row.job_id: entry.row for entry in draft.entries}
            book.commit(draft.entries)
        rows = book.select()
        assert sum(book.count(reason=reason) for reason in Reason) == book.count() == len(rows)
        assert len(book) == sum(len(book.ranges(each.key.table_id)) for each in rows)
        for state in JobState:
            assert book.count("default", state=state) == sum(each.state is state for each in rows)
        check_indexes(book, rows)
    book.flush_watermarks()
    logged |= {each.job_id: each for each in book.due(100)}
    again = JobBook(logged.values())
    assert {each.job_id: each for each in again.rows()} == {each.job_id: each for each in book.rows()}
