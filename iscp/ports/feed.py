"""What the writers of a changefeed's shard need to stand in line: locks, and the count of incidents in their names."""

from __future__ import annotations

from typing import Protocol

from iscp.core.feed_queue import IncidentReport, Incidents


class HeldLock(Protocol):
    """A place at the head of a line. It keeps nobody from writing: that is up to the commit."""

    @property
    def held(self) -> bool:
        """Whether, as far as is known here, nobody else can hold it; asks nobody."""

    def release(self) -> None:
        """Let the next one go; may be called again, and never raises: what cannot be deleted ends with its lease."""


class FeedLocks(Protocol):
    """The lines of one writer process. Raises Unavailable, OutcomeUnknown; InvalidRequest for a name that is none."""

    def try_lock(self, feed: str, shard: str, incidents: int, wait_s: float) -> HeldLock | None:
        """Stand in line for the lock of this count, for `wait_s` at most; None: in vain, and no longer in line."""

    def incidents(self, feed: str, shard: str) -> Incidents: ...

    def raise_incidents(self, feed: str, shard: str, seen: Incidents) -> Incidents:
        """Raise the count by one unless it is another than `seen`; what it is now, whoever raised it."""

    def list_incidents(self, feed: str) -> tuple[IncidentReport, ...]:
        """Of every shard of the feed that has had any, by shard."""

    def check(self) -> None:
        """Return if the connection is alive."""
