"""Notifications of what happens to jobs while this node is the owner: the thread that sees it, and those that send it
to receivers by HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.requests.job_views import JobViews
from iscp.model.api.api_requests import JobView
from iscp.model.job.job_row import Notification, Origin
from iscp.model.values.errors import ConfigurationError, IscpError, PermanentError, Unavailable
from iscp.notices.notifications import DeliveryQueue, JobAlerts
from iscp.ports.system import Clock, Threads, Webhook
from iscp.system.http_exchange import exchange, failure_words
from iscp.system.small_files import read_named_file
from iscp.system.threads import THREADS

# --- the thread of one receiver ---------------------------------------------------------------------------------------
# However slow a receiver is, nobody else waits for it.

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


# --- the watch of all jobs --------------------------------------------------------------------------------------------

SWEEP_S = 10.0
"""Least seconds between two sweeps of all jobs for those that have become late."""

SWEEP_PAUSE_FACTOR = 20.0
"""A sweep is followed by a pause of so many times what it took: sweeps of very many jobs come more rarely."""

TABLES_AT_ONCE_MAX = 100
"""Tables that one turn of the watch reads, for which it holds the book; the others wait for the next turn."""

OWNER_RETRY_S = 1.0
"""Pause before the watch reads again what an owner under load did not answer."""

WATCH_JOIN_S = 2.0
"""Seconds that the end waits for the thread of the watch; then it is left."""


@dataclass(frozen=True, slots=True)
class AlertSettings:
    cluster: str
    late_after_s: float = 0.0


class AlertWatch:
    """The thread that sees what happens to jobs while this node is the owner, and has it notified.

    A job whose row has changed is read at once. No row shows that a job becomes late, so all are read again and again,
    at most for a small part of a core. Without senders the watch does nothing.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        views: JobViews,
        senders: Sequence[WebhookSender],
        settings: AlertSettings,
        clock: Clock,
        on_broken: Callable[[Exception], None],
        threads: Threads = THREADS,
    ) -> None:
        self._owner = owner
        self._views = views
        self._senders = senders
        self._settings = settings
        self._clock = clock
        self._on_broken = on_broken
        self._writer: LogWriter | None = None
        self._alerts: JobAlerts | None = None
        self._changed_tables: dict[str, None] = {}
        self._sweep: list[str] = []
        self._sweep_took_s = self._sweep_at_s = 0.0
        self._awake = self._closing = False
        (self._wake,) = threads.conditions(1)
        self._thread = threads.thread("iscp-alerts", self._run)

    def start(self) -> None:
        if not self._senders:
            return
        for sender in self._senders:
            sender.start()
        self._thread.start()

    def close(self) -> None:
        with self._wake:
            self._closing = self._awake = True
            self._wake.notify()
        if self._thread.is_alive() and not self._thread.is_current():
            self._thread.join(WATCH_JOIN_S)
        for sender in self._senders:
            sender.close()

    def on_tables(self, table_ids: Iterable[str]) -> None:
        """Note that jobs on these changed, or a term has begun or ended. Runs on the owner's loop; never blocks."""
        if not self._senders:
            return
        with self._wake:
            self._changed_tables.update(dict.fromkeys(table_ids))
            self._awake = True
            self._wake.notify()

    def counters(self) -> Mapping[str, int]:
        if not self._senders:
            return {}
        return {
            "webhooks_posted": sum(each.posted for each in self._senders),
            "webhooks_waiting": sum(each.waiting for each in self._senders),
            "webhooks_dropped": sum(each.dropped for each in self._senders),
        }

    # --- the watch's thread --------------------------------------------------------------------------------------

    def turn(self) -> float | None:
        """Read some of what is to be read; answers how long there is nothing to do (None: until it is woken)."""
        try:
            self._follow_term()
            return self._read_jobs()
        except IscpError as error:  # the owner's loop is under load, or ends the term
            log.info("alerts.retried", extra={"error": str(error)})
            return OWNER_RETRY_S

    def _follow_term(self) -> None:
        writer = self._owner.writer
        if writer is self._writer:
            return
        self._writer = self._alerts = None
        for sender in self._senders:
            sender.clear()
        if writer is not None:
            writer, owner_rev = self._owner.query(lambda loop: (loop.writer, loop.machine.owner_rev))
            if writer is None:
                return  # the term has ended meanwhile
            origin = Origin(self._settings.cluster, self._owner.machine.node_id, owner_rev)
            self._writer, self._alerts = writer, JobAlerts(origin, self._settings.late_after_s)
            self._sweep, self._sweep_at_s = [], self._clock.monotonic_s()
            self._send([self._alerts.begin(self._clock.now_s())])

    def _read_jobs(self) -> float | None:
        if self._writer is None or self._alerts is None:
            return None
        began_s = self._clock.monotonic_s()
        if not self._sweep and began_s >= self._sweep_at_s:
            self._sweep, self._sweep_took_s = self._writer.read(lambda book: book.tables()), 0.0
        swept = self._sweep[-TABLES_AT_ONCE_MAX:]
        with self._wake:  # what moves from now on is read again
            changed = [
                self._changed_tables.popitem()[0] for _ in range(min(len(self._changed_tables), TABLES_AT_ONCE_MAX))
            ]
        try:
            self._observe(self._writer, self._alerts, list(dict.fromkeys((*changed, *swept))))
        except IscpError:
            with self._wake:
                self._changed_tables.update(dict.fromkeys(changed))
            raise
        now_s = self._clock.monotonic_s()
        if swept or now_s >= self._sweep_at_s:
            del self._sweep[-TABLES_AT_ONCE_MAX:]
            self._sweep_took_s += now_s - began_s
            self._sweep_at_s = now_s + max(SWEEP_S, SWEEP_PAUSE_FACTOR * self._sweep_took_s)
        return 0.0 if self._sweep or self._changed_tables else self._sweep_at_s - now_s

    def _observe(self, writer: LogWriter, alerts: JobAlerts, tables: Sequence[str]) -> None:
        if not tables:  # of which the book would give all
            return
        views = self._views.of(writer.read(lambda book: book.select(tables=tables)))
        if self._owner.writer is not writer:
            return
        by_table: dict[str, list[JobView]] = {table_id: [] for table_id in tables}
        for view in views:
            by_table[view.table_id].append(view)
        for table_id, jobs in by_table.items():
            self._send(alerts.observe(table_id, jobs, self._clock.now_s()))

    def _send(self, notifications: Sequence[Notification]) -> None:
        for notification in notifications:
            for sender in self._senders:
                sender.add(notification)

    def _run(self) -> None:
        try:
            while not self._closing:
                pause_s = self.turn()
                with self._wake:
                    if pause_s != 0.0:
                        self._wake.wait_for(lambda: self._awake, pause_s)
                    self._awake = False
        except Exception as error:
            log.exception("alerts.broken")
            self._on_broken(error)


