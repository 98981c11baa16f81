"""Sinks are kept for as long as they are in use, and no more than a bound."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from iscp.core.values.errors import StorageError
from iscp.runtime.iteration.sink_pool import SINKS_CACHED_MAX, SinkPool
from tests.fakes.clock import FakeClock
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.pipeline import FakeSource


class Opened:
    def __init__(self) -> None:
        self.uris: list[str] = []

    def __call__(self, uri: str) -> object:
        self.uris.append(uri)
        return object()


def new_pool(opened: Opened) -> SinkPool:
    return SinkPool(opened, lambda uri: uri, FakeClock(), ScriptedFailpoints(), FakeSource())  # type: ignore[arg-type]


def test_a_target_has_one_sink() -> None:
    opened = Opened()
    pool = new_pool(opened)
    assert pool.sink("/x") is pool.sink("/x")
    assert pool.sink("/y") is not pool.sink("/x")
    assert opened.uris == ["/x", "/y"]


def test_what_a_kind_keeps_has_a_name_of_its_own() -> None:
    opened = Opened()
    pool = new_pool(opened)
    assert pool.keep("range 2", "/x", opened) is pool.keep("range 2", "/x", opened)
    assert pool.keep("range 3", "/x", opened) is not pool.keep("range 2", "/x", opened)
    assert pool.sink("/x") is not pool.keep("range 2", "/x", opened)
    assert opened.uris == ["/x"] * 3


def test_a_target_that_is_refused_is_not_opened_and_not_kept() -> None:
    opened, refused = Opened(), ["/x"]

    def check(uri: str) -> str:
        if refused:
            raise StorageError(refused.pop())
        return uri

    pool = SinkPool(opened, check, FakeClock(), ScriptedFailpoints(), FakeSource())  # type: ignore[arg-type]
    with pytest.raises(StorageError):
        pool.keep("feed", "/x", opened)
    assert opened.uris == []
    assert pool.keep("feed", "/x", opened) is pool.keep("feed", "/x", opened)


def test_a_target_whose_check_hangs_holds_up_no_other() -> None:
    let_go, begun = threading.Event(), threading.Event()

    def check(uri: str) -> str:
        if uri == "/hung":
            begun.set()
            assert let_go.wait(20.0)
        return uri

    opened = Opened()
    pool = SinkPool(opened, check, FakeClock(), ScriptedFailpoints(), FakeSource())  # type: ignore[arg-type]
    with ThreadPoolExecutor(2) as threads:
        hung = threads.submit(pool.sink, "/hung")
        assert begun.wait(20.0)
        threads.submit(pool.sink, "/x").result(timeout=10.0)
        assert not hung.done()
        let_go.set()
        assert hung.result(timeout=20.0) is pool.sink("/hung")


def test_the_longest_unused_is_given_up_first() -> None:
    opened = Opened()
    pool = new_pool(opened)
    for number in range(SINKS_CACHED_MAX):
        pool.sink(f"/{number}")
    pool.sink("/0")
    pool.sink("/new")
    opened.uris.clear()
    pool.sink("/0")
    pool.sink("/2")
    assert opened.uris == []
    pool.sink("/1")
    assert opened.uris == ["/1"]


def test_threads_that_open_it_at_once_get_the_same_sink() -> None:
    opened, threads = Opened(), 8
    pool, together = new_pool(opened), threading.Barrier(threads)

    def ask(number: int) -> int:
        together.wait()
        return id(pool.sink("/x"))

    with ThreadPoolExecutor(threads) as executor:
        assert len(set(executor.map(ask, range(threads)))) == 1
    assert opened.uris == ["/x"]
