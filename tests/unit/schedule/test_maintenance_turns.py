"""Which recurring work runs next: fair between accounts, past items that hang, each in time whatever others do."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.settings.config import BackoffConfig, MaintenanceConfig
from iscp.model.values.errors import PermanentError, TemporaryError
from iscp.schedule.maintenance_turns import LONG_MAX, LONG_OF_KIND_MAX, SLOT_S, MaintenanceTurns

INTERVAL_S, TIMEOUT_S, WAIT_S = 1.0, 60.0, 5.0
BACKOFF = BackoffConfig(base_s=2.0, cap_s=8.0, quarantine_after=3, quarantine_s=100.0)


def turns(concurrency: int = 2, timeout_s: float = TIMEOUT_S) -> MaintenanceTurns[str]:
    return MaintenanceTurns(
        INTERVAL_S, MaintenanceConfig(concurrency=concurrency, timeout_s=timeout_s), BACKOFF, lambda: 0.0
    )


def test_no_more_are_begun_than_there_are_slots_and_the_next_when_one_has_ended() -> None:
    made = turns()
    for item in "abc":
        made.add(item, "x", "k", 0.0)
    assert made.turn(0.0).begin == ("a", "b")
    assert made.turn(0.0).begin == ()
    assert made.next_due_s() == SLOT_S
    made.end("a", WAIT_S, 1.0)
    assert made.turn(1.0).begin == ("c",)


def test_two_that_take_long_leave_their_slots_to_the_others_and_are_given_up_later() -> None:
    made = turns()
    for item in "abc":
        made.add(item, "x", "k", 0.0)
    made.turn(0.0)
    assert made.turn(SLOT_S - 0.1).begin == ()
    assert made.turn(SLOT_S).begin == ("c",)
    made.end("c", WAIT_S, SLOT_S)
    made.end("b", WAIT_S, TIMEOUT_S - 1.0)  # long, and well: that counts
    assert (made.running, made.hanging) == (1, 0)
    assert made.turn(TIMEOUT_S).given_up == ("a",)
    assert (made.running, made.hanging) == (1, 1), "c has come again"
    made.end("a", WAIT_S, TIMEOUT_S)  # what it answers so late counts for nothing
    figures = made.figures("a", TIMEOUT_S, 0.0)
    assert figures is not None
    assert (figures.completed, figures.timeout, figures.next_at_s) == (0, 1, 2.0)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_without_a_timeout_nothing_is_given_up(timeout_s: float) -> None:
    made = turns(timeout_s=timeout_s)
    made.add("a", "x", "k", 0.0)
    assert made.turn(0.0).begin == ("a",)
    assert made.turn(1e9).given_up == ()
    assert made.next_due_s() is None


def test_an_account_with_many_waits_behind_one_with_few() -> None:
    made = turns(concurrency=1)
    for number in range(10):
        made.add(f"many{number}", "many", "k", 0.0)
    for item in ("few0", "few1"):
        made.add(item, "few", "k", 0.0)
    order: list[str] = []
    while begin := made.turn(0.0).begin:
        order += begin
        made.end(begin[0], 1_000.0, 0.0)
    assert order.index("few1") < 4
    assert len(order) == 12


def test_a_kind_of_which_too_many_hang_is_not_begun_until_one_ends_and_others_are() -> None:
    made = turns()
    bad = [f"bad{number}" for number in range(LONG_OF_KIND_MAX + 3)]
    for item in bad:
        made.add(item, "x", "bad", 0.0)
    now_s, begun = 0.0, list[str]()
    for _ in bad:
        begun += made.turn(now_s).begin
        now_s += TIMEOUT_S
    assert made.hanging == LONG_OF_KIND_MAX
    assert begun[:LONG_OF_KIND_MAX] == bad[:LONG_OF_KIND_MAX]
    refused = made.figures(bad[-1], now_s, 0.0)
    assert refused is not None
    assert refused.rejected > 0
    assert "hang" in refused.error_msg
    made.add("good", "y", "good", now_s)
    assert "good" in made.turn(now_s).begin
    made.end(bad[0], WAIT_S, now_s)
    assert set(bad[LONG_OF_KIND_MAX:]) & {item for step in range(40) for item in made.turn(now_s + step).begin}


def test_of_a_kind_that_only_takes_long_the_next_wait_in_line() -> None:
    made = turns()
    for number in range(LONG_OF_KIND_MAX + 2):
        made.add(str(number), "x", "slow", 0.0)
    begun = [item for step in range(5) for item in made.turn(step * SLOT_S).begin]
    assert begun == [str(number) for number in range(LONG_OF_KIND_MAX)]
    waits = made.figures("5", 40.0, 0.0)
    assert waits is not None
    assert (waits.waiting, waits.rejected) == (1, 0)
    made.add("other", "x", "quick", 40.0)
    assert made.turn(40.0).begin == ("other",)
    made.end("0", WAIT_S, 41.0)
    assert made.turn(41.0).begin == ("4",)


def test_threads_are_bounded_however_many_kinds_hang() -> None:
    made = turns(concurrency=10)
    for number in range(3 * LONG_MAX):
        made.add(str(number), "x", f"k{number}", 0.0)
    for step in range(100):
        made.turn(step * TIMEOUT_S)
    assert LONG_MAX <= made.hanging + made.running <= LONG_MAX + 10


def test_one_given_up_while_it_is_queued_is_not_begun() -> None:
    made = turns(concurrency=1)
    made.add("a", "x", "k", 0.0)
    made.add("b", "x", "k", 0.0)
    made.turn(0.0)
    made.remove("b")
    made.end("a", WAIT_S, 0.0)
    assert made.turn(0.0).begin == ()
    assert made.figures("b", 0.0, 0.0) is None


DOES = st.sampled_from(["done", "fails", "breaks", "hangs", "ends late"])


@given(st.lists(DOES, min_size=1, max_size=LONG_OF_KIND_MAX), st.integers(1, 3))
def test_whatever_some_do_every_other_is_done_at_its_time(bad: list[str], concurrency: int) -> None:
    """Items that end at once run within their own wait plus the time for which others may keep their slots."""
    made = turns(concurrency)
    good = ["g0", "g1", "g2"]
    kind = {**{f"b{number}": "bad" for number in range(len(bad))}, **dict.fromkeys(good, "good")}
    does = {f"b{number}": what for number, what in enumerate(bad)}
    for item, of in kind.items():
        made.add(item, of, of, 0.0)
    last, running = dict.fromkeys(good, 0.0), Counter[str]()
    for step in range(400):
        now_s = step * 0.5
        turn = made.turn(now_s)
        for item in turn.given_up:
            if does[item] == "ends late":
                running[item] -= 1
                made.end(item, 0.1, now_s)
        for item in turn.begin:
            assert not running[item], "never twice at a time"
            match does.get(item, "done"):
                case "done":
                    last[item] = now_s
                    made.end(item, WAIT_S, now_s)
                case "fails":
                    made.end(item, TemporaryError("away"), now_s)
                case "breaks":
                    made.end(item, PermanentError("broken"), now_s)
                case _:
                    running[item] += 1
        longest_s = WAIT_S + SLOT_S * (len(bad) // concurrency + 1)
        assert all(now_s - last[item] <= longest_s for item in good), (now_s, last)
