"""A split and a merge are decisions on the rows of all jobs of a table, or are refused and change nothing."""

from __future__ import annotations

import pytest

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Pause, Register, Reshard, Resync, Unregister, Update
from iscp.model.job.job_row import JobState, JobStatus, Reason
from iscp.model.job.registration_id import marked_job_id, parse_job_id
from iscp.model.rows.key_ranges import RANGES_MAX
from iscp.model.values.errors import Conflict, InvalidRequest, TableNotFound
from iscp.model.values.ids import ShardId, next_job_id
from iscp.model.values.watermark import Watermark
from tests.unit.cluster.jobs.test_job_book import NOW_S, decide, key, registration, report, row, sharded


def reshard(book: JobBook, job_id: str, merge: bool = False, range_id: int = 0, request_id: str = "") -> object:
    seen = frozenset(each.registration for each in book.jobs_on("t1"))
    return decide(book, Reshard("t1", merge, range_id, seen, job_id, request_id))[0][0]


def split_book() -> JobBook:
    """Two jobs on a table in the ranges 2, 6 and 7."""
    book = JobBook([row("a", job_id="00"), row("b", job_id="01")])
    book.apply([report(book.rows_of(key("a"))[0], 5, seq=3)])
    assert reshard(book, "02") == 2
    assert reshard(book, "03", range_id=3) == 3
    return book


def test_a_split_ends_the_rows_and_begins_others_with_all_that_is_known_of_the_job() -> None:
    book = JobBook([row("a", job_id="00"), row("b", job_id="01")])
    decide(book, Pause(key("b")))
    job = book.rows_of(key("a"))[0]
    book.apply([report(job, 5, seq=3)])
    seen = frozenset({"00", "01"})
    (answer,), change = decide(book, Reshard("t1", False, 0, seen, "02"))
    assert answer == 2
    assert set(change.shards) == {ShardId("t1"), ShardId("t1", 2), ShardId("t1", 3)}
    assert [each.drop_at_s for each in change.rows if each.key.range_id == 1] == [NOW_S, NOW_S]
    low, high = book.rows_of(key("a"))
    assert (low.key.range_id, high.key.range_id) == (2, 3)
    assert low.job_id < high.job_id
    assert all(each.job_id > "01" and each.job_id < "03" for each in (low, high))
    for each in (low, high):
        assert (each.origin, each.watermark, each.seq, each.spec_json) == ("00", Watermark(5, 5.0), 3, job.spec_json)
    assert [each.reason for each in book.rows_of(key("b"))] == [Reason.PAUSED, Reason.PAUSED]
    assert book.apply([report(job, 9, seq=4)]).rows == ()  # what the former row's node says late


def test_what_an_id_says_of_the_spec_goes_through_splits_and_merges_and_ids_with_and_without_it_are_in_order() -> None:
    marked = marked_job_id("000000000001", "0123456789abcdef", full=True)
    book = JobBook([row("a", job_id="000000000000"), row("b", job_id=marked)])
    before = [each.job_id for name in "ab" for each in book.rows_of(key(name))]
    for number, merge in enumerate((False, False, True, True), 2):
        reshard(book, f"{number:012x}", merge)
        plain, of_spec = ([each.job_id for each in book.rows_of(key(name))] for name in "ab")
        assert all(parse_job_id(each).mark == "" for each in plain)
        assert {parse_job_id(each)[1:] for each in of_spec} == {parse_job_id(marked)[1:]}
        assert {each.origin for each in book.rows_of(key("b"))} == {marked}
        assert min([*plain, *of_spec]) > max(before)
        assert next_job_id(0.0, book.last_job_id) > max(before := [*plain, *of_spec])


def test_a_job_of_several_ranges_is_as_the_one_that_lags_most_and_the_one_that_is_worst() -> None:
    book = split_book()
    for each, version in zip(book.rows_of(key("a")), (9, 7, 8), strict=True):
        failed = each.key.range_id == 2
        status = JobStatus(error_code=10_003, error_msg="gone") if failed else JobStatus(rows=4)
        book.apply([report(each, version, 4, JobState.ERROR if failed else None, status=status)])
    job = book.job(key("a"))
    assert job is not None
    assert (job.key, job.job_id, job.watermark.version) == (key("a"), "00", 7)
    assert (job.state, job.status.error_msg, job.status.rows) == (JobState.ERROR, "gone", 8)
    assert [each.key.job_name for each in book.select()] == ["a", "b"]
    assert (book.count(), book.count(state=JobState.ERROR)) == (2, 1)


