"""Every way in which racing commits can violate put-if-absent is detected."""

from __future__ import annotations

import pytest

from iscp.delta.selftest.commit_race import Breach, Round, author_of, breach_of, breaches, commit_lines


def content(name: str, version: int) -> bytes:
    return "\n".join(commit_lines(name, version)).encode()


def outcome(*winners: str, holds: bytes | None, version: int = 7) -> Round:
    return Round(version, frozenset(winners), holds)


def test_one_winner_whose_commit_is_there_is_fair() -> None:
    assert breach_of(outcome("a", holds=content("a", 7))) is None


def test_a_line_feed_at_the_end_is_no_matter() -> None:
    assert breach_of(outcome("a", holds=content("a", 7) + b"\n")) is None


@pytest.mark.parametrize(
    ("bad", "breach"),
    [
        (outcome(holds=content("a", 7)), Breach.NO_WINNER),
        (outcome("a", "b", holds=content("a", 7)), Breach.SEVERAL_WINNERS),
        (outcome("a", holds=None), Breach.LOST),
        (outcome("a", holds=content("b", 7)), Breach.OVERWRITTEN),
        (outcome("a", holds=content("a", 8)), Breach.TORN),
        (outcome("a", holds=content("a", 7)[:-10]), Breach.TORN),
        (outcome("a", holds=b""), Breach.TORN),
    ],
)
def test_each_breach_is_named(bad: Round, breach: Breach) -> None:
    assert breach_of(bad) is breach


def test_a_file_of_two_writers_is_torn() -> None:
    mixed = "\n".join([commit_lines("a", 7)[0], commit_lines("b", 7)[1]]).encode()
    assert author_of(mixed, 7) is None


@pytest.mark.parametrize("garbage", [b"\xff\xfe", b"[]", b"1", b'{"commitInfo": 1}', b"null\nnull"])
def test_garbage_has_no_author(garbage: bytes) -> None:
    assert author_of(garbage, 7) is None


def test_only_bad_versions_are_listed() -> None:
    rounds = [outcome("a", holds=content("a", 1), version=1), outcome(holds=None, version=2)]
    assert breaches(rounds) == [(2, Breach.NO_WINNER)]