# --- receivers by HTTP ------------------------------------------------------------------------------------------------
# What is sent to a receiver is signed. Only the status line of the answer is read, so that a receiver can neither delay
# the sender nor fill its memory.

POST_TIMEOUT_S = 10.0
"""How long an attempt to notify a receiver may take in all, until its status has come; then it fails."""

STATUS_LINE_BYTES_MAX = 4_096
"""Bytes of a receiver's status line; if it is longer the attempt fails. The rest of the answer is not read."""

SECRET_BYTES_MAX = 4_096
"""Bytes of the file with the secret; a larger one is refused at the node's start."""

SIGNATURE_HEADER = "iscp-signature"
ID_HEADER = "iscp-notification-id"

RETRIED_STATUSES = frozenset({408, 429})


def read_secret(file: str) -> bytes:
    """Return the content of the file, without blanks around it; empty: no file is named. Raises ConfigurationError."""
    if not file:
        return b""
    secret = read_named_file(file, "notify.secret_file", SECRET_BYTES_MAX)
    if not secret.strip() or len(secret) > SECRET_BYTES_MAX:
        raise ConfigurationError(
            f"{file} is empty, or has more than {SECRET_BYTES_MAX} bytes",
            about="notify.secret_file",
            remedy="Write a secret into it, as `openssl rand -hex 32` makes one",
        )
    return secret.strip()


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    """Return `t=` Unix seconds, and `v1=` the HMAC-SHA256 of these, a dot and the body, in hexadecimal digits."""
    digest = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


class HttpWebhook:
    """The port `Webhook` on a URL that `url_fault` has nothing against."""

    def __init__(self, name: str, url: str, secret: bytes, clock: Clock, timeout_s: float = POST_TIMEOUT_S) -> None:
        self._name = f"{name} ({urlsplit(url).hostname})"
        self._url = url
        self._secret = secret
        self._clock = clock
        self._timeout_s = timeout_s

    @property
    def name(self) -> str:
        return self._name

    def post(self, notification: Notification) -> None:
        body = notification.to_json()
        try:
            answer = exchange(
                "POST",
                self._url,
                body,
                self._headers(notification.id, body),
                timeout_s=self._timeout_s,
                bytes_max=STATUS_LINE_BYTES_MAX,
                status_alone=True,
            )
        except OSError as error:
            raise Unavailable(f"{self._name} does not accept notifications: {failure_words(error)}") from error
        if answer.good:
            return
        message = f"{self._name} answers {answer.status}"
        raise PermanentError(message) if _refuses(answer.status) else Unavailable(message)

    def _headers(self, notification_id: str, body: bytes) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "user-agent": "iscp",
            ID_HEADER: notification_id,
        }
        if self._secret:
            headers[SIGNATURE_HEADER] = signature(self._secret, int(self._clock.now_s()), body)
        return headers


def webhooks_of(urls: tuple[str, ...], secret_file: str, clock: Clock) -> list[HttpWebhook]:
    """Return one for each URL of `notify.webhooks`. Raises ConfigurationError where the secret cannot be read."""
    secret = read_secret(secret_file)
    return [HttpWebhook(f"notify.webhooks.{number}", url, secret, clock) for number, url in enumerate(urls)]


def _refuses(status: int) -> bool:
    return 300 <= status < 500 and status not in RETRIED_STATUSES
