"""Targets that would lie within one another, or in what others read, are refused, whichever comes first.

Copies of a table carry one id: each is a table of its own, whoever registers first, second or at once.

Who reads a table besides the one that it is on is found by that table's URI.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.cluster.jobs.job_book import BookIndex, JobBook, Places
from iscp.cluster.jobs.job_changes import SOURCE_FIELD, TARGET_FIELD, PendingChanges, Register, Resync, Unregister
from iscp.model.api.api_requests import RegisterResult
from iscp.model.job.job_row import JobReport, JobRow, JobState, JobStatus, Registration, copy_id, of_table
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.sql.sql_names import DEAD_LETTER_SUFFIX
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Watermark

NOW_S = 1_000.0


def made(name: str, target: str, source: str = "/src/one", job_id: str = "", account: str = "default") -> Registration:
    row = JobRow(
        JobKey(account, f"id of {source}", name),
        job_id or f"id-{name}",
        JobSpec(ConsumerSpec("replica", target)).to_json(),
        source,
        source,
    )
    return Registration(row)


def book_with(*items: Registration) -> JobBook:
    return JobBook([item.row for item in items])


@pytest.mark.parametrize("together", [True, False], ids=["in one commit", "one after the other"])
@pytest.mark.parametrize(
    ("first", "second", "field"),
    [
        (made("a", "/t/x"), made("b", "/t/x/inner"), TARGET_FIELD),
        (made("a", "/t/x/deep/inner"), made("b", "/t/x"), TARGET_FIELD),
        (made("a", "s3://b/t/x"), made("b", "s3://b/t/x/y"), TARGET_FIELD),
        (made("a", "/t/x"), made("b", "/t/x_dead_letter/y"), TARGET_FIELD),
        (made("a", "/t/x_dead_letter/y"), made("b", "/t/x"), TARGET_FIELD),
        (made("a", "/t/x"), made("b", "/t/x_dead_letter"), TARGET_FIELD),
        (made("a", "/t/x_dead_letter"), made("b", "/t/x"), TARGET_FIELD),
        (made("a", "/t/x"), made("b", "/src/one/y", "/src/two"), TARGET_FIELD),
        (made("a", "/t/x"), made("b", "/src", "/other"), TARGET_FIELD),
        (made("a", "/t/x"), made("b", "/t/y", "/t/x/inner"), SOURCE_FIELD),
        (made("a", "/t/x/y"), made("b", "/t/z", "/t/x"), SOURCE_FIELD),
    ],
)
def test_one_within_the_other_is_refused(first: Registration, second: Registration, field: str, together: bool) -> None:
    draft = PendingChanges(JobBook() if together else book_with(first), NOW_S)
    if together:
        draft.decide(Register((first,)))
    kept = len(draft.entries)
    with pytest.raises(InvalidRequest, match="job 'a'") as refused:
        draft.decide(Register((second,)))
    assert (refused.value.field, bool(refused.value.remedy)) == (field, True)
    assert len(draft.entries) == kept


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (made("a", "/t/x"), made("b", "/t/xy")),
        (made("a", "/t/x"), made("b", "/t/x-1")),
        (made("a", "/t/x"), made("b", "/t/y", "/t/x")),
        (made("a", "/t/y", "/t/x"), made("b", "/t/x", "/src/two")),
        (made("a", "/t/x"), made("b", "/t/y", "/src/one/inner")),
        (made("a", "jdbc:postgresql://db/x"), made("b", "jdbc:postgresql://db/x/y")),
        (made("a", ""), made("b", "")),
    ],
    ids=["prefix", "prefix-", "chain", "chain backwards", "source in source", "no paths", "no target"],
)
def test_what_lies_beside_or_is_the_same_table_is_taken(first: Registration, second: Registration) -> None:
    PendingChanges(book_with(first), NOW_S).decide(Register((second,)))


def test_another_accounts_job_is_not_named() -> None:
    with pytest.raises(InvalidRequest) as refused:
        PendingChanges(book_with(made("secret", "/t/x/secret", account="them")), NOW_S).decide(
            Register((made("b", "/t/x"),))
        )
    assert "secret" not in str(refused.value)


def test_a_place_is_free_once_its_job_is_dropped_or_has_moved() -> None:
    old = made("a", "/t/x")
    for freed in (Unregister(old.row.key), Resync(old.row, made("a", "/t/y", job_id="new"))):
        draft = PendingChanges(book_with(old), NOW_S)
        draft.decide(freed)
        draft.decide(Register((made("b", "/t/x/inner"),)))


def test_a_refused_batch_leaves_no_places_behind() -> None:
    draft = PendingChanges(book_with(made("z", "/taken")), NOW_S)
    with pytest.raises(InvalidRequest):
        draft.decide(Register((made("a", "/t/x"), made("b", "/taken"))))
    draft.decide(Register((made("c", "/t/x/inner"),)))


PATHS = st.lists(st.sampled_from(["a", "b", f"a{DEAD_LETTER_SUFFIX}"]), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


def apart(one: str, other: str) -> bool:
    return not (one.startswith(other + "/") or other.startswith(one + "/"))


@given(st.lists(st.tuples(st.integers(0, 3), PATHS, PATHS), max_size=15))
def test_no_target_that_was_taken_is_around_another_place(steps: list[tuple[int, str, str]]) -> None:
    """Compared with a check of all pairs, while targets come and go and are discarded; a reloaded book agrees."""
    book, draft = JobBook(), PendingChanges(JobBook(), NOW_S)
    for number, (what, target, source) in enumerate(steps):
        rows = book.select()
        draft = PendingChanges(book, NOW_S)
        if what == 0 and rows:
            draft.decide(Unregister(rows[number % len(rows)].key))
        else:
            item = made(f"j{number}", target, source)
            letters = target + DEAD_LETTER_SUFFIX
            kept = [row.spec.consumer.target for row in rows]
            all_kept = [each for place in kept for each in (place, place + DEAD_LETTER_SUFFIX)]
            fits = (
                target not in all_kept
                and letters not in kept
                and all(apart(mine, each) for mine in (target, letters) for each in all_kept)
                and all(apart(mine, row.table_uri) for mine in (target, letters) for row in rows)
                and all(apart(source, each) for each in all_kept)
            )
            for known in (draft, PendingChanges(JobBook(book.rows()), NOW_S)):
                taken = False
                with suppress(InvalidRequest):
                    known.decide(Register((item,)))
                    taken = True
                assert taken is fits
        if what != 1:  # thrown away
            book.commit(draft.entries)


@given(st.lists(st.tuples(st.booleans(), PATHS), max_size=40), PATHS)
def test_what_is_around_is_what_reading_all_would_find(steps: list[tuple[bool, str]], asked: str) -> None:
    places, held = Places(), list[tuple[str, str]]()
    for number, (adds, path) in enumerate(steps):
        if adds or not held:
            places.add(path, f"j{number}")
            held.append((path, f"j{number}"))
        else:
            places.remove(*held.pop(number % len(held)))
    assert set(places.around(asked)) == {path for path, _ in held if path != asked and not apart(path, asked)}
    assert set(places.at(asked)) == {job_id for path, job_id in held if path == asked}


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


def reading(name: str, *uris: str) -> JobRow:
    tables = {str(number): uri for number, uri in enumerate(("/tables/t1", *uris))}
    spec = JobSpec(ConsumerSpec("view", f"/targets/{name}", options={"tables": tables}))
    return JobRow(JobKey("default", "t1", name), f"id-{name}", spec.to_json(), "t1", "/tables/t1")


def test_readers_are_found_as_jobs_come_change_and_go() -> None:
    rows = [reading("a", "/t2", "/t3")]
    index = BookIndex(lambda: rows)
    assert index.readers("/t2") == index.readers("/t3") == {"id-a": "t1"}
    assert index.readers("/tables/t1") == {}
    index.add(reading("b", "/t2"))
    index.remove(reading("a", "/t2", "/t3"))
    assert (index.readers("/t2"), index.readers("/t3")) == ({"id-b": "t1"}, {})
    index.reread(reading("b", "/t2"), reading("b", "/t4"))
    assert (index.readers("/t2"), index.readers("/t4")) == ({}, {"id-b": "t1"})


def test_what_changes_before_anybody_wants_to_know_costs_nothing_and_is_seen_then() -> None:
    rows: list[JobRow] = []
    index = BookIndex(lambda: rows)
    index.add(reading("a", "/t2"))
    index.remove(reading("a", "/t2"))
    rows.append(reading("b", "/t3"))
    assert (index.readers("/t2"), index.readers("/t3")) == ({}, {"id-b": "t1"})
