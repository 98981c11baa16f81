"""Requests to one embedder are spread evenly, whoever makes them."""

from __future__ import annotations

import threading

import pytest

from iscp.index.embedding.request_pace import RequestPace
from tests.fakes.clock import FakeClock


def test_requests_that_come_at_once_are_spread() -> None:
    pace = RequestPace(4.0, FakeClock())
    assert [pace.reserve() for _ in range(4)] == pytest.approx([0.0, 0.25, 0.5, 0.75])


def test_time_that_passed_unused_is_not_made_up_for() -> None:
    clock = FakeClock()
    pace = RequestPace(2.0, clock)
    pace.reserve()
    clock.advance(60.0)
    assert [pace.reserve() for _ in range(3)] == pytest.approx([0.0, 0.5, 1.0])


def test_without_a_limit_nobody_waits() -> None:
    pace = RequestPace(0.0, FakeClock())
    assert {pace.reserve() for _ in range(100)} == {0.0}


def test_no_two_threads_have_the_same_place() -> None:
    pace, places = RequestPace(1.0, FakeClock()), list[float]()
    threads = [threading.Thread(target=lambda: places.extend(pace.reserve() for _ in range(100))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(places) == pytest.approx(list(range(800)))
