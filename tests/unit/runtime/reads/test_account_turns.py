"""Searches have threads of their own: so many at a time, so many of each account, and each only so long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from iscp.adapters.system.clock import SystemClock
from iscp.core.values.errors import InvalidRequest, TimedOut, Unavailable
from iscp.runtime.reads.account_turns import AccountTurns, TurnBounds
from tests.fakes.waiting import until


class Searched:
    """Turns of three at once, two of an account; searches run until `held` is set."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        self.turns = AccountTurns(TurnBounds(3, 2, timeout_s), SystemClock(), "search", "search", "Search for less")
        self.held = threading.Event()
        self.began: list[str] = []
        self.callers = ThreadPoolExecutor(20)

    def search(self, account: str, alive: Callable[[], bool] = lambda: True) -> Future[str]:
        def work() -> str:
            self.began.append(account)
            assert self.held.wait(20.0)
            return f"of {account}"

        return self.callers.submit(self.turns.run, account, work, alive)

    def close(self) -> None:
        self.held.set()
        self.turns.close()
        self.callers.shutdown()


@pytest.fixture
def searched() -> Iterator[Searched]:
    made = Searched()
    yield made
    made.close()


def test_an_account_takes_no_turn_of_others(searched: Searched) -> None:
    greedy = [searched.search("a") for _ in range(5)]
    until(lambda: searched.began == ["a", "a"])
    other = searched.search("b")
    until(lambda: searched.began == ["a", "a", "b"])
    late = searched.search("c")
    time.sleep(0.05)
    assert searched.began == ["a", "a", "b"]
    searched.held.set()
    assert [each.result(10) for each in (*greedy, other, late)] == ["of a"] * 5 + ["of b", "of c"]
    assert sorted(searched.began) == ["a"] * 5 + ["b", "c"]


def test_what_takes_too_long_is_given_up_and_keeps_its_turn_until_it_ends() -> None:
    searched = Searched(timeout_s=0.2)
    try:
        for future in [searched.search("a") for _ in range(2)]:
            with pytest.raises(TimedOut, match="took too long"):
                future.result(10)
        with pytest.raises(TimedOut, match="did not get its turn"):
            searched.search("a").result(10)
        assert searched.began == ["a", "a"]
        searched.held.set()
        until(lambda: searched.search("a").result(10) == "of a")
    finally:
        searched.close()


def test_whoever_is_gone_waits_no_longer(searched: Searched) -> None:
    gone = searched.search("a", lambda: False)
    with pytest.raises(Unavailable):
        gone.result(10)
    for _ in range(2):
        searched.search("b")
    until(lambda: searched.began.count("b") == 2)
    with pytest.raises(Unavailable):
        searched.search("b", lambda: False).result(10)
    assert searched.began.count("b") == 2


def test_a_node_that_stops_begins_no_search(searched: Searched) -> None:
    for _ in range(2):
        searched.search("a")
    until(lambda: len(searched.began) == 2)
    waiting = searched.search("a")
    searched.turns.close()
    with pytest.raises(Unavailable):
        waiting.result(10)
    with pytest.raises(Unavailable):
        searched.search("b").result(10)


@pytest.mark.parametrize("error", [InvalidRequest("is wrong", field="text"), TimeoutError("of the storage")])
def test_the_error_of_a_search_is_that_of_the_call(searched: Searched, error: Exception) -> None:
    def work() -> str:
        raise error

    with pytest.raises(type(error)) as raised:
        searched.turns.run("a", work, lambda: True)
    assert raised.value is error
