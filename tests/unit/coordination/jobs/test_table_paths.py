"""Targets that would lie within one another, or in what others read, are refused, whichever comes first."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.coordination.jobs.job_book import JobBook
from iscp.coordination.jobs.job_changes import PendingChanges
from iscp.coordination.jobs.job_requests import Register, Registration, Resync, Unregister
from iscp.coordination.jobs.occupied_places import SOURCE_FIELD, TARGET_FIELD
from iscp.coordination.jobs.table_paths import Places
from iscp.core.job.job_row import JobRow
from iscp.core.spec.spec import ConsumerSpec, JobSpec
from iscp.core.sql.sql_names import DEAD_LETTER_SUFFIX
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.ids import JobKey

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
