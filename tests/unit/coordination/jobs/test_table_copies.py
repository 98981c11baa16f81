"""Copies of a table carry one id: each is a table of its own, whoever registers first, second or at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from iscp.coordination.jobs.job_book import JobBook
from iscp.coordination.jobs.job_changes import PendingChanges
from iscp.coordination.jobs.job_requests import Register, Registration, Resync, Unregister
from iscp.coordination.jobs.table_copies import copy_id, of_table
from iscp.core.api.api_views import RegisterResult
from iscp.core.job.job_row import JobReport, JobRow, JobState, JobStatus
from iscp.core.spec.spec import ConsumerSpec, JobSpec
from iscp.core.values.ids import JobKey
from iscp.core.values.watermark import Watermark

NOW_S = 1_000.0
TABLE, A, B = "t1", "/tables/a", "/tables/b"


def asked(name: str, uri: str, job_id: str = "", request_id: str = "") -> Registration:
    spec = JobSpec(ConsumerSpec("replica", f"/targets/{uri.rpartition('/')[2]}_{name}"))
    row = JobRow(JobKey("default", TABLE, name), job_id or f"id-{uri}-{name}", spec.to_json(), uri, uri)
    return Registration(row, request_id)


def decide(book: JobBook, *items: Registration | JobKey) -> list[RegisterResult]:
    """Register and unregister (a key), all of them in one commit of the log."""
    draft, results = PendingChanges(book, NOW_S), []
    for item in items:
        if isinstance(item, JobKey):
            draft.decide(Unregister(item))
        else:
            (result,) = draft.decide(Register((item,)))  # type: ignore[misc]
            results.append(result)
    book.commit(draft.entries)
    return results


def places(book: JobBook) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in book.select():
        found.setdefault(row.key.table_id, set()).add(row.table_uri)
    return found


def test_two_registrations_of_one_name_at_once_on_two_copies_are_two_jobs() -> None:
    book = JobBook()
    first, second = decide(book, asked("x", A), asked("x", B))
    assert (first.created, first.table_id) == (True, TABLE)
    assert (second.created, second.table_id) == (True, copy_id(TABLE, B))
    assert {row.table_uri for row in book.select()} == {A, B}
    # Requested again, each finds its own.
    again = decide(book, asked("x", A, "later-a"), asked("x", B, "later-b"))
    assert again == [replace(first, created=False), replace(second, created=False)]


def test_a_job_on_a_copy_follows_the_id_in_its_tables_metadata() -> None:
    book = JobBook()
    decide(book, asked("x", A), asked("x", B))
    made = next(row for row in book.select() if row.table_uri == B)
    assert made.source_id == TABLE
    report = JobReport(
        made.key, made.job_id, Watermark(3, 1.0), 1, state=JobState.COMPLETED, status=JobStatus(0, 3, source_id=TABLE)
    )
    book.apply([report])
    assert book.get(made.key).source_id == TABLE  # type: ignore[union-attr]
    assert {row.key.table_id for row in book.select(tables=book.tables_called(B))} == {copy_id(TABLE, B)}


def test_a_repeated_request_gets_the_first_answer_whichever_id_is_free_by_then() -> None:
    book = JobBook()
    _, second = decide(book, asked("x", A), asked("x", B, request_id="r"))
    decide(book, JobKey("default", TABLE, "x"), JobKey("default", second.table_id, "x"))
    (again,) = decide(book, asked("x", B, "another", request_id="r"))
    assert (again.created, again.job_id) == (True, second.job_id)


def test_a_table_that_was_moved_keeps_its_id_when_its_only_job_is_recreated_there() -> None:
    book = JobBook()
    decide(book, asked("x", A))
    seen = book.get(JobKey("default", TABLE, "x"))
    assert seen is not None
    draft = PendingChanges(book, NOW_S)
    result = draft.decide(Resync(seen, asked("x", B)))
    assert isinstance(result, RegisterResult)
    assert result.table_id == TABLE
    decide(book, asked("y", A))
    draft = PendingChanges(book, NOW_S)
    result = draft.decide(Resync(seen, asked("x", B)))  # others stayed behind
    assert isinstance(result, RegisterResult)
    assert result.table_id == copy_id(TABLE, B)


def test_jobs_that_an_older_version_kept_on_one_id_are_found_and_new_ones_are_kept_apart() -> None:
    book = JobBook([asked("x", A).row, asked("y", B).row])
    (there,) = decide(book, asked("y", B, "again"))
    assert (there.created, there.table_id) == (False, TABLE)
    (made,) = decide(book, asked("z", B))
    assert made.table_id == copy_id(TABLE, B)


def test_a_job_may_be_known_by_an_id_that_its_table_had_before() -> None:
    row = of_table(asked("x", A).row, "before")
    assert (row.key.table_id, row.source_id) == ("before", TABLE)
    assert of_table(of_table(row, TABLE), TABLE).status_json == ""


steps = st.lists(
    st.tuples(st.sampled_from("xyz"), st.sampled_from([A, B, "/tables/c"]), st.booleans()), min_size=1, max_size=12
)


@given(st.lists(steps, max_size=4))
def test_whatever_comes_and_goes_no_two_tables_share_an_id_and_who_registers_has_a_job(
    commits: list[list[tuple[str, str, bool]]],
) -> None:
    book, number = JobBook(), 0
    for commit in commits:
        draft, wanted = PendingChanges(book, NOW_S), {}
        for name, uri, wants in commit:
            number += 1
            if wants:
                (result,) = draft.decide(Register((asked(name, uri, f"id-{number:04}"),)))  # type: ignore[misc]
                wanted[uri, name] = result
            else:
                keys = [row.key for row in book.select() if (row.table_uri, row.key.job_name) == (uri, name)]
                keys += [e.row.key for e in draft.entries if (e.row.table_uri, e.row.key.job_name) == (uri, name)]
                for key in keys:
                    draft.decide(Unregister(key))
                wanted.pop((uri, name), None)
        book.commit(draft.entries)
        jobs = {(row.table_uri, row.key.job_name): row for row in book.select()}
        assert all(jobs[at].job_id == result.job_id for at, result in wanted.items())
        assert len(jobs) == len(book.select())
        assert all(len(uris) == 1 for uris in places(book).values())
        assert all(row.source_id == TABLE for row in jobs.values())