def test_changes_of_a_job_are_of_all_its_rows_in_one_commit() -> None:
    book = split_book()
    (paused, again), change = decide(book, Pause(key("a"), "r-1"), Pause(key("a")))
    assert (paused, again) == (True, False)
    assert len(change.rows) == 3
    assert decide(book, Pause(key("a"), "r-1"))[0] == [True]
    changes_json = '{"iteration": {"priority": 3}}'
    assert decide(book, Update(key("a"), changes_json))[0] == [True]
    assert [each.spec.priority for each in book.rows_of(key("a"))] == [3, 3, 3]
    assert decide(book, Unregister(key("a")))[0] == [True]
    assert book.job(key("a")) is None
    assert book.ranges("t1") == (2, 6, 7)
    decide(book, Unregister(key("b")))
    assert book.ranges("t1") == (1,)


def test_a_merge_goes_on_from_the_lower_watermark() -> None:
    book = split_book()
    reports = zip(book.rows_of(key("a")), (9, 7, 8), (4, 5, 6), strict=True)
    book.apply([report(each, version, seq) for each, version, seq in reports])
    assert reshard(book, "04", merge=True) == 2  # the pair of the deepest level
    assert [(each.key.range_id, each.watermark.version) for each in book.rows_of(key("a"))] == [(2, 9), (3, 7)]
    assert reshard(book, "05", merge=True, range_id=2, request_id="r") == 1
    assert reshard(book, "06", merge=True, range_id=2, request_id="r") == 1  # the same request, heard twice
    (merged,) = book.rows_of(key("a"))
    assert (merged.key.range_id, merged.watermark.version, merged.seq) == (1, 7, 6)
    assert (merged.registration, book.job(key("a"))) == ("00", merged._replace(job_id="00"))


@pytest.mark.parametrize(
    ("merge", "range_id", "what"),
    [
        (False, 3, "no range 3"),
        (True, 4, "no range 4"),
        (True, 2, "is merged with 3, which is split further"),
        (False, 1, "no range 1"),
    ],
)
def test_ranges_that_are_not_there_are_refused_and_nothing_changes(merge: bool, range_id: int, what: str) -> None:
    book = split_book()
    before = book.rows()
    with pytest.raises(InvalidRequest, match=what) as refused:
        reshard(book, "04", merge, range_id)
    assert (refused.value.field, bool(refused.value.remedy)) == ("range", True)
    assert book.rows() == before


@pytest.mark.parametrize("merge", [False, True])
def test_a_table_whose_last_job_went_meanwhile_is_not_found(merge: bool) -> None:
    """Nobody splits or merges what nobody reads; it was looked up while there was a job."""
    with pytest.raises(TableNotFound, match="t1 has no jobs"):
        reshard(JobBook([]), "01", merge)


def test_there_is_a_smallest_range_and_a_whole() -> None:
    book = JobBook([row("a", job_id="00")])
    with pytest.raises(InvalidRequest, match="not split"):
        reshard(book, "01", merge=True)
    with pytest.raises(InvalidRequest, match="not split"):
        reshard(book, "01", merge=True, range_id=1)
    for number in range(RANGES_MAX.bit_length() - 1):
        reshard(book, f"{number + 1:02}")
    assert len(book.ranges("t1")) == RANGES_MAX
    with pytest.raises(InvalidRequest, match=f"one of {RANGES_MAX} parts"):
        reshard(book, "99")


def test_jobs_that_came_or_went_since_they_were_checked_are_a_conflict() -> None:
    book = split_book()
    with pytest.raises(Conflict):
        decide(book, Reshard("t1", False, 0, frozenset({"00"}), "04"))


def test_a_new_job_gets_a_row_for_each_range_or_is_refused() -> None:
    book = split_book()
    with pytest.raises(InvalidRequest, match="split into 3 ranges") as refused:
        decide(book, Register((registration("c", job_id="04"),)))
    assert "merge" in refused.value.remedy
    (made,), _ = decide(book, Register((sharded("c", job_id="04"),)))
    assert made[0].job_id == "04"  # type: ignore[index]
    assert [each.key.range_id for each in book.rows_of(key("c"))] == [2, 6, 7]
    assert {each.registration for each in book.rows_of(key("c"))} == {"04"}
    (there,), _ = decide(book, Register((sharded("c", job_id="05"),)))
    assert (there[0].created, there[0].job_id) == (False, "04")  # type: ignore[index]
    job = book.job(key("c"))
    assert job is not None
    with pytest.raises(InvalidRequest, match="each of which goes its own way") as resynced:
        decide(book, Resync(job, sharded("c", job_id="06")))
    assert "merge" in resynced.value.remedy


def test_what_is_decided_in_one_draft_builds_on_each_other() -> None:
    book = JobBook([row("a", job_id="00")])
    first = Reshard("t1", False, 0, frozenset({"00"}), "01")
    second = Register((sharded("b", job_id="02"),))
    third = Reshard("t1", False, 2, frozenset({"00", "02"}), "03")
    (two, _, three), _ = decide(book, first, second, third)
    assert (two, three) == (2, 3)
    assert book.ranges("t1") == (3, 4, 5)
    assert len(book) == 6
