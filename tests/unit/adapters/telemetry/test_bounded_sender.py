"""Nobody waits for a receiver: what waits is bounded, attempts are, and everything that is not sent is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from iscp.adapters.telemetry.bounded_sender import BoundedSender, SenderBounds
from iscp.core.values.errors import PermanentError, Unavailable
from tests.fakes.waiting import until

BOUNDS = SenderBounds(waiting_max=100, batch_max=4, linger_s=0.02, attempts=3, pause_s=0.001)
LONG_S = 60.0


class Receiver:
    """`answers` are what the next batches are answered with: how many are refused, or an error."""

    def __init__(self, answers: Sequence[int | Exception] = ()) -> None:
        self.batches: list[list[int]] = []
        self.attempts = 0
        self._answers = list(answers)

    def send(self, batch: Sequence[int]) -> int:
        self.attempts += 1
        answer = self._answers.pop(0) if self._answers else 0
        if isinstance(answer, Exception):
            raise answer
        self.batches.append(list(batch))
        return answer


def sender_to(send: Callable[[Sequence[int]], int], bounds: SenderBounds = BOUNDS) -> BoundedSender[int]:
    return BoundedSender("test", send, bounds)


def test_items_are_sent_in_order_and_in_bounded_batches() -> None:
    receiver = Receiver()
    sender = sender_to(receiver.send)
    for number in range(10):
        sender.put(number)
    assert sender.close(LONG_S)
    assert [each for batch in receiver.batches for each in batch] == list(range(10))
    assert max(map(len, receiver.batches)) <= BOUNDS.batch_max
    assert (sender.sent, sender.dropped) == (10, 0)


def test_a_batch_is_tried_again_and_then_dropped() -> None:
    receiver = Receiver([Unavailable("away"), Unavailable("away"), 0, *[Unavailable("away")] * BOUNDS.attempts])
    sender = sender_to(receiver.send)
    sender.put(1)
    until(lambda: sender.sent == 1)
    sender.put(2)
    until(lambda: sender.dropped == 1)
    assert receiver.attempts == 3 + BOUNDS.attempts
    assert sender.close(LONG_S)
    assert receiver.batches == [[1]]


def test_what_is_refused_for_good_is_not_tried_again() -> None:
    receiver = Receiver([PermanentError("answers 400"), RuntimeError("broken"), 1])
    sender = sender_to(receiver.send)
    for number in range(3):
        sender.put(number)
        until(lambda number=number: sender.dropped == number + 1)  # type: ignore[misc]
    assert receiver.attempts == 3
    assert sender.sent == 0
    sender.put(4)
    until(lambda: sender.sent == 1)
    assert sender.close(LONG_S)


def test_no_one_waits_for_a_receiver_that_hangs_and_the_surplus_is_dropped() -> None:
    over = threading.Event()

    def hang(batch: Sequence[int]) -> int:
        over.wait(LONG_S)
        return 0

    sender = sender_to(hang, SenderBounds(waiting_max=5, batch_max=1, linger_s=0.0, attempts=1, pause_s=0.0))
    began_s = time.monotonic()
    sender.put(0)
    until(lambda: sender.waiting == 0)
    for number in range(1, 21):
        sender.put(number)
    assert sender.dropped == 15
    assert not sender.close(0.05)
    assert sender.dropped == 20
    assert time.monotonic() - began_s < LONG_S / 2
    sender.put(21)
    assert sender.dropped == 21
    over.set()
    until(lambda: sender.sent == 1)


def test_a_close_cuts_the_pauses_between_attempts_short() -> None:
    receiver = Receiver([Unavailable("away")] * 9)
    sender = sender_to(receiver.send, SenderBounds(100, 4, 0.0, attempts=9, pause_s=LONG_S))
    sender.put(1)
    until(lambda: receiver.attempts == 1)
    began_s = time.monotonic()
    sender.put(2)
    assert sender.close(LONG_S / 2)
    assert time.monotonic() - began_s < LONG_S / 4
    assert (sender.dropped, receiver.attempts) == (2, 2)
