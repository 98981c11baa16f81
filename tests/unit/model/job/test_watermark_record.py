"""The watermark record of a sink with its own transactions survives encoding, and gives the sink's position.

What a range has reached follows from the last commit that had to do with each of its keys, whoever made it.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.job.job_row import JobRow
from iscp.model.job.watermark_record import (
    WatermarkRecord,
    established,
    fenced,
    parse_record,
    pieces,
    position_of,
    record_key,
)
from iscp.model.rows.key_ranges import overlapping, overlaps, sibling
from iscp.model.values.errors import ErrorCode, PermanentError, Superseded
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Watermark

RECORD = WatermarkRecord(7, Watermark(41, 1234.5), "j-1", "t-1", from_version=39, epoch=3, attempt="ab12")


def test_a_record_comes_back_the_same() -> None:
    assert parse_record(RECORD.to_json()) == RECORD


def test_it_returns_the_position_of_the_sink() -> None:
    position = position_of(RECORD.to_json())
    assert (position.seq, position.watermark, position.job_id, position.source_id) == (
        7,
        Watermark(41, 1234.5),
        "j-1",
        "t-1",
    )
    assert position.base_version == 7
    assert position.void == ""


@pytest.mark.parametrize("text", [None, ""])
def test_a_sink_without_one_was_never_written_to(text: str | None) -> None:
    position = position_of(text)
    assert (position.seq, position.watermark.version, position.base_version) == (0, -1, -1)


def _without(name: str) -> str:
    return json.dumps({key: value for key, value in json.loads(RECORD.to_json()).items() if key != name})


@pytest.mark.parametrize(
    "text", ["nonsense", "[]", "{}", "7", RECORD.to_json().replace('"format":1', '"format":3'), _without("seq")]
)
def test_what_is_no_record_is_reported_with_what_to_do(text: str) -> None:
    with pytest.raises(PermanentError, match="cannot be read") as refused:
        parse_record(text)
    assert refused.value.code is ErrorCode.CONSUMER_BROKEN
    assert refused.value.remedy


def test_its_key_is_the_sinks_place_and_outlives_registrations() -> None:
    key = JobKey("acme", "t-1", "search")
    assert record_key(key, "/data/x.db") == record_key(JobKey("acme", "t-1", "other"), "/data/x.db")
    assert record_key(key, "") != record_key(JobKey("acme", "t-1", "other"), "")


RANGES = range(1, 16)
LEAVES = range(8, 16)


def record(seq: int, job_id: str = "02", *, origin: str = "01", fenced_by: str = "") -> WatermarkRecord:
    return WatermarkRecord(seq, Watermark(seq), job_id, "t1", -1, 1, "a", origin, fenced_by)


def row(range_id: int, job_id: str = "09", origin: str = "01") -> JobRow:
    return JobRow(JobKey("acme", "t1", "copy", range_id), job_id, "{}", "t1", "/t1", origin=origin)


def texts(records: dict[int, WatermarkRecord], mine: int) -> dict[int, str | None]:
    return {each: records[each].to_json() if each in records else None for each in (mine, *overlapping(mine))}


RECORDS = st.dictionaries(st.sampled_from(RANGES), st.tuples(st.sampled_from(["01", "01", "00"]), st.integers(1, 99)))


@given(RECORDS, st.sampled_from(RANGES))
def test_each_key_is_at_the_last_commit_of_its_registration_that_overlaps_it(
    made: dict[int, tuple[str, int]], mine: int
) -> None:
    """Records of other registrations say nothing; where a key was never applied, nothing of the range was."""
    records = {
        range_id: record(100 * seq + range_id, origin=origin)  # no two have one seq
        for range_id, (origin, seq) in made.items()
    }
    found = pieces(row(mine), texts(records, mine))
    wanted = {leaf: last_of(records, leaf) for leaf in LEAVES if overlaps(leaf, mine)}
    if None in wanted.values():
        assert found == []
        return
    assert {leaf: [each.record for each in found if overlaps(each.range_id, leaf)] for leaf in wanted} == {
        leaf: [each] for leaf, each in wanted.items()
    }
    assert {each for piece in found for each in LEAVES if overlaps(each, piece.range_id)} == wanted.keys()
    by_id = {piece.range_id: piece.record for piece in found}
    assert not any(by_id.get(sibling(each)) == one for each, one in by_id.items() if each > mine)  # the fewest


def last_of(records: dict[int, WatermarkRecord], leaf: int) -> WatermarkRecord | None:
    ours = [one for each, one in records.items() if overlaps(each, leaf) and one.registration == "01"]
    return max(ours, key=lambda each: each.seq, default=None)


def test_a_later_registration_counts_before_a_higher_seq() -> None:
    """A range that was merged goes on from the lower seq of both halves."""
    half, merged = record(9, "02"), record(4, "03")
    (piece,) = pieces(row(2, "04"), texts({2: half, 1: merged}, 2))
    assert (piece.range_id, piece.record) == (2, merged)


@pytest.mark.parametrize(
    ("mine", "records"),
    [
        (2, {2: record(1, "08")}),
        (2, {1: record(1, "08", origin="05")}),
        (2, {4: record(1, "08")}),
        (2, {2: record(1, fenced_by="08")}),
    ],
)
def test_what_a_later_registration_has_reached_is_no_longer_its_own(
    mine: int, records: dict[int, WatermarkRecord]
) -> None:
    assert pieces(row(mine, "08"), texts(records, mine)) is not None
    with pytest.raises(Superseded, match="the later registration 08"):
        pieces(row(mine, "07"), texts(records, mine))


def test_a_fence_on_a_range_around_leaves_its_watermark_to_the_other_half() -> None:
    around = record(1, fenced_by="08")
    (piece,) = pieces(row(2, "07"), texts({1: around}, 2))
    assert piece.record == around


def test_a_row_has_a_record_of_its_own_until_another_registration_takes_its_keys() -> None:
    own = record(3, "09")
    assert established(row(2), own.to_json()) == own
    assert established(row(2), None) is None
    assert established(row(2), record(3, "08").to_json()) is None
    assert established(row(2), fenced(own.to_json(), "10")) is None
    assert established(row(2), fenced(own.to_json(), "09")) is not None


@given(st.sampled_from(["", "05", "09"]), st.sampled_from(["04", "05", "10"]))
def test_a_fence_is_the_latest_and_leaves_the_rest_alone(before: str, later: str) -> None:
    one = record(3, fenced_by=before)
    other = parse_record(fenced(one.to_json(), later))
    assert other == record(3, fenced_by=max(before, later))
