"""Rings are built off the owner's thread, and of several requested only the last has to be built."""

from __future__ import annotations

import threading

from iscp.core.values.ring import Ring
from iscp.runtime.owner.ring_builder import RingBuilder

WAIT_S = 10.0


def test_what_is_requested_while_another_is_built_leaves_out_what_was_requested_before() -> None:
    built: list[tuple[str, ...]] = []
    threads: set[str] = set()
    busy, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def take(ring: Ring) -> None:
        threads.add(threading.current_thread().name)
        built.append(ring.node_ids)
        busy.set()
        assert go_on.wait(WAIT_S)
        if "c" in ring.node_ids:
            done.set()

    builder = RingBuilder(take, lambda error: None)
    builder.build(frozenset("a"))
    assert busy.wait(WAIT_S)
    builder.build(frozenset("ab"))
    builder.build(frozenset("abc"))
    go_on.set()
    assert done.wait(WAIT_S)
    builder.close()
    assert built == [("a",), ("a", "b", "c")]
    assert threading.current_thread().name not in threads


def test_what_goes_wrong_is_reported() -> None:
    broken: list[Exception] = []
    told = threading.Event()

    def fail(ring: Ring) -> None:
        raise ValueError("no room")

    def note(error: Exception) -> None:
        broken.append(error)
        told.set()

    builder = RingBuilder(fail, note)
    builder.build(frozenset("a"))
    assert told.wait(WAIT_S)
    builder.close()
    assert [str(error) for error in broken] == ["no room"]
