"""What waits for a receiver: its order, its bound, and when what failed is sent again."""

from __future__ import annotations

from iscp.coordination.notify.delivery_queue import (
    REFUSALS_MAX,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    WAITING_MAX,
    DeliveryQueue,
)
from iscp.core.job.notification import Notification, NotificationKind


def notification(number: int) -> Notification:
    return Notification(
        kind=NotificationKind.LATE, id=f"i-{number}", at_s=0.0, cluster="c", owner="n", owner_rev=1, job=f"j-{number}"
    )


ONE, TWO = notification(1), notification(2)


def test_they_are_sent_in_order_each_once_the_one_before_is_accepted() -> None:
    queue = DeliveryQueue()
    assert queue.next(0.0) is None
    assert queue.pause_s(0.0) is None
    queue.add(ONE)
    queue.add(TWO)
    assert queue.next(0.0) is ONE
    queue.accept(ONE)
    assert queue.next(0.0) is TWO
    queue.accept(TWO)
    assert queue.next(0.0) is None


def test_one_too_many_drops_the_oldest() -> None:
    queue = DeliveryQueue()
    assert [queue.add(notification(n)) for n in range(WAITING_MAX)] == [None] * WAITING_MAX
    dropped = queue.add(TWO)
    assert dropped is not None
    assert dropped.id == "i-0"
    assert len(queue) == WAITING_MAX
    queue.accept(dropped)  # it was under way: what is first now was not
    assert len(queue) == WAITING_MAX
    assert not queue.fail(dropped, refused=True, now_s=0.0, draw=0.0)
    assert len(queue) == WAITING_MAX


def test_pauses_double_up_to_the_longest_and_a_success_ends_them() -> None:
    queue, now_s, pauses = DeliveryQueue(), 0.0, []
    queue.add(ONE)
    for _ in range(12):
        assert queue.next(now_s) is ONE
        assert not queue.fail(ONE, refused=False, now_s=now_s, draw=0.0)
        assert queue.next(now_s) is None
        pauses.append(queue.pause_s(now_s))
        now_s += pauses[-1] or 0.0
    assert pauses[:4] == [RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S, 8 * RETRY_FIRST_S]
    assert pauses[-1] == RETRY_MAX_S
    queue.add(TWO)
    queue.accept(ONE)
    assert queue.next(now_s) is TWO


def test_a_receiver_that_fails_is_retried_without_end_and_one_that_refuses_is_not() -> None:
    queue = DeliveryQueue()
    queue.add(ONE)
    queue.add(TWO)
    assert not any(queue.fail(ONE, refused=False, now_s=0.0, draw=0.5) for _ in range(1_000))
    given_up = [queue.fail(ONE, refused=True, now_s=0.0, draw=0.5) for _ in range(REFUSALS_MAX)]
    assert given_up == [False] * (REFUSALS_MAX - 1) + [True]
    assert queue.next(RETRY_MAX_S) is TWO


def test_what_is_cleared_is_counted_and_what_comes_then_does_not_wait() -> None:
    queue = DeliveryQueue()
    queue.add(ONE)
    queue.add(TWO)
    queue.fail(ONE, refused=False, now_s=0.0, draw=0.0)
    assert queue.clear() == 2
    queue.add(TWO)
    assert queue.next(0.0) is TWO
