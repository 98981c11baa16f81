"""What a hold changes of a table's properties, and that the last one leaves them as the user had them.

Which commits are left to the tail, and which are kept first.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.job.source_holds import (
    REPAIR_MARK,
    CommitRoute,
    JobPhase,
    hold_properties,
    interval_s,
    is_repair,
    route_commit,
    unread_property,
)

FILES, LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
DAY_S = 86_400.0


def altered(table: dict[str, str], holder: str, hold_s: float) -> dict[str, str]:
    """The table's properties once they are set as they have to be."""
    after = table | hold_properties(table, holder, hold_s)
    return {name: value for name, value in after.items() if value is not None}


def kept_s(table: dict[str, str]) -> tuple[float | None, float | None]:
    return interval_s(table.get(FILES, "interval 7 days")), interval_s(table.get(LOG, "interval 30 days"))


def test_a_hold_that_is_longer_than_what_the_user_keeps_raises_that() -> None:
    table = altered({FILES: "interval 1 hour", LOG: "interval 60 days", "other": "x"}, "a", 3 * DAY_S)
    assert kept_s(table) == (3 * DAY_S, 60 * DAY_S)
    assert altered(table, "a", 0.0) == {FILES: "interval 1 hour", LOG: "interval 60 days", "other": "x"}


def test_what_was_not_set_is_not_set_afterwards() -> None:
    table = altered({}, "a", 10 * DAY_S)
    assert kept_s(table) == (10 * DAY_S, 30 * DAY_S)
    assert LOG not in table
    assert altered(table, "a", 0.0) == {}


def test_nothing_is_to_be_done_twice() -> None:
    table = altered({FILES: "1 day"}, "a", 3 * DAY_S)
    assert hold_properties(table, "a", 3 * DAY_S) == {}
    assert hold_properties({FILES: "1 day"}, "a", 0.0) == {}


def test_the_longest_of_several_holds_counts() -> None:
    table = altered(altered({FILES: "interval 1 day"}, "a", 3 * DAY_S), "b", 2 * DAY_S)
    assert kept_s(table)[0] == 3 * DAY_S
    table = altered(table, "a", 0.0)
    assert kept_s(table)[0] == 2 * DAY_S
    assert altered(table, "b", 0.0) == {FILES: "interval 1 day"}


def test_a_hold_that_another_one_has_overwritten_is_set_again() -> None:
    table = {FILES: "interval 1 day"}
    both = altered(table, "a", 3 * DAY_S) | hold_properties(table, "b", 2 * DAY_S)
    held = {name: value for name, value in both.items() if value is not None}
    assert kept_s(held)[0] == 2 * DAY_S
    again = altered(held, "a", 3 * DAY_S)
    assert kept_s(again)[0] == 3 * DAY_S
    assert altered(altered(again, "a", 0.0), "b", 0.0) == table


def test_what_the_user_sets_meanwhile_is_the_users() -> None:
    held = altered({FILES: "interval 1 day"}, "a", 3 * DAY_S)
    longer = altered(held | {FILES: "interval 9 days"}, "a", 3 * DAY_S)
    assert kept_s(longer)[0] == 9 * DAY_S
    assert altered(longer, "a", 0.0) == {FILES: "interval 9 days"}
    shorter = altered(held | {FILES: "interval 2 hours"}, "a", 3 * DAY_S)
    assert kept_s(shorter)[0] == 3 * DAY_S
    assert altered(shorter, "a", 0.0) == {FILES: "interval 2 hours"}


HOLDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=12)


@given(st.sampled_from(["", "interval 0 seconds", "interval 1 day", "interval 20 days"]), HOLDS)
def test_after_all_holds_a_table_is_as_before_them(own: str, holds: list[tuple[str, int]]) -> None:
    before = {FILES: own} if own else {}
    table, held = dict(before), dict[str, int]()
    for holder, days in holds:
        table = altered(table, holder, days * DAY_S)
        held[holder] = days
        kept = kept_s(table)[0]
        assert kept is not None
        assert kept == max([interval_s(own or "interval 7 days") or 0.0, *(each * DAY_S for each in held.values())])
    for holder in "abc":
        table = altered(table, holder, 0.0)
    assert table == before


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 7 days", 7 * DAY_S),
        ("INTERVAL 1 week 2 hours", 7 * DAY_S + 7200),
        ("168 hours", 7 * DAY_S),
        ("interval 1 second", 1.0),
        ("interval 1 month", None),
        ("interval", None),
        ("a while", None),
        ("interval -1 days", None),
    ],
)
def test_intervals_are_read_as_delta_has_them(text: str, seconds: float | None) -> None:
    assert interval_s(text) == seconds


def test_a_property_that_nobody_can_read_is_named_and_left_alone() -> None:
    table = {FILES: "a while"}
    assert unread_property(table) == f"{FILES} = a while"
    assert unread_property({FILES: "interval 1 day"}) == ""
    assert altered(table, "a", 3 * DAY_S)[FILES] == "a while"


@pytest.mark.parametrize("text", ["", "soon", "nan", "inf", "-1", "1e400", "99999999999999", "²"])
def test_a_hold_that_nobody_has_written_counts_for_nothing(text: str) -> None:
    table = {"iscp.hold.x": text}
    assert altered(table, "a", DAY_S) == table | {"iscp.hold.a": "86400"}
    assert altered(table | {"iscp.hold.a": "86400"}, "a", 0.0) == table


TAIL, STAGING = CommitRoute
WAITING, BUILDING, BUILT = JobPhase


@pytest.mark.parametrize(
    ("phases", "route"),
    [
        ((), TAIL),
        ((WAITING,), TAIL),
        ((BUILT,), TAIL),
        ((BUILT, WAITING), TAIL),
        ((BUILDING,), STAGING),
        ((BUILT, BUILDING), STAGING),
        ((WAITING, BUILDING), STAGING),
    ],
)
def test_a_commit_is_kept_while_a_job_is_built(phases: tuple[JobPhase, ...], route: CommitRoute) -> None:
    assert route_commit(phases) is route


@pytest.mark.parametrize(
    ("phases", "route"),
    [((), TAIL), ((WAITING,), TAIL), ((BUILT,), STAGING), ((BUILT, WAITING), STAGING), ((BUILDING,), STAGING)],
)
def test_a_repair_is_kept_where_a_job_tails(phases: tuple[JobPhase, ...], route: CommitRoute) -> None:
    assert route_commit(phases, repair=True) is route


@pytest.mark.parametrize(
    ("operation", "user_metadata"),
    [
        ("RESTORE", ""),
        ("MERGE", REPAIR_MARK),
        ("WRITE", '{"iscp.repair": true}'),
        ("WRITE", '{"why": "rates of May", "iscp.repair": true}'),
    ],
)
def test_what_is_a_repair(operation: str, user_metadata: str) -> None:
    assert is_repair(operation, user_metadata)


@pytest.mark.parametrize(
    ("operation", "user_metadata"),
    [
        ("MERGE", ""),
        ("restore", ""),
        ("WRITE", "after the iscp.repair of May"),
        ("WRITE", '{"iscp.repair": false}'),
        ("WRITE", '{"iscp.repair": "true"}'),
        ("WRITE", '{"note": {"iscp.repair": true}}'),
        ("WRITE", '["iscp.repair"]'),
        ("WRITE", '{"iscp.repair": true'),
        ("WRITE", '"iscp.repair"' + "[" * 100_000),
    ],
)
def test_what_is_none(operation: str, user_metadata: str) -> None:
    assert not is_repair(operation, user_metadata)
