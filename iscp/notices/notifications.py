"""Notifications of jobs: which ones a change leads to, and the queue of those that wait for one receiver.

Neither part knows a clock, threads or the network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from iscp.model.api.api_requests import JobView
from iscp.model.job.job_row import JobState, Notification, NotificationKind, Origin, Reason
from iscp.model.settings.config import jittered_s
from iscp.model.values.errors import PERMANENT_FROM, ErrorCode

# --- conditions of jobs -----------------------------------------------------------------------------------------------
# Conditions open and close, and each is reported once.

CONDITIONS = (NotificationKind.LATE, NotificationKind.QUARANTINED, NotificationKind.FAILED)

DROPPED = "dropped"
"""The `state` of a notification that closes what was open of a job that is gone."""


@dataclass(slots=True)
class _Alerted:
    """A job of which something is, or was, open. `open`: ids by condition; `last`: where each opened, and how often."""

    view: JobView
    open: dict[NotificationKind, str] = field(default_factory=dict)
    last: dict[NotificationKind, tuple[str, int]] = field(default_factory=dict)


class JobAlerts:
    """The open conditions of all jobs. Invariant: of a condition of a job, opening and closing alternate.

    The alerts know no clock, no threads and no receivers. Each term has one of them; what was open in the term before
    is opened again.
    """

    def __init__(self, origin: Origin, late_after_s: float = 0.0) -> None:
        """`late_after_s`: a job that lags by more is late, whatever its own target lag is; 0: only that counts."""
        self._origin = origin
        self._late_after_s = late_after_s
        self._tables: dict[str, dict[str, _Alerted]] = {}

    def begin(self, now_s: float) -> Notification:
        """Return the first notification of a term: what follows repeats all that is open."""
        origin = self._origin
        parts = (NotificationKind.OWNER_CHANGED, origin.cluster, origin.owner, str(origin.owner_rev))
        return self._notification(NotificationKind.OWNER_CHANGED, _id_of(*parts), now_s)

    def observe(self, table_id: str, views: Sequence[JobView], now_s: float) -> list[Notification]:
        """Return the notifications that `views` lead to: all jobs on the table as they are now (Unix seconds);
        conditions of jobs that are gone are closed.
        """
        found: list[Notification] = []
        known = self._tables.get(table_id, {})
        present = {view.job_id for view in views}
        for job_id in [each for each in known if each not in present]:
            gone = known.pop(job_id)
            found += [self._close(gone, kind, now_s, DROPPED) for kind in CONDITIONS if kind in gone.open]
        for view in views:
            if view.reason is not Reason.PAUSED:  # what a person stopped neither fails nor does well
                found += self._take(view, now_s)
        if table_id in self._tables and not self._tables[table_id]:
            del self._tables[table_id]
        return found

    def _take(self, view: JobView, now_s: float) -> list[Notification]:
        found = []
        job = self._tables.get(view.table_id, {}).get(view.job_id)
        for kind in CONDITIONS:
            holds = self._holds(kind, view, now_s)
            if holds and (job is None or kind not in job.open):
                job = job or self._tables.setdefault(view.table_id, {}).setdefault(view.job_id, _Alerted(view))
                job.view = view
                found.append(self._open(job, kind, now_s))
            elif holds is False and job is not None and kind in job.open:
                job.view = view
                found.append(self._close(job, kind, now_s, view.state.value))
        return found

    def _holds(self, kind: NotificationKind, view: JobView, now_s: float) -> bool | None:
        """Return whether the condition is met; None if that is not known now, and the condition stays as it was."""
        if kind is NotificationKind.LATE:
            return self._is_late(view, now_s)
        if view.state is JobState.COMPLETED and view.status.error_code == ErrorCode.OK:
            return False
        if kind is NotificationKind.QUARANTINED:
            return True if view.reason is Reason.QUARANTINED else None
        return True if view.state is JobState.ERROR and view.status.error_code >= PERMANENT_FROM else None

    def _is_late(self, view: JobView, now_s: float) -> bool | None:
        if view.late:
            return True
        behind_s = view.lag_s if view.applied_version >= 0 else now_s - view.create_at_s
        if behind_s < 0:
            return None
        return 0 < self._late_after_s < behind_s

    def _open(self, job: _Alerted, kind: NotificationKind, now_s: float) -> Notification:
        where, count = _position(kind, job.view), 0
        if (last := job.last.get(kind)) is not None and last[0] == where:
            count = last[1] + 1
        job.last[kind] = where, count
        # Two that open at one position are two, in whichever term: then the id says in which.
        again = f"{self._origin.owner_rev}.{count}" if count else ""
        job.open[kind] = alert_id = _id_of(self._origin.cluster, kind, job.view.job_id, where, again)
        return self._of_job(kind, alert_id, job.view, now_s, alert_id=alert_id)

    def _close(self, job: _Alerted, kind: NotificationKind, now_s: float, state: str) -> Notification:
        alert_id = job.open.pop(kind)
        closing = _id_of(NotificationKind.RECOVERED, alert_id)
        return self._of_job(
            NotificationKind.RECOVERED, closing, job.view, now_s, alert_id=alert_id, came_from=kind, state=state
        )

    def _of_job(
        self,
        kind: NotificationKind,
        notification_id: str,
        view: JobView,
        now_s: float,
        *,
        alert_id: str,
        came_from: str = "",
        state: str = "",
    ) -> Notification:
        return self._notification(
            kind,
            notification_id,
            now_s,
            alert_id=alert_id,
            recovered_from=str(came_from),
            account=view.account,
            table=view.table,
            table_id=view.table_id,
            job=view.name,
            job_id=view.job_id,
            state=state or view.state.value,
            reason=view.reason.value,
            error_code=int(view.status.error_code),
            error_message=view.status.error_msg,
            lag_s=view.lag_s,
            applied_version=view.applied_version,
            source_version=view.source_version,
        )

    def _notification(
        self, kind: NotificationKind, notification_id: str, now_s: float, **of_job: object
    ) -> Notification:
        origin = self._origin
        fixed = {"cluster": origin.cluster, "owner": origin.owner, "owner_rev": origin.owner_rev}
        return Notification(kind=kind, id=notification_id, at_s=now_s, **fixed, **of_job)  # type: ignore[arg-type]


def _position(kind: NotificationKind, view: JobView) -> str:
    """Return the job's position when a condition began, which the next owner finds too as long as nothing has moved."""
    status = view.status
    if kind is NotificationKind.LATE:
        return f"{view.applied_version} {view.applied_at_s!r} {status.doubted_at_s!r}"
    return f"{view.seq} {view.applied_version} {int(status.error_code)} {status.end_at_s!r}"


