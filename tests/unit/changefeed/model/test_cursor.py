"""Cursors: their text, whose they are, and which of two is behind."""

from __future__ import annotations

import pickle

import pytest

from iscp.changefeed.model.cursor import Cursor, slowest
from iscp.core.values.errors import InvalidRequest

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
