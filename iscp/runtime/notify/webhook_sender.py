"""The thread that sends notifications to one receiver: however slow that is, nobody else waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from iscp.coordination.notify.delivery_queue import DeliveryQueue
from iscp.core.job.notification import Notification
from iscp.core.values.errors import IscpError, PermanentError
from iscp.ports.system import Clock, Threads
from iscp.ports.webhook import Webhook
from iscp.runtime.loop.threads import THREADS

log = logging.getLogger(__name__)


class WebhookSender:
    """Send notifications to one receiver. `posted` and `dropped` count since the start of the node."""

    def __init__(
        self,
        webhook: Webhook,
        clock: Clock,
        draw: Callable[[], float],
        on_broken: Callable[[Exception], None],
        threads: Threads = THREADS,
    ) -> None:
        """`draw` gives numbers that are uniform in [0, 1)."""
        self._webhook = webhook
        self._clock = clock
        self._draw = draw
        self._on_broken = on_broken
        self._queue = DeliveryQueue()
        self.posted = self.dropped = 0
        self._closing = False
        (self._wake,) = threads.conditions(1)
        self._thread = threads.thread("iscp-webhook", self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Close without sending what waits: another owner repeats what is still true. An attempt under way ends by
        itself.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        self.clear()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def add(self, notification: Notification) -> None:
        """Add a notification to be sent; this never blocks."""
        with self._wake:
            dropped = self._queue.add(notification)
            self._wake.notify()
        if dropped is not None:
            self._note_dropped(1, "too many wait", dropped)

    def clear(self) -> None:
        """The term has ended, or the node stops."""
        with self._wake:
            count = self._queue.clear()
        if count:
            self._note_dropped(count, "this node is not the owner any more")

    def turn(self) -> bool:
        """Send one if one is due; False: none was."""
        with self._wake:
            notification = self._queue.next(self._clock.monotonic_s())
        if notification is not None:
            self._send(notification)
        return notification is not None

    def _send(self, notification: Notification) -> None:
        try:
            # Without the lock: however long the receiver takes, `add` must not wait.
            self._webhook.post(notification)
        except IscpError as error:
            refused, draw = isinstance(error, PermanentError), self._draw()
            with self._wake:
                given_up = self._queue.fail(notification, refused=refused, now_s=self._clock.monotonic_s(), draw=draw)
            log.warning("webhook.failed", extra={"webhook": self._webhook.name, "error": str(error)})
            if given_up:
                self._note_dropped(1, "the receiver refuses it", notification)
        else:
            with self._wake:
                self._queue.accept(notification)
            self.posted += 1

    def _note_dropped(self, count: int, why: str, notification: Notification | None = None) -> None:
        with self._wake:
            self.dropped += count
        extra: dict[str, object] = {"webhook": self._webhook.name, "count": count, "why": why}
        if notification is not None:
            extra |= {"kind": notification.kind.value, "id": notification.id, "job_id": notification.job_id}
        log.warning("webhook.dropped", extra=extra)

    def _run(self) -> None:
        try:
            while not self._closing:
                if not self.turn():
                    self._wait()
        except Exception as error:
            log.exception("webhook.broken", extra={"webhook": self._webhook.name})
            self._on_broken(error)

    def _wait(self) -> None:
        with self._wake:
            pause_s = self._queue.pause_s(self._clock.monotonic_s())
            if not self._closing and pause_s != 0.0:
                self._wake.wait(pause_s)
