"""Ulids increase, whatever is drawn and whatever the clock does, and survive encoding and decoding.

Cursors: their text, whose they are, and which of two is behind.
"""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.changefeed.model.ulid import (
    ALPHABET,
    DRAWN_BYTES,
    NO_ULIDS,
    TIME_MS_MAX,
    TRANSACTION_ULIDS_MAX,
    Cursor,
    UlidPlace,
    begin,
    parse_ulid,
    slowest,
    ulid_text,
    ulid_time_ms,
)
from iscp.model.values.errors import ConfigurationError, InvalidRequest

DRAWN = st.binary(min_size=DRAWN_BYTES, max_size=DRAWN_BYTES)
LARGEST, SMALLEST = b"\xff" * DRAWN_BYTES, b"\x00" * DRAWN_BYTES


def test_a_beginning_has_the_time_and_what_was_drawn_but_bit_62() -> None:
    place = begin(NO_ULIDS, 0x0123_4567_89AB, LARGEST)
    assert place.ulid().hex() == "0123456789ab" + "ffff" + "bfffffffffffffff"
    assert (place.time_ms, ulid_time_ms(place.ulid())) == (0x0123_4567_89AB, 0x0123_4567_89AB)
    assert begin(NO_ULIDS, 1, SMALLEST).ulid().hex() == "000000000001" + "0000" + "0000000000000000"


@pytest.mark.parametrize("drawn", [LARGEST, SMALLEST, b"\x00\x00\x3f" + b"\xff" * 7, b"\xff\xff\x80" + b"\x00" * 7])
def test_no_beginning_is_so_near_the_end_that_the_order_would_break(drawn: bytes) -> None:
    """In a signed half, a carry into bit 63 would sort a later ulid before an earlier one."""
    place = begin(NO_ULIDS, 5, drawn)
    assert place.room >= 2**62 - 1
    ends = [place.ulid(), place.ulid(1), place.ulid(TRANSACTION_ULIDS_MAX), place.ulid(2**62 - 1)]
    assert ends == sorted(ends)
    assert {ulid[:8] for ulid in ends} == {place.ulid()[:8]}


@given(st.lists(st.tuples(st.integers(1, TIME_MS_MAX), st.integers(0, 2**36), DRAWN), max_size=30))
def test_transactions_follow_one_another_whatever_the_clock_does(given: list[tuple[int, int, bytes]]) -> None:
    place, last = NO_ULIDS, b""
    for now_ms, count, drawn in given:
        first = begin(place, now_ms, drawn)
        assert first.ulid() > last or not last
        if count:
            last = first.ulid(count - 1)
        place = first.after(count)
        assert place.ulid() > last or not last


def test_a_thousand_transactions_in_a_millisecond_go_on_where_the_one_before_ended() -> None:
    place = first = begin(NO_ULIDS, 7, LARGEST)
    for _ in range(1_000):
        place = begin(place, 7, SMALLEST).after(3)
    assert (place.high, place.low - first.low) == (first.high, 3_000)


@pytest.mark.parametrize("now_ms", [7, 6, 1])
def test_a_clock_that_stops_or_steps_back_does_not_draw_again(now_ms: int) -> None:
    place = begin(NO_ULIDS, 7, SMALLEST).after(1)
    assert begin(place, now_ms, LARGEST) == place


def test_a_millisecond_that_is_used_up_is_followed_by_the_next() -> None:
    place = UlidPlace(7 << 16, 2**63 - TRANSACTION_ULIDS_MAX)
    assert place.room == TRANSACTION_ULIDS_MAX - 1
    following = begin(place, 7, SMALLEST)
    assert following.time_ms == 8
    assert begin(following.after(1), 7, LARGEST) == following.after(1), "until the clock has come as far"


def test_more_than_there_is_room_for_is_refused() -> None:
    place = begin(NO_ULIDS, 7, LARGEST)
    assert place.after(place.room).room == 0
    for count in (place.room + 1, -1):
        with pytest.raises(InvalidRequest, match="in one transaction"):
            place.after(count)


@pytest.mark.parametrize("now_ms", [-1, 0, TIME_MS_MAX + 1])
def test_a_clock_that_cannot_be_right_is_refused(now_ms: int) -> None:
    with pytest.raises(ConfigurationError):
        begin(NO_ULIDS, now_ms, SMALLEST)
    assert begin(NO_ULIDS, TIME_MS_MAX, LARGEST).high < 2**63, "as an int64"


