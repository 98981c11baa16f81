"""Notifications to receivers of webhooks: a condition of a job has begun or ended, or the owner has changed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

FORMAT_VERSION = 1


class NotificationKind(StrEnum):
    LATE = "late"
    FAILED = "failed"
    QUARANTINED = "quarantined"
    RECOVERED = "recovered"
    OWNER_CHANGED = "owner_changed"

    __hash__ = str.__hash__


@dataclass(frozen=True, slots=True)
class Origin:
    """The sender: the cluster, the owner's node id, and its term."""

    cluster: str
    owner: str
    owner_rev: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One message to receivers; docs/webhooks.md says what each field means.

    `id` is the same for every repetition. `alert_id` is the id of the notification that opened the condition, and
    `recovered_from` its kind where this one closes it. Times are Unix seconds; `lag_s` is -1 while it is not known.
    """

    kind: NotificationKind
    id: str
    at_s: float
    cluster: str
    owner: str
    owner_rev: int
    alert_id: str = ""
    recovered_from: str = ""
    account: str = ""
    table: str = ""
    table_id: str = ""
    job: str = ""
    job_id: str = ""
    state: str = ""
    reason: str = ""
    error_code: int = 0
    error_message: str = ""
    lag_s: float = -1.0
    applied_version: int = -1
    source_version: int = -1

    def to_json(self) -> bytes:
        """Return the body as it is signed and sent."""
        return json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, separators=(",", ":")).encode()
