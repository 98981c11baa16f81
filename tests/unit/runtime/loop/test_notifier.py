"""Wake-ups coalesce, and none is missed."""

from __future__ import annotations

import threading
import time

from iscp.runtime.loop.notifier import Notifier


def test_many_calls_wake_once() -> None:
    notifier = Notifier()
    for _ in range(5):
        notifier.notify()
    assert notifier.wait(0)
    assert not notifier.wait(0)


def test_a_call_before_the_wait_is_not_missed() -> None:
    notifier = Notifier()
    notifier.notify()
    began_s = time.monotonic()
    assert notifier.wait(30)
    assert time.monotonic() - began_s < 10


def test_a_waiter_is_woken_from_another_thread() -> None:
    notifier = Notifier()
    threading.Timer(0.05, notifier.notify).start()
    assert notifier.wait(None)


def test_of_ten_thousand_calls_the_last_is_always_seen() -> None:
    notifier, given, taken = Notifier(), [0], 0

    def give() -> None:
        for _ in range(2_500):
            with lock:
                given[0] += 1
            notifier.notify()

    lock = threading.Lock()
    givers = [threading.Thread(target=give) for _ in range(4)]
    for giver in givers:
        giver.start()
    while taken < 10_000:
        assert notifier.wait(10), "a call was missed"
        with lock:
            taken = given[0]
    for giver in givers:
        giver.join()