def test_the_text_is_the_one_of_the_specification() -> None:
    # Of github.com/ulid/spec: the largest ulid; and the time of its example, 01ARZ3NDEK.
    assert ulid_text(b"\xff" * 16) == "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
    assert ulid_time_ms(parse_ulid("01ARZ3NDEKTSV4RRFFQ69G5FAV")) == 1_469_922_850_259


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_texts_read_back_and_sort_as_the_bytes_do(one: bytes, other: bytes) -> None:
    assert parse_ulid(ulid_text(one)) == parse_ulid(ulid_text(one).lower()) == one
    assert (ulid_text(one) < ulid_text(other)) == (one < other)


@pytest.mark.parametrize("text", ["", "0" * 25, "0" * 27, "8" + "0" * 25, "0" * 25 + "U", "0" * 25 + "é", "ß" * 13])
def test_what_is_no_ulid_is_refused_with_what_one_is(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no ulid") as refused:
        parse_ulid(text, field="cursor")
    assert (refused.value.field, ALPHABET in str(refused.value)) == ("cursor", True)


A, B, C = (f"01J{letter * 23}" for letter in "ABC")


def test_a_cursor_is_what_its_text_says() -> None:
    cursor = Cursor("f", {10: B, 0: A})
    assert cursor.text == f'{{"feed": "f", "shards": {{"0": "{A}", "10": "{B}"}}}}'
    assert Cursor.parse(cursor.text) == Cursor.parse(str(cursor)) == cursor
    assert hash(Cursor.parse(cursor.text)) == hash(cursor)
    assert pickle.loads(pickle.dumps(cursor)) == cursor
    assert (dict(cursor), len(cursor), cursor[10]) == ({0: A, 10: B}, 2, B)
    assert Cursor("g", {10: B, 0: A}) != cursor


def test_ulids_in_small_letters_are_taken_as_they_are_meant() -> None:
    assert Cursor.parse(Cursor("f", {0: A.lower()}).text) == Cursor("f", {0: A})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"feed": "f", "shards": ' + "[" * 100_000,
        '"f"',
        '{"feed": "f"}',
        '{"feed": 1, "shards": {}}',
        '{"feed": "f", "shards": {}, "more": 1}',
        '{"feed": "f", "shards": ["a"]}',
        '{"feed": "f", "shards": {"a": "01JAAAAAAAAAAAAAAAAAAAAAAA"}}',
        '{"feed": "f", "shards": {"0": "01J"}}',
        '{"feed": "f", "shards": {"0": null}}',
        '{"feed": "f", "shards": {"0": "81JAAAAAAAAAAAAAAAAAAAAAAAAA"}}',
    ],
)
def test_what_is_no_cursor_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Cursor.parse(text)
    assert refused.value.field == "cursor"
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("cursor", "complaint"),
    [
        (Cursor("g"), "of feed g"),
        (Cursor("f", {2: A}), "has shard 2"),
        (Cursor("f", {-1: A}), "has shard -1"),
        (Cursor("f", {0: "junk"}), "is no ulid"),
        (Cursor("f", {0: A.lower()}), "small letters"),
    ],
)
def test_a_cursor_that_cannot_be_of_the_feed_is_refused(cursor: Cursor, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        cursor.refuse_foreign("f", 2)
    assert refused.value.remedy


def test_a_cursor_is_behind_in_the_shards_where_it_has_not_come_as_far() -> None:
    cursor = Cursor("f", {0: B, 1: B})
    assert cursor.behind({0: A, 1: B}) == []
    assert cursor.behind({0: C, 1: B}) == [0]
    assert cursor.behind({2: A}) == [2], "a shard that it has not begun"
    assert Cursor("f").behind({}) == []


def test_the_slowest_of_several_has_not_begun_what_one_of_them_has_not() -> None:
    assert slowest([Cursor("f", {0: A, 1: C}), Cursor("f", {0: B, 1: B})]) == {0: A, 1: B}
    assert slowest([Cursor("f", {0: A, 1: C}), Cursor("f", {0: B})]) == {0: A}
    assert slowest([Cursor("f", {0: A}), Cursor("f")]) == {}
    assert slowest([]) == {}
