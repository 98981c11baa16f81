"""Searches have threads of their own: so many at a time, so many of each account, and each only so long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from iscp.core.values.errors import InvalidRequest, QueueFull, TimedOut, Unavailable
from iscp.ports.access.callers import still_wanted, want_while
from iscp.runtime.reads.account_turns import AccountTurns, TurnBounds
from tests.fakes.waiting import until


class Searched:
    """Turns of three at once, two of an account; searches run until `held` is set."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        self.turns = AccountTurns(TurnBounds(3, 2, timeout_s), "search", "search", "Search for less")
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


def test_what_hangs_takes_its_own_accounts_share_and_no_turn_of_others(tmp_path: Path) -> None:
    """Pipes in the places of files of two accounts hold as many threads as there are turns."""
    turns = AccountTurns(TurnBounds(4, 2, 0.3), "read", "read", "Retry")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(8) as callers:
        hanging = [callers.submit(turns.run, account, pipe.read_bytes) for account in ("a", "a", "b", "b")]
        for future in hanging:
            with pytest.raises(TimedOut, match="took too long"):
                future.result(10)
        assert turns.hanging() == 4
        assert turns.run("c", lambda: "of c") == "of c"
        with pytest.raises(QueueFull, match="2 others of the account hang"):
            turns.run("a", lambda: "of a")
        pipe.write_bytes(b"")  # all of them end
        until(lambda: not turns.hanging())
        assert turns.run("a", lambda: "of a") == "of a"


def test_beyond_the_bound_of_threads_that_hang_turns_are_kept() -> None:
    turns = AccountTurns(TurnBounds(2, 2, 0.5, hanging_max=1), "read", "read", "Retry")
    held = threading.Event()
    try:
        for account in ("a", "b"):
            with pytest.raises(TimedOut):
                turns.run(account, held.wait)
        assert turns.run("c", lambda: 1) == 1, "one of the two hanging reads takes no turn"
        with pytest.raises(TimedOut):
            turns.run("c", held.wait)
        with pytest.raises(TimedOut, match="did not get its turn"):
            turns.run("d", lambda: 1)
    finally:
        held.set()


def test_one_more_is_refused_at_once_where_nobody_waits(searched: Searched) -> None:
    turns = AccountTurns(TurnBounds(2, 1, 20.0, waits=False), "read", "read", "Retry")
    began = threading.Event()

    def work() -> bool:
        began.set()
        return searched.held.wait(20.0)

    with ThreadPoolExecutor(1) as caller:
        caller.submit(turns.run, "a", work)
        assert began.wait(20.0)
        with pytest.raises(QueueFull, match="too many others of the account"):
            turns.run("a", lambda: 1)
        assert turns.run("b", lambda: 1) == 1
        searched.held.set()


def test_a_read_has_the_context_of_its_caller() -> None:
    turns = AccountTurns(TurnBounds(2, 2, 20.0), "read", "read", "Retry")
    with want_while(lambda: False):
        assert turns.run("a", still_wanted) is False
    assert turns.run("a", still_wanted) is True


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
