"""Sinks are kept for as long as they are in use, and no more than a bound."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from iscp.runtime.sinks import SINKS_KEPT_MAX, SinkPool


class Opened:
    def __init__(self) -> None:
        self.uris: list[str] = []

    def __call__(self, uri: str) -> object:
        self.uris.append(uri)
        return object()


def test_a_target_has_one_sink() -> None:
    opened = Opened()
    pool = SinkPool(opened, opened)  # type: ignore[arg-type]
    assert pool("/x") is pool("/x")
    assert pool("/y") is not pool("/x")
    assert opened.uris == ["/x", "/y"]


def test_each_range_of_a_feed_has_a_sink_of_its_own() -> None:
    pool = SinkPool(Opened(), Opened())  # type: ignore[arg-type]
    assert pool.feed("/x", 2) is pool.feed("/x", 2)
    assert pool.feed("/x", 3) is not pool.feed("/x", 2)


def test_the_longest_unused_is_given_up_first() -> None:
    opened = Opened()
    pool = SinkPool(opened, opened)  # type: ignore[arg-type]
    for number in range(SINKS_KEPT_MAX):
        pool(f"/{number}")
    pool("/0")
    pool("/new")
    opened.uris.clear()
    pool("/0")
    pool("/2")
    assert opened.uris == []
    pool("/1")
    assert opened.uris == ["/1"]


def test_threads_that_ask_at_once_get_the_same_sink() -> None:
    opened, threads = Opened(), 8
    pool, together = SinkPool(opened, opened), threading.Barrier(threads)  # type: ignore[arg-type]

    def ask(number: int) -> int:
        together.wait()
        return id(pool("/x"))

    with ThreadPoolExecutor(threads) as executor:
        assert len(set(executor.map(ask, range(threads)))) == 1
    assert opened.uris == ["/x"]
