"""What is read of a loop is read by its own thread, and comes as it is found, refused, or not in time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from iscp.core.values.errors import NotOwner, QueueFull
from iscp.runtime.loop.loop_query import query_loop
from iscp.runtime.loop.threads import THREADS

WAIT_S = 10.0


def aside(act: Callable[[], None]) -> None:
    threading.Thread(target=act, name="the loop").start()


def test_the_answer_is_found_on_the_loop_s_thread() -> None:
    assert query_loop(aside, lambda: threading.current_thread().name, WAIT_S, THREADS) == "the loop"


def test_a_loop_that_answers_at_once_holds_nobody_up() -> None:
    assert query_loop(lambda act: act(), lambda: 7, WAIT_S, THREADS) == 7


def test_what_the_read_raises_is_the_caller_s() -> None:
    def read() -> None:
        raise NotOwner("another leads")

    with pytest.raises(NotOwner, match="another leads"):
        query_loop(aside, read, WAIT_S, THREADS)


def test_a_full_loop_takes_no_read() -> None:
    def put(act: Callable[[], None]) -> None:
        raise QueueFull("the loop does not keep up")

    with pytest.raises(QueueFull):
        query_loop(put, lambda: 7, WAIT_S, THREADS)


def test_a_loop_that_does_not_answer_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        query_loop(lambda act: None, lambda: 7, 0.01, THREADS)