def _id_of(*parts: str) -> str:
    return sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]


# --- the queue of a receiver ------------------------------------------------------------------------------------------

WAITING_MAX = 1_000
"""Notifications that wait for one receiver; one more drops the oldest (`webhook.dropped`, and the counter)."""

REFUSALS_MAX = 10
"""Attempts of a notification that its receiver refuses (a status from 300 to 499 but 408 and 429); then it is dropped,
so that the ones behind it are sent. A receiver that does not answer, or fails, is retried without end.
"""

RETRY_FIRST_S = 1.0
"""Pause after the first failed attempt at a receiver; it doubles with each."""

RETRY_MAX_S = 300.0
"""Longest pause between attempts at a receiver."""


class DeliveryQueue:
    """Notifications for one receiver, oldest first, which are retried with backoff. Invariant: at most `WAITING_MAX`
    wait.

    The queue knows no clock and no network; the random number is passed in.
    """

    def __init__(self) -> None:
        self._waiting: deque[Notification] = deque()
        self._failures = 0
        self._refusals = 0
        self._due_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, notification: Notification) -> Notification | None:
        """Add a notification, and return the one that had to be dropped for it, if any."""
        self._waiting.append(notification)
        if len(self._waiting) <= WAITING_MAX:
            return None
        self._refusals = 0
        return self._waiting.popleft()

    def clear(self) -> int:
        """Drop all, and answer how many: another owner says what is still true."""
        dropped = len(self._waiting)
        self._waiting.clear()
        self._failures, self._refusals, self._due_s = 0, 0, 0.0
        return dropped

    def next(self, now_s: float) -> Notification | None:
        """Return the one to send now (monotonic seconds)."""
        return self._waiting[0] if self._waiting and self._due_s <= now_s else None

    def pause_s(self, now_s: float) -> float | None:
        """Return for how many seconds nothing is to be sent; None until something is added."""
        return max(0.0, self._due_s - now_s) if self._waiting else None

    def accept(self, notification: Notification) -> None:
        """The receiver has accepted it. The queue may have dropped it meanwhile."""
        self._failures, self._refusals, self._due_s = 0, 0, 0.0
        self._remove(notification)

    def fail(self, notification: Notification, *, refused: bool, now_s: float, draw: float) -> bool:
        """Note a failed delivery, and return whether the notification was given up. `draw` is uniform in [0, 1)."""
        pause_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(self._failures, 64))
        self._failures += 1
        self._due_s = now_s + jittered_s(pause_s, draw)
        if not self._waiting or self._waiting[0] is not notification:
            return False
        self._refusals += refused
        if self._refusals < REFUSALS_MAX:
            return False
        self._failures, self._refusals = 0, 0
        self._remove(notification)
        return True

    def _remove(self, notification: Notification) -> None:
        if self._waiting and self._waiting[0] is notification:
            self._waiting.popleft()
