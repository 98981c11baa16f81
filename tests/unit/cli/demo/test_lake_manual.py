"""The paragraphs of the demo's indexes: there are some hundreds, and days change them as they say."""

from __future__ import annotations

from iscp.cli.demo.lake import SEARCHES, WORDS_MIN, Manual


def test_the_manual_is_prose_of_the_topics_that_are_searched() -> None:
    rows = Manual().rows().to_pylist()
    assert 200 < len(rows) < 1_000
    assert all(len(row["body"].split()) >= WORDS_MIN for row in rows)
    assert {"context-managers", "class", "continue"} <= {row["topic"] for row in rows}
    assert len(SEARCHES) == 3


def test_a_day_rewrites_paragraphs_that_are_there_or_come_back_and_deletes_one() -> None:
    manual = Manual()
    there = {row["id"]: row["body"] for row in manual.rows().to_pylist()}
    first = dict(there)
    for day in range(1, 60):
        written, gone = manual.revised(day)
        assert gone in there
        for row in written.to_pylist():
            there[row["id"]] = row["body"]
            assert row["body"] == f"{first[row['id']]} (Day {day}.)"
        del there[gone]
        assert gone not in written["id"].to_pylist()
    assert len(first) - 5 <= len(there) < len(first)
