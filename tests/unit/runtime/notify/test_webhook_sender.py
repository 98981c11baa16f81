"""The thread of one receiver: what is sent, tried again, dropped and counted."""

from __future__ import annotations

import logging

import pytest

from iscp.coordination.notify.delivery_queue import REFUSALS_MAX, RETRY_FIRST_S, RETRY_MAX_S, WAITING_MAX
from iscp.core.job.notification import Notification, NotificationKind
from iscp.core.values.errors import PermanentError, Unavailable
from iscp.runtime.notify.webhook_sender import WebhookSender
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import until
from tests.fakes.webhooks import FakeWebhook

BROKEN: list[Exception] = []


def notification(number: int = 0) -> Notification:
    return Notification(
        kind=NotificationKind.FAILED, id=f"i-{number}", at_s=0.0, cluster="c", owner="n", owner_rev=1, job_id="id-1"
    )


def sender(webhook: FakeWebhook, clock: FakeClock) -> WebhookSender:
    return WebhookSender(webhook, clock, lambda: 0.0, BROKEN.append)


def test_what_fails_is_sent_again_after_its_pause_and_only_then() -> None:
    clock, webhook = FakeClock(), FakeWebhook(faults=[Unavailable("500"), Unavailable("500")])
    made = sender(webhook, clock)
    made.add(notification())
    for pause_s in (RETRY_FIRST_S, 2 * RETRY_FIRST_S):
        assert made.turn()
        assert not made.turn()
        clock.advance(pause_s)
    assert made.turn()
    assert [each.id for each in webhook.accepted] == ["i-0"]
    assert (made.posted, made.waiting, made.dropped) == (1, 0, 0)


def test_what_is_refused_again_and_again_is_dropped_with_an_event(caplog: pytest.LogCaptureFixture) -> None:
    clock, webhook = FakeClock(), FakeWebhook(faults=[PermanentError("404") for _ in range(REFUSALS_MAX)])
    made = sender(webhook, clock)
    made.add(notification(1))
    made.add(notification(2))
    with caplog.at_level(logging.WARNING):
        while made.waiting:
            made.turn()
            clock.advance(RETRY_MAX_S)
    assert [each.id for each in webhook.accepted] == ["i-2"]
    assert made.dropped == 1
    (dropped,) = [vars(each) for each in caplog.records if each.message == "webhook.dropped"]
    assert (dropped["webhook"], dropped["id"], dropped["kind"], dropped["count"]) == ("receiver", "i-1", "failed", 1)


def test_too_many_drop_the_oldest_with_an_event_each(caplog: pytest.LogCaptureFixture) -> None:
    made = sender(FakeWebhook(), FakeClock())
    with caplog.at_level(logging.WARNING):
        for number in range(WAITING_MAX + 2):
            made.add(notification(number))
    assert (made.waiting, made.dropped) == (WAITING_MAX, 2)
    assert [vars(each)["id"] for each in caplog.records if each.message == "webhook.dropped"] == ["i-0", "i-1"]


def test_the_thread_sends_what_is_added_and_drops_what_waits_at_the_end() -> None:
    webhook = FakeWebhook()
    made = sender(webhook, FakeClock())
    made.start()
    for number in range(3):
        made.add(notification(number))
    until(lambda: made.posted == 3)
    webhook.faults.append(Unavailable("gone"))
    made.add(notification(3))
    until(lambda: not webhook.faults)
    made.close()
    assert [each.id for each in webhook.accepted] == ["i-0", "i-1", "i-2"]
    assert (made.waiting, made.dropped) == (0, 1)
    assert BROKEN == []
